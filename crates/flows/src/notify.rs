//! Sends what the outbox holds. Delivery is at least once: a receiver tells duplicates by `webhook-id`.
//!
//! ```text
//! wake (`w:` from the transaction that made an event) or the earliest next_at
//!    -> claim what there is room for -> sign and POST, side by side -> record the attempt, decide what follows
//! ```
//! **An idle sender asks nothing: it sleeps until it is woken or something is due.** Every worker runs
//! one; rows are claimed with SKIP LOCKED, so many are as good as one. A worker whose host lacks the
//! signing key claims nothing.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::WebhookId;
use cofferdam_ledger::listen::{Wake, notified};
use cofferdam_ledger::webhooks::{DeliveryAttempt, Due, Next};
use tokio::sync::OnceCell;
use tokio::task::{Id, JoinSet};

use crate::error::Result;
use crate::outbound::{self, ATTEMPT_LIMIT, PrivateAddress};
use crate::sign::Signer;
use crate::webhooks::Webhooks;

/// Pauses between the attempts of one round, in seconds: close together for a restart of the receiver,
/// far apart for an outage. After the last one the delivery is dead: about 28 hours in all.
const PAUSES_S: [u64; 8] = [2, 15, 120, 600, 3_600, 10_800, 36_000, 50_000];
/// Attempts of one worker at a time: an event is a few hundred bytes, a receiver's patience is what costs.
const MAX_FLYING: i64 = 16;
/// Of these, to one webhook: a receiver that hangs holds up its own deliveries and nobody else's. Claims
/// are counted each by itself, so that it may have one less than twice as many for a moment.
const PER_WEBHOOK: usize = 4;
const PER_WEBHOOK_CLAIM: i64 = 4;
/// The receiver wants no more of this: the one answer that ends a round at once.
const GONE: u16 = 410;
/// After a failure of the database.
const LEDGER_PAUSE: Duration = Duration::from_secs(1);
/// A woken sleep is never longer than a wrong clock may make it.
const MAX_SLEEP: Duration = Duration::from_secs(86_400);

/// One worker's sender.
pub(crate) struct Sender {
    webhooks: Webhooks,
    signer: Arc<Signer>,
    /// Made for the first delivery: most workers live without any, and it reads the host's certificates.
    http: OnceCell<reqwest::Client>,
    worker: String,
}

/// Attempts that go on, by their task, each with its webhook.
#[derive(Default)]
struct DeliveryPool {
    tasks: JoinSet<Result<()>>,
    webhooks: HashMap<Id, WebhookId>,
}

impl DeliveryPool {
    fn room(&self) -> i64 {
        let flying = i64::try_from(self.tasks.len()).unwrap_or(i64::MAX);
        MAX_FLYING.saturating_sub(flying).max(0)
    }

    /// Webhooks that have their share of this sender already.
    fn busy(&self) -> Vec<&str> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.webhooks.values().for_each(|id| *counts.entry(id.as_str()).or_default() += 1);
        counts.into_iter().filter(|(_, n)| *n >= PER_WEBHOOK).map(|(id, _)| id).collect()
    }

    /// Resolves once an attempt has ended; never where there is none.
    async fn landed(&mut self) {
        let (task, ended) = match self.tasks.join_next_with_id().await {
            None => return std::future::pending().await,
            Some(Ok((task, ended))) => (task, ended),
            Some(Err(error)) => (error.id(), Ok(())),
        };
        self.webhooks.remove(&task);
        if let Err(error) = ended {
            // Its claim runs out, and it is sent again under the same id.
            tracing::warn!(%error, "an attempt was not recorded");
        }
    }
}

impl Sender {
    /// `None` where this host lacks the signing key.
    pub(crate) fn new(webhooks: &Webhooks, worker: &str) -> Option<Self> {
        Some(Self {
            signer: Arc::clone(webhooks.signer.as_ref()?),
            webhooks: webhooks.clone(),
            http: OnceCell::new(),
            worker: worker.to_owned(),
        })
    }

