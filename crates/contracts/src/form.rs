//! Inputs that a recipe's form declares.

use serde_json::Value;

/// Names of inputs that an error lists.
const MAX_LISTED: usize = 20;
/// Keywords by which a schema may declare inputs elsewhere than in `properties`.
const COMPOSITION: [&str; 9] = [
    "$ref",
    "$dynamicRef",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "patternProperties",
    "dependentSchemas",
    "unevaluatedProperties",
];

/// Names of the inputs that a form declares, in its order. `None`: others are meant to be given too, or the form composes
/// schemas, so that its `properties` are not all of them.
#[must_use]
pub fn declared(form: &Value) -> Option<Vec<&str>> {
    let fields = form.as_object()?;
    if COMPOSITION.iter().any(|keyword| fields.contains_key(*keyword)) {
        return None;
    }
    match fields.get("additionalProperties") {
        None | Some(Value::Bool(false)) => {}
        Some(_) => return None,
    }
    let properties = fields.get("properties").and_then(Value::as_object);
    Some(properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect())
}

/// Whether a form refuses inputs that it does not declare, whichever way it says so.
#[must_use]
pub fn is_closed(form: &Value) -> bool {
    let closes = |keyword: &str| form.get(keyword).is_some_and(|all| *all != Value::Bool(true));
    closes("additionalProperties") || closes("unevaluatedProperties")
}

/// Why a name is not an input of this form; `None`: it is, or may be.
#[must_use]
pub fn undeclared(form: &Value, name: &str) -> Option<String> {
    let declared = declared(form)?;
    if declared.contains(&name) {
        return None;
    }
    let mut listed: Vec<&str> = declared.iter().copied().take(MAX_LISTED).collect();
    if declared.len() > MAX_LISTED {
        listed.push("..");
    }
    Some(match listed.is_empty() {
        true => "the recipe takes no inputs".to_owned(),
        false => format!("no such input; the recipe takes {}", listed.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_that_a_form_does_not_declare_is_known_unless_the_form_is_open() {
        let form = json!({"type": "object", "properties": {"repo": {}, "cmd": {}}});
        assert_eq!(undeclared(&form, "repo"), None);
        let why = undeclared(&form, "rpeo").unwrap();
        assert!(why.contains("cmd") && why.contains("repo"), "{why}");
        let none = json!({"type": "object"});
        assert_eq!(undeclared(&none, "x").unwrap(), "the recipe takes no inputs");
        let mut closed = form.clone();
        closed["additionalProperties"] = json!(false);
        assert!(undeclared(&closed, "rpeo").is_some());
        assert!(is_closed(&closed) && !is_closed(&form));
        for (keyword, schema) in [
            ("additionalProperties", json!(true)),
            ("additionalProperties", json!({"type": "string"})),
            ("patternProperties", json!({"^x": {}})),
            ("allOf", json!([{"properties": {"rpeo": {}}}])),
            ("$ref", json!("#/$defs/a")),
        ] {
            let mut open = form.clone();
            open[keyword] = schema;
            assert_eq!(undeclared(&open, "rpeo"), None, "{keyword}");
        }
        let many: serde_json::Map<String, Value> =
            (0..100).map(|n| (format!("n{n}"), json!({}))).collect();
        let why = undeclared(&json!({"properties": many}), "x").unwrap();
        assert!(why.ends_with(", .."), "{why}");
    }
}
