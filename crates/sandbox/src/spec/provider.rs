//! Who holds the sandboxes of the class `remote`: what the operator says of a provider, and the provider.

use std::fmt;

use url::Url;
use zeroize::Zeroizing;

/// A provider's key. It is never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Key(Zeroizing<String>);

impl Key {
    /// Surrounding white space, such as a file's last line break, is not part of it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Zeroizing::new(text.trim().to_owned()))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// What the operator says of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Of its API, such as `https://api.e2b.app`.
    pub url: String,
    /// Where all its sandboxes answer, told apart by headers; `None`: each at a name of its own.
    pub sandbox_url: Option<String>,
    /// What its sandboxes are made of.
    pub template: String,
    /// What it knows us by.
    pub key: Key,
    /// A sandbox that nobody prolongs ends after so many seconds: a worker that is lost leaves none for
    /// longer.
    pub term_s: u64,
}

impl RemoteConfig {
    /// The term of whoever does not say: two minutes outlast a provider's restart.
    pub const TERM_S: u64 = 120;
}

/// A provider that may be asked: it has answered to the key.
#[derive(Debug, PartialEq, Eq)]
pub struct Provider {
    pub(crate) url: Url,
    pub(crate) sandboxes: Option<Url>,
    pub(crate) template: String,
    pub(crate) key: Key,
    pub(crate) term_s: u64,
    /// Which of the state directories of the world: what its sandboxes are listed by.
    pub(crate) tag: String,
}

/// Where a sandbox is that outlives its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteLocation {
    /// The provider's URL.
    pub provider: String,
    /// The sandbox's name there.
    pub id: String,
}
