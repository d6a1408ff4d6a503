//! `ps`: runs, newest first, a page at a time.

use std::io::IsTerminal as _;

use clap::Args;
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use serde_json::json;

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::table::{Column, Table, extra, key, run_ids, usual};
use super::{flag, output};

/// Rows that one request asks for: the most that the server gives.
const PAGE: u32 = 500;

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Only runs with this status; may be repeated
    #[arg(long = "status", value_name = "STATUS", value_parser = flag::one_of(RunStatus::ALL, RunStatus::as_str))]
    pub statuses: Vec<String>,
    /// Only runs that failed, after retries too
    #[arg(long, conflicts_with = "statuses")]
    pub failed: bool,
    /// Only runs of this recipe, in any version
    #[arg(long, value_name = "ID")]
    pub recipe: Option<String>,
    /// Only runs created then or later: 2h for the last two hours, 2026-01-19, or "2026-01-19 08:30" in UTC
    #[arg(long, value_name = "TIME", value_parser = flag::time)]
    pub since: Option<Instant>,
    /// Only runs created before that
    #[arg(long, value_name = "TIME", value_parser = flag::time)]
    pub until: Option<Instant>,
    /// Another tenant's runs, or * for those of all tenants, for the host's admin
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
    /// Only runs older than this one, such as the last that was listed
    #[arg(long, value_name = "RUN")]
    pub after: Option<String>,
    /// Maximum number of rows
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Every run, however many there are
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    #[arg(long, help = flag::JSON)]
    pub json: bool,
}

impl PsArgs {
    /// The path of the first page. Pure.
    fn path(&self) -> String {
        let rows = self.rows().unwrap_or(PAGE).min(PAGE);
        let mut pairs = vec![format!("limit={rows}")];
        let instant = |at: Option<Instant>| at.map(|at| at.to_string());
        let statuses = self.statuses.iter().fold(Vec::new(), |mut once: Vec<&str>, status| {
            if !once.contains(&status.as_str()) {
                once.push(status);
            }
            once
        });
        let given = [
            ("status", Some(statuses.join(",")).filter(|all| !all.is_empty())),
            ("failed", self.failed.then(|| "true".to_owned())),
            ("recipe", self.recipe.clone()),
            ("since", instant(self.since)),
            ("until", instant(self.until)),
            ("tenant", self.tenant.clone()),
            ("after", self.after.clone()),
        ];
        let pair = |(name, value): (&str, Option<String>)| {
            value.map(|value| format!("{name}={}", segment(&value)))
        };
        pairs.extend(given.into_iter().filter_map(pair));
        format!("/api/runs?{}", pairs.join("&"))
    }

    /// Rows that are wanted; `None`: all that there are.
    fn rows(&self) -> Option<u32> {
        (!self.all).then_some(self.limit)
    }
}

const COLUMNS: [Column<'_>; 5] = [
    key("RUN"),
    key("STATUS").least(9),
    usual("RECIPE").least(8),
    extra("CREATED (UTC)"),
    usual("ERROR").least(16),
];

const COLUMNS_OF_TENANTS: [Column<'_>; 6] = [
    key("RUN"),
    usual("TENANT").least(8),
    key("STATUS").least(9),
    usual("RECIPE").least(8),
    extra("CREATED (UTC)"),
    usual("ERROR").least(16),
];

pub(crate) async fn ps(at: &Locations, args: &PsArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| match args.json {
        true => as_json(&api.client, args).await,
        false => as_table(&api.client, args).await,
    })
    .await?;
    Ok(Exit::Ok)
}

async fn as_json(client: &Client, args: &PsArgs) -> anyhow::Result<()> {
    let mut rows = output::JsonRows::begin("runs");
    let take = |runs: &[RunHeader]| runs.iter().for_each(|run| rows.row(&json!(run)));
    client.pages(args.path(), args.rows(), take).await?;
    rows.end();
    Ok(())
}

async fn as_table(client: &Client, args: &PsArgs) -> anyhow::Result<()> {
    let of_tenants = args.tenant.as_deref() == Some("*");
    let columns: &[Column<'_>] = if of_tenants { &COLUMNS_OF_TENANTS } else { &COLUMNS };
    let (mut table, mut last) = (Table::new(columns), None);
    let take = |runs: &[RunHeader]| {
        last = runs.last().map(|run| run.run_id.clone()).or(last.take());
        let ids = run_ids(runs.iter().map(|run| &run.run_id));
        table.page(ids.into_iter().zip(runs).map(|(id, run)| row(id, run, of_tenants)));
    };
    let has_older = client.pages(args.path(), args.rows(), take).await?;
    table.end();
    if let Some(last) = last.filter(|_| has_older && std::io::stdout().is_terminal()) {
        output::note(&format!("older runs follow: add --after {last}, or --all"));
    }
    Ok(())
}

fn row(id: String, run: &RunHeader, of_tenants: bool) -> Vec<String> {
    let recipe = run.recipe_ref.as_ref().map(|x| format!("{}@{}", x.id, x.v)).unwrap_or_default();
    let error = match run.held_sessions {
        0 => run.error.clone().unwrap_or_default().chars().take(60).collect(),
        n => format!("{n} wipes not verified; see `cofferdam session ls --held`"),
    };
    let held = if run.held_sessions > 0 { " (held)" } else { "" };
    let waits = run.waits_for.as_ref().map(|what| format!(" ({what})")).unwrap_or_default();
    let tenant = run.tenant_id.as_ref().map(ToString::to_string).unwrap_or_default();
    let tenant = of_tenants.then_some(tenant);
    let status = format!("{}{held}{waits}", run.status.as_str());
    let created = output::time(run.created_at);
    let cells = [status, recipe, created, error];
    std::iter::once(id).chain(tenant).chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        ps: PsArgs,
    }

    fn path(flags: &[&str]) -> String {
        let ps = Line::try_parse_from([&["ps"], flags].concat()).unwrap().ps;
        ps.path()
    }

    #[test]
    fn flags_become_the_query_of_the_first_page() {
        assert_eq!(path(&[]), "/api/runs?limit=20");
        assert_eq!(path(&["--limit", "7000"]), "/api/runs?limit=500");
        assert_eq!(
            path(&["--all", "--tenant", "*", "--failed"]),
            "/api/runs?limit=500&failed=true&tenant=%2A"
        );
        let flags = ["--status", "queued", "--status", "running", "--status", "queued"];
        assert_eq!(path(&flags), "/api/runs?limit=20&status=queued%2Crunning");
        let flags = ["--since", "2026-01-19", "--until", "2026-01-20 08:30", "--recipe", "a.b"];
        assert_eq!(
            path(&flags),
            "/api/runs?limit=20&recipe=a%2Eb&since=2026%2D01%2D19T00%3A00%3A00%2E000Z\
             &until=2026%2D01%2D20T08%3A30%3A00%2E000Z"
        );
        assert_eq!(path(&["--after", "last"]), "/api/runs?limit=20&after=last");
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for flags in [
            &["--failed", "--status", "queued"][..],
            &["--all", "--limit", "3"],
            &["--limit", "0"],
            &["--status", "done"],
            &["--since", "yesterday"],
        ] {
            assert!(Line::try_parse_from([&["ps"], flags].concat()).is_err(), "{flags:?}");
        }
    }
}
