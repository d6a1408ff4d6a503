//! How much work a schema is, counted before any of it is done: a tenant writes the schema of a form, and the text it is held against.
//!
//! ```text
//! schema            --bounds-->  expanded size, references, patterns: refused at import
//! schema x instance --charge-->  steps that a validator may take at most: refused before it takes them
//! ```
//! Neither recurses, and both end as soon as their budget is spent.

use std::rc::Rc;

use serde_json::Value;

/// Parts of a schema with each local reference put in its place. The largest schema of our own has some 30,000.
pub const MAX_SCHEMA_PARTS: usize = 100_000;
/// Steps of one check: a body of a megabyte takes half of them. The worst schema that was found took 0.45 µs a step, unoptimised.
pub const MAX_CHECK_STEPS: u64 = 4_000_000;
/// Bytes of a pattern.
pub const MAX_PATTERN_BYTES: usize = 1_024;
/// Levels of a schema, which its compiler descends.
const MAX_DEPTH: usize = 96;
/// States of one pattern: what it is compiled to is memory and time before any text comes.
const MAX_PATTERN_STATES: u64 = 100_000;
/// States of all patterns of a schema, each as often as a reference puts it in a place. Our own largest schema has a quarter of them.
const MAX_SCHEMA_STATES: u64 = 2_000_000;
/// States of a class of Unicode, about.
const CLASS_STATES: u64 = 100;
/// Characters times states of a pattern that take about as long as one step.
const PATTERN_STEP: u64 = 8;

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

/// References on the way to a part of a schema.
struct Chain {
    target: String,
    before: Option<Rc<Chain>>,
    length: usize,
}

impl Chain {
    fn has(chain: Option<&Rc<Self>>, target: &str) -> bool {
        let mut at = chain;
        while let Some(link) = at {
            if link.target == target {
                return true;
            }
            at = link.before.as_ref();
        }
        false
    }

    fn after(before: Option<&Rc<Self>>, target: &str) -> Rc<Self> {
        let length = before.map_or(0, |chain| chain.length).saturating_add(1);
        Rc::new(Self { target: target.to_owned(), before: before.cloned(), length })
    }
}

/// Refuses a schema whose work no bound on its input could hold, in words with the remedy.
pub(super) fn bounds(schema: &Value) -> Result<(), String> {
    let (mut parts, mut pattern_states) = (0_usize, 0_u64);
    let mut left: Vec<(&Value, usize, Option<Rc<Chain>>)> = vec![(schema, 0, None)];
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
                        let found = resolve(schema, target).ok_or_else(|| foreign(target))?;
                        if !Chain::has(chain.as_ref(), target) {
                            let chain = Chain::after(chain.as_ref(), target);
                            left.push((found, depth, Some(chain)));
                        }
                        continue;
                    }
                    match (name.as_str(), value) {
                        ("pattern", Value::String(pattern)) => {
                            pattern_bounds(pattern, &mut pattern_states)?;
                        }
                        ("patternProperties", Value::Object(patterns)) => {
                            let mut each = patterns.keys();
                            each.try_for_each(|one| pattern_bounds(one, &mut pattern_states))?;
                        }
                        _ => {}
                    }
                    left.push((value, below, chain.clone()));
                }
            }
            _ => {}
        }
    }
    Ok(())
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

fn pattern_bounds(pattern: &str, all: &mut u64) -> Result<(), String> {
    let own = states(pattern);
    *all = all.saturating_add(own);
    if own > MAX_PATTERN_STATES || *all > MAX_SCHEMA_STATES {
        return Err("its patterns repeat too much; use smaller numbers in braces".to_owned());
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("a pattern has at most {MAX_PATTERN_BYTES} bytes"));
    }
    let looks = ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|look| pattern.contains(look));
    let mut escaped = false;
    let refers = pattern.chars().any(|c| {
        let is_reference = escaped && (c.is_ascii_digit() && c != '0' || c == 'k');
        escaped = !escaped && c == '\\';
        is_reference
    });
    if looks || refers {
        let shown: String = pattern.chars().take(80).collect();
        return Err(format!(
            "the pattern {shown:?} looks around or back; write it without (?=, (?!, (?<=, (?<! and \\1, or as two patterns in allOf"
        ));
    }
    Ok(())
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

