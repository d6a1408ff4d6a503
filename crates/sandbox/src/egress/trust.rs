//! TLS to servers that this host verifies.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::env;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::policy::Name;

/// Where distributions keep the certificates that a host trusts.
pub(crate) const USUAL_CA: &str = "/etc/ssl/certs/ca-certificates.crt";
/// TLS to a server: what clients themselves wait.
const HANDSHAKE_MS: u64 = 15_000;

/// The certificates that the worker's own environment names.
pub(crate) fn own_ca() -> Option<PathBuf> {
    ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]
        .into_iter()
        .find_map(env::var)
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}

/// A client that trusts the certificates of a file, and nothing where there is none.
pub(crate) fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let found = ca.and_then(|path| CertificateDer::pem_file_iter(path).ok());
    roots.add_parsable_certificates(found.into_iter().flatten().flatten());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(tls))
}

/// TLS to exactly this name.
///
/// # Errors
/// The server is not verified, or is silent for [`HANDSHAKE_MS`].
pub(crate) async fn connect(
    tls: &Arc<ClientConfig>,
    name: &Name,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let server = ServerName::try_from(name.to_string()).map_err(io::Error::other)?;
    let connected = TlsConnector::from(Arc::clone(tls)).connect(server, stream);
    let late = |_| {
        let words = format!("the server did not answer within {HANDSHAKE_MS} ms");
        io::Error::new(io::ErrorKind::TimedOut, words)
    };
    tokio::time::timeout(Duration::from_millis(HANDSHAKE_MS), connected).await.map_err(late)?
}
