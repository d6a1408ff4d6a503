//! What an agent changed in its working directory: files as artifacts, and a list of everything.

use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::sandbox::{ErrCode, SandboxResult};
use cofferdam_sandbox::{Changes, CollectedFile, Sandbox};
use serde_json::json;

/// The list's name among the artifacts.
const LIST: &str = "changes.json";

/// The files that were changed in the project, and the list. What cannot be told fails a dispatch that would otherwise be a
/// success: its edits are what it was sent for. What does not fit is listed, and the limit is on record.
pub(crate) async fn changes(
    sandbox: &Sandbox,
    project: &str,
    result: &mut SandboxResult,
) -> (Vec<CollectedFile>, Vec<(String, Vec<u8>)>) {
    match sandbox.files().changes(project).await {
        Ok(changes) => {
            if !changes.left_out.is_empty() || changes.unlisted > 0 {
                result.limits_reached.push(LimitKind::Artifacts);
                result.limits_reached.sort_unstable();
                result.limits_reached.dedup();
            }
            let is_empty = changes == Changes::default();
            let notes = match is_empty {
                true => Vec::new(),
                false => vec![(LIST.to_owned(), list(&changes))],
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

fn list(changes: &Changes) -> Vec<u8> {
    let written: Vec<&str> = changes.written.iter().map(|file| file.path.as_str()).collect();
    let list = json!({
        "schemaVersion": 2, "written": written, "executable": changes.executable, "removed": changes.removed,
        "special": changes.special, "links": changes.links, "ignored": changes.ignored,
        "leftOut": changes.left_out, "unlisted": changes.unlisted,
    });
    list.to_string().into_bytes()
}
