//! `/api/sandboxes`: long-lived sandboxes.

use axum::http::StatusCode;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{LiveId, SnapshotId};
use cofferdam_contracts::live::{
    LiveExec, LiveExecResult, LiveExtend, LiveRequest, LiveState, LiveView,
};
use cofferdam_contracts::live_network::LiveNetwork;
use cofferdam_contracts::snapshot::{
    LiveFork, LiveForkResult, LivePause, LiveResume, SnapshotRequest,
};
use cofferdam_flows::Error;
use cofferdam_ledger::live::LiveFilter;
use cofferdam_live::inside::{CommandExit, ExecEnd, ExecRequest};
use cofferdam_live::{
    Account, ChangeNetwork, CommandEvent as Output, CreateSandbox, DeleteSnapshot, ExecOptions,
    ExtendSandbox, FindGuest, ForkSandbox, GuestError, KillSandbox, ListNetworks, PauseSandbox,
    ReadEnvironment, ResumeOptions, ResumeSandbox, StartCommand, Stream, TakeSnapshot, ViewSandbox,
};

use crate::answer::{AnswerResult, json as answer, ok};
use crate::call::Call;

/// Wall time of a command in seconds, when a request does not say.
const EXEC_S: u64 = 60;
/// Bytes of each stream that an answer has: two of them with their escapes are still one page of JSON.
const MAX_SHOWN: usize = 512 * 1024;
/// What a shell adds to the number of a signal.
const BY_SIGNAL: i32 = 128;

pub(crate) async fn create(mut call: Call) -> AnswerResult {
    let request: LiveRequest = call.body()?;
    let guest = call.live().ask(CreateSandbox { who: call.who.clone(), request }).await?;
    answer(StatusCode::CREATED, &view(&call, &guest.facts.id).await?)
}

/// As it is recorded.
async fn view(call: &Call, id: &LiveId) -> Result<LiveView, Error> {
    call.live().ask(ViewSandbox { who: call.who.clone(), id: id.clone() }).await
}

pub(crate) async fn list(call: Call) -> AnswerResult {
    let filter = LiveFilter {
        states: call.one_of("state", LiveState::ALL, LiveState::as_str)?.into_iter().collect(),
        metadata: call.label("label")?.into_iter().collect(),
        limit: call.number("limit", 1..=1_000, 100)?,
        ..LiveFilter::default()
    };
    ok(&call.flows().ledger.live().list(&call.who.tenant, &filter).await?)
}

pub(crate) async fn get(call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    ok(&view(&call, &id).await?)
}

pub(crate) async fn extend(mut call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    let request: LiveExtend = call.body()?;
    let (who, seconds) = (call.who.clone(), request.timeout_s);
    call.live().ask(ExtendSandbox { who, id: id.clone(), seconds, longer: false }).await?;
    ok(&view(&call, &id).await?)
}

pub(crate) async fn network(mut call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    let request: LiveNetwork = call.body()?;
    let who = call.who.clone();
    ok(&call.live().ask(ChangeNetwork { who, id, egress: request.egress }).await?)
}

pub(crate) async fn networks(call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    ok(&call.live().ask(ListNetworks { who: call.who.clone(), id }).await?)
}

pub(crate) async fn kill(call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    call.live().ask(KillSandbox { who: call.who.clone(), id: id.clone() }).await?;
    ok(&view(&call, &id).await?)
}

pub(crate) async fn pause(mut call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    let request: LivePause = call.body()?;
    let who = call.who.clone();
    ok(&call.live().ask(PauseSandbox { who, id, memory: request.memory }).await?)
}

pub(crate) async fn resume(mut call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    let request: LiveResume = call.body()?;
    let options = ResumeOptions::of(request.timeout_s, None, request.memory);
    let guest = call.live().ask(ResumeSandbox { who: call.who.clone(), id, options }).await?;
    let why = "the sandbox is not paused";
    let guest = guest.ok_or_else(|| Refusal::new(ErrorCode::StateConflict, why))?;
    ok(&view(&call, &guest.facts.id).await?)
}

