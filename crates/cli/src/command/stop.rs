//! SIGTERM and Ctrl-C of a server, heard on a thread that nothing else uses.
//!
//! ```text
//! signal -> told: the runtime stops in order
//!        -> watched: a runtime that does nothing for STUCK is not waited for; the next start finds what is left
//! ```

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use cofferdam_ambient::clock;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::output;

/// A runtime that does nothing for so long after a signal is given up.
const STUCK: Duration = Duration::from_secs(10);
/// Exit status of a stop that did not wait, as of any failure.
const FAILED: i32 = 2;

/// The order to stop.
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Listens from here on, so that no signal ends the process without its clean-up.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let (tell, told) = watch::channel(false);
        let (ready, is_ready) = mpsc::channel();
        let runtime = Handle::current();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if let Err(error) = hear(&ready, &tell, &runtime) {
                let _ = ready.send(Err(error));
            }
        })?;
        is_ready.recv().context("the thread for signals ended")??;
        Ok(Self(told))
    }

    /// Once it was given.
    pub(crate) async fn requested(&mut self) {
        // Without its thread there is no order to come.
        if self.0.wait_for(|told| *told).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Ends with the process, or ends it.
fn hear(
    ready: &mpsc::Sender<std::io::Result<()>>,
    tell: &watch::Sender<bool>,
    runtime: &Handle,
) -> std::io::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let _ = ready.send(Ok(()));
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        output::note("stopping");
        let _ = tell.send(true);
        // For as long as it does what it is asked, it stops in its own time.
        while tokio::time::timeout(STUCK, runtime.spawn(async {})).await.is_ok() {
            clock::sleep(STUCK).await;
        }
        output::note("nothing moves in this process: it ends at once; the next start looks after what is left");
        std::process::exit(FAILED);
    })
}
