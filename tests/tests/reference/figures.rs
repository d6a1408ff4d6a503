//! `docs/reference/measurements.md` and the tables of speed in `SPECIFICATION.md`: what `bench/promises.txt` promises, beside
//! what `make bench` measured (`bench/results`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use cofferdam_tests::measurement::{self, Bench, Measurement};
use serde_json::Value;

use super::golden::page::{anchor, begun, code, table, wrapped};
use super::text::{Entry, Section, sections};
use super::{WRITES, hold, hold_part, root};

/// The profiles whose figures need no remark.
const PUBLISHED: &str = "published";
const PAGE: &str = "docs/reference/measurements.md";

/// One bench of a promise: `NAME <= 5 ms | FIELD: what the field is of`.
struct Promised {
    bench: String,
    bound: Option<Bound>,
    peer: Option<Peer>,
}

/// What its figure is held against.
struct Bound {
    is_most: bool,
    number: f64,
    text: String,
}

/// A floor, or what others take for it.
struct Peer {
    field: String,
    what: String,
}

impl Promised {
    fn read(line: &str) -> Self {
        let (head, peer) =
            line.split_once(" | ").map_or((line, None), |(head, peer)| (head, Some(peer)));
        let peer = peer.map(|peer| {
            let (field, what) = peer.split_once(": ").unwrap_or_else(|| panic!("{line}"));
            Peer { field: field.to_owned(), what: what.to_owned() }
        });
        let mut words = head.splitn(2, ' ');
        let bench = words.next().unwrap_or_default().to_owned();
        let bound = words.next().map(|text| {
            let mut parts = text.split(' ');
            let is_most = match parts.next() {
                Some("<=") => true,
                Some(">=") => false,
                _ => panic!("{line}: a bound begins with <= or >="),
            };
            let number = parts.next().unwrap_or_default().replace(',', "");
            let number = number.parse().unwrap_or_else(|_| panic!("{line}: no number"));
            Bound { is_most, number, text: text.to_owned() }
        });
        Self { bench, bound, peer }
    }
}

impl Bound {
    fn is_held(&self, figure: f64) -> bool {
        if self.is_most { figure <= self.number } else { figure >= self.number }
    }

    /// What a reader has to know of a result that is beyond it.
    fn verdict(&self, of: &Measurement) -> Option<String> {
        let spread = of.spread();
        let beyond = of.values.iter().filter(|value| !self.is_held(**value)).count();
        match (self.is_held(spread.least), self.is_held(spread.most)) {
            (true, true) => None,
            (false, false) => Some("**not held**".to_owned()),
            _ if beyond > 0 => {
                Some(format!("**{beyond} of {} runs beyond the bound**", of.values.len()))
            }
            _ => Some("**not held in every run**".to_owned()),
        }
    }
}

fn promised(entry: &Entry) -> Vec<Promised> {
    entry.held.iter().map(|line| Promised::read(line)).collect()
}

/// A number with at most three digits behind its point, and the thousands apart.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits = whole.len();
    let mut said = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (digits - at).is_multiple_of(3) {
            said.push(',');
        }
        said.push(digit);
    }
    if rest.is_empty() { said } else { format!("{said}.{rest}") }
}

/// `24 to 40`, or one number.
fn range(least: f64, most: f64) -> String {
    match (number(least), number(most)) {
        (least, most) if least == most => least,
        (least, most) => format!("{least} to {most}"),
    }
}

