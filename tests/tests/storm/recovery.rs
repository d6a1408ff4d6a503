//! Full service, and how long after a fault's end it was back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cofferdam_tests::measurement::{directory, measured_here, record};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::storm::fleet::{Fleet, WORKERS};
use crate::storm::schedule::{Fault, Kind};
use crate::storm::work::{Open, Work};
use crate::support::until;

/// A service that is not back by then never is.
const NEVER: Duration = Duration::from_secs(240);

/// Every worker beats and is known, one of them leads, and no work lies under anybody else.
const WHOLE: &str = "SELECT
     (SELECT count(*) FROM app.executors WHERE state = 'live'
         AND heartbeat_at > clock_timestamp() - interval '3 seconds') = $1
 AND (SELECT count(*) FROM app.executors WHERE state = 'live') = $1
 AND EXISTS (SELECT 1 FROM app.leader l JOIN app.executors e ON e.id = l.executor_id
              WHERE e.state = 'live' AND l.until > clock_timestamp())
 AND NOT EXISTS (SELECT 1 FROM dbos.workflow_status w WHERE w.status = 'PENDING'
                  AND NOT EXISTS (SELECT 1 FROM app.executors e WHERE e.id = w.executor_id AND e.state = 'live'))";

/// What was measured after one fault.
#[derive(Debug, Clone, Copy)]
pub struct Recovered {
    /// To a run that was asked for now, in a sandbox, and a fleet that is whole.
    pub service: Duration,
    /// To the end of every run that was open when the fault began.
    pub settled: Duration,
}

pub async fn full_service(fleet: &mut Fleet, work: &Work, open: &Open) -> Recovered {
    let begun = Instant::now();
    fleet.revive();
    let probe = work.probe();
    let mut ended = None;
    until("full service", NEVER, async || {
        fleet.revive();
        if ended.is_none() && probe.is_finished() {
            ended = Some(begun.elapsed());
        }
        ended.is_some() && is_whole(fleet).await
    })
    .await;
    let service = begun.elapsed();
    until("the end of what was open", NEVER, async || {
        fleet.revive();
        work.have_ended(open)
    })
    .await;
    Recovered { service, settled: begun.elapsed() }
}

async fn is_whole(fleet: &Fleet) -> bool {
    let Ok(mut conn) = PgConnection::connect(&fleet.database.url()).await else { return false };
    let workers = i64::try_from(WORKERS).unwrap();
    let whole = sqlx::query_scalar(WHOLE).bind(workers).fetch_one(&mut conn).await.unwrap();
    let _ = conn.close().await;
    whole
}

/// Times to full service, by kind.
#[derive(Default)]
pub struct Figures {
    service: BTreeMap<Kind, Vec<Duration>>,
    settled: BTreeMap<Kind, Vec<Duration>>,
}

impl Figures {
    /// One line of what happened.
    pub fn record(&mut self, at: Duration, fault: &Fault, recovered: &Recovered) -> Value {
        self.service.entry(fault.kind).or_default().push(recovered.service);
        self.settled.entry(fault.kind).or_default().push(recovered.settled);
        json!({
            "at_s": seconds(at),
            "fault": fault.kind.name(),
            "lasts_ms": fault.lasts.as_millis(),
            "service_s": seconds(recovered.service),
            "settled_s": seconds(recovered.settled),
        })
    }

    pub fn len(&self) -> usize {
        self.service.values().map(Vec::len).sum()
    }

    /// A line for each kind.
    pub fn summary(&self) -> Vec<Value> {
        let line = |(kind, times): (&Kind, &Vec<Duration>)| {
            let settled = &self.settled[kind];
            json!({
                "recovery": kind.name(), "n": times.len(), "bound_s": crate::storm::PROMISE.as_secs(),
                "min_s": seconds(sorted(times)[0]),
                "median_s": seconds(sorted(times)[times.len() / 2]),
                "max_s": seconds(sorted(times)[times.len() - 1]),
                "settled_median_s": seconds(sorted(settled)[settled.len() / 2]),
                "settled_max_s": seconds(sorted(settled)[settled.len() - 1]),
            })
        };
        self.service.iter().map(line).collect()
    }

    /// Adds the times of each kind, and the longest until all open work had ended, to `bench/results`.
    pub fn keep(&self) {
        for (kind, times) in &self.service {
            let name = format!("storm_{}", kind.name());
            let times = times.iter().copied().map(seconds).collect();
            record(&directory(), &name, "s", measured_here(times));
        }
        let longest = self.settled.values().flatten().max().copied().map(seconds);
        record(&directory(), "storm_recovery", "s", measured_here(longest.into_iter().collect()));
    }

    /// No fault took longer.
    pub fn assert_below(&self, bound: Duration) {
        let slow: Vec<String> = self
            .service
            .iter()
            .flat_map(|(kind, times)| times.iter().map(move |time| (kind, time)))
            .filter(|(_, time)| **time > bound)
            .map(|(kind, time)| format!("{} {time:.1?}", kind.name()))
            .collect();
        assert!(slow.is_empty(), "service was back later than {bound:?}: {slow:?}");
    }
}

fn sorted(times: &[Duration]) -> Vec<Duration> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 100.0).round() / 100.0
}
