//! `process.Process/Start`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderMap;
use cofferdam_flows::live::inside::{Ended, ExecRequest, NodeKind};
use cofferdam_flows::live::{Manner, Said};
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, Fault};
use super::entry::look;
use super::paths::{followed, plain, unavailable};
use super::process::{Following, Process, Pty};
use super::room::{MAX_PROCESSES, Person, Room, environment};

/// Wall time of a command without a deadline: longer than any sandbox lives.
const FOR_EVER_MS: u64 = 366 * 86_400_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

/// How long the command may run; without a limit where the client sets none.
fn deadline_ms(headers: &HeaderMap) -> u64 {
    let asked = headers.get("connect-timeout-ms").and_then(|text| text.to_str().ok()?.parse().ok());
    asked.filter(|ms| *ms > 0).unwrap_or(FOR_EVER_MS)
}

/// Starts a command.
pub(crate) async fn start(
    room: &Arc<Room>,
    person: Person,
    message: Value,
    headers: &HeaderMap,
) -> Result<Following, Fault> {
    let config = message.get("process").cloned().unwrap_or_else(|| json!({}));
    let Start { process, pty, tag, stdin } = connect::parse(message)?;
    if process.cmd.is_empty() {
        return Err(Fault::argument("process.cmd is empty"));
    }
    if room.processes().len() >= MAX_PROCESSES {
        let why = format!("more than {MAX_PROCESSES} commands run or ended a moment ago; end one");
        return Err(Fault::new("resource_exhausted", why));
    }
    let agent = &room.held.agent;
    let wanted = process.cwd.as_deref().filter(|cwd| !cwd.is_empty()).unwrap_or(person.home);
    let cwd = followed(agent, &plain(wanted, person)?, true).await?;
    let found = look(agent, &cwd).await?;
    if found.is_none_or(|(entry, _)| entry.kind != NodeKind::Dir) {
        return Err(Fault::argument(format!("cwd '{wanted}' does not exist")));
    }
    let mut env = environment(&room.held, person);
    if pty.is_some() {
        env.insert("TERM".into(), "xterm-256color".into());
    }
    env.extend(process.envs);
    let request = ExecRequest {
        argv: std::iter::once(process.cmd).chain(process.args).collect(),
        env,
        cwd,
        timeout_ms: deadline_ms(headers),
        stream_limit_bytes: u64::MAX,
        user: Some(person.user),
        stdin_file: None,
        jail: None,
    };
    let has_stdin = stdin.unwrap_or(true) || pty.is_some();
    let terminal = pty.as_ref().map(Pty::size);
    let manner = Manner { stdin: has_stdin, terminal, service: true, leaves: true };
    let mut running = agent.start(request, manner).await.map_err(|error| unavailable(&error))?;
    let Some(pid) = running.pid() else {
        return Err(match running.next().await {
            Ok(Said::End(end)) => match end.ended {
                Ended::Unstarted(why) => Fault::argument(format!("error starting process: {why}")),
                _ => Fault::new("internal", "the process ended before it began"),
            },
            Ok(Said::Output(..)) => Fault::new("internal", "the process spoke before it began"),
            Err(error) => unavailable(&error),
        });
    };
    let named = (config, tag);
    Ok(Process::enter(room, (pid, running), named, (pty.is_some(), has_stdin)).1)
}
