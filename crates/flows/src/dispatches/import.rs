//! Rows of another dispatch database, of any version that has the table: what is missing there is
//! NULL or its default here. A row is taken whole or left out with a reason.

use cofferdam_contracts::canonical;
use cofferdam_contracts::dispatch::{DispatchStatus, ImportRequest, ImportResponse, ImportSkip};
use cofferdam_contracts::id::DispatchId;
use cofferdam_ledger::dispatches::{ImportOutcome, ImportRow};
use cofferdam_ledger::keys::Principal;
use serde_json::{Map, Value};

use super::Dispatches;
use crate::error::Result;

/// Longest text of a column: what a person wrote, or a path.
const MAX_TEXT_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Number,
    Json,
}

/// Every column with what it holds, and what stands in it where the other database has none.
const COLUMNS: &[(&str, Kind, Option<&str>)] = &[
    ("agent_type", Kind::Text, Some("codex")),
    ("project_dir", Kind::Text, Some("")),
    ("prompt_file", Kind::Text, None),
    ("prompt_hash", Kind::Text, None),
    ("output_file", Kind::Text, None),
    ("verdict_file", Kind::Text, None),
    ("pid", Kind::Number, None),
    ("exit_code", Kind::Number, None),
    ("name", Kind::Text, None),
    ("model", Kind::Text, None),
    ("sandbox", Kind::Text, Some("workspace-write")),
    ("sandbox_spec", Kind::Json, None),
    ("sandbox_effective", Kind::Json, None),
    ("timeout_sec", Kind::Number, None),
    ("turns", Kind::Number, Some("0")),
    ("commands", Kind::Number, Some("0")),
    ("messages", Kind::Number, Some("0")),
    ("input_tokens", Kind::Number, Some("0")),
    ("output_tokens", Kind::Number, Some("0")),
    ("cache_hits", Kind::Number, Some("0")),
    ("created_at", Kind::Number, Some("0")),
    ("started_at", Kind::Number, None),
    ("completed_at", Kind::Number, None),
    ("verdict_status", Kind::Text, None),
    ("verdict_summary", Kind::Text, None),
    ("error_message", Kind::Text, None),
    ("scope_id", Kind::Text, None),
    ("parent_id", Kind::Text, None),
    ("base_repo_commit", Kind::Text, None),
    ("retry_count", Kind::Number, Some("0")),
    ("conflict_type", Kind::Text, None),
    ("quarantine_reason", Kind::Text, None),
    ("spawn_depth", Kind::Number, Some("0")),
    ("parent_dispatch_id", Kind::Text, None),
];

impl Dispatches {
    /// `POST /api/dispatches/import`. Doing it again changes nothing.
    pub async fn import(&self, who: &Principal, request: &ImportRequest) -> Result<ImportResponse> {
        let mut report = ImportResponse::default();
        for row in &request.rows {
            let named = row.get("id").and_then(Value::as_str).unwrap_or("(none)");
            let shown: String = named.chars().take(64).collect();
            let row = match row_of(row) {
                Ok(row) => row,
                Err(reason) => {
                    report.skipped.push(ImportSkip { id: shown, reason });
                    continue;
                }
            };
            match self.ledger.dispatches().import(&who.tenant, &who.key_id, &row).await? {
                ImportOutcome::New => report.imported.push(row.id.to_string()),
                ImportOutcome::Same => report.unchanged += 1,
                ImportOutcome::Other => {
                    let reason = "the id is taken by a dispatch with other content".to_owned();
                    report.skipped.push(ImportSkip { id: shown, reason });
                }
                ImportOutcome::Refused(reason) => {
                    report.skipped.push(ImportSkip { id: shown, reason })
                }
            }
        }
        Ok(report)
    }
}

