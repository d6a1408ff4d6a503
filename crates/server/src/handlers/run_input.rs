//! What the client that started a run sends to its command: standard input, and the size of its terminal.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::RunId;
use cofferdam_contracts::input::TerminalSize;
use cofferdam_contracts::output::MAX_PIECE;
use cofferdam_flows::Error;
use cofferdam_flows::feed::{Feed, InputPart};

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

/// How long a request waits for the command to take something. Less than a request may wait for the database, and often
/// enough for a client to be known to be there.
const WAIT: Duration = Duration::from_secs(5);

/// Takes a part of the input; waits until some of it fits.
pub(crate) async fn put(call: Call) -> AnswerResult {
    let at = u64::try_from(call.number("at", 0..=MAX_PIECE, 0)?).unwrap_or(0);
    let is_last = call.flag("end")?;
    let feed = feed(&call).await?;
    let part = InputPart { at, bytes: &call.bytes, is_last };
    ok(&feed.put(part, WAIT).await?)
}

/// Gives the command's terminal a size.
pub(crate) async fn resize(mut call: Call) -> AnswerResult {
    let size: TerminalSize = call.body()?;
    feed(&call).await?.client_input()?.resize(size)?;
    ok(&size)
}

/// The run's, for the key that started it.
async fn feed(call: &Call) -> Result<Arc<Feed>, Error> {
    let feeds = &call.flows().runs.feeds;
    // Its own key names the run whole, with each key that is typed: nothing needs to be looked up.
    if let Ok(run) = call.param("id").parse::<RunId>()
        && let Some(feed) = feeds.of(&run, &call.who.key_id)
    {
        return Ok(feed);
    }
    let run = call.run().await?;
    let found = feeds.giving(&run.run_id, &call.who.key_id);
    Ok(found.map_err(|refusal| match refusal.code {
        ErrorCode::WrongServer if run.status.is_terminal() => {
            Refusal::new(ErrorCode::StateConflict, "the run is over: nothing reads its input")
        }
        _ => refusal,
    })?)
}
