//! Every answer that a test gets is one that the OpenAPI document declares: its status, and its type. Answers of E2B's API fit their
//! schemas.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use cofferdam_contracts::schema::Validator;
use serde_json::Value;

static OURS: Document = Document::at("docs/openapi.json");
/// Of E2B's control plane.
pub static E2B: Document = Document::at("docs/e2b-openapi.json");
/// Of envd, as E2B's clients speak to it.
pub static ENVD: Document = Document::at("docs/e2b-envd-openapi.json");

/// A committed OpenAPI document, which a test of its crate makes again and compares.
#[derive(Debug)]
pub struct Document {
    path: &'static str,
    read: OnceLock<Value>,
    /// By the place of the schema.
    validators: Mutex<BTreeMap<String, Arc<Validator>>>,
}

impl Document {
    const fn at(path: &'static str) -> Self {
        Self { path, read: OnceLock::new(), validators: Mutex::new(BTreeMap::new()) }
    }

    fn value(&self) -> &Value {
        self.read.get_or_init(|| {
            let text = std::fs::read_to_string(crate::repository().join(self.path));
            serde_json::from_str(&text.expect("the document")).expect("JSON")
        })
    }

    /// The operation of a request: its path as the document has it, and what the document says of it.
    fn operation(&self, method: &str, path: &str) -> Option<(&str, &Value)> {
        let path = path.split('?').next().unwrap_or(path);
        let paths = self.value().get("paths").and_then(Value::as_object).expect("paths");
        // A word fits before a parameter does.
        let (template, methods) = paths
            .iter()
            .filter(|(template, _)| fits(template, path))
            .min_by_key(|(template, _)| template.matches('{').count())?;
        // What is asked for by another method, or is no URL of ours, is refused before a route answers.
        Some((template, methods.get(method.to_lowercase())?))
    }

    /// A request's path as the document has it, with names in the place of ids.
    pub fn template(&self, method: &str, path: &str) -> Option<&str> {
        self.operation(method, path).map(|(template, _)| template)
    }

    /// Whether a listed request has a type that the document declares for it.
    pub fn takes(&self, method: &str, path: &str, content_type: &str) -> bool {
        let operation = self.operation(method, path).map(|(_, operation)| operation);
        let content = operation.and_then(|operation| operation.pointer("/requestBody/content"));
        content.is_none_or(|content| content.get(content_type).is_some())
    }

    /// Fails where the answer to a listed request is not declared, or does not fit its schema.
    ///
    /// # Panics
    /// There.
    pub fn check(&self, method: &str, path: &str, status: u16, content_type: &str, body: &[u8]) {
        let Some((template, operation)) = self.operation(method, path) else { return };
        let answered = format!("{method} {template} answered {status}");
        let key = if status < 400 { status.to_string() } else { "default".to_owned() };
        let declared = operation
            .pointer(&format!("/responses/{key}"))
            .unwrap_or_else(|| panic!("{answered}, which {} does not declare", self.path));
        let Some(content) = declared.get("content") else {
            assert!(body.is_empty(), "{answered} with a body");
            return;
        };
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let form = content.get(essence).unwrap_or_else(|| {
            panic!("{answered} as {content_type:?}, which {} does not declare", self.path)
        });
        // Of a stream the schema is that of one message.
        let Some(schema) = form.get("schema").filter(|_| essence == "application/json") else {
            return;
        };
        let body: Value = serde_json::from_slice(body).expect("JSON");
        let violations =
            self.validator(&format!("{method} {template} {key}"), schema).violations(&body);
        assert!(violations.is_empty(), "{answered}: {body}: {violations:?}");
    }

    /// The validator of a schema at a place, which is compiled once.
    fn validator(&self, place: &str, schema: &Value) -> Arc<Validator> {
        let mut known = self.validators.lock().expect("no test holds it while it panics");
        let compiled = known.entry(place.to_owned()).or_insert_with(|| {
            let mut whole = schema.clone();
            let components = self.value().get("components").expect("components").clone();
            whole.as_object_mut().expect("a schema").insert("components".to_owned(), components);
            Arc::new(Validator::compile(&whole).expect("a schema"))
        });
        Arc::clone(compiled)
    }
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
    let Some((template, operation)) = OURS.operation(method, path) else { return };
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
    use super::{E2B, ENVD, check, fits};

    const JSON: &str = "application/json";

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
        E2B.check("GET", "/templates/base/tags/count?x=y", 200, JSON, br#"{"total": 3}"#);
        E2B.check("DELETE", "/sandboxes/x", 204, "", b"");
        E2B.check("GET", "/sandboxes/x", 404, JSON, br#"{"code": 404, "message": "gone"}"#);
    }

    #[test]
    #[should_panic(expected = "total")]
    fn an_answer_of_e2bs_api_without_a_field_fails_its_test() {
        E2B.check("GET", "/templates/base/tags/count", 200, JSON, b"{}");
    }

    #[test]
    fn a_fault_of_envd_has_a_word_or_a_status() {
        for fault in [r#"{"code": "internal", "message": ""}"#, r#"{"code": 401, "message": ""}"#] {
            ENVD.check("GET", "/metrics", 500, JSON, fault.as_bytes());
            ENVD.check("POST", "/process.Process/Start", 500, JSON, fault.as_bytes());
        }
        ENVD.check("POST", "/process.Process/Start", 200, "application/connect+proto", b"\x00");
    }

    #[test]
    #[should_panic(expected = "GET /files answered 500")]
    fn a_fault_of_files_has_no_word() {
        ENVD.check("GET", "/files?path=a", 500, JSON, br#"{"code": "internal", "message": ""}"#);
    }
}
