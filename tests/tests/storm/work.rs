//! What goes on while it storms: clients that submit runs of every kind, answer gates and wait for ends.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cofferdam_tests::text;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::storm::fleet::Fleet;
use crate::storm::front::Front;
use crate::support::Dice;

/// Runs that are open at a time: one a client.
const CLIENTS: u64 = 6;
/// A run that takes longer never ends.
const NEVER: Duration = Duration::from_secs(300);

/// A kind of run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    Plain,
    /// With a build phase.
    Built,
    /// With a gate that several people answer at once.
    Gated,
    /// One task exits 3.
    Failing,
    /// Its only task does not end in time.
    Overdue,
    /// No sandbox.
    Value,
    /// Asked for once a fault is over.
    Probe,
}

impl Job {
    const ALL: [Self; 7] = [
        Self::Plain,
        Self::Built,
        Self::Gated,
        Self::Failing,
        Self::Overdue,
        Self::Value,
        Self::Probe,
    ];

    /// Of a client's runs, by chance; the ordinary ones are more.
    fn drawn(dice: &mut Dice) -> Self {
        match dice.below(12) {
            0..=3 => Self::Plain,
            4..=5 => Self::Built,
            6..=8 => Self::Gated,
            9 => Self::Failing,
            10 => Self::Overdue,
            _ => Self::Value,
        }
    }

    fn id(self) -> String {
        format!("storm-{self:?}").to_lowercase()
    }

    fn recipe(self, effects: &Path) -> String {
        let id = self.id();
        let head = format!(
            "id: {id}\nv: \"1\"\nform:\n  type: object\n  properties: {{n: {{type: integer}}, tasks: {{type: integer}}}}\nplan:\n"
        );
        if self == Self::Value {
            return format!("{head}  tasks: [{{name: keep, value: kept}}]\n");
        }
        let gate = if self == Self::Gated { "  gate: approve-plan\n" } else { "" };
        let build = if self == Self::Built {
            "      build: {run: \"echo built > /work/built\"}\n"
        } else {
            ""
        };
        let (body, timeout) = match self {
            Self::Failing => ("[ ${item} -ne 0 ] || exit 3; ", "60s"),
            Self::Overdue => ("sleep 90; ", "2s"),
            Self::Built => ("grep -q built /work/built || exit 9; ", "60s"),
            _ => ("", "60s"),
        };
        format!(
            "{head}{gate}  tasks:\n    - name: part-${{item}}\n      each: ${{range(form.tasks)}}\n      \
             files: [{{from: \"{}\", to: /effects, access: full}}]\n{build}      \
             exec: {{run: \"echo ${{form.n}} part-${{item}} >> /effects/log; {body}\
             sleep 0.$(( (${{item}} * 7 + ${{form.n}} * 3) % 9 )); echo ${{form.n}}-${{item}} > out.txt\", workdir: /work, timeout: {timeout}}}\n      \
             limits: {{mem_mb: 64, disk_mb: 64}}\n      artifacts: [out.txt]\n",
            effects.display()
        )
    }
}

/// An answer to a gate, and what was acknowledged.
#[derive(Debug, Clone)]
pub struct Reply {
    pub dedupe: &'static str,
    pub choice: &'static str,
    pub status: u16,
}

/// A run that has ended, as its client saw it.
#[derive(Debug, Clone)]
pub struct Done {
    pub job: Job,
    pub run: String,
    pub status: String,
    pub replies: Vec<Reply>,
    pub took: Duration,
}

/// The runs that were open at a moment.
pub struct Open(BTreeSet<u64>);

struct Shared {
    front: Arc<Front>,
    stop: AtomicBool,
    /// Numbers of runs; a client's own begin at its place.
    next: AtomicU64,
    open: Mutex<BTreeSet<u64>>,
    done: Mutex<Vec<Done>>,
}

