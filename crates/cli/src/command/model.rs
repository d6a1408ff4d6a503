//! `model add | ls | rm | usage`.

use clap::{Args, Subcommand};
use cofferdam_contracts::model::{
    ModelCallRow, ModelProtocol, ModelSpend, ProviderRemoval, ProviderRow, money,
};
use serde_json::{Map, Value, json};

use super::bounds::{bound, micros};
use super::client::segment;
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::table::{self, extra, key, usual};
use super::{flag, output, run_lookup};

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    pub command: ModelCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Add a provider of models, or change one
    Add {
        /// Name, as recipes write it
        name: String,
        /// Base URL, with the path of its version
        #[arg(long)]
        url: String,
        /// Protocol: openai-chat, openai-responses or anthropic-messages (repeatable)
        #[arg(long = "protocol", value_name = "PROTOCOL", required = true,
              value_parser = flag::one_of(ModelProtocol::ALL, ModelProtocol::as_str))]
        protocols: Vec<String>,
        /// Secret that holds the provider's key; default: no key
        #[arg(long)]
        secret: Option<String>,
        /// Model with its prices per million tokens, input/output[/cached], such as big=1.25/10/0.125 (repeatable)
        #[arg(long = "model", value_name = "NAME=PRICES", required = true)]
        models: Vec<String>,
        /// Bound of all calls: calls=N, tokens=N or money=N (repeatable)
        #[arg(long, value_name = "KEY=N")]
        budget: Vec<String>,
        /// Bound of the calls of one day (UTC): calls=N, tokens=N or money=N (repeatable)
        #[arg(long, value_name = "KEY=N")]
        day_budget: Vec<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List providers of models
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Remove a provider; its next call is refused
    Rm { name: String },
    /// Show what a run's calls of models took
    Usage {
        #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
        run: String,
        /// List each call
        #[arg(long)]
        calls: bool,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
}

pub(crate) async fn model(at: &Locations, args: &ModelArgs) -> anyhow::Result<Exit> {
    let wanted = match &args.command {
        ModelCommand::Add { .. } => Some(body(&args.command)?),
        _ => None,
    };
    within(Connection::reading(at), async |session| act(session, &args.command, wanted).await)
        .await?;
    Ok(Exit::Ok)
}

async fn act(
    session: &Connection,
    command: &ModelCommand,
    wanted: Option<Value>,
) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        ModelCommand::Add { json: as_json, .. } => {
            let body = wanted.unwrap_or_default();
            let made: ProviderRow = client.post("/api/models", &body).await?;
            if *as_json {
                output::json(&serde_json::to_value(&made)?);
            } else {
                output::line(made.provider.name.as_str());
            }
        }
        ModelCommand::Ls { json: as_json } => {
            let rows: Vec<ProviderRow> = client.get("/api/models").await?;
            if *as_json {
                output::json(&json!({"schemaVersion": 1, "providers": rows}));
            } else {
                list(&rows);
            }
        }
        ModelCommand::Rm { name } => {
            let _: ProviderRemoval =
                client.delete(&format!("/api/models/{}", segment(name))).await?;
            output::line("removed");
        }
        ModelCommand::Usage { run, calls, json: as_json } => {
            let run = run_lookup::run_id(client, run).await?;
            let path = format!("/api/runs/{}/models", segment(&run));
            let spent: Vec<ModelSpend> = client.get(&path).await?;
            let rows: Vec<ModelCallRow> = match calls {
                true => client.get(&format!("{path}/calls")).await?,
                false => Vec::new(),
            };
            match (as_json, calls) {
                (true, true) => {
                    output::json(&json!({"schemaVersion": 1, "models": spent, "calls": rows}));
                }
                (true, false) => output::json(&json!({"schemaVersion": 1, "models": spent})),
                (false, true) => calls_table(&rows),
                (false, false) => spent_table(&spent),
            }
        }
    }
    Ok(())
}

fn list(rows: &[ProviderRow]) {
    let rows = rows.iter().map(|row| {
        let provider = &row.provider;
        let protocols: Vec<&str> = provider.protocols.iter().map(|p| p.as_str()).collect();
        let models: Vec<&str> = provider.models.iter().map(|m| m.model.as_str()).collect();
        vec![
            provider.name.to_string(),
            row.version.to_string(),
            protocols.join(","),
            models.join(","),
            provider.secret.as_ref().map(ToString::to_string).unwrap_or_default(),
            provider.url.clone(),
        ]
    });
    table::print(
        &[
            key("PROVIDER").least(10),
            extra("VERSION"),
            extra("PROTOCOLS").least(10),
            usual("MODELS").least(12),
            extra("SECRET").least(8),
            usual("URL").least(16),
        ],
        rows,
    );
}

