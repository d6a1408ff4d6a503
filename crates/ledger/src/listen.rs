//! Wake-ups: one LISTEN connection a process, fanned out to whoever waits in it.
//!
//! A notification only says "look now"; what is true is always read from tables, and every waiter
//! also looks on its own after a bounded time, so that a lost notification costs latency, not truth.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::random::secret_hex;
use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgNotification};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::error::Result;
use crate::{Ledger, NOW_MS};

/// Wake-ups that a slow waiter may lag behind; beyond it the waiter looks at once, which is all
/// that a wake-up asks for.
const BACKLOG: usize = 1_024;

/// So long a run counts as watched after a watcher said so.
pub const WATCH: Duration = Duration::from_secs(10);
/// A watcher says again after this time that it is there, so that a word may be lost.
pub const WATCH_AGAIN: Duration = Duration::from_secs(3);
/// Runs that are known to be watched.
const MAX_WATCHED: usize = 4_096;

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
    /// This key was revoked.
    Key(String),
    /// Webhooks have something to deliver.
    Webhooks,
    /// A task of this run wrote something. Only [`Wakes::outputs`] hears it.
    Output(String),
    /// Somebody watches this run's output. Only [`Wakes::is_watched`] knows of it.
    Watch(String),
    /// The connection was lost, or deaf, and made again: anything may have happened.
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
            "k" => Some(Self::Key(what)),
            "d" => Some(Self::Webhooks),
            "o" => Some(Self::Output(what)),
            "v" => Some(Self::Watch(what)),
            _ => None,
        }
    }
}

/// A process's wake-ups. What tasks write has a channel of its own: it comes twenty times a second from each of them, and whoever
/// waits for something else is not woken for it.
#[derive(Debug, Clone)]
pub struct Wakes {
    words: broadcast::Sender<Wake>,
    outputs: broadcast::Sender<String>,
    watched: Arc<Mutex<WatchList>>,
}

impl Wakes {
    fn new() -> Self {
        let (words, _) = broadcast::channel(BACKLOG);
        let (outputs, _) = broadcast::channel(BACKLOG);
        Self { words, outputs, watched: Arc::default() }
    }

    /// A receiver of every wake-up from now on, but for what tasks write.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Wake> {
        self.words.subscribe()
    }

    /// A receiver of the runs whose tasks write something from now on.
    #[must_use]
    pub fn outputs(&self) -> broadcast::Receiver<String> {
        self.outputs.subscribe()
    }

    /// Whether somebody asked for this run's output as it comes, within the last [`WATCH`].
    #[must_use]
    pub fn is_watched(&self, run: &str) -> bool {
        self.watched().is_known(run)
    }

    fn watched(&self) -> MutexGuard<'_, WatchList> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody waiting is fine.
    fn send(&self, wake: Wake) {
        match wake {
            Wake::Output(run) => drop(self.outputs.send(run)),
            Wake::Watch(run) => self.watched().note(run),
            word => drop(self.words.send(word)),
        }
    }
}

/// Runs whose output somebody watches, with when that was last said.
#[derive(Debug, Default)]
struct WatchList(HashMap<String, Stopwatch>);

impl WatchList {
    fn note(&mut self, run: String) {
        if self.0.len() >= MAX_WATCHED && !self.0.contains_key(&run) {
            self.0.retain(|_, said| said.elapsed() < WATCH);
        }
        // Beyond the bound its watchers see output later.
        if self.0.len() < MAX_WATCHED || self.0.contains_key(&run) {
            self.0.insert(run, Stopwatch::start());
        }
    }

    fn is_known(&self, run: &str) -> bool {
        self.0.get(run).is_some_and(|said| said.elapsed() < WATCH)
    }
}