/// The figure of a result with its unit, its median and how many runs are behind it.
fn figure(of: &Measurement, unit: &str) -> String {
    let spread = of.spread();
    // From a second on, milliseconds are hard to read.
    let (scale, unit) =
        if unit == "ms" && spread.least >= 1_000.0 { (1_000.0, "s") } else { (1.0, unit) };
    let mut said = format!("{} {unit}", range(spread.least / scale, spread.most / scale));
    let runs = of.runs().filter(|runs| *runs > 2 && spread.least < spread.most);
    match (spread.median, runs) {
        (Some(median), Some(runs)) => {
            write!(said, ", median {} of {runs}", number(median / scale)).unwrap();
        }
        (None, Some(runs)) => write!(said, " in {runs} runs").unwrap(),
        (Some(median), None) if spread.least < spread.most && of.values.is_empty() => {
            write!(said, ", median {}", number(median / scale)).unwrap();
        }
        _ => {}
    }
    said
}

/// A further figure as a page shows it.
fn shown(value: &Value) -> String {
    match (value["least"].as_f64(), value["most"].as_f64()) {
        (Some(least), Some(most)) => range(least, most),
        _ => value.as_f64().map_or_else(|| value.as_str().unwrap_or_default().to_owned(), number),
    }
}

/// What the table of the specification says of one bench; `None` where no result is on record.
fn last(one: &Promised, benches: &BTreeMap<String, Bench>) -> Option<[String; 3]> {
    let bench = benches.get(&one.bench)?;
    let newest = bench.results.first()?;
    let mut said = figure(newest, &bench.unit);
    if let Some(p99) = newest.more.get("p99") {
        write!(said, " (p99 {})", shown(p99)).unwrap();
    }
    if let Some(verdict) = one.bound.as_ref().and_then(|bound| bound.verdict(newest)) {
        said = format!("{verdict}: {said}");
    }
    let peer = one.peer.as_ref().and_then(|peer| {
        let value = newest.more.get(&peer.field)?;
        let (what, unit) = peer.what.rsplit_once(", ").unwrap_or((&peer.what, ""));
        let space = if unit.is_empty() { "" } else { " " };
        Some(format!("{}{space}{unit}: {what}", shown(value)))
    });
    let profile = if newest.profile == PUBLISHED { "" } else { &newest.profile };
    Some([said, peer.unwrap_or_default(), profile.to_owned()])
}

/// Each of several, or one where all are the same.
fn joined(all: &[String]) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for one in all.iter().filter(|one| !one.is_empty()) {
        if !kept.contains(&one.as_str()) {
            kept.push(one);
        }
    }
    kept.join("; ")
}

/// The rows of a section of the specification. What has no result on record is left out.
fn rows(section: &Section, benches: &BTreeMap<String, Bench>) -> Vec<[String; 5]> {
    let mut rows = Vec::new();
    for entry in &section.entries {
        let all: Vec<Promised> =
            promised(entry).into_iter().filter(|one| last(one, benches).is_some()).collect();
        if all.is_empty() {
            continue;
        }
        let lasts: Vec<[String; 3]> = all.iter().filter_map(|one| last(one, benches)).collect();
        let bounds: Vec<String> = all
            .iter()
            .map(|one| {
                one.bound.as_ref().map_or_else(|| "none".to_owned(), |bound| bound.text.clone())
            })
            .collect();
        let links: Vec<String> = all
            .iter()
            .map(|one| format!("[{}]({PAGE}#{})", code(&one.bench), anchor(&one.bench)))
            .collect();
        let peers: Vec<String> = lasts.iter().map(|[_, peer, _]| peer.clone()).collect();
        // A profile that all of them have is said once.
        let is_one = lasts.windows(2).all(|two| two[0][2] == two[1][2]);
        let end = |profile: &str| {
            if profile.is_empty() { String::new() } else { format!(" ({profile})") }
        };
        let figures: Vec<String> = lasts
            .iter()
            .enumerate()
            .map(|(at, [figure, _, profile])| match is_one && at + 1 < lasts.len() {
                true => figure.clone(),
                false => figure.clone() + &end(profile),
            })
            .collect();
        rows.push([
            entry.what.clone(),
            joined(&bounds),
            links.join(", "),
            figures.join("; "),
            joined(&peers),
        ]);
    }
    rows
}

