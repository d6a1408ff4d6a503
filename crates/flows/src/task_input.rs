//! Standard input of a task's command: what its run's client sends, at the command's own pace.
//!
//! ```text
//! first attempt, client here -> its bytes, its end        client gone before the end -> the command is killed
//! later attempt              -> the end of input          client not here            -> not started
//! ```
//! **A command never takes a part of its input for the whole**: it would act on it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_ambient::clock;
use cofferdam_contracts::input::{InputMode, TerminalSize};
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{CommandInput, CommandStopper, ExecOutcome};
use tokio::sync::{mpsc, watch};

use crate::client_input::ClientInput;
use crate::feed::Feed;
use crate::input_queue::InputPiece;

/// Pieces on their way to the command beside the window.
const QUEUED: usize = 2;
/// How often it is looked whether the client is there.
const LOOK: Duration = Duration::from_secs(1);
/// Why a command is not started without its client.
const ABSENT: &str = "its standard input is not here: the client that sends it is gone, or talks to another server than \
                      the one whose worker runs this; start it again on a server with a worker of its own";
/// Why it was killed.
const LOST: &str = "its client was gone before the end of its standard input";

/// Where a command's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputOrigin {
    /// It has none from a client.
    Nowhere,
    /// The client sends it.
    Client,
    /// An earlier attempt had it.
    Ended,
    /// Nobody here has it.
    Absent,
}

/// Decides it. `claim`: whether this attempt is the first to read what the client sends; `None`: no client is here. Pure.
const fn origin(asked: Option<InputMode>, claim: Option<bool>, is_first: bool) -> InputOrigin {
    match (asked, claim, is_first) {
        (None, ..) => InputOrigin::Nowhere,
        (Some(_), Some(true), _) => InputOrigin::Client,
        (Some(_), Some(false), _) | (Some(_), None, false) => InputOrigin::Ended,
        (Some(_), None, true) => InputOrigin::Absent,
    }
}

/// The input of a command that is about to start.
#[derive(Debug)]
pub(crate) struct TaskInput {
    mode: InputMode,
    /// Whose client sends it; `None`: it has ended.
    feed: Option<Arc<Feed>>,
}

impl TaskInput {
    /// The input of the task's command; nothing where it asks for none.
    ///
    /// # Errors
    /// Why the command cannot be started.
    pub(crate) fn of(
        task: &TaskContext,
        feed: Option<&Arc<Feed>>,
    ) -> Result<Option<Self>, &'static str> {
        let asked = task.work.request().and_then(|request| request.input);
        let Some(mode) = asked else { return Ok(None) };
        let feed = feed.filter(|feed| feed.input().is_some());
        let claim = feed.and_then(|feed| Some(feed.input()?.claim()));
        let is_first = task.attempt <= 1 && task.execution_no <= 1;
        match origin(asked, claim, is_first) {
            InputOrigin::Nowhere => Ok(None),
            InputOrigin::Client => Ok(Some(Self { mode, feed: feed.cloned() })),
            InputOrigin::Ended => Ok(Some(Self { mode, feed: None })),
            InputOrigin::Absent => Err(ABSENT),
        }
    }

    /// What the command is given, and what carries it there.
    pub(crate) async fn split(self) -> (CommandInput, Option<InputPump>) {
        let (to, pieces) = mpsc::channel(QUEUED);
        let client = self.feed.as_ref().and_then(|feed| feed.input());
        let terminal = match (self.mode, client) {
            (InputMode::Stream, _) => None,
            (InputMode::Terminal, Some(client)) => Some(client.sizes().await),
            (InputMode::Terminal, None) => {
                Some(watch::Sender::new(TerminalSize::default()).subscribe())
            }
        };
        let pump = self.feed.map(|feed| InputPump { feed, to });
        (CommandInput { pieces, terminal }, pump)
    }
}

/// Carries a client's input to its command. Once it is dropped, what still comes is taken and left out.
#[derive(Debug)]
pub(crate) struct InputPump {
    feed: Arc<Feed>,
    to: mpsc::Sender<Bytes>,
}

impl InputPump {
    /// Up to the end of input. Where the client is gone before it, the command is ended first, and this never ends.
    pub(crate) async fn run(self, stopper: &CommandStopper) {
        let Some(input) = self.feed.input() else { return };
        loop {
            let piece = tokio::select! {
                piece = input.next() => piece,
                () = clock::sleep(LOOK) => {
                    if self.feed.is_away() && input.lose() {
                        stopper.end();
                        // Dropping the sender would end the command's input before the command.
                        return std::future::pending().await;
                    }
                    continue;
                }
            };
            let InputPiece::Bytes(bytes) = piece else { return };
            if self.to.send(bytes).await.is_err() {
                // The command has closed its input, and goes on.
                return;
            }
        }
    }
}

impl Drop for InputPump {
    fn drop(&mut self) {
        if let Some(input) = self.feed.input() {
            input.close();
        }
    }
}

/// Says of a command that was killed for it that its client was gone.
pub(crate) fn explain(outcome: &mut ExecOutcome, feed: Option<&Arc<Feed>>) {
    let is_lost = feed.and_then(|feed| feed.input()).is_some_and(ClientInput::is_lost);
    if is_lost && outcome.err_code != ErrCode::None {
        outcome.cause = Some(LOST.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_attempt_gets_the_end_of_input_and_a_first_one_without_its_client_is_not_started() {
        let asked = Some(InputMode::Stream);
        for (asked, claim, is_first, want) in [
            (None, Some(true), true, InputOrigin::Nowhere),
            (asked, Some(true), true, InputOrigin::Client),
            // The attempt before it never got as far as its command.
            (asked, Some(true), false, InputOrigin::Client),
            (asked, Some(false), false, InputOrigin::Ended),
            (asked, None, false, InputOrigin::Ended),
            (asked, None, true, InputOrigin::Absent),
        ] {
            assert_eq!(origin(asked, claim, is_first), want, "{asked:?} {claim:?} {is_first}");
        }
    }
}
