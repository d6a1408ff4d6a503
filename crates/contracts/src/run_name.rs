//! How a person names a run: by its id or its workflow's, by the beginning of its id, or as `last`.
//!
//! The server looks a beginning up within the caller's tenant, and `last` among the runs of the caller's key. The decision what a
//! look-up means is [`RunName::resolve`].

use std::fmt;
use std::str::FromStr;

use serde_json::json;

use crate::error::{ErrorCode, Refusal};
use crate::id::{IdError, RunId, WorkflowId, is_lower_hex};
use crate::own_schema::own_schema;

/// Digits that a beginning has at least: a tenant with 16,000 runs has one run in a thousand that shares six of them.
pub const MIN_DIGITS: usize = 6;
/// Digits of a short id in a table: with a million runs, one beginning in four thousand means two of them.
pub const SHORT_DIGITS: usize = 8;
/// Candidates that a refusal lists: enough to choose from, and few enough to read.
pub const MAX_CANDIDATES: usize = 5;

const LAST: &str = "last";
const HEAD: &str = "rn_";
/// Digits of a whole run id.
const DIGITS: usize = 32;

/// What a caller wrote in the place of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunName {
    /// A run's id or its workflow's, whole.
    Id(WorkflowId),
    /// The beginning of a run's id.
    Prefix(RunPrefix),
    /// The newest run that the caller's key started.
    Last,
}

/// The beginning of a run's id: `rn_` and 6 to 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPrefix(String);

impl RunPrefix {
    /// The beginning with its `rn_`, whether or not that was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(HEAD).unwrap_or(text);
        let is_hex = is_lower_hex(digits, digits.len());
        ((MIN_DIGITS..=DIGITS).contains(&digits.len()) && is_hex)
            .then(|| Self(format!("{HEAD}{digits}")))
    }
}

impl FromStr for RunName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if text == LAST {
            return Ok(Self::Last);
        }
        match RunPrefix::parse(text) {
            Some(prefix) if RunId::parse(text).is_err() => Ok(Self::Prefix(prefix)),
            _ => WorkflowId::parse(text).map(Self::Id),
        }
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id(id) => id.as_str(),
            Self::Prefix(prefix) => prefix.as_str(),
            Self::Last => LAST,
        })
    }
}

own_schema!(RunName, |generator| <WorkflowId as schemars::JsonSchema>::json_schema(generator));

impl RunName {
    /// The run that the name means, among those that were found for it: at most one more than [`MAX_CANDIDATES`]. Pure.
    ///
    /// # Errors
    /// 404 `not_found` where none was found, and 409 `conflict` with the candidates where several were.
    pub fn resolve(&self, mut found: Vec<RunId>) -> Result<RunId, Refusal> {
        if found.len() < 2 {
            return found.pop().ok_or_else(|| self.not_found());
        }
        let is_cut = found.len() > MAX_CANDIDATES;
        found.truncate(MAX_CANDIDATES);
        let names: Vec<&str> = found.iter().map(RunId::as_str).collect();
        let (names, more) = (names.join(", "), if is_cut { " and more" } else { "" });
        let message =
            format!("several runs begin with {self}: {names}{more}; write more digits of the id");
        Err(Refusal::new(ErrorCode::Conflict, message).with(json!({"candidates": found})))
    }

    /// `not_found`, which of a beginning with too few digits says how many it must have. Pure.
    #[must_use]
    pub fn not_found(&self) -> Refusal {
        let text = self.to_string();
        let digits = text.strip_prefix(HEAD).unwrap_or(&text);
        let is_short = digits.len() < MIN_DIGITS && is_lower_hex(digits, digits.len());
        match (self, is_short) {
            (Self::Id(_), true) => Refusal::new(
                ErrorCode::NotFound,
                format!(
                    "run not found: the beginning of an id must have at least {MIN_DIGITS} digits"
                ),
            ),
            (Self::Last, _) => Refusal::new(
                ErrorCode::NotFound,
                "run not found: this key has started none; `cofferdam ps` lists runs",
            ),
            _ => Refusal::not_found("run"),
        }
    }
}

