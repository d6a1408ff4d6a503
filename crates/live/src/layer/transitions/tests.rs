//! The table of `transitions` and what it promises, for every state, loan and event.

use std::collections::BTreeSet;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::id::{Digest, TenantId};
use tokio::sync::{oneshot, watch};

use super::*;
use crate::layer::loan::LoanAnswer;
use crate::layer::sealer::Sealer;

const STATES: [&str; 9] =
    ["Sealing", "Waiting", "Sealed", "Settling", "Resting", "Unsealable", "Ending", "Kept", "Over"];
const LOANS: [&str; 4] = ["Free", "Asked", "Lent", "Recalled"];
const EVENTS: [&str; 20] = [
    "Lend",
    "Unfit",
    "Back",
    "Begun",
    "End",
    "Held",
    "Sealed",
    "Excused",
    "Silent",
    "Silent!",
    "Due",
    "Started",
    "Unstarted",
    "Unstarted!",
    "Rests",
    "Ended",
    "InUse",
    "Expired",
    "Gone",
    "Used",
];

/// States that a layer is in with this loan.
fn is_possible(state: &str, loan: &str) -> bool {
    match state {
        "Sealing" | "Waiting" => true,
        "Sealed" => loan == "Lent" || loan == "Recalled",
        "Settling" => loan == "Free" || loan == "Asked",
        "Resting" | "Unsealable" => loan != "Asked",
        _ => loan == "Free",
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    state: &'static str,
    loan: &'static str,
    event: &'static str,
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for state in STATES {
        for loan in LOANS.into_iter().filter(|loan| is_possible(state, loan)) {
            all.extend(EVENTS.map(|event| Case { state, loan, event }));
        }
    }
    all
}

/// Everyone who waits for an answer.
#[derive(Default)]
struct Askers {
    lives: Vec<oneshot::Receiver<LoanAnswer>>,
    ends: Vec<oneshot::Receiver<Result<(), String>>>,
}

impl Askers {
    fn life(&mut self) -> LoanReply {
        let (reply, asker) = oneshot::channel();
        self.lives.push(asker);
        reply
    }

    fn end(&mut self) -> EndReply {
        let (reply, asker) = oneshot::channel();
        self.ends.push(asker);
        reply
    }

    fn state(&mut self, case: Case) -> State {
        let given = Arc::new(SealInput::of_nothing());
        let tries = Tries::with_left(given, if case.event.ends_with('!') { 1 } else { 3 });
        match case.state {
            "Sealing" => State::Sealing(line(), tries),
            "Waiting" => State::Waiting(tries),
            "Sealed" => State::Sealed(file(), line()),
            "Settling" => State::Settling,
            "Resting" => State::Resting(rest()),
            "Unsealable" => State::Unsealable,
            "Ending" => State::Ending(Some(rest()), vec![self.end()]),
            "Kept" => State::Kept(Some(rest()), "a process".to_owned()),
            _ => State::Over(vec![self.end()]),
        }
    }

    fn loan(&mut self, case: Case) -> LoanState {
        match case.loan {
            "Free" => LoanState::Free,
            "Asked" => LoanState::Asked(self.life()),
            "Lent" => LoanState::Lent,
            _ => LoanState::Recalled(vec![self.end(), self.end()]),
        }
    }

    fn event(&mut self, case: Case) -> Event {
        match case.event {
            "Lend" => Event::Lend { reply: self.life(), has_ids: true },
            "Unfit" => Event::Lend { reply: self.life(), has_ids: false },
            "Back" => Event::Back,
            "Begun" => Event::Begun,
            "End" => Event::End(self.end()),
            "Held" => Event::Held,
            "Sealed" => Event::Sealed(file()),
            "Excused" => Event::Excused("a disk".to_owned()),
            "Silent" | "Silent!" => Event::Silent,
            "Due" => Event::Due,
            "Started" => Event::Started(line()),
            "Unstarted" | "Unstarted!" => Event::Unstarted("a program".to_owned()),
            "Rests" => Event::Rests(rest()),
            "Ended" => Event::Ended,
            "InUse" => Event::InUse(Some(rest())),
            "Expired" => Event::Expired,
            "Gone" => Event::Looked(Ok(())),
            _ => Event::Looked(Err("another process".to_owned())),
        }
    }

    /// How many replies were dropped without an answer.
    fn forgotten(&mut self) -> usize {
        let lives = self.lives.iter_mut().map(is_dropped);
        lives.chain(self.ends.iter_mut().map(is_dropped)).filter(|is_dropped| *is_dropped).count()
    }
}

fn is_dropped<T>(asker: &mut oneshot::Receiver<T>) -> bool {
    matches!(asker.try_recv(), Err(oneshot::error::TryRecvError::Closed))
}

fn line() -> Line {
    Line::of(Sealer::of_nothing()).unwrap()
}

fn file() -> SealedFile {
    SealedFile { bytes: 7, sha256: Digest::parse(&"a".repeat(64)).unwrap() }
}

fn rest() -> LayerRetention {
    LayerRetention {
        since: Stopwatch::start(),
        length: Duration::ZERO,
        tenant: TenantId::parse("ann").unwrap(),
        lengths: watch::channel(Default::default()).1,
        short: watch::channel(()).1,
        closed: watch::channel(false).1,
        share: None,
    }
}

fn state_name(state: &State) -> &'static str {
    let at = match state {
        State::Sealing(..) => 0,
        State::Waiting(_) => 1,
        State::Sealed(..) => 2,
        State::Settling => 3,
        State::Resting(_) => 4,
        State::Unsealable => 5,
        State::Ending(..) => 6,
        State::Kept(..) => 7,
        State::Over(_) => 8,
    };
    STATES[at]
}

