//! TLS to etcd: who etcd has to be, and as whom this node logs on. The files are read for each connection, so that they can be
//! replaced in use. Refuses authorities of the system: only those in the file that was named sign certificates of etcd.

use std::{
    error::Error as StdError,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore,
    crypto::ring as provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    version::TLS13,
};
use serde::{Deserialize, Serialize};

/// Files in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdFiles {
    /// Certificates of the authorities that sign those of etcd.
    pub ca: PathBuf,
    /// This node's certificate for etcd, with those between it and the authority, and its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientFiles>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let pem = std::fs::read(path).map_err(|e| wrong(&e))?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(wrong(&"there is no certificate in PEM")),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mode = std::fs::metadata(path).map_err(|e| wrong(&e))?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(wrong(&format!("everybody on this machine can access the key (mode {:o})", mode & 0o777)));
    }
    let pem = std::fs::read(path).map_err(|e| wrong(&e))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| wrong(&"there is no private key in PEM"))
}

impl EtcdFiles {
    /// With paths that do not depend on where a program starts.
    ///
    /// # Errors
    /// There is no working directory, or a path is empty.
    pub fn absolute(self) -> io::Result<EtcdFiles> {
        let client = |c: ClientFiles| -> io::Result<ClientFiles> {
            Ok(ClientFiles { certificate: std::path::absolute(c.certificate)?, key: std::path::absolute(c.key)? })
        };
        Ok(EtcdFiles { ca: std::path::absolute(self.ca)?, client: self.client.map(client).transpose()? })
    }

    /// What the files say now.
    ///
    /// # Errors
    /// Which file is not usable, and why.
    pub fn read(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|e| format!("{}: {e}", self.ca.display()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots);
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let chain = certificates(&files.certificate)?;
                let with = builder.with_client_auth_cert(chain, key(&files.key)?);
                with.map_err(|e| format!("{} and {}: {e}", files.certificate.display(), files.key.display()))?
            }
        };
        Ok(Arc::new(config))
    }

    /// Why etcd and this node do not trust each other; None: something else went wrong. Then etcd has not carried out anything.
    pub fn distrust(&self, e: &(dyn StdError + 'static)) -> Option<String> {
        let ca = self.ca.display();
        Some(match tls_error(e)? {
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                format!("no authority in {ca} has signed etcd's certificate")
            }
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                "etcd's certificate has expired, or this machine's clock is wrong".to_string()
            }
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => "etcd's certificate is for another name or address than that in the URL".to_string(),
            Error::InvalidCertificate(other) => format!("etcd's certificate is not usable: {other}"),
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                "etcd wants a certificate of its clients: name it with --etcd-cert and --etcd-key".to_string()
            }
            Error::AlertReceived(alert) if self.client.is_none() && *alert == AlertDescription::BadCertificate => {
                "etcd wants a certificate of its clients: name it with --etcd-cert and --etcd-key".to_string()
            }
            Error::AlertReceived(
                alert @ (AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError),
            ) => format!("etcd does not take this node's certificate: {alert:?}"),
            Error::AlertReceived(AlertDescription::ProtocolVersion) | Error::PeerIncompatible(_) => {
                "etcd has no TLS 1.3".to_string()
            }
            Error::InvalidMessage(_) => "no TLS is spoken there: is the URL of etcd http://?".to_string(),
            _ => return None,
        })
    }
}

/// The error of TLS inside of another.
fn tls_error<'a>(e: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut next = Some(e);
    while let Some(e) = next {
        if let Some(found) = e.downcast_ref::<Error>() {
            return Some(found);
        }
        // The source of an error of I/O leaves out the one inside.
        let inner = e.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => e.source(),
        };
    }
    None
}
