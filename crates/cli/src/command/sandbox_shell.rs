//! `sandbox shell`: a person's terminal in a long-lived sandbox.
//!
//! ```text
//! keys -> raw terminal -> SendInput -> pty -> bash        size: SIGWINCH -> Update
//! terminal <- as they are <- Start's stream <--'          end:  its status is ours
//! ```
//! **The terminal is given back as it was, however this ends.** What the shell writes reaches the terminal unescaped, as
//! with any remote shell: whoever runs a program that is not trusted runs `sandbox exec`.

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use cofferdam_contracts::input::TerminalSize;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::client::Client;
use super::envd::{Envd, answered};
use super::exit::{Exit, Misuse};
use super::raw_terminal::{self, READ_BYTES, RawTerminal, keyboard};
use super::stdout;

/// Bytes of one frame: output comes in pieces of 16 KiB, in base64.
const MAX_FRAME: usize = 256 * 1024;
const HEAD: usize = 5;
const END: u8 = 2;
/// How long the end of the shell may take to be asked for, once its terminal is gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    pub id: String,
    /// user or root
    #[arg(long, default_value = "user")]
    pub user: String,
    /// Working directory; default: the home of the user
    #[arg(long)]
    pub cwd: Option<String>,
}

/// Why the shell is over.
enum ShellEnd {
    /// With this status; `None`: by a signal.
    Ended(Option<u8>),
    /// The terminal or this process is to end, and the shell with it.
    Left,
}

pub(crate) async fn shell(client: &Client, args: &ShellArgs) -> anyhow::Result<Exit> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let why = "sandbox shell needs a terminal as its standard input and output; without one: \
                   cofferdam sandbox exec SANDBOX -- COMMAND";
        return Err(Misuse(why.to_owned()).into());
    }
    let envd = Envd::of(client, &args.id).await?;
    let mut process = json!({"cmd": "/bin/bash", "args": ["-i", "-l"]});
    if let (Some(cwd), Some(fields)) = (&args.cwd, process.as_object_mut()) {
        fields.insert("cwd".into(), json!(cwd));
    }
    let message = json!({"process": process, "pty": {"size": size()}});
    let request = call(&envd, args, "Start")
        .header("content-type", "application/connect+json")
        .header("keepalive-ping-interval", "30")
        .body(framed(&message));
    let mut frames = Frames::of(answered(request).await?);
    let first = frames.next().await?.context("the shell did not start")?;
    let pid = first.pointer("/event/start/pid").and_then(Value::as_u64);
    let pid = pid.context("the shell did not start")?;
    let raw = RawTerminal::take()?;
    let over = talk(&envd, args, pid, &mut frames).await;
    drop(raw);
    match over {
        Ok(ShellEnd::Ended(status)) => Ok(status.map_or(Exit::Of(u8::MAX), Exit::Of)),
        Ok(ShellEnd::Left) => {
            end(&envd, args, pid).await;
            Ok(Exit::Interrupted)
        }
        Err(error) => {
            end(&envd, args, pid).await;
            Err(error)
        }
    }
}

/// Carries both directions until the shell ends, or this side does.
async fn talk(
    envd: &Envd<'_>,
    args: &ShellArgs,
    pid: u64,
    frames: &mut Frames,
) -> anyhow::Result<ShellEnd> {
    let said = say(envd, args, pid);
    let heard = hear(frames);
    tokio::pin!(said);
    tokio::pin!(heard);
    tokio::select! {
        over = &mut heard => over,
        // A key that the shell no longer takes: its end is on its way.
        over = &mut said => match over {
            Ok(over) => Ok(over),
            Err(error) => tokio::time::timeout(LAST_WORDS, heard).await.unwrap_or(Err(error)),
        },
    }
}

/// Passes on what is typed, and the terminal's size, one call after the other: keys arrive in their order.
async fn say(envd: &Envd<'_>, args: &ShellArgs, pid: u64) -> anyhow::Result<ShellEnd> {
    let mut resized = signal(SignalKind::window_change())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut keys = keyboard();
    loop {
        tokio::select! {
            typed = keys.recv() => {
                let Some(mut typed) = typed else { return Ok(ShellEnd::Left) };
                while typed.len() < READ_BYTES && let Ok(more) = keys.try_recv() {
                    typed.extend(more);
                }
                let input = json!({"pty": STANDARD.encode(&typed)});
                let message = json!({"process": {"pid": pid}, "input": input});
                unary(envd, args, "SendInput", &message).await?;
            }
            _ = resized.recv() => {
                let message = json!({"process": {"pid": pid}, "pty": {"size": size()}});
                unary(envd, args, "Update", &message).await?;
            }
            _ = hung_up.recv() => return Ok(ShellEnd::Left),
            _ = terminate.recv() => return Ok(ShellEnd::Left),
        }
    }
}

