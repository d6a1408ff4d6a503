//! `gate ls | show | link | reply | delegate | undelegate | delegations`: one function each.

use clap::{Args, Subcommand};
use cofferdam_ambient::{clock, random};
use cofferdam_contracts::delegation::{DelegationEnd, DelegationRow};
use cofferdam_contracts::duration::Duration;
use cofferdam_contracts::egress::EgressAsk;
use cofferdam_contracts::gate::{Choice, GateView, InboxRow, ReplyResponse, SlaStatus};
use cofferdam_contracts::link::LinkResponse;
use cofferdam_contracts::model::BudgetAsk;
use cofferdam_contracts::start_ask::StartAsk;
use cofferdam_contracts::{plan_text, printable};
use serde_json::{Map, Value, json};

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse, Negative};
use super::flag;
use super::grant_arg::{GrantArg, more};
use super::locations::Locations;
use super::table::{self, Table, extra, key, run_ids, usual};
use super::{gate_reply, output, plan_show, run_lookup};

#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    #[command(subcommand)]
    pub command: GateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// List open gates, most urgent first
    Ls(GateListArgs),
    /// Show a run's gates and their plan
    Show(GateShowArgs),
    /// Create a link with which a person without a key answers a gate once
    Link(LinkArgs),
    /// Answer a gate
    Reply(ReplyArgs),
    /// Let another key vote for this one
    Delegate(DelegateArgs),
    /// End a delegation early
    Undelegate {
        /// Its number, as `delegations` lists it
        delegation: u64,
    },
    /// List delegations: from which key, to which, for which group, until when
    Delegations(GateListArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GateListArgs {
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GateShowArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    run: String,
    /// Only this gate, by its key, as `gate ls` shows it
    gate: Option<String>,
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    run: String,
    /// The gate's key, as `gate ls` shows it
    gate: String,
    /// Name of the person who answers, for the record
    #[arg(long = "for", value_name = "NAME")]
    name: String,
    /// Validity, such as 1h: at most 24h, and at most until the gate's deadline
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = flag::wall)]
    expires: Duration,
    /// Restrict the link to this choice
    #[arg(long, value_parser = flag::one_of(Choice::ALL, Choice::as_str))]
    choice: Option<String>,
    /// Address of the server for that person; default: the server's (`up --public-url`)
    #[arg(long, value_name = "URL")]
    base: Option<String>,
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplyArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    run: String,
    /// The gate's key, as `gate ls` shows it
    gate: String,
    /// The vote: yes agrees to what the gate asks, no refuses it
    #[arg(long, value_parser = flag::one_of(Choice::ALL, Choice::as_str))]
    choice: String,
    /// Rationale, for the record
    #[arg(long)]
    rationale: Option<String>,
    /// What a yes grants to a task that asked: a name, or more of its budget of models as calls=N, tokens=N or money=N
    /// (repeatable)
    #[arg(long = "grant", value_name = "NAME|KEY=N", value_parser = more)]
    grants: Vec<GrantArg>,
    /// Duration of the grant of a name, such as 10m
    #[arg(long, value_name = "DURATION", requires = "grants", value_parser = flag::wall)]
    until: Option<Duration>,
    /// Change an editable input: NAME=VALUE, JSON or text (repeatable)
    #[arg(long = "edit", value_name = "NAME=VALUE")]
    edits: Vec<String>,
    /// Idempotency key: a reply with a key that was used before changes nothing; default: a fresh key
    #[arg(long)]
    dedupe_key: Option<String>,
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DelegateArgs {
    /// The other key's id, as `key ls` lists it
    to: String,
    /// For how long: a duration such as 8h, or a number of seconds; at most 30 days
    #[arg(long, alias = "ttl-s", value_name = "DURATION", value_parser = flag::seconds)]
    ttl: Duration,
    /// Only at gates of this group
    #[arg(long)]
    group: Option<String>,
    /// Reason, for the record
    #[arg(long)]
    reason: Option<String>,
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

pub(crate) async fn gate(at: &Locations, args: &GateArgs) -> anyhow::Result<Exit> {
    match &args.command {
        GateCommand::Ls(args) => list(at, args).await,
        GateCommand::Show(args) => show(at, args).await,
        GateCommand::Link(args) => link(at, args).await,
        GateCommand::Reply(args) => reply(at, args).await,
        GateCommand::Delegate(args) => delegate(at, args).await,
        GateCommand::Undelegate { delegation } => undelegate(at, *delegation).await,
        GateCommand::Delegations(args) => delegations(at, args).await,
    }
}

fn of_gate(run: &str, gate: &str, what: &str) -> String {
    format!("/api/runs/{}/gates/{}/{what}", segment(run), segment(gate))
}

/// A body without the fields that are not given.
fn given(mut body: Value) -> Value {
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    body
}

async fn list(at: &Locations, args: &GateListArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| {
        let rows: Vec<InboxRow> = api.client.get("/api/hitl/inbox?limit=200").await?;
        if args.json {
            output::json_rows("gates", serde_json::to_value(&rows)?);
            return Ok(Exit::Ok);
        }
        let now_ms = clock::now_ms();
        let ids = run_ids(rows.iter().map(|row| &row.run_id));
        let row = |(id, row): (String, &InboxRow)| {
            vec![
                id,
                row.gate_key.to_string(),
                relative(row.deadline, now_ms),
                output::time(row.deadline),
                asked(row.asks.as_ref(), row.budget.as_ref(), row.start.as_ref()),
                row.sla_status.as_str().to_owned(),
            ]
        };
        let head = [
            key("RUN"),
            key("GATE").least(12),
            usual("DUE"),
            extra("DEADLINE (UTC)"),
            usual("ASKS FOR").least(12),
            usual("SLA"),
        ];
        let mut table = Table::new(&head).colored(color);
        table.page(ids.into_iter().zip(&rows).map(row));
        table.end();
        Ok(Exit::Ok)
    })
    .await
}

