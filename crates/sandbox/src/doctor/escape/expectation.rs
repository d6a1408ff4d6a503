//! What a class answers to a probe though it holds.

/// Answers that hold in a class.
pub(super) struct Expectation {
    /// The id of a probe, or an area.
    pub(super) subject: &'static str,
    pub(super) answers: &'static [&'static str],
}

pub(super) const fn expectation(
    subject: &'static str,
    answers: &'static [&'static str],
) -> Expectation {
    Expectation { subject, answers }
}
