//! What became of a prompt, decided from what the daemon says.

use crate::error::TurnError;
use crate::reply::{Answer, Conclusion, Reply};

/// What the daemon says about a prompt. `busy` was read before the rest: what ended in between reads as busy, never
/// as idle and unfinished.
#[derive(Debug, Clone, Default)]
pub struct PromptProgress {
    /// The session has a turn that goes on.
    pub busy: bool,
    /// The prompt's message exists.
    pub admitted: bool,
    /// The messages that answer it, in order.
    pub replies: Vec<Reply>,
}

/// What to do with a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadbackAction {
    /// The daemon does not have it: send it.
    NotAdmitted,
    /// Answered: record the answer, send nothing.
    Finished(Answer),
    /// Ended with an error: record it; the next attempt has new ids.
    Failed(TurnError),
    /// Its turn goes on: open the events, then read back once more, then follow them.
    Running,
    /// Unfinished and idle: send the same ids again. At most one step of the provider doubles.
    Unknown,
}

/// The decision. A finished message of a busy session is a step with more to come, not an answer.
#[must_use]
pub fn read_back(seen: &PromptProgress) -> ReadbackAction {
    if !seen.admitted {
        return ReadbackAction::NotAdmitted;
    }
    if seen.busy {
        return ReadbackAction::Running;
    }
    match seen.replies.last().map(Reply::conclusion) {
        Some(Conclusion::Answered(answer)) => ReadbackAction::Finished(answer),
        Some(Conclusion::Failed(error)) => ReadbackAction::Failed(error),
        Some(Conclusion::Open) | None => ReadbackAction::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn reply(more: Value) -> Reply {
        let mut info = json!({"id": "msg_a", "role": "assistant", "parentID": "msg_p"});
        info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({"info": info, "parts": []})).unwrap()
    }

    fn decided(busy: bool, replies: &[Value]) -> ReadbackAction {
        let replies = replies.iter().cloned().map(reply).collect();
        read_back(&PromptProgress { busy, admitted: true, replies })
    }

    #[test]
    fn each_state_of_a_turn_has_its_decision() {
        let stop = json!({"finish": "stop", "time": {"completed": 2}});
        let step = json!({"finish": "tool-calls", "time": {"completed": 1}});
        assert_eq!(read_back(&PromptProgress::default()), ReadbackAction::NotAdmitted);
        assert_eq!(decided(false, &[]), ReadbackAction::Unknown);
        assert_eq!(decided(true, &[]), ReadbackAction::Running);
        assert_eq!(decided(false, std::slice::from_ref(&step)), ReadbackAction::Unknown);
        assert_eq!(
            decided(false, &[json!({"finish": "stop"})]),
            ReadbackAction::Unknown,
            "not completed"
        );
        assert!(matches!(decided(false, &[step, stop.clone()]), ReadbackAction::Finished(_)));
        assert_eq!(decided(true, &[stop]), ReadbackAction::Running, "more steps may come");
        let failed = json!({"error": {"name": "APIError", "data": {"message": "no"}}});
        assert!(
            matches!(decided(false, &[failed]), ReadbackAction::Failed(e) if e.name == "APIError")
        );
        let cut = json!({"finish": "length", "time": {"completed": 2}});
        assert!(matches!(decided(false, &[cut]), ReadbackAction::Failed(e) if e.name == "Finish"));
        let structured = json!({"finish": "tool-calls", "structured": {"a": 1}});
        assert!(
            matches!(decided(false, &[structured]), ReadbackAction::Finished(a) if a.structured.is_some())
        );
    }

    #[test]
    fn a_refused_tool_ends_the_turn() {
        let state =
            json!({"status": "error", "error": "The user rejected permission to use this tool."});
        let whole = json!({"info": {"id": "a", "role": "assistant", "finish": "tool-calls", "time": {"completed": 1}},
            "parts": [{"type": "tool", "tool": "bash", "state": state}]});
        let replies = vec![serde_json::from_value(whole).unwrap()];
        let decided = read_back(&PromptProgress { busy: false, admitted: true, replies });
        assert!(matches!(decided, ReadbackAction::Failed(e) if e.name == "Rejected"));
    }
}
