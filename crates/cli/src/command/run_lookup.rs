//! The run that a person means, looked up once for a command.

use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::run_name::RunName;

use super::client::{Client, segment};

/// The id of the run that the beginning of an id or `last` means; a text that is whole stays as it is, an id of a run or of something
/// else. A command asks once, so that `last` stays one run while others start.
///
/// # Errors
/// What the server refuses: no such run, or several.
pub(crate) async fn run_id(client: &Client, said: &str) -> anyhow::Result<String> {
    match said.parse() {
        Ok(RunName::Prefix(_) | RunName::Last) => {
            let header: RunHeader = client.get(&format!("/api/runs/{}", segment(said))).await?;
            Ok(header.run_id.into())
        }
        Ok(RunName::Id(_)) | Err(_) => Ok(said.to_owned()),
    }
}
