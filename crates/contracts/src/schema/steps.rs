//! How much work a schema is, counted before any of it is done: a tenant writes the schema of a form, and the text it is held against.
//!
//! ```text
//! schema            --bounds-->  expanded size, references, patterns: refused at import
//! schema x instance --charge-->  steps that a validator may take at most: refused before it takes them
//! ```
//! Neither recurses, and both end as soon as their budget is spent.

use std::rc::Rc;

use serde_json::Value;

use super::pattern::Patterns;

/// Parts of a schema with each local reference put in its place. The largest schema of our own has some 30,000.
pub const MAX_SCHEMA_PARTS: usize = 100_000;
/// Steps of one check: a body of a megabyte takes half of them. The worst schema that was found took 0.45 µs a step, unoptimised.
pub const MAX_CHECK_STEPS: u64 = 4_000_000;
/// Bytes of a reference.
const MAX_REFERENCE_BYTES: usize = 256;
/// Levels of a schema, which its compiler descends.
const MAX_DEPTH: usize = 96;
/// Bytes of a text that take about as long as one step.
const TEXT_STEP: u64 = 8;

/// Keywords whose value is data, not a schema.
const DATA: [&str; 5] = ["enum", "const", "default", "examples", "example"];
/// Keywords that make an answer depend on how a reference was reached, or on what other keywords looked at.
const UNBOUNDED: [&str; 7] = [
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$anchor",
    "$id",
    "unevaluatedProperties",
    "unevaluatedItems",
];
/// Keywords whose schemas look at the same value once more.
const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];

/// References on the way to a part of a schema, by what they lead to: one part has many names.
struct Chain<'a> {
    target: &'a Value,
    before: Option<Rc<Chain<'a>>>,
    length: usize,
}

impl<'a> Chain<'a> {
    fn has(chain: Option<&Rc<Self>>, target: &Value) -> bool {
        let mut at = chain;
        while let Some(link) = at {
            if std::ptr::eq(link.target, target) {
                return true;
            }
            at = link.before.as_ref();
        }
        false
    }

    fn after(before: Option<&Rc<Self>>, target: &'a Value) -> Rc<Self> {
        let length = before.map_or(0, |chain| chain.length).saturating_add(1);
        Rc::new(Self { target, before: before.cloned(), length })
    }
}

/// Refuses a schema whose work no bound on its input could hold, in words with the remedy. Gives its patterns, for [`charge`].
pub(super) fn bounds(schema: &Value) -> Result<Patterns, String> {
    let (mut parts, mut known) = (0_usize, Patterns::default());
    let mut left: Vec<(&Value, usize, Option<Rc<Chain<'_>>>)> = vec![(schema, 0, None)];
    while let Some((part, depth, chain)) = left.pop() {
        parts = parts.saturating_add(1);
        if parts > MAX_SCHEMA_PARTS {
            return Err(format!(
                "it has more than {MAX_SCHEMA_PARTS} parts once each $ref is put in its place; name fewer alternatives"
            ));
        }
        let hops = chain.as_ref().map_or(0, |chain| chain.length);
        if depth.saturating_add(hops) > MAX_DEPTH {
            return Err(format!("it is more than {MAX_DEPTH} levels deep"));
        }
        let below = depth.saturating_add(1);
        match part {
            Value::Array(items) => {
                left.extend(items.iter().map(|item| (item, below, chain.clone())));
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    if DATA.contains(&name.as_str()) {
                        continue;
                    }
                    // A property may have any of these names: then its value is a schema and no text.
                    if let (true, Some(what)) =
                        (value.is_string() || name.starts_with("unev"), unbounded(name))
                    {
                        return Err(what);
                    }
                    if let ("$ref", Some(target)) = (name.as_str(), value.as_str()) {
                        if target.len() > MAX_REFERENCE_BYTES {
                            return Err(format!("a $ref has at most {MAX_REFERENCE_BYTES} bytes"));
                        }
                        let found = resolve(schema, target).ok_or_else(|| foreign(target))?;
                        if !Chain::has(chain.as_ref(), found) {
                            let chain = Chain::after(chain.as_ref(), found);
                            left.push((found, depth, Some(chain)));
                        }
                        continue;
                    }
                    match (name.as_str(), value) {
                        ("pattern", Value::String(pattern)) => {
                            known.add(pattern)?;
                        }
                        ("patternProperties", Value::Object(patterns)) => {
                            patterns.keys().try_for_each(|pattern| known.add(pattern))?;
                        }
                        _ => {}
                    }
                    left.push((value, below, chain.clone()));
                }
            }
            _ => {}
        }
    }
    Ok(known)
}

