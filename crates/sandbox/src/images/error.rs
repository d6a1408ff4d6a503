//! Why an image cannot be taken, made, found or removed.

use std::io;
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::Digest;
use oci_client::errors::{OciDistributionError, OciErrorCode};

/// What is wrong with an image, or with this host's store of them.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a name.
    #[error(
        "{0:?} is not an image's name: 1 to 200 of a-z, 0-9 and ._-/:, beginning with a letter or digit"
    )]
    Name(String),
    /// No such name or digest here.
    #[error("no image {0:?} on this host; `cofferdam image ls` lists them")]
    Unknown(String),
    /// The name is there, with other content.
    #[error("the image {name:?} is {found} on this host, not {wanted}")]
    Moved {
        /// Name of the image.
        name: String,
        /// Digest of the manifest that the name has on this host.
        found: Digest,
        /// What was asked for.
        wanted: Digest,
    },
    /// A document of the image is not what it should be.
    #[error("{what}: {why}")]
    Malformed {
        /// What is wrong, such as `index.json`, `the configuration` or a reference.
        what: String,
        /// Reason, for the operator.
        why: String,
    },
    /// Bytes that are not those that were announced.
    #[error("{what} has the digest {found}, not {wanted}")]
    Digest {
        /// Bytes that were read: `a blob` or `the manifest`.
        what: &'static str,
        /// What was announced.
        wanted: Digest,
        /// Digest of the bytes that were read.
        found: Digest,
    },
    /// A layer that would reach out of its root, or bring what no root may hold.
    #[error("the entry {path:?} {why}")]
    Hostile {
        /// The entry's name.
        path: String,
        /// What it does.
        why: &'static str,
    },
    /// More than the bounds allow.
    #[error("{what} exceeds this host's bound of {limit}")]
    TooLarge {
        /// The exceeded quantity, in words.
        what: &'static str,
        /// Bound on `what`: bytes, or a number of files or entries.
        limit: u64,
    },
    /// A sandbox runs on it.
    #[error("the image {0:?} is in use by a sandbox: wait for it, or cancel its run")]
    InUse(String),
    /// Templates are made of it.
    #[error(
        "the image {image:?} is what these templates are made of: {templates}; `cofferdam template rm` them first"
    )]
    OfTemplates {
        /// Name of the image.
        image: String,
        /// Names of the templates, separated by commas.
        templates: String,
    },
    /// Another process adds an image, so nothing may be swept away.
    #[error("an image is being added to this host right now: try again when it is done")]
    Busy,
    /// A registry that does not answer, refuses, or answers wrongly.
    #[error("the registry did not give {reference:?}")]
    Registry {
        /// What was asked for.
        reference: String,
        /// The underlying error.
        source: Box<OciDistributionError>,
    },
    /// A registry that is too slow.
    #[error(
        "the registry did not give {reference:?} within {seconds} s: try again, or use a nearer registry"
    )]
    Late {
        /// What was asked for.
        reference: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A step of a build that failed.
    #[error("step {number} ({step}) failed: {why}")]
    Step {
        /// Number of the step in the build file, from 1.
        number: usize,
        /// The step in one line, as the build prints it.
        step: String,
        /// Reason, for the operator.
        why: String,
    },
    /// The host's file system.
    #[error("{}", .path.display())]
    Io {
        /// Path of the file concerned.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

impl ImageError {
    /// Whether the image is refused for what it is. A registry that does not answer now may a moment later.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Registry { source, .. } => is_refusal(source),
            Self::Late { .. } | Self::Io { .. } | Self::Busy => false,
            _ => true,
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), why: why.into() }
    }

    pub(crate) fn hostile(path: &Path, why: &'static str) -> Self {
        Self::Hostile { path: path.to_string_lossy().into_owned(), why }
    }
}

/// Whether a registry says that it does not have or give it. Of 408 and 429 it may say otherwise later.
fn is_refusal(error: &OciDistributionError) -> bool {
    match error {
        OciDistributionError::ServerError { code, .. } => {
            (400..500).contains(code) && !matches!(code, 408 | 429)
        }
        // An answer of 4xx that says why.
        OciDistributionError::RegistryError { envelope, .. } => {
            !envelope.errors.iter().any(|one| one.code == OciErrorCode::Toomanyrequests)
        }
        OciDistributionError::UnauthorizedError { .. }
        | OciDistributionError::ImageManifestNotFoundError(_) => true,
        _ => false,
    }
}

/// Names the path of a fault.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Io { path, source }
}
