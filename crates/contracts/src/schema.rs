//! Validation at the boundary, every violation listed, and the JSON Schemas that are published.

mod components;
mod pattern;
mod steps;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::duration::{self, Duration};
use crate::egress::{ENTRY_PATTERN, Entry};
use crate::error::{ErrorCode, Refusal, Violation};

pub use components::Components;
pub use pattern::MAX_PATTERN_BYTES;
use pattern::Patterns;
pub use steps::{MAX_CHECK_STEPS, MAX_SCHEMA_PARTS};

/// Violations that are reported at once: enough to mend a form in one go, small enough to send.
const MAX_VIOLATIONS: usize = 50;

/// The JSON Schema (2020-12) of a type as requests must fit it.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// Steps of a check whose violations are all listed: the library makes every one of them before the first is taken. Beyond it the first
/// alone is told.
const MAX_LISTED_STEPS: u64 = 100_000;
/// Bytes of one compiled pattern: its automaton both ways, and what the engine keeps beside it.
const MAX_PATTERN_MEMORY: usize = 4 * pattern::MAX_AUTOMATON_BYTES;

/// A compiled schema, which checks nothing whose steps are beyond [`MAX_CHECK_STEPS`].
#[derive(Debug)]
pub struct Validator {
    compiled: jsonschema::Validator,
    schema: Value,
    patterns: Patterns,
    /// A property of it is `writeOnly`, as a secret is: no value is repeated in a violation.
    is_masked: bool,
}

impl Validator {
    /// Compiles a schema whose work can be bounded. Patterns run in a linear engine.
    ///
    /// # Errors
    /// `recipe_invalid`: it is not a JSON Schema, or one that expands without bound, looks around in a pattern or refers elsewhere.
    pub fn compile(schema: &Value) -> Result<Self, Refusal> {
        let refused = |why: String| Refusal::new(ErrorCode::RecipeInvalid, why);
        let bounded = steps::bounds(schema);
        let patterns = bounded.map_err(|why| refused(format!("the schema is refused: {why}")))?;
        let compiled = jsonschema::draft202012::options()
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN_MEMORY))
            .offline()
            .build(schema)
            .map_err(|e| refused(format!("not a JSON Schema: {e}")))?;
        let properties = schema["properties"].as_object().into_iter().flatten();
        let is_masked = properties.into_iter().any(|(_, of)| of["writeOnly"] == true);
        Ok(Self { compiled, schema: schema.clone(), patterns, is_masked })
    }

    /// Every violation, up to a bound; of a check that is long the first alone.
    #[must_use]
    pub fn violations(&self, value: &Value) -> Vec<Violation> {
        let violation = |e: &ValidationError<'_>| Violation {
            instance_path: e.instance_path().to_string(),
            message: words(e, self.is_masked),
        };
        match steps::charge(&self.schema, &self.patterns, value) {
            None => {
                let message = format!(
                    "checking this takes more than {MAX_CHECK_STEPS} steps; send less, or bound it in the schema"
                );
                vec![Violation { instance_path: String::new(), message }]
            }
            // Without a violation nothing is made of any.
            Some(_) if self.compiled.is_valid(value) => Vec::new(),
            Some(steps) if steps > MAX_LISTED_STEPS => {
                self.compiled.validate(value).err().iter().map(violation).collect()
            }
            Some(_) => self
                .compiled
                .iter_errors(value)
                .take(MAX_VIOLATIONS)
                .map(|e| violation(&e))
                .collect(),
        }
    }

    /// `Ok` where the value fits.
    pub fn check(&self, value: &Value) -> Result<(), Refusal> {
        let violations = self.violations(value);
        if violations.is_empty() { Ok(()) } else { Err(Refusal::violations(&violations)) }
    }
}

/// A violation as a person reads it. A pattern is a riddle: where it has a parser, that says what is wrong.
fn words(error: &ValidationError<'_>, is_masked: bool) -> String {
    if is_masked {
        return error.masked_with("what was given").to_string().chars().take(300).collect();
    }
    let text = error.instance().as_str();
    let parsed = match error.kind() {
        ValidationErrorKind::Pattern { pattern } if pattern == ENTRY_PATTERN => {
            text.and_then(|text| text.parse::<Entry>().err()).map(|why| why.to_string())
        }
        ValidationErrorKind::Pattern { pattern } if pattern == duration::PATTERN => {
            text.and_then(|text| text.parse::<Duration>().err()).map(|why| why.to_string())
        }
        _ => None,
    };
    parsed.unwrap_or_else(|| error.to_string().chars().take(300).collect())
}

