//! The states of a layer, and the one function that says what follows. Pure: the layer's task (`task`) does it.
//!
//! The first row that fits holds; the test of this module compares it with [`next`] for every state, loan and event. `*` is any,
//! `=` is as before, `-` is nothing. `!` marks the failure of the last sealer that is tried.
//!
//! ```text
//! | state              | loan                 | event      | state      | loan     | actions                   |
//! | Ending|Kept|Over   | *                    | Lend|Unfit | =          | =        | File                      |
//! | *                  | Asked|Lent|Recalled  | Lend|Unfit | =          | =        | Busy                      |
//! | *                  | Free                 | Unfit      | =          | =        | File                      |
//! | Sealing            | Free                 | Lend       | =          | Asked    | Hold                      |
//! | Waiting            | Free                 | Lend       | =          | Asked    | Retry                     |
//! | Settling           | Free                 | Lend       | =          | Asked    | -                         |
//! | Resting|Unsealable | Free                 | Lend       | =          | Lent     | Lend                      |
//! | *                  | Recalled             | Back       | Ending     | Free     | EndSealer? Look           |
//! | Sealing            | Lent                 | Back       | =          | Free     | GoOn                      |
//! | Sealed             | Lent                 | Back       | Settling   | Free     | Settle                    |
//! | Resting            | Lent                 | Back       | Ending     | Free     | Look                      |
//! | Waiting|Unsealable | Lent                 | Back       | =          | Free     | -                         |
//! | *                  | Lent|Recalled        | Begun      | Over       | Free     | EndSealer? NextLife       |
//! | Ending|Over        | *                    | End        | =          | =        | -                         |
//! | Kept               | *                    | End        | =          | =        | Fail                      |
//! | *                  | Lent|Recalled        | End        | =          | Recalled | -                         |
//! | *                  | Asked                | End        | Ending     | Free     | File EndSealer? Look      |
//! | *                  | Free                 | End        | Ending     | Free     | EndSealer? Look           |
//! | Sealing            | Asked                | Held       | =          | Lent     | Lend                      |
//! | Sealing            | Free                 | Held       | =          | =        | GoOn                      |
//! | Sealing            | Free|Asked           | Sealed     | Settling   | =        | Settle                    |
//! | Sealing            | Lent|Recalled        | Sealed     | Sealed     | =        | -                         |
//! | Sealing            | *                    | Excused    | =          | =        | NotYet                    |
//! | Sealing            | *                    | Silent     | Waiting    | =        | EndSealer Retry           |
//! | Sealing            | Asked                | Silent!    | Unsealable | Lent     | EndSealer Unsealable Lend |
//! | Sealing            | *                    | Silent!    | Unsealable | =        | EndSealer Unsealable      |
//! | Waiting            | *                    | Due        | =          | =        | Start                     |
//! | Waiting            | *                    | Started    | Sealing    | =        | -                         |
//! | Waiting            | *                    | Unstarted  | =          | =        | Retry                     |
//! | Waiting            | Asked                | Unstarted! | Unsealable | Lent     | Unsealable Lend           |
//! | Waiting            | *                    | Unstarted! | Unsealable | =        | Unsealable                |
//! | Settling           | Asked                | Rests      | Resting    | Lent     | Lend                      |
//! | Settling           | *                    | Rests      | Resting    | =        | -                         |
//! | Settling           | Asked                | Ended      | Over       | Free     | File                      |
//! | Settling           | *                    | Ended      | Over       | =        | -                         |
//! | Settling           | Asked                | InUse      | Ending     | Free     | File Look                 |
//! | Settling           | *                    | InUse      | Ending     | =        | Look                      |
//! | Resting|Unsealable | Free                 | Expired    | Ending     | =        | Look                      |
//! | Ending|Kept        | *                    | Gone       | Over       | =        | Ended                     |
//! | Ending             | *                    | Used       | Kept       | =        | Fail InUse LookLater      |
//! | Kept               | *                    | Used       | =          | =        | LookLater                 |
//! | Kept               | *                    | Due        | =          | =        | Look                      |
//! | *                  | *                    | *          | =          | =        | -                         |
//! ```
//! `Sealed` is only with `Lent` and `Recalled`, `Settling` only with `Free` and `Asked`. With `Resting` and `Unsealable` no life
//! waits: the layer is lent at once. What ends (`Ending`, `Kept`, `Over`) is `Free`.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ledger::snapshots::SealedFile;

use crate::layer::loan::{EndReply, LoanReply};
use crate::layer::retention::LayerRetention;
use crate::layer::retry::Tries;
use crate::layer::sealer::SealInput;
use crate::layer::sealer::line::Line;

