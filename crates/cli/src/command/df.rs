//! `df`: who uses what.

use clap::Args;
use cofferdam_contracts::retention::{StorageReport, TenantStorage};
use cofferdam_sandbox::image::Images;
use serde_json::json;

use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::table::{self, Column, extra, key, usual};
use super::{output, state};

const MIB: u64 = 1024 * 1024;

/// A terminal of 80 cells shows all but [`extra`].
const COLUMNS: [Column<'_>; 11] = [
    key("TENANT").least(8),
    key("RUNS"),
    extra("ERASED"),
    extra("TASKS"),
    extra("ARTIFACTS"),
    usual("ARTIFACTS MIB"),
    usual("CACHE MIB"),
    usual("PAUSES MIB"),
    usual("COPIES MIB"),
    usual("SENT MIB"),
    extra("QUOTA MIB"),
];
/// What removes them, by their columns.
const REMOVALS: [&str; 2] = [
    "COPIES and SENT go by age: a day after their last use, once no run needs them.",
    "ARTIFACTS, CACHE and PAUSES go by rule, with `cofferdam gc`.",
];

#[derive(Debug, Args)]
pub(crate) struct DfArgs {
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

pub(crate) async fn df(at: &Locations, args: &DfArgs) -> anyhow::Result<Exit> {
    let report: StorageReport =
        within(Connection::reading(at), async |session| session.client.get("/api/storage").await)
            .await?;
    let images = images(at);
    if args.json {
        let mut all = serde_json::to_value(&report)?;
        if let (Some(fields), Some(bytes)) = (all.as_object_mut(), images) {
            fields.insert("imageBytes".to_owned(), json!(bytes));
        }
        output::json(&all);
    } else {
        print(&report, images);
    }
    Ok(Exit::Ok)
}

/// Bytes of this host's images; `None` where the server is elsewhere, or this user may not look.
fn images(at: &Locations) -> Option<u64> {
    if at.server.is_some() || !rustix::process::geteuid().is_root() {
        return None;
    }
    let store = Images::open(&state::dir(at).ok()?).ok()?;
    let all = store.list().ok()?;
    Some(all.iter().map(|image| image.bytes).fold(0, u64::saturating_add))
}

fn row(tenant: &TenantStorage) -> Vec<String> {
    let mib = |bytes: u64| bytes.div_ceil(MIB).to_string();
    vec![
        tenant.tenant.to_string(),
        tenant.runs.to_string(),
        tenant.erased_runs.to_string(),
        tenant.tasks.to_string(),
        tenant.artifacts.count.to_string(),
        mib(tenant.artifacts.bytes),
        mib(tenant.cache.bytes),
        mib(tenant.pauses.bytes),
        mib(tenant.trees.bytes),
        mib(tenant.sent.bytes),
        mib(tenant.quota_bytes),
    ]
}

fn print(report: &StorageReport, images: Option<u64>) {
    table::print(&COLUMNS, report.tenants.iter().map(row));
    if report.tenants.iter().any(|tenant| tenant.trees.bytes > 0 || tenant.sent.bytes > 0) {
        output::line("");
        REMOVALS.iter().for_each(|line| output::line(line));
    }
    if report.database_bytes > 0 {
        output::line("");
        output::line(&format!("database  {} MiB", report.database_bytes.div_ceil(MIB)));
    }
    if let Some(bytes) = images {
        output::line(&format!("images of this host  {} MiB", bytes.div_ceil(MIB)));
    }
    let tables = report.tables.iter().map(|of| {
        vec![
            of.table.clone(),
            of.bytes.div_ceil(MIB).to_string(),
            of.rows.to_string(),
            of.dead_rows.to_string(),
        ]
    });
    if !report.tables.is_empty() {
        output::line("");
        table::print(
            &[key("TABLE").least(16), key("MIB"), usual("ROWS"), usual("DEAD ROWS")],
            tables,
        );
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::TenantId;
    use cofferdam_contracts::retention::StoredBytes;

    use super::super::table::Table;
    use super::*;

    #[test]
    fn a_terminal_of_80_cells_shows_what_was_sent_and_what_was_copied() {
        let of = |mib: u64| StoredBytes { count: 3, bytes: mib * MIB };
        let tenant = TenantStorage {
            tenant: TenantId::parse("a-tenant-with-a-long-name").unwrap(),
            runs: 123_456,
            erased_runs: 1,
            tasks: 2,
            artifacts: of(1_234_567),
            cache: of(32_768),
            pauses: of(0),
            trees: of(16_384),
            sent: of(32_768),
            quota_bytes: 5,
        };
        let lines = Table::of_width(&COLUMNS, Some(80)).lines([row(&tenant)]);
        let [heads, line] = lines.as_slice() else { panic!("{lines:?}") };
        let heads: Vec<&str> =
            heads.split("  ").map(str::trim).filter(|head| !head.is_empty()).collect();
        let wanted = [
            "TENANT",
            "RUNS",
            "ARTIFACTS MIB",
            "CACHE MIB",
            "PAUSES MIB",
            "COPIES MIB",
            "SENT MIB",
        ];
        assert_eq!(heads, wanted);
        assert!(line.contains("16384") && line.ends_with("32768"), "{line}");
        assert!(REMOVALS.iter().all(|line| line.len() <= 80));
    }
}
