//! A machine that is nobody's: it is started to be looked at, or to be stored, and gets no sandbox.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use cofferdam_guest::setup::GREETING;

use super::qemu::{self, InheritedFd, QemuInput, Start};
use super::serve;
use super::shape::Shape;
use crate::host::runtime::Runtime;
use crate::host::starter;
use crate::spec::machine::Machine;

/// Characters of an emulator's last words.
const MAX_WORDS: usize = 200;

/// It ends with this value, and with the worker.
#[derive(Debug)]
pub(super) struct SpareMachine {
    child: Child,
    port: UnixStream,
}

impl SpareMachine {
    /// Starts it with an empty disk and outside of any group.
    pub fn start(
        machine: &Machine,
        qemu: &Runtime,
        shape: Shape,
        control: Option<&InheritedFd>,
        limit: Duration,
    ) -> io::Result<Self> {
        let (port, theirs) = UnixStream::pair()?;
        port.set_read_timeout(Some(limit))?;
        // Before the greeting the kernel reads the table of its partitions, which every disk has alike.
        let disk = serve::serve(&serve::empty()?)?;
        let wanted = QemuInput {
            machine,
            qemu,
            groups: &[],
            shape,
            id: "nobody",
            dir: Path::new("/nonexistent"),
            start: &Start::Boot,
        };
        let mut command = qemu::command(&wanted);
        if let Some(socket) = control {
            qemu::control(&mut command, socket);
        }
        let mut command = command.into_std();
        command.env_clear().stdin(OwnedFd::from(theirs)).stdout(disk).stderr(Stdio::piped());
        Ok(Self { child: starter::start(move || command.spawn())?, port })
    }

    /// Waits until its init says that it is ready for a sandbox; or says why it is not.
    pub fn greeting(&mut self) -> Result<(), String> {
        let mut heard = vec![0; GREETING.len()];
        match self.port.read_exact(&mut heard) {
            Ok(()) if heard == GREETING.as_bytes() => Ok(()),
            Ok(()) => Err("it said something else".to_owned()),
            Err(error) => Err(self.last_words().unwrap_or_else(|| error.to_string())),
        }
    }

    /// Ends it, and says what it said at last. Nothing of its memory is in use then: a process gives
    /// that back before it closes its files.
    pub fn end(&mut self) -> io::Result<String> {
        self.child.kill()?;
        self.child.wait()?;
        let mut log = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut log)?;
        }
        Ok(log)
    }

    fn last_words(&mut self) -> Option<String> {
        let log = self.end().ok()?;
        let line = log.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(MAX_WORDS).collect())
    }
}

impl Drop for SpareMachine {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "an unassigned machine was not ended");
        }
    }
}
