//! One call on its way: sent once, passed on as it comes, metered, settled.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::{Digest, SandboxId};
use cofferdam_contracts::model::{
    AnswerMeter, MAX_ANSWER_BYTES, ModelOutcome, ModelPrice, ModelProtocol,
};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::models::{CallCost, CallEnd};
use cofferdam_ledger::planner::{AnswerKey, StoredAnswer};
use cofferdam_sandbox::{ModelCut, ModelReply};
use reqwest::{Client, RequestBuilder, Response};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task;

use super::answer_budget::AnswerShare;
use super::hash::AnswerHash;
use super::judge::{AnswerEnd, CallVerdict, judge, judge_count};
use super::leak::KeySearch;
use super::pipe::Pipe;
use super::prompt_position::PromptPosition;
use crate::patience::patiently;

/// Chunks of an answer that wait for their reader: the provider waits for it too. A reader that is behind takes all of
/// them with one write.
const AHEAD: usize = 8;
/// Longest that a call may last where no budget says less: a day, as a task.
const LONGEST_MS: u64 = 86_400_000;
/// Bytes of an answer that goes on record within its prompt: a stream of 32,768 tokens has some 8 MiB.
const MAX_RECORD_BYTES: usize = 16 << 20;
/// Bytes of a body that are kept.
const MAX_KEPT_BYTES: usize = 256 * 1024;
/// Why a call was cut at its bound.
const OUT_OF_TIME: &str = "the wall budget ran out";
/// Headers of an answer that are passed on.
const TOLD: [&str; 6] = [
    "content-type",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "request-id",
    "x-should-retry",
];

/// A call that was allowed.
pub(crate) struct AllowedCall {
    pub op_key: Digest,
    pub protocol: ModelProtocol,
    pub price: ModelPrice,
    pub url: String,
    pub key: Option<String>,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
    /// Until a budget cuts it.
    pub left_ms: Option<u64>,
    /// Whether bodies are kept.
    pub keep: bool,
    /// Whether its tokens are counted and nothing is written.
    pub counts: bool,
    /// The prompt that it belongs to, and the sandbox that holds that.
    pub within: Option<(PromptPosition, SandboxId)>,
}

/// Ends with the call: whoever waits for a sandbox's calls sees it.
pub(crate) struct CallGuard(pub watch::Sender<usize>);

impl CallGuard {
    pub(crate) fn new(calls: &watch::Sender<usize>) -> Self {
        calls.send_modify(|going| *going += 1);
        Self(calls.clone())
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.send_modify(|going| *going = going.saturating_sub(1));
    }
}

/// A call between its sending and its end.
struct ActiveCall {
    ledger: Ledger,
    op_key: Digest,
    price: ModelPrice,
    key: Option<String>,
    clock: Stopwatch,
    first_ms: Option<u64>,
    hash: AnswerHash,
    bytes: u64,
    /// What is kept of the answer.
    kept: Option<Vec<u8>>,
    /// What is put on record before the agent reads its end.
    record: Option<AnswerRecorder>,
    /// What its answer takes of this worker's memory.
    room: AnswerShare,
    /// Whether it takes any: a stream that goes on no record passes.
    is_held: bool,
    /// Whether its answer went on record within its prompt.
    is_recorded: bool,
    /// Whether it is a count of tokens.
    counts: bool,
    /// Looks for the key.
    leak: Option<KeySearch>,
    _going: CallGuard,
}

/// An answer that goes on record within its prompt.
struct AnswerRecorder {
    within: PromptPosition,
    sandbox: SandboxId,
    content_type: String,
    body: Vec<u8>,
}

type Deadline<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send)>;

/// Sends it, and gives the head of the answer; the body follows from a task of its own, which outlives a client
/// that goes: what came of the call is on record all the same.
pub(crate) async fn send(
    ledger: &Ledger,
    client: &Client,
    call: AllowedCall,
    going: CallGuard,
    room: AnswerShare,
) -> Result<ModelReply, String> {
    let sent = ActiveCall {
        ledger: ledger.clone(),
        op_key: call.op_key.clone(),
        price: call.price.clone(),
        key: call.key.clone(),
        room,
        is_held: false,
        is_recorded: false,
        counts: call.counts,
        clock: Stopwatch::start(),
        first_ms: None,
        hash: AnswerHash::new(),
        bytes: 0,
        kept: call.keep.then(Vec::new),
        record: call.within.clone().map(|(within, sandbox)| AnswerRecorder {
            within,
            sandbox,
            content_type: String::new(),
            body: Vec::new(),
        }),
        leak: call.key.as_deref().map(KeySearch::new),
        _going: going,
    };
    if call.keep {
        sent.keep("request", &call.body).await;
    }
    let limit = Duration::from_millis(call.left_ms.unwrap_or(LONGEST_MS).min(LONGEST_MS));
    let protocol = call.protocol;
    let request = request(client, call);
    let (tell, head) = oneshot::channel();
    tokio::spawn(async move {
        let deadline = clock::sleep(limit);
        tokio::pin!(deadline);
        sent.run(request, protocol, tell, deadline).await;
    });
    head.await.unwrap_or_else(|_| Err("the call ended".to_owned()))
}

