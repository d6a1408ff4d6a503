//! Standard input of this process on its way to a command in a sandbox.
//!
//! ```text
//! stdin -> part of at most 256 KiB -> PUT input?at=N -> next      size: SIGWINCH -> POST terminal
//!              '---- sent again from `next` on, also after a lost answer ----'
//! ```

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::input::{InputReceipt, MAX_INPUT_BYTES, TerminalSize};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::client::{Client, segment};
use super::exit::Negative;
use super::raw_terminal::{self, READ_BYTES, keyboard};

/// Between two requests of which the first failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What is sent: where it begins, what of it was read, and whether it ends there. Pure.
#[derive(Debug, Default, PartialEq, Eq)]
struct InputBuffer {
    at: u64,
    bytes: Vec<u8>,
    has_ended: bool,
}

/// What a receipt says.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// There is more to send, now or once it is read.
    Goes,
    /// All is there, or the command reads no more.
    Over,
}

impl InputBuffer {
    fn wants_more(&self) -> bool {
        !self.has_ended && self.bytes.len() + READ_BYTES <= MAX_INPUT_BYTES
    }

    /// What the next request has, and whether the input ends with it.
    fn part(&self) -> (&[u8], bool) {
        let fits = self.bytes.len().min(MAX_INPUT_BYTES);
        let part = self.bytes.get(..fits).unwrap_or_default();
        (part, self.has_ended && fits == self.bytes.len())
    }

    /// Takes off what the server has.
    fn confirm(&mut self, receipt: InputReceipt) -> Progress {
        let was_last = self.part().1;
        let sent = usize::try_from(receipt.next.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let sent = sent.min(self.bytes.len());
        self.bytes.drain(..sent);
        self.at = self.at.saturating_add(u64::try_from(sent).unwrap_or(u64::MAX));
        let is_over = receipt.closed == Some(true) || (was_last && self.bytes.is_empty());
        if is_over { Progress::Over } else { Progress::Goes }
    }
}

/// How input reaches the command.
#[derive(Debug)]
pub(crate) enum InputRelay {
    /// These bytes, which were read already, and what follows them.
    Stream(Vec<u8>),
    /// Keys of a raw terminal, and its sizes.
    Terminal,
}

impl InputRelay {
    /// Carries it to its end. Never ends: it is dropped once the run is over.
    pub(crate) async fn live(self, client: &Client, run: &str) -> Infallible {
        let path = format!("/api/runs/{}", segment(run));
        match self {
            Self::Stream(read) => bytes(client, &path, read).await,
            Self::Terminal => {
                tokio::join!(sizes(client, &path), bytes(client, &path, Vec::new()));
            }
        }
        pending().await
    }
}

async fn bytes(client: &Client, path: &str, read: Vec<u8>) {
    let mut keys = keyboard();
    let mut unsent = InputBuffer { bytes: read, ..InputBuffer::default() };
    loop {
        fill(&mut unsent, &mut keys).await;
        let (part, is_last) = unsent.part();
        let route = format!("{path}/input?at={}&end={is_last}", unsent.at);
        match client.put_bytes::<InputReceipt>(&route, part.to_vec()).await {
            Ok(receipt) => {
                if unsent.confirm(receipt) == Progress::Over {
                    return;
                }
            }
            // The run is over, or this server is not the one: its end says which.
            Err(error) if error.is::<Negative>() => return,
            // It may have been taken all the same: it is sent again from where it was.
            Err(_) => clock::sleep(AGAIN).await,
        }
    }
}

/// Adds what can be read, and waits for something to send.
async fn fill(unsent: &mut InputBuffer, keys: &mut mpsc::Receiver<Vec<u8>>) {
    if unsent.bytes.is_empty() && !unsent.has_ended {
        match keys.recv().await {
            Some(typed) => unsent.bytes.extend(typed),
            None => unsent.has_ended = true,
        }
    }
    while unsent.wants_more() {
        match keys.try_recv() {
            Ok(typed) => unsent.bytes.extend(typed),
            Err(mpsc::error::TryRecvError::Empty) => return,
            Err(mpsc::error::TryRecvError::Disconnected) => unsent.has_ended = true,
        }
    }
}

/// Tells the size of the terminal, now and whenever it changes.
async fn sizes(client: &Client, path: &str) {
    let Ok(mut resized) = signal(SignalKind::window_change()) else { return };
    loop {
        let TerminalSize { rows, cols } = raw_terminal::size();
        let size = json!({"rows": rows, "cols": cols});
        // One that was not told is told with the next one.
        let _ = client.post::<Value>(&format!("{path}/terminal"), &size).await;
        if resized.recv().await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(next: u64) -> InputReceipt {
        InputReceipt { next, closed: None }
    }

    #[test]
    fn what_the_server_did_not_take_is_sent_again() {
        let mut unsent = InputBuffer { at: 10, bytes: b"abcdef".to_vec(), has_ended: true };
        assert_eq!(unsent.part(), (&b"abcdef"[..], true));
        assert_eq!(unsent.confirm(receipt(13)), Progress::Goes);
        assert_eq!((unsent.at, unsent.part()), (13, (&b"def"[..], true)));
        assert_eq!(unsent.confirm(receipt(13)), Progress::Goes, "nothing fitted");
        assert_eq!(unsent.confirm(receipt(16)), Progress::Over);
    }

    #[test]
    fn the_end_goes_with_the_last_part_alone() {
        let mut unsent =
            InputBuffer { at: 0, bytes: vec![1; MAX_INPUT_BYTES + 5], has_ended: true };
        let most = u64::try_from(MAX_INPUT_BYTES).unwrap();
        assert_eq!((unsent.part().0.len(), unsent.part().1), (MAX_INPUT_BYTES, false));
        assert_eq!(unsent.confirm(receipt(most)), Progress::Goes);
        assert_eq!((unsent.part().0.len(), unsent.part().1), (5, true));
        assert_eq!(unsent.confirm(receipt(most + 5)), Progress::Over);
        let mut empty = InputBuffer { has_ended: true, ..InputBuffer::default() };
        assert_eq!(empty.part(), (&b""[..], true));
        assert_eq!(empty.confirm(receipt(0)), Progress::Over);
    }

    #[test]
    fn a_command_that_reads_no_more_is_sent_no_more() {
        let mut unsent = InputBuffer { bytes: b"ab".to_vec(), ..InputBuffer::default() };
        let closed = InputReceipt { next: 2, closed: Some(true) };
        assert_eq!(unsent.confirm(closed), Progress::Over);
    }
}
