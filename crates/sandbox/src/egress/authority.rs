//! A certificate authority of one sandbox, for the hosts that get a secret from its proxy, and for mirrors.
//!
//! **Its key is made when the sandbox is and lives in this process's memory alone.** The sandbox trusts its
//! certificate beside those that the host trusts; no other sandbox does.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_contracts::egress::Name;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;

/// What the proxy speaks inside: every client of HTTPS falls back to it.
pub(crate) const HTTP_1_1: &[u8] = b"http/1.1";

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateAuthorityError {
    #[error("its certificates cannot be made")]
    Certificate(#[from] rcgen::Error),
    #[error("its certificates cannot be served")]
    Tls(#[from] rustls::Error),
}

/// The authority's certificate, and what each host is served with.
pub(crate) struct CertificateAuthority {
    certificate_pem: String,
    served: BTreeMap<Name, Arc<ServerConfig>>,
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.served.keys()).finish()
    }
}

impl CertificateAuthority {
    /// A fresh authority with a certificate for each of these hosts.
    pub(crate) fn new<'a>(
        hosts: impl IntoIterator<Item = &'a Name>,
    ) -> Result<Self, CertificateAuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "Cofferdam egress proxy of this sandbox");
        let certificate_pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let mut served = BTreeMap::new();
        for host in hosts {
            if !served.contains_key(host) {
                served.insert(host.clone(), served_by(&issuer, host)?);
            }
        }
        Ok(Self { certificate_pem, served })
    }

    /// What the sandbox trusts.
    pub(crate) fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// How TLS for a host is ended here; `None` for a host that it was not made for.
    pub(crate) fn server_config(&self, host: &Name) -> Option<Arc<ServerConfig>> {
        self.served.get(host).cloned()
    }
}

fn served_by(
    issuer: &Issuer<'_, KeyPair>,
    host: &Name,
) -> Result<Arc<ServerConfig>, CertificateAuthorityError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![host.as_str().to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "Cofferdam egress proxy");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.into())?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_serves_its_own_hosts_and_no_other() {
        let name = |text: &str| Name::parse(text).unwrap();
        let own = CertificateAuthority::new([&name("a.example"), &name("a.example")]).unwrap();
        assert!(own.server_config(&name("a.example")).is_some());
        assert!(own.server_config(&name("b.a.example")).is_none());
        assert!(own.certificate_pem().starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(!own.certificate_pem().contains("PRIVATE"));
        let other = CertificateAuthority::new([&name("a.example")]).unwrap();
        assert_ne!(own.certificate_pem(), other.certificate_pem());
        assert_eq!(format!("{own:?}"), "{\"a.example\"}");
    }
}
