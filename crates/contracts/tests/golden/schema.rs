//! What a JSON Schema of ours says of a field, in words: for pages of `docs/reference`.

use serde_json::{Map, Value};

use super::page::{code, plain, sentence};

/// The definitions that the references of a schema lead to.
pub struct Types<'a> {
    /// By name.
    pub definitions: &'a Map<String, Value>,
}

/// One field of an object.
pub struct Field<'a> {
    /// Its name in a document.
    pub name: &'a str,
    /// Its own schema.
    pub schema: &'a Value,
    /// What it says of itself, as it was written.
    pub about: &'a str,
    /// Whether a document must have it.
    pub is_required: bool,
}

/// The fields of an object, those that it must have first. Of two spellings of one field the one with `_` is shown.
pub fn fields(object: &Value) -> Vec<Field<'_>> {
    let required: Vec<&str> =
        object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = object["properties"].as_object();
    let is_spelled = |name: &str, other: &str| other != name && other.replace('_', "") == *name;
    let mut fields: Vec<Field<'_>> = properties
        .into_iter()
        .flatten()
        .filter(|(name, _)| {
            let lower = name.to_lowercase();
            !properties.into_iter().flatten().any(|(other, _)| is_spelled(&lower, other))
        })
        .map(|(name, schema)| {
            let is_required = required.contains(&name.as_str());
            Field { name, schema, about: about(schema), is_required }
        })
        .collect();
    fields.sort_by_key(|field| !field.is_required);
    fields
}

impl<'a> Field<'a> {
    /// A parameter of an operation.
    pub fn parameter(parameter: &'a Value) -> Self {
        let name = parameter["name"].as_str().unwrap();
        let is_required = parameter["required"] == true;
        Self { name, schema: &parameter["schema"], about: about(parameter), is_required }
    }
}

impl<'a> Types<'a> {
    /// What a schema is behind its references, without the `null` that stands for its absence.
    pub fn resolved(&self, schema: &'a Value) -> &'a Value {
        if let Some(name) = name_of(schema) {
            return self.resolved(&self.definitions[name]);
        }
        match schema["anyOf"].as_array().map(Vec::as_slice) {
            Some([one, null]) if null["type"] == "null" => self.resolved(one),
            _ => schema,
        }
    }

    /// The schemas that a schema may be: itself, or each of its alternatives.
    pub fn alternatives(&self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolved(schema);
        match schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array()) {
            Some(all) => all.iter().flat_map(|one| self.alternatives(one)).collect(),
            None => vec![schema],
        }
    }

