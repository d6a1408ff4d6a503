//! Standard input of a run, from the client that started it to the one command that reads it.
//!
//! ```text
//! put (a request) -> window -> next (the command's own pace)        resize -> sizes
//! ```
//! A request waits while the window is full: a client is as slow as the command that it feeds.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::input::{InputMode, InputReceipt, TerminalSize};
use serde_json::json;
use tokio::sync::{Notify, watch};

use crate::input_queue::{InputFault, InputPart, InputPiece, InputQueue};

/// How long a command with a terminal waits for the size of its client's: one request.
const SIZE_PATIENCE: Duration = Duration::from_secs(2);

/// The input of one run.
#[derive(Debug)]
pub struct ClientInput {
    mode: InputMode,
    state: Mutex<InputState>,
    arrived: Notify,
    left: Notify,
    sizes: watch::Sender<TerminalSize>,
}

#[derive(Debug, Default)]
struct InputState {
    queue: InputQueue,
    /// A command has it: no other one gets any of it.
    is_claimed: bool,
    /// The client said how large its terminal is.
    is_sized: bool,
    /// The client was gone before it said where its input ends.
    is_lost: bool,
}

impl ClientInput {
    pub(crate) fn new(mode: InputMode) -> Self {
        Self {
            mode,
            state: Mutex::default(),
            arrived: Notify::new(),
            left: Notify::new(),
            sizes: watch::Sender::new(TerminalSize::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, InputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes of a part what is new and fits; waits until some of it does.
    ///
    /// # Errors
    /// `conflict` where the part does not join what is here; `details.next` says where the next one begins.
    pub(crate) async fn put(
        &self,
        part: InputPart<'_>,
        wait: Duration,
    ) -> Result<InputReceipt, Refusal> {
        let waited = Stopwatch::start();
        loop {
            let receipt = self.lock().queue.put(part).map_err(refused)?;
            self.arrived.notify_one();
            let left = wait.saturating_sub(waited.elapsed());
            if receipt.next > part.at || part.bytes.is_empty() || left.is_zero() {
                return Ok(receipt);
            }
            tokio::select! {
                () = self.left.notified() => {}
                () = clock::sleep(left) => {}
            }
        }
    }

    /// Gives the terminal a size.
    ///
    /// # Errors
    /// `state_conflict` where it is a pipe.
    pub fn resize(&self, size: TerminalSize) -> Result<(), Refusal> {
        if self.mode != InputMode::Terminal {
            let why = "the run's input is a pipe, which has no size";
            return Err(Refusal::new(ErrorCode::StateConflict, why));
        }
        self.lock().is_sized = true;
        self.sizes.send_replace(size);
        Ok(())
    }

    /// A command is to read it. Whether it is the first.
    pub(crate) fn claim(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_claimed, true)
    }

    /// The sizes of the terminal, once the client said one, or after a while.
    pub(crate) async fn sizes(&self) -> watch::Receiver<TerminalSize> {
        let mut sizes = self.sizes.subscribe();
        if !self.lock().is_sized {
            // A client that says nothing has a terminal of the usual size.
            let _ = tokio::time::timeout(SIZE_PATIENCE, sizes.changed()).await;
        }
        sizes
    }

    /// The next piece, once it is here, or the end.
    pub(crate) async fn next(&self) -> InputPiece {
        loop {
            let piece = self.lock().queue.pop();
            if let Some(piece) = piece {
                self.left.notify_one();
                return piece;
            }
            self.arrived.notified().await;
        }
    }

    /// No command reads it any more.
    pub(crate) fn close(&self) {
        self.lock().queue.close();
        self.left.notify_one();
    }

    /// The client is gone: the command that reads what will not come is ended. `false`: it said where its input ends.
    pub(crate) fn lose(&self) -> bool {
        let mut state = self.lock();
        let is_lost = !state.queue.has_ended();
        state.is_lost |= is_lost;
        is_lost
    }

    /// Whether the client was gone before the end of its input.
    pub(crate) fn is_lost(&self) -> bool {
        self.lock().is_lost
    }
}

fn refused(fault: InputFault) -> Refusal {
    let (next, why) = match fault {
        InputFault::Gap { next } => (next, "the input before it is missing"),
        InputFault::Ended { next } => (next, "the input ends elsewhere, as was said before"),
    };
    let message = format!("{why}: it has {next} bytes; send what follows them with at={next}");
    Refusal::new(ErrorCode::Conflict, message).with(json!({"next": next}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_request_waits_for_the_command_and_says_how_far_it_came() {
        let input = ClientInput::new(InputMode::Stream);
        let much = vec![7; 1 << 20];
        let part = InputPart { at: 0, bytes: &much, is_last: false };
        assert_eq!(input.put(part, SOON).await.unwrap().next, 1 << 20);
        let more = InputPart { at: 1 << 20, bytes: b"end", is_last: true };
        assert_eq!(input.put(more, SOON).await.unwrap().next, 1 << 20, "nothing fits");
        let (taken, put) = tokio::join!(input.next(), input.put(more, Duration::from_secs(60)));
        assert!(matches!(taken, InputPiece::Bytes(_)));
        assert_eq!(put.unwrap().next, (1 << 20) + 3);
        assert!(!input.lose(), "the client may go: it has said all");
    }

    #[tokio::test]
    async fn the_next_piece_is_waited_for_and_a_part_out_of_order_is_refused_with_its_place() {
        let input = ClientInput::new(InputMode::Stream);
        assert!(tokio::time::timeout(SOON, input.next()).await.is_err());
        let late = InputPart { at: 5, bytes: b"x", is_last: false };
        let refusal = input.put(late, SOON).await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Conflict);
        assert_eq!(refusal.details, Some(json!({"next": 0})));
        input.put(InputPart { at: 0, bytes: b"ab", is_last: false }, SOON).await.unwrap();
        assert_eq!(input.next().await, InputPiece::Bytes(Bytes::from_static(b"ab")));
        assert!(input.lose() && input.is_lost());
    }

    #[tokio::test]
    async fn one_command_reads_it_and_a_terminal_alone_has_a_size() {
        let pipe = ClientInput::new(InputMode::Stream);
        assert!(pipe.claim() && !pipe.claim());
        let size = TerminalSize { rows: 40, cols: 100 };
        assert_eq!(pipe.resize(size).unwrap_err().code, ErrorCode::StateConflict);
        let terminal = ClientInput::new(InputMode::Terminal);
        terminal.resize(size).unwrap();
        assert_eq!(*terminal.sizes().await.borrow(), size);
    }
}
