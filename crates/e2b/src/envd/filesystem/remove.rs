//! Removes a file, or a directory with all that it has.

use cofferdam_live::{Guest, RemoveFile};
use serde_json::json;

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message;
use crate::envd::call::Rpc;
use crate::envd::entry::look;
use crate::envd::filesystem::one_path::OnePath;
use crate::envd::paths::plain;
use crate::envd::paths::{is_absent, is_through, unavailable};

async fn removed(guest: &Guest, path: &str) -> ReplyResult {
    if path == "/" {
        return Err(Fault::argument("the root cannot be removed"));
    }
    let Some((_, real)) = look(guest, path).await? else { return Ok(json!({})) };
    match guest.ask(RemoveFile { path: real, recursive: true }).await {
        Ok(()) => Ok(json!({})),
        Err(error) if is_absent(&error) => Ok(json!({})),
        Err(error) if is_through(&error) => Err(Fault::argument(error.to_string())),
        Err(error) => Err(unavailable(&error)),
    }
}

/// Removes a node.
pub(crate) async fn remove(call: Rpc) -> ReplyResult {
    let Rpc { envd, account, message } = call;
    let OnePath { path } = message::parse(message)?;
    removed(&envd.guest, &plain(&path, account?)?).await
}