async fn show(at: &Locations, args: &GateShowArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| {
        let run = run_lookup::run_id(&api.client, &args.run).await?;
        let path = format!("/api/runs/{}/gates", segment(&run));
        let mut gates: Vec<GateView> = api.client.get(&path).await?;
        if let Some(wanted) = &args.gate {
            let has: Vec<&str> = gates.iter().map(|gate| gate.gate_key.as_str()).collect();
            if !has.contains(&wanted.as_str()) {
                let why = format!("no gate {wanted:?}; the run's gates: {}", has.join(", "));
                return Err(Negative(why).into());
            }
            gates.retain(|gate| gate.gate_key.as_str() == wanted);
        }
        if args.json {
            output::json_rows("gates", serde_json::to_value(&gates)?);
            return Ok(Exit::Ok);
        }
        let plan = plan_show::fetch(&api.client, &run).await?;
        let row = |gate: &GateView| {
            let decided = gate.decision.as_ref().map_or("", |made| made.decision.as_str());
            vec![
                gate.gate_key.to_string(),
                gate.state.as_str().to_owned(),
                decided.to_owned(),
                output::time(gate.deadline_at),
                asked(gate.asks.as_ref(), gate.budget.as_ref(), gate.start.as_ref()),
            ]
        };
        let heads = [
            key("GATE").least(12),
            key("STATE"),
            usual("DECISION"),
            extra("DEADLINE (UTC)"),
            usual("ASKS FOR").least(12),
        ];
        table::print(&heads, gates.iter().map(row));
        for gate in &gates {
            let Some(start) = &gate.start else { continue };
            output::line("");
            output::line(&format!("gate {}:", gate.gate_key));
            start.lines().iter().for_each(|line| output::line(&printable::line(line)));
        }
        if let Some(plan) = plan {
            output::line("");
            plan_text::lines(&plan).iter().for_each(|line| output::line(line));
        }
        Ok(Exit::Ok)
    })
    .await
}

async fn link(at: &Locations, args: &LinkArgs) -> anyhow::Result<Exit> {
    let expires_s = args.expires.ms() / 1_000;
    let body = given(json!({"for": args.name, "expiresS": expires_s, "choice": args.choice}));
    within(Connection::reading(at), async |api| {
        let path = of_gate(&args.run, &args.gate, "links");
        let mut made: LinkResponse = api.client.post(&path, &body).await?;
        // As the server says it, unless the caller knows better.
        if let Some(base) = &args.base {
            made.url = format!("{}{}", base.trim_end_matches('/'), made.path);
        }
        if args.json {
            output::json(&serde_json::to_value(&made)?);
            return Ok(Exit::Ok);
        }
        output::line(&made.url);
        output::note(&format!(
            "anyone with this link answers as {}, once, until {} UTC",
            made.name,
            output::time(made.expires_at)
        ));
        Ok(Exit::Ok)
    })
    .await
}

