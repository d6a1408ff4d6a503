//! How a sandbox of a class starts.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_contracts::sandbox::Limits;
use serde_json::Value;
use tokio::process::Command;

use crate::class::microvm::{EmulatorOrders, Given, Lent, Parts};
use crate::egress::Unrouted;
use crate::host::cgroup::OwnGroup;
use crate::host::hostpath::Place;
use crate::host::limit::{self, Groups};
use crate::host::task::Driver;
use crate::host::traces::Traces;
use crate::oci::OciInput;
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

/// What of a sandbox lies on this host before it starts.
#[derive(Default)]
pub(crate) struct Footing {
    /// MiB of the writable layer; `None`: the sandbox is elsewhere, and nothing lies here.
    pub layer_mb: Option<u64>,
    /// Whether it has users of its own, where the host can give it some.
    pub has_users: bool,
    /// Directories of the host that are shown in its root.
    pub apart: Vec<PathBuf>,
    /// Whether its runtime binds the root's `/tmp` from beside the root.
    pub binds_tmp: bool,
    /// What a machine is made of; it mounts its root itself.
    pub parts: Option<Parts>,
    /// The cgroups to make, where the runtime makes none.
    pub groups: Option<Groups>,
    /// What its programs see of the cgroups that its runtime makes.
    pub shown_groups: Vec<OwnGroup>,
}

impl Footing {
    /// A layer of the plan's size, and cgroups of ours with these limits.
    pub fn of(plan: &Plan, limits: Limits, facts: &HostFacts) -> Self {
        let groups = limit::groups(&facts.cgroups, &plan.traces, limits, facts.cpus);
        Self { layer_mb: Some(plan.disk_mb), groups: Some(groups), ..Self::default() }
    }
}

/// Where what is heard of attempts goes, and what hears it.
pub(crate) type Heard = (Arc<Unrouted>, Driver);

/// What is made and started for a sandbox. By default nothing but that program has to be made.
pub(crate) trait Launch: Sync {
    /// The OCI configuration; null where no runtime reads one.
    fn config(&self, _input: &OciInput<'_>) -> Value {
        Value::Null
    }

    /// What of a sandbox lies on this host before it starts.
    fn footing(&self, plan: &Plan, base: &Place, given: &[Given], facts: &HostFacts) -> Footing;

    /// The layer of the agent that it runs.
    fn guest<'a>(&self, facts: &'a HostFacts) -> &'a PathBuf {
        &facts.guest
    }

    /// Listens for what the sandbox's kernel tells of connects, before it starts.
    fn hear(&self, _traces: &Traces) -> io::Result<Option<Heard>> {
        Ok(None)
    }

    /// The program that holds it; `groups` are the cgroups that were made for it, `lent` what a stored machine has.
    fn command(
        &self,
        plan: &Plan,
        groups: &[PathBuf],
        facts: &HostFacts,
        lent: Option<&Lent>,
    ) -> Command;

    /// Has the program that holds it, and is about to be started, take orders from us: then its machine can be stored with it.
    fn orders(&self, _plan: &Plan, _command: &mut Command) -> io::Result<Option<EmulatorOrders>> {
        Ok(None)
    }

    /// Whether the runtime may be started before there is a root: it opens its configuration first, and waits there.
    fn starts_ahead(&self) -> bool {
        false
    }

    /// Whether the host's kernel kills what it starts with this process: a [`starter`](crate::host::starter) starts it then.
    fn is_killed_with_us(&self) -> bool {
        false
    }

    /// Whether a sandbox of it may be made before its request, and wait.
    fn may_wait(&self) -> bool {
        false
    }
}
