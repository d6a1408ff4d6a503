//! What the benches say, how it is condensed, and how it comes into `bench/results`.

use cofferdam_tests::measurement::{Measurement, directory, measured_here, record};
use serde_json::{Value, json};

/// One line of stdout, and a result in the file of its bench. `limit` is the promise; `more` are further fields.
pub fn emit(name: &str, value: f64, unit: &str, limit: impl Into<Option<f64>>, more: Value) {
    let mut line = json!({"name": name, "value": rounded(value), "unit": unit});
    if let Some(limit) = limit.into() {
        line["target"] = limit.into();
    }
    let more = more.as_object().cloned().unwrap_or_default();
    for (key, value) in &more {
        line[key] = value.clone();
    }
    println!("{line}");
    // A shrunk bench measures something else, and two builds in turns are compared with each other alone.
    if std::env::var_os("BENCH_QUICK").is_none() && !name.starts_with("binaries_") {
        let more = more.into_iter().map(|(key, value)| (key, short(value))).collect();
        record(
            &directory(),
            name,
            unit,
            Measurement { more, ..measured_here(vec![rounded(value)]) },
        );
    }
}

/// A further figure as it is kept.
fn short(value: Value) -> Value {
    value.as_f64().map_or(value, |number| rounded(number).into())
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
