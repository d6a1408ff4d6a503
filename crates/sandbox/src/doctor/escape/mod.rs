//! The escape self-test: real attempts to get out of a real sandbox, while another one runs beside.
//!
//! ```text
//! host: a listener, an abstract socket
//! neighbour sandbox: marker file, listener, abstract socket      (runs until the probes are done)
//! probed sandbox:    `/work/probe probe SETTING`            -> one line of JSON a probe
//! both are wiped, and their evidence is part of the answer
//! ```
//! In a class whose files this host keeps, all of it once more in a second life (`second_life`).
//! What is tried and what may be answered is the fixed list in `crates/probe`.

mod expectation;
mod gvisor;
mod microvm;
mod program;
mod second_life;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use cofferdam_ambient::random;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{
    EffectivePolicy, Limits, Phase, SandboxRequest, WipeEvidence, WipeStatus,
};
use cofferdam_guest::escape::{NEIGHBOUR, NEIGHBOUR_READY, PROBE, Setting};
use expectation::Expectation;
use serde_json::json;
use tokio::sync::oneshot;

pub use cofferdam_guest::escape::ProbeResult;

use crate::agent::Stream;
use crate::life::{
    Host, InitialFiles, ProvisionError, Sandbox, SandboxError, provision, provision_filled,
};
use crate::plan::plan;
use crate::spec::class::Class;
use crate::spec::command::Command;
use crate::spec::plan::Plan;
use crate::spec::refuse::PlanError;

/// Four hundred probes take a second in a container and half a minute in gVisor; a loaded host needs several
/// times that.
const LIMIT_MS: u64 = 240_000;
/// Small on purpose: the probes need little, and every host that holds sandboxes has it.
const MEM_MB: u64 = 64;
/// The same where a kernel of its own has to fit in.
const KERNEL_MEM_MB: u64 = 256;
const DISK_MB: u64 = 8;
const PIDS: u64 = 32;
/// The kinds of which a sandbox has its own.
const NAMESPACES: [&str; 5] = ["ipc", "mnt", "net", "pid", "uts"];

