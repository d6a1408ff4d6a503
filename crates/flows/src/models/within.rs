//! Calls within a prompt to OpenCode: what a provider answered is on record before the daemon reads its end, and a sandbox
//! that goes on for a lost one is given it instead of asking again.
//!
//! ```text
//! call -> shape (model, roles since the prompt) -> on record? -> the record, nothing is sent
//!                                                  \-> sent, and kept before its last bytes pass
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use cofferdam_contracts::canonical;
use cofferdam_contracts::id::Digest;
use cofferdam_ledger::planner::KeptAnswer;
use cofferdam_sandbox::ModelReply;
use serde_json::Value;
use tokio::sync::mpsc;

/// Calls that one prompt may take: a turn with more of them has no end.
const MAX_STEPS: usize = 300;

/// The prompt that calls belong to now.
#[derive(Debug, Clone)]
struct Now {
    op_key: Digest,
    /// It was answered before: nothing may be sent.
    is_replayed: bool,
    steps: usize,
}

/// Where the calls of one sandbox belong.
#[derive(Debug, Default)]
pub(crate) struct Prompts {
    now: Mutex<Option<Now>>,
    /// Calls that wait at a gate.
    asking: AtomicUsize,
}

/// The place of one call.
#[derive(Debug, Clone)]
pub(crate) struct Within {
    pub op_key: Digest,
    pub shape: Digest,
    pub is_replayed: bool,
}

/// A call that waits at a gate, until it is dropped.
#[derive(Debug)]
pub(crate) struct AskingGuard<'a>(&'a AtomicUsize);

impl Drop for AskingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Prompts {
    /// From now on calls belong to this prompt.
    pub(crate) fn begin(&self, op_key: &Digest, is_replayed: bool) {
        self.set(Some(Now { op_key: op_key.clone(), is_replayed, steps: 0 }));
    }

    /// From now on calls belong to none, and are refused.
    pub(crate) fn end(&self) {
        self.set(None);
    }

    fn set(&self, now: Option<Now>) {
        // A poisoned lock only means that somebody panicked beside it.
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Whether a call waits for a person: then silence is no stall.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Acquire) > 0
    }

    pub(crate) fn asking(&self) -> AskingGuard<'_> {
        self.asking.fetch_add(1, Ordering::AcqRel);
        AskingGuard(&self.asking)
    }

    /// The place of a call, or why it has none.
    pub(crate) fn place(&self, body: &[u8]) -> Result<Within, &'static str> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now.as_mut().ok_or("no prompt is under way")?;
        now.steps += 1;
        if now.steps > MAX_STEPS {
            return Err("the prompt has taken as many calls as one may");
        }
        let shape = shape_of(body).ok_or("the call is not a conversation")?;
        Ok(Within { op_key: now.op_key.clone(), shape, is_replayed: now.is_replayed })
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

/// An answer that is on record, as the agent reads it.
pub(crate) fn reply_kept(kept: KeptAnswer) -> ModelReply {
    let (pipe, body) = mpsc::channel(2);
    let _ = pipe.try_send(Ok(Bytes::from(kept.body)));
    if kept.content_type.starts_with("text/event-stream") {
        // What ends the last event may have come after the record was made.
        let _ = pipe.try_send(Ok(Bytes::from_static(b"\n\n")));
    }
    ModelReply { status: kept.status, headers: vec![("content-type", kept.content_type)], body }
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
