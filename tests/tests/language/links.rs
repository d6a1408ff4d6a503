//! Links within the repository: each leads to a file that is there, and to a heading that it has.

use std::collections::BTreeSet;
use std::fs;

use super::{pages, prose, root};

/// Where the links of a text lead.
fn targets(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.trim()).collect()
}

/// The names that a page's headings have in links: lower case, hyphens for spaces, no other marks.
fn headings(page: &str) -> BTreeSet<String> {
    let outside: String = page.split("```").step_by(2).collect();
    let heading = |line: &str| {
        let title = line.trim_start_matches('#').trim();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    outside.lines().filter(|line| line.starts_with('#')).map(heading).collect()
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (name, text) in pages() {
        let dir = root().join(&name).parent().unwrap().to_owned();
        for target in targets(&prose(&text)) {
            if ["http://", "https://", "mailto:"].iter().any(|other| target.starts_with(other)) {
                continue;
            }
            seen += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { root().join(&name) } else { dir.join(file) };
            let leads = match fs::read_to_string(&path) {
                Ok(page) => heading.is_empty() || headings(&page).contains(heading),
                // A directory, or a file that is no text.
                Err(_) => heading.is_empty() && path.exists(),
            };
            if !leads {
                broken.push(format!("{name}: {target}"));
            }
        }
    }
    assert!(seen > 200, "only {seen} links were found: the test does not see them");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn a_heading_has_the_name_that_its_links_have() {
    let page = "# Gates of a release\n```sh\n# a comment\n```\n## `prove`: GO, or not\n";
    let wanted = ["gates-of-a-release", "prove-go-or-not"].map(str::to_owned);
    assert_eq!(headings(page), wanted.into());
    assert_eq!(targets("a [b](c.md#d), an image ![e](f.png)"), ["c.md#d", "f.png"]);
}
