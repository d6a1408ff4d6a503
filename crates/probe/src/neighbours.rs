//! Another sandbox of the same host, and whether it can be found.

use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::process::ExitCode;

use cofferdam_guest::escape::{NEIGHBOUR_FILE, NEIGHBOUR_PORT, NEIGHBOUR_READY};
use rustix::process::{Pid, test_kill_process};

use super::answer::{NOTHING, failed, first_present, said};
use super::entry::{Probe, probe};
use super::network::{abstract_socket, connect};

pub const PROBES: &[Probe] = &[
    probe("neighbour.file", "read what the neighbour wrote", &[NOTHING], |_| {
        first_present([NEIGHBOUR_FILE])
    }),
    probe("neighbour.layer", "find the neighbour's layer", &[NOTHING], |setting| {
        first_present([setting.neighbour_dir.as_str()])
    }),
    probe("neighbour.process", "see the neighbour's processes", &[NOTHING], |setting| {
        process(&setting.neighbour_marker)
    }),
    probe("neighbour.signal", "signal the neighbour's agent", &["ESRCH"], |setting| {
        match Pid::from_raw(setting.neighbour_pid) {
            Some(pid) => said(test_kill_process(pid)),
            None => "no pid was given".to_owned(),
        }
    }),
    probe("neighbour.port", "reach the neighbour's server", &["ECONNREFUSED"], |_| {
        connect(SocketAddr::from(([127, 0, 0, 1], NEIGHBOUR_PORT)))
    }),
    probe("neighbour.socket", "reach the neighbour's abstract socket", &["ECONNREFUSED"], |s| {
        abstract_socket(&s.neighbour_marker)
    }),
];

/// Whether a program with the marker in its arguments runs. This one has it in its own, as part of
/// a longer one.
fn process(marker: &str) -> String {
    let entries = match fs::read_dir("/proc") {
        Ok(entries) => entries,
        Err(error) => return failed(&error),
    };
    let found = entries
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|word| word == marker.as_bytes()));
    if found { "its process".to_owned() } else { NOTHING.to_owned() }
}

/// Is there to be found until its sandbox ends.
pub fn neighbour(marker: &str) -> ExitCode {
    match stay(marker) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With stderr gone there is nobody left to tell.
            let _ = writeln!(io::stderr(), "neighbour: {error}");
            ExitCode::FAILURE
        }
    }
}

fn stay(marker: &str) -> io::Result<()> {
    fs::write(NEIGHBOUR_FILE, marker)?;
    let _tcp = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, NEIGHBOUR_PORT))?;
    let unix = UnixListener::bind_addr(&UnixAddr::from_abstract_name(marker)?)?;
    writeln!(io::stdout(), "{NEIGHBOUR_READY}")?;
    io::stdout().flush()?;
    // The sandbox's end is ours.
    loop {
        unix.accept()?;
    }
}
