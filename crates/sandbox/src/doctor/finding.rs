//! One thing that the doctor looked at, and how good it is.

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Worth knowing, neither good nor bad.
    Fact,
    /// Sandboxes hold, less well than they could.
    Weak,
}

impl Grade {
    /// As it is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fact => "fact",
            Self::Weak => "weak",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable, such as `cgroup.controllers`.
    pub id: &'static str,
    /// Whether this is good, a plain fact, or a weak point.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// What would make it better.
    pub mend: Option<&'static str>,
}
