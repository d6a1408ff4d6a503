//! Whether a turn moves. Silence is a stall; so are heartbeats, retries, and one call of a tool again and again.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::events::Event;

/// The terminal error's code of a run whose turn stalled to the end of its policy.
pub const OC_TIMEOUT: &str = "oc_timeout";
/// Distinct calls that are remembered in a turn: beyond it new ones count as repeated.
const MAX_CALLS: usize = 10_000;

/// How long a turn may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Time without progress, ms.
    pub silent_ms: u64,
    /// How often one call of a tool with one input counts as progress in a turn.
    pub same_call: u32,
}

impl Default for Patience {
    fn default() -> Self {
        // A model that thinks is silent for minutes at most; a test command may be repeated after each edit.
        Self { silent_ms: 300_000, same_call: 20 }
    }
}

/// What a stalled turn did last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// The last progress, in words.
    pub last: String,
    /// Time since then, ms.
    pub silent_ms: u64,
    /// The tool that is called with one input again and again, and how often.
    pub looped: Option<(String, u32)>,
    /// What came after the last progress and did not count: its kind, and how many.
    pub since: Option<(String, u64)>,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no progress for {} ms after {}", self.silent_ms, self.last)?;
        if let Some((tool, times)) = &self.looped {
            write!(f, "; {tool} was called {times} times with the same input")?;
        }
        if let Some((kind, times)) = &self.since {
            write!(f, "; since then {times} events, the last one {kind}")?;
        }
        Ok(())
    }
}

/// Whether a turn moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It does, or its patience is not over.
    Moving,
    /// It waits for a person, at a gate: this is not a stall.
    Held,
    /// It does not.
    Stalled(Diagnosis),
}

/// Follows the events of one turn. The caller passes the clock's milliseconds.
#[derive(Debug)]
pub struct Detector {
    patience: Patience,
    moved_ms: u64,
    last: String,
    seen: HashSet<String>,
    calls: HashMap<(String, String), u32>,
    looped: Option<(String, u32)>,
    since: Option<(String, u64)>,
    held: bool,
}

impl Detector {
    /// Begins with the prompt that is sent now.
    #[must_use]
    pub fn new(patience: Patience, now_ms: u64) -> Self {
        let (seen, calls, last) = (HashSet::new(), HashMap::new(), "the prompt".to_owned());
        Self {
            patience,
            moved_ms: now_ms,
            last,
            seen,
            calls,
            looped: None,
            since: None,
            held: false,
        }
    }

    /// Takes an event of the turn's session.
    pub fn event(&mut self, event: &Event, now_ms: u64) {
        let is_progress = match event {
            // A loop may talk between its calls.
            Event::Text => self.looped.is_none(),
            Event::Call { id, tool, input } => self.is_fresh(id, tool, input),
            Event::Asked(_) | Event::Idle => true,
            Event::Session(_) | Event::Other(_) => false,
        };
        if is_progress {
            (self.moved_ms, self.last, self.since) = (now_ms, event.to_string(), None);
        } else {
            let count = self.since.as_ref().map_or(0, |(_, count)| *count);
            self.since = Some((event.to_string(), count.saturating_add(1)));
        }
    }

    fn is_fresh(&mut self, id: &str, tool: &str, input: &str) -> bool {
        // A command that prints sends its part again and again: one call.
        if self.seen.contains(id) {
            return self.looped.is_none();
        }
        if self.seen.len() < MAX_CALLS {
            self.seen.insert(id.to_owned());
        }
        let key = (tool.to_owned(), input.to_owned());
        if self.calls.len() >= MAX_CALLS && !self.calls.contains_key(&key) {
            return false;
        }
        let times = self.calls.entry(key).or_insert(0);
        *times = times.saturating_add(1);
        let is_fresh = *times <= self.patience.same_call;
        self.looped = (!is_fresh).then(|| (tool.to_owned(), *times));
        is_fresh
    }

    /// A gate opened: the turn waits for a person.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// The gate was answered: patience begins anew.
    pub fn release(&mut self, now_ms: u64) {
        (self.held, self.moved_ms) = (false, now_ms);
    }