/// Bytes of a request into JSON: the first thing that happens to a body. An object that names a
/// member twice has no one meaning, so it is refused as well.
pub fn parse_json(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice::<strict::Strict>(body).map(|strict| strict.0).map_err(|_| {
        Refusal::new(
            ErrorCode::InvalidJson,
            "the body is not valid JSON; send one document in UTF-8, each member named once",
        )
    })
}

/// What no row can hold as it is: a NUL in a text, or a whole number that the canonical form, whose
/// numbers are doubles, would change (so that two different inputs would have one hash).
#[must_use]
pub fn unstorable(value: &Value) -> Option<&'static str> {
    const MAX_SAFE: u64 = 1 << 53;
    match value {
        Value::String(text) if text.contains('\0') => Some("a text holds a NUL character"),
        Value::Number(n)
            if n.as_u64().is_some_and(|n| n > MAX_SAFE)
                || n.as_i64().is_some_and(|n| n.unsigned_abs() > MAX_SAFE) =>
        {
            Some("a whole number is beyond 2^53: send it as a text")
        }
        Value::Array(items) => items.iter().find_map(unstorable),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            if name.contains('\0') {
                Some("a name holds a NUL character")
            } else {
                unstorable(value)
            }
        }),
        _ => None,
    }
}

mod strict {
    //! JSON whose objects name each member once.

    use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
    use serde_json::{Map, Number, Value};

    pub(super) struct Strict(pub Value);

    impl<'de> Deserialize<'de> for Strict {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(Any).map(Strict)
        }
    }

    struct Any;

    impl<'de> Visitor<'de> for Any {
        type Value = Value;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("JSON")
        }
        fn visit_unit<E>(self) -> Result<Value, E> {
            Ok(Value::Null)
        }
        fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
            Ok(Value::Bool(b))
        }
        fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
            Ok(Value::from(n))
        }
        fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
            Ok(Value::from(n))
        }
        fn visit_f64<E: Error>(self, n: f64) -> Result<Value, E> {
            Number::from_f64(n).map(Value::Number).ok_or_else(|| E::custom("not a number"))
        }
        fn visit_str<E>(self, text: &str) -> Result<Value, E> {
            Ok(Value::from(text))
        }
        fn visit_string<E>(self, text: String) -> Result<Value, E> {
            Ok(Value::String(text))
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
            let mut items = Vec::new();
            while let Some(Strict(item)) = seq.next_element()? {
                items.push(item);
            }
            Ok(Value::Array(items))
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
            let mut fields = Map::new();
            while let Some((name, Strict(value))) = map.next_entry::<String, Strict>()? {
                if fields.contains_key(&name) {
                    return Err(A::Error::custom("a member is named twice"));
                }
                fields.insert(name, value);
            }
            Ok(Value::Object(fields))
        }
    }
}

/// Fills in the defaults of an object schema's properties, one level deep, as forms do.
pub fn with_defaults(schema: &Value, data: &mut Value) {
    let (Some(properties), Some(object)) =
        (schema.get("properties").and_then(Value::as_object), data.as_object_mut())
    else {
        return;
    };
    for (name, property) in properties {
        if let Some(default) = property.get("default")
            && !object.contains_key(name)
        {
            object.insert(name.clone(), default.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_member_that_is_named_twice_is_no_json() {
        assert!(parse_json(br#"{"choice":"no","choice":"yes"}"#).is_err());
        assert!(parse_json(br#"[{"a":{"b":1,"b":1}}]"#).is_err());
        let all = br#"{"a":[1,-2,3.5,true,null,"x"],"b":{"c":{}}}"#;
        assert_eq!(parse_json(all).unwrap(), serde_json::from_slice::<Value>(all).unwrap());
    }

    #[test]
    fn a3f3_violations_are_listed_within_a_budget_of_their_own() {
        let schema = json!({"items": {"allOf": vec![json!({"type": "string"}); 8]}});
        let validator = Validator::compile(&schema).unwrap();
        assert_eq!(validator.violations(&json!([1, 2, 3])).len(), 24);
        assert_eq!(validator.violations(&json!(vec![1; 100_000])).len(), 1);
        assert!(validator.violations(&json!(vec!["x"; 100_000])).is_empty());
        assert!(validator.violations(&json!(vec![1; 1_000_000]))[0].message.contains("steps"));
    }

    #[test]
    fn what_a_row_would_change_is_named() {
        assert!(unstorable(&json!({"a": ["x\0"]})).is_some());
        assert!(unstorable(&json!({"a\0": 1})).is_some());
        assert!(unstorable(&json!([9_007_199_254_740_993_u64])).is_some());
        assert!(unstorable(&json!([-9_007_199_254_740_993_i64])).is_some());
        assert!(unstorable(&json!({"a": [9_007_199_254_740_992_u64, 1.5, "x"]})).is_none());
    }
}
