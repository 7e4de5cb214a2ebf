//! The key and the self-signed certificate by which other nodes know this one: `node.pem` in its state directory. etcd has the
//! certificate's fingerprint, and nothing else counts: no name, no date, no authority. Refuses a key that others can read.

use std::{fmt, os::unix::fs::PermissionsExt, path::Path, str::FromStr, sync::Arc};

use arden_admin::{AdminError, error::Result, secret};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use ring::digest;
use rustls::{
    crypto::ring as provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use crate::files;

/// The SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        let mut out = [0u8; 32];
        out.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
        Fingerprint(out)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&secret::hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Fingerprint, String> {
        let halves = text.is_ascii().then(|| text.split_at_checked(32)).flatten();
        let bytes = halves.and_then(|(a, b)| Some((secret::unhex16(a)?, secret::unhex16(b)?)));
        let (a, b) = bytes.ok_or_else(|| "a fingerprint has 64 hexadecimal digits".to_string())?;
        let mut out = [0u8; 32];
        out[..16].copy_from_slice(&a);
        out[16..].copy_from_slice(&b);
        Ok(Fingerprint(out))
    }
}

/// A node's key with its certificate.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

fn file(state_dir: &Path) -> std::path::PathBuf {
    state_dir.join("node.pem")
}

fn made(cluster: &str, node: &str) -> std::result::Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![node.to_string()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, format!("Arden cluster {cluster}"));
    params.distinguished_name.push(DnType::CommonName, node);
    Ok(key.serialize_pem() + &params.self_signed(&key)?.pem())
}

impl Identity {
    /// Makes a new key (ECDSA with P-256) and its certificate, and writes them durably. What was there is replaced.
    ///
    /// # Errors
    /// Failed, when the file cannot be written.
    pub fn make(state_dir: &Path, cluster: &str, node: &str) -> Result<Identity> {
        let pem = made(cluster, node).map_err(|e| AdminError::failed(format!("no certificate: {e}"), ""))?;
        files::replace(&file(state_dir), pem.as_bytes())?;
        Identity::of_pem(pem.as_bytes()).map_err(|e| AdminError::failed(e, ""))
    }

    /// None: the node has none yet.
    ///
    /// # Errors
    /// Failed, when others can read the file, or it is not what [`Identity::make`] wrote.
    pub fn load(state_dir: &Path) -> Result<Option<Identity>> {
        let path = file(state_dir);
        let failed = |e: String, hint: &str| AdminError::failed(format!("{}: {e}", path.display()), hint);
        let mode = match std::fs::metadata(&path) {
            Ok(found) => found.permissions().mode(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e.to_string(), "")),
        };
        if mode & 0o077 != 0 {
            let error = format!("others can access this node's key (mode {:o})", mode & 0o777);
            return Err(failed(error, "remove the node and join again with a new key, or `chmod 600` it"));
        }
        let pem = std::fs::read(&path).map_err(|e| failed(e.to_string(), ""))?;
        Identity::of_pem(&pem).map(Some).map_err(|e| failed(e, "restore it from a backup"))
    }

    fn of_pem(pem: &[u8]) -> std::result::Result<Identity, String> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| "it has no private key".to_string())?;
        let certificate = CertificateDer::from_pem_slice(pem).map_err(|_| "it has no certificate".to_string())?;
        Identity::of(certificate, key)
    }

    /// # Errors
    /// The key is of no known kind, or not that of the certificate.
    pub fn of(
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> std::result::Result<Identity, String> {
        let fingerprint = Fingerprint::of(&certificate);
        let certified = CertifiedKey::from_der(vec![certificate], key, &provider::default_provider());
        let certified = certified.map_err(|e| format!("the key is not that of the certificate: {e}"))?;
        Ok(Identity { certified: Arc::new(certified), fingerprint })
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

#[cfg(test)]
impl Identity {
    pub(crate) fn for_test() -> Identity {
        Identity::of_pem(made("c", "n").unwrap().as_bytes()).unwrap()
    }

    /// The certificate of one with the key of another.
    pub(crate) fn with_key_of(&self, other: &Identity) -> Identity {
        let certified = CertifiedKey::new(self.certified.cert.clone(), other.certified.key.clone());
        Identity { certified: Arc::new(certified), fingerprint: self.fingerprint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_and_kept_from_others() {
        let dir = std::env::temp_dir().join(format!("arden-identity-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(Identity::load(&dir).unwrap().is_none());
        let made = Identity::make(&dir, "c", "n1").unwrap();
        assert_eq!(std::fs::metadata(file(&dir)).unwrap().permissions().mode() & 0o777, 0o600);
        let read = Identity::load(&dir).unwrap().unwrap();
        assert_eq!(read.fingerprint(), made.fingerprint());
        assert_eq!(made.fingerprint().to_string().parse(), Ok(made.fingerprint()));
        assert_ne!(Identity::make(&dir, "c", "n1").unwrap().fingerprint(), made.fingerprint(), "each has its own key");
        let mut mode = std::fs::metadata(file(&dir)).unwrap().permissions();
        mode.set_mode(0o640);
        std::fs::set_permissions(file(&dir), mode).unwrap();
        assert!(Identity::load(&dir).unwrap_err().error.contains("others can access"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_key_without_its_certificate_is_refused() {
        let (one, two) = (made("c", "n1").unwrap(), made("c", "n1").unwrap());
        let key_end = one.find("-----BEGIN CERTIFICATE").unwrap();
        let mixed = format!("{}{}", &one[..key_end], &two[two.find("-----BEGIN CERTIFICATE").unwrap()..]);
        assert!(Identity::of_pem(mixed.as_bytes()).unwrap_err().contains("not that of the certificate"));
        assert!(Identity::of_pem(&one.as_bytes()[..key_end]).unwrap_err().contains("no certificate"));
        assert!(Identity::of_pem(b"").unwrap_err().contains("no private key"));
    }

    #[test]
    fn fingerprints_have_64_digits() {
        for bad in ["", "ab", &"g".repeat(64), &"a".repeat(63), &"é".repeat(32)] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }
}
