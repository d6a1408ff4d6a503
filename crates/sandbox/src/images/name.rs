//! Names of images, and what an `envRef` says about one.

use std::fmt;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;

use super::error::ImageError;

/// Longest name: a registry's host, a path and a tag fit.
const MAX_NAME: usize = 200;
/// How OCI documents write a digest.
const SHA256: &str = "sha256:";

/// An image's name on this host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName(String);

impl ImageName {
    /// Parses a name; [`ImageError::Name`] states its length and characters.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let is_plain = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/:".contains(&byte)
        };
        let fits = text.len() <= MAX_NAME
            && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && text.bytes().all(is_plain)
            && !text.starts_with(SHA256);
        if fits { Ok(Self(text.to_owned())) } else { Err(ImageError::Name(text.to_owned())) }
    }

    /// The name as it was parsed, without a digest.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name may hold slashes, so its file is named by its hash.
    pub(crate) fn file(&self) -> String {
        digest_bytes(self.0.as_bytes()).to_string()
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What stands behind `image:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageRef {
    pub name: ImageName,
    pub digest: Option<Digest>,
}

impl ImageRef {
    /// `NAME` or `NAME@sha256:HEX`.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let Some((name, digest)) = text.split_once('@') else {
            return Ok(Self { name: ImageName::parse(text)?, digest: None });
        };
        let digest = digest_of(digest).ok_or_else(|| ImageError::Name(text.to_owned()))?;
        Ok(Self { name: ImageName::parse(name)?, digest: Some(digest) })
    }
}

/// Parses `sha256:HEX`; `None` for any other text.
pub(crate) fn digest_of(text: &str) -> Option<Digest> {
    Digest::parse(text.strip_prefix(SHA256)?).ok()
}

/// Writes a digest as OCI documents do: `sha256:HEX`.
pub(crate) fn text_of(digest: &Digest) -> String {
    format!("{SHA256}{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_plain_and_a_digest_pins_it() {
        for good in ["a", "base:12", "127.0.0.1:5000/team/tool:1.2"] {
            assert_eq!(ImageName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "A", "a b", "a@b", "/etc", "sha256:00", &"a".repeat(201)] {
            assert!(ImageName::parse(bad).is_err(), "{bad}");
        }
        let hex = "0".repeat(64);
        let wanted = ImageRef::parse(&format!("base:12@sha256:{hex}")).unwrap();
        assert_eq!(wanted.name.as_str(), "base:12");
        assert_eq!(wanted.digest.unwrap().to_string(), hex);
        assert!(ImageRef::parse("base@sha256:12").is_err());
        assert!(ImageRef::parse("base@md5:12").is_err());
    }
}
