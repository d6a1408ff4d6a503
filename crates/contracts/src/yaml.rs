//! YAML as recipes and image files are written in it: one parser, one way to say where it failed.

use serde::de::DeserializeOwned;

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
    .map_err(|e| located(&field, &e))
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
    let named = if field.is_empty() || field == "." { String::new() } else { format!("{field}: ") };
    YamlError { at: Some((at.line(), at.column())), what: format!("{named}{text}") }
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
}
