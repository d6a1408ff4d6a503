//! The schemas of an OpenAPI document, each in one place under its title.

use serde_json::{Map, Value, json};

/// What an OpenAPI document has at `#/components/schemas`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Components(Map<String, Value>);

impl Components {
    /// A reference to a schema that has a title, which is kept under it; the schema itself otherwise. What it defines is kept in
    /// either case.
    #[must_use]
    pub fn named(&mut self, schema: Value) -> Value {
        match schema.get("title").and_then(Value::as_str).map(str::to_owned) {
            Some(title)
                if !["Array_of", "Map_of"].iter().any(|of| title.starts_with(of))
                    && title != "AnyValue" =>
            {
                self.hoist(&title, schema);
                json!({"$ref": format!("#/components/schemas/{title}")})
            }
            _ => self.inline(schema),
        }
    }

    /// Keeps a schema under this title, and what it defines under its own.
    pub fn hoist(&mut self, title: &str, schema: Value) {
        let schema = self.inline(schema);
        self.0.insert(title.to_owned(), schema);
    }

    /// All that are kept, by their titles.
    #[must_use]
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    fn inline(&mut self, mut schema: Value) -> Value {
        if let Some(object) = schema.as_object_mut() {
            object.remove("$schema");
            object.remove("title");
            if let Some(Value::Object(defs)) = object.remove("$defs") {
                for (name, def) in defs {
                    self.0.insert(name, relink(def));
                }
            }
        }
        relink(schema)
    }
}

/// `#/$defs/X` becomes `#/components/schemas/X`.
fn relink(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| {
                    // Classes of Unicode are no part of what every reader of patterns knows.
                    if name == "pattern" && value.as_str().is_some_and(|t| t.contains("\\p{")) {
                        return ("x-pattern".to_owned(), value);
                    }
                    match value.as_str().and_then(|t| t.strip_prefix("#/$defs/")) {
                        Some(target) if name == "$ref" => {
                            (name, json!(format!("#/components/schemas/{target}")))
                        }
                        _ => (name, relink(value)),
                    }
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(relink).collect()),
        other => other,
    }
}
