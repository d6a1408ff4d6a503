//! Every answer that a test gets is one that the OpenAPI document declares: its status, and its type.

use std::sync::LazyLock;

use serde_json::Value;

/// The committed document, which a test of the server makes again and compares.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let path = crate::repository().join("docs/openapi.json");
    let text = std::fs::read_to_string(path).expect("the document");
    serde_json::from_str(&text).expect("JSON")
});

/// Whether a path of a request fits one of the document.
fn fits(template: &str, path: &str) -> bool {
    let (mut parts, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (parts.next(), given.next()) {
            (None, None) => return true,
            // The tail is the rest of the path.
            (Some("{uri}"), Some(_)) => return true,
            (Some(part), Some(value)) if part.starts_with('{') && !value.is_empty() => {}
            (Some(part), Some(value)) if part == value => {}
            _ => return false,
        }
    }
}

/// Fails where the answer to a request of a listed route is not declared.
///
/// # Panics
/// There.
pub fn check(method: &str, path: &str, status: u16, content_type: &str) {
    let path = path.split('?').next().unwrap_or(path);
    let paths = DOCUMENT.get("paths").and_then(Value::as_object).expect("paths");
    // A word fits before a parameter does.
    let found = paths
        .iter()
        .filter(|(template, _)| fits(template, path))
        .min_by_key(|(template, _)| template.matches('{').count());
    let Some((template, methods)) = found else { return };
    // What is asked for by another method, or is no URL of ours, is refused before a route answers.
    let Some(operation) = methods.get(method.to_lowercase()) else { return };
    let declared = operation.pointer(&format!("/responses/{status}"));
    let Some(declared) = declared else {
        panic!("{method} {template} answered {status}, which docs/openapi.json does not declare")
    };
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let types = declared.get("content").and_then(Value::as_object);
    let listed = types.map_or(content_type.is_empty(), |types| types.contains_key(essence));
    assert!(
        listed || status == 304,
        "{method} {template} answered {status} as {content_type:?}, which docs/openapi.json does not declare"
    );
}

#[cfg(test)]
mod tests {
    use super::{check, fits};

    #[test]
    fn a_path_fits_its_template() {
        assert!(fits("/api/runs/{id}", "/api/runs/rn_1"));
        assert!(!fits("/api/runs/{id}", "/api/runs/"));
        assert!(!fits("/api/runs/{id}", "/api/runs/a/gates"));
        assert!(fits("/api/artifacts/{uri}", "/api/artifacts/run/x/step/y"));
    }

    #[test]
    #[should_panic(expected = "does not declare")]
    fn an_answer_that_is_not_declared_fails_its_test() {
        check("GET", "/api/runs", 299, "application/json");
    }
}