fn loan_name(loan: &LoanState) -> &'static str {
    let at = match loan {
        LoanState::Free => 0,
        LoanState::Asked(_) => 1,
        LoanState::Lent => 2,
        LoanState::Recalled(_) => 3,
    };
    LOANS[at]
}

fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Hold => "Hold",
        Action::GoOn => "GoOn",
        Action::Lend(_) => "Lend",
        Action::Busy(_) => "Busy",
        Action::File(_) => "File",
        Action::NotYet(_) => "NotYet",
        Action::EndSealer(_) => "EndSealer",
        Action::Start { .. } => "Start",
        Action::Retry(_) => "Retry",
        Action::Unsealable(_) => "Unsealable",
        Action::Settle(..) => "Settle",
        Action::Look => "Look",
        Action::LookLater => "LookLater",
        Action::InUse(_) => "InUse",
        Action::Fail(..) => "Fail",
        Action::NextLife => "NextLife",
        Action::Ended(_) => "Ended",
    }
}

/// A step, by its names.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    state: &'static str,
    loan: &'static str,
    actions: Vec<&'static str>,
}

impl Names {
    fn of(step: &Step) -> Self {
        let actions = step.actions.iter().map(action_name).collect();
        Self { state: state_name(&step.state), loan: loan_name(&step.loan), actions }
    }

    fn has(&self, action: &str) -> bool {
        self.actions.contains(&action)
    }
}

/// What follows in a case, and everyone who waits for an answer.
fn step(case: Case) -> (Step, Askers) {
    let mut askers = Askers::default();
    let (state, loan) = (askers.state(case), askers.loan(case));
    let event = askers.event(case);
    (next(state, loan, event), askers)
}

/// The rows of the module's table, without its head.
fn table() -> Vec<Vec<&'static str>> {
    let lines = include_str!("../transitions.rs").lines();
    let rows = lines.filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |"));
    let cells = |row: &'static str| row.split(" | ").map(str::trim).collect::<Vec<_>>();
    rows.skip(1).map(cells).collect()
}

#[tokio::test]
async fn every_event_is_followed_by_what_the_table_says() {
    let (table, mut used) = (table(), BTreeSet::new());
    for case in cases() {
        let fits = |row: &Vec<&str>| {
            let named = |cell: &str, name| cell == "*" || cell.split('|').any(|one| one == name);
            named(row[0], case.state) && named(row[1], case.loan) && named(row[2], case.event)
        };
        let at = table.iter().position(fits).unwrap();
        used.insert(at);
        let same = |cell: &'static str, name: &'static str| if cell == "=" { name } else { cell };
        let has_sealer = ["Sealing", "Sealed"].contains(&case.state);
        let actions = table[at][5].split(' ').filter(|action| *action != "-");
        let wanted = Names {
            state: same(table[at][3], case.state),
            loan: same(table[at][4], case.loan),
            actions: actions
                .filter(|action| has_sealer || !action.ends_with('?'))
                .map(|action| action.trim_end_matches('?'))
                .collect(),
        };
        assert_eq!(Names::of(&step(case).0), wanted, "{case:?}");
    }
    assert_eq!(used.len(), table.len(), "every row is some case's: {used:?}");
}