fn spent_table(rows: &[ModelSpend]) {
    let rows = rows.iter().map(|row| {
        vec![
            row.provider.to_string(),
            row.model.to_string(),
            row.calls.to_string(),
            row.tokens.to_string(),
            paid(row.micros),
            row.unknown.to_string(),
        ]
    });
    table::print(
        &[
            usual("PROVIDER").least(8),
            key("MODEL").least(12),
            usual("CALLS"),
            usual("TOKENS"),
            key("MONEY"),
            extra("UNKNOWN"),
        ],
        rows,
    );
}

fn calls_table(rows: &[ModelCallRow]) {
    let rows = rows.iter().map(|row| {
        let usage = row.usage;
        let tokens = |of: fn(cofferdam_contracts::model::ModelUsage) -> u64| {
            usage.map_or_else(String::new, |usage| of(usage).to_string())
        };
        vec![
            output::time(row.created_at),
            row.n.to_string(),
            row.model.as_ref().map(ToString::to_string).unwrap_or_default(),
            row.outcome.map_or("sent", |outcome| outcome.as_str()).to_owned(),
            tokens(|usage| usage.input),
            tokens(|usage| usage.output),
            paid(row.micros),
            row.wall_ms.map(|ms| ms.to_string()).unwrap_or_default(),
            row.why.clone().unwrap_or_default(),
        ]
    });
    let heads = [
        extra("TIME (UTC)"),
        key("N"),
        usual("MODEL").least(10),
        key("OUTCOME"),
        usual("IN"),
        usual("OUT"),
        usual("MONEY"),
        extra("MS"),
        usual("WHY").least(12),
    ];
    table::print(&heads, rows);
}

fn paid(micros: i64) -> String {
    money(u64::try_from(micros).unwrap_or(0))
}

fn price(text: &str) -> anyhow::Result<Value> {
    let wrong = || {
        Misuse(format!(
            "--model {text:?}: write NAME=INPUT/OUTPUT[/CACHED[/WRITTEN[/WRITTEN_HOUR]]], such as big=1.25/10"
        ))
    };
    let (name, prices) = text.split_once('=').ok_or_else(wrong)?;
    let prices: Option<Vec<u64>> = prices.split('/').map(micros).collect();
    let prices = prices.ok_or_else(wrong)?;
    let mut price = Map::from_iter([("model".to_owned(), json!(name))]);
    let fields = [
        "input_micros",
        "output_micros",
        "cached_micros",
        "cache_write_micros",
        "cache_write_hour_micros",
    ];
    if prices.len() < 2 || prices.len() > fields.len() {
        return Err(wrong().into());
    }
    price.extend(fields.into_iter().zip(prices).map(|(field, of)| (field.to_owned(), json!(of))));
    Ok(Value::Object(price))
}

fn limit(flag: &str, pairs: &[String]) -> anyhow::Result<Option<Value>> {
    let mut bounds = Map::new();
    for pair in pairs {
        let wrong = || Misuse(format!("--{flag} {pair:?}: write calls=N, tokens=N or money=N"));
        let (metric, most) = bound(pair).ok_or_else(wrong)?;
        bounds.insert(metric.as_str().to_owned(), json!(most));
    }
    Ok((!bounds.is_empty()).then_some(Value::Object(bounds)))
}

fn body(command: &ModelCommand) -> anyhow::Result<Value> {
    let ModelCommand::Add { name, url, protocols, secret, models, budget, day_budget, .. } =
        command
    else {
        return Ok(Value::Null);
    };
    let models = models.iter().map(|model| price(model)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut body = Map::from_iter([
        ("name".to_owned(), json!(name)),
        ("url".to_owned(), json!(url)),
        ("protocols".to_owned(), json!(protocols)),
        ("models".to_owned(), json!(models)),
    ]);
    let optional = [
        ("secret", secret.as_ref().map(|secret| json!(secret))),
        ("budget", limit("budget", budget)?),
        ("day_budget", limit("day-budget", day_budget)?),
    ];
    for (field, value) in optional {
        body.extend(value.map(|value| (field.to_owned(), value)));
    }
    Ok(Value::Object(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_written_with_its_prices() {
        let read = price("a/b:c=1.25/10/0.125").unwrap();
        assert_eq!(read["cached_micros"], 125_000);
        assert_eq!(read["model"], "a/b:c");
        let written = price("big=3/15/0.3/3.75/6").unwrap();
        assert_eq!(
            (&written["cache_write_micros"], &written["cache_write_hour_micros"]),
            (&json!(3_750_000), &json!(6_000_000))
        );
        for bad in ["big", "big=", "big=1", "big=1/2/3/4/5/6", "big=1/x"] {
            assert!(price(bad).is_err(), "{bad}");
        }
        let bounds = limit("budget", &["calls=3".into(), "money=0.5".into()]).unwrap().unwrap();
        assert_eq!(bounds, json!({"calls": 3, "micros": 500_000}));
        assert!(limit("budget", &["seconds=3".into()]).is_err());
    }
}
