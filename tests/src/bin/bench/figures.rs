//! What the benches say, and how it is condensed.

use serde_json::{Value, json};

/// One line of stdout. `limit` is the promise; `more` are further fields.
pub fn emit(name: &str, value: f64, unit: &str, limit: impl Into<Option<f64>>, more: Value) {
    let mut line = json!({"name": name, "value": rounded(value), "unit": unit});
    if let Some(limit) = limit.into() {
        line["target"] = limit.into();
    }
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        line[key] = value;
    }
    println!("{line}");
}

/// To a thousandth: what is beyond is noise.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

pub fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

pub fn percentile(mut values: Vec<f64>, p: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get((values.len() * p / 100).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Rows of words on stderr, the first column to the left and the others to the right.
pub fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        eprintln!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
