//! What a start pays for its form: the schema of each example is compiled and its form is checked. The floor is the
//! same recipe's text read from YAML, in the same turns.

use std::time::Instant;

use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::schema::{Validator, with_defaults};
use serde_json::json;

use super::figures::{emit, median, rounded};

/// Turns of each example.
const TURNS: usize = 200;
/// The promise, for the slowest example.
const MOST_MS: f64 = 1.0;

pub(super) fn run() {
    let mut slowest = (0.0_f64, 0.0_f64, String::new());
    for entry in std::fs::read_dir("examples").expect("examples, from the repository's directory") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("an example");
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Ok(recipe) = Recipe::from_yaml(&name, &text) else { continue };
        let (mut checked, mut parsed) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            let begun = Instant::now();
            drop(Recipe::from_yaml(&name, &text));
            parsed.push(begun.elapsed().as_secs_f64() * 1_000.0);
            let begun = Instant::now();
            let schema = recipe.form_schema();
            let mut form = json!({});
            with_defaults(&schema, &mut form);
            drop(Validator::compile(&schema).expect("a schema").violations(&form));
            checked.push(begun.elapsed().as_secs_f64() * 1_000.0);
        }
        let (check_ms, floor_ms) = (median(checked), median(parsed));
        if check_ms > slowest.0 {
            slowest = (check_ms, floor_ms, name);
        }
    }
    let (check_ms, floor_ms, example) = slowest;
    emit(
        "schema_check",
        check_ms,
        "ms",
        MOST_MS,
        json!({"example": example, "yaml_ms": rounded(floor_ms)}),
    );
}
