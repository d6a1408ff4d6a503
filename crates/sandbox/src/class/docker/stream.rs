//! The agent's stream: what the engine's attachment carries, as one end of a socket pair.
//!
//! ```text
//! Agent <-> socket pair <-> pump <-> attachment (the engine) <-> stdin, stdout of the agent
//!                            '--> stderr: the last words
//! ```
//! Our end's end closes the agent's stdin, and with it ends the sandbox; a worker that is killed closes
//! the attachment, which does the same.

use std::convert::Infallible;
use std::io;

use bollard::container::{AttachContainerResults, LogOutput};
use futures_util::StreamExt as _;
use tokio::io::{AsyncWriteExt as _, copy};
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::class::isolation::{LaunchResult, RuntimeFuture, RuntimeHandle};
use crate::class::tail::keep_last;

/// A container that we are attached to.
#[derive(Debug)]
struct ContainerHandle {
    ended: watch::Receiver<()>,
}

impl RuntimeHandle for ContainerHandle {
    /// Waits for the end of what its agent says, which is its own.
    fn wait(&mut self) -> RuntimeFuture<'_, Option<String>> {
        Box::pin(async move {
            // Nothing is ever sent: it is an error when the pump is gone, again and again.
            let _ = self.ended.changed().await;
            Some("the container ended".to_owned())
        })
    }

    fn kill(&mut self) -> RuntimeFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// Carries a container's streams until it ends; gives the last words, of so many bytes.
pub(super) fn carry(
    results: AttachContainerResults,
    kept_bytes: usize,
) -> io::Result<LaunchResult> {
    let (ours, theirs) = UnixStream::pair()?;
    let (sender, ended) = watch::channel(());
    let log = tokio::spawn(async move {
        let said = pump(results, theirs, kept_bytes).await;
        drop(sender);
        said
    });
    Ok(LaunchResult::of(Box::new(ContainerHandle { ended }), log, ours))
}

async fn pump(results: AttachContainerResults, theirs: UnixStream, kept_bytes: usize) -> String {
    let AttachContainerResults { mut output, mut input } = results;
    let (mut from_us, mut to_us) = theirs.into_split();
    let mut words = Vec::new();
    let heard = async {
        while let Some(Ok(chunk)) = output.next().await {
            match chunk {
                LogOutput::StdOut { message } => {
                    if to_us.write_all(&message).await.is_err() {
                        break;
                    }
                }
                LogOutput::StdErr { message } | LogOutput::Console { message } => {
                    keep_last(&mut words, &message, kept_bytes);
                }
                LogOutput::StdIn { .. } => {}
            }
        }
    };
    let told = async {
        // However it ends, nothing more is to be said, and the agent is told so.
        let _ = copy(&mut from_us, &mut input).await;
        let _ = input.shutdown().await;
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        () = heard => {}
        never = told => match never {},
    }
    String::from_utf8_lossy(&words).into_owned()
}
