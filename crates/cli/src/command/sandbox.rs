//! `sandbox create | ls | exec | shell | cp | extend | network | pause | resume | fork | snapshot | rm`.

use clap::{Args, Subcommand};
use cofferdam_contracts::live::{LiveExecResult, LiveState, LiveView};
use serde_json::{Map, Value, json};

use super::client::segment;
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::output;
use super::sandbox_cp::{self, CpArgs};
use super::sandbox_network::{self, NetworkArgs};
use super::sandbox_shell::{self, ShellArgs};
use super::sandbox_snapshot::{self, SnapshotArgs};
use super::table::{self, extra, key, usual};

#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    #[command(subcommand)]
    pub command: SandboxCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    /// Create a sandbox that lives until it is killed or its time is over; prints its id
    Create {
        /// Template, as `cofferdam template ls` lists them
        #[arg(long, default_value = "base")]
        template: String,
        /// Seconds to live, 1 to 86400
        #[arg(long, default_value_t = 300)]
        timeout: u64,
        /// Label NAME=VALUE (repeatable)
        #[arg(long = "label", value_name = "NAME=VALUE")]
        labels: Vec<String>,
        /// Variable NAME=VALUE of every command (repeatable)
        #[arg(long = "env", value_name = "NAME=VALUE")]
        env: Vec<String>,
        /// Host that it may reach (repeatable); default: no network
        #[arg(long = "allow", value_name = "HOST")]
        allow: Vec<String>,
        /// Weakest isolation class accepted: container, gvisor, microvm
        #[arg(long)]
        class: Option<String>,
        /// Memory in MiB
        #[arg(long)]
        mem_mb: Option<u64>,
        /// Begin with the files of this snapshot
        #[arg(long, value_name = "SNAPSHOT")]
        from: Option<String>,
        /// Pause it when its time is over, instead of ending it
        #[arg(long)]
        pause_on_timeout: bool,
        /// Resume it by the first request to it while it is paused
        #[arg(long, requires = "pause_on_timeout")]
        resume_on_traffic: bool,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List sandboxes that run or are paused
    Ls {
        /// Also those that are over
        #[arg(long)]
        all: bool,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Run a command in a sandbox; exits with its status
    Exec {
        id: String,
        /// user or root
        #[arg(long, default_value = "user")]
        user: String,
        /// Working directory; default: the home of the user
        #[arg(long)]
        cwd: Option<String>,
        /// Seconds that the command may take, 1 to 240
        #[arg(long, default_value_t = 60)]
        timeout: u64,
        /// Program and arguments
        #[arg(last = true, required = true)]
        cmd: Vec<String>,
    },
    /// Open a terminal in a sandbox; exits with the status of its shell
    Shell(ShellArgs),
    /// Copy one file into a sandbox or out of it
    Cp(CpArgs),
    /// Set when a sandbox ends: so many seconds from now
    Extend { id: String, seconds: u64 },
    /// Replace the hosts that a running sandbox reaches; without a flag, list the changes so far
    Network(NetworkArgs),
    /// Pause a sandbox: its files are kept, and its memory where its class can
    Pause {
        id: String,
        /// Keep its files alone: its processes end
        #[arg(long)]
        files_only: bool,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Resume a paused sandbox with what was kept; answers once it runs
    Resume {
        id: String,
        /// Begin with its files alone, whatever was kept
        #[arg(long)]
        files_only: bool,
        /// Seconds to live, 1 to 86400
        #[arg(long, default_value_t = 300)]
        timeout: u64,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Create sandboxes with the files of one that runs or is paused; prints their ids
    Fork {
        id: String,
        /// How many, 1 to 20
        #[arg(long, default_value_t = 1)]
        count: u64,
        /// Seconds to live, 1 to 86400
        #[arg(long, default_value_t = 300)]
        timeout: u64,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Keep the files of a sandbox for new ones; list and delete what is kept
    Snapshot(SnapshotArgs),
    /// Kill a sandbox; answers once its wipe is verified
    Rm { id: String },
}

pub(crate) async fn sandbox(at: &Locations, args: &SandboxArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |session| act(session, &args.command).await).await
}

async fn act(session: &Connection, command: &SandboxCommand) -> anyhow::Result<Exit> {
    let client = &session.client;
    let path = |id: &str| format!("/api/sandboxes/{}", segment(id));
    match command {
        SandboxCommand::Create {
            template,
            timeout,
            labels,
            env,
            allow,
            class,
            mem_mb,
            from,
            pause_on_timeout,
            resume_on_traffic,
            json: as_json,
        } => {
            let mut body = json!({
                "template": template, "timeoutS": timeout, "metadata": pairs("--label", labels)?, "env": pairs("--env", env)?,
            });
            if let Some(fields) = body.as_object_mut() {
                if !allow.is_empty() {
                    fields.insert("net".into(), json!(allow));
                }
                if let Some(from) = from {
                    fields.insert("snapshot".into(), json!(from));
                }
                if *pause_on_timeout {
                    fields.insert("pauseOnTimeout".into(), json!(true));
                }
                if *resume_on_traffic {
                    fields.insert("resumeOnTraffic".into(), json!(true));
                }
                if let Some(class) = class {
                    fields.insert("classMin".into(), json!(class));
                }
                if let Some(mem_mb) = mem_mb {
                    fields.insert("limits".into(), json!({"memMB": mem_mb}));
                }
            }
            let made: LiveView = client.post("/api/sandboxes", &body).await?;
            match as_json {
                true => output::json(&json!({"schemaVersion": 1, "sandbox": made})),
                false => output::line(made.id.as_str()),
            }
        }
        SandboxCommand::Ls { all, json: as_json } => {
            let mut found: Vec<LiveView> = client.get("/api/sandboxes?limit=1000").await?;
            found.retain(|one| *all || matches!(one.state, LiveState::Running | LiveState::Paused));
            match as_json {
                true => output::json(&json!({"schemaVersion": 1, "sandboxes": found})),
                false => print(&found),
            }
        }
        SandboxCommand::Exec { id, user, cwd, timeout, cmd } => {
            let mut body = json!({"cmd": cmd, "user": user, "timeoutS": timeout});
            if let (Some(cwd), Some(fields)) = (cwd, body.as_object_mut()) {
                fields.insert("cwd".into(), json!(cwd));
            }
            let done: LiveExecResult = client.post(&format!("{}/exec", path(id)), &body).await?;
            return Ok(show(&done));
        }
        SandboxCommand::Shell(args) => return sandbox_shell::shell(client, args).await,
        SandboxCommand::Cp(args) => return sandbox_cp::cp(client, args).await,
        SandboxCommand::Extend { id, seconds } => {
            let body = json!({"timeoutS": seconds});
            let view: LiveView = client.post(&format!("{}/extend", path(id)), &body).await?;
            output::line(&format!("ends {}", view.ends_at.map(output::time).unwrap_or_default()));
        }
        SandboxCommand::Network(args) => sandbox_network::network(client, args).await?,
        SandboxCommand::Pause { .. }
        | SandboxCommand::Resume { .. }
        | SandboxCommand::Fork { .. }
        | SandboxCommand::Snapshot(_) => return sandbox_snapshot::kept(client, command).await,
        SandboxCommand::Rm { id } => {
            let view: LiveView = client.delete(&path(id)).await?;
            if !view.wiped {
                output::note("its wipe is not verified; `cofferdam session ls` shows it held");
                return Ok(Exit::No);
            }
            output::line("killed");
        }
    }
    Ok(Exit::Ok)
}

fn pairs(flag: &str, all: &[String]) -> anyhow::Result<Map<String, Value>> {
    all.iter()
        .map(|pair| {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| Misuse(format!("{flag} {pair}: expected NAME=VALUE")))?;
            Ok((name.to_owned(), json!(value)))
        })
        .collect()
}

/// Its output as it is, and its end as ours.
fn show(done: &LiveExecResult) -> Exit {
    output::raw(done.stdout.as_bytes());
    output::raw_err(done.stderr.as_bytes());
    if done.dropped_bytes > 0 {
        output::note(&format!("{} bytes of output were left out", done.dropped_bytes));
    }
    if let Some(why) = &done.error {
        output::note(why);
    }
    if done.timed_out {
        output::note("its time was over");
    }
    Exit::Of(u8::try_from(done.exit).unwrap_or(u8::MAX))
}

fn print(found: &[LiveView]) {
    let rows = found.iter().map(|one| {
        let labels: Vec<String> =
            one.metadata.iter().map(|(name, value)| format!("{name}={value}")).collect();
        vec![
            one.id.to_string(),
            match one.program_failed {
                Some(_) => format!("{}, program failed", one.state.as_str()),
                None => one.state.as_str().to_owned(),
            },
            one.template.clone(),
            one.mem_mb.map(|mb| mb.to_string()).unwrap_or_default(),
            one.started_at.map(output::time).unwrap_or_default(),
            one.ends_at.map(output::time).unwrap_or_default(),
            labels.join(","),
        ]
    });
    table::print(
        &[
            key("SANDBOX"),
            key("STATE").least(8),
            usual("TEMPLATE").least(8),
            extra("MEM MIB"),
            extra("STARTED (UTC)"),
            usual("ENDS (UTC)"),
            usual("LABELS").least(10),
        ],
        rows,
    );
}
