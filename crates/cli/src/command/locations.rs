//! Where a command finds everything: state directory, database, server and key.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use cofferdam_ambient::env;

use super::output;

/// Where everything is.
#[derive(Debug, Clone, Args)]
pub(crate) struct Locations {
    /// State directory. Default: /var/lib/cofferdam as root, ~/.local/state/cofferdam otherwise.
    #[arg(long, global = true, env = "COFFERDAM_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// PostgreSQL URL; default: a private PostgreSQL in the state directory
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub db: Option<String>,
    /// URL of a running server; needs a key. Default: the state directory's server by its socket, otherwise this
    /// process
    #[arg(long, global = true, env = "COFFERDAM_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// File with the API key; default: COFFERDAM_KEY, otherwise the state directory's admin key, sent only to its own
    /// server
    #[arg(long, global = true, env = "COFFERDAM_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// File with the key that secrets are sealed under; default: secrets.key in the state directory, made on the first
    /// start
    #[arg(long, global = true, env = "COFFERDAM_SECRETS_KEY", value_name = "FILE")]
    pub secrets_key: Option<PathBuf>,
    /// Directory of large artifacts, sealed; processes of one installation that share it have one artifact store. Default: objects in
    /// the state directory; with --db none, and what does not fit the database's bounds is not kept
    #[arg(long, global = true, env = "COFFERDAM_OBJECTS", value_name = "DIR")]
    pub objects: Option<PathBuf>,
    /// The API key itself; other users can read arguments, so use --key-file (kept for old scripts, with a warning)
    #[arg(long, global = true, hide = true, conflicts_with = "key_file")]
    pub key: Option<String>,
}

impl Locations {
    /// The key that the caller gives, wherever that is.
    ///
    /// # Errors
    /// A key file that cannot be read or is empty.
    pub(crate) fn key(&self) -> anyhow::Result<Option<String>> {
        if let Some(key) = &self.key {
            let why = "other users of this host can read --key: use --key-file or COFFERDAM_KEY";
            output::note(why);
            return Ok(Some(key.clone()));
        }
        let Some(path) = &self.key_file else { return Ok(env::var(KEY).filter(|k| !k.is_empty())) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the key in {}", path.display()))?;
        let key = text.trim();
        anyhow::ensure!(!key.is_empty(), "{} is empty; write the API key into it", path.display());
        Ok(Some(key.to_owned()))
    }
}

/// Where the caller's key is, if no file is named.
const KEY: &str = "COFFERDAM_KEY";
