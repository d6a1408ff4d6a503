//! What a reply to a gate comes to. Pure: `flows` reads the rows under the gate's lock, asks here, and the
//! ledger records the outcome.
//!
//! ```text
//! reply --who? form? dedupe key? topic?--> Err: refused, and nothing is written
//!    |  \--on record already--> Replay
//!    |--too late, decided, voted already--> Void: recorded, and refused
//!     \--counts--> Counts: one vote, and perhaps the one that decides
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::digest;
use crate::consent::{Edit, edited};
use crate::enum_names::named;
use crate::error::{ErrorCode, Refusal, Violation};
pub use crate::gate::InteractionOutcome;
use crate::gate::{Choice, choice_of};
use crate::gate_spec::{GateSpec, SelfApproval};
use crate::id::{Digest, GroupId};
use crate::schema::Validator;
use crate::tally::{
    ActiveDelegation, Ballot, Electorate, Ineligible, Person, TallyOutcome, VoteAuthority,
    standing, tally,
};

named! {
    /// The state of a gate's row.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub enum GateStage {
        /// It waits for replies until its deadline.
        Open = "open",
        /// A reply decided it; its workflow has not taken the answer yet.
        Received = "received",
        /// Its deadline passed, and nobody is left to ask.
        TimedOut = "timed_out",
        /// Its workflow took the answer.
        Resolved = "resolved",
        /// Its run was canceled.
        Canceled = "canceled",
    }
}

/// A gate as its row has it, under its lock.
#[derive(Debug, Clone)]
pub struct LockedGate {
    /// State of the gate's row; only an open gate counts a reply.
    pub stage: GateStage,
    /// Topic of the gate; a reply that names another one is refused.
    pub topic: String,
    /// The recipe's law.
    pub spec: GateSpec,
    /// The JSON Schema that a reply must fit.
    pub form: Value,
    /// The editable inputs as they stand.
    pub inputs: Option<Value>,
    /// The groups that it asks now, an escalation's included; none: everybody.
    pub groups: Vec<GroupId>,
    /// Keys that wrote the intent or started the run.
    pub submitters: Vec<String>,
    /// Whether a yes is the consent to a plan. A task that asks for a name has a gate too.
    pub is_for_plan: bool,
    /// Until when it waits, microseconds since the epoch.
    pub deadline_us: i64,
}

impl LockedGate {
    /// Whether it asks nobody in particular, so that no groups and no delegations matter.
    #[must_use]
    pub fn is_for_everybody(&self) -> bool {
        self.groups.is_empty()
            && self.spec.roles.is_empty()
            && self.spec.self_approval == SelfApproval::Allow
    }

    /// Whether answers are counted: with a quorum of one, the first answer decides.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.spec.quorum > 1
    }

    fn asked(&self) -> Electorate<'_> {
        Electorate { spec: &self.spec, groups: &self.groups, submitters: &self.submitters }
    }
}

/// A caller as the ledger knows it now.
#[derive(Debug, Clone)]
pub enum Voter {
    /// A key, and the delegations that it holds.
    Key(Person, Vec<ActiveDelegation>),
    /// The holder of a reply link, who speaks with the voice of the key that made it: a hundred links are
    /// still one vote. `None` where that key no longer works.
    Link(Option<Person>),
    /// A caller without a key, at a run that has the reach of the host's admin.
    NeedsKey,
}

/// An earlier reply with the same dedupe key.
#[derive(Debug, Clone)]
pub struct PriorReply {
    /// The key that gave it.
    pub key_id: String,
    /// The digest of its payload.
    pub payload_hash: Digest,
    /// What became of it.
    pub recorded: InteractionOutcome,
    /// When, ms since the epoch.
    pub at: i64,
}

/// What the ledger has beside the gate's own row.
#[derive(Debug, Clone)]
pub struct ReplyContext {
    /// The votes that count so far; empty where the gate does not count or does not wait.
    pub ballots: Vec<Ballot>,
    /// Caller that answers, with the roles, groups and delegations that it has now.
    pub voter: Voter,
    /// What they said before under this dedupe key.
    pub earlier: Option<PriorReply>,
}