/// Shows what the shell writes, up to its end.
async fn hear(frames: &mut Frames) -> anyhow::Result<ShellEnd> {
    while let Some(message) = frames.next().await? {
        if let Some(text) = message.pointer("/event/data/pty").and_then(Value::as_str) {
            stdout::write(&STANDARD.decode(text).context("the server's answer")?);
        }
        if let Some(end) = message.pointer("/event/end") {
            let status = end.get("exitCode").and_then(Value::as_i64);
            return Ok(ShellEnd::Ended(status.and_then(|status| u8::try_from(status).ok())));
        }
    }
    anyhow::bail!("the connection to the shell ended before it did")
}

/// Ends a shell whose terminal is gone.
async fn end(envd: &Envd<'_>, args: &ShellArgs, pid: u64) {
    let message = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    let asked = unary(envd, args, "SendSignal", &message);
    // Where the sandbox is gone, so is the shell.
    let _ = tokio::time::timeout(LAST_WORDS, asked).await;
}

fn call(envd: &Envd<'_>, args: &ShellArgs, method: &str) -> reqwest::RequestBuilder {
    let user = STANDARD.encode(format!("{}:", args.user));
    let request = envd.request(Method::POST, &format!("/process.Process/{method}"));
    request.header("authorization", format!("Basic {user}"))
}

async fn unary(
    envd: &Envd<'_>,
    args: &ShellArgs,
    method: &str,
    body: &Value,
) -> anyhow::Result<()> {
    answered(call(envd, args, method).json(body)).await.map(drop)
}

fn size() -> Value {
    let TerminalSize { rows, cols } = raw_terminal::size();
    json!({"cols": cols, "rows": rows})
}

/// A message as a stream has it.
pub(super) fn framed(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// The messages of a streamed answer.
pub(super) struct Frames {
    answer: reqwest::Response,
    buffer: Vec<u8>,
}

impl Frames {
    /// Of an answer that has begun.
    pub(super) fn of(answer: reqwest::Response) -> Self {
        Self { answer, buffer: Vec::new() }
    }

    /// The next one; `None` at the end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some((flags, payload)) = frame(&mut self.buffer)? {
                let message: Value =
                    serde_json::from_slice(&payload).context("the server's answer")?;
                let error = message.pointer("/error/message").and_then(Value::as_str);
                return match (error, flags & END) {
                    (Some(why), _) => Err(anyhow::anyhow!("{}", why.to_owned())),
                    (None, 0) => Ok(Some(message)),
                    (None, _) => Ok(None),
                };
            }
            match self.answer.chunk().await.context("the connection to the shell ended")? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// The next whole frame of a buffer: its flags and its payload.
fn frame(buffer: &mut Vec<u8>) -> anyhow::Result<Option<(u8, Vec<u8>)>> {
    let Some((head, rest)) = buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
    let [flags, length @ ..] = *head;
    let length = usize::try_from(u32::from_be_bytes(length))?;
    if length > MAX_FRAME {
        anyhow::bail!("the server's answer has a message of {length} bytes");
    }
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    let payload = payload.to_vec();
    buffer.drain(..HEAD + length);
    Ok(Some((flags, payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_whole_and_within_their_bound() {
        let whole = framed(&json!({"a": 1}));
        for cut in 0..whole.len() {
            assert_eq!(frame(&mut whole[..cut].to_vec()).unwrap(), None, "{cut}");
        }
        let mut two = [whole.clone(), whole].concat();
        assert_eq!(frame(&mut two).unwrap(), Some((0, b"{\"a\":1}".to_vec())));
        assert_eq!(frame(&mut two).unwrap().map(|(flags, _)| flags), Some(0));
        assert!(two.is_empty());
        assert!(frame(&mut vec![0, 255, 255, 255, 255]).is_err());
    }
}
