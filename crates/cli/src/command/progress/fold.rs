//! Which tasks share a line, and in what order lines stand.

use std::collections::BTreeMap;

use cofferdam_contracts::step::TaskPhase;

use super::super::task_time::duration;
use super::task_line::{Count, TaskLine, Urgency, counted};

/// Tasks of one name and different numbers that share a line; fewer have their own.
const GROUP: usize = 4;

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    Ok,
    /// It failed, or was canceled.
    Failed,
    Running(Option<TaskPhase>),
    Queued,
}

/// The newest attempt of a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub name: &'a str,
    pub attempt: i32,
    pub state: EntryState,
    /// How long it runs; 0 where it does not.
    pub elapsed_ms: u64,
    /// The last line of its output.
    pub last: &'a str,
    pub waits_for: &'a str,
}

/// The group of a task that ends in a number: `shard-` of `shard-12`.
pub(super) fn group_of(name: &str) -> Option<&str> {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.len() < name.len() && stem.ends_with(['-', '_', '.', '/'])).then_some(stem)
}

/// How many tasks each group has.
pub(super) fn groups<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut sizes = BTreeMap::new();
    for group in names.filter_map(group_of) {
        *sizes.entry(group).or_insert(0) += 1;
    }
    sizes.retain(|_, size| *size >= GROUP);
    sizes
}

/// A line for each task that has not ended and for each group that has not, the most urgent first.
pub(super) fn folded(entries: &[Entry<'_>]) -> Vec<TaskLine> {
    let sizes = groups(entries.iter().map(|entry| entry.name));
    let mut members: BTreeMap<&str, Vec<Entry<'_>>> = BTreeMap::new();
    let mut lines = Vec::new();
    for entry in entries {
        match group_of(entry.name).filter(|group| sizes.contains_key(group)) {
            Some(group) => members.entry(group).or_default().push(*entry),
            None => lines.extend(single(entry)),
        }
    }
    lines.extend(members.iter().filter_map(|(stem, members)| group(stem, members)));
    lines.sort_by(|a, b| {
        let age = b.elapsed_ms.cmp(&a.elapsed_ms);
        a.urgency.cmp(&b.urgency).then(age).then_with(|| a.name.cmp(&b.name))
    });
    lines
}

/// The line of one task; `None` once it has ended, which is said above the lines.
fn single(entry: &Entry<'_>) -> Option<TaskLine> {
    let again = match entry.attempt {
        attempt @ 2.. => format!(", attempt {attempt}"),
        _ => String::new(),
    };
    let (words, last, urgency) = match entry.state {
        EntryState::Ok | EntryState::Failed => return None,
        EntryState::Queued => (format!("queued{again}"), entry.waits_for, Urgency::Queued),
        EntryState::Running(phase) => {
            let phase = phase.map_or("running", TaskPhase::as_str);
            let words = format!("{phase} {}{again}", duration(entry.elapsed_ms));
            (words, entry.last, Urgency::Running)
        }
    };
    let is_queued = usize::from(urgency == Urgency::Queued);
    Some(TaskLine {
        name: entry.name.to_owned(),
        words,
        last: last.to_owned(),
        urgency,
        elapsed_ms: entry.elapsed_ms,
        running: 1 - is_queued,
        queued: is_queued,
    })
}

/// The line of a group; `None` once all of it has ended.
fn group(stem: &str, members: &[Entry<'_>]) -> Option<TaskLine> {
    let count = |is: fn(EntryState) -> bool| members.iter().filter(|one| is(one.state)).count();
    let failed = count(|state| state == EntryState::Failed);
    let running = count(|state| matches!(state, EntryState::Running(_)));
    let ok = count(|state| state == EntryState::Ok);
    let queued = count(|state| state == EntryState::Queued);
    if running + queued == 0 {
        return None;
    }
    let mut words = counted(&[
        Count { tasks: failed, what: "failed" },
        Count { tasks: running, what: "running" },
        Count { tasks: ok, what: "ok" },
        Count { tasks: queued, what: "queued" },
    ]);
    // Those that wait for the same thing say it with other numbers; the first is the nearest.
    let waits = members.iter().find(|one| one.state == EntryState::Queued);
    if let Some(first) = waits.filter(|first| !first.waits_for.is_empty()) {
        words.push_str(&format!(" ({})", first.waits_for));
    }
    // The oldest that runs is the one that a person waits for.
    let at_work = members.iter().filter(|one| matches!(one.state, EntryState::Running(_)));
    let oldest = at_work.max_by_key(|one| one.elapsed_ms);
    let urgency = match (failed, running) {
        (1.., _) => Urgency::Failed,
        (_, 1..) => Urgency::Running,
        _ => Urgency::Queued,
    };
    Some(TaskLine {
        name: format!("{stem}*"),
        words,
        last: oldest.map(|one| one.last.to_owned()).unwrap_or_default(),
        urgency,
        elapsed_ms: oldest.map_or(0, |one| one.elapsed_ms),
        running,
        queued,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, state: EntryState, elapsed_ms: u64) -> Entry<'_> {
        Entry { name, attempt: 1, state, elapsed_ms, last: "", waits_for: "" }
    }

    const RUNNING: EntryState = EntryState::Running(Some(TaskPhase::Exec));

    fn texts(entries: &[Entry<'_>]) -> Vec<String> {
        folded(entries).iter().map(|line| line.text(80, 0)).collect()
    }

    #[test]
    fn equal_shards_share_a_line_with_their_counts() {
        let names: Vec<String> = (0..55).map(|n| format!("shard-{n}")).collect();
        let mut entries: Vec<Entry<'_>> = names
            .iter()
            .enumerate()
            .map(|(n, name)| match n {
                0..40 => entry(name, EntryState::Ok, 0),
                40..52 => Entry { last: "case 7", ..entry(name, RUNNING, 100) },
                _ => Entry {
                    waits_for: "memory: 3 before you",
                    ..entry(name, EntryState::Queued, 0)
                },
            })
            .collect();
        assert_eq!(
            texts(&entries),
            ["shard-*  12 running, 40 ok, 3 queued (memory: 3 before you)  case 7"]
        );
        entries[50].elapsed_ms = 900;
        entries[50].last = "slow one";
        assert!(texts(&entries)[0].ends_with("slow one"), "the oldest is what one waits for");
        entries.iter_mut().for_each(|one| one.state = EntryState::Ok);
        assert_eq!(texts(&entries), [""; 0], "all of it has ended");
    }

    #[test]
    fn few_and_unlike_names_have_lines_of_their_own() {
        let three = ["shard-1", "shard-2", "shard-3"].map(|name| entry(name, RUNNING, 1));
        assert_eq!(texts(&three).len(), 3);
        assert_eq!(group_of("shard-12"), Some("shard-"));
        for name in ["build", "py311", "12", ""] {
            assert_eq!(group_of(name), None, "{name}");
        }
    }

    #[test]
    fn what_failed_comes_first_then_the_oldest_then_what_waits() {
        let shards = ["s-1", "s-2", "s-3", "s-4"];
        let mut entries = vec![
            entry("waits", EntryState::Queued, 0),
            entry("young", RUNNING, 10),
            entry("old", RUNNING, 5_000),
            entry("done", EntryState::Failed, 0),
        ];
        entries.extend(shards.map(|name| entry(name, RUNNING, 1)));
        entries[4].state = EntryState::Failed;
        let names: Vec<String> = folded(&entries).into_iter().map(|line| line.name).collect();
        assert_eq!(names, ["s-*", "old", "young", "waits"]);
        assert_eq!(folded(&entries)[0].words, "1 failed, 3 running");
    }
}
