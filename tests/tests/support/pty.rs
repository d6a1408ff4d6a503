//! A command on a terminal of its own: nothing is taken over from the terminal, session or signals of whoever
//! runs the tests, who may have none.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// What a person types for Ctrl-C.
pub const CTRL_C: &str = "\u{3}";

/// How the command finds SIGINT: a shell ignores it for what it starts in the background.
#[derive(Debug, Clone, Copy)]
pub enum Interrupt {
    Usual,
    Ignored,
}

/// A command that leads a session on a pseudo-terminal.
pub struct Terminal {
    master: File,
    child: Child,
    reader: JoinHandle<()>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts it. `setsid` and `env` do between fork and exec what would be unsafe code here.
    pub fn start(plain: &Command, interrupt: Interrupt) -> Self {
        Self::on(pair(), plain, interrupt)
    }

    /// The same on a terminal that has this size before the command looks.
    pub fn sized(plain: &Command, interrupt: Interrupt, rows: u16, cols: u16) -> Self {
        let (master, slave) = pair();
        size(&master, rows, cols);
        Self::on((master, slave), plain, interrupt)
    }

    fn on((master, slave): (File, OwnedFd), plain: &Command, interrupt: Interrupt) -> Self {
        let signals = match interrupt {
            Interrupt::Usual => "--default-signal",
            Interrupt::Ignored => "--ignore-signal=INT",
        };
        let mut command = Command::new("setsid");
        command.args(["--ctty", "env", signals]).arg(plain.get_program()).args(plain.get_args());
        command.env("NO_COLOR", "1");
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = plain.get_current_dir() {
            command.current_dir(dir);
        }
        let slave = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let child = command.spawn().expect("the binary starts");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, heard) = (master.try_clone().unwrap(), Arc::clone(&seen));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error is the end: nobody has the other side open any more.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                heard.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { master, child, reader, seen }
    }

    /// What it showed so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until it has shown a text.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !self.shown().contains(text) {
            let over = self.child.try_wait().unwrap();
            assert!(over.is_none() || self.shown().contains(text), "{over:?}: {}", self.shown());
            assert!(Instant::now() < deadline, "{text:?} was not shown: {}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types.
    pub fn types(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Gives the terminal another size.
    pub fn resize(&self, rows: u16, cols: u16) {
        size(&self.master, rows, cols);
    }

    /// The modes of the terminal, to be looked at after the command's end.
    pub fn modes(&self) -> Modes {
        Modes(self.master.try_clone().unwrap())
    }

    /// Its end, and all that it showed; where it hangs the test fails.
    #[track_caller]
    pub fn ended(mut self, limit: Duration) -> (ExitStatus, String) {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // What it wrote last may still be on its way to the reader, which ends with the terminal.
                let hung_up = Instant::now() + Duration::from_secs(5);
                while !self.reader.is_finished() && Instant::now() < hung_up {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return (status, self.shown());
            }
            assert!(Instant::now() < deadline, "it did not end within {limit:?}: {}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The modes of a terminal.
pub struct Modes(File);

impl Modes {
    /// Whether it takes lines and shows what is typed, as before.
    pub fn is_canonical_again(&self) -> bool {
        let modes = rustix::termios::tcgetattr(&self.0).unwrap().local_modes;
        modes.contains(rustix::termios::LocalModes::ICANON | rustix::termios::LocalModes::ECHO)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            super::signal(i32::try_from(self.child.id()).unwrap(), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

fn size(terminal: &File, rows: u16, cols: u16) {
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size).unwrap();
}

fn pair() -> (File, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NOCTTY.bits())
        .open(std::ffi::OsStr::from_bytes(name.to_bytes()))
        .unwrap();
    (File::from(master), slave.into())
}
