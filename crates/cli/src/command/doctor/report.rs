//! What `doctor` found, its verdict, and its JSON.

use std::path::{Path, PathBuf};

use cofferdam_ledger::cluster::{OWN_USER, Search, runs_as};
use cofferdam_sandbox::{Class, Finding, Grade, HostFacts, Offer, Runtime};
use serde_json::{Value, json};

use super::selftest::ProbeReport;
use crate::command::client::{Client, ServerFault};
use crate::command::database::{self, Kind};
use crate::command::exit::Exit;
use crate::command::locations::Locations;
use crate::command::{local, output, state};

/// Where the database comes from.
#[derive(Debug)]
pub(super) enum Database {
    /// `--db` or `DATABASE_URL` names one.
    Given,
    /// A record of the state directory names one, and the command does not.
    Recorded(String),
    /// Server binaries of this machine, and the user that runs them where that is not who asks.
    Private(PathBuf, u32, Option<String>),
    /// None: the first start fetches one, or fails.
    Absent,
}

#[derive(Debug)]
pub(super) struct Report {
    pub now_ms: i64,
    pub facts: HostFacts,
    pub findings: Vec<Finding>,
    pub database: Database,
    pub server: ServerReport,
    pub runtimes: Vec<Runtime>,
    pub probed: Option<Vec<ProbeReport>>,
}

/// What a server of this state directory says.
#[derive(Debug, Default)]
pub(super) struct ServerReport {
    /// Sessions whose wipe could not be verified; `None` where no server runs or says so.
    pub held: Option<i64>,
    /// Why one that is there cannot be asked.
    pub problem: Option<String>,
}

pub(super) async fn database(at: &Locations, dir: &Path) -> Database {
    if at.db.is_some() {
        return Database::Given;
    }
    match database::read(dir) {
        Ok(Some(record)) if record.kind == Kind::External => {
            return Database::Recorded(record.words());
        }
        Err(error) => return Database::Recorded(error.to_string()),
        _ => {}
    }
    match Search::machine().newest().await {
        Some((bin, major)) => Database::Private(bin, major, runs_as(dir)),
        None => Database::Absent,
    }
}

/// What a running server of this state directory says; doctor starts none.
pub(super) async fn server(dir: &Path) -> ServerReport {
    let asked = async {
        let Some(socket) = local::find(dir).await? else { return Ok(None) };
        let endpoint =
            state::endpoint_read(dir).ok_or_else(|| ServerFault::Unannounced.says(dir))?;
        let client = Client::local(socket, &endpoint.url, "")?;
        let health = client.look().await.map_err(|ill| ill.says(dir))?;
        anyhow::Ok(health.get("heldSessions").and_then(Value::as_i64))
    };
    match asked.await {
        Ok(held) => ServerReport { held, problem: None },
        Err(error) => ServerReport { held: None, problem: Some(format!("{error:#}")) },
    }
}

impl Database {
    pub(super) fn words(&self) -> String {
        match self {
            Self::Given => "given by --db or DATABASE_URL".to_owned(),
            Self::Recorded(words) => format!("{words}; name it by --db or DATABASE_URL"),
            Self::Private(bin, major, user) => {
                let whose = match user.as_deref() {
                    Some(user) if user != OWN_USER => format!(
                        ", run as {user}: what else runs as that user owns its files; adduser --system \
                         --group {OWN_USER} gives new state directories one of their own"
                    ),
                    _ => String::new(),
                };
                format!("PostgreSQL {major} ({}){whose}", bin.display())
            }
            Self::Absent => {
                "no PostgreSQL server found; apt-get install postgresql, or set DATABASE_URL".into()
            }
        }
    }
}