/// What becomes of a layer's files.
pub(super) enum State {
    /// A sealer has the layer.
    Sealing(Line, Tries),
    /// A sealer failed, and the next one is due later.
    Waiting(Tries),
    /// A life has a layer that is sealed. Its sealer waits until the file has its name.
    Sealed(SealedFile, Line),
    /// The task names the file and finds out whether the layer may be retained. What is asked meanwhile is heard afterwards.
    Settling,
    /// The files are sealed and on record, and the layer stays for the next life.
    Resting(LayerRetention),
    /// No further sealer is tried: the layer stays as long as this process runs.
    Unsealable,
    /// The layer is given up, and the task looks whether a process keeps it. Its retention's memory and the callers that wait for the end.
    Ending(Option<LayerRetention>, Vec<EndReply>),
    /// A process keeps the layer that was given up: its retention's memory, and which process.
    Kept(Option<LayerRetention>, String),
    /// The layer has ended or is the next life's. Callers that wait for the end are answered once the task holds nothing of it.
    Over(Vec<EndReply>),
}

/// Who has the layer.
pub(super) enum LoanState {
    /// The layer's own task has it, and no life waits for it.
    Free,
    /// Its task; a life waits for it.
    Asked(LoanReply),
    /// A life that has not begun.
    Lent,
    /// A life that has not begun, of an erased snapshot: the layer ends when it is given back.
    Recalled(Vec<EndReply>),
}

/// What a layer's task hears.
pub(super) enum Event {
    /// A life asks for the layer. Without `has_ids` the ids of its files are another sandbox's by now.
    Lend { reply: LoanReply, has_ids: bool },
    /// The life that has the layer did not begin.
    Back,
    /// The life that has the layer is on record as running.
    Begun,
    /// The snapshot is erased.
    End(EndReply),
    /// The sealer reads nothing from now on.
    Held,
    /// The sealer has written the whole file.
    Sealed(SealedFile),
    /// The sealer says why it cannot seal.
    Excused(String),
    /// The sealer has ended.
    Silent,
    /// The next sealer, or the next look, is due.
    Due,
    /// A sealer has started.
    Started(Line),
    /// No sealer could be started, and why.
    Unstarted(String),
    /// The sealed layer is retained.
    Rests(LayerRetention),
    /// The sealed layer has ended.
    Ended,
    /// The sealed layer is to end, and may have a retention that is not on record.
    InUse(Option<LayerRetention>),
    /// The retention is over, or this process stops.
    Expired,
    /// The look at who keeps the layer: an error says which process.
    Looked(Result<(), String>),
}

/// What a layer's task does, in this order. `Hold`, `Start` and `Settle` say what came of them by an event of their own.
pub(super) enum Action {
    /// Orders the sealer to read nothing: `Held`, where it is not gone.
    Hold,
    /// Orders the sealer to seal anew.
    GoOn,
    /// Gives the layer to the life that asked.
    Lend(LoanReply),
    /// Answers that another life has the layer.
    Busy(LoanReply),
    /// Answers that the sealed file is to be used.
    File(LoanReply),
    /// Logs why the files are not sealed yet.
    NotYet(String),
    /// Ends the sealer and waits until it has ended.
    EndSealer(Line),
    /// Starts a sealer; with `is_held`, one that waits for the order to go on.
    Start { given: Arc<SealInput>, is_held: bool },
    /// Starts the next sealer so much later.
    Retry(Duration),
    /// Records that the files cannot be sealed, and why.
    Unsealable(String),
    /// Names the file, ends the sealer, retains the layer or ends it, and records that.
    Settle(SealedFile, Line),
    /// Gives the layer up and looks who keeps it.
    Look,
    /// Looks again later.
    LookLater,
    /// Logs which process keeps the layer.
    InUse(String),
    /// Answers that the layer has not ended, and why.
    Fail(EndReply, String),
    /// Leaves the layer to the life that has begun, and records that.
    NextLife,
    /// Records that the layer has ended, then gives back its memory.
    Ended(Option<LayerRetention>),
}

/// What follows an event.
pub(super) struct Step {
    pub state: State,
    pub loan: LoanState,
    pub actions: Vec<Action>,
}

impl Step {
    fn to(state: State, loan: LoanState, actions: Vec<Action>) -> Self {
        Self { state, loan, actions }
    }
}

