//! Which schemas let nothing through but one plain word.

use serde_json::Value;

use crate::gate_spec::escape;

/// References of one schema that are followed; a circle is not followed for ever.
pub(super) const MAX_REFS: usize = 8;

/// The schema of a property's property.
pub(super) fn below<'a, 'n>(
    schema: &'a Value,
    names: impl Iterator<Item = &'n str>,
    form: &'a Value,
) -> Option<&'a Value> {
    let mut schema = resolved(schema, form, MAX_REFS)?;
    for name in names {
        schema =
            resolved(schema.pointer(&format!("/properties/{}", escape(name)))?, form, MAX_REFS)?;
    }
    Some(schema)
}

fn resolved<'a>(schema: &'a Value, form: &'a Value, refs: usize) -> Option<&'a Value> {
    match schema.get("$ref").and_then(Value::as_str) {
        None => Some(schema),
        Some(_) if refs == 0 => None,
        Some(target) => resolved(form.pointer(target.strip_prefix('#')?)?, form, refs - 1),
    }
}

/// Whether every value that fits the schema is one plain word.
pub(super) fn is_word(schema: &Value, form: Option<&Value>, refs: usize) -> bool {
    let Some(schema) = form.map_or(Some(schema), |form| resolved(schema, form, refs)) else {
        return false;
    };
    // What the author lists is the author's text.
    if schema.get("enum").is_some() || schema.get("const").is_some() {
        return true;
    }
    let of_type = |kind: &str| match kind {
        "integer" | "number" | "boolean" | "null" => true,
        "string" => schema.get("pattern").and_then(Value::as_str).is_some_and(is_plain_pattern),
        _ => false,
    };
    match schema.get("type") {
        Some(Value::String(kind)) => of_type(kind),
        Some(Value::Array(kinds)) => {
            !kinds.is_empty() && kinds.iter().all(|kind| kind.as_str().is_some_and(of_type))
        }
        _ => false,
    }
}

/// Characters that mean nothing to a shell, wherever they stand in a word.
const fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ',' | ':' | '/' | '@' | '%' | '+')
}

/// A pattern from `^` to `$` of plain characters, classes of them and counts: `^[a-z][a-z0-9-]*$`.
/// Whatever else it is made of, it is taken to let more through.
fn is_plain_pattern(pattern: &str) -> bool {
    let Some(body) = pattern.strip_prefix('^').and_then(|p| p.strip_suffix('$')) else {
        return false;
    };
    let mut chars = body.chars().peekable();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => chars.next().is_some_and(is_plain_escape),
            '[' => is_plain_class(&mut chars),
            // A dot is any character, a plus here would be a count.
            '.' | '+' => false,
            c => is_plain(c),
        };
        if !plain {
            return false;
        }
        match chars.peek() {
            Some('*' | '+' | '?') => {
                chars.next();
            }
            Some('{') => {
                chars.next();
                if !chars.by_ref().take_while(|c| *c != '}').all(|c| c.is_ascii_digit() || c == ',')
                {
                    return false;
                }
            }
            _ => {}
        }
    }
    true
}

/// `\d` and `\w` take in more than ASCII in some engines, so they count as letting more through.
const fn is_plain_escape(c: char) -> bool {
    matches!(c, '.' | '-' | '/' | '+')
}

/// A class after its bracket: plain characters and ranges of letters or of digits.
fn is_plain_class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    let mut last = None;
    let mut some = false;
    while let Some(c) = chars.next() {
        match c {
            ']' => return some,
            '-' if chars.peek() != Some(&']') && last.is_some() => {
                let (Some(from), Some(to)) = (last.take(), chars.next()) else { return false };
                let kinds: [fn(&char) -> bool; 3] =
                    [char::is_ascii_lowercase, char::is_ascii_uppercase, char::is_ascii_digit];
                if !kinds.iter().any(|kind| kind(&from) && kind(&to)) {
                    return false;
                }
            }
            '\\' if chars.next().is_some_and(is_plain_escape) => last = None,
            c if is_plain(c) => last = Some(c),
            _ => return false,
        }
        some = true;
    }
    false
}
