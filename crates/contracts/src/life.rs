//! States of a long-lived sandbox, and the one table of what may follow what.
//!
//! ```text
//! Requested -> Preparing -> Running -> Pausing -> Paused -> Requested (the next life), Ended
//! Requested, Preparing -> Ending, Ended (a first life that never ran), Paused (a later one: its files are still kept)
//! Running -> Ending, Ended     Pausing -> Ending, Running (the pause failed before its commit)     Ending -> Ended
//! ```
//! **`Ending` leads to `Ended` only: a kill is final.** The process that holds a sandbox, its row and the trigger of
//! `app.live_sandboxes` follow this table; a test of the ledger compares the SQL with it for every pair of states and of rows. A state
//! is computed from the row and from what is on record of its run (`app.lives`). The process that holds a sandbox is in `Pausing` while
//! it keeps the files, and in `Ending` once it has its order; the row follows with the pause's commit, or with the kill's record.

use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::live::LiveState;

named! {
    /// State of a long-lived sandbox.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum LifeState {
        /// A life is on record, and no worker has begun to make it.
        Requested = "requested",
        /// A worker makes it, or wipes what it made of a life that never ran.
        Preparing = "preparing",
        /// It answers, and its worker is alive.
        Running = "running",
        /// Its files are being kept; or they are on record, and its processes are still being wiped.
        Pausing = "pausing",
        /// Its files are kept, and its wipe is on record.
        Paused = "paused",
        /// It was killed or its time is over, or its worker is dead: only its end follows.
        Ending = "ending",
        /// It is over.
        Ended = "ended",
    }
}

/// Which life of its sandbox a life is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    /// It begins from a template. If it never runs, the sandbox ends.
    First,
    /// It begins with the files of a pause. If it never runs, the sandbox is paused again.
    Later,
}

/// Whether `to` may directly follow `from` in this life. A state does not follow itself.
#[must_use]
pub const fn may_follow(from: LifeState, to: LifeState, life: Life) -> bool {
    use LifeState::{Ended, Ending, Paused, Pausing, Preparing, Requested, Running};
    let is_first = matches!(life, Life::First);
    match (from, to) {
        (Requested | Preparing, Ended) => is_first,
        (Requested | Preparing, Paused) => !is_first,
        (Requested, Preparing | Ending)
        | (Preparing, Running | Ending)
        | (Running, Pausing | Ending | Ended)
        | (Pausing, Running | Paused | Ending)
        | (Paused, Requested | Ended)
        | (Ending, Ended) => true,
        _ => false,
    }
}

impl LifeState {
    /// The state that the API shows.
    #[must_use]
    pub const fn shown(self) -> LiveState {
        match self {
            Self::Requested | Self::Preparing => LiveState::Starting,
            Self::Running => LiveState::Running,
            Self::Pausing | Self::Paused => LiveState::Paused,
            Self::Ending | Self::Ended => LiveState::Ended,
        }
    }

    /// The states that the API shows as this one.
    pub fn shown_as(shown: LiveState) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |state| state.shown() == shown)
    }
}

/// The facts that decide the state of a sandbox: columns of its row, and questions to the tables of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LifeRow {
    /// `started_at`: this life has started.
    pub has_started: bool,
    /// `ending_at`: its kill is recorded.
    pub is_to_end: bool,
    /// `paused_at`: its files are kept, and this life ends or has ended.
    pub is_paused: bool,
    /// `ended_at`: the sandbox is over.
    pub has_ended: bool,
    /// `snapshot_id`: the files of its last pause.
    pub has_files: bool,
    /// Its run has a session: a worker began to make it.
    pub is_begun: bool,
    /// A task of its run has no answer: its wipe is not on record.
    pub is_open: bool,
    /// Its session is open and its worker is alive; `false` before the start.
    pub is_held: bool,
}

/// Which run the row names after an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunReference {
    /// The run of the same life.
    Same,
    /// The run of the next life.
    Next,
}

impl LifeRow {
    /// The state. A recorded kill decides before everything but the end.
    #[must_use]
    pub const fn state(self) -> LifeState {
        if self.has_ended {
            return LifeState::Ended;
        }
        let is_lost = self.has_started && !self.is_paused && !self.is_held;
        match (self.is_to_end || is_lost, self.is_paused, self.has_started) {
            (true, _, _) => LifeState::Ending,
            (_, true, _) if self.is_open => LifeState::Pausing,
            (_, true, _) => LifeState::Paused,
            (_, _, true) => LifeState::Running,
            _ if self.is_begun => LifeState::Preparing,
            _ => LifeState::Requested,
        }
    }

    /// Which life the row's run is.
    #[must_use]
    pub const fn life(self) -> Life {
        if self.has_files { Life::Later } else { Life::First }
    }

    const fn instants(self) -> [bool; 4] {
        [self.has_started, self.is_to_end, self.is_paused, self.has_ended]
    }

