//! How an emulator is told to store its machine: QEMU's machine protocol, lines of JSON on a socket pair.

#[cfg(test)]
mod fuzz;

use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::{Value, json};

/// The emulator's name for the file that it is given.
const FILE: &str = "state";
/// A line of its answers: a few hundred bytes.
const MAX_LINE: u64 = 64 * 1024;
/// Lines before the one that is waited for.
const MAX_LINES: usize = 64;
/// All of a talk, however slowly lines come.
const MAX_MS: u64 = 600_000;

/// Our end of its control socket.
#[derive(Debug)]
pub(super) struct Control {
    stream: BufReader<UnixStream>,
    clock: Stopwatch,
}

impl Control {
    /// `limit` is for each of its lines.
    pub fn new(stream: UnixStream, limit: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream: BufReader::new(stream), clock: Stopwatch::start() })
    }

    /// Has it write the machine down in this file, which is then its own, and stand still. It says nothing while it writes, no longer
    /// than this. Blocking.
    pub fn store(&mut self, file: OwnedFd, writes: Duration) -> io::Result<()> {
        self.ask(&opening(), Some(file))?;
        // As fast as it can: what it writes to is memory.
        let most = json!({"max-bandwidth": u32::MAX, "downtime-limit": 60_000});
        self.ask(&[command("migrate-set-parameters", &most)], None)?;
        self.ask(&[command("migrate", &json!({"uri": format!("fd:{FILE}")}))], None)?;
        self.stream.get_ref().set_read_timeout(Some(writes))?;
        for _ in 0..MAX_LINES {
            let said = self.line()?;
            let status = said.get("data").and_then(|data| data.get("status"));
            match status.and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some("failed") => return Err(io::Error::other(said.to_string())),
                _ => {}
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Says the lines and waits for an answer to each.
    fn ask(&mut self, lines: &[Value], file: Option<OwnedFd>) -> io::Result<()> {
        self.say(lines, file)?;
        let mut wanted = lines.len();
        for _ in 0..MAX_LINES {
            let said = self.line()?;
            if let Some(error) = said.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            wanted -= usize::from(said.get("return").is_some());
            if wanted == 0 {
                return Ok(());
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// The file goes with the first byte; the emulator keeps it until it is asked to take it.
    fn say(&mut self, lines: &[Value], file: Option<OwnedFd>) -> io::Result<()> {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let numbers: Vec<_> = file.iter().map(|file| file.as_raw_fd()).collect();
        let extra: Vec<_> = file.iter().map(|_| ControlMessage::ScmRights(&numbers)).collect();
        let socket = self.stream.get_ref().as_fd().as_raw_fd();
        let text = [IoSlice::new(text.as_bytes())];
        // A few hundred bytes, which an empty socket takes in one.
        let count = sendmsg::<()>(socket, &text, &extra, MsgFlags::MSG_NOSIGNAL, None)?;
        match count == text.iter().map(|part| part.len()).sum::<usize>() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn line(&mut self) -> io::Result<Value> {
        if self.clock.elapsed_ms() > MAX_MS {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut line = Vec::new();
        self.stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }
}

/// Opens the control, takes the file that comes with it, and asks to be told of the end.
fn opening() -> [Value; 3] {
    let events = json!({"capabilities": [{"capability": "events", "state": true}]});
    [
        json!({"execute": "qmp_capabilities"}),
        command("getfd", &json!({"fdname": FILE})),
        command("migrate-set-capabilities", &events),
    ]
}

fn command(name: &str, arguments: &Value) -> Value {
    json!({"execute": name, "arguments": arguments})
}
