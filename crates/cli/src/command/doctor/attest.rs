//! The attestation checklist: what an operator hands to a security review, as markdown.

use std::fmt::Write as _;

use cofferdam_contracts::session::HardwareIsolation;
use cofferdam_sandbox::Offer;

use super::report::Report;
use super::selftest::ProbeReport;
use crate::command::output;

pub(super) fn markdown(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut text, report);
    for probed in report.probed.iter().flatten() {
        let _ = section(&mut text, probed);
    }
    let _ = write!(
        text,
        "\n## Verdict\n\n- [{}] every probe answered as expected, and every sandbox was wiped and \
         verified\n- [ ] the weak points above are accepted (name, date)",
        tick(report.holds()),
    );
    text
}

fn head(text: &mut String, report: &Report) -> std::fmt::Result {
    let facts = &report.facts;
    writeln!(text, "# Isolation attestation\n")?;
    writeln!(text, "| Fact | Value |\n|---|---|")?;
    for (name, value) in [
        ("time (UTC)", output::time(report.now_ms)),
        ("cofferdam", env!("CARGO_PKG_VERSION").to_owned()),
        ("kernel", facts.kernel.clone()),
        ("runtime in use", facts.runtime.version.clone()),
        ("cgroups", format!("{:?}", facts.cgroups.mode)),
        ("cpus", facts.cpus.to_string()),
        ("memory MiB", facts.mem_mb.to_string()),
        ("database", report.database.words()),
    ] {
        writeln!(text, "| {name} | {} |", cell(&value))?;
    }
    writeln!(text, "\n## Classes\n\n| Class | Present | Note |\n|---|---|---|")?;
    for (class, present, note) in report.classes() {
        writeln!(text, "| {class} | {} | {} |", if present { "yes" } else { "no" }, cell(&note))?;
    }
    disclosure(text, report)?;
    writeln!(text, "\n## Controls of the host\n")?;
    for finding in &report.findings {
        let good = finding.mend.is_none();
        write!(text, "- [{}] `{}`: {}", tick(good), finding.id, cell(&finding.found))?;
        match finding.mend {
            Some(mend) => writeln!(text, " (weak; mend: {mend})")?,
            None => writeln!(text)?,
        }
    }
    Ok(())
}

/// What was tried on this host, and what is only stated: by an operator, a runtime or a provider.
fn disclosure(text: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(text, "\n## Hardware isolation, and what was tried\n")?;
    writeln!(
        text,
        "| Class | Hardware isolation | Escape probes | Only stated |\n|---|---|---|---|"
    )?;
    for fact in &report.facts.classes {
        if matches!(fact.offer, Offer::Absent { .. }) {
            continue;
        }
        let of_class = |probed: &&ProbeReport| probed.class == fact.class;
        let all: Vec<&ProbeReport> = report.probed.iter().flatten().filter(of_class).collect();
        let probes = match (all.len(), all.iter().all(|probed| probed.holds())) {
            (0, _) => "none".to_owned(),
            (count, true) => format!("held, {count} runtimes"),
            (_, false) => "**did not hold**".to_owned(),
        };
        let hardware = report.facts.hardware_isolation(fact.class);
        let stated = match hardware {
            HardwareIsolation::Stated => "isolation, limits and wipe, by the provider",
            _ => {
                "version of the runtime, as it prints it; that no unknown flaw is in runtime and kernel"
            }
        };
        let class = fact.class.as_str();
        writeln!(text, "| {class} | {} | {probes} | {stated} |", hardware.words())?;
    }
    writeln!(
        text,
        "\nContainers and gVisor are not hardware isolation. `isolation.class_min` (docs/sandbox.md) keeps tenants off a class; \
         the class `microvm` is the one with a virtual machine."
    )
}

fn section(text: &mut String, probed: &ProbeReport) -> std::fmt::Result {
    let (class, version) = (probed.class.as_str(), cell(&probed.runtime.version));
    writeln!(text, "\n## Probes: {class}, {version}\n")?;
    let test = match &probed.outcome {
        Ok(test) => test,
        Err(error) => return writeln!(text, "- [ ] the self-test failed: {}", cell(error)),
    };
    writeln!(text, "| Holds | Probe | Tries to | Expected | Observed |\n|---|---|---|---|---|")?;
    for probe in &test.probes {
        writeln!(
            text,
            "| {} | `{}` | {} | {} | {} |",
            if probe.ok { "yes" } else { "**no**" },
            probe.id,
            cell(&probe.tries),
            cell(&probe.expected.join(" or ")),
            cell(&probe.observed),
        )?;
    }
    let wiped = test.is_wiped();
    writeln!(text, "\n- [{}] both sandboxes wiped and looked for, nothing found", tick(wiped))
}

const fn tick(yes: bool) -> char {
    if yes { 'x' } else { ' ' }
}

/// What a sandbox says is not to be trusted with the table's form.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn a_hostile_answer_cannot_leave_its_cell() {
        assert_eq!(cell("a|b\n# c<script>"), "a\\|b # c&lt;script>");
    }
}
