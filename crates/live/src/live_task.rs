//! The task that holds a sandbox, on its worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::live::LiveWork;
use cofferdam_contracts::sandbox::{ErrCode, Phase, SandboxResult, SessionState};
use cofferdam_contracts::template_build::TemplateUser;
use cofferdam_flows::settle::alert;
use cofferdam_flows::{Attempt, End, MemoryShare, ReadySandbox, patiently};
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::live::LiveStart;
use cofferdam_sandbox::{AgentError, KillHandle, LayerSnapshotter, Sandbox};
use tokio::sync::watch;

use crate::accounts::Account;
use crate::early::{taken, unused_wiped};
use crate::handle::{EffectiveNetwork, EndOrder, LiveHandle, SandboxParts};
use crate::live::Live;
use crate::pending_launch::PendingLaunch;
use crate::registry::TaskClaim;
use crate::snapshot::memory::MemoryOption;
use crate::template::program::{Program, begin};
use crate::tokens::Tokens;

/// The user that every long-lived sandbox gives a home.
const DEFAULT: Account = Account::of(TemplateUser::User);
/// A directory and the network's files: milliseconds.
const FURNISHED_WITHIN: Duration = Duration::from_secs(15);
/// How often it is looked whether the sandbox still lives: one call of the kernel.
const LOOK: Duration = Duration::from_millis(500);

/// Why a sandbox ends.
enum EndReason {
    Killed,
    /// Its files are kept, and on record.
    Paused,
    /// Its processes ended for a pause that failed after that.
    Unkept,
    Expired,
    Canceled,
    /// Its worker stops.
    Stopped,
    Died,
    /// It never began, in words.
    Unopened(String),
}

/// Makes the sandbox, holds it, and takes it away.
pub(crate) async fn run(live: &Live, mut attempt: Attempt<'_>, work: &LiveWork) -> End {
    let task = attempt.task;
    let asked = live.0.registry.take(&work.live, &task.key);
    let gone = async |expected: Option<PendingLaunch>, why: &str| {
        // Nothing is left under its name when that is looked for.
        if let Some(ahead) = expected.and_then(|mut one| one.files.ahead.take()) {
            ahead.end().await;
        }
        // Whoever asked for it gave it up meanwhile: it is being wiped.
        unused_wiped(attempt.host(), attempt.id).await;
        let end = attempt.unmade(ErrCode::CmdNonzero, why.to_owned()).await;
        end.refused_everywhere()
    };
    if task.execution_no > 1 || task.attempt > 1 {
        let why = "its worker was lost or restarted; a sandbox is never made anew";
        return gone(asked.map(|asked| asked.expected), why).await;
    }
    let Some(TaskClaim { mut expected, life }) = asked else {
        let why = "the process that was asked for it restarted or gave it up, or another one executes it; see docs/e2b.md";
        return gone(None, why).await;
    };
    // One that is made already and begins nothing runs nothing yet: the record of its start is refused where it is not due.
    if expected.files.ahead.is_none() || expected.template.program.is_some() {
        let ledger = &live.0.ledger;
        match patiently(|| ledger.live().is_due(&work.live, &task.run)).await {
            Ok(true) => {}
            Ok(false) => {
                return gone(Some(expected), "it is not recorded, or was started before").await;
            }
            Err(error) => {
                return gone(Some(expected), &format!("the record could not be read: {error}"))
                    .await;
            }
        }
    }
    // What making it takes is given back before it is held, for days perhaps; so is what its end takes.
    let up = match expected.files.ahead.take() {
        Some(ahead) => {
            let taken = Box::pin(taken(&attempt, &work.request, ahead));
            taken.await.map(|(up, loan)| {
                expected.files.loan = loan;
                up
            })
        }
        None => {
            let filling = expected.files.filling.take();
            Box::pin(attempt.up(&work.request, filling)).await
        }
    };
    let ReadySandbox { sandbox, memory, .. } = match up {
        Ok(up) => up,
        // A second attempt would find the same, and its caller is told now.
        Err(end) => return end.refused_everywhere(),
    };
    held(live, attempt, work, sandbox, memory, TaskClaim { expected, life }).await
}

