//! Who is at the other end: the holder of the key of a certificate whose fingerprint etcd has. Refuses every other certificate,
//! whoever signed it, every version of TLS but 1.3, and to resume a session, which would not ask for the certificate again.

use std::sync::{Arc, Weak};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        CryptoProvider,
        ring::{self as provider, cipher_suite},
        verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

use super::{PeerError, Peers};
use crate::identity::Fingerprint;

/// Of a server: it has to be this node.
#[derive(Debug)]
struct IsNode {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

/// Of a client: it has to be a node of the cluster.
#[derive(Debug)]
struct IsAnyNode {
    peers: Weak<Peers>,
    provider: Arc<CryptoProvider>,
}

fn refused() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

fn signature(
    provider: &CryptoProvider,
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(message, cert, dss, &provider.signature_verification_algorithms)
}

fn schemes(provider: &CryptoProvider) -> Vec<SignatureScheme> {
    provider.signature_verification_algorithms.supported_schemes()
}

fn no_tls12() -> Error {
    Error::General("TLS 1.2 is not supported between nodes".to_string())
}

impl ServerCertVerifier for IsNode {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match Fingerprint::of(end_entity) == self.fingerprint {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(refused()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature(&self.provider, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes(&self.provider)
    }
}

impl ClientCertVerifier for IsAnyNode {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let peers = self.peers.upgrade().ok_or_else(refused)?;
        match peers.of_fingerprint(Fingerprint::of(end_entity)) {
            Some(node) if node != peers.me.node => Ok(ClientCertVerified::assertion()),
            _ => Err(refused()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature(&self.provider, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes(&self.provider)
    }
}

fn unusable(e: Error) -> PeerError {
    PeerError::Malformed(format!("TLS: {e}"))
}

/// AES-128-GCM first: it costs least where the processor knows AES.
fn tls13_provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..provider::default_provider() })
}

/// Of a node that connects to the one with this fingerprint.
pub fn client(certified: Arc<CertifiedKey>, fingerprint: Fingerprint) -> Result<Arc<ClientConfig>, PeerError> {
    let provider = tls13_provider();
    let verifier = Arc::new(IsNode { fingerprint, provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// Of a node that others connect to.
pub fn server(peers: &Arc<Peers>) -> Result<Arc<ServerConfig>, PeerError> {
    let provider = tls13_provider();
    let verifier = Arc::new(IsAnyNode { peers: Arc::downgrade(peers), provider: provider.clone() });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(peers.identity.certified())));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
