//! The operations of the class `docker`.

use std::path::PathBuf;

use cofferdam_contracts::sandbox::{Limits, Looked};
use serde_json::Value;
use tokio::process::Command;

use super::wipe;
use crate::agent::Agent;
use crate::class::detect::{HostRuntimes, absent};
use crate::class::isolation::{Absence, Holder, Isolation, ShowsHost};
use crate::class::microvm::Lent;
use crate::class::weak::NO_USER_NAMESPACE;
use crate::egress::Way;
use crate::host::guest::AGENT_PIDS;
use crate::host::process::Netns;
use crate::host::runtime::Runtime;
use crate::host::traces::{Traces, cgroup_prefix};
use crate::oci::{self, OciInput};
use crate::spec::class::{Class, Offer};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

pub(crate) static CLASS: DockerClass = DockerClass;

pub(crate) struct DockerClass;

impl Isolation for DockerClass {
    fn class(&self) -> Class {
        Class::Docker
    }

    fn detect(&self, found: &HostRuntimes<'_>) -> Offer {
        found.holds(Class::Docker).unwrap_or_else(|| {
            absent(
                "no engine was asked for",
                "--runtime docker; `container` is as strong and needs no engine",
            )
        })
    }

    fn weak(&self, _facts: &HostFacts) -> Vec<String> {
        vec![format!("no user namespace: {NO_USER_NAMESPACE}")]
    }

    fn host_limits(&self, limits: Limits) -> Limits {
        let pids = limits.pids.map(|pids| pids + AGENT_PIDS);
        Limits { pids, ..limits }
    }

    fn config(&self, input: &OciInput<'_>) -> Value {
        oci::config(input)
    }

    fn shows_host(&self) -> ShowsHost {
        ShowsHost::Overlays
    }

    /// Its root is ours: all that a task writes lies in the worker's layer, and nothing in the engine's.
    fn keeps_files(&self) -> bool {
        true
    }

    fn holder(&self, _plan: &Plan) -> Holder {
        Holder::Engine
    }

    /// An engine is asked; no program of it is started here.
    fn command(
        &self,
        plan: &Plan,
        _groups: &[PathBuf],
        _facts: &HostFacts,
        _lent: Option<&Lent>,
    ) -> Command {
        Command::new(plan.runtime.program())
    }

    fn way(&self, netns: Option<Netns>, _agent: &Agent) -> Option<Way> {
        netns.map(Way::Netns)
    }

    fn take_away(&self, traces: &Traces, facts: &HostFacts) -> Absence {
        Absence { checks: wipe::take_away(traces, facts), elsewhere: None }
    }

    fn known(&self, facts: &HostFacts) -> Vec<String> {
        wipe::known(facts, &cgroup_prefix(&facts.state_dir))
    }

    fn again(&self, looked: &Looked) -> Option<Option<String>> {
        match looked {
            Looked::Container { name, engine } => Some(wipe::again(name, engine)),
            _ => None,
        }
    }

    /// An engine is asked by its socket.
    fn program(&self, _runtime: &Runtime) -> Option<PathBuf> {
        None
    }
}
