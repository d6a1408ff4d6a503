//! How a run is shown while it goes.

/// What decides about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModeFacts<'a> {
    /// The caller wants one JSON object or the command's own output.
    pub is_quiet: bool,
    /// The caller asks for plain lines by `--no-progress`.
    pub is_refused: bool,
    /// Whether stderr is a terminal.
    pub is_terminal: bool,
    pub term: Option<&'a str>,
    /// Variable `CI`, where it is set.
    pub ci: Option<&'a str>,
}

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Silent,
    /// A line for each thing that happened.
    Lines,
    /// Lines that are drawn again and again.
    Live,
}

impl Mode {
    pub(crate) fn of(facts: ModeFacts<'_>) -> Self {
        let is_ci = facts.ci.is_some_and(|ci| !matches!(ci, "" | "0" | "false"));
        let is_dumb = facts.term.is_none_or(|term| matches!(term, "" | "dumb"));
        match facts {
            ModeFacts { is_quiet: true, .. } => Self::Silent,
            ModeFacts { is_refused: false, is_terminal: true, .. } if !is_ci && !is_dumb => {
                Self::Live
            }
            _ => Self::Lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_live_only_on_a_terminal_that_can_and_may() {
        let terminal = ModeFacts {
            is_quiet: false,
            is_refused: false,
            is_terminal: true,
            term: Some("xterm"),
            ci: None,
        };
        assert_eq!(Mode::of(terminal), Mode::Live);
        assert_eq!(Mode::of(ModeFacts { ci: Some("false"), ..terminal }), Mode::Live);
        for plain in [
            ModeFacts { is_terminal: false, ..terminal },
            ModeFacts { term: Some("dumb"), ..terminal },
            ModeFacts { term: None, ..terminal },
            ModeFacts { ci: Some("true"), ..terminal },
            ModeFacts { is_refused: true, ..terminal },
        ] {
            assert_eq!(Mode::of(plain), Mode::Lines, "{plain:?}");
        }
        assert_eq!(Mode::of(ModeFacts { is_quiet: true, ..terminal }), Mode::Silent);
    }
}
