//! `process.Process/Start`: starts a command or a terminal, and streams its events.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_live::inside::{CommandExit, ExecRequest, NodeKind};
use cofferdam_live::{Account, CommandEvent, ExecOptions, StartCommand};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::connect::fault::Fault;
use crate::connect::message::{self, Messages};
use crate::connect::reply;
use crate::envd::call::StreamRpc;
use crate::envd::entry::look;
use crate::envd::paths::{followed, plain, unavailable};
use crate::envd::process::command_notes::note;
use crate::envd::process::terminal::Pty;
use crate::envd::state::Envd;
use crate::envd::state::process::Follower;
use crate::envd::state::processes::NewProcess;

/// Wall time of a command without a deadline: longer than any sandbox lives.
const FOR_EVER_MS: u64 = 366 * 86_400_000;
/// Header of a start: how long the command may run, in ms.
pub(crate) const TIMEOUT: &str = "connect-timeout-ms";
/// Bytes of a command line that lists show, with its environment: a script of some pages.
const MAX_SHOWN: usize = 64 * 1024;
/// Bytes of a tag: a name.
const MAX_TAG: usize = 1_024;

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

/// The command as lists show it; of a very long one its name alone, since it is kept as long as the command runs.
fn shown(process: Option<&Value>) -> Value {
    let Some(process) = process else { return json!({}) };
    if process.to_string().len() <= MAX_SHOWN {
        return process.clone();
    }
    let name = process.get("cmd").and_then(Value::as_str).unwrap_or("");
    json!({"cmd": name.chars().take(MAX_TAG).collect::<String>(), "args": [], "envs": {}})
}

/// How long the command may run; without a limit where the client sets none.
fn deadline_ms(headers: &HeaderMap) -> u64 {
    let asked = headers.get(TIMEOUT).and_then(|text| text.to_str().ok()?.parse().ok());
    asked.filter(|ms| *ms > 0).unwrap_or(FOR_EVER_MS)
}

/// Starts a command, and follows it.
pub(crate) async fn start(call: StreamRpc) -> Response<Body> {
    let StreamRpc { envd, account, headers, codec, body } = call;
    let started = match Messages::first(body, codec).await {
        // Who asks is looked at once the message is there.
        Ok(message) => match account {
            Ok(account) => started(&envd, account, message, &headers).await,
            Err(fault) => Err(fault),
        },
        Err(fault) => Err(fault),
    };
    match started {
        Ok(following) => following.told(&headers, codec),
        Err(fault) => reply::failed(&fault, codec),
    }
}

async fn started(
    envd: &Arc<Envd>,
    account: Account,
    message: Value,
    headers: &HeaderMap,
) -> Result<Follower, Fault> {
    let config = shown(message.get("process"));
    let Start { process, pty, tag, stdin } = message::parse(message)?;
    if tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
        return Err(Fault::argument(format!("a tag has at most {MAX_TAG} bytes")));
    }
    if process.cmd.is_empty() {
        return Err(Fault::argument("process.cmd is empty"));
    }
    let has_stdin = stdin.unwrap_or(true) || pty.is_some();
    let guest = &envd.guest;
    let wanted = process.cwd.as_deref().filter(|cwd| !cwd.is_empty()).unwrap_or(envd.cwd(account));
    let cwd = followed(guest, &plain(wanted, account)?, true).await?;
    let found = look(guest, &cwd).await?;
    if found.is_none_or(|(entry, _)| entry.kind != NodeKind::Dir) {
        return Err(Fault::argument(format!("cwd '{wanted}' does not exist")));
    }
    let mut env = envd.environment(account).await?;
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
        user: Some(account.user),
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    };
    let terminal = pty.as_ref().map(Pty::size);
    let options = ExecOptions { stdin: has_stdin, terminal, service: true, leaves: true };
    let note = note(&config, tag.as_deref());
    let running = guest.ask(StartCommand { request, options, note }).await;
    let mut running = running.map_err(|error| unavailable(&error))?;
    let Some(pid) = running.pid else {
        return Err(match running.output.recv().await {
            Some(CommandEvent::End(end)) => match end.ended {
                CommandExit::Unstarted(why) => {
                    Fault::argument(format!("error starting process: {why}"))
                }
                _ => Fault::new("internal", "the process ended before it began"),
            },
            Some(CommandEvent::Output(..)) => {
                Fault::new("internal", "the process spoke before it began")
            }
            None => Fault::new("unavailable", "the connection to the sandbox ended"),
        });
    };
    let new = NewProcess { pid, running, config, tag, is_pty: pty.is_some() };
    Ok(envd.enter(new))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_long_command_line_is_listed_by_its_name_alone() {
        let short = json!({"cmd": "a", "args": ["b"], "envs": {"C": "d"}});
        assert_eq!(shown(Some(&short)), short);
        let long = json!({"cmd": "a", "args": vec!["b"; MAX_SHOWN / 4]});
        assert_eq!(shown(Some(&long)), json!({"cmd": "a", "args": [], "envs": {}}));
        assert_eq!(shown(None), json!({}));
    }
}
