//! A dispatch while its agent works: what holds it, what is counted, and the record at the end.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_ambient::{clock, own};
use cofferdam_contracts::agent_plan::PROJECT;
use cofferdam_contracts::dispatch::{
    AgentReport, AgentType, AgentViolation, AgentWork, CountSource, EffectiveModels, Findings,
    MAX_VIOLATIONS, ObservedEgress, Peaks, SandboxEffective, Tally, ViolationKind,
};
use cofferdam_contracts::sandbox::{
    AccessMode, EffectivePolicy, InputFile, IsolationClass, Mount, Phase, PhaseSpec, PhasesSpec,
    SandboxResult,
};
use cofferdam_ledger::models::ModelTurns;
use cofferdam_sandbox::{Jail, JailRefusal, JailRefusalKind, JailReport, Plan};
use serde_json::Value;

use super::agents::{self, HOME};
use super::events::Events;
use super::programs;
use super::tools::{self, SHELL, Tools, is_tool};
use crate::models::CallTotals;

/// Where an agent may keep its own state.
const SCRATCH: [&str; 3] = [HOME, "/tmp", "/var/tmp"];
/// What agents run commands by.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "busybox"];

/// Puts the agent's command into its jail; the field that this class cannot hold is the error.
pub(crate) fn jail(plan: &mut Plan, work: &AgentWork) -> Result<(), String> {
    plan.task.stdin_file = Some(work.stdin.clone());
    let class = plan.effective.isolation_class;
    if let Some((field, words)) = programs::unsupported_field(work, class) {
        return Err(format!("{field}: {words}"));
    }
    if class != IsolationClass::Container {
        let words = "writes outside the working directory are thrown away, not refused";
        plan.effective.weak.push(words.to_owned());
        return Ok(());
    }
    let writable = match work.access_mode {
        AccessMode::Full => None,
        AccessMode::ReadOnly => Some(SCRATCH.map(str::to_owned).to_vec()),
        AccessMode::WorkspaceWrite => {
            Some(SCRATCH.map(str::to_owned).into_iter().chain(trees(work)).collect())
        }
    };
    let serves = work.request.spec.as_ref().and_then(|spec| spec.services.as_ref());
    let commands = programs::of(work);
    plan.task.jail = Some(Jail {
        tools_allowed: commands.allowed,
        tools_denied: commands.denied.unwrap_or_default(),
        writable,
        sockets: !work.request.egress.is_none()
            || work.request.models().is_some()
            || serves.is_some_and(|list| !list.is_empty()),
        // An agent with events of its own is counted by them.
        max_execs: work
            .max_commands
            .filter(|_| work.enforce && !Events::new(work.agent_type).are_told()),
    });
    Ok(())
}

/// Where the agent finds what it may change: its project, and a worktree's repository.
fn trees(work: &AgentWork) -> Vec<String> {
    let files = work.request.files_in.iter();
    let is_tree =
        |file: &&InputFile| file.uri.is_some() && file.access == AccessMode::WorkspaceWrite;
    let shown = files.filter(is_tree).map(|file| file.path.clone());
    shown.chain([PROJECT.to_owned()]).collect()
}

