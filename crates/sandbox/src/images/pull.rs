//! Images from a registry, by reference.

use std::time::Duration;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;
use futures_util::StreamExt as _;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};

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

impl Images {
    /// Takes in an image from a registry, under `name` or the reference itself. TLS always, except
    /// to a registry on this host's loopback. Without credentials: what it gives to anybody.
    pub async fn pull(
        &self,
        reference: &str,
        name: Option<&ImageName>,
    ) -> Result<ImageRecord, ImageError> {
        let wanted: Reference = reference.parse().map_err(|error: oci_client::ParseError| {
            ImageError::malformed(format!("the reference {reference:?}"), error.to_string())
        })?;
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
        let registry = Registry::new(self, &wanted);
        let manifest = registry.take().await?;
        let images = self.clone();
        let source = format!("pull {reference}");
        let named = blocking(move || images.admit(&manifest, &name, &source)).await;
        drop(adding);
        named
    }
}

struct Registry<'a> {
    images: &'a Images,
    client: Client,
    wanted: &'a Reference,
}

impl<'a> Registry<'a> {
    fn new(images: &'a Images, wanted: &'a Reference) -> Self {
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
        Self { images, client, wanted }
    }

    /// Brings every blob of the image for this machine, and gives its manifest's digest.
    async fn take(&self) -> Result<Digest, ImageError> {
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
        self.images.blobs.copy(bytes.as_ref(), Some(&digest), MAX_DOCUMENT)?;
        self.blob(&manifest.config, MAX_DOCUMENT).await?;
        for layer in &manifest.layers {
            self.blob(layer, self.images.bounds.blob_bytes).await?;
        }
        Ok(digest)
    }

    async fn document(
        &self,
        reference: &Reference,
        pinned: Option<&Digest>,
    ) -> Result<(bytes::Bytes, Digest), ImageError> {
        let (bytes, _) = self
            .client
            .pull_manifest_raw(reference, &RegistryAuth::Anonymous, &ACCEPTED)
            .await
            .map_err(|error| self.fault(error))?;
        // What the registry says about its digest does not matter.
        let found = digest_bytes(&bytes);
        match pinned {
            Some(wanted) if *wanted != found => {
                Err(ImageError::Digest { what: "the manifest", wanted: wanted.clone(), found })
            }
            _ => Ok((bytes, found)),
        }
    }

    async fn blob(&self, wanted: &Descriptor, limit: u64) -> Result<(), ImageError> {
        let digest = wanted.digest()?;
        if self.images.blobs.has(&digest) {
            return Ok(());
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
        let mut incoming = self.images.blobs.begin(wanted.size)?;
        while let Some(piece) = stream.next().await {
            incoming.push(&piece.map_err(|error| self.fault(error.into()))?)?;
        }
        self.images.blobs.end(incoming, Some(&digest)).map(|_| ())
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
