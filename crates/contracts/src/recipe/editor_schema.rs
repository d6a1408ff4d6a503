//! The JSON Schema of a recipe as an editor shows it: each field with examples, which are fields of recipes that are parsed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Recipe;
use crate::schema::schema_of;
use crate::yaml;

/// Recipes that have every field between them.
const RECIPES: [&str; 4] = [
    include_str!("../../tests/recipes/shortest.yaml"),
    include_str!("../../tests/recipes/every-field.yaml"),
    include_str!("../../tests/recipes/repository.yaml"),
    include_str!("../../tests/recipes/agent.yaml"),
];
/// Examples of one field: the shortest ones.
const MAX_EXAMPLES: usize = 3;
/// Bytes of the second and third, as JSON: an editor shows them in a box.
const MAX_EXAMPLE_BYTES: usize = 160;

/// The schema of [`Recipe`] with examples.
#[must_use]
pub fn editor_schema() -> Value {
    let mut schema = schema_of::<Recipe>();
    let recipes: Vec<Value> = RECIPES.iter().filter_map(|text| yaml::parse(text).ok()).collect();
    let examples = examples(&schema, &recipes);
    for (pointer, found) in examples {
        if let Some(Value::Object(field)) = schema.pointer_mut(&pointer) {
            field.insert("examples".to_owned(), json!(shortest(found)));
        }
    }
    schema
}

/// Values of every field, by the field's pointer in the schema. Each step goes down in the values, which end.
fn examples<'v>(schema: &Value, recipes: &'v [Value]) -> BTreeMap<String, Vec<&'v Value>> {
    let mut examples: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    let mut next = vec![(String::new(), recipes.iter().collect::<Vec<_>>())];
    while let Some((at, values)) = next.pop() {
        let Some(node) = schema.pointer(&at).filter(|_| !values.is_empty()) else { continue };
        if let Some(elsewhere) = node.get("$ref").and_then(Value::as_str) {
            next.push((elsewhere.trim_start_matches('#').to_owned(), values.clone()));
        }
        for keyword in ["oneOf", "anyOf", "allOf"] {
            let count = node.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
            next.extend((0..count).map(|i| (format!("{at}/{keyword}/{i}"), values.clone())));
        }
        if node.get("items").is_some() {
            let items = values.iter().filter_map(|value| value.as_array()).flatten().collect();
            next.push((format!("{at}/items"), items));
        }
        if node.get("additionalProperties").is_some_and(Value::is_object) {
            let fields = values.iter().filter_map(|value| value.as_object());
            let fields = fields.flat_map(|fields| fields.values()).collect();
            next.push((format!("{at}/additionalProperties"), fields));
        }
        let properties = node.get("properties").and_then(Value::as_object);
        for name in properties.into_iter().flat_map(|fields| fields.keys()) {
            let twin = twin(name);
            let found =
                values.iter().filter_map(|value| value.get(name).or_else(|| value.get(&twin)));
            let found: Vec<&Value> = found.collect();
            let field = format!("{at}/properties/{}", name.replace('~', "~0").replace('/', "~1"));
            if !found.is_empty() {
                examples.entry(field.clone()).or_default().extend(&found);
                next.push((field, found));
            }
        }
    }
    examples
}

/// A field's other spelling: requests write `memMB`, recipes `mem_mb`, and both are read.
fn twin(name: &str) -> String {
    let mut twin = String::new();
    let mut was_lower = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && was_lower {
            twin.push('_');
        }
        was_lower = c.is_ascii_lowercase();
        twin.push(c.to_ascii_lowercase());
    }
    twin
}

/// The shortest of them, each once.
fn shortest(mut found: Vec<&Value>) -> Vec<&Value> {
    found.sort_by_cached_key(|value| {
        let text = value.to_string();
        (text.len(), text)
    });
    found.dedup();
    let mut short = found.into_iter().enumerate();
    let short = short
        .by_ref()
        .filter(|(index, value)| *index == 0 || value.to_string().len() <= MAX_EXAMPLE_BYTES);
    short.map(|(_, value)| value).take(MAX_EXAMPLES).collect()
}
