//! What a sandbox's default user finds in the environment.

use serde_json::json;

use crate::connect::fault::ReplyResult;
use crate::envd::account::account;
use crate::envd::call::Rpc;

/// What its default user's commands find in their environment.
pub(crate) async fn variables(call: Rpc) -> ReplyResult {
    Ok(json!(call.envd.environment(account(None)?).await?))
}