fn sections_of_bench() -> Vec<Section> {
    sections(&fs::read_to_string(root().join("bench/promises.txt")).unwrap())
}

/// The tables of the specification, each with its heading.
fn specification(benches: &BTreeMap<String, Bench>) -> String {
    let sections = sections_of_bench();
    let mut part = String::new();
    for section in &sections {
        write!(part, "\n## {}\n\n", section.title).unwrap();
        if !section.about.is_empty() {
            part.push_str(&wrapped(&section.about, "", ""));
            part.push('\n');
        }
        let head = ["Promise", "Bound", "Bench", "Last figure", "Floor or peer"];
        part.push_str(&table(head, &rows(section, benches)));
    }
    let missing: Vec<String> = sections
        .iter()
        .flat_map(|section| section.entries.iter().flat_map(promised))
        .filter(|one| !benches.contains_key(&one.bench))
        .map(|one| code(&one.bench))
        .collect();
    part.push('\n');
    if !missing.is_empty() {
        let said = format!(
            "Promised and measured by a bench, without a result on record: {}.",
            missing.join(", ")
        );
        part.push_str(&wrapped(&said, "", ""));
        part.push('\n');
    }
    part
}

/// One result: the figure, where and when, what was measured with it.
fn result(of: &Measurement, unit: &str) -> String {
    let commit = of.commit.as_ref().map(|commit| format!("commit {commit}"));
    let load = of.load.map(|load| format!("load {}", number(load)));
    let day = of.on.clone().unwrap_or_else(|| "day not recorded".to_owned());
    let facts = [Some(day), Some(of.profile.clone()), Some(of.machine.clone()), load, commit];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let mut said = format!("**{}** ({})", figure(of, unit), facts.join("; "));
    let more: Vec<String> =
        of.more.iter().map(|(name, value)| format!("{} {}", code(name), shown(value))).collect();
    if !more.is_empty() {
        write!(said, ", {}", more.join(", ")).unwrap();
    }
    if let Some(note) = &of.note {
        write!(said, ": {note}").unwrap();
    }
    wrapped(&format!("{said}."), "* ", "  ")
}

fn described(page: &mut String, bench: &Bench, bound: Option<&Bound>) {
    write!(page, "\n### {}\n\n", code(&bench.bench)).unwrap();
    let bound = bound.map(|bound| format!("Bound: {}. ", bound.text)).unwrap_or_default();
    page.push_str(&wrapped(&format!("{bound}Command: {}.", code(&bench.command)), "", ""));
    page.push('\n');
    page.extend(bench.results.iter().map(|one| result(one, &bench.unit)));
}

fn measurements(benches: &BTreeMap<String, Bench>) -> String {
    let mut page = begun("Measurements", WRITES);
    for paragraph in [
        "Figures behind [SPECIFICATION.md](../../SPECIFICATION.md), the newest first. A bound is a promise; a figure on this page is an \
         observation. `make bench` writes one file for each bench into `bench/results`, with machine, commit and load; this page is made \
         from them.",
        "A row without a commit was converted from the pages that held figures by hand before; its file names the page. Until \
         2026-11-29 the profile `published` was called `release`. Times are wall times with the private database. The machine of converted \
         rows is shared, and its speed varies by a third within the hour. A sandbox life is create, `/usr/bin/true`, verified wipe: medians \
         of 30, all classes in turns.",
        "`BENCH_ONLY=classes,sandboxes,egress make bench` selects groups; `classes` also prints a table of every class beside bare `runc \
         run`, `crun run`, `runsc run`, bubblewrap and, where an engine runs, docker. `COFFERDAM_OTHER=FILE BENCH_ONLY=binaries make \
         bench` compares another build of the binary, in turns, and is not kept. `scripts/build-times` measures what builds cost. `make \
         storm` adds its times to recovery. Those of `make first-minute` and `scripts/build-times` are entered with their source.",
    ] {
        page.push_str(&wrapped(paragraph, "", ""));
        page.push('\n');
    }
    let mut page = page.trim_end().to_owned() + "\n";
    let mut told = BTreeSet::new();
    for section in sections_of_bench() {
        write!(page, "\n## {}\n", section.title).unwrap();
        for entry in &section.entries {
            let all = promised(entry);
            if all.iter().any(|one| benches.contains_key(&one.bench)) {
                page.push('\n');
                let what = entry.what.replace("](docs/", "](../");
                page.push_str(&wrapped(&format!("**{what}**"), "", ""));
            }
            for one in all {
                if let Some(bench) = benches.get(&one.bench) {
                    described(&mut page, bench, one.bound.as_ref());
                }
                told.insert(one.bench);
            }
        }
    }
    let others: Vec<&Bench> =
        benches.values().filter(|bench| !told.contains(&bench.bench)).collect();
    if !others.is_empty() {
        page.push_str("\n## Without a promise\n");
        for bench in others {
            described(&mut page, bench, None);
        }
    }
    page
}