/// A reply as its sender gave it, not yet held against the gate's form.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The key that answers, or the name of a link's holder.
    pub key_id: &'a str,
    /// The topic, where the caller names one.
    pub topic: Option<&'a str>,
    /// What is answered.
    pub payload: &'a Value,
}

/// What a reply comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is on record since then, ms since the epoch: nothing is written.
    Replay {
        /// When it was recorded.
        at: i64,
    },
    /// It is recorded with its reason, and refused.
    Void {
        /// The digest of its payload.
        hash: Digest,
        /// Reason on record: too late, decided already, or voted already.
        recorded: InteractionOutcome,
        /// What the caller gets.
        refusal: Refusal,
    },
    /// It is recorded as a vote, and may be the one that decides.
    Counts(Vote),
}

/// A reply that counts, and what is recorded with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Vote {
    /// In whose place it was given.
    pub standing: VoteAuthority,
    /// Yes or no.
    pub choice: Choice,
    /// The reason that was given with it.
    pub rationale: Option<String>,
    /// The digest of its payload.
    pub hash: Digest,
    /// Whether the gate waits no longer.
    pub decides: bool,
    /// Whether it is the consent to the plan as it was shown.
    pub consents: bool,
    /// Whether a workflow waits for it. A task that asked for a name parks none: its worker reads the answer.
    pub wakes: bool,
    /// What it changes of the plan's inputs: the consent follows once the edited plan is compiled.
    pub edits: Vec<Edit>,
}

impl Vote {
    /// As its row says it.
    #[must_use]
    pub fn recorded(&self) -> InteractionOutcome {
        if self.decides { InteractionOutcome::Accepted } else { InteractionOutcome::Voted }
    }
}

/// Decides a reply. `now_us` is the ledger's clock, microseconds since the epoch.
///
/// # Errors
/// The reply is refused and leaves no trace: its giver is not asked, it does not fit the form, or it
/// contradicts what its dedupe key was used for.
pub fn decide_reply(
    gate: &LockedGate,
    seen: &ReplyContext,
    answer: Answer<'_>,
    now_us: i64,
) -> Result<Outcome, Refusal> {
    let standing = stands(gate, seen)?;
    let said = read(gate, answer)?;
    if let Some(earlier) = &seen.earlier {
        return replay(gate, answer, &said.hash, earlier);
    }
    if answer.topic.is_some_and(|t| t != gate.topic) && gate.stage == GateStage::Open {
        let why = format!("the gate's topic is {}", gate.topic);
        return Err(Refusal::new(ErrorCode::TopicMismatch, why));
    }
    if let Some(recorded) = void(gate, seen, &standing, answer, now_us) {
        let refusal = not_waiting(gate.stage, recorded);
        return Ok(Outcome::Void { hash: said.hash, recorded, refusal });
    }
    let mut ballots = seen.ballots.clone();
    ballots.push(Ballot {
        voter: answer.key_id.to_owned(),
        authority: standing.authority.clone(),
        choice: said.choice,
    });
    let decides = tally(&ballots, gate.spec.quorum, gate.spec.veto) != TallyOutcome::Open;
    let approves = decides && said.choice == Choice::Yes && gate.is_for_plan;
    Ok(Outcome::Counts(Vote {
        standing,
        choice: said.choice,
        rationale: said.rationale,
        hash: said.hash,
        decides,
        consents: approves && said.edits.is_empty(),
        wakes: decides && gate.is_for_plan,
        edits: if approves { said.edits } else { Vec::new() },
    }))
}

/// Whether a reply link that this key makes could answer the gate.
///
/// # Errors
/// The key may not answer by itself: a link carries no delegation.
pub fn decide_link(gate: &LockedGate, maker: &Person) -> Result<(), Refusal> {
    standing(gate.asked(), maker, &[], &[]).map(drop).map_err(|why| {
        let why = format!("a link answers with the voice of the key that makes it: {why}");
        Refusal::new(ErrorCode::Forbidden, why)
    })
}