/// The shortest beginnings that tell these runs from each other, of at least [`SHORT_DIGITS`] digits each; one for each id, in
/// its order. Pure.
#[must_use]
pub fn short<'a>(ids: &[&'a RunId]) -> Vec<&'a str> {
    let mut sorted: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let shared = |a: &str, b: Option<&&str>| {
        b.map_or(0, |b| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count())
    };
    let least = HEAD.len() + SHORT_DIGITS;
    let beginning = |id: &'a RunId| {
        let (id, at) = (id.as_str(), sorted.binary_search(&id.as_str()).unwrap_or(0));
        let before = at.checked_sub(1).and_then(|before| sorted.get(before));
        let common = shared(id, before).max(shared(id, sorted.get(at + 1)));
        id.get(..least.max(common + 1)).unwrap_or(id)
    };
    ids.iter().copied().map(beginning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(head: &str) -> RunId {
        RunId::parse(&format!("rn_{head:0<32}")).unwrap()
    }

    #[test]
    fn a_run_is_named_by_id_beginning_or_as_the_last() {
        let whole = run("ab12cd");
        for (text, wanted) in [
            ("last", RunName::Last),
            (whole.as_str(), RunName::Id(WorkflowId::parse(whole.as_str()).unwrap())),
            ("rn_ab12cd", RunName::Prefix(RunPrefix("rn_ab12cd".into()))),
            ("ab12cd", RunName::Prefix(RunPrefix("rn_ab12cd".into()))),
            ("it_1", RunName::Id(WorkflowId::parse("it_1").unwrap())),
            // Too short for a beginning, too long, or with another letter: an id that no run has.
            ("rn_ab12c", RunName::Id(WorkflowId::parse("rn_ab12c").unwrap())),
            ("rn_ab12cg", RunName::Id(WorkflowId::parse("rn_ab12cg").unwrap())),
            ("LAST", RunName::Id(WorkflowId::parse("LAST").unwrap())),
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        let digits = &whole.as_str()[3..];
        assert_eq!(digits.parse::<RunName>().unwrap().to_string(), whole.as_str());
        let key = "a".repeat(64);
        assert_eq!(key.parse(), Ok(RunName::Id(WorkflowId::parse(&key).unwrap())));
        for bad in ["", "!", "rn_ab12cd\n", " last", "a b"] {
            assert!(bad.parse::<RunName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_beginning_means_one_run_or_lists_those_that_it_could_mean() {
        let name: RunName = "rn_ab12cd".parse().unwrap();
        assert_eq!(name.resolve(Vec::new()).unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(name.resolve(vec![run("ab12cd")]), Ok(run("ab12cd")));
        let said = |text: &str| text.parse::<RunName>().unwrap().not_found().message;
        assert!(said("rn_12").contains("at least 6 digits"), "{}", said("rn_12"));
        assert_eq!(said("rn_ab12cd"), "run not found");
        let two = vec![run("ab12cd1"), run("ab12cd2")];
        let refused = name.resolve(two.clone()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert_eq!(refused.details, Some(json!({"candidates": two})));
        assert!(refused.message.contains(two[1].as_str()) && !refused.message.contains("and more"));
        let many: Vec<RunId> = (0..=MAX_CANDIDATES).map(|n| run(&format!("ab12cd{n}"))).collect();
        let refused = name.resolve(many).unwrap_err();
        let listed = refused.details.as_ref().and_then(|details| details["candidates"].as_array());
        assert_eq!(listed.map(Vec::len), Some(MAX_CANDIDATES));
        assert!(refused.message.contains("and more"), "{refused}");
    }

    #[test]
    fn a_short_id_tells_its_run_from_those_beside_it() {
        let (a, b, c) = (run("aaaaaaaaaa1"), run("aaaaaaaaaa2"), run("b"));
        assert_eq!(
            short(&[&a, &c, &b, &a]),
            ["rn_aaaaaaaaaa1", "rn_b0000000", "rn_aaaaaaaaaa2", "rn_aaaaaaaaaa1"]
        );
        assert!(short(&[]).is_empty());
        for text in short(&[&a, &b, &c]) {
            assert!(matches!(text.parse(), Ok(RunName::Prefix(_))), "{text}");
        }
    }
}
