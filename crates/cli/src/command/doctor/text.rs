//! The report for people.

use std::io::stdout;

use cofferdam_sandbox::{Finding, Grade};

use super::report::Report;
use super::selftest::Probed;
use crate::command::output::{coloured, line};

pub(super) fn unfit(problem: &str) {
    line(&format!("{} this host cannot hold sandboxes yet", sign("unfit", "31")));
    line(&format!("  {problem}"));
}

pub(super) fn print(report: &Report) {
    let weak = report.weak().count();
    let classes = report.classes();
    let present: Vec<&str> =
        classes.iter().filter(|(_, present, _)| *present).map(|(class, ..)| *class).collect();
    line(&format!(
        "{} this host is ready: isolation classes {}{}",
        sign("fit", "32"),
        present.join(", "),
        match weak {
            0 => String::new(),
            count => format!("; {count} weak"),
        }
    ));
    line("classes");
    for (class, present, note) in report.classes() {
        let mark = if present { sign("present", "32") } else { sign("absent ", "33") };
        line(&format!("  {class:<24} {mark}  {note}"));
    }
    line("host");
    line(&row("runtime", &report.facts.runtime.path.to_string_lossy()));
    line(&row("database", &report.database.words()));
    if let Some(held) = report.held.filter(|held| *held > 0) {
        let mark = sign("held", "31");
        line(&format!("  {:<24} {mark}  {held} whose wipe could not be verified", "sessions"));
        line(&format!("  {:<24}       mend: cofferdam session ls --held", ""));
    }
    for finding in &report.findings {
        print_finding(finding);
    }
    for probed in report.probed.iter().flatten() {
        print_probed(probed);
    }
}

fn print_finding(finding: &Finding) {
    let mark = match finding.grade {
        Grade::Good => sign("good", "32"),
        Grade::Fact => "    ".to_owned(),
        Grade::Weak => sign("weak", "33"),
    };
    line(&format!("  {:<24} {mark}  {}", finding.id, finding.found));
    if let Some(mend) = finding.mend {
        line(&format!("  {:<24}       mend: {mend}", ""));
    }
}

fn print_probed(probed: &Probed) {
    let (class, version) = (probed.class.as_str(), &probed.runtime.version);
    line(&format!("escape self-test in {class}, {version}"));
    let test = match &probed.outcome {
        Ok(test) => test,
        Err(error) => return line(&format!("  {} {error}", sign("FAILED", "31"))),
    };
    let wide = test.probes.iter().map(|probe| probe.id.len()).max().unwrap_or(0);
    for probe in &test.probes {
        let mark = if probe.ok { sign("ok      ", "32") } else { sign("SURPRISE", "31") };
        line(&format!("  {mark} {:<wide$}  {}: {}", probe.id, probe.tries, probe.observed));
        if !probe.ok {
            line(&format!("           {:<wide$}  expected {}", "", probe.expected.join(" or ")));
        }
    }
    let wiped = if test.is_wiped() { "both sandboxes wiped, verified" } else { "NOT WIPED" };
    let surprises = test.surprises().count();
    line(&format!("  {} probes, {surprises} surprises; {wiped}", test.probes.len()));
}

fn row(label: &str, value: &str) -> String {
    format!("  {label:<24}       {value}")
}

fn sign(text: &str, colour: &str) -> String {
    coloured(&stdout(), colour, text)
}
