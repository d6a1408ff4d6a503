//! What a gate does, whatever happens to it: pure, and without a line of the code that it is held against.

use std::collections::BTreeMap;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::gate_spec::{
    DeadlineAction, Escalate, GateSpec, SelfApproval, TimeoutPolicy,
};
use cofferdam_contracts::id::{GateKey, GroupId};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The submitter, two of the group that is asked, one of the group that an escalation adds, a stranger.
pub(super) const PEOPLE: [(&str, &str); 5] =
    [("k0", "sre"), ("k1", "sre"), ("k2", "sre"), ("k3", "leads"), ("k4", "")];
pub(super) const GATE: &str = "approve-plan";

#[derive(Debug, Clone)]
pub(super) enum Op {
    Reply { who: usize, dedupe: u8, yes: bool },
    Delegate { from: usize, to: usize },
    End { nth: usize },
    Expire,
    DeadlinePasses,
    TimeOut,
    Escalate,
    Remind { n: u32 },
    OpenAgain,
}

#[derive(Debug, Clone)]
pub(super) struct Law {
    pub(super) quorum: u32,
    pub(super) veto: bool,
    pub(super) grouped: bool,
    pub(super) deny_self: bool,
    pub(super) escalates: bool,
    pub(super) silence_is_yes: bool,
}

impl Law {
    pub(super) fn spec(&self) -> GateSpec {
        let group = |name: &str| GroupId::parse(name).unwrap();
        let escalate = Escalate {
            group: Some(group("leads")),
            priority: Some(5),
            wait: "1h".parse().unwrap(),
        };
        GateSpec {
            quorum: self.quorum,
            veto: self.veto,
            group: self.grouped.then(|| group("sre")),
            self_approval: if self.deny_self { SelfApproval::Deny } else { SelfApproval::Allow },
            on_timeout: TimeoutPolicy {
                escalate: self.escalates.then_some(escalate),
                then: if self.silence_is_yes {
                    DeadlineAction::Approve
                } else {
                    DeadlineAction::Deny
                },
            },
            ..GateSpec::plain(GateKey::parse(GATE).unwrap())
        }
    }
}

pub(super) fn law() -> impl Strategy<Value = Law> {
    (1..=3_u32, any::<[bool; 5]>()).prop_map(|(quorum, b)| Law {
        quorum,
        veto: b[0],
        grouped: b[1],
        deny_self: b[2],
        escalates: b[3],
        silence_is_yes: b[4],
    })
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..5_usize, 0..6_u8, prop::bool::weighted(0.7))
            .prop_map(|(who, dedupe, yes)| Op::Reply { who, dedupe, yes }),
        3 => (0..5_usize, 0..5_usize).prop_map(|(from, to)| Op::Delegate { from, to }),
        1 => (0..4_usize).prop_map(|nth| Op::End { nth }),
        1 => Just(Op::Expire),
        1 => Just(Op::DeadlinePasses),
        2 => Just(Op::TimeOut),
        1 => Just(Op::Escalate),
        1 => (1..4_u32).prop_map(|n| Op::Remind { n }),
        1 => Just(Op::OpenAgain),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Received(bool),
    TimedOut,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Fresh,
    Replay,
    Refused(ErrorCode),
}

/// The pure model. It shares no code with what it is held against.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) law: Law,
    pub(super) state: State,
    pub(super) late: bool,
    pub(super) escalated: bool,
    pub(super) journaled: bool,
    pub(super) widened: bool,
    /// voter, authority, yes
    pub(super) votes: Vec<(usize, usize, bool)>,
    /// dedupe key: who, yes, outcome
    pub(super) ledger: BTreeMap<u8, (usize, bool, &'static str)>,
    /// id, from, to, holds
    pub(super) delegations: Vec<(i64, usize, usize, bool)>,
    pub(super) reminders: Vec<u32>,
}

impl Model {
    pub(super) fn new(law: Law) -> Self {
        Self {
            law,
            state: State::Open,
            late: false,
            escalated: false,
            journaled: false,
            widened: false,
            votes: vec![],
            ledger: BTreeMap::new(),
            delegations: vec![],
            reminders: vec![],
        }
    }