impl Report {
    pub(super) fn weak(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.grade == Grade::Weak)
    }

    /// Whether every sandbox that was probed held; true where none was.
    pub(super) fn holds(&self) -> bool {
        self.probed.iter().flatten().all(ProbeReport::holds)
    }

    /// 1 for a surprise whatever was asked, and for weakness where `--strict` asks.
    pub(super) fn exit(&self, strict: bool) -> Exit {
        let is_weak = self.weak().next().is_some()
            || matches!(self.database, Database::Absent)
            || self.server.problem.is_some();
        match !self.holds() || (strict && is_weak) {
            true => Exit::No,
            false => Exit::Ok,
        }
    }

    pub(super) fn classes(&self) -> Vec<(&'static str, bool, String)> {
        let runtimes: Vec<&str> =
            self.runtimes.iter().map(|runtime| runtime.version.as_str()).collect();
        self.facts
            .classes
            .iter()
            .map(|fact| match &fact.offer {
                // Every runtime of the class `container` is probed, so all of them are named.
                Offer::Present(_) if fact.class == Class::Container => {
                    let words = self.facts.hardware_isolation(fact.class).words();
                    (fact.class.as_str(), true, format!("{}; {words}", runtimes.join(", ")))
                }
                Offer::Present(runtime) => {
                    let kept =
                        self.facts.memory_support(fact.class).map(|memory| match memory.is_kept {
                            true => format!("; pauses keep memory ({})", memory.why),
                            false => format!("; pauses keep files alone ({})", memory.why),
                        });
                    let words = self.facts.hardware_isolation(fact.class).words();
                    let note = format!("{}; {words}{}", runtime.version, kept.unwrap_or_default());
                    (fact.class.as_str(), true, note)
                }
                Offer::Absent { why, remedy } => {
                    (fact.class.as_str(), false, format!("{why} ({remedy})"))
                }
            })
            .collect()
    }

    pub(super) fn json(&self) -> Value {
        let facts = &self.facts;
        let weak: Vec<String> =
            self.weak().map(|finding| format!("{}: {}", finding.id, finding.found)).collect();
        json!({
            "schemaVersion": 1,
            "at": output::time(self.now_ms),
            "version": env!("CARGO_PKG_VERSION"),
            "ready": true,
            "fit": if weak.is_empty() { "fit" } else { "weak" },
            "classes": self.classes().iter().map(|(class, present, _)| {
                ((*class).to_owned(), json!(present))
            }).collect::<serde_json::Map<_, _>>(),
            "classNotes": self.classes().iter().map(|(class, _, note)| {
                ((*class).to_owned(), json!(note))
            }).collect::<serde_json::Map<_, _>>(),
            "hardwareIsolation": facts.classes.iter().filter_map(|fact| match &fact.offer {
                Offer::Present(_) => {
                    let class = fact.class;
                    Some((class.as_str().to_owned(), json!(facts.hardware_isolation(class))))
                }
                Offer::Absent { .. } => None,
            }).collect::<serde_json::Map<_, _>>(),
            "pausesKeepMemory": Class::ALL.iter().filter_map(|class| {
                let kept = facts.memory_support(*class)?;
                Some((class.as_str().to_owned(), json!(kept.is_kept)))
            }).collect::<serde_json::Map<_, _>>(),
            "runtime": facts.runtime.path,
            "runtimeVersion": facts.runtime.version,
            "cgroups": format!("{:?}", facts.cgroups.mode),
            "kernel": facts.kernel,
            "cpus": facts.cpus,
            "memMB": facts.mem_mb,
            "database": self.database.words(),
            "heldSessions": self.server.held,
            "serverProblem": self.server.problem,
            "weak": weak,
            "findings": self.findings.iter().map(|finding| json!({
                "id": finding.id,
                "grade": finding.grade.as_str(),
                "found": finding.found,
                "mend": finding.mend,
            })).collect::<Vec<_>>(),
            "probes": self.probed.as_ref().map(|all| all.iter().map(probed).collect::<Vec<_>>()),
        })
    }
}

fn probed(probed: &ProbeReport) -> Value {
    let head = json!({
        "class": probed.class.as_str(),
        "runtime": probed.runtime.path,
        "runtimeVersion": probed.runtime.version,
        "holds": probed.holds(),
    });
    let tail = match &probed.outcome {
        Ok(test) => json!({
            "effective": test.effective, "probes": test.probes, "wipes": test.wipes,
        }),
        Err(error) => json!({"problem": error}),
    };
    match (head, tail) {
        (Value::Object(mut head), Value::Object(tail)) => {
            head.extend(tail);
            Value::Object(head)
        }
        (head, _) => head,
    }
}