fn request(client: &Client, call: AllowedCall) -> RequestBuilder {
    let mut request = client.post(call.url).header("accept-encoding", "identity");
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    let is_anthropic = call.protocol == ModelProtocol::AnthropicMessages;
    if is_anthropic && !call.headers.iter().any(|(name, _)| *name == "anthropic-version") {
        request = request.header("anthropic-version", "2023-06-01");
    }
    request = match call.key {
        Some(key) if is_anthropic => request.header("x-api-key", key),
        Some(key) => request.bearer_auth(key),
        None => request,
    };
    request.body(call.body)
}

fn head_of(response: &Response) -> (u16, Vec<(&'static str, String)>, bool) {
    let headers: Vec<(&'static str, String)> = TOLD
        .into_iter()
        .filter_map(|name| Some((name, response.headers().get(name)?.to_str().ok()?.to_owned())))
        .collect();
    let is_stream = headers
        .iter()
        .any(|(name, value)| *name == "content-type" && value.starts_with("text/event-stream"));
    (response.status().as_u16(), headers, is_stream)
}

fn unsent(outcome: ModelOutcome, why: &str) -> CallVerdict {
    let counted = (outcome == ModelOutcome::Unreachable).then(CallCost::default);
    CallVerdict { outcome, usage: None, counted, why: Some(why.to_owned()) }
}

impl ActiveCall {
    async fn run(
        mut self,
        request: RequestBuilder,
        protocol: ModelProtocol,
        mut tell: oneshot::Sender<Result<ModelReply, String>>,
        mut deadline: Deadline<'_>,
    ) {
        let answered = tokio::select! {
            answered = request.send() => answered.map_err(|error| {
                let outcome = match error.is_connect() || error.is_builder() {
                    true => ModelOutcome::Unreachable,
                    false => ModelOutcome::Cut,
                };
                (outcome, error_chain(&error.without_url()))
            }),
            () = tell.closed() => Err((ModelOutcome::Cut, "the client went".to_owned())),
            () = &mut deadline => Err((ModelOutcome::Cut, OUT_OF_TIME.to_owned())),
        };
        match answered {
            Ok(response) => {
                let (status, headers, is_stream) = head_of(&response);
                if let (Some(record), Some((_, kind))) =
                    (&mut self.record, headers.iter().find(|(name, _)| *name == "content-type"))
                {
                    record.content_type.clone_from(kind);
                }
                let (pipe, body) = mpsc::channel(AHEAD);
                let _ = tell.send(Ok(ModelReply { status, headers, body }));
                let meter = AnswerMeter::new(protocol, is_stream);
                self.is_held = !is_stream || self.record.is_some();
                self.pass(response, meter, &pipe, deadline).await;
            }
            Err((outcome, why)) => {
                tracing::info!(why, "a provider of models did not answer");
                self.settle(None, unsent(outcome, &why)).await;
                let _ = tell.send(Err(why));
            }
        }
    }

    /// Passes the answer on. Its last bytes follow what came of it: whoever has read the end of an answer finds it
    /// counted.
    async fn pass(
        &mut self,
        mut response: Response,
        meter: AnswerMeter,
        pipe: &mpsc::Sender<Result<Bytes, ModelCut>>,
        mut deadline: Deadline<'_>,
    ) {
        let (status, length) = (response.status().as_u16(), response.content_length());
        let within = self.record.as_ref().map(|record| record.within.clone());
        let (mut meter, mut is_told) = (Some(meter), true);
        let mut pipe = Pipe::new(pipe);
        let cut = loop {
            let next = tokio::select! {
                biased;
                () = pipe.closed() => break Some("the client went".to_owned()),
                () = &mut deadline => break Some(OUT_OF_TIME.to_owned()),
                next = response.chunk() => next,
                // Nothing more was there at once.
                () = task::yield_now(), if pipe.holds() => {
                    is_told = pipe.flush().await;
                    continue;
                }
            };
            let bytes = match next {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break None,
                Err(error) => break Some(error_chain(&error.without_url())),
            };
            self.first_ms.get_or_insert(self.clock.elapsed_ms());
            self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            if self.bytes > MAX_ANSWER_BYTES {
                break Some(format!("the answer has more than {MAX_ANSWER_BYTES} bytes"));
            }
            if self.leak.as_mut().is_some_and(|leak| leak.is_in(&bytes)) {
                break Some("the answer repeats the provider's key".to_owned());
            }
            if let Some(why) = self.is_too_much(bytes.len()) {
                break Some(why);
            }
            self.note(&bytes).await;
            if let Some(seen) = &mut meter {
                seen.push(&bytes);
                if seen.is_ended() || length == Some(self.bytes) {
                    pipe.flush().await;
                    if !self.close(status, meter.take(), None).await {
                        pipe.cut().await;
                        return;
                    }
                }
            }
            // A client that has gone is seen at the top.
            is_told = pipe.push(bytes).await;
        };
        is_told = pipe.flush().await && is_told;
        let is_cut = cut.is_some() && meter.is_some();
        let is_kept = self.close(status, meter.take(), cut).await;
        match within {
            _ if is_cut || !is_kept => pipe.cut().await,
            Some(within) if is_told && self.is_recorded => within.given(),
            _ => {}
        }
    }

    /// Why no more of an answer is taken, if this is too much.
    fn is_too_much(&mut self, bytes: usize) -> Option<String> {
        let on_record = self.record.as_ref().map_or(0, |record| record.body.len());
        if on_record.saturating_add(bytes) > MAX_RECORD_BYTES {
            return Some(format!(
                "the answer has more than {MAX_RECORD_BYTES} bytes, the most that goes on record"
            ));
        }
        (self.is_held && !self.room.more(bytes))
            .then(|| "the sandbox has too many large answers under way".to_owned())
    }

    /// Writes what came of it, the first time.
    /// `false`: the answer is not on record within its prompt, so that its end may not pass.
    async fn close(
        &mut self,
        status: u16,
        meter: Option<AnswerMeter>,
        cut: Option<String>,
    ) -> bool {
        let Some(meter) = meter else { return true };
        let passed = AnswerEnd { status, metered: meter.end(), cut };
        let judged = match self.counts {
            true => judge_count(passed),
            false => judge(passed, &self.price),
        };
        let kept = judged.outcome != ModelOutcome::Ok || self.put_on_record(status).await;
        self.settle(Some(status), judged).await;
        kept
    }

    /// Before the row of the call says what came of it: a worker that is lost between the two leaves the answer.
    async fn put_on_record(&mut self, status: u16) -> bool {
        let Some(record) = self.record.take() else { return true };
        let answer = StoredAnswer { status, content_type: record.content_type, body: record.body };
        let shape = record.within.shape();
        let key = AnswerKey { op_key: &record.within.op_key, shape: &shape };
        let planner = || self.ledger.planner();
        let kept =
            patiently(|| planner().answer_store(key, &record.sandbox, &self.op_key, &answer));
        let is_kept = kept.await.unwrap_or_else(|error| {
            tracing::error!(%error, call = %self.op_key, "an answer was not put on record");
            false
        });
        if is_kept {
            record.within.kept(answer.body.len());
        }
        self.is_recorded = is_kept;
        is_kept
    }

    async fn note(&mut self, bytes: &Bytes) {
        self.hash.push(bytes).await;
        if let Some(record) = &mut self.record {
            record.body.extend_from_slice(bytes);
        }
        if let Some(kept) = &mut self.kept {
            let room = MAX_KEPT_BYTES.saturating_sub(kept.len());
            kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    async fn settle(&mut self, status: Option<u16>, judged: CallVerdict) {
        let hash = self.hash.end().await.and_then(|hash| Digest::parse(&hex::encode(hash)).ok());
        let end = CallEnd {
            outcome: judged.outcome,
            status,
            usage: judged.usage,
            counted: judged.counted,
            answer: hash.as_ref().map(|hash| (hash, self.bytes)),
            first_ms: self.first_ms,
            wall_ms: self.clock.elapsed_ms(),
            why: judged.why.as_deref(),
        };
        let ledger = &self.ledger;
        let settled = patiently(|| ledger.models().call_settle(&self.op_key, &end)).await;
        if let Err(error) = settled {
            // The session's end says of it that nothing is known.
            tracing::error!(%error, call = %self.op_key, "what came of a call was not written");
        }
        if let Some(kept) = self.kept.take() {
            self.keep("answer", &kept).await;
        }
    }

    /// Keeps a body without the provider's key, which an answer may repeat.
    async fn keep(&self, side: &str, body: &[u8]) {
        let text: String =
            String::from_utf8_lossy(body.get(..MAX_KEPT_BYTES).unwrap_or(body)).replace('\0', " ");
        let text = match &self.key {
            Some(key) => text.replace(key.as_str(), "[redacted]"),
            None => text,
        };
        if let Err(error) = self.ledger.models().body_store(&self.op_key, side, &text).await {
            tracing::warn!(%error, call = %self.op_key, side, "a body was not kept");
        }
    }
}
