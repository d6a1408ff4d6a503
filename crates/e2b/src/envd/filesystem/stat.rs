//! Says what is at a path of a sandbox: kind, size, owner, mode, times.

use serde_json::json;

use crate::connect::fault::ReplyResult;
use crate::connect::message;
use crate::envd::call::Rpc;
use crate::envd::entry::described;
use crate::envd::filesystem::one_path::OnePath;
use crate::envd::paths::plain;

/// What is at a path.
pub(crate) async fn stat(call: Rpc) -> ReplyResult {
    let Rpc { envd, account, message } = call;
    let OnePath { path } = message::parse(message)?;
    Ok(json!({"entry": described(&envd.guest, &plain(&path, account?)?).await?}))
}
