//! Talking to the engine: its API by its unix socket, every request with a bound.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use bollard::errors::Error;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, Docker};

use super::EngineAbsent;

/// One request. A start of a container takes a fifth of a second, and tens of them at once on a loaded
/// host a few.
const REQUEST_S: u64 = 30;
/// The engine's words about itself, where its state of health is what is asked.
const VERSION_S: u64 = 2;
/// Engines whose root is not the host's cannot be given ours.
const MAPPED: [&str; 2] = ["name=rootless", "name=userns"];

/// Why a container could not be made a sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    #[error("the Docker engine at {socket:?} does not answer")]
    Lost { socket: PathBuf, source: Error },
    #[error("the Docker engine failed at {what}")]
    Refused { what: &'static str, source: Error },
    #[error("{what} {path:?}")]
    Files { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the container's process {pid} is not to be found here: the engine runs on another machine, or \
         in other namespaces"
    )]
    Elsewhere { pid: i64 },
    #[error("the sandbox's root could not be put into the container: {what}")]
    Root { what: String, source: io::Error },
}

/// A client that speaks a version which both know.
pub(super) async fn connect(socket: &Path) -> Result<Docker, EngineError> {
    let lost = |source| EngineError::Lost { socket: socket.to_owned(), source };
    let docker = unknown(socket, REQUEST_S).map_err(lost)?;
    docker.negotiate_version().await.map_err(lost)
}

fn unknown(socket: &Path, timeout_s: u64) -> Result<Docker, Error> {
    Docker::connect_with_unix(&socket.to_string_lossy(), timeout_s, API_DEFAULT_VERSION)
}

/// What the engine says that it is, in one line; or why it is none for us.
pub(super) async fn version(socket: &Path) -> Result<String, EngineAbsent> {
    let lost = |error: Error| silent(socket, error);
    let docker = unknown(socket, VERSION_S).map_err(lost)?;
    let docker = docker.negotiate_version().await.map_err(lost)?;
    let version = docker.version().await.map_err(lost)?;
    let said = in_a_line(&version)?;
    let info = docker.info().await.map_err(lost)?;
    let options = info.security_options.unwrap_or_default();
    match options.iter().find(|option| MAPPED.iter().any(|mapped| option.starts_with(mapped))) {
        Some(mapped) => Err((
            format!("{said} maps users ({mapped}), so its root is not the host's"),
            "an engine that runs as root, without userns-remap".to_owned(),
        )),
        None => Ok(said),
    }
}

/// Why there is none behind a socket that is there.
pub(super) fn silent(socket: &Path, error: impl Display) -> EngineAbsent {
    let why = format!("the engine at {} does not answer: {error}", socket.display());
    (why, super::GET_ONE.to_owned())
}

/// The version in one line, or why the engine is absent. Pure.
fn in_a_line(version: &SystemVersion) -> Result<String, EngineAbsent> {
    let unknown = || "?".to_owned();
    let number = version.version.clone().unwrap_or_else(unknown);
    let api = version.api_version.clone().unwrap_or_else(unknown);
    let parts = version.components.as_deref().unwrap_or_default();
    if let Some(other) = parts.first().filter(|part| part.name != "Engine") {
        let why = format!("{} {number} is not a Docker Engine, and was not tried", other.name);
        return Err((why, super::GET_ONE.to_owned()));
    }
    Ok(format!("Docker Engine {number} (API {api})"))
}

/// Whether an answer is that there is no such thing.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

/// Whether an answer is that somebody is at it already.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 409, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(version: serde_json::Value) -> Result<String, EngineAbsent> {
        in_a_line(&serde_json::from_value(version).unwrap())
    }

    #[test]
    fn an_engine_is_named_with_its_versions_and_another_program_is_none() {
        let engine = json!({"Version": "20.10.24", "ApiVersion": "1.41",
                            "Components": [{"Name": "Engine", "Version": "20.10.24"}]});
        assert_eq!(said(engine).unwrap(), "Docker Engine 20.10.24 (API 1.41)");
        let podman = json!({"Version": "4.3.1", "ApiVersion": "1.41",
                            "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]});
        assert!(said(podman).unwrap_err().0.contains("Podman Engine 4.3.1 is not a Docker Engine"));
    }
}
