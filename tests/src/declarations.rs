//! Every answer that a test gets is one that the OpenAPI document declares: its status, and its type. Answers of E2B's API fit their
//! schemas.

use std::sync::LazyLock;

use cofferdam_contracts::schema::Validator;
use serde_json::Value;

/// The committed documents, which tests of their crates make again and compare.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| document("docs/openapi.json"));
static E2B: LazyLock<Value> = LazyLock::new(|| document("docs/e2b-openapi.json"));

fn document(path: &str) -> Value {
    let text = std::fs::read_to_string(crate::repository().join(path)).expect("the document");
    serde_json::from_str(&text).expect("JSON")
}

/// The operation of a request: its path as the document has it, and what the document says of it.
fn operation<'d>(document: &'d Value, method: &str, path: &str) -> Option<(&'d str, &'d Value)> {
    let path = path.split('?').next().unwrap_or(path);
    let paths = document.get("paths").and_then(Value::as_object).expect("paths");
    // A word fits before a parameter does.
    let (template, methods) = paths
        .iter()
        .filter(|(template, _)| fits(template, path))
        .min_by_key(|(template, _)| template.matches('{').count())?;
    // What is asked for by another method, or is no URL of ours, is refused before a route answers.
    Some((template, methods.get(method.to_lowercase())?))
}

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
    let Some((template, operation)) = operation(&DOCUMENT, method, path) else { return };
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

/// Fails where the answer of E2B's control plane to a listed request does not fit its schema.
///
/// # Panics
/// There.
pub fn check_e2b(method: &str, path: &str, status: u16, body: &Value) {
    let Some((template, operation)) = operation(&E2B, method, path) else { return };
    let key = if status < 400 { status.to_string() } else { "default".to_owned() };
    let declared = operation.pointer(&format!("/responses/{key}")).unwrap_or_else(|| {
        panic!(
            "{method} {template} answered {status}, which docs/e2b-openapi.json does not declare"
        )
    });
    let Some(schema) = declared.pointer("/content/application~1json/schema") else {
        assert_eq!(*body, "", "{method} {template} answered {status} with a body");
        return;
    };
    let mut whole = schema.clone();
    let components = E2B.get("components").expect("components").clone();
    whole.as_object_mut().expect("a schema").insert("components".to_owned(), components);
    let violations = Validator::compile(&whole).expect("a schema").violations(body);
    assert!(violations.is_empty(), "{method} {template} answered {status}: {body}: {violations:?}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{check, check_e2b, fits};

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

    #[test]
    fn an_answer_of_e2bs_api_fits_its_schema() {
        check_e2b("GET", "/templates/base/tags/count?x=y", 200, &json!({"total": 3}));
        check_e2b("DELETE", "/sandboxes/x", 204, &json!(""));
        check_e2b("GET", "/sandboxes/x", 404, &json!({"code": 404, "message": "gone"}));
    }

    #[test]
    #[should_panic(expected = "total")]
    fn an_answer_of_e2bs_api_without_a_field_fails_its_test() {
        check_e2b("GET", "/templates/base/tags/count", 200, &json!({}));
    }
}
