//! Names of a sandbox's commands, by which one that outlives its worker is found again.

use std::sync::atomic::{AtomicU32, Ordering};

/// The commands that were begun so far.
#[derive(Debug, Default)]
pub(crate) struct CommandNames(AtomicU32);

impl CommandNames {
    /// The name of the command that is begun next, where one is begun at a time.
    pub(crate) fn next(&self) -> String {
        name(self.0.load(Ordering::Acquire))
    }

    /// Begins a command: its name is no other's. Two of one name would be one command, and each caller would have its output.
    pub(crate) fn take(&self) -> String {
        name(self.0.fetch_add(1, Ordering::AcqRel))
    }
}

fn name(number: u32) -> String {
    format!("command-{number}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    #[test]
    fn commands_that_begin_at_once_have_a_name_each() {
        const EACH: usize = 10_000;
        let names = CommandNames::default();
        assert_eq!((names.next(), names.take()), ("command-0".to_owned(), "command-0".to_owned()));
        let taken: Vec<Vec<String>> = thread::scope(|scope| {
            let takers: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..EACH).map(|_| names.take()).collect())).collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        let distinct: BTreeSet<&String> = taken.iter().flatten().collect();
        assert_eq!(distinct.len(), 4 * EACH);
        assert_eq!(names.next(), format!("command-{}", 4 * EACH + 1));
    }
}