/// The steps of a check at most. `None`: more than [`MAX_CHECK_STEPS`].
#[must_use]
pub fn charge(schema: &Value, instance: &Value) -> Option<u64> {
    let mut steps = 0_u64;
    let mut left: Vec<(&Value, &Value)> = vec![(schema, instance)];
    while let Some((part, value)) = left.pop() {
        let Value::Object(fields) = part else {
            steps = spent(steps, 1)?;
            continue;
        };
        steps = spent(steps, 1)?;
        for (name, of) in fields {
            steps = spent(steps, 1)?;
            match (name.as_str(), of, value) {
                ("$ref", Value::String(target), _) => {
                    left.extend(resolve(schema, target).map(|found| (found, value)));
                }
                (name, Value::Array(all), _) if IN_PLACE.contains(&name) => {
                    left.extend(all.iter().map(|one| (one, value)));
                }
                (name, one, _) if IN_PLACE.contains(&name) => left.push((one, value)),
                ("enum", Value::Array(all), _) => {
                    let each = if value.is_object() || value.is_array() { size(value)? } else { 1 };
                    steps = spent(steps, each.saturating_mul(count(all.len())))?;
                }
                ("const", _, Value::Object(_) | Value::Array(_)) => {
                    steps = spent(steps, size(value)?)?;
                }
                ("pattern", Value::String(pattern), Value::String(text)) => {
                    steps = spent(steps, matching(pattern, text))?;
                }
                ("format" | "minLength" | "maxLength", _, Value::String(text)) => {
                    steps = spent(steps, count(text.len()) / PATTERN_STEP)?;
                }
                ("properties", Value::Object(known), Value::Object(members)) => {
                    steps = spent(steps, count(known.len()))?;
                    left.extend(
                        known.iter().filter_map(|(name, one)| Some((one, members.get(name)?))),
                    );
                }
                ("dependentSchemas", Value::Object(known), Value::Object(_)) => {
                    left.extend(known.values().map(|one| (one, value)));
                }
                ("patternProperties", Value::Object(patterns), Value::Object(members)) => {
                    for (pattern, one) in patterns {
                        for (name, member) in members {
                            steps = spent(steps, matching(pattern, name).saturating_add(1))?;
                            left.push((one, member));
                        }
                        enough(&left)?;
                    }
                }
                ("additionalProperties", one, Value::Object(members)) => {
                    let known = fields.get("properties").and_then(Value::as_object);
                    let other = fields.get("patternProperties").and_then(Value::as_object);
                    let patterns = other.map_or(0, serde_json::Map::len);
                    let each = count(patterns).saturating_add(1);
                    steps = spent(steps, each.saturating_mul(count(members.len())))?;
                    let named = |name: &String| known.is_some_and(|known| known.contains_key(name));
                    left.extend(
                        members.iter().filter(|(name, _)| !named(name)).map(|(_, m)| (one, m)),
                    );
                }
                ("propertyNames", one, Value::Object(members)) => {
                    // Names are texts: what looks at them is charged by their length.
                    let names: u64 =
                        members.keys().map(|name| count(name.len()).saturating_add(1)).sum();
                    steps = spent(steps, names.saturating_mul(size(one)?))?;
                }
                ("items" | "contains" | "additionalItems", one, Value::Array(items)) => {
                    left.extend(items.iter().map(|item| (one, item)));
                }
                ("prefixItems", Value::Array(ones), Value::Array(items)) => {
                    left.extend(ones.iter().zip(items));
                }
                ("uniqueItems", Value::Bool(true), Value::Array(_)) => {
                    steps = spent(steps, size(value)?.saturating_mul(4))?;
                }
                ("required" | "dependentRequired", of, Value::Object(_)) => {
                    steps = spent(steps, size(of)?)?;
                }
                _ => {}
            }
            enough(&left)?;
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

/// What a pattern takes of a text in the linear engine: the text's length times the states of the pattern.
fn matching(pattern: &str, text: &str) -> u64 {
    count(text.len()).saturating_mul(states(pattern)) / PATTERN_STEP
}

/// About how many states a pattern has: one for each character or class, more for each class of Unicode, times what a piece repeats.
fn states(pattern: &str) -> u64 {
    // Of each open group: its pieces but the last, and the last, which a number in braces repeats.
    let mut open: Vec<(u64, u64)> = vec![(0, 0)];
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let (length, piece) = match first {
            '(' => {
                open.push((0, 0));
                (1, None)
            }
            ')' if open.len() > 1 => {
                let (before, last) = open.pop().unwrap_or_default();
                (1, Some(before.saturating_add(last)))
            }
            '{' => {
                let (length, most) = repeat(rest);
                if let Some((_, last)) = open.last_mut() {
                    *last = last.saturating_mul(most.max(1));
                }
                (length, None)
            }
            '*' | '+' | '?' | '|' | '^' | '$' => (1, None),
            '[' | '\\' => {
                let length = class(rest);
                let text = rest.get(..length).unwrap_or(rest);
                let unicode = text.matches("\\p").count() + text.matches("\\P").count();
                (length, Some(count(unicode).saturating_mul(CLASS_STATES).saturating_add(1)))
            }
            other => (other.len_utf8(), Some(1)),
        };
        if let (Some(piece), Some((before, last))) = (piece, open.last_mut()) {
            *before = before.saturating_add(*last);
            *last = piece;
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    open.into_iter().fold(1, |sum, (before, last)| sum.saturating_add(before).saturating_add(last))
}

/// Bytes of what stands in braces, and how often the piece before them is there at most.
fn repeat(text: &str) -> (usize, u64) {
    let Some(end) = text.find('}') else { return (1, 1) };
    let inner = text.get(1..end).unwrap_or_default();
    let most = inner.split(',').filter_map(|number| number.trim().parse().ok()).max();
    (end.saturating_add(1), most.unwrap_or(1))
}

/// Bytes of an escape or of a class in brackets.
fn class(text: &str) -> usize {
    let (mut at, mut depth) = (0_usize, 0_usize);
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        at = at.saturating_add(c.len_utf8());
        match c {
            '\\' => {
                let escaped = characters.next();
                at = at.saturating_add(escaped.map_or(0, char::len_utf8));
                if let (Some('p' | 'P'), true) = (escaped, characters.as_str().starts_with('{')) {
                    let name = characters.as_str().find('}').map_or(0, |end| end.saturating_add(1));
                    at = at.saturating_add(name);
                    characters = text.get(at..).unwrap_or_default().chars();
                }
            }
            '[' => depth = depth.saturating_add(1),
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn spent(steps: u64, more: u64) -> Option<u64> {
    steps.checked_add(more).filter(|steps| *steps <= MAX_CHECK_STEPS)
}

/// What is still to be looked at is steps as well, and memory.
fn enough(left: &[(&Value, &Value)]) -> Option<()> {
    (count(left.len()) <= MAX_CHECK_STEPS / 4).then_some(())
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        assert_eq!(bounds(&doubling(4)), Ok(()));
        for levels in [16, 20] {
            let why = bounds(&doubling(levels)).unwrap_err();
            assert!(why.contains("parts once each $ref"), "{why}");
        }
        // A schema that refers to itself has an end where its instance has.
        let tree = json!({"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}});
        assert_eq!(bounds(&tree), Ok(()));
        assert!(charge(&tree, &json!({"below": [{"below": []}, {}]})).unwrap() < 40);
        // One that refers to itself for the same value has none.
        assert_eq!(charge(&json!({"$ref": "#"}), &json!(1)), None);
    }

    #[test]
    fn a3f3_patterns_that_look_around_or_back_are_refused_with_the_remedy() {
        for pattern in ["(?<=(a|a|a|a)*)b", "(a*)*\\1", "^(?!x)y", "(?<n>a)\\k<n>"] {
            for schema in [json!({"pattern": pattern}), json!({"patternProperties": {pattern: {}}})]
            {
                let why = bounds(&schema).unwrap_err();
                assert!(why.contains("looks around or back; write it without"), "{why}");
            }
        }
        for pattern in ["^[a-z]+$", r"^\\1$", r"\d{2,4}", "(?:a|b)+", "^[^\\x00-\\x1f]*$"] {
            assert_eq!(bounds(&json!({"pattern": pattern})), Ok(()), "{pattern}");
        }
        // A property may be called as a keyword is.
        let named =
            json!({"properties": {"$id": {"type": "string"}, "pattern": {"type": "string"}}});
        assert_eq!(bounds(&named), Ok(()));
        assert!(bounds(&json!({"$ref": "other.json"})).unwrap_err().contains("#/$defs/name"));
        assert!(
            bounds(&json!({"unevaluatedProperties": false})).unwrap_err().contains("additional")
        );
    }

    #[test]
    fn a3f3_what_a_form_and_its_text_multiply_to_is_charged() {
        let over = |schema: Value, value: Value| {
            assert_eq!(bounds(&schema), Ok(()));
            assert_eq!(charge(&schema, &value), None, "{}", schema.to_string().len());
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
        let huge = bounds(&json!({"pattern": "^(a{1,1000}){1,1000}b$"})).unwrap_err();
        assert!(huge.contains("smaller numbers in braces"), "{huge}");
        // Two ways at each level of the value: 2^depth.
        let twice = json!({"anyOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}}]});
        let deep = (0..60).fold(json!(1), |below, _| json!({"x": below}));
        over(twice, deep);
    }

    #[test]
    fn states_of_a_pattern_are_its_pieces_times_what_they_repeat() {
        for (pattern, wanted) in [
            ("abc", 4),
            ("a{3}b{2,4}", 8),
            ("(a{10}){10}", 101),
            ("(ab|c)+[a-z]{5}", 9),
            (r"[\p{L}\p{N}]{2}", 403),
            (r"\p{L}{3}\{9\}", 307),
            ("a{2", 3),
            ("((((", 1),
        ] {
            assert_eq!(states(pattern), wanted, "{pattern}");
        }
    }

    #[test]
    fn what_people_write_takes_few_steps() {
        let form = json!({"type": "object", "required": ["repo"], "properties": {
            "repo": {"type": "string", "pattern": "^[a-z0-9/_.-]+$"},
            "shards": {"type": "integer", "minimum": 1, "maximum": 64},
            "mode": {"enum": ["fast", "slow"]}}});
        let steps = charge(&form, &json!({"repo": "/srv/a", "shards": 4, "mode": "fast"})).unwrap();
        assert!(steps < 60, "{steps}");
        // A megabyte of text against a short pattern, and a large list.
        let text = json!({"type": "string", "pattern": "^[^\\x00-\\x1f]*$"});
        assert!(charge(&text, &json!("x".repeat(1_000_000))).is_some());
        let list = json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}});
        assert!(charge(&list, &json!(vec!["x"; 100_000])).is_some());
    }
}