pub(crate) async fn fork(mut call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    let request: LiveFork = call.body()?;
    let count = request.count.unwrap_or(1);
    let mut forks = Vec::new();
    let (who, timeout_s) = (call.who.clone(), request.timeout_s);
    for one in call.live().ask(ForkSandbox { who, id, count, timeout_s }).await? {
        forks.push(match one {
            Ok(guest) => {
                let view = view(&call, &guest.facts.id).await?;
                LiveForkResult { sandbox: Some(view), error: None }
            }
            Err(error) => LiveForkResult { sandbox: None, error: Some(error.refusal().message) },
        });
    }
    answer(StatusCode::CREATED, &forks)
}

pub(crate) async fn snapshot(mut call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    let request: SnapshotRequest = call.body()?;
    let take = TakeSnapshot { who: call.who.clone(), id, name: request.name };
    let made = call.live().ask(take).await?;
    answer(StatusCode::CREATED, &made)
}

pub(crate) async fn snapshots(call: Call) -> AnswerResult {
    ok(&call.flows().ledger.snapshots().list(&call.who.tenant, None).await?)
}

pub(crate) async fn snapshot_delete(call: Call) -> AnswerResult {
    let id: SnapshotId = call.id("snapshot")?;
    let kept = call.flows().ledger.snapshots().stored_snapshot(&call.who.tenant, &id).await?;
    let view = kept.ok_or_else(|| Refusal::not_found("snapshot"))?.view;
    call.live().ask(DeleteSnapshot { who: call.who.clone(), id }).await?;
    ok(&view)
}

pub(crate) async fn exec(mut call: Call) -> AnswerResult {
    let id: LiveId = call.id("live")?;
    let request: LiveExec = call.body()?;
    let guest = call.live().ask(FindGuest { who: call.who.clone(), id }).await?;
    let refuse = |why: String| Error::from(Refusal::new(ErrorCode::PolicyViolation, why));
    let gone = |error: GuestError| match error {
        GuestError::Busy => {
            let why = "too many commands, transfers and connections of this sandbox at once; end one, or try again";
            Refusal::new(ErrorCode::Unavailable, why).into()
        }
        error => refuse(format!("the sandbox does not answer: {error}")),
    };
    let facts = &guest.facts;
    let user = request.user.as_deref().unwrap_or(facts.user.as_str());
    let account = Account::named(Some(user)).map_err(refuse)?;
    let inside = guest.ask(ReadEnvironment).await.map_err(gone)?;
    let mut env = inside.of(account, &facts.id);
    env.extend(request.env);
    let request = ExecRequest {
        argv: request.cmd,
        env,
        cwd: request
            .cwd
            .unwrap_or_else(|| facts.workdir.as_deref().unwrap_or(account.home).to_owned()),
        timeout_ms: request.timeout_s.unwrap_or(EXEC_S).saturating_mul(1_000),
        stream_limit_bytes: u64::MAX,
        user: Some(account.user),
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    };
    let options = ExecOptions { service: true, leaves: true, ..ExecOptions::default() };
    let start = StartCommand { request, options, note: String::new() };
    let mut process = guest.ask(start).await.map_err(gone)?;
    let mut said = ExecOutput::default();
    while let Some(piece) = process.output.recv().await {
        match piece {
            Output::Output(stream, bytes) => said.push(stream, &bytes),
            Output::End(end) => return ok(&said.told(&end)),
        }
    }
    Err(refuse("the sandbox ended while the command ran".to_owned()))
}

/// What a command said, up to the bound.
#[derive(Debug, Default)]
struct ExecOutput {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    dropped: u64,
}

impl ExecOutput {
    fn push(&mut self, stream: Stream, piece: &[u8]) {
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let room = MAX_SHOWN.saturating_sub(kept.len()).min(piece.len());
        kept.extend_from_slice(piece.get(..room).unwrap_or_default());
        let dropped = u64::try_from(piece.len().saturating_sub(room)).unwrap_or(u64::MAX);
        self.dropped = self.dropped.saturating_add(dropped);
    }

    fn told(self, end: &ExecEnd) -> LiveExecResult {
        let (exit, error) = match &end.ended {
            CommandExit::Exit(code) => (*code, None),
            CommandExit::Signal(signal) => (BY_SIGNAL.saturating_add(*signal), None),
            CommandExit::Unstarted(why) => (-1, Some(why.clone())),
        };
        LiveExecResult {
            exit,
            stdout: String::from_utf8_lossy(&self.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&self.stderr).into_owned(),
            dropped_bytes: self.dropped,
            timed_out: end.timed_out,
            error,
        }
    }
}
