//! A document and its committed golden: compared, or written where `UPDATE_GOLDENS=1` is set.

pub mod document;
pub mod page;
pub mod schema;

use std::fs;
use std::path::Path;

use cofferdam_ambient::env;
use serde_json::Value;

/// Holds `document` against the file, which lies at `path` from `manifest_dir`. `target` and
/// `test` say how to regenerate it.
#[track_caller]
pub fn hold(manifest_dir: &str, path: &str, document: &Value, target: &str, test: &str) {
    hold_text(manifest_dir, path, &format!("{document:#}\n"), &command(target, test));
}

/// What writes a golden anew.
pub fn command(target: &str, test: &str) -> String {
    format!("UPDATE_GOLDENS=1 cargo test --workspace --test {target} {test}")
}

/// Holds `text` against the file at `path` from `manifest_dir`. `command` writes it anew.
#[track_caller]
pub fn hold_text(manifest_dir: &str, path: &str, text: &str, command: &str) {
    let file = Path::new(manifest_dir).join(path);
    if env::var("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        return;
    }
    let golden = fs::read_to_string(&file).unwrap_or_default();
    let at = golden.lines().zip(text.lines()).take_while(|(a, b)| a == b).count() + 1;
    assert!(
        golden == text,
        "{path} differs from line {at} on. If the change is wanted, regenerate it and commit it:\n    \
         {command}\nline {at} now: {}",
        text.lines().nth(at - 1).unwrap_or("(the end)")
    );
}
