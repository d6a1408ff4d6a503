//! What holds a command beyond its sandbox, and what that saw.
//!
//! Landlock rules decide what may be executed and written; a filter of system calls tells the agent
//! of every attempt, so that refused ones are known and executed programs are counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Distinct refused attempts that are listed, and distinct programs.
pub const MAX_LISTED: usize = 256;

/// What one command may execute and write, and whether it may make network sockets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jail {
    /// Programs that may be executed, by name or absolute path; absent: all. The command itself may
    /// be, and so may what interprets an allowed script.
    pub tools_allowed: Option<Vec<String>>,
    /// Programs that may not, whatever else is said.
    pub tools_denied: Vec<String>,
    /// Directories that may be written below; absent: everywhere.
    pub writable: Option<Vec<String>>,
    /// Whether network sockets may be made.
    pub sockets: bool,
    /// Programs that may be executed beside the command itself before everything is killed.
    pub max_execs: Option<u64>,
}

/// What the agent saw.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JailReport {
    /// Programs executed beside the command itself.
    pub execs: u64,
    /// By name, how often.
    pub tools: BTreeMap<String, u64>,
    /// What the kernel refused.
    pub refused: Vec<JailRefusal>,
    /// Refused attempts that are not listed.
    pub unlisted: u64,
    /// `max_execs` ended it.
    pub stopped: bool,
    /// Why the jail could not be made; nothing ran then.
    pub broken: Option<String>,
}

/// Refused attempts of one kind at one subject, counted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JailRefusal {
    /// What was tried.
    pub kind: JailRefusalKind,
    /// On what: a path, or an address family.
    pub subject: String,
    /// Number of these attempts, at least 1.
    pub count: u64,
    /// ms since the epoch.
    pub first_ms: i64,
    /// ms since the epoch.
    pub last_ms: i64,
}

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JailRefusalKind {
    /// Executing a program.
    Exec,
    /// Changing a file or directory.
    Write,
    /// Making a network socket.
    Socket,
}

impl JailReport {
    /// Notes a refused attempt.
    pub fn refuse(&mut self, kind: JailRefusalKind, subject: String, now_ms: i64) {
        let known = self.refused.iter().position(|r| r.kind == kind && r.subject == subject);
        if let Some(known) = known.and_then(|at| self.refused.get_mut(at)) {
            known.count += 1;
            known.last_ms = now_ms;
        } else if self.refused.len() < MAX_LISTED {
            let (first_ms, last_ms) = (now_ms, now_ms);
            self.refused.push(JailRefusal { kind, subject, count: 1, first_ms, last_ms });
        } else {
            self.unlisted += 1;
        }
    }

    /// Notes an executed program.
    pub fn execute(&mut self, name: String) {
        self.execs += 1;
        if self.tools.len() < MAX_LISTED || self.tools.contains_key(&name) {
            *self.tools.entry(name).or_insert(0) += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_attempts_are_one_entry_and_too_many_are_counted() {
        let mut seen = JailReport::default();
        seen.refuse(JailRefusalKind::Write, "/etc/x".into(), 1);
        seen.refuse(JailRefusalKind::Write, "/etc/x".into(), 5);
        assert_eq!(seen.refused.len(), 1);
        assert_eq!(
            (seen.refused[0].count, seen.refused[0].first_ms, seen.refused[0].last_ms),
            (2, 1, 5)
        );
        for n in 0..MAX_LISTED {
            seen.refuse(JailRefusalKind::Exec, n.to_string(), 9);
        }
        assert_eq!((seen.refused.len(), seen.unlisted), (MAX_LISTED, 1));
    }
}
