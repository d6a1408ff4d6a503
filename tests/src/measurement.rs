//! What the benches measured: a file each in `bench/results`, written by `make bench` and shown by
//! `SPECIFICATION.md` and `docs/reference/measurements.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Results of one bench that are kept: what is older is in the history of the file.
const KEPT: usize = 20;

/// The file of one bench.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    /// Its name, and the file's.
    pub bench: String,
    /// What a person runs to measure it again.
    pub command: String,
    /// Unit of every figure, in words.
    pub unit: String,
    /// The newest first.
    pub results: Vec<Measurement>,
}

/// What was measured on one tree and one machine. Either `values` or `least` and `most`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Day, as `2026-11-29`; `None` where it is not on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The tree, with `-changed` where it was not as committed; `None` where it is not on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The figure of each run of the bench.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
    /// The least of runs whose own figures are not on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,
    /// The most of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<f64>,
    /// The median of them, if it is on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// How many they were, if it is on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Cargo's profile, in words.
    pub profile: String,
    /// Processors and memory.
    pub machine: String,
    /// Load of the machine over a minute when the bench had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Further figures of the bench: percentiles, floors, peers. A number, or `{least, most}`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub more: Map<String, Value>,
    /// What a reader has to know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The page that it was taken from; `None` where `make bench` wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl Measurement {
    /// Least, median and most of its runs; a median that is not on record is `None`.
    #[must_use]
    pub fn spread(&self) -> Spread {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        match (values.first(), values.last()) {
            (Some(least), Some(most)) => {
                let middle = |at: usize| values.get(at).copied();
                let (low, high) = (middle((values.len() - 1) / 2), middle(values.len() / 2));
                let median = low.zip(high).map(|(low, high)| f64::midpoint(low, high));
                Spread { least: *least, median, most: *most }
            }
            _ => Spread {
                least: self.least.unwrap_or(f64::NAN),
                median: self.median,
                most: self.most.unwrap_or(f64::NAN),
            },
        }
    }

    /// Runs behind it, as far as they are on record.
    #[must_use]
    pub fn runs(&self) -> Option<usize> {
        if self.values.is_empty() { self.count } else { Some(self.values.len()) }
    }

    /// Whether another result is of this tree, machine and day.
    fn is_of_one(&self, other: &Self) -> bool {
        self.source.is_none()
            && self.on == other.on
            && self.commit == other.commit
            && self.profile == other.profile
            && self.machine == other.machine
    }
}

/// Least, median and most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The least figure.
    pub least: f64,
    /// The median, if it is known.
    pub median: Option<f64>,
    /// The greatest figure.
    pub most: f64,
}

impl Bench {
    /// Adds a result as the newest. One more run on the newest one's tree, machine and day joins its values.
    pub fn add(&mut self, measured: Measurement) {
        match self.results.first_mut().filter(|newest| newest.is_of_one(&measured)) {
            Some(newest) => {
                newest.values.extend(measured.values);
                newest.load = measured.load;
                newest.more = measured.more;
            }
            None => self.results.insert(0, measured),
        }
        self.results.truncate(KEPT);
    }
}

/// Figures that were measured just now, on this tree and this machine.
#[must_use]
pub fn measured_here(values: Vec<f64>) -> Measurement {
    Measurement {
        on: Some(said("date", &["-u", "+%F"])),
        commit: Some(commit()),
        values,
        profile: profile(),
        machine: machine(),
        load: first_number("/proc/loadavg"),
        ..Measurement::default()
    }
}

/// What a program prints, without the end of its line.
fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program)
        .args(words)
        .current_dir(crate::repository())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The tree that was measured. Results are not of it.
fn commit() -> String {
    let commit = said("git", &["rev-parse", "--short=8", "HEAD"]);
    let changed = said("git", &["status", "--porcelain", "--", ".", ":!bench/results"]);
    if changed.is_empty() { commit } else { format!("{commit}-changed") }
}

/// The profile by the directory that cargo put this program into.
fn profile() -> String {
    let program = std::env::current_exe().expect("this program");
    let directory = program.parent().and_then(|directory| directory.file_name());
    directory.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Processors, memory and kernel.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let gib = kib.unwrap_or_default().div_ceil(1 << 20);
    format!("{cores} cores, {gib} GiB, {}", said("uname", &["-sr"]))
}

/// The number that a file begins with.
fn first_number(path: &str) -> Option<f64> {
    fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}

/// The directory of all results.
#[must_use]
pub fn directory() -> PathBuf {
    crate::repository().join("bench/results")
}

/// Every bench on record, by name.
///
/// # Panics
/// A file that is not as [`Bench`] has it, or that has another bench's name.
#[must_use]
pub fn all(directory: &Path) -> BTreeMap<String, Bench> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let bench = read(&path);
        assert_eq!(path.file_stem().and_then(|name| name.to_str()), Some(&*bench.bench));
        found.insert(bench.bench.clone(), bench);
    }
    found
}

fn read(path: &Path) -> Bench {
    let text = fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes a result into the file of its bench, which begins with it where there is none.
///
/// # Panics
/// The file cannot be read or written.
pub fn record(directory: &Path, name: &str, unit: &str, measured: Measurement) {
    let path = directory.join(format!("{name}.json"));
    let mut bench = match path.exists() {
        true => read(&path),
        false => Bench {
            bench: name.to_owned(),
            command: "make bench".to_owned(),
            unit: unit.to_owned(),
            results: Vec::new(),
        },
    };
    assert_eq!(bench.unit, unit, "{name}: results of two units; rename the bench");
    bench.add(measured);
    fs::write(&path, serde_json::to_string_pretty(&bench).unwrap() + "\n").unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: f64, commit: &str) -> Measurement {
        Measurement {
            on: Some("2026-11-29".to_owned()),
            commit: Some(commit.to_owned()),
            values: vec![value],
            ..Measurement::default()
        }
    }

    #[test]
    fn runs_on_one_tree_are_one_result_and_the_newest_is_first() {
        let directory = tempfile::tempdir().unwrap();
        for measured in [one(3.0, "a"), one(1.0, "b"), one(2.0, "b")] {
            record(directory.path(), "bench", "ms", measured);
        }
        let all = all(directory.path());
        let results = &all["bench"].results;
        assert_eq!(results.len(), 2);
        assert_eq!(results[0].values, [1.0, 2.0]);
        assert_eq!(results[0].spread(), Spread { least: 1.0, median: Some(1.5), most: 2.0 });
        assert_eq!(results[1].runs(), Some(1));
    }

    #[test]
    fn a_result_of_a_page_is_never_added_to() {
        let mut bench = Bench {
            bench: "bench".to_owned(),
            command: String::new(),
            unit: String::new(),
            results: vec![Measurement { source: Some("a page".to_owned()), ..one(1.0, "a") }],
        };
        bench.add(one(2.0, "a"));
        assert_eq!(bench.results.len(), 2);
    }
}
