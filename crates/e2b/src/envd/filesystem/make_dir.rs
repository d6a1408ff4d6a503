//! Makes a directory of a sandbox, with those above it.

use cofferdam_live::inside::NodeKind;
use cofferdam_live::{Account, Guest, MakeDirectory};
use serde_json::json;

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message;
use crate::envd::call::Rpc;
use crate::envd::entry::{described, look};
use crate::envd::filesystem::one_path::OnePath;
use crate::envd::paths::plain;
use crate::envd::paths::{followed, parent, unavailable};

const DIR_MODE: u32 = 0o755;

/// Makes a directory and the parents that are missing, each with this owner.
pub(crate) async fn make_dirs(guest: &Guest, path: &str, account: Account) -> Result<(), Fault> {
    let mut missing = Vec::new();
    let mut at = path;
    while at != "/" {
        match look(guest, at).await? {
            None => missing.push(at.to_owned()),
            Some((entry, _)) if entry.kind == NodeKind::File => {
                return Err(Fault::argument(format!("path is a file: {at}")));
            }
            Some(_) => break,
        }
        at = parent(at);
    }
    for dir in missing.into_iter().rev() {
        let real = followed(guest, &dir, false).await?;
        let new = MakeDirectory { path: real, mode: DIR_MODE, owner: Some(account.user) };
        guest.ask(new).await.map_err(|error| unavailable(&error))?;
    }
    Ok(())
}

async fn made(guest: &Guest, path: &str, account: Account) -> ReplyResult {
    let real = followed(guest, path, true).await?;
    match look(guest, &real).await? {
        Some((entry, _)) if entry.kind == NodeKind::Dir => {
            Err(Fault::new("already_exists", format!("directory already exists: {path}")))
        }
        Some(_) => Err(Fault::argument(format!("path exists and is not a directory: {path}"))),
        None => {
            make_dirs(guest, path, account).await?;
            Ok(json!({"entry": described(guest, path).await?}))
        }
    }
}

/// Makes a directory.
pub(crate) async fn make_dir(call: Rpc) -> ReplyResult {
    let Rpc { envd, account, message } = call;
    let (OnePath { path }, account) = (message::parse(message)?, account?);
    made(&envd.guest, &plain(&path, account)?, account).await
}
