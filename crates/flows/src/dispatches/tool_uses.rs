//! The tools of one agent, as its events say: which it was offered and which it used, and its calls of them.

use std::collections::BTreeSet;

use cofferdam_contracts::printable;

/// Calls at a time, as far as they are told apart.
const MAX_OPEN: usize = 1_024;
/// Distinct tools that are listed.
const MAX_TOOLS: usize = 64;

/// What an agent's events say of its tools.
#[derive(Debug, Default)]
pub(crate) struct ToolUses {
    used: BTreeSet<String>,
    /// claude: those that it was offered.
    offered: Option<BTreeSet<String>>,
    /// Calls that were begun and have not been heard of again.
    open: BTreeSet<String>,
}

impl ToolUses {
    /// Those that it used, by the names of a policy where they have one there.
    pub(crate) fn names(&self) -> Vec<String> {
        self.used.iter().cloned().collect()
    }

    /// Those that it was offered, where it says so.
    pub(crate) fn offered(&self) -> Option<Vec<String>> {
        let names = self.offered.as_ref()?.iter().take(MAX_TOOLS);
        Some(names.map(|name| printable::line(name).into_owned()).collect())
    }

    /// It says what it was offered; `None`: it does not.
    pub(super) fn offer(&mut self, names: Option<BTreeSet<String>>) {
        self.offered = names;
    }

    /// Whether it may have this one, as far as it says.
    pub(super) fn may_use(&self, name: &str) -> bool {
        self.offered.as_ref().is_none_or(|offered| offered.contains(name))
    }

    /// It used this one.
    pub(super) fn enter(&mut self, tool: &str) {
        if !tool.is_empty() && self.used.len() < MAX_TOOLS {
            self.used.insert(printable::line(tool).chars().take(MAX_TOOLS).collect());
        }
    }

    /// A call begins.
    pub(super) fn open(&mut self, id: &str) {
        if !id.is_empty() && self.open.len() < MAX_OPEN {
            self.open.insert(id.to_owned());
        }
    }

    /// A call is heard of again. Whether it was open.
    pub(super) fn close(&mut self, id: &str) -> bool {
        self.open.remove(id)
    }

    /// Whether a call is open.
    pub(super) fn is_any_open(&self) -> bool {
        !self.open.is_empty()
    }
}