/// What the agent's events say while they come.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    work: &'a AgentWork,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    events: Events,
    over: Vec<AgentViolation>,
    stopped: Option<String>,
    /// Turns by the ledger of calls, where the agent calls by it: what its own events say of them counts nothing then.
    called: Option<u64>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(work: &'a AgentWork) -> Self {
        let events = Events::new(work.agent_type);
        let called = work.request.models().map(|_| 0);
        let inner = Inner { events, over: Vec::new(), stopped: None, called };
        Self { work, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock only means that another push panicked; the counts are still good.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a piece of standard output. Whether the dispatch is to be ended now.
    pub(crate) fn push(&self, chunk: &[u8]) -> bool {
        let mut inner = self.lock();
        inner.events.push(chunk);
        self.measure(&mut inner)
    }

    /// A call was refused since the agent has had its turns. Whether the dispatch is to be ended now.
    pub(crate) fn has_had_its_turns(&self) -> bool {
        let mut inner = self.lock();
        inner.called = self.work.max_turns.map(|most| most.saturating_add(1));
        self.measure(&mut inner)
    }

    /// Why a limit ended it.
    pub(crate) fn stopped(&self) -> Option<String> {
        self.lock().stopped.clone()
    }

    /// Why what the agent calls its success is none: it had commands, every one failed, and the kernel saw no
    /// shell that would have run one.
    pub(crate) fn ran_nothing(&self, seen: Option<&JailReport>) -> Option<String> {
        let inner = self.lock();
        let (commands, failed) = (inner.events.tally().commands, inner.events.failed());
        let ran = seen?.tools.keys().any(|tool| SHELLS.contains(&base_name(tool)));
        (commands > 0 && failed >= commands && !ran).then(|| {
            format!("the agent ended with 0, and none of its {commands} commands could be run")
        })
    }

    /// What the agent itself says went wrong, where it ended so.
    pub(crate) fn complaint(&self) -> Option<String> {
        let inner = self.lock();
        inner.events.error().map(|words| format!("{}: {words}", self.work.agent_type.as_str()))
    }

    fn measure(&self, inner: &mut Inner) -> bool {
        let tally = inner.events.tally().clone();
        let turns = inner.called.unwrap_or(tally.turns);
        let limits = [
            (ViolationKind::TurnsExceeded, "max_turns", self.work.max_turns, turns),
            (
                ViolationKind::CommandsExceeded,
                "max_commands",
                self.work.max_commands,
                tally.commands,
            ),
        ];
        let mut end = false;
        for (kind, name, limit, used) in limits {
            let Some(limit) = limit.filter(|limit| used > *limit) else { continue };
            exceed(&mut inner.over, kind, name, used - limit);
            if self.work.enforce && inner.stopped.is_none() {
                inner.stopped = Some(format!("{name} is {limit}, the agent went beyond it"));
                end = true;
            }
        }
        end
    }

    /// The record of a dispatch whose sandbox was made.
    pub(crate) fn report(
        &self,
        seen: Option<&JailReport>,
        effective: &EffectivePolicy,
        result: &SandboxResult,
        taken: Option<&CallTotals>,
    ) -> AgentReport {
        let mut inner = self.lock();
        inner.events.finish();
        if let (Some(called), Some(taken)) = (&mut inner.called, taken) {
            // One that was refused is the turn beyond.
            *called = (*called).max(taken.turns.turns);
        }
        let _ = self.measure(&mut inner);
        let told = inner.events.are_told();
        let findings = inner.events.findings();
        let mut tally = inner.events.tally().clone();
        if let Some(taken) = taken {
            let ModelTurns { turns, input, output, cached } = taken.turns;
            tally = Tally {
                turns,
                input_tokens: input,
                output_tokens: output,
                cache_hits: cached,
                ..tally
            };
        }
        let mut over = std::mem::take(&mut inner.over);
        if let (false, Some(seen)) = (told, seen) {
            tally.commands = seen.execs;
            if let Some(limit) = self.work.max_commands.filter(|limit| seen.execs > *limit) {
                let beyond = seen.execs - limit;
                exceed(&mut over, ViolationKind::CommandsExceeded, "max_commands", beyond);
            }
        }
        let counted = told || seen.is_some();
        let mut record = record(self.work);
        record.started = true;
        record.tools_used = told.then(|| used(self.work, inner.events.tools().names()));
        if let (Some(allowed), Some(offered)) =
            (&mut record.tools_allowed, inner.events.tools().offered())
        {
            *allowed = offered;
        }
        record.programs_used = seen.map(|seen| seen.tools.clone());
        record.turns_used = (told || taken.is_some()).then_some(tally.turns);
        record.turns_from = match taken {
            Some(_) => Some(CountSource::Calls),
            None => inner.events.turns_by(),
        };
        let said_tokens = tally.input_tokens > 0 || tally.output_tokens > 0;
        record.tokens_from = match taken {
            Some(_) => Some(CountSource::Calls),
            None => said_tokens.then_some(CountSource::Agent),
        };
        if let Some(models) = &mut record.models {
            models.called = taken.map(|taken| taken.spent.clone());
        }
        record.commands_used = counted.then_some(tally.commands);
        enforced(&mut record, effective);
        let refused = refused(seen, result, &agents::program(self.work.agent_type));
        record.egress_observed = ObservedEgress {
            allowed: effective.egress.clone(),
            refused: result.violations.iter().map(|v| v.count).sum::<u64>()
                + result.violations_unlisted,
        };
        record.violations = refused.into_iter().chain(over).take(MAX_VIOLATIONS).collect();
        record.violations_unlisted =
            seen.map_or(0, |seen| seen.unlisted) + result.violations_unlisted;
        record.peaks = Peaks {
            mem_mb: result.metrics.mem_peak_mb,
            wall_ms: result.metrics.wall_ms,
            cpu_ms: result.metrics.cpu_ms,
        };
        record.cause.clone_from(&result.cause);
        AgentReport { findings, ..told_as(tally, &record) }
    }
}

/// The record of a dispatch whose sandbox was never made.
pub(crate) fn unstarted(work: &AgentWork, cause: Option<String>) -> AgentReport {
    let mut record = record(work);
    record.cause = cause;
    told_as(Tally::default(), &record)
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn told_as(tally: Tally, record: &SandboxEffective) -> AgentReport {
    let effective = serde_json::to_value(record).unwrap_or(Value::Null);
    AgentReport { tally, effective, findings: Findings::default() }
}

fn exceed(over: &mut Vec<AgentViolation>, kind: ViolationKind, name: &str, count: u64) {
    let now = clock::now_ms();
    match over.iter_mut().find(|violation| violation.kind == kind) {
        Some(known) => {
            if known.count != count {
                known.last_ms = now;
            }
            known.count = count;
        }
        None => over.push(AgentViolation {
            kind,
            subject: name.to_owned(),
            port: None,
            why: None,
            phase: Phase::Exec,
            count,
            first_ms: now,
            last_ms: now,
        }),
    }
}

/// What the kernel refused, then what the proxy did. Codex opens its own program to write when it starts, which says nothing
/// of what it was asked for.
fn refused(
    seen: Option<&JailReport>,
    result: &SandboxResult,
    program: &str,
) -> Vec<AgentViolation> {
    let is_start =
        |one: &&JailRefusal| one.kind == JailRefusalKind::Write && one.subject == program;
    let kernel = seen.into_iter().flat_map(|seen| &seen.refused).filter(|one| !is_start(one));
    let kernel = kernel.map(|refused| AgentViolation {
        kind: match refused.kind {
            JailRefusalKind::Exec => ViolationKind::ToolDenied,
            JailRefusalKind::Write => ViolationKind::WriteDenied,
            JailRefusalKind::Socket => ViolationKind::SocketDenied,
        },
        subject: refused.subject.clone(),
        port: None,
        why: None,
        phase: Phase::Exec,
        count: refused.count,
        first_ms: refused.first_ms,
        last_ms: refused.last_ms,
    });
    let proxy = result.violations.iter().map(|violation| AgentViolation {
        kind: ViolationKind::EgressDenied,
        subject: violation
            .name
            .clone()
            .or_else(|| violation.address.clone())
            .unwrap_or_else(|| violation.why.in_words().to_owned()),
        port: violation.port,
        why: Some(violation.why),
        phase: violation.phase,
        count: violation.count,
        first_ms: violation.first_ms,
        last_ms: violation.last_ms,
    });
    kernel.chain(proxy).collect()
}

/// The tools that were used. codex carries out a patch that its shell is given, and calls that an edit: where it has no tool
/// that edits, its shell did.
fn used(work: &AgentWork, mut used: Vec<String>) -> Vec<String> {
    let tools = Tools::new(work.tools_allowed.as_deref(), work.tools_denied.as_deref());
    if work.agent_type == AgentType::Codex && !tools.has("Edit") {
        let edited = used.iter().any(|name| name == "Edit");
        used.retain(|name| name != "Edit");
        if edited && !used.iter().any(|name| name == SHELL) {
            used.push(SHELL.to_owned());
        }
    }
    used
}

/// Mounts as a tenant reads of them: a program that the operator installed lies where only the operator looks.
fn mounts(given: Vec<Mount>) -> Vec<Mount> {
    let shown = |mount: Mount| Mount { source: own::hidden(&mount.source).into_owned(), ..mount };
    given.into_iter().map(shown).collect()
}

/// What was asked for, as it is enforced before anything is known of the sandbox.
fn record(work: &AgentWork) -> SandboxEffective {
    let spec = work.request.spec.clone().unwrap_or_default();
    let (commands, unheld) = programs::resolve(work, |name| programs::is_there(work, name));
    let own_tools = Tools::new(work.tools_allowed.as_deref(), work.tools_denied.as_deref());
    let denied = work.tools_denied.as_ref();
    let denied = denied.map(|list| list.iter().filter(|name| is_tool(name)).cloned().collect());
    SandboxEffective {
        tools_allowed: tools::offered(work.agent_type, &own_tools),
        tools_denied: denied,
        commands,
        tools_unenforced: unheld,
        max_turns: work.max_turns,
        max_commands: work.max_commands,
        enforce: work.enforce,
        mounts: spec.mounts.map(mounts),
        phases: Some(PhasesSpec {
            build: None,
            exec: Some(PhaseSpec {
                egress: Some(work.request.egress.clone()),
                secrets: (!work.request.secrets.is_empty()).then(|| work.request.secrets.clone()),
                timeout_ms: Some(work.request.timeout_ms),
            }),
        }),
        services: spec.services,
        cache: spec.cache,
        models: work
            .request
            .models()
            .map(|spec| EffectiveModels { spec: spec.clone(), called: None }),
        unenforced: work.unknown.clone(),
        ..SandboxEffective::unknown(work.working_dir.clone(), work.access_mode)
    }
}

fn enforced(record: &mut SandboxEffective, effective: &EffectivePolicy) {
    record.image = Some(effective.image.clone());
    record.image_digest = effective.image.rsplit_once('@').map(|(_, digest)| digest.to_owned());
    record.limits = Some(effective.limits);
    record.runtime = Some(effective.runtime.clone());
    record.runtime_version = Some(effective.runtime_version.clone());
    record.kernel = Some(effective.kernel.clone());
    record.isolation_class = Some(effective.isolation_class);
    record.weak.clone_from(&effective.weak);
}