fn unbounded(name: &str) -> Option<String> {
    let found = UNBOUNDED.iter().find(|known| **known == name)?;
    let remedy = match *found {
        "unevaluatedProperties" => "use additionalProperties",
        "unevaluatedItems" => "use items",
        _ => "refer to a part of this schema by its path, such as #/$defs/name",
    };
    Some(format!("{found} is not taken; {remedy}"))
}

fn foreign(target: &str) -> String {
    let shown: String = target.chars().take(80).collect();
    format!("$ref {shown:?} is not a path in this schema, such as #/$defs/name")
}

/// A local reference.
fn resolve<'a>(schema: &'a Value, target: &str) -> Option<&'a Value> {
    let path = target.strip_prefix('#')?;
    if !path.contains('%') {
        return schema.pointer(path);
    }
    // Names of definitions with blanks and the like are written in percent.
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let text = std::str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(text, 16).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    schema.pointer(std::str::from_utf8(&bytes).ok()?)
}

/// What a part of a schema is held against: a value, or the name of a member.
#[derive(Clone, Copy)]
enum Part<'a> {
    Value(&'a Value),
    Name(&'a str),
}

impl<'a> Part<'a> {
    fn text(self) -> Option<&'a str> {
        match self {
            Self::Value(Value::String(text)) => Some(text),
            Self::Name(text) => Some(text),
            Self::Value(_) => None,
        }
    }

    /// Steps of comparing it with another value: texts of one length are compared byte by byte.
    fn compared(self) -> Option<u64> {
        match self {
            Self::Name(text) => Some((count(text.len()) / 64).saturating_add(1)),
            Self::Value(value) => size(value),
        }
    }
}