async fn reply(at: &Locations, args: &ReplyArgs) -> anyhow::Result<Exit> {
    // What is wrong on this side is said before anything is started.
    let body = answer(args)?;
    within(Connection::reading(at), async |api| {
        let run = run_lookup::run_id(&api.client, &args.run).await?;
        if args.choice == Choice::Yes.as_str() && args.grants.is_empty() {
            granted_something(&api.client, &run, &args.gate).await?;
        }
        let path = of_gate(&run, &args.gate, "reply");
        let accepted: ReplyResponse = match api.client.post(&path, &body).await {
            Ok(accepted) => accepted,
            Err(error) => {
                return Err(gate_reply::refused(&api.client, &run, &args.gate, error).await);
            }
        };
        api.note_if_idle().await;
        match (args.json, accepted.is_replay) {
            (true, _) => output::json(&serde_json::to_value(&accepted)?),
            (false, true) => output::line("replayed: this reply was there already"),
            (false, false) => {
                output::line(&gate_reply::counted(&api.client, &run, &args.gate).await)
            }
        }
        Ok(Exit::Ok)
    })
    .await
}

/// Refuses a yes that says nothing of what a task asked for, with what was asked.
async fn granted_something(client: &Client, run: &str, gate: &str) -> anyhow::Result<()> {
    let path = format!("/api/runs/{}/gates", segment(run));
    // Whether the run, the gate and this key are fine is the reply's to say.
    let gates: Vec<GateView> = client.get(&path).await.unwrap_or_default();
    let Some(gate) = gates.iter().find(|one| one.gate_key.as_str() == gate) else {
        return Ok(());
    };
    let key = &gate.gate_key;
    let why = match (&gate.budget, &gate.asks) {
        (Some(budget), _) => {
            let words = budget.words();
            format!(
                "{key} asks for more of a budget ({words}); add --grant calls=N, tokens=N or money=N"
            )
        }
        (None, Some(asked)) => {
            format!("{key} asks for a name; add --grant {} --until DURATION", asked.name)
        }
        (None, None) => return Ok(()),
    };
    Err(Misuse(why).into())
}

/// What a yes grants.
fn grant(grants: &[GrantArg], until: Option<Duration>) -> anyhow::Result<Option<Value>> {
    let misuse = |why: &str| Err(Misuse(why.to_owned()).into());
    match (grants, until) {
        ([], _) => Ok(None),
        ([GrantArg::Name(name)], Some(until)) => {
            let until = clock::now_ms().saturating_add(i64::try_from(until.ms())?);
            Ok(Some(json!({"name": name, "until": until})))
        }
        ([GrantArg::Name(_)], None) => misuse("--grant NAME needs --until DURATION"),
        (_, Some(_)) => misuse("--until goes with one --grant NAME"),
        (several, None) => {
            let mut fields = Map::new();
            for one in several {
                let GrantArg::Of(metric, n) = one else {
                    return misuse("--grant: give one name, or bounds of a budget");
                };
                if fields.insert(metric.as_str().to_owned(), json!(n)).is_some() {
                    return misuse("--grant: each bound of a budget once");
                }
            }
            Ok(Some(Value::Object(fields)))
        }
    }
}

/// The body of a reply.
fn answer(args: &ReplyArgs) -> anyhow::Result<Value> {
    let grant = grant(&args.grants, args.until)?;
    let edits = if args.edits.is_empty() { None } else { Some(edits_of(&args.edits)?) };
    let payload = given(json!({
        "choice": args.choice, "rationale": args.rationale, "grant": grant, "edits": edits,
    }));
    let fresh = || format!("cli:{}", random::secret_hex(8));
    let dedupe = args.dedupe_key.clone().unwrap_or_else(fresh);
    Ok(json!({"payload": payload, "dedupeKey": dedupe, "origin": "manual"}))
}

