//! `sandbox network`: the names that a running sandbox reaches, and their changes.

use clap::Args;
use cofferdam_contracts::live::LiveView;
use cofferdam_contracts::live_network::LiveNetworkChange;
use cofferdam_contracts::sandbox::Egress;
use serde_json::json;

use super::client::{Client, segment};
use super::output;
use super::table::{self, extra, key, usual};

#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    pub id: String,
    /// Host that it may reach from now on, in the place of those before (repeatable)
    #[arg(long = "allow", value_name = "HOST")]
    allow: Vec<String>,
    /// No network from now on
    #[arg(long, conflicts_with = "allow")]
    none: bool,
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

/// Changes the network, or lists its changes where no flag asks for one.
pub(crate) async fn network(client: &Client, args: &NetworkArgs) -> anyhow::Result<()> {
    let path = format!("/api/sandboxes/{}/network", segment(&args.id));
    if args.allow.is_empty() && !args.none {
        let changes: Vec<LiveNetworkChange> = client.get(&path).await?;
        match args.json {
            true => output::json(&json!({"schemaVersion": 1, "changes": changes})),
            false => print(&changes),
        }
        return Ok(());
    }
    let net = if args.none { json!("none") } else { json!(args.allow) };
    let view: LiveView = client.put(&path, &json!({"net": net})).await?;
    match args.json {
        true => output::json(&json!({"schemaVersion": 1, "sandbox": view})),
        false => output::line(&names(&view.egress)),
    }
    Ok(())
}

fn names(egress: &Egress) -> String {
    match egress.entries() {
        [] => "none".to_owned(),
        entries => entries.iter().map(|entry| entry.as_str()).collect::<Vec<_>>().join(","),
    }
}

fn print(changes: &[LiveNetworkChange]) {
    let rows = changes.iter().map(|one| {
        vec![
            one.n.to_string(),
            output::time(one.created_at),
            one.key_id.clone(),
            names(&one.before),
            names(&one.requested),
            one.outcome.as_str().to_owned(),
            one.cut.map(|cut| cut.to_string()).unwrap_or_default(),
            one.why.clone().unwrap_or_default(),
        ]
    });
    table::print(
        &[
            key("N"),
            usual("AT (UTC)"),
            extra("KEY"),
            extra("FROM").least(8),
            usual("TO").least(10),
            key("OUTCOME"),
            extra("CUT"),
            usual("WHY").least(12),
        ],
        rows,
    );
}
