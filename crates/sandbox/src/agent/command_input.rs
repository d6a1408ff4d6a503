//! What a command is given while it runs: its standard input, and the size of its terminal.

use bytes::Bytes;
use cofferdam_contracts::input::TerminalSize;
use cofferdam_guest::process::Size;
use tokio::sync::{mpsc, watch};

use super::{CommandControl, ExecOptions};

/// The input of a command, as it comes.
#[derive(Debug)]
pub struct CommandInput {
    /// Its bytes; where their sender is dropped, the input ends.
    pub pieces: mpsc::Receiver<Bytes>,
    /// Sizes of its terminal, the first one included; `None`: it has none.
    pub terminal: Option<watch::Receiver<TerminalSize>>,
}

impl CommandInput {
    /// How a command with it is started.
    pub(crate) fn options(&mut self) -> ExecOptions {
        let terminal = self.terminal.as_mut().map(|sizes| size(*sizes.borrow_and_update()));
        ExecOptions { stdin: true, terminal, ..ExecOptions::default() }
    }

    /// Gives it to the command. That one may end, or read no more, at any time: then the sender of the pieces is told.
    pub(crate) async fn give(self, control: &CommandControl) {
        let Self { pieces, terminal } = self;
        let bytes = async {
            // Refused where the command has closed its input, or ended.
            let _ = control.stdin(pieces).await;
        };
        let sizes = async {
            let Some(mut sizes) = terminal else { return };
            while sizes.changed().await.is_ok() {
                let next = size(*sizes.borrow_and_update());
                // As above; the one after it is tried all the same.
                let _ = control.resize(next).await;
            }
        };
        tokio::join!(bytes, sizes);
    }
}

fn size(of: TerminalSize) -> Size {
    Size { rows: of.rows, cols: of.cols }
}
