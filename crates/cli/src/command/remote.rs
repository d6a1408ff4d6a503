//! Who holds the sandboxes of a worker whose runtime is `remote`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use cofferdam_ambient::env;
use cofferdam_sandbox::{Key, RemoteConfig};

/// Where the key is, if no file is named: as the provider's own clients have it. It is no argument, since
/// everybody on a host reads those.
const KEY: &str = "E2B_API_KEY";

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RemoteArgs {
    /// With --runtime remote: URL of the E2B API
    #[arg(long, env = "E2B_API_URL", value_name = "URL")]
    pub remote_url: Option<String>,
    /// Single address of all its sandboxes; default: one name per sandbox, or on loopback --remote-url
    #[arg(long, env = "E2B_SANDBOX_URL", value_name = "URL")]
    pub remote_sandbox_url: Option<String>,
    /// Template of its sandboxes
    #[arg(long, default_value = "base", value_name = "NAME")]
    pub remote_template: String,
    /// File with its API key; default: E2B_API_KEY
    #[arg(long, value_name = "FILE")]
    pub remote_key_file: Option<PathBuf>,
}

impl RemoteArgs {
    /// What the operator says; nothing where no provider is named.
    pub(crate) fn config(&self) -> anyhow::Result<Option<RemoteConfig>> {
        let Some(url) = self.remote_url.clone() else { return Ok(None) };
        let key = match &self.remote_key_file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the provider's key in {}", path.display()))?,
            None => env::var(KEY).unwrap_or_default(),
        };
        Ok(Some(RemoteConfig {
            url,
            sandbox_url: self.remote_sandbox_url.clone(),
            template: self.remote_template.clone(),
            key: Key::new(&key),
            term_s: RemoteConfig::TERM_S,
        }))
    }
}
