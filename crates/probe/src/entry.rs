//! One line of the list: what is tried, how, and what a sandbox that holds answers.

use cofferdam_guest::escape::Setting;

use super::attempt::ProbeAttempt;

/// One thing to try.
pub struct Probe {
    pub id: &'static str,
    pub tries: &'static str,
    /// Every answer that holds.
    pub expected: &'static [&'static str],
    pub run: Run,
}

/// How it is tried.
pub enum Run {
    /// In a way of its own.
    By(fn(&Setting) -> String),
    /// As many others are.
    Way(ProbeAttempt),
}

impl Run {
    pub fn go(&self, setting: &Setting) -> String {
        match self {
            Self::By(run) => run(setting),
            Self::Way(way) => way.go(),
        }
    }
}

pub const fn probe(
    id: &'static str,
    tries: &'static str,
    expected: &'static [&'static str],
    run: fn(&Setting) -> String,
) -> Probe {
    Probe { id, tries, expected, run: Run::By(run) }
}
