//! `prove`: every proof query. Exit 0 GO, 1 NO_GO.

use clap::Args;
use cofferdam_contracts::object::ObjectReport;
use cofferdam_contracts::proof::{ProofReport, Verdict};
use cofferdam_ledger::proofs::script;

use super::client::segment;
use super::connection::Connection;
use super::exit::Exit;
use super::file_transfer::byte_count;
use super::locations::Locations;
use super::output;
use super::table::{self, key, usual};

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// Only this run: its id, the beginning of one, its workflow's id, or `last`
    #[arg(long)]
    pub run: Option<String>,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
    /// Leave out the bytes of stored artifacts: the rows alone are proved
    #[arg(long)]
    pub no_objects: bool,
    /// Print every query as one script for psql, which needs no Cofferdam; nothing is proved
    #[arg(long, conflicts_with_all = ["run", "json", "no_objects"])]
    pub sql: bool,
}

pub(crate) async fn prove(at: &Locations, args: &ProveArgs) -> anyhow::Result<Exit> {
    if args.sql {
        output::block(&script());
        return Ok(Exit::Ok);
    }
    let session = Connection::reading(at).await?;
    let path = match &args.run {
        Some(run) => format!("/api/runs/{}/proofs", segment(run)),
        None => "/api/proofs".to_owned(),
    };
    let path = if args.no_objects { format!("{path}?skipObjects=true") } else { path };
    let report: anyhow::Result<ProofReport> = session.client.get(&path).await;
    session.close().await?;
    let report = report?;
    if args.json {
        output::json(&serde_json::to_value(&report)?);
    } else {
        print(&report);
    }
    Ok(match report.verdict {
        Verdict::Go => Exit::Ok,
        Verdict::NoGo => Exit::No,
    })
}

fn print(report: &ProofReport) {
    let rows = report.proofs.iter();
    let rows = rows.map(|p| vec![p.name.clone(), p.rows.len().to_string(), p.claim.clone()]);
    table::print(&[key("PROOF").least(24), key("ROWS"), usual("CLAIM").least(20)], rows);
    for proof in report.proofs.iter().filter(|p| !p.rows.is_empty()) {
        output::line("");
        output::line(&format!("{}: {}", proof.name, proof.meaning));
        proof.rows.iter().take(10).for_each(|row| output::line(&format!("  {row}")));
        output::block(&format!("  query: {}", proof.sql));
    }
    print_objects(report.objects.as_ref());
    output::line("");
    output::line(match report.verdict {
        Verdict::Go => "GO",
        Verdict::NoGo => "NO_GO",
    });
}

/// What was read of the stored objects, or that nothing was.
fn print_objects(report: Option<&ObjectReport>) {
    output::line("");
    let Some(ObjectReport { looked_at, bytes, faulty, faults }) = report else {
        return output::line("stored objects: not read (--no-objects)");
    };
    let read = byte_count(*bytes);
    output::line(&format!(
        "stored objects: {looked_at} looked at, {read} read and hashed, {faulty} faulty"
    ));
    for fault in faults {
        let of = fault.uri.as_deref().unwrap_or("no artifact");
        let (sha256, object, what) = (&fault.sha256, &fault.object, fault.fault.as_str());
        output::line(&format!("  {what}: object {sha256}.{object} of {of}"));
    }
}
