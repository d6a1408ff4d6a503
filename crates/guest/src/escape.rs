//! What the escape self-test is told and what it answers, one JSON line a probe.
//!
//! `cofferdam-probe probe SETTING` tries every probe, each in a process of its own, and prints a
//! [`ProbeResult`] for each. `cofferdam-probe neighbour MARKER` is the other sandbox that the probes look
//! for. The program is static, as the agent is, so that it runs wherever the agent does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// First argument: try everything.
pub const PROBE: &str = "probe";
/// First argument: be found, or rather not.
pub const NEIGHBOUR: &str = "neighbour";
/// What a neighbour prints when it can be looked for.
pub const NEIGHBOUR_READY: &str = "ready";
/// Where a neighbour listens on its own loopback.
pub const NEIGHBOUR_PORT: u16 = 47_013;
/// Where it writes its marker.
pub const NEIGHBOUR_FILE: &str = "/work/marker";

/// What lies outside the sandbox, so that a probe can look for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The host's namespaces by kind, such as `net:[4026531840]`.
    pub namespaces: BTreeMap<String, String>,
    /// A port that listens on the host's loopback.
    pub host_port: u16,
    /// An abstract unix socket of the host.
    pub host_socket: String,
    /// A process of the host.
    pub host_pid: i32,
    /// Directories of the host that hold sandboxes.
    pub host_dirs: Vec<String>,
    /// The neighbour's layer, as the host sees it.
    pub neighbour_dir: String,
    /// What the neighbour wrote and is called.
    pub neighbour_marker: String,
    /// The neighbour's first process, as the host numbers it.
    pub neighbour_pid: i32,
}

/// One probe's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeResult {
    /// Stable, such as `mount.tmpfs`.
    pub id: String,
    /// What it looks at, such as `mounts`.
    pub area: String,
    /// What it tries, in words.
    pub tries: String,
    /// Every answer of a sandbox that holds.
    pub expected: Vec<String>,
    /// This one's answer.
    pub observed: String,
    /// Whether it is one of those.
    pub ok: bool,
}
