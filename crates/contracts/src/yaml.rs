//! YAML as recipes and image files are written in it: one parser, one way to say where it failed.

use std::cell::Cell;
use std::fmt;

use serde::Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_saphyr::{Location, Spanned};

/// Why a text is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// Line and column, from 1, where the parser knows them.
    pub at: Option<(u64, u64)>,
    /// The field's name and what is wrong with it.
    pub what: String,
}

/// Parses strictly: YAML 1.2, where only `true` and `false` are booleans. A form says
/// `enum: [yes, no]`, or `required: [n]`, and means texts.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    let options = serde_saphyr::options! { strict_booleans: true };
    // The parser knows the place, the path the field: a wrong type alone would name no field.
    let mut field = String::new();
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        serde_path_to_error::deserialize(yaml).map_err(|e| {
            field = e.path().to_string();
            e.into_inner()
        })
    })
    .map_err(|e| match is_empty(text) {
        true => YamlError { at: None, what: "the file is empty".to_owned() },
        false => located(&field, &e),
    })
}

/// Whether a text has nothing but comments.
fn is_empty(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// What the parser says of a field, in the words of who writes recipes. Pure.
fn plain(field: &str, said: &str) -> String {
    let whole = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "usize"];
    if said.strip_prefix("invalid ").is_some_and(|kind| whole.contains(&kind)) {
        return match field.rsplit('.').next() {
            Some("mem_mb" | "memMB" | "disk_mb" | "diskMB") => {
                "must be a whole number of MiB, such as 512".to_owned()
            }
            _ => "must be a whole number, such as 8".to_owned(),
        };
    }
    if matches!(said, "invalid f32" | "invalid f64") {
        return "must be a number, such as 0.5".to_owned();
    }
    if let Some(key) = said.strip_prefix("duplicate mapping key") {
        let key = key.split(", set ").next().unwrap_or_default().trim_start_matches(": ");
        return match key.is_empty() {
            true => "a field is given twice; give it once".to_owned(),
            false => format!("the field `{key}` is given twice; give it once"),
        };
    }
    said.to_owned()
}

/// The parser's source excerpt is left out.
fn located(field: &str, error: &serde_saphyr::Error) -> YamlError {
    let text = error.without_snippet().to_string();
    let text = text.lines().next().unwrap_or("not valid YAML");
    let Some(at) = error.location() else {
        return YamlError { at: None, what: text.to_owned() };
    };
    let again = format!(" at line {}, column {}", at.line(), at.column());
    let text = text.strip_suffix(&again).unwrap_or(text);
    // A part of a path that the parser does not know.
    let field = field.trim_end_matches('?').trim_end_matches('.');
    let named = if field.is_empty() { String::new() } else { format!("{field}: ") };
    let what = format!("{named}{}", plain(field, text));
    YamlError { at: Some((at.line(), at.column())), what }
}

/// Steps of a path that are followed: no field of ours is deeper.
const MAX_STEPS: usize = 32;

/// One step of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step<'p> {
    Field(&'p str),
    Item(usize),
}

/// `plan.tasks[3].needs[0]` by its steps.
fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (field, items) = part.split_once('[').unwrap_or((part, ""));
        if !field.is_empty() {
            steps.push(Step::Field(field));
        }
        let items = items.split('[').filter_map(|item| item.strip_suffix(']')?.parse().ok());
        steps.extend(items.map(Step::Item));
    }
    steps.truncate(MAX_STEPS);
    steps
}

/// Line and column, from 1, of a field of a document, or of the nearest one around it that is there: what an error says that
/// was found after parsing. `None`: none is there, or the text is not YAML.
#[must_use]
pub fn position(text: &str, path: &str) -> Option<(u64, u64)> {
    let steps = steps(path);
    let found = Cell::new(None);
    let options = serde_saphyr::options! { strict_booleans: true };
    // It ends with an error as soon as the field is found.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        PositionSeed { steps: &steps, found: &found, is_item: false }.deserialize(yaml)
    });
    found.get()
}

/// Goes down a path of a document: as deep as the path is long, whatever the document is.
#[derive(Clone, Copy)]
struct PositionSeed<'p> {
    steps: &'p [Step<'p>],
    found: &'p Cell<Option<(u64, u64)>>,
    /// Whether it is an item of a list, whose first field is its position.
    is_item: bool,
}