    /// The type in words. `object` names an object.
    pub fn kind(&self, schema: &'a Value, object: &dyn Fn(&'a Value) -> String) -> String {
        if duration(schema) {
            return "duration".to_owned();
        }
        let all = self.alternatives(schema);
        let mut kinds: Vec<String> = Vec::new();
        for kind in all.into_iter().flat_map(|one| self.kinds(one, object)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        match kinds.as_slice() {
            [] => "anything".to_owned(),
            [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            [one, ..] => one.clone(),
        }
    }

    fn kinds(&self, schema: &'a Value, object: &dyn Fn(&'a Value) -> String) -> Vec<String> {
        if let Some(value) = schema["const"].as_str() {
            return vec![code(value)];
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.iter().filter_map(Value::as_str).map(code).collect();
        }
        let of = |kind: &str| match kind {
            "string" => word(schema).map_or_else(|| "text".to_owned(), code),
            "boolean" => "true or false".to_owned(),
            "array" => match schema.get("items") {
                Some(items) => format!("list of {}", self.kind(items, object)),
                None => "list".to_owned(),
            },
            "object" if schema.get("properties").is_some() => object(schema),
            "object" => match schema.get("additionalProperties").filter(|of| of.is_object()) {
                Some(values) => format!("map of {}", self.kind(values, object)),
                None => "object".to_owned(),
            },
            other => other.to_owned(),
        };
        match &schema["type"] {
            Value::String(kind) => vec![of(kind)],
            Value::Array(kinds) => kinds
                .iter()
                .filter_map(Value::as_str)
                .filter(|kind| *kind != "null")
                .map(of)
                .collect(),
            _ => Vec::new(),
        }
    }

    /// A field in one sentence: its name, its type and bounds, what it says of itself, and its default. `object` names an object.
    pub fn line(
        &self,
        name: &str,
        field: &Field<'a>,
        object: &dyn Fn(&'a Value) -> String,
    ) -> String {
        let required = if field.is_required { "**required**" } else { "" };
        let mut brackets =
            vec![self.kind(field.schema, object), self.bounds(field.schema), required.to_owned()];
        brackets.retain(|part| !part.is_empty());
        let brackets = match brackets.join("; ") {
            // All that it may be.
            text if text == "null" => String::new(),
            text => format!(" ({text})"),
        };
        let mut parts = vec![format!("{name}{brackets}:"), sentence(&plain(field.about))];
        parts.extend(default(field.schema).map(|default| format!("Default: {default}.")));
        parts.retain(|part| !part.is_empty());
        parts.join(" ")
    }

    /// Least and greatest value, lengths and form, in words.
    pub fn bounds(&self, schema: &'a Value) -> String {
        if duration(schema) {
            return String::new();
        }
        let all = self.alternatives(schema);
        let mut said: Vec<String> = Vec::new();
        for one in all.into_iter().filter(|one| one.get("const").is_none()) {
            let least = ["minimum", "minLength", "minItems"].map(|key| one.get(key));
            let most = ["maximum", "maxLength", "maxItems"].map(|key| one.get(key));
            let units = ["", " characters", " entries"];
            for ((least, most), unit) in least.into_iter().zip(most).zip(units) {
                match (least, most) {
                    (least, Some(most)) if least.is_some_and(|least| least == most) => {
                        said.push(format!("{}{unit}", grouped(most)));
                    }
                    (Some(least), Some(most)) => {
                        said.push(format!("{} to {}{unit}", grouped(least), grouped(most)));
                    }
                    (None, Some(most)) => said.push(format!("at most {}{unit}", grouped(most))),
                    (Some(least), None) if least.as_f64().is_some_and(|least| least > 1.0) => {
                        said.push(format!("at least {}{unit}", grouped(least)));
                    }
                    _ => {}
                }
            }
            if let Some(pattern) = one["pattern"].as_str().filter(|_| word(one).is_none()) {
                said.push(code(pattern));
            }
        }
        said.join("; ")
    }
}

/// The name of the definition that a schema refers to.
fn name_of(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str().and_then(|target| target.rsplit('/').next())
}

/// Whether a schema is our duration, whose pattern is a riddle to a reader.
fn duration(schema: &Value) -> bool {
    let is_one = |schema: &Value| name_of(schema) == Some("Duration");
    is_one(schema) || schema["anyOf"].as_array().is_some_and(|all| all.iter().any(is_one))
}

/// The only text that a pattern allows: `none` of `^none$`.
fn word(schema: &Value) -> Option<&str> {
    let inside = schema["pattern"].as_str()?.strip_prefix('^')?.strip_suffix('$')?;
    inside.chars().all(|c| c.is_ascii_lowercase()).then_some(inside)
}

/// A number as a page has it: `4,194,304`.
fn grouped(number: &Value) -> String {
    let text = match number.as_f64() {
        // An integer is written as it is: no float has all of its digits.
        Some(whole) if number.is_f64() && whole.fract() == 0.0 => format!("{whole:.0}"),
        _ => number.to_string(),
    };
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let digits = whole.len();
    let mut said = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0
            && (digits - at).is_multiple_of(3)
            && digit.is_ascii_digit()
            && !said.ends_with('-')
        {
            said.push(',');
        }
        said.push(digit);
    }
    if rest.is_empty() { said } else { format!("{said}.{rest}") }
}

/// The name of an object that is not opened.
pub fn unopened(_: &Value) -> String {
    "object".to_owned()
}

/// What a schema says of itself.
pub fn description(schema: &Value) -> String {
    sentence(&plain(about(schema)))
}

fn about(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// A default that is worth its words: an empty list or object is what a reader expects.
pub fn default(schema: &Value) -> Option<String> {
    let default = schema.get("default")?;
    let is_empty = default.as_object().is_some_and(Map::is_empty)
        || default.as_array().is_some_and(Vec::is_empty)
        || default.is_null();
    (!is_empty).then(|| code(&flow(default)))
}

/// A value in one line, as YAML takes it.
pub fn flow(value: &Value) -> String {
    match value {
        Value::String(text) if is_bare(text) => text.clone(),
        Value::Array(all) => {
            format!("[{}]", all.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Object(all) => {
            let pairs: Vec<String> =
                all.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}

/// Whether YAML reads a text without quotes as itself, also within brackets.
fn is_bare(text: &str) -> bool {
    const OTHERS: [&str; 3] = ["true", "false", "null"];
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " _./=+-".contains(c);
    text.chars().all(is_plain)
        && text.trim() == text
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.parse::<f64>().is_err()
        && !OTHERS.contains(&text)
}