fn row_of(row: &Map<String, Value>) -> Result<ImportRow, String> {
    let id = row.get("id").and_then(Value::as_str).ok_or("it has no id")?;
    let id = DispatchId::parse(id).map_err(|e| e.to_string())?;
    let status = row.get("status").and_then(Value::as_str).ok_or("it has no status")?;
    let status =
        DispatchStatus::parse(status).ok_or_else(|| format!("its status {status:?} is unknown"))?;
    if !status.is_terminal() {
        let words = "there: nothing here would end it; import again when it is over";
        return Err(format!("it is still {} {words}", status.as_str()));
    }
    let mut record = Map::new();
    record.insert("id".into(), Value::String(id.to_string()));
    record.insert("status".into(), Value::String(status.as_str().into()));
    for (name, kind, default) in COLUMNS {
        let found = match row.get(*name) {
            None | Some(Value::Null) => default.map(|text| Value::String(text.to_owned())),
            Some(found) => Some(found.clone()),
        };
        let value = match found {
            None => Value::Null,
            Some(found) => value_of(*kind, &found).map_err(|why| format!("{name}: {why}"))?,
        };
        record.insert((*name).to_owned(), value);
    }
    let spec = match record.get("sandbox_spec") {
        None | Some(Value::Null) => None,
        Some(spec) => {
            let bytes = canonical::canonical(spec).map_err(|e| format!("sandbox_spec: {e}"))?;
            let hash = canonical::digest_bytes(&bytes);
            Some((String::from_utf8_lossy(&bytes).into_owned(), hash))
        }
    };
    Ok(ImportRow { id, record: Value::Object(record), spec })
}

fn value_of(kind: Kind, found: &Value) -> Result<Value, String> {
    match (kind, found) {
        (Kind::Text, Value::String(text)) if text.len() > MAX_TEXT_BYTES => {
            Err(format!("longer than {MAX_TEXT_BYTES} bytes"))
        }
        (Kind::Text, Value::String(text)) if text.contains('\0') => Err("has a NUL".to_owned()),
        (Kind::Text, Value::String(text)) => Ok(Value::String(text.clone())),
        (Kind::Text, Value::Number(number)) => Ok(Value::String(number.to_string())),
        // Seconds may have fractions there; here they are whole.
        (Kind::Number, Value::Number(number)) => whole(&number.to_string()),
        (Kind::Number, Value::String(text)) => whole(text),
        (Kind::Json, Value::String(text)) => {
            serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))
        }
        (Kind::Json, Value::Object(fields)) => Ok(Value::Object(fields.clone())),
        _ => Err("of another type".to_owned()),
    }
}

fn whole(text: &str) -> Result<Value, String> {
    let integral = text.split('.').next().unwrap_or(text);
    let number: i64 = integral.parse().map_err(|_| format!("{text:?} is no number"))?;
    Ok(Value::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(value: Value) -> Result<ImportRow, String> {
        row_of(value.as_object().unwrap())
    }

    #[test]
    fn the_oldest_row_has_defaults_and_the_newest_its_nested_specs() {
        let oldest = row(json!({"id": "abcd1234", "status": "completed"})).unwrap();
        assert_eq!(oldest.record["sandbox"], "workspace-write");
        assert_eq!(oldest.record["sandbox_spec"], Value::Null);
        assert!(oldest.spec.is_none());
        let newest = json!({"id": "abcd1235", "status": "failed", "created_at": 12.9,
            "sandbox_spec": "{\"max_turns\":3}"});
        let newest = row(newest).unwrap();
        assert_eq!(newest.record["sandbox_spec"], json!({"max_turns": 3}));
        assert_eq!(newest.record["created_at"], 12);
        assert_eq!(newest.spec.unwrap().0, "{\"max_turns\":3}");
    }

    #[test]
    fn a_row_that_does_not_fit_is_left_out_with_its_reason() {
        for (bad, why) in [
            (json!({"status": "completed"}), "no id"),
            (json!({"id": "ABC", "status": "completed"}), "dispatch id"),
            (json!({"id": "abcd1234", "status": "odd"}), "unknown"),
            (json!({"id": "abcd1234", "status": "running"}), "still running"),
            (json!({"id": "abcd1234", "status": "failed", "sandbox_spec": "{"}), "no JSON"),
            (json!({"id": "abcd1234", "status": "failed", "turns": "x"}), "no number"),
        ] {
            let reason = row(bad).unwrap_err();
            assert!(reason.contains(why), "{reason}");
        }
    }
}