/// What follows an event, by the table of this module. Pure.
pub(super) fn next(state: State, loan: LoanState, event: Event) -> Step {
    match (state, event) {
        (state, Event::Lend { reply, has_ids }) => lend(state, loan, reply, has_ids),
        (state, Event::Back) => take_back(state, loan),
        (state, Event::Begun) => begin(state, loan),
        (state, Event::End(reply)) => recall(state, loan, reply),
        (State::Sealing(line, tries), event) => sealing(line, tries, loan, event),
        (State::Waiting(tries), event) => waiting(tries, loan, event),
        (State::Settling, event) => settling(loan, event),
        (state @ (State::Resting(_) | State::Unsealable), Event::Expired)
            if matches!(loan, LoanState::Free) =>
        {
            end(state, loan, None)
        }
        (State::Ending(rest, replies), Event::Looked(Err(why))) => {
            let told = replies.into_iter().map(|reply| Action::Fail(reply, why.clone()));
            let mut actions: Vec<Action> = told.collect();
            actions.extend([Action::InUse(why.clone()), Action::LookLater]);
            Step::to(State::Kept(rest, why), loan, actions)
        }
        (State::Kept(rest, _), Event::Looked(Err(why))) => {
            Step::to(State::Kept(rest, why), loan, vec![Action::LookLater])
        }
        (State::Ending(rest, replies), Event::Looked(Ok(()))) => {
            Step::to(State::Over(replies), loan, vec![Action::Ended(rest)])
        }
        (State::Kept(rest, _), Event::Looked(Ok(()))) => {
            Step::to(State::Over(Vec::new()), loan, vec![Action::Ended(rest)])
        }
        (state @ State::Kept(..), Event::Due) => Step::to(state, loan, vec![Action::Look]),
        (state, _) => Step::to(state, loan, Vec::new()),
    }
}

/// A life asks for the layer.
fn lend(state: State, loan: LoanState, reply: LoanReply, has_ids: bool) -> Step {
    match (state, loan) {
        (state @ (State::Ending(..) | State::Kept(..) | State::Over(_)), loan) => {
            Step::to(state, loan, vec![Action::File(reply)])
        }
        (state, loan @ (LoanState::Asked(_) | LoanState::Lent | LoanState::Recalled(_))) => {
            Step::to(state, loan, vec![Action::Busy(reply)])
        }
        (state, LoanState::Free) if !has_ids => {
            Step::to(state, LoanState::Free, vec![Action::File(reply)])
        }
        (state @ (State::Resting(_) | State::Unsealable), LoanState::Free) => {
            Step::to(state, LoanState::Lent, vec![Action::Lend(reply)])
        }
        (state, LoanState::Free) => {
            let actions = match state {
                State::Sealing(..) => vec![Action::Hold],
                // The next sealer is to have the layer before the life has it.
                State::Waiting(_) => vec![Action::Retry(Duration::ZERO)],
                _ => Vec::new(),
            };
            Step::to(state, LoanState::Asked(reply), actions)
        }
    }
}

/// The life that has the layer did not begin.
fn take_back(state: State, loan: LoanState) -> Step {
    match (state, loan) {
        // The life may have changed what is sealed.
        (state @ State::Resting(_), loan @ LoanState::Lent)
        | (state, loan @ LoanState::Recalled(_)) => end(state, loan, None),
        (state @ State::Sealing(..), LoanState::Lent) => {
            Step::to(state, LoanState::Free, vec![Action::GoOn])
        }
        (State::Sealed(file, line), LoanState::Lent) => {
            Step::to(State::Settling, LoanState::Free, vec![Action::Settle(file, line)])
        }
        (state, LoanState::Lent) => Step::to(state, LoanState::Free, Vec::new()),
        (state, loan) => Step::to(state, loan, Vec::new()),
    }
}

/// The life that has the layer is on record as running.
fn begin(state: State, loan: LoanState) -> Step {
    let replies = match loan {
        LoanState::Lent => Vec::new(),
        LoanState::Recalled(replies) => replies,
        loan => return Step::to(state, loan, Vec::new()),
    };
    let mut actions = Vec::new();
    if let State::Sealing(line, _) | State::Sealed(_, line) = state {
        actions.push(Action::EndSealer(line));
    }
    actions.push(Action::NextLife);
    Step::to(State::Over(replies), LoanState::Free, actions)
}

/// The snapshot is erased.
fn recall(state: State, loan: LoanState, reply: EndReply) -> Step {
    match (state, loan) {
        (State::Ending(rest, mut replies), loan) => {
            replies.push(reply);
            Step::to(State::Ending(rest, replies), loan, Vec::new())
        }
        (State::Over(mut replies), loan) => {
            replies.push(reply);
            Step::to(State::Over(replies), loan, Vec::new())
        }
        (State::Kept(rest, why), loan) => {
            let told = Action::Fail(reply, why.clone());
            Step::to(State::Kept(rest, why), loan, vec![told])
        }
        (state, LoanState::Lent) => Step::to(state, LoanState::Recalled(vec![reply]), Vec::new()),
        (state, LoanState::Recalled(mut replies)) => {
            replies.push(reply);
            Step::to(state, LoanState::Recalled(replies), Vec::new())
        }
        (state, loan @ (LoanState::Free | LoanState::Asked(_))) => end(state, loan, Some(reply)),
    }
}

