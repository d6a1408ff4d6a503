//! The page of E2B's endpoints and who may call them are made from the one table, and held as they are published.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test"
)]

#[path = "../../contracts/tests/golden/mod.rs"]
#[allow(dead_code, reason = "pages of other crates are made with the rest of it")]
mod golden;

use std::fs;
use std::path::Path;

use cofferdam_ambient::env;

/// Where a table of the page stands.
const MARKS: [(bool, &str); 2] = [(false, "control plane"), (true, "envd")];

#[test]
fn the_page_has_the_table_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/e2b.md");
    let before = fs::read_to_string(&path).unwrap();
    let mut page = before.clone();
    for (of_envd, name) in MARKS {
        let (begin, end) =
            (format!("<!-- table: {name} -->\n\n"), format!("\n<!-- end: {name} -->"));
        let from =
            page.find(&begin).unwrap_or_else(|| panic!("{begin} is not in the page")) + begin.len();
        let to = from + page.get(from..).unwrap().find(&end).unwrap();
        page.replace_range(from..to, &cofferdam_e2b::page(of_envd));
    }
    if env::var_os("UPDATE_GOLDENS").is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    let how = "UPDATE_GOLDENS=1 cargo test -p cofferdam-e2b --test documents writes it anew";
    assert!(page == before, "docs/e2b.md is not the table of crates/e2b/src/routes.rs; {how}");
}

#[test]
fn who_may_call_what_is_its_golden() {
    let document = serde_json::to_value(cofferdam_e2b::permissions()).unwrap();
    let manifest_dir = env!("CARGO_MANIFEST_DIR");
    golden::hold(
        manifest_dir,
        "../../docs/e2b-permissions.json",
        &document,
        "cofferdam-e2b",
        "documents",
    );
}
