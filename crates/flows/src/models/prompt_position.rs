//! Calls within a prompt to OpenCode: what a provider answered is on record before the daemon reads its end, and a sandbox
//! that goes on for a lost one is given it instead of asking again.
//!
//! ```text
//! call -> shape (model, roles since the prompt, answers given there) -> on record? -> the record, nothing is sent
//!                                                                       \-> sent, kept before its last bytes pass
//! ```
//! What was given whole and is asked for again is another call: an answer that the daemon could not use is not served
//! for ever, and a command that asks first takes no position of the daemon's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cofferdam_contracts::canonical;
use cofferdam_contracts::id::Digest;
use cofferdam_ledger::planner::StoredAnswer;
use cofferdam_sandbox::ModelReply;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Calls that one prompt may take: a turn with more of them has no end.
const MAX_STEPS: usize = 300;
/// Bytes of the answers that one prompt puts on record: 300 of them with 200 KiB each.
const MAX_ON_RECORD: usize = 64 << 20;
/// Answers on record that are in memory at a time: a daemon asks for one after the other.
const READ_AT_ONCE: usize = 4;
/// Bytes of a piece of an answer on record.
const PIECE: usize = 64 * 1024;

/// The prompt that calls belong to now.
#[derive(Debug)]
struct PromptState {
    op_key: Digest,
    /// It was answered before: nothing may be sent.
    is_replayed: bool,
    steps: usize,
    /// Answers that the agent was given, by the position of their calls: what it asks for again is another call.
    given: BTreeMap<Digest, u32>,
    on_record: usize,
}

type Current = Arc<Mutex<Option<PromptState>>>;

/// Which prompt the calls of one sandbox belong to.
#[derive(Debug)]
pub struct Prompts {
    now: Current,
    /// Calls that wait at a gate.
    asking: AtomicUsize,
    reading: Arc<Semaphore>,
}

impl Default for Prompts {
    fn default() -> Self {
        let reading = Arc::new(Semaphore::new(READ_AT_ONCE));
        Self { now: Current::default(), asking: AtomicUsize::new(0), reading }
    }
}

/// The position of one call.
#[derive(Debug, Clone)]
pub(crate) struct PromptPosition {
    pub op_key: Digest,
    pub is_replayed: bool,
    place: Digest,
    /// How many answers were given at this position before.
    n: u32,
    now: Current,
}

fn held(now: &Current) -> MutexGuard<'_, Option<PromptState>> {
    // A poisoned lock only means that somebody panicked beside it.
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PromptPosition {
    /// What its answer is on record under.
    pub(crate) fn shape(&self) -> Digest {
        shape_at(&self.place, self.n)
    }

    /// What an answer may be on record under, the likeliest first: where nothing may be sent, one that was given
    /// before serves again.
    pub(crate) fn shapes(&self) -> Vec<Digest> {
        let last = if self.is_replayed { 0 } else { self.n };
        (last..=self.n).rev().map(|n| shape_at(&self.place, n)).collect()
    }

    /// The agent has the whole answer.
    pub(crate) fn given(&self) {
        if let Some(now) = held(&self.now).as_mut().filter(|now| now.op_key == self.op_key) {
            let given = now.given.entry(self.place.clone()).or_default();
            *given = (*given).max(self.n.saturating_add(1));
        }
    }

    /// So many bytes went on record.
    pub(crate) fn kept(&self, bytes: usize) {
        if let Some(now) = held(&self.now).as_mut().filter(|now| now.op_key == self.op_key) {
            now.on_record = now.on_record.saturating_add(bytes);
        }
    }
}

/// The shape of a call at whose position so many answers were given.
fn shape_at(place: &Digest, n: u32) -> Digest {
    match n {
        0 => place.clone(),
        // A digest and a number always have a form.
        n => canonical::digest(&(place, n)).unwrap_or_else(|_| place.clone()),
    }
}

/// A call that waits at a gate, until it is dropped.
#[derive(Debug)]
pub(crate) struct AskGuard<'a>(&'a AtomicUsize);

impl Drop for AskGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Prompts {
    /// From now on calls belong to this prompt. Of one that is replayed, nothing is sent: its record answers.
    pub fn begin(&self, op_key: &Digest, is_replayed: bool) {
        let (given, op_key) = (BTreeMap::new(), op_key.clone());
        self.set(Some(PromptState { op_key, is_replayed, steps: 0, given, on_record: 0 }));
    }

    /// From now on calls belong to none, and are refused.
    pub fn end(&self) {
        self.set(None);
    }

    fn set(&self, now: Option<PromptState>) {
        *held(&self.now) = now;
    }

    /// Whether a call waits for a person: then silence is no stall.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Acquire) > 0
    }

    pub(crate) fn asking(&self) -> AskGuard<'_> {
        self.asking.fetch_add(1, Ordering::AcqRel);
        AskGuard(&self.asking)
    }

    /// The position of a call, or why it has none.
    pub(crate) fn place(&self, body: &[u8]) -> Result<PromptPosition, &'static str> {
        let place = shape_of(body);
        let mut current = held(&self.now);
        let now = current.as_mut().ok_or("no prompt is under way")?;
        now.steps += 1;
        if now.steps > MAX_STEPS {
            return Err("the prompt has taken as many calls as one may");
        }
        if now.on_record > MAX_ON_RECORD {
            return Err("the prompt's answers fill what one may put on record");
        }
        let place = place.ok_or("the call is not a conversation")?;
        let n = now.given.get(&place).copied().unwrap_or(0);
        let (op_key, is_replayed) = (now.op_key.clone(), now.is_replayed);
        Ok(PromptPosition { op_key, is_replayed, place, n, now: Arc::clone(&self.now) })
    }

    /// A turn to read an answer on record, until its agent has it.
    pub(crate) async fn reading(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.reading).acquire_owned().await.ok()
    }
}

