//! The server's own certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Why a certificate is not served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of it.
    #[error("cannot read {} as PEM: {source}", .path.display())]
    File {
        /// File of the certificate chain or of the private key.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// No certificate in its file.
    #[error("{} has no certificate", .0.display())]
    Empty(PathBuf),
    /// Certificate and key do not belong together, or are of a kind that is not spoken.
    #[error("the certificate in {} does not work with that key: {source}", .path.display())]
    Unfit {
        /// The certificate's file.
        path: PathBuf,
        /// What the library says.
        source: rustls::Error,
    },
}

/// A certificate chain with its key, read once at the start.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// # Errors
    /// Files that cannot be read, or that are not a certificate chain with its key.
    pub fn read(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let file = |path: &Path| {
            let path = path.to_path_buf();
            move |source| TlsError::File { path, source }
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
            .map_err(file(cert))?
            .collect::<Result<_, _>>()
            .map_err(file(cert))?;
        if chain.is_empty() {
            return Err(TlsError::Empty(cert.to_path_buf()));
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(file(key))?;
        let unfit = |source| TlsError::Unfit { path: cert.to_path_buf(), source };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unfit)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0))
    }
}