/// The layer is given up: no life has it any more, and a life that waits for it uses the file.
fn end(state: State, loan: LoanState, reply: Option<EndReply>) -> Step {
    let (mut actions, mut replies) = (Vec::new(), Vec::from_iter(reply));
    match loan {
        LoanState::Asked(asker) => actions.push(Action::File(asker)),
        LoanState::Recalled(all) => replies.extend(all),
        LoanState::Free | LoanState::Lent => {}
    }
    let mut memory = None;
    match state {
        State::Sealing(line, _) | State::Sealed(_, line) => actions.push(Action::EndSealer(line)),
        State::Resting(rest) => memory = Some(rest),
        _ => {}
    }
    actions.push(Action::Look);
    Step::to(State::Ending(memory, replies), LoanState::Free, actions)
}

/// A sealer has the layer, and says something or ends.
fn sealing(line: Line, mut tries: Tries, loan: LoanState, event: Event) -> Step {
    match (loan, event) {
        (LoanState::Asked(reply), Event::Held) => {
            Step::to(State::Sealing(line, tries), LoanState::Lent, vec![Action::Lend(reply)])
        }
        // It was started for a life that has given the layer back.
        (LoanState::Free, Event::Held) => {
            Step::to(State::Sealing(line, tries), LoanState::Free, vec![Action::GoOn])
        }
        (loan @ (LoanState::Free | LoanState::Asked(_)), Event::Sealed(file)) => {
            Step::to(State::Settling, loan, vec![Action::Settle(file, line)])
        }
        (loan, Event::Sealed(file)) => Step::to(State::Sealed(file, line), loan, Vec::new()),
        (loan, Event::Excused(why)) => {
            tries.why.clone_from(&why);
            Step::to(State::Sealing(line, tries), loan, vec![Action::NotYet(why)])
        }
        (loan, Event::Silent) => fail(tries, loan, vec![Action::EndSealer(line)]),
        (loan, _) => Step::to(State::Sealing(line, tries), loan, Vec::new()),
    }
}

/// The next sealer is due, or was to be started.
fn waiting(mut tries: Tries, loan: LoanState, event: Event) -> Step {
    match event {
        Event::Due => {
            let is_held = !matches!(loan, LoanState::Free);
            let start = Action::Start { given: Arc::clone(&tries.given), is_held };
            Step::to(State::Waiting(tries), loan, vec![start])
        }
        Event::Started(line) => Step::to(State::Sealing(line, tries), loan, Vec::new()),
        Event::Unstarted(why) => {
            tries.why = why;
            fail(tries, loan, Vec::new())
        }
        _ => Step::to(State::Waiting(tries), loan, Vec::new()),
    }
}

/// One more sealer failed.
fn fail(mut tries: Tries, loan: LoanState, mut actions: Vec<Action>) -> Step {
    if let Some(pause) = tries.fail(!matches!(loan, LoanState::Free)) {
        actions.push(Action::Retry(pause));
        return Step::to(State::Waiting(tries), loan, actions);
    }
    actions.push(Action::Unsealable(tries.why));
    let loan = lent(loan, &mut actions);
    Step::to(State::Unsealable, loan, actions)
}

/// The file is whole, and the task has settled what becomes of the layer.
fn settling(loan: LoanState, event: Event) -> Step {
    let mut actions = Vec::new();
    match event {
        Event::Rests(rest) => {
            let loan = lent(loan, &mut actions);
            Step::to(State::Resting(rest), loan, actions)
        }
        Event::Ended => {
            if let LoanState::Asked(asker) = loan {
                actions.push(Action::File(asker));
            }
            Step::to(State::Over(Vec::new()), LoanState::Free, actions)
        }
        Event::InUse(rest) => end(rest.map_or(State::Settling, State::Resting), loan, None),
        _ => Step::to(State::Settling, loan, actions),
    }
}

/// The layer is free for the life that waits for it, if one does.
fn lent(loan: LoanState, actions: &mut Vec<Action>) -> LoanState {
    match loan {
        LoanState::Asked(asker) => {
            actions.push(Action::Lend(asker));
            LoanState::Lent
        }
        loan => loan,
    }
}

#[cfg(test)]
mod tests;
