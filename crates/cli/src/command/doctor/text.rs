//! The report for people.

use cofferdam_sandbox::{Finding, Grade};

use super::report::Report;
use super::selftest::ProbeReport;
use crate::command::output::Ink::{self, Color, Plain};
use crate::command::output::{line, line_of};

pub(super) fn unfit(problem: &str) {
    line_of(&[Color("31", "unfit"), Plain(" this host cannot hold sandboxes yet")]);
    line(&format!("  {problem}"));
}

pub(super) fn print(report: &Report) {
    let weak = report.weak().count();
    let classes = report.classes();
    let present: Vec<&str> =
        classes.iter().filter(|(_, present, _)| *present).map(|(class, ..)| *class).collect();
    let weak = match weak {
        0 => String::new(),
        count => format!("; {count} weak"),
    };
    let ready = format!(" this host is ready: isolation classes {}{weak}", present.join(", "));
    line_of(&[Color("32", "fit"), Plain(&ready)]);
    line("classes");
    for (class, present, note) in report.classes() {
        let mark = if present { Color("32", "present") } else { Color("33", "absent ") };
        row_of(class, mark, &note);
    }
    line("host");
    line(&row("runtime", &report.facts.runtime.path.to_string_lossy()));
    line(&row("database", &report.database.words()));
    if let Some(problem) = &report.server.problem {
        row_of("server", Color("31", "ill "), problem);
    }
    if let Some(held) = report.server.held.filter(|held| *held > 0) {
        let found = format!("{held} with a wipe that is not verified");
        row_of("sessions", Color("31", "held"), &found);
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
        Grade::Good => Color("32", "good"),
        Grade::Fact => Plain("    "),
        Grade::Weak => Color("33", "weak"),
    };
    row_of(finding.id, mark, &finding.found);
    if let Some(mend) = finding.mend {
        line(&format!("  {:<24}       mend: {mend}", ""));
    }
}

fn print_probed(probed: &ProbeReport) {
    let (class, version) = (probed.class.as_str(), &probed.runtime.version);
    line(&format!("escape self-test in {class}, {version}"));
    let test = match &probed.outcome {
        Ok(test) => test,
        Err(error) => {
            let error = format!(" {error}");
            return line_of(&[Plain("  "), Color("31", "FAILED"), Plain(&error)]);
        }
    };
    let wide = test.probes.iter().map(|probe| probe.id.len()).max().unwrap_or(0);
    for probe in &test.probes {
        let mark = if probe.ok { Color("32", "ok      ") } else { Color("31", "SURPRISE") };
        let seen = format!(" {:<wide$}  {}: {}", probe.id, probe.tries, probe.observed);
        line_of(&[Plain("  "), mark, Plain(&seen)]);
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

fn row_of(label: &str, mark: Ink<'_>, text: &str) {
    let (label, text) = (format!("  {label:<24} "), format!("  {text}"));
    line_of(&[Plain(&label), mark, Plain(&text)]);
}