/// In whose place the caller answers.
fn stands(gate: &LockedGate, seen: &ReplyContext) -> Result<VoteAuthority, Refusal> {
    let found = match &seen.voter {
        Voter::NeedsKey => {
            let why = "a run with the reach of the host's admin waits for a key: name one with --key-file";
            return Err(Refusal::new(ErrorCode::Forbidden, why));
        }
        Voter::Link(maker) => maker
            .as_ref()
            .ok_or(Ineligible::NotAsked)
            .and_then(|maker| standing(gate.asked(), maker, &[], &seen.ballots)),
        Voter::Key(person, delegated) => standing(gate.asked(), person, delegated, &seen.ballots),
    };
    found.map_err(|why| Refusal::new(ErrorCode::Forbidden, why.to_string()))
}

/// A reply that fits the gate's form.
struct ReplyContent {
    choice: Choice,
    rationale: Option<String>,
    hash: Digest,
    edits: Vec<Edit>,
}

fn read(gate: &LockedGate, answer: Answer<'_>) -> Result<ReplyContent, Refusal> {
    let payload = answer.payload;
    Validator::compile(&gate.form)?.check(payload)?;
    let (choice, rationale) = choice_of(payload)?;
    if choice == Choice::No && payload.get("edits").is_some() {
        return Err(Refusal::violations(&[Violation {
            instance_path: "/payload/edits".into(),
            message: "edits go with a yes".into(),
        }]));
    }
    let empty = Value::Object(serde_json::Map::new());
    let (_, edits) = edited(gate.inputs.as_ref().unwrap_or(&empty), payload);
    let hash = digest(payload).map_err(|_| Refusal::internal())?;
    Ok(ReplyContent { choice, rationale, hash, edits })
}

fn replay(
    gate: &LockedGate,
    answer: Answer<'_>,
    hash: &Digest,
    earlier: &PriorReply,
) -> Result<Outcome, Refusal> {
    let conflict = |what| Err(Refusal::new(ErrorCode::DedupeConflict, what));
    if earlier.payload_hash != *hash || answer.topic.is_some_and(|t| t != gate.topic) {
        return conflict("this dedupe key was used with another payload or topic");
    }
    // Where answers are counted, another key's answer is not this one's.
    if gate.is_counted() && earlier.key_id != answer.key_id {
        return conflict("this dedupe key was used by another key");
    }
    match earlier.recorded {
        InteractionOutcome::Accepted | InteractionOutcome::Voted => {
            Ok(Outcome::Replay { at: earlier.at })
        }
        void => Err(not_waiting(gate.stage, void)),
    }
}

/// Why an answer is recorded without counting.
fn void(
    gate: &LockedGate,
    seen: &ReplyContext,
    standing: &VoteAuthority,
    answer: Answer<'_>,
    now_us: i64,
) -> Option<InteractionOutcome> {
    let mine = |b: &Ballot| b.voter == answer.key_id || b.authority == standing.authority;
    match gate.stage {
        GateStage::TimedOut => Some(InteractionOutcome::Late),
        GateStage::Open if now_us > gate.deadline_us => Some(InteractionOutcome::Late),
        GateStage::Open if seen.ballots.iter().any(mine) => Some(InteractionOutcome::AlreadyVoted),
        GateStage::Open => None,
        _ => Some(InteractionOutcome::AlreadyDecided),
    }
}

fn not_waiting(stage: GateStage, recorded: InteractionOutcome) -> Refusal {
    let why = match (recorded, stage) {
        (InteractionOutcome::Late, _) => "the gate no longer waits: its deadline has passed",
        (InteractionOutcome::AlreadyVoted, _) => {
            "this key, or whom it answers for, has answered this gate already"
        }
        (_, GateStage::Canceled) => "the gate no longer waits: its run was canceled",
        _ => "the gate no longer waits: it is decided",
    };
    Refusal::new(ErrorCode::StateConflict, why)
}

#[cfg(test)]
mod tests;
