//! What goes beyond a bound of the contract is refused, and the answer stays small.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::recipe::{MAX_RECIPE_BYTES, MAX_TASKS, Recipe};
use cofferdam_contracts::schema::Validator;
use serde_json::json;

fn recipe(tasks: usize) -> String {
    let list = |n: usize| format!("    - {{name: t{n}, value: x}}\n");
    let tasks: String = (0..tasks).map(list).collect();
    format!("id: many\nv: \"1\"\nplan:\n  tasks:\n{tasks}")
}

#[test]
fn a_recipe_has_at_most_so_many_bytes() {
    let text = recipe(1);
    let fits = format!("{text}#{}", "x".repeat(MAX_RECIPE_BYTES - text.len() - 1));
    assert_eq!(fits.len(), MAX_RECIPE_BYTES);
    assert!(Recipe::from_yaml("fits.yaml", &fits).is_ok());
    let refusal = Recipe::from_yaml("large.yaml", &format!("{fits}x")).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::RecipeInvalid);
    assert!(refusal.message.contains("262144 bytes"), "{refusal}");
}

#[test]
fn a_recipe_lists_at_most_so_many_tasks() {
    assert!(Recipe::from_yaml("fits.yaml", &recipe(MAX_TASKS)).is_ok());
    let refusal = Recipe::from_yaml("many.yaml", &recipe(MAX_TASKS + 1)).unwrap_err();
    assert!(refusal.message.contains("1 to 1000 tasks"), "{refusal}");
    assert!(Recipe::from_yaml("none.yaml", "id: a\nv: \"1\"\nplan: {tasks: []}").is_err());
}

#[test]
fn an_answer_lists_at_most_fifty_violations_and_echoes_no_huge_value() {
    let validator = Validator::compile(&json!({"items": {"type": "integer"}})).unwrap();
    let said = validator.violations(&json!(vec!["x".repeat(100_000); 60]));
    assert_eq!(said.len(), 50);
    assert!(said.iter().all(|violation| violation.message.chars().count() <= 300));
    assert_eq!(said[49].instance_path, "/49");
}
