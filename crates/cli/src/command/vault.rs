//! The key of secrets: a file of the state directory, or the one that the operator names.

use std::path::Path;

use cofferdam_flows::Vault;
use cofferdam_ledger::Ledger;

use super::exit::Misuse;
use super::locations::Locations;

/// Where it is in a state directory.
const SECRETS: &str = "secrets.key";
/// Where files that were kept lie, sealed.
const KEPT: &str = "snapshots";

/// This host's key of secrets. The first process on a database without secrets makes one; later ones must have
/// it: a key that was made anew would open nothing. `None`: this host lacks it.
pub(crate) async fn vault(
    at: &Locations,
    ledger: &Ledger,
    dir: &Path,
) -> anyhow::Result<Option<Vault>> {
    if let Some(path) = &at.secrets_key {
        let found = Vault::read(path)?;
        let why = || Misuse(format!("--secrets-key {}: no such file", path.display()));
        return Ok(Some(found.ok_or_else(why)?));
    }
    let path = dir.join(SECRETS);
    if let Some(found) = Vault::read(&path)? {
        return Ok(Some(found));
    }
    if ledger.secrets().sealed_by().await?.is_some() {
        // A private database has one host, and its key was here. A host of a fleet may do without.
        if at.db.is_none() {
            return Err(missing(&path, "secrets").into());
        }
        tracing::info!("this host lacks the secrets key: it sets no secrets and sends none");
        return Ok(None);
    }
    // Files that this directory keeps open with no other key. Another host of a fleet has its own files, and its own key.
    let keeps = std::fs::read_dir(dir.join(KEPT)).is_ok_and(|mut files| files.next().is_some());
    if keeps && ledger.snapshots().has_sealed().await? {
        return Err(missing(&path, "files that were kept").into());
    }
    if ledger.objects().has_sealed().await? {
        // A private database has one host. One of a fleet may do without: it keeps and reads no large artifacts.
        if at.db.is_none() {
            return Err(missing(&path, "stored artifacts").into());
        }
        tracing::info!("this host lacks the secrets key: it reads no stored artifacts");
        return Ok(None);
    }
    Ok(Some(Vault::make(&path)?))
}

fn missing(path: &Path, what: &str) -> Misuse {
    Misuse(format!(
        "{} is missing, and {what} are sealed under it: restore it from a backup, or name another place by --secrets-key",
        path.display()
    ))
}
