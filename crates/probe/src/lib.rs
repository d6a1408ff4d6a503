//! The escape self-test: a fixed list of things that a task could try, tried.
//!
//! ```text
//! probe SETTING -> for each of the list: probe SETTING ID, a process of its own -> one JSON line
//! ```
//! A probe answers with a word (`done`, the name of an errno, what it read), and the list says which
//! answers a sandbox that holds may give. **No probe does harm where it succeeds**: files of
//! others are opened and never written, mounts lie in a namespace that ends with the sandbox, a traced process is let
//! go at once, signals are number 0. A process each, so that one that changes itself (`unshare`) or
//! is killed for trying changes no other's answer. Most are a line of a table (`calls`, `files`,
//! `sockets`).
//!
//! It is a program of its own, which only the sandboxes of the self-test are given.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! neighbours
//! calls control devices files kernel mounts namespaces network privileges sockets syscalls
//! table
//! entry
//! attempt
//! answer
//! ```

mod answer;
mod attempt;
mod calls;
mod control;
mod devices;
mod entry;
mod files;
mod kernel;
mod mounts;
mod namespaces;
mod neighbours;
mod network;
mod privileges;
mod sockets;
mod syscalls;
mod table;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, Stdio};

use cofferdam_guest::escape::{NEIGHBOUR, PROBE, ProbeResult, Setting};

use entry::Probe;

/// Longest answer that is kept: it is a word or two unless something is wrong.
const MAX_ANSWER: usize = 200;

const AREAS: [(&str, &[Probe]); 27] = [
    ("control", control::PROBES),
    ("mounts", mounts::PROBES),
    ("devices", devices::PROBES),
    ("proc", kernel::PROC),
    ("sys", kernel::SYS),
    ("namespaces", namespaces::PROBES),
    ("capabilities", privileges::PROBES),
    ("seccomp", syscalls::SECCOMP),
    ("ptrace", syscalls::PTRACE),
    ("keyrings", syscalls::KEYRINGS),
    ("network", network::PROBES),
    ("neighbours", neighbours::PROBES),
    ("mounts", files::MOUNTS),
    ("devices", files::DEVICES),
    ("proc", files::AGENT),
    ("proc", files::AGENT_READ),
    ("kernel", files::READ),
    ("kernel", files::LISTED),
    ("kernel", files::WRITE),
    ("calls", calls::COMMON),
    ("calls", calls::OLD),
    ("calls", calls::CHECKED),
    ("leases", calls::LEASES),
    ("sockets", sockets::FAMILIES),
    ("sockets", sockets::PROTOCOLS),
    ("network", sockets::RAW_IP),
    ("sockets", sockets::QUEUES),
];

/// What the arguments ask for: every probe, one of them, or to be the neighbour.
pub fn run() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [PROBE, setting] => all(setting),
        [PROBE, setting, id] => one(setting, id),
        [NEIGHBOUR, marker] => neighbours::neighbour(marker),
        _ => ExitCode::FAILURE,
    }
}

/// Tries everything; the answers are lines of JSON on stdout.
fn all(setting: &str) -> ExitCode {
    for (area, probes) in AREAS {
        for probe in probes {
            let observed = apart(setting, probe.id);
            let line = ProbeResult {
                id: probe.id.to_owned(),
                area: area.to_owned(),
                tries: probe.tries.to_owned(),
                expected: probe.expected.iter().map(|text| (*text).to_owned()).collect(),
                ok: probe.expected.contains(&observed.as_str()),
                observed,
            };
            let Ok(text) = serde_json::to_string(&line) else { return ExitCode::FAILURE };
            if writeln!(std::io::stdout(), "{text}").is_err() {
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Tries one in this very process; the answer is what it prints.
fn one(setting: &str, id: &str) -> ExitCode {
    let known = AREAS.iter().flat_map(|(_, probes)| probes.iter()).find(|probe| probe.id == id);
    let (Some(probe), Ok(setting)) = (known, serde_json::from_str::<Setting>(setting)) else {
        return ExitCode::FAILURE;
    };
    let answer = probe.run.go(&setting);
    match write!(std::io::stdout(), "{answer}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn apart(setting: &str, id: &str) -> String {
    let ended = Command::new("/proc/self/exe")
        .args([PROBE, setting, id])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match ended {
        Ok(ended) if ended.status.success() => {
            String::from_utf8_lossy(&ended.stdout).chars().take(MAX_ANSWER).collect()
        }
        Ok(ended) => match ended.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => "the probe itself failed".to_owned(),
        },
        Err(error) => format!("the probe did not start: {}", answer::failed(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    /// Ids whose probes only look, so that they may run on the host itself.
    const LOOKING: [&str; 15] = [
        "ns.pid",
        "ns.net",
        "ns.mnt",
        "ns.ipc",
        "ns.uts",
        "ns.hostname",
        "proc.processes",
        "cap.no-new-privileges",
        "cap.host-signal",
        "seccomp.mode",
        "mount.host-state",
        "net.host-loopback",
        "net.host-abstract",
        "neighbour.process",
        "neighbour.signal",
    ];

    fn known(id: &str) -> &'static Probe {
        AREAS.iter().flat_map(|(_, probes)| probes.iter()).find(|probe| probe.id == id).unwrap()
    }

    #[test]
    fn outside_a_sandbox_the_probes_report_the_host() {
        use std::os::linux::net::SocketAddrExt as _;
        let marker = format!("outside-{}", std::process::id());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let name = std::os::unix::net::SocketAddr::from_abstract_name(&marker).unwrap();
        let _socket = UnixListener::bind_addr(&name).unwrap();
        let mut neighbour =
            Command::new("sh").args(["-c", "sleep 60; true", &marker]).spawn().unwrap();
        // A program that was just started has no arguments yet, for some microseconds.
        let cmdline = format!("/proc/{}/cmdline", neighbour.id());
        while !fs::read_to_string(&cmdline).unwrap().contains(&marker) {
            std::thread::yield_now();
        }
        let kinds = ["pid", "net", "mnt", "ipc", "uts"];
        let link = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        let setting = Setting {
            namespaces: kinds
                .map(|kind| (kind.to_owned(), link(kind).to_string_lossy().into_owned()))
                .into(),
            host_port: listener.local_addr().unwrap().port(),
            host_socket: marker.clone(),
            host_pid: i32::try_from(std::process::id()).unwrap(),
            host_dirs: vec!["/absent".into(), "/proc".into()],
            neighbour_dir: "/proc".into(),
            neighbour_marker: marker,
            neighbour_pid: i32::try_from(neighbour.id()).unwrap(),
        };
        let answers: Vec<(&str, String)> =
            LOOKING.iter().map(|id| (*id, known(id).run.go(&setting))).collect();
        neighbour.kill().unwrap();
        neighbour.wait().unwrap();
        // A container as the test's host may have a filter and no new privileges itself.
        let held: Vec<_> = answers
            .iter()
            .filter(|(id, answer)| known(id).expected.contains(&answer.as_str()))
            .filter(|(id, _)| !["seccomp.mode", "cap.no-new-privileges"].contains(id))
            .collect();
        assert!(held.is_empty(), "these see no difference: {held:?}");
    }

    #[test]
    fn there_are_at_least_250_and_each_has_a_name_of_its_own() {
        let mut ids: Vec<&str> =
            AREAS.iter().flat_map(|(_, probes)| probes.iter()).map(|probe| probe.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert!(count >= 250 && ids.len() == count, "{count}");
    }
}