    /// Whether the turn moves at this moment.
    #[must_use]
    pub fn verdict(&self, now_ms: u64) -> Verdict {
        let silent_ms = now_ms.saturating_sub(self.moved_ms);
        if self.held {
            return Verdict::Held;
        }
        if silent_ms < self.patience.silent_ms {
            return Verdict::Moving;
        }
        let (last, looped, since) = (self.last.clone(), self.looped.clone(), self.since.clone());
        Verdict::Stalled(Diagnosis { last, silent_ms, looped, since })
    }
}

/// What is done about a stalled turn, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutStep {
    /// Ends the daemon's turn.
    Abort,
    /// Puts the working tree back to what it was before the turn: ours does, not the daemon's revert.
    RollBack,
    /// Asks for less, with new ids.
    AskSmaller,
    /// Ends the run with [`OC_TIMEOUT`].
    End,
}

impl TimeoutStep {
    /// The next step; `smaller_left` counts the smaller prompts that may still be sent. A tree is rolled back before
    /// anything is asked again and before the end: a half applied one never stays.
    #[must_use]
    pub fn next(self, smaller_left: u32) -> Self {
        match self {
            Self::Abort => Self::RollBack,
            Self::RollBack if smaller_left > 0 => Self::AskSmaller,
            Self::AskSmaller => Self::Abort,
            Self::RollBack | Self::End => Self::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: u64, input: &str) -> Event {
        Event::Call { id: id.to_string(), tool: "bash".to_owned(), input: input.to_owned() }
    }

    fn patience() -> Patience {
        Patience { silent_ms: 100, same_call: 3 }
    }

    #[test]
    fn heartbeats_are_silence_and_words_are_progress() {
        let mut turn = Detector::new(patience(), 0);
        turn.event(&Event::Text, 50);
        assert_eq!(turn.verdict(149), Verdict::Moving);
        for at in 50..150 {
            turn.event(&Event::Other("server.heartbeat".to_owned()), at);
        }
        let Verdict::Stalled(why) = turn.verdict(150) else { panic!("it is silent") };
        assert_eq!(why.silent_ms, 100);
        assert_eq!(why.since, Some(("server.heartbeat".to_owned(), 100)));
        assert!(why.to_string().starts_with("no progress for 100 ms after words"), "{why}");
    }

    #[test]
    fn a_tool_called_500_times_with_one_input_is_a_stall_and_talk_between_does_not_help() {
        let mut turn = Detector::new(patience(), 0);
        for at in 1..=500 {
            turn.event(&call(at, "ls"), at);
            turn.event(&Event::Text, at);
        }
        let Verdict::Stalled(why) = turn.verdict(500) else { panic!("it loops") };
        assert_eq!(why.looped, Some(("bash".to_owned(), 500)));
        assert_eq!(why.silent_ms, 497);
        turn.event(&call(501, "make"), 501);
        assert_eq!(turn.verdict(600), Verdict::Moving, "another input is progress");
    }

    #[test]
    fn a_command_that_prints_moves() {
        let mut turn = Detector::new(patience(), 0);
        for at in 1..=500 {
            turn.event(&call(7, "make"), at);
        }
        assert_eq!(turn.verdict(550), Verdict::Moving);
    }

    #[test]
    fn two_calls_in_turn_are_a_loop_too() {
        let mut turn = Detector::new(patience(), 0);
        for at in 1..=300 {
            turn.event(&call(at, if at % 2 == 0 { "a" } else { "b" }), at);
        }
        assert!(matches!(turn.verdict(300), Verdict::Stalled(_)));
    }

    #[test]
    fn a_wait_at_a_gate_is_not_a_stall() {
        let mut turn = Detector::new(patience(), 0);
        turn.hold();
        assert_eq!(turn.verdict(1_000_000), Verdict::Held);
        turn.release(1_000_000);
        assert_eq!(turn.verdict(1_000_099), Verdict::Moving);
        assert!(matches!(turn.verdict(1_000_100), Verdict::Stalled(_)));
    }

    #[test]
    fn a_stalled_turn_is_rolled_back_before_anything_else_and_ends() {
        let (mut step, mut left, mut seen) = (TimeoutStep::Abort, 1, vec![TimeoutStep::Abort]);
        while step != TimeoutStep::End {
            let next = step.next(left);
            left -= u32::from(next == TimeoutStep::AskSmaller);
            seen.push(next);
            step = next;
        }
        use TimeoutStep::{Abort, AskSmaller, End, RollBack};
        assert_eq!(seen, [Abort, RollBack, AskSmaller, Abort, RollBack, End]);
    }
}
