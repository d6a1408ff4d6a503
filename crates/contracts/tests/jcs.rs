//! The published examples of RFC 8785 hold for our canonical form.
//!
//! ```text
//! vectors/jcs/sample.json    an object, its canonical text and its UTF-8 bytes (3.2.2, 3.2.4)
//! vectors/jcs/sorting.json   names that sort by UTF-16 code units (3.2.3)
//! vectors/jcs/numbers.json   IEEE-754 bits and their text (appendix B)
//! ```

use cofferdam_contracts::canonical::{canonical, digest, digest_bytes};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    #[serde(rename = "source")]
    _source: String,
    input: String,
    canonical: String,
    utf8_hex: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sorting {
    #[serde(rename = "source")]
    _source: String,
    input: String,
    values_in_order: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    #[serde(rename = "source")]
    _source: String,
    #[serde(rename = "note")]
    _note: String,
    numbers: Vec<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Number {
    ieee754: String,
    json: Option<String>,
    #[serde(default, rename = "comment")]
    _comment: Option<String>,
}

fn text(value: &Value) -> String {
    String::from_utf8(canonical(value).unwrap()).unwrap()
}

#[test]
fn the_sample_object_has_its_published_bytes() {
    let sample: Sample = serde_json::from_str(include_str!("../vectors/jcs/sample.json")).unwrap();
    let value: Value = serde_json::from_str(&sample.input).unwrap();
    assert_eq!(text(&value), sample.canonical);
    assert_eq!(hex::encode(canonical(&value).unwrap()), sample.utf8_hex);
    assert_eq!(digest(&value).unwrap(), digest_bytes(sample.canonical.as_bytes()));
}

#[test]
fn names_sort_by_their_utf16_code_units() {
    let sorting: Sorting =
        serde_json::from_str(include_str!("../vectors/jcs/sorting.json")).unwrap();
    let value: Value = serde_json::from_str(&sorting.input).unwrap();
    let text = text(&value);
    let places: Vec<usize> = sorting
        .values_in_order
        .iter()
        .map(|value| text.find(value.as_str()).unwrap_or_else(|| panic!("{value} in {text}")))
        .collect();
    assert!(places.is_sorted(), "{text}");
    assert_eq!(places.len(), value.as_object().unwrap().len());
}

#[test]
fn numbers_have_their_published_text_and_the_rest_is_refused() {
    let table: Numbers = serde_json::from_str(include_str!("../vectors/jcs/numbers.json")).unwrap();
    assert_eq!(table.numbers.len(), 26);
    for Number { ieee754, json, .. } in table.numbers {
        let number = f64::from_bits(u64::from_str_radix(&ieee754, 16).unwrap());
        match json {
            Some(text) => {
                assert_eq!(String::from_utf8(canonical(&number).unwrap()).unwrap(), text);
                assert_eq!(text.parse::<f64>().unwrap(), number, "{ieee754}");
            }
            None => assert!(canonical(&number).is_err(), "{ieee754}"),
        }
    }
}

/// A canonical text is its own canonical form, also after it was stored and read.
#[test]
fn canonicalizing_twice_changes_nothing() {
    for value in [
        json!({"b": [1.0, -0.0, 1e21, 1e-7], "a": {"\u{1f600}": null, "\u{fb33}": true}}),
        json!("\u{7f}\u{2028}\u{10ffff}\"\\\u{8}\t\n\u{c}\r\u{1}"),
        json!([[], {}, "", 0, -1, 9_007_199_254_740_991_i64]),
    ] {
        let once = text(&value);
        assert_eq!(text(&serde_json::from_str(&once).unwrap()), once);
    }
}