/// The steps of a check at most. `None`: more than [`MAX_CHECK_STEPS`].
pub(super) fn charge(schema: &Value, known: &Patterns, instance: &Value) -> Option<u64> {
    let mut steps = 0_u64;
    let mut left: Vec<(&Value, Part<'_>)> = vec![(schema, Part::Value(instance))];
    while let Some((part, held)) = left.pop() {
        let Value::Object(fields) = part else {
            steps = spent(steps, 1)?;
            continue;
        };
        steps = spent(steps, 1)?;
        for (name, of) in fields {
            steps = spent(steps, 1)?;
            match (name.as_str(), of) {
                ("$ref", Value::String(target)) => {
                    steps = spent(steps, count(target.len()))?;
                    left.extend(resolve(schema, target).map(|found| (found, held)));
                }
                (name, Value::Array(all)) if IN_PLACE.contains(&name) => {
                    left.extend(all.iter().map(|one| (one, held)));
                }
                (name, one) if IN_PLACE.contains(&name) => left.push((one, held)),
                ("pattern", Value::String(pattern)) => {
                    let text = held.text().unwrap_or_default();
                    steps = spent(steps, known.steps(pattern, text))?;
                }
                ("format" | "minLength" | "maxLength", _) => {
                    steps = spent(steps, count(held.text().map_or(0, str::len)) / TEXT_STEP)?;
                }
                ("enum", Value::Array(all)) => {
                    let each = held.compared()?;
                    steps = spent(steps, each.saturating_mul(count(all.len())))?;
                }
                ("const", _) => steps = spent(steps, held.compared()?)?,
                _ => {}
            }
            // A name has no parts: what follows looks at those of a value.
            let Part::Value(value) = held else { continue };
            match (name.as_str(), of, value) {
                ("properties", Value::Object(named), Value::Object(members)) => {
                    steps = spent(steps, count(named.len()))?;
                    left.extend(
                        named
                            .iter()
                            .filter_map(|(name, one)| Some((one, Part::Value(members.get(name)?)))),
                    );
                }
                ("dependentSchemas", Value::Object(all), Value::Object(_)) => {
                    left.extend(all.values().map(|one| (one, held)));
                }
                ("patternProperties", Value::Object(patterns), Value::Object(members)) => {
                    for (pattern, one) in patterns {
                        for (name, member) in members {
                            steps = spent(steps, known.steps(pattern, name))?;
                            left.push((one, Part::Value(member)));
                        }
                        enough(left.len())?;
                    }
                }
                ("additionalProperties", one, Value::Object(members)) => {
                    let own = fields.get("properties").and_then(Value::as_object);
                    let other = fields.get("patternProperties").and_then(Value::as_object);
                    let patterns = other.map_or(0, serde_json::Map::len);
                    let each = count(patterns).saturating_add(1);
                    steps = spent(steps, each.saturating_mul(count(members.len())))?;
                    let named = |name: &String| own.is_some_and(|own| own.contains_key(name));
                    left.extend(
                        members
                            .iter()
                            .filter(|(name, _)| !named(name))
                            .map(|(_, member)| (one, Part::Value(member))),
                    );
                }
                ("propertyNames", one, Value::Object(members)) => {
                    left.extend(members.keys().map(|name| (one, Part::Name(name))));
                }
                ("items" | "contains" | "additionalItems", one, Value::Array(items)) => {
                    left.extend(items.iter().map(|item| (one, Part::Value(item))));
                }
                ("prefixItems", Value::Array(ones), Value::Array(items)) => {
                    left.extend(ones.iter().zip(items.iter().map(Part::Value)));
                }
                ("uniqueItems", Value::Bool(true), Value::Array(_)) => {
                    steps = spent(steps, size(value)?.saturating_mul(4))?;
                }
                ("required" | "dependentRequired", of, Value::Object(_)) => {
                    steps = spent(steps, size(of)?)?;
                }
                _ => {}
            }
            enough(left.len())?;
        }
    }
    Some(steps)
}

/// Parts of a value.
fn size(value: &Value) -> Option<u64> {
    let (mut steps, mut left) = (0_u64, vec![value]);
    while let Some(part) = left.pop() {
        steps = spent(steps, 1)?;
        match part {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => left.extend(fields.values()),
            Value::String(text) => steps = spent(steps, count(text.len()) / 64)?,
            _ => {}
        }
    }
    Some(steps)
}

fn spent(steps: u64, more: u64) -> Option<u64> {
    steps.checked_add(more).filter(|steps| *steps <= MAX_CHECK_STEPS)
}

/// What is still to be looked at is steps as well, and memory.
fn enough(left: usize) -> Option<()> {
    (count(left) <= MAX_CHECK_STEPS / 4).then_some(())
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bounded(schema: &Value) -> Result<(), String> {
        bounds(schema).map(|_| ())
    }

    fn charged(schema: &Value, value: &Value) -> Option<u64> {
        charge(schema, &bounds(schema).unwrap(), value)
    }

    /// `anyOf` of two references, `levels` times: 2^levels ways.
    fn doubling(levels: usize) -> Value {
        let mut defs = serde_json::Map::new();
        for n in 0..levels {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            defs.insert(format!("d{n}"), json!({"anyOf": [next, next]}));
        }
        defs.insert(format!("d{levels}"), json!({"const": "never"}));
        json!({"type": "object", "properties": {"s": {"$ref": "#/$defs/d0"}}, "$defs": defs})
    }

    #[test]
    fn a3f3_a_schema_that_doubles_is_refused_before_it_is_compiled() {
        assert_eq!(bounded(&doubling(4)), Ok(()));
        for levels in [16, 20] {
            let why = bounded(&doubling(levels)).unwrap_err();
            assert!(why.contains("parts once each $ref"), "{why}");
        }
        // A schema that refers to itself has an end where its instance has.
        let tree = json!({"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}});
        assert_eq!(bounded(&tree), Ok(()));
        assert!(charged(&tree, &json!({"below": [{"below": []}, {}]})).unwrap() < 40);
        // One that refers to itself for the same value has none.
        assert_eq!(charged(&json!({"$ref": "#"}), &json!(1)), None);
    }

    #[test]
    fn a3f3_patterns_that_look_around_or_back_are_refused_with_the_remedy() {
        for pattern in ["(?<=(a|a|a|a)*)b", "(a*)*\\1", "^(?!x)y", "(?<n>a)\\k<n>"] {
            for schema in [json!({"pattern": pattern}), json!({"patternProperties": {pattern: {}}})]
            {
                let why = bounded(&schema).unwrap_err();
                assert!(why.contains("looks around or back; write it without"), "{why}");
            }
        }
        for pattern in ["^[a-z]+$", r"^\\1$", r"\d{2,4}", "(?:a|b)+", "^[^\\x00-\\x1f]*$"] {
            assert_eq!(bounded(&json!({"pattern": pattern})), Ok(()), "{pattern}");
        }
        // A property may be called as a keyword is.
        let named =
            json!({"properties": {"$id": {"type": "string"}, "pattern": {"type": "string"}}});
        assert_eq!(bounded(&named), Ok(()));
        assert!(bounded(&json!({"$ref": "other.json"})).unwrap_err().contains("#/$defs/name"));
        assert!(
            bounded(&json!({"unevaluatedProperties": false})).unwrap_err().contains("additional")
        );
    }

    #[test]
    fn a3f3_what_a_form_and_its_text_multiply_to_is_charged() {
        let over = |schema: Value, value: Value| {
            assert_eq!(bounded(&schema), Ok(()));
            assert_eq!(charged(&schema, &value), None, "{}", schema.to_string().len());
        };
        let many: Vec<Value> = (0..8_000).map(|n| json!({"k": n})).collect();
        over(json!({"items": {"enum": many}}), json!(vec![json!({"k": -1}); 40_000]));
        let either: Vec<Value> = (0..2_000).map(|n| json!({"const": n})).collect();
        over(json!({"contains": {"anyOf": either}}), json!(vec!["x"; 40_000]));
        let patterns: serde_json::Map<_, _> =
            (0..200).map(|n| (format!("a+b{n}"), json!({}))).collect();
        let members: serde_json::Map<_, _> =
            (0..60).map(|n| (format!("{}{n}", "a".repeat(4_000)), json!(1))).collect();
        over(json!({"patternProperties": patterns}), Value::Object(members));
        over(json!({"pattern": "^(a{1,50}){1,50}b$"}), json!("a".repeat(900_000)));
        // Two ways at each level of the value: 2^depth.
        let twice = json!({"anyOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}}]});
        let deep = (0..60).fold(json!(1), |below, _| json!({"x": below}));
        over(twice, deep);
    }

    #[test]
    fn a3f3_names_are_charged_as_texts_are() {
        let name = |length: usize| json!({"a".repeat(length): 1});
        let pattern = json!({"propertyNames": {"pattern": "a([ab]{99}){90}c"}});
        assert_eq!(charged(&pattern, &name(900_000)), None);
        assert!(charged(&pattern, &name(20)).is_some());
        let either: Vec<Value> = (0..30_000).map(|n| json!({"const": n})).collect();
        let referred =
            json!({"propertyNames": {"$ref": "#/$defs/e"}, "$defs": {"e": {"anyOf": either}}});
        let names: serde_json::Map<_, _> = (0..100).map(|n| (format!("n{n}"), json!(1))).collect();
        assert_eq!(charged(&referred, &Value::Object(names)), None);
    }

    #[test]
    fn a3f3_a_reference_is_charged_by_its_length() {
        let long = "d".repeat(300_000);
        let far = json!({"items": {"$ref": format!("#/$defs/{long}")}, "$defs": {long: {}}});
        assert!(bounded(&far).unwrap_err().contains("a $ref has at most"));
        let name = "d".repeat(200);
        let near = json!({"items": {"$ref": format!("#/$defs/{name}")}, "$defs": {name: {}}});
        assert!(charged(&near, &json!(vec![1; 100])).unwrap() > 20_000);
        // Another name of the same part is the same part.
        let twice =
            json!({"$defs": {"a": {"items": {"$ref": "#/%24defs/a"}}}, "$ref": "#/$defs/a"});
        assert_eq!(bounded(&twice), Ok(()));
    }

    #[test]
    fn what_people_write_takes_few_steps() {
        let form = json!({"type": "object", "required": ["repo"], "properties": {
            "repo": {"type": "string", "pattern": "^[a-z0-9/_.-]+$"},
            "shards": {"type": "integer", "minimum": 1, "maximum": 64},
            "mode": {"enum": ["fast", "slow"]}}});
        let steps =
            charged(&form, &json!({"repo": "/srv/a", "shards": 4, "mode": "fast"})).unwrap();
        assert!(steps < 60, "{steps}");
        // A megabyte of text against a short pattern, and a large list.
        let text = json!({"type": "string", "pattern": "^[^\\x00-\\x1f]*$"});
        assert!(charged(&text, &json!("x".repeat(1_000_000))).is_some());
        let list = json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}});
        assert!(charged(&list, &json!(vec!["x"; 100_000])).is_some());
    }
}