pub struct Work {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

impl Work {
    pub async fn begin(fleet: &Fleet, seed: u64) -> Self {
        for job in Job::ALL {
            let yaml = json!({"yaml": job.recipe(&fleet.effects_dir())});
            let (status, answer) = fleet.front.post("/api/recipes/import", &yaml).await;
            assert_eq!(status, 201, "{answer}");
        }
        let shared = Arc::new(Shared {
            front: Arc::clone(&fleet.front),
            stop: AtomicBool::new(false),
            next: AtomicU64::new(0),
            open: Mutex::default(),
            done: Mutex::default(),
        });
        let clients = (0..CLIENTS).map(|client| {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let mut dice = Dice::of(seed ^ (client + 1));
                while !shared.stop.load(Ordering::Relaxed) {
                    let (job, tasks) = (Job::drawn(&mut dice), 1 + dice.below(5));
                    shared.one(job, tasks).await;
                }
            })
        });
        Self { clients: clients.collect(), shared }
    }

    /// A run that is asked for now.
    pub fn probe(&self) -> JoinHandle<()> {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move { shared.one(Job::Probe, 1).await })
    }

    pub fn open(&self) -> Open {
        Open(self.shared.open.lock().unwrap().clone())
    }

    /// Whether all of these have ended; fails where a client did.
    pub fn have_ended(&self, open: &Open) -> bool {
        assert!(!self.clients.iter().any(JoinHandle::is_finished), "a client gave up");
        self.shared.open.lock().unwrap().is_disjoint(&open.0)
    }

    /// Nothing new; waits for what is open.
    pub async fn end(self) -> Vec<Done> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.expect("a client got to its end");
        }
        self.shared.done.lock().unwrap().clone()
    }
}

impl Shared {
    /// One run, from its submission to its end.
    async fn one(&self, job: Job, tasks: u64) {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().unwrap().insert(n);
        let begun = Instant::now();
        let body = json!({
            "recipeRef": {"id": job.id(), "v": "1"},
            "formData": {"n": n, "tasks": if job == Job::Overdue { 1 } else { tasks }},
            "opts": {"runKey": n.to_string()},
        });
        let (status, header) = self.front.post("/api/run", &body).await;
        assert!(status == 200 || status == 201, "{job:?}: {status} {header}");
        let run = text(&header, "runId");
        let replies = if job == Job::Gated { self.answer(&run).await } else { Vec::new() };
        let status = self.ended(&run).await;
        self.done.lock().unwrap().push(Done { job, run, status, replies, took: begun.elapsed() });
        self.open.lock().unwrap().remove(&n);
    }

    /// Two that are one, one that contradicts it, and two rivals, all at once.
    async fn answer(&self, run: &str) -> Vec<Reply> {
        let gate = format!("/api/runs/{run}/gates/approve-plan");
        let begun = Instant::now();
        while self.front.get(&gate).await.1["prompt"].is_null() {
            assert!(begun.elapsed() < NEVER, "{run} does not ask");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let path = format!("{gate}/reply");
        let said = [("a", "yes"), ("a", "yes"), ("a", "no"), ("b", "no"), ("c", "yes")];
        let all = said.map(|(dedupe, choice)| {
            let path = &path;
            async move {
                let body = json!({"payload": {"choice": choice}, "dedupeKey": dedupe});
                let (status, answer) = self.front.post(path, &body).await;
                assert!(status == 200 || status == 409, "{path}: {status} {answer}");
                Reply { dedupe, choice, status }
            }
        });
        futures_util::future::join_all(all).await
    }

    async fn ended(&self, run: &str) -> String {
        let begun = Instant::now();
        loop {
            let (_, header) = self.front.get(&format!("/api/runs/{run}")).await;
            let status = header["status"].as_str().unwrap_or_default();
            if ["succeeded", "failed", "canceled", "retries_exceeded"].contains(&status) {
                return status.to_owned();
            }
            assert!(begun.elapsed() < NEVER, "{run} does not end: {header}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Whether a run of this kind ends well, if its gate (where it has one) was passed.
pub fn ends_well(job: Job) -> bool {
    !matches!(job, Job::Failing | Job::Overdue)
}

/// Left for a failure's message.
pub fn described(done: &Done) -> Value {
    json!({"run": done.run, "job": format!("{:?}", done.job), "status": done.status,
           "took_s": done.took.as_secs_f64(), "replies": done.replies.len()})
}
