//! The class `docker`: a container that a Docker engine of this host holds.
//!
//! ```text
//! image (an empty root and the agent, made once) -> create -> attach -> start      by the engine's API
//!   pid of the agent -> our cgroups -> our root in place of the image's            by us, see `root`
//!   attach stream <-> socket pair <-> the agent's HTTP/2                           see `stream`
//! wipe: remove, ask for it (404), look for its cgroups and its directory           see `wipe`
//! ```
//! The engine makes the namespaces and the devices, and applies capabilities, the system call filter,
//! masks and limits of the very configuration that the class `container` has (`create`). Root, limits and
//! counters are then ours, so that layer, files, egress, services, cache and wipe are those of that class.
//!
//! **Nobody is given it who did not ask**: a worker whose runtime is `docker` has it in place of
//! `container`, every other one touches no engine.

mod client;
mod create;
mod image;
mod operations;
mod root;
mod start;
mod stream;
mod wipe;

use std::path::{Path, PathBuf};

use cofferdam_ambient::env;

use crate::host::runtime::Runtime;
use crate::host::task::ask;
use crate::host::traces::Traces;
use crate::spec::class::Class;
use crate::spec::facts::HostFacts;

pub(crate) use operations::CLASS;

/// The name of the runtime, for the operator who wants it and in every record.
pub(crate) const NAME: &str = "docker";
const PLACE: &str = "DOCKER_HOST";
/// Where an engine listens unless it is told otherwise.
const USUAL: &str = "/var/run/docker.sock";
/// What makes an engine of this host present.
const GET_ONE: &str = "apt-get install docker.io and start it, or name its socket: \
                       DOCKER_HOST=unix:///path";

/// Why there is none, and what would change that.
pub(crate) type EngineAbsent = (String, String);

/// The engine as a runtime: its path is that of its socket.
pub(crate) fn detect() -> Result<Runtime, EngineAbsent> {
    let socket = socket(env::var(PLACE).as_deref())?;
    if !socket.exists() {
        return Err((format!("no engine listens at {}", socket.display()), GET_ONE.to_owned()));
    }
    let asked = ask(client::version(&socket));
    let version = asked.map_err(|error| client::silent(&socket, error))??;
    Ok(Runtime { name: NAME.to_owned(), path: socket, version, sealed: None })
}

/// What an operator's variable says. Pure.
fn socket(named: Option<&str>) -> Result<PathBuf, EngineAbsent> {
    let Some(named) = named else { return Ok(USUAL.into()) };
    match named.strip_prefix("unix://") {
        Some(path) if path.starts_with('/') => Ok(path.into()),
        _ => Err((
            format!(
                "{PLACE} names {named:?}, and only an engine of this host can be given our root"
            ),
            format!("{PLACE}=unix:///path, or unset it"),
        )),
    }
}

/// The socket of the engine that holds this worker's sandboxes.
fn of(facts: &HostFacts) -> Option<&Path> {
    facts.runtime_of(Class::Docker).map(|engine| engine.path.as_path())
}

/// What the engine calls the container of a sandbox: the same for every worker of the host.
fn name(traces: &Traces) -> String {
    let group = traces.cgroup.file_name().unwrap_or_default().to_string_lossy();
    format!("cofferdam-{group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_unix_socket_names_an_engine_of_this_host() {
        assert_eq!(socket(None).unwrap(), Path::new(USUAL));
        assert_eq!(socket(Some("unix:///run/d.sock")).unwrap(), Path::new("/run/d.sock"));
        for elsewhere in ["tcp://10.0.0.1:2375", "ssh://host", "unix://relative", "/run/d.sock"] {
            let (why, remedy) = socket(Some(elsewhere)).unwrap_err();
            assert!(why.contains(elsewhere) && remedy.contains("unix:///"), "{why} {remedy}");
        }
    }
}
