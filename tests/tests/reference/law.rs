//! No page holds a measured figure by hand: figures are in `bench/results`, and pages are made from them.

use std::fs;

use super::root;

/// Units of what is measured. A bound has them too, and says that it is one.
const UNITS: [&str; 8] = ["ms", "MB/s", "GB/s", "MiB/s", "GiB/s", "runs/s", "requests/s", "Gbit/s"];
/// Words before a number that make it a bound or a constant.
const BOUNDS: [&str; 13] = [
    "<=", ">=", "<", ">", "at most", "at least", "within", "after", "every", "up to", "below",
    "above", "than",
];
/// Pages that are history, or are made.
const OTHERS: [&str; 3] = ["docs/decisions/", "docs/reference/", "CHANGELOG.md"];
/// Figures that stand in a page nevertheless: the page, how many, why. A line goes with its figures, and none is added.
const LEFT: &[(&str, usize, &str)] = &[];

/// Every page that is written by hand, without what is made in it.
fn pages() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut directories = vec![root()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            let is_ours = name.starts_with("docs") || !name.contains('/');
            if path.is_dir() && (name == "docs" || name.starts_with("docs/")) {
                directories.push(path);
            } else if is_ours && name.ends_with(".md") {
                let text = fs::read_to_string(path).unwrap();
                found.push((name, by_hand(&text)));
            }
        }
    }
    found.retain(|(name, _)| !OTHERS.iter().any(|other| name.starts_with(other)));
    found
}

/// A page without its parts between `<!-- figures: ..` and `<!-- /figures -->`, and without code.
fn by_hand(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once("<!-- figures") {
        kept.push_str(head);
        rest = tail.split_once("<!-- /figures -->").map_or("", |(_, rest)| rest);
    }
    kept.push_str(rest);
    let outside: String = kept.split("```").step_by(2).collect();
    outside.split('`').step_by(2).collect::<Vec<_>>().join("CODE")
}

/// The measured figures of a text, each with what stands before it.
fn figures(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut found = Vec::new();
    for (at, pair) in words.windows(2).enumerate() {
        let [figure, unit] = pair else { continue };
        let unit = unit.trim_matches([',', ';', '.', ':', ')', '(', '*', '|']);
        let figure = figure.trim_matches(['(', '*', '|']);
        let is_number = figure.starts_with(|c: char| c.is_ascii_digit())
            && figure.chars().all(|c| c.is_ascii_digit() || [',', '.'].contains(&c));
        if !is_number || !UNITS.contains(&unit) {
            continue;
        }
        let before = words[at.saturating_sub(3)..at].join(" ");
        let is_bound = BOUNDS.iter().any(|word| before.ends_with(word));
        if !is_bound {
            found.push(format!("{before} {figure} {unit}"));
        }
    }
    found
}

#[test]
fn no_page_holds_a_measured_figure_by_hand() {
    let mut wrong = Vec::new();
    for (name, text) in pages() {
        let found = figures(&text);
        let left = LEFT.iter().find(|(page, ..)| *page == name).map_or(0, |(_, left, _)| *left);
        if found.len() > left {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "a figure belongs to bench/results, from which docs/reference/measurements.md is made; a bound says `at most`: {wrong:#?}"
    );
}

/// A page that says it is made is made by a test: what nobody writes anew would be stale one day.
#[test]
fn every_page_of_the_reference_is_made() {
    for entry in fs::read_dir(root().join("docs/reference")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let is_made = text.lines().nth(2).is_some_and(|line| line.starts_with("<!-- Generated. "));
        assert!(is_made, "{} is written by hand", path.display());
    }
}

#[test]
fn a_figure_is_told_from_a_bound() {
    assert_eq!(figures("It takes 27 ms, and 438 MB/s.").len(), 2);
    assert_eq!(figures("at most 27 ms, within 5 ms, <= 1 ms | after 200 ms.").len(), 0);
    assert_eq!(figures("27 of 30 files, 5 s, 3 ms of").len(), 1);
    let page = "a 1 ms\n<!-- figures: x -->\n2 ms\n<!-- /figures -->\nb `3 ms` 4 ms";
    assert_eq!(figures(&by_hand(page)).len(), 2);
}