#[tokio::test]
async fn a_layer_comes_into_no_other_state_than_the_possible_ones_and_into_each_of_them() {
    let mut reached = BTreeSet::from([("Sealing", "Free"), ("Waiting", "Free")]);
    loop {
        let from = reached.clone();
        for case in cases().into_iter().filter(|case| from.contains(&(case.state, case.loan))) {
            let to = Names::of(&step(case).0);
            assert!(is_possible(to.state, to.loan), "{case:?} leads to {to:?}");
            reached.insert((to.state, to.loan));
        }
        if from == reached {
            break;
        }
    }
    let possible = cases().iter().map(|case| (case.state, case.loan)).collect();
    assert_eq!(reached, possible);
}

#[tokio::test]
async fn no_layer_is_lent_twice() {
    for case in cases() {
        let to = Names::of(&step(case).0);
        let lends = to.actions.iter().filter(|action| **action == "Lend").count();
        let was_lent = ["Lent", "Recalled"].contains(&case.loan);
        let is_lent = ["Lent", "Recalled"].contains(&to.loan);
        match lends {
            0 => assert!(was_lent || !is_lent, "{case:?} {to:?}"),
            1 => assert!(!was_lent && is_lent, "{case:?} {to:?}"),
            _ => panic!("{case:?} {to:?}"),
        }
        if was_lent && ["Lend", "Unfit"].contains(&case.event) {
            assert_eq!(to.actions, ["Busy"], "{case:?}");
        }
    }
}

#[tokio::test]
async fn a_lent_layer_is_not_ended_and_an_erased_one_ends_when_it_is_given_back() {
    for case in cases().into_iter().filter(|case| ["Lent", "Recalled"].contains(&case.loan)) {
        let (followed, _askers) = step(case);
        let to = Names::of(&followed);
        match case.event {
            "Back" if case.loan == "Recalled" => {
                assert!(to.has("Look") && to.state == "Ending", "{case:?} {to:?}");
                let State::Ending(_, replies) = followed.state else { panic!("{case:?}") };
                assert_eq!(replies.len(), 2, "{case:?}");
            }
            "Back" => assert_eq!(to.loan, "Free", "{case:?}"),
            "Begun" => assert!(to.has("NextLife") && !to.has("Look"), "{case:?} {to:?}"),
            "End" => assert_eq!((to.loan, &to.actions[..]), ("Recalled", &[][..]), "{case:?}"),
            _ => {
                assert_eq!(to.loan, case.loan, "{case:?}");
                let ends = ["Look", "Settle", "Ended", "NextLife", "GoOn"];
                assert!(!ends.iter().any(|action| to.has(action)), "{case:?} {to:?}");
            }
        }
    }
}

#[tokio::test]
async fn nobody_who_asks_is_left_without_an_answer() {
    for case in cases() {
        let (followed, mut askers) = step(case);
        assert_eq!(askers.forgotten(), 0, "{case:?}: held, or in an action");
        // Who waits for the layer waits for a sealer or for the task itself.
        if let LoanState::Asked(_) = followed.loan {
            let state = state_name(&followed.state);
            assert!(["Sealing", "Waiting", "Settling"].contains(&state), "{case:?}");
        }
        // A caller that waits for the end hears that the layer is kept, or that it is over.
        if let State::Kept(..) = followed.state {
            drop(followed.state);
            assert_eq!(askers.forgotten(), 0, "{case:?}");
        }
    }
}

#[tokio::test]
async fn sealers_that_fail_are_tried_again_later_each_time_and_in_the_end_never() {
    for loan in LOANS {
        let mut askers = Askers::default();
        let case = Case { state: "Sealing", loan, event: "Silent" };
        let mut now = Step {
            state: State::Sealing(line(), Tries::of(Arc::new(SealInput::of_nothing()))),
            loan: askers.loan(case),
            actions: Vec::new(),
        };
        let mut pauses = Vec::new();
        loop {
            now = next(now.state, now.loan, Event::Silent);
            let Some(Action::Retry(pause)) = now.actions.pop() else { break };
            pauses.push(pause);
            now = next(now.state, now.loan, Event::Due);
            let [Action::Start { is_held, .. }] = now.actions[..] else { panic!("{loan}") };
            assert_eq!(is_held, loan != "Free");
            now = next(now.state, now.loan, Event::Started(line()));
        }
        assert_eq!(pauses.len(), 11, "{loan}");
        assert!(pauses.windows(2).all(|two| two[0] < two[1]), "{loan}: {pauses:?}");
        let left = if loan == "Asked" { "Lent" } else { loan };
        assert_eq!((state_name(&now.state), loan_name(&now.loan)), ("Unsealable", left));
    }
}
