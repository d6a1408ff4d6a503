//! stdout is data, stderr is everything else; colour only on a terminal.

#![expect(clippy::print_stderr, reason = "the one module that prints")]

use std::io::{IsTerminal, Write};

use cofferdam_contracts::schema::schema_of;
use serde_json::Value;

use super::exit::Exit;

/// Whether colour may be used on a stream.
pub(crate) fn is_colored(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && cofferdam_ambient::env::var_os("NO_COLOR").is_none()
}

/// The text in a colour of the terminal, where the stream has any.
pub(crate) fn coloured(stream: &impl IsTerminal, colour: &str, text: &str) -> String {
    match is_colored(stream) {
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// A line of data. A closed pipe is no error of ours.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Data as it is.
pub(crate) fn raw(bytes: &[u8]) {
    let mut out = std::io::stdout();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// A line about what is going on.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// A line about what is going on, marked as good or bad.
pub(crate) fn mark(good: bool, text: &str) {
    let (sign, colour) = if good { ("ok", "32") } else { ("FAILED", "31") };
    eprintln!("{} {text}", coloured(&std::io::stderr(), colour, sign));
}

/// An error with its causes.
pub(crate) fn failure(error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let mut text = String::new();
    for cause in causes {
        // A cause that its effect quotes already says nothing new.
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
    }
    eprintln!("{}: {text}", coloured(&std::io::stderr(), "31", "error"));
}

/// A question on the terminal; `None` where nobody can answer.
pub(crate) fn ask(question: &str) -> Option<String> {
    if !std::io::stdin().is_terminal() {
        return None;
    }
    eprint!("{question} ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).ok()?;
    Some(answer.trim().to_owned())
}

/// JSON, indented for people only.
pub(crate) fn json(value: &Value) {
    if std::io::stdout().is_terminal() {
        line(&serde_json::to_string_pretty(value).unwrap_or_default());
    } else {
        line(&value.to_string());
    }
}

/// A document of its own.
pub(crate) fn document(value: &Value) -> anyhow::Result<Exit> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(Exit::Ok)
}

/// Rows in aligned columns under their heads.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain(heads.get(column).map(|h| h.len()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let print = |cells: &[String]| {
        let text: Vec<String> =
            cells.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        line(text.join("  ").trim_end());
    };
    print(&heads.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    for row in rows {
        print(row);
    }
}

/// ms since the epoch as UTC, to the second.
pub(crate) fn time(ms: i64) -> String {
    let seconds = ms.div_euclid(1000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a civil date, by the usual era arithmetic of the proleptic Gregorian calendar.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The published JSON Schemas.
pub(crate) fn schema(name: Option<&str>) -> anyhow::Result<Exit> {
    use cofferdam_contracts::{
        artifact, dispatch, error, gate, ops, plan, proof, recipe, run, sandbox,
    };
    type Made = fn() -> Value;
    let all: &[(&str, Made)] = &[
        ("artifact-index", schema_of::<artifact::ArtifactIndex>),
        ("dispatch", schema_of::<dispatch::DispatchView>),
        ("dispatch-spawn", schema_of::<dispatch::SpawnRequest>),
        ("error", schema_of::<error::ErrorBody>),
        ("gate", schema_of::<gate::GateView>),
        ("gate-reply", schema_of::<gate::ReplyRequest>),
        ("intent", schema_of::<run::IntentRequest>),
        ("ops-action", schema_of::<ops::OpsAction>),
        ("plan", schema_of::<plan::Plan>),
        ("proofs", schema_of::<proof::ProofReport>),
        ("recipe", schema_of::<recipe::Recipe>),
        ("recipe-run", schema_of::<run::RecipeRunRequest>),
        ("run", schema_of::<run::RunRequest>),
        ("run-header", schema_of::<run::RunHeader>),
        ("sandbox-effective", schema_of::<dispatch::SandboxEffective>),
        ("sandbox-request", schema_of::<sandbox::SandboxRequest>),
        ("sandbox-result", schema_of::<sandbox::SandboxResult>),
        ("sandbox-spec", schema_of::<sandbox::SandboxSpec>),
        ("wipe-evidence", schema_of::<sandbox::WipeEvidence>),
    ];
    let Some(name) = name else {
        all.iter().for_each(|(name, _)| line(name));
        return Ok(Exit::Ok);
    };
    match all.iter().find(|(known, _)| *known == name) {
        Some((_, made)) => document(&made()),
        None => {
            let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            Err(super::exit::Misuse(format!("no schema {name:?}: there are {}", names.join(", ")))
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_civil_dates() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(951_827_696_000), "2000-02-29 12:34:56");
        assert_eq!(time(1_795_305_600_000), "2026-11-22 00:00:00");
    }
}
