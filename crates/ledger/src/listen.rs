//! Wake-ups: one LISTEN connection a process, fanned out to whoever waits in it.
//!
//! A notification only says "look now"; what is true is always read from tables, and every waiter
//! also looks on its own after a bounded time, so that a lost notification costs latency, not truth.

use sqlx::postgres::PgListener;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::Ledger;
use crate::error::Result;

/// Wake-ups that a slow waiter may lag behind; beyond it the waiter looks at once, which is all
/// that a wake-up asks for.
const BACKLOG: usize = 1_024;

/// What a notification says to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// A queue has work.
    Queue(String),
    /// A task of this run ended.
    Task(String),
    /// This run's header changed.
    Run(String),
    /// This workflow was canceled.
    Cancel(String),
    /// A gate of this run changed.
    Gate(String),
    /// Bases of the dependency cache on this host are doomed.
    Cache(String),
    /// A session of this run is held, or no longer is.
    Wipe(String),
    /// Webhooks have something to deliver.
    Webhooks,
    /// The connection was lost and made again: anything may have happened.
    All,
}

impl Wake {
    fn parse(payload: &str) -> Option<Self> {
        let (kind, what) = payload.split_once(':')?;
        let what = what.to_owned();
        match kind {
            "q" => Some(Self::Queue(what)),
            "t" => Some(Self::Task(what)),
            "r" => Some(Self::Run(what)),
            "x" => Some(Self::Cancel(what)),
            "g" => Some(Self::Gate(what)),
            "c" => Some(Self::Cache(what)),
            "w" => Some(Self::Wipe(what)),
            "d" => Some(Self::Webhooks),
            _ => None,
        }
    }
}

/// A process's wake-ups.
#[derive(Debug, Clone)]
pub struct Wakes(broadcast::Sender<Wake>);

impl Wakes {
    /// A receiver of every wake-up from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Wake> {
        self.0.subscribe()
    }
}

/// Waits for a wake-up that is `mine`, or for one after which anything may have happened. Once the
/// process ends there is none to come: whoever waits has a time limit of its own, or is aborted.
pub async fn woken(wakes: &mut broadcast::Receiver<Wake>, mine: impl Fn(&Wake) -> bool) {
    loop {
        match wakes.recv().await {
            Ok(wake) if wake == Wake::All || mine(&wake) => return,
            Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Ledger {
    /// Starts listening; the task ends with the pool.
    pub async fn listen(&self) -> Result<Wakes> {
        let mut listener = PgListener::connect_with(self.pool()).await?;
        listener.listen("cofferdam").await?;
        let (sender, _) = broadcast::channel(BACKLOG);
        let wakes = Wakes(sender.clone());
        tokio::spawn(async move {
            loop {
                let wake = match listener.try_recv().await {
                    Ok(Some(note)) => Wake::parse(note.payload()),
                    // The connection was lost; the next call makes it again.
                    Ok(None) => Some(Wake::All),
                    Err(sqlx::Error::PoolClosed) => return,
                    Err(error) => {
                        tracing::warn!(%error, "listening failed; trying again");
                        cofferdam_ambient::clock::sleep(std::time::Duration::from_millis(250))
                            .await;
                        Some(Wake::All)
                    }
                };
                if let Some(wake) = wake {
                    // Nobody waiting is fine.
                    let _ = sender.send(wake);
                }
            }
        });
        Ok(wakes)
    }
}
