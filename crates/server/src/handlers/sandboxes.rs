//! `/api/sandboxes`: long-lived sandboxes.

use axum::http::StatusCode;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{LiveId, SnapshotId};
use cofferdam_contracts::live::{LiveExec, LiveExecuted, LiveExtend, LiveRequest, LiveState};
use cofferdam_contracts::live_network::LiveNetwork;
use cofferdam_contracts::snapshot::{LiveFork, LiveForked, LivePause, LiveResume, SnapshotRequest};
use cofferdam_flows::Error;
use cofferdam_ledger::live::LiveFilter;
use cofferdam_live::inside::{Ended, ExecEnd, ExecRequest};
use cofferdam_live::{Manner, ResumeOptions, Snapshots, Stream};

use crate::answer::{Answered, json as answer, ok};
use crate::call::Call;
use crate::e2b::{PLACE_PATIENCE, environment, person};

/// Wall time of a command in seconds, when a request does not say.
const EXEC_S: u64 = 60;
/// Bytes of each stream that an answer has: two of them with their escapes are still one page of JSON.
const MAX_SHOWN: usize = 512 * 1024;
/// What a shell adds to the number of a signal.
const BY_SIGNAL: i32 = 128;

pub(crate) async fn create(mut call: Call) -> Answered {
    let request: LiveRequest = call.body()?;
    let held = call.live().create(&call.who, &request).await?;
    answer(StatusCode::CREATED, &call.live().view(&call.who, &held.id).await?)
}

pub(crate) async fn list(call: Call) -> Answered {
    let filter = LiveFilter {
        states: call.one_of("state", LiveState::ALL, LiveState::as_str)?.into_iter().collect(),
        limit: call.number("limit", 1..=1_000, 100)?,
        ..LiveFilter::default()
    };
    ok(&call.flows().ledger.live().list(&call.who.tenant, &filter).await?)
}

pub(crate) async fn get(call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    ok(&call.live().view(&call.who, &id).await?)
}

pub(crate) async fn extend(mut call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    let request: LiveExtend = call.body()?;
    call.live().extend(&call.who, &id, request.timeout_s, false).await?;
    ok(&call.live().view(&call.who, &id).await?)
}

pub(crate) async fn network(mut call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    let request: LiveNetwork = call.body()?;
    ok(&call.live().network(&call.who, &id, request.egress).await?)
}

pub(crate) async fn networks(call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    ok(&call.live().networks(&call.who, &id).await?)
}

pub(crate) async fn kill(call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    call.live().kill(&call.who, &id).await?;
    ok(&call.live().view(&call.who, &id).await?)
}

pub(crate) async fn pause(mut call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    let request: LivePause = call.body()?;
    ok(&call.live().pause(&call.who, &id, request.memory).await?)
}

pub(crate) async fn resume(mut call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    let request: LiveResume = call.body()?;
    let options = ResumeOptions::of(request.timeout_s, None, request.memory);
    let held = call.live().resume(&call.who, &id, options).await?;
    let why = "the sandbox is not paused";
    let held = held.ok_or_else(|| Refusal::new(ErrorCode::StateConflict, why))?;
    ok(&call.live().view(&call.who, &held.id).await?)
}

pub(crate) async fn fork(mut call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    let request: LiveFork = call.body()?;
    let count = request.count.unwrap_or(1);
    let mut forks = Vec::new();
    for one in call.live().fork(&call.who, &id, count, request.timeout_s).await? {
        forks.push(match one {
            Ok(held) => {
                let view = call.live().view(&call.who, &held.id).await?;
                LiveForked { sandbox: Some(view), error: None }
            }
            Err(error) => LiveForked { sandbox: None, error: Some(error.refusal().message) },
        });
    }
    answer(StatusCode::CREATED, &forks)
}

pub(crate) async fn snapshot(mut call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    let request: SnapshotRequest = call.body()?;
    let made = Snapshots::of(call.live()).take(&call.who, &id, request.name).await?;
    answer(StatusCode::CREATED, &made)
}

pub(crate) async fn snapshots(call: Call) -> Answered {
    ok(&call.flows().ledger.snapshots().list(&call.who.tenant, None).await?)
}

pub(crate) async fn snapshot_delete(call: Call) -> Answered {
    let id: SnapshotId = call.id("snapshot")?;
    let kept = call.flows().ledger.snapshots().kept(&call.who.tenant, &id).await?;
    let view = kept.ok_or_else(|| Refusal::not_found("snapshot"))?.view;
    Snapshots::of(call.live()).delete(&call.who, &id).await?;
    ok(&view)
}

pub(crate) async fn exec(mut call: Call) -> Answered {
    let id: LiveId = call.id("live")?;
    let request: LiveExec = call.body()?;
    let held = call.live().held(&call.who, &id).await?;
    let refuse = |why: String| Error::from(Refusal::new(ErrorCode::PolicyViolation, why));
    let (default, workdir) = held.defaults();
    let user = request.user.as_deref().unwrap_or(default.as_str());
    let user = person(Some(user)).map_err(|fault| refuse(fault.message))?;
    let mut env = environment(&held, user);
    env.extend(request.env);
    let request = ExecRequest {
        argv: request.cmd,
        env,
        cwd: request.cwd.unwrap_or_else(|| workdir.unwrap_or(user.home).to_owned()),
        timeout_ms: request.timeout_s.unwrap_or(EXEC_S).saturating_mul(1_000),
        stream_limit_bytes: u64::MAX,
        user: Some(user.user),
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    };
    let gone =
        |error: cofferdam_live::AgentError| refuse(format!("the sandbox does not answer: {error}"));
    let busy = || {
        let why = "too many commands, transfers and connections of this sandbox at once; end one, or try again";
        Refusal::new(ErrorCode::Unavailable, why)
    };
    let _share = held.streams(1, PLACE_PATIENCE).await.ok_or_else(busy)?;
    let manner = Manner { service: true, leaves: true, ..Manner::default() };
    let running = held.agent.start(request, manner).await.map_err(gone)?;
    let mut said = Said::default();
    let end = running.follow(|stream, piece| said.push(stream, piece)).await.map_err(gone)?;
    ok(&said.told(&end))
}

/// What a command said, up to the bound.
#[derive(Debug, Default)]
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    dropped: u64,
}

impl Said {
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

    fn told(self, end: &ExecEnd) -> LiveExecuted {
        let (exit, error) = match &end.ended {
            Ended::Exit(code) => (*code, None),
            Ended::Signal(signal) => (BY_SIGNAL.saturating_add(*signal), None),
            Ended::Unstarted(why) => (-1, Some(why.clone())),
        };
        LiveExecuted {
            exit,
            stdout: String::from_utf8_lossy(&self.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&self.stderr).into_owned(),
            dropped_bytes: self.dropped,
            timed_out: end.timed_out,
            error,
        }
    }
}
