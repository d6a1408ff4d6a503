//! Pages that are made: bounds, promises and conformance from tables of text beside this file, measurements and the figures of
//! `SPECIFICATION.md` from `bench/`.
//!
//! ```text
//! tests/tests/reference/bounds.txt        values of constants are read from the sources
//! tests/tests/reference/promises.txt      who holds each promise exists
//! tests/tests/reference/conformance.txt   beside what each class was seen to do
//! bench/promises.txt, bench/results/      what is promised of speed, and what was measured
//! UPDATE_GOLDENS=1 cargo test --workspace --test system -- reference::   writes the pages
//! ```

mod bounds;
mod conformance;
mod constants;
mod figures;
#[path = "../../crates/contracts/tests/golden/mod.rs"]
#[allow(dead_code, reason = "the pages of other crates use the rest")]
pub mod golden;
mod law;
mod promises;
mod text;

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_ambient::env;

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test system -- reference::";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Holds a page of `docs/reference`.
#[track_caller]
fn hold(name: &str, text: &str) {
    let path = format!("../docs/reference/{name}");
    golden::hold_text(env!("CARGO_MANIFEST_DIR"), &path, text, WRITES);
}

/// Holds what stands in a page between `<!-- MARK` and `<!-- /MARK -->`.
#[track_caller]
fn hold_part(page: &str, mark: &str, part: &str) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let begin = format!("<!-- {mark}: {WRITES} -->\n");
    let end = format!("<!-- /{mark} -->");
    let (head, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{page}: {begin}"));
    let (old, tail) = rest.split_once(&end).unwrap_or_else(|| panic!("{page}: {end}"));
    if env::var("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        fs::write(&path, format!("{head}{begin}{part}{end}{tail}")).unwrap();
    } else {
        assert!(old == part, "{page}, {mark}: {WRITES} writes it anew");
    }
}
