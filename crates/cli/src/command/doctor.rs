//! `doctor`: what this host can isolate, what is weak, and how to mend it; with `--probe`, whether
//! real sandboxes on it hold.
//!
//! ```text
//! detect -> survey -> [probe each runtime] -> Report -> text | --json | --attest
//! ```

mod attest;
mod report;
mod selftest;
mod text;

use clap::Args;
use cofferdam_sandbox::{Host, HostConfig, Runtime, monitors, survey};
use serde_json::json;

use super::exit::Exit;
use super::locations::Locations;
use super::{output, state};
use report::Report;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 fit; 1 a probe saw a surprise, or (with --strict) a weak point; 2 unfit."
)]
pub(crate) struct DoctorArgs {
    /// Try to escape from real sandboxes of every installed runtime, and report
    #[arg(long)]
    pub probe: bool,
    /// Print a checklist for a security review (markdown, or with --json the same as JSON); probes
    #[arg(long)]
    pub attest: bool,
    /// Exit 1 if anything is weak
    #[arg(long)]
    pub strict: bool,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

impl DoctorArgs {
    pub(crate) fn probes(&self) -> bool {
        self.probe || self.attest
    }
}

pub(crate) async fn doctor(at: &Locations, args: &DoctorArgs) -> anyhow::Result<Exit> {
    let dir = state::dir(at)?;
    let config = HostConfig { state_dir: dir.clone(), ..HostConfig::default() };
    let host = match Host::detect(config) {
        Ok(host) => host,
        Err(error) => {
            let problem = error.to_string();
            if args.json {
                output::json(&json!({
                    "schemaVersion": 1, "ready": false, "fit": "unfit", "problem": problem,
                }));
            } else {
                text::unfit(&problem);
            }
            return Ok(Exit::Error);
        }
    };
    // A worker touches no engine unasked; whoever asks `doctor` wants to know.
    let host = tokio::task::spawn_blocking(move || host.with_engine()).await?;
    let facts = host.facts();
    let looked = facts.clone();
    let mut findings = tokio::task::spawn_blocking(move || survey(&looked)).await?;
    findings.extend(monitors(facts).await);
    let report = Report {
        now_ms: cofferdam_ambient::clock::now_ms(),
        facts: facts.clone(),
        findings,
        database: report::database(at, &dir).await,
        server: report::server(&dir).await,
        runtimes: Runtime::all(),
        probed: match args.probes() {
            true => Some(selftest::every_runtime(&dir, &host.facts().classes).await),
            false => None,
        },
    };
    host.leave();
    match (args.attest, args.json) {
        (_, true) => output::json(&report.json()),
        (true, false) => output::block(&attest::markdown(&report)),
        (false, false) => text::print(&report),
    }
    Ok(report.exit(args.strict))
}
