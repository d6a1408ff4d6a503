//! The table of answers: made line by line, and compared with its file.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use cofferdam_tests::repository;
use serde_json::Value;

/// A body: of a success its shape.
pub fn shown(body: &[u8], is_success: bool) -> String {
    match (serde_json::from_slice::<Value>(body), std::str::from_utf8(body)) {
        (Ok(value), _) if is_success => shape(&value).to_string(),
        (_, Ok(text)) if !text.contains(char::is_control) => text.to_owned(),
        _ => "(bytes)".to_owned(),
    }
}

/// The frames of a stream, each with its flags.
pub fn frames(mut body: &[u8]) -> String {
    let mut all = Vec::new();
    while let [flags, a, b, c, d, rest @ ..] = body {
        let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap();
        let (payload, rest) = rest.split_at(length);
        all.push(format!("{flags}:{}", shown(payload, *flags == 0)));
        body = rest;
    }
    assert!(body.is_empty(), "{body:?}");
    all.join(" ")
}

/// The fields of a value with their types; of a list its first entry.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, v)| (name.clone(), shape(v))).collect(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Null => Value::Null,
    }
}

/// The table: of each endpoint its answers, and what got each.
#[derive(Default)]
pub struct Table {
    text: String,
    answers: Vec<(String, Vec<String>)>,
}

impl Table {
    pub fn begin(&mut self, endpoint: &str) {
        self.end();
        write!(self.text, "\n{endpoint}\n").unwrap();
    }

    pub fn add(&mut self, case: &str, answer: String) {
        match self.answers.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, cases)) => cases.push(case.to_owned()),
            None => self.answers.push((answer, vec![case.to_owned()])),
        }
    }

    fn end(&mut self) {
        for (answer, cases) in std::mem::take(&mut self.answers) {
            writeln!(self.text, "    {}: {answer}", cases.join(", ")).unwrap();
        }
    }

    /// Compares it with the file of this name.
    pub fn hold(mut self, name: &str) {
        self.end();
        let path = repository().join("tests/tests/e2b/answers").join(name);
        let found = self.text.trim_start();
        if cofferdam_ambient::env::var("UPDATE_GOLDENS").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, found).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let (old, new) = (lines(&kept), lines(found));
        let (gone, came): (Vec<_>, Vec<_>) =
            (old.difference(&new).take(9).collect(), new.difference(&old).take(9).collect());
        let path = path.display();
        assert!(
            found == kept,
            "{path}: UPDATE_GOLDENS=1 writes it anew\nno more: {gone:#?}\nnew: {came:#?}"
        );
    }
}