    pub(super) fn asked(&self, who: usize) -> bool {
        !self.law.grouped || who <= 2 || (who == 3 && self.widened)
    }

    pub(super) fn authority(&self, who: usize) -> Option<usize> {
        let own = |k: usize| self.law.deny_self && k == 0;
        if own(who) {
            return None;
        }
        if self.asked(who) {
            return Some(who);
        }
        let lent =
            self.delegations.iter().filter(|d| d.3 && d.2 == who && self.asked(d.1) && !own(d.1));
        let spent = |k: usize| self.state == State::Open && self.votes.iter().any(|v| v.1 == k);
        lent.min_by_key(|d| (spent(d.1), d.0)).map(|d| d.1)
    }

    pub(super) fn reply(&mut self, who: usize, dedupe: u8, yes: bool) -> Said {
        let Some(authority) = self.authority(who) else {
            return Said::Refused(ErrorCode::Forbidden);
        };
        if let Some((by, said, outcome)) = self.ledger.get(&dedupe) {
            if *said != yes || (self.law.quorum > 1 && *by != who) {
                return Said::Refused(ErrorCode::DedupeConflict);
            }
            return match *outcome {
                "accepted" | "voted" => Said::Replay,
                _ => Said::Refused(ErrorCode::StateConflict),
            };
        }
        let refused = match self.state {
            State::Received(_) => Some("already_decided"),
            State::TimedOut => Some("late"),
            State::Open if self.late => Some("late"),
            State::Open if self.votes.iter().any(|v| v.0 == who || v.1 == authority) => {
                Some("already_voted")
            }
            State::Open => None,
        };
        if let Some(outcome) = refused {
            self.ledger.insert(dedupe, (who, yes, outcome));
            return Said::Refused(ErrorCode::StateConflict);
        }
        self.votes.push((who, authority, yes));
        let count = |what: bool| self.votes.iter().filter(|v| v.2 == what).count();
        let wanted = usize::try_from(self.law.quorum).unwrap();
        let against = if self.law.veto { 1 } else { wanted };
        let decided = if count(false) >= against {
            Some(false)
        } else {
            (count(true) >= wanted).then_some(true)
        };
        if let Some(choice) = decided {
            self.state = State::Received(choice);
        }
        let outcome = if decided.is_some() { "accepted" } else { "voted" };
        self.ledger.insert(dedupe, (who, yes, outcome));
        Said::Fresh
    }

    pub(super) fn time_out(&mut self) -> &'static str {
        match self.state {
            State::Received(_) => "answered",
            State::TimedOut => "over",
            State::Open if !self.late => "waits",
            State::Open if self.law.escalates && !self.escalated => {
                (self.escalated, self.late) = (true, false);
                "waits"
            }
            State::Open => {
                (self.escalated, self.state) = (true, State::TimedOut);
                "over"
            }
        }
    }

    pub(super) fn escalate(&mut self) {
        if !self.journaled {
            self.journaled = true;
            self.widened = self.state == State::Open && self.law.grouped && self.law.escalates;
        }
    }
}

pub(super) fn foretold(m: &Model) -> Value {
    let name = |who: usize| PEOPLE[who].0;
    let said = |yes: bool| if yes { "yes" } else { "no" };
    let mut groups: Vec<&str> = Vec::new();
    if m.law.grouped {
        groups.push("sre");
        if m.widened {
            groups.push("leads");
        }
    }
    let consent =
        m.state == State::Received(true) || (m.state == State::TimedOut && m.law.silence_is_yes);
    json!({
        "state": match m.state { State::Open => "open", State::Received(_) => "received", State::TimedOut => "timed_out" },
        "groups": groups,
        "votes": m.votes.iter().map(|v| json!([name(v.0), name(v.1), said(v.2)])).collect::<Vec<_>>(),
        "ledger": m.ledger.iter().map(|(d, (who, yes, outcome))| (format!("d{d}"), json!([name(*who), said(*yes), outcome])))
            .collect::<serde_json::Map<_, _>>(),
        "approvals": i32::from(consent),
        "messages": i32::from(matches!(m.state, State::Received(_))),
        "escalations": i32::from(m.escalated),
        "escalated": i32::from(m.journaled),
        "reminders": m.reminders.len(),
    })
}
