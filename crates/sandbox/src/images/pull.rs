//! Images from a registry, by reference.

use std::time::Duration;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;
use futures_util::StreamExt as _;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};

use super::error::ImageError;
use super::manifest::{
    DOCKER_LIST, DOCKER_MANIFEST, Descriptor, INDEX, Index, MANIFEST, MAX_DOCUMENT, Manifest, parse,
};
use super::name::{ImageName, digest_of, text_of};
use super::store::{ImageRecord, Images};
use crate::host::task::blocking;

const ACCEPTED: [&str; 4] = [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_LIST];
/// A registry that does not answer for so long is down.
const CONNECT: Duration = Duration::from_secs(10);
const READ: Duration = Duration::from_secs(60);

/// Asks a registry what a reference stands for now: the digest of its manifest or index.
pub(crate) async fn look_up(reference: &str) -> Result<Digest, ImageError> {
    let wanted = parsed(reference)?;
    Registry::new(&wanted).document(&wanted, None).await.map(|(_, digest)| digest)
}

impl Images {
    /// Takes in an image from a registry, under `name` or the reference itself. TLS always, except
    /// to a registry on this host's loopback. Without credentials: what it gives to anybody.
    pub async fn pull(
        &self,
        reference: &str,
        name: Option<&ImageName>,
    ) -> Result<ImageRecord, ImageError> {
        self.pull_counted(reference, name).await.map(|(record, _)| record)
    }

    /// The same as [`Images::pull`], with the number of bytes that were fetched.
    pub(crate) async fn pull_counted(
        &self,
        reference: &str,
        name: Option<&ImageName>,
    ) -> Result<(ImageRecord, u64), ImageError> {
        let wanted = parsed(reference)?;
        let name = match (name, reference.split_once('@')) {
            (Some(name), _) => name.clone(),
            (None, Some((name, _))) => ImageName::parse(name)?,
            (None, None) => ImageName::parse(reference)?,
        };
        let adding = blocking({
            let images = self.clone();
            move || images.lock.adding()
        })
        .await?;
        let (manifest, fetched) = Registry::new(&wanted).take(self).await?;
        let images = self.clone();
        let source = format!("pull {reference}");
        let named = blocking(move || images.admit(&manifest, &name, &source)).await;
        drop(adding);
        named.map(|record| (record, fetched))
    }
}

fn parsed(reference: &str) -> Result<Reference, ImageError> {
    reference.parse().map_err(|error: oci_client::ParseError| {
        ImageError::malformed(format!("the reference {reference:?}"), error.to_string())
    })
}

struct Registry<'a> {
    client: Client,
    wanted: &'a Reference,
}

