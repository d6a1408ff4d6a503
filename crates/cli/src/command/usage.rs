//! `usage`: what tenants used, by day or in all.

use std::io::IsTerminal as _;

use clap::Args;
use cofferdam_contracts::model::money;
use cofferdam_contracts::usage::{UsageDay, UsageGroup, UsageRow};
use serde_json::json;

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::table::{Column, Table, extra, key, usual};
use super::{flag, output};

/// Rows that one request asks for: the most that the server gives.
const PAGE: u32 = 500;
const MIB: u64 = 1_048_576;
const MIB_OF_GIB: u64 = 1_024;

#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Another tenant's usage, or * for that of all tenants, for the host's admin
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
    /// First day (UTC): 2026-01-19, or 7d for the day a week ago
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub since: Option<UsageDay>,
    /// Last day (UTC)
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub until: Option<UsageDay>,
    /// A row for each day, or one for each tenant
    #[arg(long, value_name = "BY", default_value = UsageGroup::Day.as_str(), value_parser = flag::one_of(UsageGroup::ALL, UsageGroup::as_str))]
    pub by: String,
    /// Maximum number of rows
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Every row, however many there are
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    #[arg(long, help = flag::JSON)]
    pub json: bool,
}

fn day(text: &str) -> Result<UsageDay, String> {
    flag::time(text).map(UsageDay::of)
}

impl UsageArgs {
    /// The path of the first page. Pure.
    fn path(&self) -> String {
        let rows = self.rows().unwrap_or(PAGE).min(PAGE);
        let given = [
            ("tenant", self.tenant.clone()),
            ("since", self.since.map(|day| day.to_string())),
            ("until", self.until.map(|day| day.to_string())),
        ];
        let pair = |(name, value): (&str, Option<String>)| {
            value.map(|value| format!("&{name}={}", segment(&value)))
        };
        let given: String = given.into_iter().filter_map(pair).collect();
        format!("/api/usage?limit={rows}&by={}{given}", self.by)
    }

    fn rows(&self) -> Option<u32> {
        (!self.all).then_some(self.limit)
    }

    fn is_by_day(&self) -> bool {
        self.by == UsageGroup::Day.as_str()
    }

    /// Whether rows of several tenants may come.
    fn names_tenants(&self) -> bool {
        !self.is_by_day() || self.tenant.as_deref() == Some("*")
    }

    fn columns(&self) -> Vec<Column<'static>> {
        let mut columns = Vec::new();
        if self.is_by_day() {
            columns.push(key("DAY (UTC)"));
        }
        if self.names_tenants() {
            columns.push(key("TENANT").least(8));
        }
        columns.extend([
            usual("STARTS"),
            usual("WALL S"),
            usual("CORE S"),
            usual("GIB S"),
            extra("STORED MIB"),
            extra("SENT MIB"),
            usual("CALLS"),
            usual("MONEY"),
        ]);
        columns
    }

    fn cells(&self, row: &UsageRow) -> Vec<String> {
        let mut cells = Vec::new();
        if self.is_by_day() {
            cells.push(row.day.map(|day| day.to_string()).unwrap_or_default());
        }
        if self.names_tenants() {
            cells.push(row.tenant.to_string());
        }
        let numbers = [
            row.starts,
            row.sandbox_ms / 1_000,
            row.core_ms / 1_000,
            row.memory_mb_s / MIB_OF_GIB,
            row.stored_bytes / MIB,
            row.sent_bytes / MIB,
            row.model_calls,
        ];
        cells.extend(numbers.map(|number| number.to_string()));
        cells.push(money(row.model_micros));
        cells
    }
}

pub(crate) async fn usage(at: &Locations, args: &UsageArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| match args.json {
        true => as_json(&api.client, args).await,
        false => as_table(&api.client, args).await,
    })
    .await?;
    Ok(Exit::Ok)
}

async fn as_json(client: &Client, args: &UsageArgs) -> anyhow::Result<()> {
    let mut rows = output::JsonRows::begin("usage");
    let take = |page: &[UsageRow]| page.iter().for_each(|row| rows.row(&json!(row)));
    client.pages(args.path(), args.rows(), take).await?;
    rows.end();
    Ok(())
}

async fn as_table(client: &Client, args: &UsageArgs) -> anyhow::Result<()> {
    let columns = args.columns();
    let mut table = Table::new(&columns);
    let take = |page: &[UsageRow]| table.page(page.iter().map(|row| args.cells(row)));
    let has_more = client.pages(args.path(), args.rows(), take).await?;
    table.end();
    if has_more && std::io::stdout().is_terminal() {
        output::note("further rows follow: add --since and --until, or --all");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(by: &str, tenant: Option<&str>) -> UsageArgs {
        UsageArgs {
            tenant: tenant.map(str::to_owned),
            since: Some("2026-01-19".parse().unwrap()),
            until: None,
            by: by.to_owned(),
            limit: 31,
            all: false,
            json: false,
        }
    }

    #[test]
    fn rows_have_a_cell_for_each_column_and_ask_for_what_was_said() {
        let row = UsageRow {
            tenant: "acme".parse().unwrap(),
            day: Some("2026-01-19".parse().unwrap()),
            starts: 3,
            sandbox_ms: 86_400_999,
            core_ms: 1_999,
            memory_mb_s: 5 * MIB_OF_GIB,
            stored_bytes: 3 * MIB,
            sent_bytes: 0,
            model_calls: 2,
            model_tokens: 10,
            model_micros: 1_500_000,
        };
        for (by, tenant, cells) in [
            ("day", None, "2026-01-19 3 86400 1 5 3 0 2 1.500000"),
            ("day", Some("*"), "2026-01-19 acme 3 86400 1 5 3 0 2 1.500000"),
            ("tenant", Some("*"), "acme 3 86400 1 5 3 0 2 1.500000"),
        ] {
            let args = args(by, tenant);
            assert_eq!(args.cells(&row).join(" "), cells);
            assert_eq!(args.cells(&row).len(), args.columns().len());
        }
        assert_eq!(
            args("day", Some("*")).path(),
            "/api/usage?limit=31&by=day&tenant=%2A&since=2026%2D01%2D19"
        );
    }
}