/// Why the self-test could not be done. It then has shown nothing.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The host refuses even a small sandbox.
    #[error("a sandbox for the probes cannot be planned")]
    Plan(#[from] PlanError),
    /// A sandbox could not be made.
    #[error("a sandbox for the probes could not be made")]
    Provision(#[from] ProvisionError),
    /// A command in it could not be run.
    #[error("the probes could not be run")]
    Sandbox(#[from] SandboxError),
    /// The host's own part failed.
    #[error("the host's side of the probes could not be made")]
    Host(#[from] io::Error),
    /// The neighbour ended, so that nothing could be looked for.
    #[error("the neighbour sandbox ended early: {0}")]
    Neighbour(String),
    /// The probes ended early.
    #[error("the probes ended early: {0}")]
    Early(String),
    /// A line that is no answer.
    #[error("a probe's answer cannot be read: {line:?}")]
    Answer {
        /// What it said.
        line: String,
        /// The underlying error.
        source: serde_json::Error,
    },
}

/// What the probes saw.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfTest {
    /// In the order of the list.
    pub probes: Vec<ProbeResult>,
    /// What the probed sandbox enforced.
    pub effective: EffectivePolicy,
    /// Of each sandbox that was made: the probed one's wipe, then its neighbour's.
    pub wipes: Vec<WipeEvidence>,
}

impl SelfTest {
    /// Probes that saw what a sandbox that holds does not show.
    pub fn surprises(&self) -> impl Iterator<Item = &ProbeResult> {
        self.probes.iter().filter(|probe| !probe.ok)
    }

    /// Whether all sandboxes are gone without a trace.
    #[must_use]
    pub fn is_wiped(&self) -> bool {
        self.wipes.iter().all(|wipe| wipe.status == WipeStatus::Verified)
    }
}

/// The plan of a sandbox for probes on this host, in the weakest class that it has.
pub fn self_test_plan(host: &Host) -> Result<Plan, SelfTestError> {
    self_test_plan_in(host, Class::Container)
}

fn self_test_plan_in(host: &Host, class: Class) -> Result<Plan, SelfTestError> {
    let id =
        SandboxId::parse(&format!("sb{}", random::secret_hex(10))).map_err(io::Error::other)?;
    Ok(plan(&request(class)?, &id, host.facts())?)
}

/// Runs every probe in a sandbox of a class, with a neighbour of that class beside it. What a class shows otherwise
/// though it holds is listed by probe, and is expected of no other class.
pub async fn self_test_in(host: &Host, class: Class) -> Result<SelfTest, SelfTestError> {
    let plan = self_test_plan_in(host, class)?;
    let mut test = beside(host, &plan, None, &self_test_plan_in(host, class)?).await?;
    judge(&mut test.probes, class);
    if let Some(first) = second_life::first_of(host, class) {
        second_life(host, first, class, &mut test).await?;
    }
    Ok(test)
}

/// The same in a sandbox that begins with what another left, added to what the first life showed.
async fn second_life(
    host: &Host,
    first: Class,
    class: Class,
    test: &mut SelfTest,
) -> Result<(), SelfTestError> {
    let filling = second_life::links(host, first, &mut test.wipes).await?;
    let plans = [self_test_plan_in(host, class)?, self_test_plan_in(host, class)?];
    let [plan, neighbour] = &plans;
    let mut more = beside(host, plan, Some(filling), neighbour).await?;
    judge(&mut more.probes, class);
    for probe in &mut more.probes {
        probe.id.insert_str(0, "again.");
    }
    test.probes.append(&mut more.probes);
    test.wipes.append(&mut more.wipes);
    if second_life::resolves(class) {
        test.probes.push(second_life::displaced(host, first, class, &mut test.wipes).await?);
    }
    Ok(())
}

/// Holds answers against what a class may answer.
fn judge(probes: &mut [ProbeResult], class: Class) {
    let otherwise: &[Expectation] = match class {
        Class::Gvisor => &gvisor::OTHERWISE,
        Class::Microvm => &microvm::OTHERWISE,
        _ => &[],
    };
    let of_areas: &[Expectation] = match class {
        Class::Gvisor => &gvisor::OF_AREAS,
        _ => &[],
    };
    for probe in probes {
        add(probe, of_areas);
        expect(probe, otherwise);
        if class == Class::Microvm {
            of_its_own(probe);
        }
    }
}

/// Answers that hold in a whole area.
fn add(probe: &mut ProbeResult, of_areas: &[Expectation]) {
    for more in of_areas.iter().filter(|more| more.subject == probe.area) {
        probe.expected.extend(more.answers.iter().map(|text| (*text).to_owned()));
        probe.ok = probe.expected.contains(&probe.observed);
    }
}

/// Judges one answer by its class.
fn expect(probe: &mut ProbeResult, otherwise: &[Expectation]) {
    let found = otherwise.iter().find(|one| one.subject == probe.id);
    if let Some(found) = found {
        probe.expected = found.answers.iter().map(|text| (*text).to_owned()).collect();
        probe.ok = probe.expected.contains(&probe.observed);
    }
}

/// Areas whose tries reach the kernel that runs the sandbox and nothing else.
const KERNEL_AREAS: [&str; 4] = ["calls", "kernel", "leases", "sockets"];
/// What stands for its answers where that kernel is the machine's own.
const ANY_ANSWER: &str = "any: the kernel is the machine's own";

/// A machine's kernel is nobody else's and ends with it, so what it answers there holds; that nothing was
/// tried does not.
fn of_its_own(probe: &mut ProbeResult) {
    let untried = probe.observed.starts_with("the probe") || probe.observed.is_empty();
    if KERNEL_AREAS.contains(&probe.area.as_str()) && !probe.ok && !untried {
        probe.expected.push(ANY_ANSWER.to_owned());
        probe.ok = true;
    }
}

/// Runs every probe in a sandbox of this plan, with a container beside it; a test weakens the plan.
pub async fn self_test_of(host: &Host, plan: &Plan) -> Result<SelfTest, SelfTestError> {
    beside(host, plan, None, &self_test_plan(host)?).await
}

async fn beside(
    host: &Host,
    plan: &Plan,
    filling: Option<InitialFiles>,
    neighbour_plan: &Plan,
) -> Result<SelfTest, SelfTestError> {
    let inputs = [program::input()];
    let neighbour = provision(host, neighbour_plan, &inputs).await?;
    let probed = match filling {
        Some(filling) => provision_filled(host, plan, &inputs, filling).await,
        None => provision(host, plan, &inputs).await,
    };
    let probed = match probed {
        Ok(probed) => probed,
        Err(error) => {
            neighbour.wipe("self-test").await;
            return Err(error.into());
        }
    };
    let said = both(host, &neighbour, neighbour_plan, &probed).await;
    let effective = probed.effective().clone();
    let wipes = vec![probed.wipe("self-test").await, neighbour.wipe("self-test").await];
    Ok(SelfTest { probes: answers(&said?)?, effective, wipes })
}

async fn both(
    host: &Host,
    neighbour: &Sandbox,
    plan: &Plan,
    probed: &Sandbox,
) -> Result<String, SelfTestError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let name = format!("cofferdam-host-{}", random::secret_hex(8));
    let _socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let marker = format!("cofferdam-neighbour-{}", random::secret_hex(8));
    let facts = host.facts();
    let setting = Setting {
        namespaces: namespaces()?,
        host_port: listener.local_addr()?.port(),
        host_socket: name,
        host_pid: i32::try_from(std::process::id()).map_err(io::Error::other)?,
        host_dirs: [&facts.state_dir, &facts.live_dir]
            .map(|dir| dir.to_string_lossy().into_owned())
            .into(),
        neighbour_dir: plan.traces.dir.to_string_lossy().into_owned(),
        neighbour_marker: marker.clone(),
        neighbour_pid: i32::try_from(neighbour.init_pid()).map_err(io::Error::other)?,
    };
    let setting = serde_json::to_string(&setting).map_err(io::Error::other)?;
    let (ready, is_ready) = oneshot::channel();
    let staying = async {
        let (mut ready, mut heard) = (Some(ready), Vec::new());
        let ended = neighbour
            .exec(&command(&[NEIGHBOUR, &marker]), |_, bytes| {
                heard.extend_from_slice(bytes);
                if heard.starts_with(NEIGHBOUR_READY.as_bytes()) {
                    // A receiver that is gone has ended with everything else.
                    let _ = ready.take().map(|ready| ready.send(()));
                }
            })
            .await?;
        let words = String::from_utf8_lossy(&heard);
        let cause = ended.cause.unwrap_or_default();
        Err(SelfTestError::Neighbour(format!("{} ({cause})", words.trim())))
    };
    let probing = async {
        let _ = is_ready.await;
        let mut said = Vec::new();
        let outcome = probed
            .exec(&command(&[PROBE, &setting]), |stream, bytes| {
                if stream == Stream::Stdout {
                    said.extend_from_slice(bytes);
                }
            })
            .await?;
        match outcome.exit {
            0 => Ok(String::from_utf8_lossy(&said).into_owned()),
            _ => Err(SelfTestError::Early(outcome.cause.unwrap_or_default())),
        }
    };
    tokio::select! {
        biased;
        ended = staying => ended,
        said = probing => said,
    }
}

fn answers(said: &str) -> Result<Vec<ProbeResult>, SelfTestError> {
    said.lines()
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|source| SelfTestError::Answer { line: line.to_owned(), source })
        })
        .collect()
}

