//! What a sandbox begins with: the program of its template, started and waited for before anybody is told of it.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::template_build::BuildState;
use cofferdam_sandbox::inside::{CommandExit, ExecEnd, ExecRequest};
use cofferdam_sandbox::{Agent, CommandHandle, ExecOptions, Stream};
use tokio::task::{JoinError, JoinHandle};

use crate::accounts::Account;
use crate::template::resolved_template::StartupProgram;

/// How long a template's program may take until it is ready. Eleven interpreters that begin at once on two processors that
/// others use as well take 18 s. A caller waits 50 s for the whole creation, of which room and the sandbox itself need the rest.
const READY_PATIENCE: Duration = Duration::from_secs(40);
/// Between two of them: they find a program within this time of its readiness.
const READY_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of the program's last words that a failure repeats.
const LAST_BYTES: usize = 2_048;
/// Wall time of the program: longer than any sandbox lives.
const FOR_EVER_MS: u64 = 366 * 86_400_000;

/// Without a ready command, a program that fails within this time makes no sandbox: a word that is misspelt, a file that is
/// not there.
const SETTLING: Duration = Duration::from_millis(250);

/// A template's program that goes on. Its end, in words where that was no success; `None`: with its sandbox, or well.
pub(crate) type Program = JoinHandle<Option<String>>;

/// Starts a template's program and waits until it is ready; without a ready command, until it has run for a moment. Variables
/// of the sandbox come behind the template's own.
///
/// # Errors
/// In words: it ended without success before it was ready, or is not ready within [`READY_PATIENCE`].
pub(crate) async fn begin(
    agent: &Agent,
    begins: &StartupProgram,
    env: &BTreeMap<String, String>,
) -> Result<Option<Program>, String> {
    let since = Stopwatch::start();
    let exec = |command: &str, timeout_ms: u64| request(&begins.state, command, env, timeout_ms);
    let mut program = match &begins.start {
        Some(start) => {
            let program = agent.start(exec(start, FOR_EVER_MS), exec_options()).await;
            let program = program.map_err(|error| format!("the start command: {error}"))?;
            // It lives as long as the sandbox: the end of the agent ends this task.
            Some(tokio::spawn(followed(program)))
        }
        None => None,
    };
    let ready_ms = u64::try_from(begins.ready_patience.as_millis()).unwrap_or(u64::MAX);
    let Some(ready) = &begins.ready else {
        if let Some(running) = &mut program
            && let Ok(end) = tokio::time::timeout(SETTLING, running).await
        {
            program = None;
            ended(end)?;
        }
        return Ok(program);
    };
    let mut last = "it was not asked yet".to_owned();
    loop {
        if let Some(over) = program.take_if(|program| program.is_finished()) {
            ended(over.await)?;
        }
        let left = READY_PATIENCE.saturating_sub(since.elapsed());
        if left.is_zero() {
            let waited = READY_PATIENCE.as_secs();
            return Err(format!("the ready command did not succeed within {waited} s: {last}"));
        }
        match tokio::time::timeout(left, asked(agent, exec(ready, ready_ms))).await {
            Ok(Ok(())) => return Ok(program),
            Ok(Err(why)) => last = why,
            Err(_) => continue,
        }
        clock::sleep(READY_PAUSE).await;
    }
}

/// Whether the ready command succeeds.
async fn asked(agent: &Agent, request: ExecRequest) -> Result<(), String> {
    let running = agent.start(request, exec_options()).await.map_err(|error| error.to_string())?;
    let mut said = Vec::new();
    let end = running.follow(|_, piece| keep(&mut said, piece)).await;
    let end = end.map_err(|error| error.to_string())?;
    match end.ended {
        CommandExit::Exit(0) if !end.timed_out => Ok(()),
        _ => Err(told(&end, &said)),
    }
}

/// Follows the program to its end, whose last words are kept where it failed.
async fn followed(program: CommandHandle) -> Option<String> {
    let mut said = Vec::new();
    let sink = |_: Stream, piece: &[u8]| keep(&mut said, piece);
    match program.follow(sink).await {
        // It left its work to others, or has done it.
        Ok(ExecEnd { ended: CommandExit::Exit(0), .. }) => None,
        Ok(end) => Some(told(&end, &said)),
        // Its agent is gone, and the sandbox with it.
        Err(error) => {
            tracing::debug!(%error, "a template's program is not followed any more");
            None
        }
    }
}

fn ended(joined: Result<Option<String>, JoinError>) -> Result<(), String> {
    match joined {
        Ok(None) => Ok(()),
        Ok(Some(how)) => Err(format!("the start command failed: {how}")),
        Err(error) => Err(format!("the start command: {error}")),
    }
}

/// Keeps the end of what is said.
fn keep(said: &mut Vec<u8>, piece: &[u8]) {
    said.extend_from_slice(piece);
    let over = said.len().saturating_sub(LAST_BYTES);
    said.drain(..over);
}

/// How a command ended, with its last words. Pure.
fn told(end: &ExecEnd, said: &[u8]) -> String {
    let how = match &end.ended {
        _ if end.timed_out => "it took too long".to_owned(),
        CommandExit::Exit(code) => format!("exit status {code}"),
        CommandExit::Signal(signal) => format!("signal {signal}"),
        CommandExit::Unstarted(why) => why.clone(),
    };
    match String::from_utf8_lossy(said).trim() {
        "" => how,
        words => format!("{how}: {words}"),
    }
}

fn exec_options() -> ExecOptions {
    ExecOptions { stdin: false, terminal: None, service: true, leaves: true }
}

/// A shell command under what steps have set, with these variables behind those.
pub(crate) fn request(
    state: &BuildState,
    command: &str,
    env: &BTreeMap<String, String>,
    timeout_ms: u64,
) -> ExecRequest {
    let account = Account::of(state.user);
    let mut all = account.environment();
    all.extend(state.env.clone());
    all.extend(env.clone());
    let argv = ["/bin/bash", "-l", "-c", command].map(str::to_owned).into();
    ExecRequest {
        argv,
        env: all,
        cwd: state.cwd().to_owned(),
        timeout_ms,
        stream_limit_bytes: u64::MAX,
        user: Some(account.user),
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_program_are_kept() {
        let mut said = Vec::new();
        keep(&mut said, &[b'a'; LAST_BYTES]);
        keep(&mut said, b"end");
        assert_eq!(said.len(), LAST_BYTES);
        assert!(said.ends_with(b"aend"));
    }
}