impl PositionSeed<'_> {
    fn at(&self, location: &Location) {
        self.found.set(Some((location.line(), location.column())));
    }
}

impl<'de> DeserializeSeed<'de> for PositionSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PositionSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the field of an error")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Step::Field(wanted), inner)) = self.steps.split_first() else {
            return Err(A::Error::custom("no such field"));
        };
        let mut is_first = self.is_item;
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            if std::mem::take(&mut is_first) {
                self.at(&key.referenced);
            }
            if key.value != *wanted {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            self.at(&key.referenced);
            if inner.is_empty() {
                return Err(A::Error::custom("found"));
            }
            return map.next_value_seed(PositionSeed { steps: inner, is_item: false, ..self });
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((Step::Item(wanted), inner)) = self.steps.split_first() else {
            return Err(A::Error::custom("no such item"));
        };
        for _ in 0..*wanted {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        if inner.is_empty() {
            if let Some(item) = seq.next_element::<Spanned<IgnoredAny>>()? {
                self.at(&item.referenced);
            }
            return Err(A::Error::custom("found"));
        }
        seq.next_element_seed(PositionSeed { steps: inner, is_item: true, ..self }).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a3f3_aliases_depth_and_nodes_of_a_text_have_a_budget() {
        let aliases = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
            let below = n - 1;
            format!("{text}a{n}: &a{n} [*a{below}, *a{below}, *a{below}, *a{below}]\n")
        });
        let many = "- &a {x: 1}\n".to_owned() + &"- *a\n".repeat(200_000);
        for (kind, text) in [
            ("aliases of aliases", aliases),
            ("many aliases", many),
            ("depth", "[".repeat(100_000)),
            ("depth of a mapping", (0..5_000).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
        ] {
            let parsed = parse::<Value>(&text);
            assert!(parsed.is_err(), "{kind}");
        }
        let usual = "a: &a {x: 1}\nb: [*a, *a]\n";
        assert_eq!(parse::<Value>(usual).unwrap()["b"][1]["x"], 1);
    }

    #[test]
    fn an_error_is_said_in_words_of_the_recipe() {
        #[derive(Debug, serde::Deserialize)]
        struct Document {
            #[expect(dead_code, reason = "only its type is read")]
            mem_mb: u64,
        }
        let of = |text: &str| parse::<Document>(text).unwrap_err().what;
        assert_eq!(of("mem_mb: 512MB"), "mem_mb: must be a whole number of MiB, such as 512");
        assert_eq!(of(""), "the file is empty");
        assert_eq!(of("# later\n\n"), "the file is empty");
        let twice = of("mem_mb: 1\nmem_mb: 2");
        assert!(twice.ends_with("`mem_mb` is given twice; give it once"), "{twice}");
        assert_eq!(plain("a.port", "invalid u16"), "must be a whole number, such as 8");
        assert_eq!(plain("cpu", "invalid f64"), "must be a number, such as 0.5");
        assert_eq!(plain("a", "expected a list"), "expected a list");
    }

    #[test]
    fn the_position_of_a_field_or_of_the_nearest_around_it() {
        let text = "id: a\nplan:\n  gate: g\n  tasks:\n    - name: x\n      needs: [a,\n        b]\n    - {name: y, exec: {run: z}}\n";
        for (path, at) in [
            ("id", Some((1, 1))),
            ("plan", Some((2, 1))),
            ("plan.gate", Some((3, 3))),
            ("plan.tasks[0]", Some((5, 7))),
            ("plan.tasks[0].needs", Some((6, 7))),
            ("plan.tasks[0].needs[1]", Some((7, 9))),
            ("plan.tasks[1].exec.run", Some((8, 24))),
            ("plan.tasks[0].exec", Some((5, 7))),
            ("plan.tasks[7].exec", Some((4, 3))),
            ("form.x", None),
            ("", None),
        ] {
            assert_eq!(position(text, path), at, "{path}");
        }
        assert_eq!(position("a: [", "b"), None);
        assert_eq!(position("- x\n", "plan"), None);
        let deep = "[".repeat(100_000);
        assert_eq!(position(&deep, "plan.tasks[0]"), None);
    }
}
