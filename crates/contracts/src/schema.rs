//! Validation at the boundary, every violation listed, and the JSON Schemas that are published.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{ErrorCode, Refusal, Violation};

/// Violations that are reported at once: enough to mend a form in one go, small enough to send.
const MAX_VIOLATIONS: usize = 50;

/// The JSON Schema (2020-12) of a type as requests must fit it.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// A compiled schema.
#[derive(Debug)]
pub struct Validator(jsonschema::Validator);

impl Validator {
    /// Compiles a schema, or says why it is none.
    pub fn compile(schema: &Value) -> Result<Self, Refusal> {
        jsonschema::draft202012::options()
            .build(schema)
            .map(Self)
            .map_err(|e| Refusal::new(ErrorCode::RecipeInvalid, format!("not a JSON Schema: {e}")))
    }

    /// Every violation, up to a bound.
    #[must_use]
    pub fn violations(&self, value: &Value) -> Vec<Violation> {
        self.0
            .iter_errors(value)
            .take(MAX_VIOLATIONS)
            .map(|e| Violation {
                instance_path: e.instance_path().to_string(),
                message: e.to_string().chars().take(300).collect(),
            })
            .collect()
    }

    /// `Ok` where the value fits.
    pub fn check(&self, value: &Value) -> Result<(), Refusal> {
        let violations = self.violations(value);
        if violations.is_empty() { Ok(()) } else { Err(Refusal::violations(&violations)) }
    }
}

/// Bytes of a request into JSON: the first thing that happens to a body.
pub fn parse_json(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|_| Refusal::new(ErrorCode::InvalidJson, "invalid json"))
}

/// JSON into a strict type: schema first, so that every violation is listed, then the type itself.
pub fn parse_value<T: DeserializeOwned>(validator: &Validator, value: Value) -> Result<T, Refusal> {
    validator.check(&value)?;
    serde_json::from_value(value).map_err(|e| {
        Refusal::violations(&[Violation { instance_path: String::new(), message: e.to_string() }])
    })
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