async fn held(
    live: &Live,
    mut attempt: Attempt<'_>,
    work: &LiveWork,
    mut sandbox: Sandbox,
    memory: MemoryShare,
    TaskClaim { mut expected, life }: TaskClaim,
) -> End {
    let since = Stopwatch::start();
    let attestation = attempt.host().attest(sandbox.effective()).await;
    attempt.shown(&sandbox, attestation.clone());
    let tokens = expected.tokens.take();
    let tokens =
        tokens.unwrap_or_else(|| Tokens::fresh(expected.request.private, &expected.key_id));
    let mut left = None;
    let opened = Box::pin(opened(live, &attempt, &sandbox, &tokens, &expected));
    let over = match opened.await {
        Ok(Some(RunningSandbox { left: ends, env, program })) => {
            if let Some(loan) = expected.files.loan.take() {
                fail_point("layer.begun");
                sandbox.has_begun();
                loan.begun();
            }
            let made = SandboxParts {
                agent: sandbox.agent().clone(),
                reach: EffectiveNetwork { egress: work.request.egress.clone(), env },
                network: sandbox.network(),
                tokens,
                limits: sandbox.effective().limits,
                snapshotter: sandbox.snapshotter(),
                went_on: sandbox.boot().went_on,
            };
            let (held, mut orders) =
                LiveHandle::new(&work.live, &attempt.task.run, expected, made, ends);
            attempt.stepped_aside();
            life.show(Arc::clone(&held));
            if let Some(program) = program {
                tokio::spawn(told_of(program, live.clone(), Arc::clone(&held)));
            }
            attempt.state(SessionState::Executing);
            sandbox.let_runtime_go().await;
            sandbox.let_root_go().await;
            if held.snapshotter.as_ref().is_ok_and(LayerSnapshotter::can_detach_layer) {
                live.0.layers.spare.want();
            }
            let kill = sandbox.kill_handle();
            let over = until(live, &mut attempt, &kill, &held, &mut orders).await;
            // From here on no extension is acknowledged.
            held.end(EndOrder::Over);
            drop(life);
            // Who reads its files stops at once, and nothing is wiped under its hands.
            drop(held.keeping.lock().await);
            left = held.leaves();
            if let Some(left) = &left {
                sandbox.leave(&left.layer);
            }
            over
        }
        Ok(None) => EndReason::Canceled,
        Err(why) => EndReason::Unopened(why),
    };
    let mut result = attempt.result();
    result.metrics.boot_ms = sandbox.boot().boot_ms;
    result.metrics.wall_ms = since.elapsed_ms();
    result.metrics.mem_peak_mb = sandbox.peak_mem_mb();
    (result.violations, result.violations_unlisted) = sandbox.traffic().violations();
    let (reason, canceled) = told(&mut result, over);
    let effective = sandbox.effective().clone();
    attempt.state(SessionState::RemoteWipeVerifying);
    let wiping = Stopwatch::start();
    let evidence = Box::pin(sandbox.wipe(reason)).await;
    result.metrics.wipe_ms = wiping.elapsed_ms();
    alert(&evidence);
    match left {
        Some(left) => left.memory.put(Some(memory)),
        None => drop(memory),
    }
    End {
        result,
        effective: Some(effective),
        artifacts: Vec::new(),
        staged: Vec::new(),
        reports: Vec::new(),
        evidence: Some(evidence),
        attestation: Some(attestation),
        canceled,
    }
}