fn namespaces() -> io::Result<BTreeMap<String, String>> {
    NAMESPACES
        .iter()
        .map(|kind| {
            let link = std::fs::read_link(format!("/proc/thread-self/ns/{kind}"))?;
            Ok(((*kind).to_owned(), link.to_string_lossy().into_owned()))
        })
        .collect()
}

fn command(words: &[&str]) -> Command {
    Command {
        argv: std::iter::once(program::PATH)
            .chain(words.iter().copied())
            .map(str::to_owned)
            .collect(),
        env: BTreeMap::new(),
        cwd: "/".to_owned(),
        timeout_ms: LIMIT_MS,
        phase: Phase::Exec,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    }
}

fn request(class: Class) -> Result<SandboxRequest, SelfTestError> {
    let spec = json!({"isolation": {"class_min": class.strength()}});
    let spec = serde_json::from_value(spec).map_err(io::Error::other)?;
    Ok(SandboxRequest {
        limits: Limits {
            mem_mb: Some(if class.is_on_host_kernel() { MEM_MB } else { KERNEL_MEM_MB }),
            disk_mb: Some(DISK_MB),
            pids: Some(PIDS),
            ..Limits::default()
        },
        spec: Some(spec),
        ..SandboxRequest::plain("host", vec![program::PATH.to_owned()], LIMIT_MS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(id: &str, observed: &str) -> ProbeResult {
        ProbeResult {
            id: id.to_owned(),
            area: "any".to_owned(),
            tries: "any".to_owned(),
            expected: vec!["held".to_owned()],
            observed: observed.to_owned(),
            ok: observed == "held",
        }
    }

    #[test]
    fn in_a_machine_any_answer_of_its_kernel_holds_and_no_untried_one() {
        for (area, observed, ok) in [
            ("calls", "done", true),
            ("calls", "the probe did not start: EAGAIN", false),
            ("calls", "", false),
            ("mounts", "done", false),
        ] {
            let mut probe = ProbeResult { area: area.to_owned(), ..seen("any", observed) };
            of_its_own(&mut probe);
            assert_eq!(probe.ok, ok, "{area} {observed}");
        }
    }

    #[test]
    fn only_the_listed_probes_are_judged_otherwise_and_not_every_answer_holds() {
        for (id, observed, ok) in [
            ("net.metadata", "EHOSTUNREACH", true),
            ("net.metadata", "done", false),
            ("mount.tmpfs", "done", false),
            ("mount.tmpfs", "held", true),
        ] {
            let mut probe = seen(id, observed);
            expect(&mut probe, &gvisor::OTHERWISE);
            assert_eq!(probe.ok, ok, "{id} {observed}");
        }
    }
}