#[test]
fn measurements_md_is_what_was_measured() {
    hold("measurements.md", &measurements(&measurement::all(&measurement::directory())));
}

#[test]
fn specification_md_has_the_last_figures() {
    let benches = measurement::all(&measurement::directory());
    hold_part("SPECIFICATION.md", "figures", &specification(&benches));
}

/// A name that no bench writes would never have a figure.
#[test]
fn every_promised_bench_is_one_that_is_run() {
    let mut sources = String::new();
    for entry in fs::read_dir(root().join("tests/src/bin/bench")).unwrap() {
        sources.push_str(&fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    let benches = measurement::all(&measurement::directory());
    let mut unknown = Vec::new();
    for one in sections_of_bench().iter().flat_map(|section| &section.entries).flat_map(promised) {
        let is_made = sources.contains(&format!("\"{}\"", one.bench));
        let by_hand =
            benches.get(&one.bench).is_some_and(|bench| !bench.command.contains("make bench"));
        // Names of classes and their peers are put together.
        if !is_made && !by_hand && !one.bench.starts_with("life_") {
            unknown.push(one.bench);
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn a_result_has_either_its_values_or_their_spread() {
    for (name, bench) in measurement::all(&measurement::directory()) {
        assert!(!bench.results.is_empty(), "{name}");
        for one in &bench.results {
            let has_spread = one.least.is_some() && one.most.is_some();
            assert!(one.values.is_empty() == has_spread, "{name}: {one:?}");
            assert!(one.spread().least <= one.spread().most, "{name}: {one:?}");
            assert!(one.source.is_some() || one.commit.is_some(), "{name}: {one:?}");
        }
    }
}

#[test]
fn a_figure_is_held_against_its_bound() {
    let promised = Promised::read("gate_reply_ack <= 1,000 ms | commit: a bare commit, ms");
    let bound = promised.bound.unwrap();
    assert_eq!(
        (promised.bench.as_str(), bound.number, bound.is_most),
        ("gate_reply_ack", 1_000.0, true)
    );
    assert_eq!(promised.peer.unwrap().field, "commit");
    let of = |values: &[f64]| Measurement { values: values.to_vec(), ..Measurement::default() };
    assert_eq!(bound.verdict(&of(&[1.0, 999.0])), None);
    assert_eq!(
        bound.verdict(&of(&[1.0, 1_001.0])).as_deref(),
        Some("**1 of 2 runs beyond the bound**")
    );
    assert_eq!(bound.verdict(&of(&[1_001.0])).as_deref(), Some("**not held**"));
    assert_eq!(figure(&of(&[1_500.0, 900.0, 1_000.0]), "ms"), "900 to 1,500 ms, median 1,000 of 3");
    assert_eq!(figure(&of(&[2_500.0]), "ms"), "2.5 s");
    assert_eq!(figure(&of(&[0.5]), "s"), "0.5 s");
}
