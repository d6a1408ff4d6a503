//! `examples/recipe.schema.json`: what an editor shows of a recipe while it is written. Every field has a description and an
//! example, and every example is one that the field takes.

use std::collections::BTreeMap;

use cofferdam_contracts::recipe::{Recipe, editor_schema};
use cofferdam_contracts::schema::{Validator, schema_of};
use serde_json::{Value, json};

use crate::golden;

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test contracts editor_schema";
/// Fields that a recipe had when this law was made: fewer are a walk that lost its way.
const LEAST_FIELDS: usize = 115;
/// Characters of a description that says something.
const LEAST_WORDS: usize = 10;

/// Every field of every object in a schema, by its pointer.
fn fields(schema: &Value) -> BTreeMap<String, &Value> {
    let mut found = BTreeMap::new();
    let mut next = vec![(String::new(), schema)];
    while let Some((at, node)) = next.pop() {
        match node {
            Value::Object(members) => {
                for (name, member) in members {
                    let is_example = ["examples", "default", "enum"].contains(&name.as_str());
                    if is_example && !at.ends_with("/properties") {
                        continue;
                    }
                    let inner = format!("{at}/{name}");
                    if at.ends_with("/properties") {
                        found.insert(inner.clone(), member);
                    }
                    next.push((inner, member));
                }
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                next.extend(items.map(|(i, item)| (format!("{at}/{i}"), item)));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn every_field_of_a_recipe_is_described_with_an_example() {
    let schema = editor_schema();
    let fields = fields(&schema);
    let lacks = |field: &Value| {
        let description = field["description"].as_str().unwrap_or_default();
        let examples = field["examples"].as_array().map_or(0, Vec::len);
        (description.len() < LEAST_WORDS, examples == 0)
    };
    let lacking: Vec<_> = fields
        .iter()
        .filter(|(_, field)| lacks(field) != (false, false))
        .map(|(at, field)| (at, lacks(field)))
        .collect();
    let (described, all) = (fields.len() - lacking.len(), fields.len());
    assert!(lacking.is_empty(), "{described} of {all}; (no description, no example): {lacking:#?}");
    assert!(all >= LEAST_FIELDS, "only {all} fields were found");
}

#[test]
fn every_example_is_one_that_its_field_takes() {
    let schema = editor_schema();
    for (at, field) in fields(&schema) {
        let whole = json!({"$defs": schema["$defs"], "allOf": [field]});
        let validator = Validator::compile(&whole).unwrap();
        for example in field["examples"].as_array().unwrap() {
            assert_eq!(validator.violations(example), vec![], "{at}: {example}");
        }
    }
}

#[test]
fn the_examples_alone_are_added_to_the_published_schema() {
    let mut schema = editor_schema();
    let pointers: Vec<String> = fields(&schema).into_keys().collect();
    for at in pointers {
        schema.pointer_mut(&at).unwrap().as_object_mut().unwrap().remove("examples");
    }
    assert_eq!(schema, schema_of::<Recipe>());
}

#[test]
fn editor_schema_is_its_golden() {
    let text = format!("{:#}\n", editor_schema());
    golden::hold_text(
        env!("CARGO_MANIFEST_DIR"),
        "../../examples/recipe.schema.json",
        &text,
        WRITES,
    );
}