/// Waits for a wake-up that is `mine`, or for one after which anything may have happened. Once the
/// process ends there is none to come: whoever waits has a time limit of its own, or is aborted.
pub async fn notified(wakes: &mut broadcast::Receiver<Wake>, mine: impl Fn(&Wake) -> bool) {
    loop {
        match wakes.recv().await {
            Ok(wake) if wake == Wake::All || mine(&wake) => return,
            Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// After so long without a word the process sends itself one.
const QUIET: Duration = Duration::from_secs(3);
/// It must be heard within this time; else this process listens anew.
const ECHO: Duration = Duration::from_secs(3);
/// Between attempts to listen.
const PAUSE: Duration = Duration::from_millis(250);

/// One connection that listens.
struct Listener {
    listener: PgListener,
    /// A channel that only this connection listens to: a word on it shows that it hears.
    own: String,
}

impl Listener {
    async fn open(pool: &PgPool) -> std::result::Result<Self, sqlx::Error> {
        let mut listener = PgListener::connect_with(pool).await?;
        // What was lost is for whoever uses this listener: it looks at everything.
        listener.eager_reconnect(false);
        let own = format!("cofferdam_{}", secret_hex(8));
        listener.listen_all(["cofferdam", own.as_str()]).await?;
        Ok(Self { listener, own })
    }

    /// What to look at, once there is something; an error where the connection is lost, or deaf.
    async fn hear(&mut self) -> std::result::Result<Option<Wake>, sqlx::Error> {
        match tokio::time::timeout(QUIET, self.listener.try_recv()).await {
            Ok(note) => heard(note?),
            Err(_) => {
                let echo = async {
                    sqlx::query("SELECT pg_notify($1, '')")
                        .bind(&self.own)
                        .execute(&mut self.listener)
                        .await?;
                    clock::agree(sqlx::query_scalar(NOW_MS).fetch_one(&mut self.listener).await?);
                    heard(self.listener.try_recv().await?)
                };
                // Whatever comes shows that it hears: its own word comes back as nothing to look at.
                tokio::time::timeout(ECHO, echo).await.map_err(std::io::Error::from)?
            }
        }
    }
}

fn heard(note: Option<PgNotification>) -> std::result::Result<Option<Wake>, sqlx::Error> {
    // The driver has a new connection by itself; ours begins with a look at everything.
    let lost = || sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into());
    Ok(Wake::parse(note.ok_or_else(lost)?.payload()))
}

impl Ledger {
    /// Starts listening; the task ends with the pool.
    pub async fn listen(&self) -> Result<Wakes> {
        let mut listener = Listener::open(self.pool()).await?;
        let wakes = Wakes::new();
        let sender = wakes.clone();
        let pool = self.pool().clone();
        tokio::spawn(async move {
            loop {
                match listener.hear().await {
                    Ok(None) => {}
                    Ok(Some(wake)) => sender.send(wake),
                    Err(sqlx::Error::PoolClosed) => return,
                    Err(error) => {
                        tracing::warn!(%error, "this process listens anew");
                        let Some(anew) = reopen(&pool).await else { return };
                        listener = anew;
                        sender.send(Wake::All);
                    }
                }
            }
        });
        Ok(wakes)
    }
}

/// `None` once the pool is closed.
async fn reopen(pool: &PgPool) -> Option<Listener> {
    loop {
        match Listener::open(pool).await {
            Ok(listener) => return Some(listener),
            Err(sqlx::Error::PoolClosed) => return None,
            Err(error) => tracing::warn!(%error, "listening failed; trying again"),
        }
        clock::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tasks_write_wakes_only_who_watches_output() {
        let wakes = Wakes::new();
        let (mut words, mut outputs) = (wakes.subscribe(), wakes.outputs());
        for payload in ["o:rn_1", "v:rn_1", "r:rn_1", "unknown:rn_1"] {
            Wake::parse(payload).into_iter().for_each(|wake| wakes.send(wake));
        }
        assert_eq!(words.try_recv(), Ok(Wake::Run("rn_1".to_owned())));
        assert!(words.try_recv().is_err());
        assert_eq!(outputs.try_recv(), Ok("rn_1".to_owned()));
        assert!(outputs.try_recv().is_err());
        assert!(wakes.is_watched("rn_1"));
        assert!(!wakes.is_watched("rn_2"));
    }

    #[test]
    fn runs_that_are_known_to_be_watched_have_a_bound() {
        let mut watched = WatchList::default();
        for n in 0..=MAX_WATCHED {
            watched.note(format!("rn_{n}"));
        }
        assert_eq!(watched.0.len(), MAX_WATCHED);
        assert!(!watched.is_known(&format!("rn_{MAX_WATCHED}")));
        watched.note("rn_0".to_owned());
        assert!(watched.is_known("rn_0"));
    }
}