async fn delegate(at: &Locations, args: &DelegateArgs) -> anyhow::Result<Exit> {
    let body = given(json!({
        "to": args.to, "ttlS": args.ttl.s(), "group": args.group, "reason": args.reason,
    }));
    within(Connection::reading(at), async |api| {
        let made: DelegationRow = api.client.post("/api/delegations", &body).await?;
        match args.json {
            true => output::json(&serde_json::to_value(&made)?),
            false => {
                output::line(&format!("{}, until {} UTC", made.id, output::time(made.expires_at)));
            }
        }
        Ok(Exit::Ok)
    })
    .await
}

async fn undelegate(at: &Locations, delegation: u64) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| {
        let path = format!("/api/delegations/{delegation}");
        let _: DelegationEnd = api.client.delete(&path).await?;
        output::line("ended");
        Ok(Exit::Ok)
    })
    .await
}

async fn delegations(at: &Locations, args: &GateListArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| {
        let rows: Vec<DelegationRow> = api.client.get("/api/delegations").await?;
        if args.json {
            output::json_rows("delegations", serde_json::to_value(&rows)?);
            return Ok(Exit::Ok);
        }
        let row = |row: &DelegationRow| {
            vec![
                row.id.to_string(),
                row.from.clone(),
                row.to.clone(),
                row.group.as_ref().map(ToString::to_string).unwrap_or_default(),
                output::time(row.expires_at),
                row.ended_at.map(output::time).unwrap_or_default(),
            ]
        };
        let heads = [
            key("ID"),
            usual("FROM").least(10),
            key("TO").least(10),
            usual("GROUP").least(8),
            usual("EXPIRES (UTC)"),
            extra("ENDED (UTC)"),
        ];
        table::print(&heads, rows.iter().map(row));
        Ok(Exit::Ok)
    })
    .await
}

/// What a gate asks for: a task's name, more of its budget, the start of tasks, or consent to the plan.
fn asked(asks: Option<&EgressAsk>, budget: Option<&BudgetAsk>, start: Option<&StartAsk>) -> String {
    match (asks, budget, start) {
        (Some(asks), ..) => format!("{} ({})", asks.name, asks.phase.as_str()),
        (None, Some(budget), _) => budget.words(),
        (None, None, Some(start)) => start.words(),
        (None, None, None) => "consent".to_owned(),
    }
}

/// A deadline as people read one: `in 4m`, `2h ago`.
fn relative(at_ms: i64, now_ms: i64) -> String {
    let left_s = (at_ms - now_ms).div_euclid(1_000);
    let text = match left_s.unsigned_abs() {
        s @ 0..=59 => format!("{s}s"),
        s @ 60..=3_599 => format!("{}m", s / 60),
        s @ 3_600..=86_399 => format!("{}h{:02}m", s / 3_600, s / 60 % 60),
        s => format!("{}d", s / 86_400),
    };
    if left_s < 0 { format!("{text} ago") } else { format!("in {text}") }
}

/// What is late is red and what soon will be is yellow, on a terminal.
fn color(sla: &str) -> Option<&'static str> {
    match sla {
        late if late == SlaStatus::Critical.as_str() => Some("31"),
        soon if soon == SlaStatus::Warning.as_str() => Some("33"),
        _ => None,
    }
}

/// `NAME=VALUE` each; a value that is JSON is that, everything else is a text.
fn edits_of(edits: &[String]) -> anyhow::Result<Value> {
    let mut fields = Map::new();
    for edit in edits {
        let Some((name, value)) = edit.split_once('=') else {
            anyhow::bail!("--edit {edit:?}: write NAME=VALUE");
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        fields.insert(name.to_owned(), value);
    }
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn a_deadline_is_told_by_its_distance() {
        for (at_s, told) in [
            (0, "in 0s"),
            (59, "in 59s"),
            (61, "in 1m"),
            (3_600, "in 1h00m"),
            (7_260, "in 2h01m"),
            (200_000, "in 2d"),
            (-5, "5s ago"),
            (-3_700, "1h01m ago"),
        ] {
            assert_eq!(relative(at_s * 1_000, 0), told);
        }
    }
}