impl<'a> Registry<'a> {
    fn new(wanted: &'a Reference) -> Self {
        // Harmless where the process has chosen one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let registry = wanted.resolve_registry();
        let protocol = match is_loopback(registry) {
            true => ClientProtocol::HttpsExcept(vec![registry.to_owned()]),
            false => ClientProtocol::Https,
        };
        let client = Client::new(ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT),
            read_timeout: Some(READ),
            ..ClientConfig::default()
        });
        Self { client, wanted }
    }

    /// Brings every blob of the image for this machine, and gives its manifest's digest and how much was fetched.
    async fn take(&self, images: &Images) -> Result<(Digest, u64), ImageError> {
        let pinned = self.wanted.digest().map(|text| {
            digest_of(text).ok_or_else(|| {
                ImageError::malformed("the reference", format!("{text:?} is not a sha256 digest"))
            })
        });
        let pinned = pinned.transpose()?;
        let (bytes, digest) = self.document(self.wanted, pinned.as_ref()).await?;
        let (bytes, digest) = match parse::<Index>("the index", &bytes) {
            Ok(index) => {
                let digest = index.choose()?.digest()?;
                self.document(&self.wanted.clone_with_digest(text_of(&digest)), Some(&digest))
                    .await?
            }
            Err(_) => (bytes, digest),
        };
        let manifest: Manifest = parse("the manifest", &bytes)?;
        let whole = manifest.layers.iter().fold(0, |sum: u64, one| sum.saturating_add(one.size));
        let limit = images.bounds.blob_bytes;
        if images.bounds.of_all_layers && whole > limit {
            return Err(ImageError::TooLarge { what: "the bytes of an image's layers", limit });
        }
        images.blobs.copy(bytes.as_ref(), Some(&digest), MAX_DOCUMENT)?;
        let mut fetched = self.blob(images, &manifest.config, MAX_DOCUMENT).await?;
        for layer in &manifest.layers {
            fetched += self.blob(images, layer, limit).await?;
        }
        Ok((digest, fetched))
    }

    async fn document(
        &self,
        reference: &Reference,
        pinned: Option<&Digest>,
    ) -> Result<(bytes::Bytes, Digest), ImageError> {
        let bytes = self.text(reference).await.map_err(|error| self.fault(error))?;
        let bytes = bytes
            .ok_or(ImageError::TooLarge { what: "the bytes of a manifest", limit: MAX_DOCUMENT })?;
        // What the registry says about its digest does not matter.
        let found = digest_bytes(&bytes);
        match pinned {
            Some(wanted) if *wanted != found => {
                Err(ImageError::Digest { what: "the manifest", wanted: wanted.clone(), found })
            }
            _ => Ok((bytes, found)),
        }
    }

    /// The bytes of a manifest or index; `None`: they are more than a document may have. The library would hold all of them.
    async fn text(
        &self,
        reference: &Reference,
    ) -> Result<Option<bytes::Bytes>, OciDistributionError> {
        let anybody = RegistryAuth::Anonymous;
        let token = self.client.auth(reference, &anybody, RegistryOperation::Pull).await?;
        let registry = reference.resolve_registry();
        let scheme = if is_loopback(registry) { "http" } else { "https" };
        let which = reference.digest().or_else(|| reference.tag()).unwrap_or("latest");
        let url = format!("{scheme}://{registry}/v2/{}/manifests/{which}", reference.repository());
        let client = reqwest::Client::builder().connect_timeout(CONNECT).read_timeout(READ);
        let client = client.redirect(reqwest::redirect::Policy::none()).build()?;
        let mut asked = client.get(&url).header(reqwest::header::ACCEPT, ACCEPTED.join(", "));
        if let Some(token) = token {
            asked = asked.bearer_auth(token);
        }
        let mut answer = asked.send().await?;
        if !answer.status().is_success() {
            let (code, message) = (answer.status().as_u16(), "it does not have it".to_owned());
            return Err(OciDistributionError::ServerError { code, url, message });
        }
        let mut bytes = bytes::BytesMut::new();
        while let Some(piece) = answer.chunk().await? {
            let size = bytes.len().saturating_add(piece.len());
            if !u64::try_from(size).is_ok_and(|size| size <= MAX_DOCUMENT) {
                return Ok(None);
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(bytes.freeze()))
    }

    /// Brings a blob unless it is here, and gives how much was fetched.
    async fn blob(
        &self,
        images: &Images,
        wanted: &Descriptor,
        limit: u64,
    ) -> Result<u64, ImageError> {
        let digest = wanted.digest()?;
        if images.blobs.has(&digest) {
            return Ok(0);
        }
        if wanted.size > limit {
            return Err(ImageError::TooLarge { what: "a blob", limit });
        }
        let descriptor = OciDescriptor {
            digest: wanted.digest.clone(),
            size: i64::try_from(wanted.size).unwrap_or(i64::MAX),
            media_type: wanted.media_type.clone(),
            ..OciDescriptor::default()
        };
        let mut stream = self
            .client
            .pull_blob_stream(self.wanted, &descriptor)
            .await
            .map_err(|error| self.fault(error))?;
        // No more than was announced, whatever is sent.
        let mut incoming = images.blobs.begin(wanted.size)?;
        while let Some(piece) = stream.next().await {
            incoming.push(&piece.map_err(|error| self.fault(error.into()))?)?;
        }
        images.blobs.end(incoming, Some(&digest)).map(|(_, size)| size)
    }

    fn fault(&self, error: OciDistributionError) -> ImageError {
        ImageError::Registry { reference: self.wanted.whole(), source: Box::new(error) }
    }
}

fn is_loopback(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn only_loopback_is_asked_without_tls() {
        for plain in ["localhost:5000", "127.0.0.1:5000", "[::1]:5000"] {
            assert!(is_loopback(plain), "{plain}");
        }
        for tls in ["registry.example", "localhost.example:5000", "10.0.0.1:5000", "127.example"] {
            assert!(!is_loopback(tls), "{tls}");
        }
    }
}