    /// Whether one update may turn this row into `next`. An update sets at most one instant of a life and clears none; the next life
    /// begins with its files only; a start leads to `Running`.
    #[must_use]
    pub fn may_become(self, next: Self, run: RunReference) -> bool {
        let (from, to) = (self.state(), next.state());
        if self.has_ended {
            return false;
        }
        if run == RunReference::Next {
            let is_new = next.instants() == [false; 4] && to == LifeState::Requested;
            return is_new && next.has_files && may_follow(from, to, self.life());
        }
        let both = || self.instants().into_iter().zip(next.instants());
        if both().any(|(before, after)| before && !after) {
            return false;
        }
        let is_pause = next.is_paused && !self.is_paused;
        if self.has_files != next.has_files && !is_pause {
            return false;
        }
        let is_start = next.has_started && !self.has_started;
        match both().filter(|(before, after)| before != after).count() {
            0 => true,
            1 => (!is_start || to == LifeState::Running) && may_follow(from, to, self.life()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LifeState::{Ended, Ending, Paused, Pausing, Preparing, Requested, Running};

    fn follows(from: LifeState, life: Life) -> Vec<LifeState> {
        LifeState::ALL.iter().copied().filter(|to| may_follow(from, *to, life)).collect()
    }

    #[test]
    fn only_a_life_that_never_ran_ends_as_its_sandbox_began() {
        for life in [Life::First, Life::Later] {
            let unmade = if life == Life::First { Ended } else { Paused };
            let mut of_requested = follows(Requested, life);
            of_requested.sort_by_key(|state| *state == unmade);
            assert_eq!(of_requested, [Preparing, Ending, unmade]);
            let mut of_preparing = follows(Preparing, life);
            of_preparing.sort_by_key(|state| *state == unmade);
            assert_eq!(of_preparing, [Running, Ending, unmade]);
            assert_eq!(follows(Running, life), [Pausing, Ending, Ended]);
            assert_eq!(follows(Pausing, life), [Running, Paused, Ending]);
            assert_eq!(follows(Paused, life), [Requested, Ended]);
            assert_eq!(follows(Ending, life), [Ended]);
            assert!(follows(Ended, life).is_empty());
        }
    }

    #[test]
    fn every_state_is_reached_and_what_ends_does_not_come_back() {
        let lives = [Life::First, Life::Later];
        let reached = |of: LifeState| {
            let (mut all, mut next) = (vec![of], vec![of]);
            while let Some(state) = next.pop() {
                for to in lives.iter().flat_map(|life| follows(state, *life)) {
                    if !all.contains(&to) {
                        all.push(to);
                        next.push(to);
                    }
                }
            }
            all
        };
        assert_eq!(reached(Requested).len(), LifeState::ALL.len());
        assert_eq!(reached(Ending), [Ending, Ended]);
        for state in LifeState::ALL {
            assert!(reached(*state).contains(&Ended), "{state:?}");
            assert!(lives.iter().all(|life| !may_follow(*state, *state, *life)), "{state:?}");
        }
    }

    #[test]
    fn each_state_is_shown_as_one_and_each_shown_one_is_found_again() {
        for shown in LiveState::ALL {
            let states: Vec<_> = LifeState::shown_as(*shown).collect();
            assert!(!states.is_empty() && states.iter().all(|state| state.shown() == *shown));
        }
    }

    #[test]
    fn a_row_says_which_state_its_sandbox_is_in() {
        let running = LifeRow {
            has_started: true,
            is_begun: true,
            is_open: true,
            is_held: true,
            ..LifeRow::default()
        };
        let paused = LifeRow { is_paused: true, has_files: true, ..running };
        for (row, state) in [
            (LifeRow::default(), Requested),
            (LifeRow { is_begun: true, ..LifeRow::default() }, Preparing),
            (running, Running),
            (LifeRow { is_held: false, ..running }, Ending),
            (LifeRow { is_to_end: true, ..running }, Ending),
            (paused, Pausing),
            // Its worker was lost while its processes were wiped: its files are kept all the same.
            (LifeRow { is_held: false, ..paused }, Pausing),
            (LifeRow { is_to_end: true, ..paused }, Ending),
            (LifeRow { is_open: false, is_held: false, ..paused }, Paused),
            (LifeRow { has_ended: true, ..paused }, Ended),
        ] {
            assert_eq!(row.state(), state, "{row:?}");
        }
    }

    #[test]
    fn a_row_is_changed_one_instant_at_a_time() {
        let preparing = LifeRow { is_begun: true, is_open: true, ..LifeRow::default() };
        let running = LifeRow { has_started: true, is_held: true, ..preparing };
        let pausing = LifeRow { is_paused: true, has_files: true, ..running };
        let paused = LifeRow { is_open: false, is_held: false, ..pausing };
        let requested = LifeRow { has_files: true, ..LifeRow::default() };
        let same = |row: LifeRow, next| row.may_become(next, RunReference::Same);
        assert!(same(preparing, running) && same(running, pausing) && same(running, running));
        assert!(!same(preparing, LifeRow { is_held: false, ..running }), "a dead worker's start");
        assert!(!same(preparing, pausing) && !same(running, preparing));
        assert!(!same(running, LifeRow { has_files: true, ..running }), "files without a pause");
        assert!(same(pausing, LifeRow { is_to_end: true, ..pausing }));
        assert!(!same(
            LifeRow { is_to_end: true, ..running },
            LifeRow { is_to_end: true, ..pausing }
        ));
        assert!(paused.may_become(requested, RunReference::Next));
        assert!(!pausing.may_become(requested, RunReference::Next));
        assert!(!same(paused, requested) && !paused.may_become(paused, RunReference::Next));
    }
}
