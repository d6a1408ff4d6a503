//! Moves a file or a directory within a sandbox.

use cofferdam_live::{Account, Guest, GuestError, RenameFile};
use serde_json::json;

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message;
use crate::envd::call::Rpc;
use crate::envd::entry::{described, look, missing};
use crate::envd::filesystem::make_dir::make_dirs;
use crate::envd::paths::plain;
use crate::envd::paths::{followed, parent, unavailable};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    source: String,
    destination: String,
}

async fn renamed(guest: &Guest, from: &str, to: &str, account: Account) -> ReplyResult {
    let (_, source) = look(guest, from).await?.ok_or_else(|| missing(from))?;
    make_dirs(guest, parent(to), account).await?;
    let target = followed(guest, to, false).await?;
    match guest.ask(RenameFile { from: source, to: target }).await {
        Ok(()) => Ok(json!({"entry": described(guest, to).await?})),
        Err(GuestError::Refused { error, .. }) => Err(Fault::argument(error)),
        Err(error) => Err(unavailable(&error)),
    }
}

/// Moves a node.
pub(crate) async fn rename(call: Rpc) -> ReplyResult {
    let Rpc { envd, account, message } = call;
    let (Move { source, destination }, account) = (message::parse(message)?, account?);
    let (from, to) = (plain(&source, account)?, plain(&destination, account)?);
    renamed(&envd.guest, &from, &to, account).await
}