/// What the record says of its end: the reason of its wipe, and whether it was canceled. No attempt follows. Pure.
fn told(result: &mut SandboxResult, over: EndReason) -> (&'static str, bool) {
    let (code, cause, reason, canceled) = match over {
        EndReason::Killed => (ErrCode::None, "killed".to_owned(), "killed", false),
        EndReason::Paused => (ErrCode::None, "paused".to_owned(), "paused", false),
        EndReason::Unkept => {
            let cause = "a pause of it failed after its processes had ended".to_owned();
            (ErrCode::CmdNonzero, cause, "task-end", false)
        }
        EndReason::Expired => (ErrCode::None, "its time was over".to_owned(), "expired", false),
        EndReason::Canceled => (ErrCode::CmdNonzero, "canceled".to_owned(), "canceled", true),
        EndReason::Stopped => {
            let cause = "the server that held it was stopped".to_owned();
            (ErrCode::CmdNonzero, cause, "stopped", false)
        }
        EndReason::Died => {
            (ErrCode::CmdNonzero, "the sandbox ended by itself".to_owned(), "task-end", false)
        }
        EndReason::Unopened(why) => (ErrCode::BootFail, why, "boot-fail", false),
    };
    result.err_code = code;
    result.exit = if code == ErrCode::None { 0 } else { -1 };
    result.cause = Some(cause);
    result.permanent = code != ErrCode::None;
    result.permanent_everywhere = result.permanent;
    (reason, canceled)
}

/// One that is up, and on record as such.
struct RunningSandbox {
    /// The ms that it has.
    left: i64,
    /// The network's variables.
    env: BTreeMap<String, String>,
    program: Option<Program>,
}

/// Records how its template's program failed while the sandbox goes on; one that ends with its sandbox did not.
async fn told_of(program: Program, live: Live, held: Arc<LiveHandle>) {
    let Ok(Some(how)) = program.await else { return };
    if !held.goes_on() {
        return;
    }
    // How is the run's output, which an erasure takes from the record: no log has it.
    tracing::warn!(sandbox = %held.facts.id, template = %held.facts.template, "a template's program failed");
    if let Err(error) =
        patiently(|| live.0.ledger.live().program_failed(&held.facts.run, &how)).await
    {
        tracing::warn!(sandbox = %held.facts.id, %error, "how a template's program failed is not on record");
    }
}

/// Opens its network, gives `user` a home, starts its template's program, and records its start.
/// `None`: it is not wanted any more.
async fn opened(
    live: &Live,
    attempt: &Attempt<'_>,
    sandbox: &Sandbox,
    tokens: &Tokens,
    expected: &PendingLaunch,
) -> Result<Option<RunningSandbox>, String> {
    let ledger = &live.0.ledger;
    let start = LiveStart {
        run: &attempt.task.run,
        executor: attempt.executor(),
        sandbox: sandbox.id(),
        token: &tokens.envd,
        traffic: tokens.traffic.as_deref(),
        tokens_of: &tokens.key_id,
        limits: &sandbox.effective().limits,
    };
    let recorded = patiently(|| ledger.live().started(&start));
    let beginning = expected.template.program.as_ref();
    // It runs, as it did.
    let beginning = beginning.filter(|_| !sandbox.boot().went_on);
    let (env, left, program) = match beginning {
        None => {
            let (env, left) = tokio::join!(furnished(sandbox), recorded);
            (env?, left, None)
        }
        // On record as running only once its program is ready.
        Some(begins) => {
            let env = furnished(sandbox).await?;
            let mut all = env.clone();
            all.extend(expected.inherited.clone());
            all.extend(expected.request.env.clone());
            let begun = begin(sandbox.agent(), begins, &all).await;
            let program =
                begun.map_err(|why| format!("template {}: {why}", expected.template.name))?;
            (env, recorded.await, program)
        }
    };
    let left = left.map_err(|error| format!("its start was not recorded: {error}"))?;
    Ok(left.map(|left| RunningSandbox { left, env, program }))
}

