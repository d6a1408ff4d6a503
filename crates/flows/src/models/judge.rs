//! What came of a call, and what of it counts. Pure.

use cofferdam_contracts::model::{AnswerSummary, ModelOutcome, ModelPrice, ModelUsage};
use cofferdam_ledger::models::CallCost;

/// How an answer went by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnswerEnd {
    /// The provider's status.
    pub status: u16,
    /// What it said.
    pub metered: AnswerSummary,
    /// Why it broke off, if it did.
    pub cut: Option<String>,
}

/// What is written about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallVerdict {
    pub outcome: ModelOutcome,
    pub usage: Option<ModelUsage>,
    /// `None`: what was set aside.
    pub counted: Option<CallCost>,
    pub why: Option<String>,
}

/// The law: a claim counts where the answer is whole; an error by status costs nothing unless it claims so; of
/// everything else it is not known what was paid.
pub(crate) fn judge(passed: AnswerEnd, price: &ModelPrice) -> CallVerdict {
    let AnswerEnd { status, metered: AnswerSummary { usage, error, is_whole }, cut } = passed;
    let cost =
        |usage: ModelUsage| CallCost { tokens: usage.tokens(), micros: price.cost_micros(usage) };
    if status >= 400 {
        let why = error.unwrap_or_else(|| by_status(status));
        let counted = usage.map(cost).unwrap_or_default();
        let outcome = ModelOutcome::ProviderError;
        return CallVerdict { outcome, usage, counted: Some(counted), why: Some(why) };
    }
    if let Some(error) = error {
        let (outcome, counted) = (ModelOutcome::ProviderError, usage.map(cost));
        return CallVerdict { outcome, usage, counted, why: Some(error) };
    }
    if cut.is_some() || !is_whole {
        let why = cut.unwrap_or_else(|| "the answer ended before its protocol's end".to_owned());
        let outcome = ModelOutcome::Cut;
        return CallVerdict { outcome, usage: None, counted: None, why: Some(why) };
    }
    let why = usage.is_none().then(|| "the answer claims no tokens".to_owned());
    CallVerdict { outcome: ModelOutcome::Ok, usage, counted: usage.map(cost), why }
}

/// Why a call failed of which its provider said no more than a status.
fn by_status(status: u16) -> String {
    format!("the provider answered {status}")
}

/// The law of a count of tokens: nothing is paid, whatever comes of it.
pub(crate) fn judge_count(passed: AnswerEnd) -> CallVerdict {
    let AnswerEnd { status, metered, cut } = passed;
    let error = metered.error.or_else(|| (status >= 400).then(|| by_status(status)));
    let (outcome, why) = match (error, cut) {
        (Some(error), _) => (ModelOutcome::ProviderError, Some(error)),
        (None, Some(cut)) => (ModelOutcome::Cut, Some(cut)),
        (None, None) => (ModelOutcome::Counted, None),
    };
    CallVerdict { outcome, usage: None, counted: Some(CallCost::default()), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::ModelName;

    fn judged(status: u16, usage: bool, error: bool, is_whole: bool, cut: bool) -> CallVerdict {
        let price = ModelPrice {
            model: ModelName::parse("m").unwrap(),
            input_micros: 1_000_000,
            output_micros: 2_000_000,
            cached_micros: None,
            cache_write_micros: None,
            cache_write_hour_micros: None,
            max_output: 1,
        };
        let usage = usage.then_some(ModelUsage { input: 3, output: 2, ..ModelUsage::default() });
        let error = error.then(|| "no".to_owned());
        let metered = AnswerSummary { usage, error, is_whole };
        judge(AnswerEnd { status, metered, cut: cut.then(|| "cut".to_owned()) }, &price)
    }

    #[test]
    fn agents_b11_a_count_of_tokens_costs_nothing_whatever_comes_of_it() {
        use ModelOutcome::{Counted, Cut, ProviderError};
        for (status, error, cut, outcome) in [
            (200, false, false, Counted),
            (200, false, true, Cut),
            (200, true, false, ProviderError),
            (529, false, false, ProviderError),
        ] {
            let error = error.then(|| "no".to_owned());
            let metered = AnswerSummary { usage: None, error, is_whole: false };
            let judged =
                judge_count(AnswerEnd { status, metered, cut: cut.then(|| "cut".to_owned()) });
            assert_eq!((judged.outcome, judged.counted), (outcome, Some(CallCost::default())));
            assert_eq!(judged.why.is_none(), outcome == Counted);
        }
    }

    #[test]
    fn a_claim_counts_where_the_answer_is_whole() {
        use ModelOutcome::{Cut, Ok, ProviderError};
        for (status, usage, error, is_whole, cut, outcome, counted) in [
            (200, true, false, true, false, Ok, Some((5, 7))),
            (200, false, false, true, false, Ok, None),
            (200, true, false, true, true, Cut, None),
            (200, true, false, false, false, Cut, None),
            (200, true, true, true, false, ProviderError, Some((5, 7))),
            (200, false, true, false, true, ProviderError, None),
            (429, false, true, true, false, ProviderError, Some((0, 0))),
            (500, false, false, false, true, ProviderError, Some((0, 0))),
            (500, true, false, true, false, ProviderError, Some((5, 7))),
        ] {
            let judged = judged(status, usage, error, is_whole, cut);
            let counted = counted.map(|(tokens, micros)| CallCost { tokens, micros });
            let said = (judged.outcome, judged.counted);
            assert_eq!(said, (outcome, counted), "{status} {usage} {error} {is_whole} {cut}");
            assert!(judged.outcome == Ok || judged.why.is_some());
        }
    }
}
