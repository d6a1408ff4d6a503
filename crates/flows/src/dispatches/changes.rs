//! What an agent changed in its working directory: files as artifacts, and a list of everything.

use cofferdam_contracts::sandbox::{ErrCode, SandboxResult};
use cofferdam_sandbox::{Collected, Sandbox};
use serde_json::json;

use super::work::WORK;

/// The list's name among the artifacts.
const LIST: &str = "changes.json";

/// The changed files, and the list. What cannot be told fails a dispatch that would otherwise be a
/// success: its edits are what it was sent for.
pub(crate) async fn changes(
    sandbox: &Sandbox,
    result: &mut SandboxResult,
) -> (Vec<Collected>, Vec<(String, Vec<u8>)>) {
    match sandbox.changes(WORK).await {
        Ok(changes) => {
            let written: Vec<&str> =
                changes.written.iter().map(|file| file.path.as_str()).collect();
            let list = json!({
                "schemaVersion": 1, "written": written, "removed": changes.removed,
                "special": changes.special,
            });
            let empty = written.is_empty() && changes.removed.is_empty();
            let notes = if empty && changes.special.is_empty() {
                Vec::new()
            } else {
                vec![(LIST.to_owned(), list.to_string().into_bytes())]
            };
            (changes.written, notes)
        }
        Err(error) => {
            if result.err_code == ErrCode::None {
                result.err_code = ErrCode::DownloadFail;
                result.cause = Some(format!("its changes could not be kept: {error}"));
            }
            (Vec::new(), Vec::new())
        }
    }
}