/// The model and the roles of the messages since the last one of a user: what stays the same when a turn is driven again,
/// while dates, paths and what commands print do not.
fn shape_of(body: &[u8]) -> Option<Digest> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let roles: Vec<&str> =
        body.get("messages")?.as_array()?.iter().filter_map(|m| m.get("role")?.as_str()).collect();
    let since = roles.iter().rposition(|role| *role == "user")?;
    canonical::digest(&(body.get("model")?, roles.get(since..)?)).ok()
}

/// An answer that is on record, as the agent reads it; `turn` ends when it has been passed on.
pub(crate) fn reply_kept(
    kept: StoredAnswer,
    within: PromptPosition,
    turn: Option<OwnedSemaphorePermit>,
) -> ModelReply {
    let StoredAnswer { status, content_type, body: mut whole } = kept;
    let (pipe, body) = mpsc::channel(1);
    if content_type.starts_with("text/event-stream") {
        // What ends the last event may have come after the record was made.
        whole.extend_from_slice(b"\n\n");
    }
    tokio::spawn(async move {
        let mut whole = Bytes::from(whole);
        while !whole.is_empty() {
            let piece = whole.split_to(whole.len().min(PIECE));
            if pipe.send(Ok(piece)).await.is_err() {
                return;
            }
        }
        within.given();
        drop(turn);
    });
    ModelReply { status, headers: vec![("content-type", content_type)], body }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(roles: &[&str], text: &str) -> Vec<u8> {
        let messages: Vec<Value> =
            roles.iter().map(|role| json!({"role": role, "content": text})).collect();
        json!({"model": "m", "messages": messages}).to_string().into_bytes()
    }

    #[test]
    fn the_shape_of_a_call_is_its_place_in_the_turn() {
        let first = shape_of(&call(&["system", "user"], "today")).unwrap();
        assert_eq!(
            shape_of(&call(&["system", "user", "assistant", "user"], "later")),
            Some(first.clone())
        );
        let second = shape_of(&call(&["system", "user", "assistant", "tool"], "x")).unwrap();
        assert_ne!(first, second);
        assert_eq!(shape_of(b"{}"), None);
        assert_eq!(shape_of(&call(&["system"], "x")), None);
    }

    #[test]
    fn what_was_given_and_is_asked_for_again_is_another_call() {
        let prompts = Prompts::default();
        let key = canonical::digest_bytes(b"k");
        let (body, next) = (call(&["user"], "x"), call(&["user", "assistant", "tool"], "x"));
        prompts.begin(&key, false);
        let first = prompts.place(&body).unwrap();
        let at_once = prompts.place(&body).unwrap();
        assert_eq!((first.shape(), first.shapes().len()), (at_once.shape(), 1));
        // Its answer broke off: the record serves it again.
        assert_eq!(prompts.place(&body).unwrap().shape(), first.shape());
        first.given();
        at_once.given();
        let second = prompts.place(&body).unwrap();
        assert_ne!(
            second.shape(),
            first.shape(),
            "a command that asks first takes no place of the daemon's"
        );
        assert_ne!(second.shape(), prompts.place(&next).unwrap().shape());
        second.given();
        let third = prompts.place(&body).unwrap().shape();
        // Another daemon comes to the same positions.
        prompts.begin(&key, true);
        assert_eq!(prompts.place(&body).unwrap().shape(), first.shape());
        for shape in [second.shape(), third] {
            prompts.place(&body).unwrap().given();
            assert_eq!(prompts.place(&body).unwrap().shape(), shape);
        }
        let again = prompts.place(&body).unwrap().shapes();
        assert_eq!(
            (again.len(), again.last()),
            (3, Some(&first.shape())),
            "the last one serves again"
        );
    }

    #[test]
    fn the_record_of_a_prompt_is_bounded() {
        let prompts = Prompts::default();
        let body = call(&["user"], "x");
        prompts.begin(&canonical::digest_bytes(b"k"), false);
        prompts.place(&body).unwrap().kept(MAX_ON_RECORD);
        prompts.place(&body).unwrap().kept(1);
        assert!(prompts.place(&body).unwrap_err().contains("on record"));
    }

    #[test]
    fn calls_between_prompts_and_without_end_are_refused() {
        let prompts = Prompts::default();
        let body = call(&["user"], "x");
        assert!(prompts.place(&body).is_err());
        prompts.begin(&canonical::digest_bytes(b"k"), false);
        for _ in 0..MAX_STEPS {
            assert!(!prompts.place(&body).unwrap().is_replayed);
        }
        assert!(prompts.place(&body).is_err());
        prompts.end();
        assert!(prompts.place(&body).is_err());
    }

    #[test]
    fn a_call_at_a_gate_is_seen_until_it_goes_on() {
        let prompts = Prompts::default();
        let guard = prompts.asking();
        assert!(prompts.is_asking());
        drop(guard);
        assert!(!prompts.is_asking());
    }
}
