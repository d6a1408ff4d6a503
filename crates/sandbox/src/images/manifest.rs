//! The OCI documents, as far as they matter here.
//!
//! They are foreign: fields that we do not know are left alone, and their bytes are kept as they
//! came, because their digest is the image's identity.

use std::collections::BTreeMap;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::ImageError;
use super::name::{digest_of, text_of};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// What Docker calls the same documents.
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// A manifest or configuration is a few KiB; a list of platforms some dozen.
pub(crate) const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
/// The most layers that an image may have (the builders' own bound).
const MAX_LAYERS: usize = 127;

/// Names content by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

impl Descriptor {
    pub fn new(media_type: &str, digest: &Digest, size: u64) -> Self {
        Self { media_type: media_type.into(), digest: text_of(digest), size, platform: None }
    }

    pub fn digest(&self) -> Result<Digest, ImageError> {
        digest_of(&self.digest).ok_or_else(|| {
            ImageError::malformed(
                "a descriptor",
                format!("{:?} is not a sha256 digest", self.digest),
            )
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub architecture: String,
    pub os: String,
}

/// Several images for several platforms.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Index {
    pub manifests: Vec<Descriptor>,
}

impl Index {
    /// The one image for this machine.
    pub fn choose(&self) -> Result<&Descriptor, ImageError> {
        let fits = |d: &&Descriptor| {
            d.platform.as_ref().is_none_or(|p| p.os == "linux" && p.architecture == architecture())
        };
        let mut fitting = self.manifests.iter().filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(ImageError::malformed(
                "the index",
                format!("it has no image for linux on {}", architecture()),
            )),
            (Some(_), Some(_)) => Err(ImageError::malformed(
                "the index",
                "it has several images for this machine: give a file with one",
            )),
        }
    }
}

/// This machine, in the words of OCI.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An OCI image manifest of schema version 2.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    pub fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: Some(MANIFEST.into()), config, layers }
    }
}

/// What a task of the image gets.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Config {
    pub architecture: String,
    pub os: String,
    #[serde(default, deserialize_with = "or_default")]
    pub config: Settings,
    pub rootfs: RootFs,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Settings {
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RootFs {
    #[serde(rename = "type", default)]
    pub kind: String,
    pub diff_ids: Vec<String>,
}

/// Builders write `null` where they mean nothing.
fn or_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

impl Config {
    /// The digests of the layers' own bytes, in order, as many as the manifest has layers.
    pub fn diff_ids(&self, layers: usize) -> Result<Vec<Digest>, ImageError> {
        let wrong = |why: String| ImageError::malformed("the configuration", why);
        if self.os != "linux" || self.architecture != architecture() {
            return Err(wrong(format!(
                "it is for {} on {}, this machine is linux on {}",
                self.os,
                self.architecture,
                architecture()
            )));
        }
        if self.rootfs.diff_ids.len() != layers {
            return Err(wrong(format!(
                "{} diff ids for {layers} layers",
                self.rootfs.diff_ids.len()
            )));
        }
        if layers > MAX_LAYERS {
            return Err(ImageError::TooLarge { what: "the number of layers", limit: 127 });
        }
        let digest = |text: &String| {
            digest_of(text).ok_or_else(|| wrong(format!("{text:?} is not a sha256 digest")))
        };
        self.rootfs.diff_ids.iter().map(digest).collect()
    }
}

impl Settings {
    /// The environment as a map; what is not `NAME=value` is left out.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let pair = |text: &String| {
            let (name, value) = text.split_once('=')?;
            (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        };
        self.env.iter().filter_map(pair).collect()
    }
}

/// Parses a document.
pub(crate) fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::malformed(what, error.to_string()))
}

/// The bytes of a document of ours, and their digest.
pub(crate) fn written<T: Serialize>(document: &T) -> Result<(Vec<u8>, Digest), ImageError> {
    let bytes = serde_json::to_vec(document)
        .map_err(|error| ImageError::malformed("a document", error.to_string()))?;
    let digest = digest_bytes(&bytes);
    Ok((bytes, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_gives_the_one_image_for_this_machine() {
        let entry = |arch: &str| {
            serde_json::json!({"mediaType": MANIFEST, "digest": format!("sha256:{:064}", 1), "size": 1,
                               "platform": {"architecture": arch, "os": "linux"}})
        };
        let index = |entries: Vec<serde_json::Value>| -> Index {
            serde_json::from_value(serde_json::json!({"manifests": entries})).unwrap()
        };
        assert!(index(vec![entry("sparc"), entry(architecture())]).choose().is_ok());
        assert!(index(vec![entry("sparc")]).choose().is_err());
        assert!(index(vec![entry(architecture()), entry(architecture())]).choose().is_err());
    }

    #[test]
    fn null_means_nothing_in_a_configuration() {
        let config: Config = serde_json::from_value(serde_json::json!({
            "architecture": architecture(), "os": "linux",
            "config": {"Env": ["A=1", "B=x=y", "bare"], "User": null, "Cmd": null},
            "rootfs": {"type": "layers", "diff_ids": []},
        }))
        .unwrap();
        assert_eq!(
            config.config.environment().into_iter().collect::<Vec<_>>(),
            [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "x=y".to_owned()),]
        );
        assert!(config.diff_ids(1).is_err());
    }
}