/// Its time is over, and it is to be paused then. Where that fails it ends, as if it had not asked for it.
async fn pause_at_end(live: &Live, held: &Arc<LiveHandle>) {
    let who = Principal {
        key_id: held.key_id.clone(),
        tenant: held.facts.tenant.clone(),
        roles: Vec::new(),
    };
    let memory = match held.asked.pause_memory {
        Some(false) => MemoryOption::No,
        _ => MemoryOption::IfPossible,
    };
    let paused = live.pause_live(&who, held, "its time was over", memory).await;
    if let Err(error) = paused {
        tracing::warn!(sandbox = %held.facts.id, %error, "a sandbox whose time is over could not be paused, and ends");
    }
}

/// Its network, whose variables are given, and the home of `user`.
async fn furnished(sandbox: &Sandbox) -> Result<BTreeMap<String, String>, String> {
    let Account { home, user, .. } = DEFAULT;
    let made = sandbox.agent().files().mkdir(home, 0o755, Some(user));
    let both = async { tokio::join!(sandbox.traffic().open(Phase::Exec), made) };
    // The agent of one that goes on may be its task's.
    let both = tokio::time::timeout(FURNISHED_WITHIN, both).await;
    let (env, made) = both.map_err(|_| "its agent does not answer".to_owned())?;
    // Files of a first life may have a link or a file there: what is to work in it is told so.
    match made {
        Ok(()) | Err(AgentError::Refused { .. }) => {}
        Err(error) => return Err(format!("{home}: {error}")),
    }
    env.map_err(|error| format!("its network: {error}"))
}

async fn until(
    live: &Live,
    attempt: &mut Attempt<'_>,
    kill: &KillHandle,
    held: &Arc<LiveHandle>,
    orders: &mut watch::Receiver<EndOrder>,
) -> EndReason {
    let mut tried = false;
    loop {
        let left = match *orders.borrow_and_update() {
            EndOrder::Kill => return EndReason::Killed,
            EndOrder::Pause => return EndReason::Paused,
            EndOrder::Unkept => return EndReason::Unkept,
            EndOrder::Stop => return EndReason::Stopped,
            EndOrder::Over => return EndReason::Expired,
            EndOrder::At(since, after) => after.saturating_sub(since.elapsed()),
        };
        if left.is_zero() {
            if held.asked.pause_on_timeout && !tried {
                tried = true;
                pause_at_end(live, held).await;
                continue;
            }
            // Unless it was extended at this very moment: that is acknowledged, so it counts.
            held.end_if_due();
            continue;
        }
        tokio::select! {
            biased;
            changed = orders.changed() => {
                if changed.is_err() {
                    return EndReason::Canceled;
                }
            }
            wake = attempt.wake() => {
                if attempt.is_canceled(&wake).await {
                    return EndReason::Canceled;
                }
            }
            () = clock::sleep(left.min(LOOK)) => {
                if !kill.is_alive() && !held.is_asleep() {
                    return EndReason::Died;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::TaskKey;

    #[test]
    fn a_sandbox_that_was_killed_or_expired_ended_well_and_no_other_is_tried_again() {
        let key = TaskKey::parse(&"0".repeat(64)).unwrap();
        let end = |over| {
            let mut result = SandboxResult::unanswered(key.clone(), None);
            let (reason, canceled) = told(&mut result, over);
            (result.err_code, result.permanent_everywhere, reason, canceled)
        };
        assert_eq!(end(EndReason::Killed), (ErrCode::None, false, "killed", false));
        assert_eq!(end(EndReason::Paused), (ErrCode::None, false, "paused", false));
        assert_eq!(end(EndReason::Expired), (ErrCode::None, false, "expired", false));
        assert_eq!(end(EndReason::Canceled), (ErrCode::CmdNonzero, true, "canceled", true));
        assert_eq!(end(EndReason::Stopped), (ErrCode::CmdNonzero, true, "stopped", false));
        assert_eq!(end(EndReason::Unkept), (ErrCode::CmdNonzero, true, "task-end", false));
        assert_eq!(end(EndReason::Died), (ErrCode::CmdNonzero, true, "task-end", false));
    }
}