    /// Sends until it is aborted.
    pub(crate) async fn run(self) {
        let sender = Arc::new(self);
        let mut wakes = sender.webhooks.wakes.subscribe();
        let mut flying = DeliveryPool::default();
        loop {
            let wait = sender.take(&mut flying).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "webhooks wait for the database");
                Some(LEDGER_PAUSE)
            });
            let due = async {
                match wait {
                    Some(wait) => clock::sleep(wait.min(MAX_SLEEP)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = flying.landed() => {}
                () = notified(&mut wakes, |wake| *wake == Wake::Webhooks) => {}
                () = due => {}
            }
        }
    }

    /// Begins what is due, as far as there is room; how long until something else is.
    async fn take(self: &Arc<Self>, flying: &mut DeliveryPool) -> Result<Option<Duration>> {
        let ledger = &self.webhooks.ledger;
        loop {
            let room = flying.room();
            if room == 0 {
                // The next one that lands makes room.
                return Ok(None);
            }
            let batch =
                ledger.webhooks().deliveries_claim(room, PER_WEBHOOK_CLAIM, &flying.busy()).await?;
            if batch.is_empty() {
                let next = ledger.webhooks().deliveries_next_ms(&flying.busy()).await?;
                return Ok(next.map(|ms| Duration::from_millis(ms.max(1))));
            }
            for due in batch {
                let (sender, webhook) = (Arc::clone(self), due.webhook.clone());
                let task = flying.tasks.spawn(async move { sender.attempt(&due).await });
                flying.webhooks.insert(task.id(), webhook);
            }
        }
    }

    async fn attempt(&self, due: &Due) -> Result<()> {
        let watch = Stopwatch::start();
        let (status, error) = match self.send(due).await {
            Ok(status) if (200..300).contains(&status) => (Some(status), None),
            Ok(status) => (Some(status), Some(format!("answered {status}"))),
            Err(why) => (None, Some(why)),
        };
        let next = next(status, due.of_round);
        if let Some(why) = &error {
            tracing::info!(delivery = %due.id, webhook = %due.webhook, attempt = due.attempt, why, "a webhook was not delivered");
        }
        let end = DeliveryAttempt {
            status,
            error: error.as_deref(),
            wall_ms: watch.elapsed_ms(),
            worker: &self.worker,
            next,
        };
        Ok(self.webhooks.ledger.webhooks().delivery_attempted(due, &end).await?)
    }

    /// The answer's status; its body is not read. An error says what kind, never the URL.
    async fn send(&self, due: &Due) -> Result<u16, String> {
        // The row may be older than this host's policy.
        let url =
            outbound::parse(&due.url, self.webhooks.reach).map_err(|refusal| refusal.message)?;
        let body = due.event.body().map_err(|error| error.to_string())?;
        let timestamp_s = clock::now_ms().div_euclid(1_000);
        let signature =
            self.signer.webhook_signature(&due.webhook, due.id.as_str(), timestamp_s, &body);
        let request = self
            .http
            .get_or_try_init(|| async { outbound::client(self.webhooks.reach) })
            .await
            .map_err(|_| "this host has no client for it".to_owned())?
            .post(url)
            .header("content-type", "application/json")
            .header("webhook-id", due.id.as_str())
            .header("webhook-timestamp", timestamp_s.to_string())
            .header("webhook-signature", signature)
            .body(body);
        match tokio::time::timeout(ATTEMPT_LIMIT, request.send()).await {
            Ok(Ok(answer)) => Ok(answer.status().as_u16()),
            Ok(Err(error)) => Err(kind(&error)),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }
}

fn kind(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if inner.is::<PrivateAddress>() {
            return PrivateAddress.to_string();
        }
        cause = inner.source();
    }
    let said = if error.is_timeout() {
        "no answer in time"
    } else if error.is_connect() {
        "cannot connect"
    } else {
        "the request failed"
    };
    said.to_owned()
}

/// What follows attempt number `of_round` of its round. Pure.
fn next(status: Option<u16>, of_round: i32) -> Next {
    match status {
        Some(200..300) => Next::Delivered,
        Some(GONE) => Next::Dead,
        _ => usize::try_from(of_round.saturating_sub(1))
            .ok()
            .and_then(|index| PAUSES_S.get(index))
            .map_or(Next::Dead, |pause| Next::Retry { after_ms: pause * 1_000 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_backs_off_and_ends_dead_unless_it_arrives_or_is_gone() {
        assert_eq!(next(Some(204), 3), Next::Delivered);
        assert_eq!(next(Some(410), 1), Next::Dead);
        let mut last = 0;
        for of_round in 1..=8 {
            for status in [None, Some(500), Some(302), Some(404)] {
                let Next::Retry { after_ms } = next(status, of_round) else {
                    panic!("{status:?} {of_round}");
                };
                assert!(after_ms >= last);
                last = after_ms;
            }
        }
        assert_eq!(next(None, 9), Next::Dead);
        assert_eq!(next(Some(503), i32::MAX), Next::Dead);
    }
}
