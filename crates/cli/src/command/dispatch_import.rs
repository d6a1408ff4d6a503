//! `dispatch import`: rows of another program's SQLite file, sent to the API like everything else.

use std::path::Path;

use anyhow::Context;
use cofferdam_contracts::dispatch::ImportResponse;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value, json};

use super::client::Client;
use super::exit::{Exit, Negative};
use super::output;

/// Rows of one request: with long texts it still fits into a body.
const BATCH: usize = 50;
/// Rows of one file: beyond it, it is no database of a person's dispatches.
const MAX_ROWS: usize = 1_000_000;
/// Bytes of one value; longer ones fail their row on the other side.
const MAX_VALUE_BYTES: usize = 128 * 1024;

/// Every row, as its columns. The file is opened for reading alone, and a file that is none of
/// SQLite's, or has no such table, is an error.
pub(crate) fn rows(file: &Path) -> anyhow::Result<Vec<Map<String, Value>>> {
    let shown = file.display();
    if !file.is_file() {
        anyhow::bail!("{shown}: no such file; give the dispatch database of the other program");
    }
    let read = || -> rusqlite::Result<Vec<Map<String, Value>>> {
        let db = open(file)?;
        let mut statement = db.prepare("SELECT * FROM dispatches ORDER BY rowid")?;
        let names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
        let mut found = statement.query([])?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            if rows.len() == MAX_ROWS {
                break;
            }
            let mut columns = Map::new();
            for (index, name) in names.iter().enumerate() {
                columns.insert(name.clone(), value(row.get_ref(index)?));
            }
            rows.push(columns);
        }
        Ok(rows)
    };
    read().with_context(|| format!("{shown} is not a readable dispatch database"))
}

/// Opens it for reading alone. Without a log of writes beside it the file is all there is: SQLite then needs no
/// files of its own there, and reads from a directory that it cannot write.
fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let has_log = std::fs::metadata(log).is_ok_and(|found| found.len() > 0);
    match std::path::absolute(file).ok().as_deref().and_then(Path::to_str) {
        Some(path) if !has_log => {
            let named = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            let name = format!("file:{named}?immutable=1");
            Connection::open_with_flags(name, flags | OpenFlags::SQLITE_OPEN_URI)
        }
        _ => Connection::open_with_flags(file, flags),
    }
}

fn value(found: ValueRef<'_>) -> Value {
    match found {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(bytes) if bytes.len() <= MAX_VALUE_BYTES => {
            json!(String::from_utf8_lossy(bytes))
        }
        // No column of a dispatch holds such a thing: the row is left out by its type.
        ValueRef::Text(_) | ValueRef::Blob(_) => json!([]),
    }
}

/// Sends them, and says what became of each.
pub(crate) async fn import(
    client: &Client,
    rows: &[Map<String, Value>],
    json: bool,
) -> anyhow::Result<Exit> {
    let mut report = ImportResponse::default();
    for batch in rows.chunks(BATCH) {
        let part: ImportResponse =
            client.post("/api/dispatches/import", &json!({"rows": batch})).await?;
        report.imported.extend(part.imported);
        report.unchanged += part.unchanged;
        report.skipped.extend(part.skipped);
    }
    if json {
        output::json(&serde_json::to_value(&report)?);
    } else {
        for skipped in &report.skipped {
            output::note(&format!("skipped {}: {}", skipped.id, skipped.reason));
        }
        output::line(&format!(
            "{} imported, {} unchanged, {} skipped",
            report.imported.len(),
            report.unchanged,
            report.skipped.len()
        ));
    }
    if rows.is_empty() {
        return Err(Negative("the database has no dispatches".into()).into());
    }
    Ok(Exit::Ok)
}
