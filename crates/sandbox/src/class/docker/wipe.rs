//! Taking a container away, and looking whether it is gone.
//!
//! | looked for | how |
//! |---|---|
//! | container | the engine answers 404 for its name |
//! | cgroup | no group of any tree has its id in its name |
//! | directory | where the engine kept its files |
//!
//! A marker in the sandbox's directory says which engine holds it, so an orphan is wiped by whatever
//! worker finds it. An engine that does not answer is a look that failed, never one that found nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};
use cofferdam_ambient::clock;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::sandbox::{WipeCheck, WipeSubject};
use serde::{Deserialize, Serialize};

use super::client::{EngineError, connect, is_busy, is_missing};
use super::create::LABEL_STATE;
use super::{create, name, of};
use crate::host::task::ask;
use crate::host::traces::Traces;
use crate::spec::facts::HostFacts;

/// What the engine is still at is asked for again after 50 ms, for 10 s: a container whose process has
/// ended is gone within one.
const TRIES: usize = 200;
const PAUSE: Duration = Duration::from_millis(50);
/// How deep an engine's groups lie: `docker/<id>`, `system.slice/docker-<id>.scope`, and both below a
/// parent that somebody configured.
const DEPTH: usize = 4;

/// Which engine holds a sandbox, in its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marker {
    /// Path of the engine's unix socket, by which the wipe removes the container.
    pub engine: PathBuf,
    /// The container's, once it is made.
    pub id: Option<String>,
}

impl Marker {
    fn path(traces: &Traces) -> PathBuf {
        traces.dir.join("container.json")
    }

    pub(super) fn write(&self, traces: &Traces) -> Result<(), EngineError> {
        let path = Self::path(traces);
        let text = serde_json::to_vec(self).map_err(std::io::Error::other);
        text.and_then(|text| fs::write(&path, text)).map_err(|source| EngineError::Files {
            what: "writing",
            path,
            source,
        })
    }

    /// A sandbox that has a directory and no marker in it was never an engine's; of one without a
    /// directory the worker's own engine is asked, if it has one.
    fn of(traces: &Traces, facts: &HostFacts) -> Option<Self> {
        let read = fs::read(Self::path(traces)).ok();
        match read.and_then(|text| serde_json::from_slice(&text).ok()) {
            Some(marker) => Some(marker),
            None if traces.dir.exists() && !Self::path(traces).exists() => None,
            None => Some(Self { engine: of(facts)?.to_owned(), id: None }),
        }
    }
}

/// Sandboxes that the worker's engine holds for this state directory; none where it does not answer:
/// then their directories and sessions are what tells of them.
pub(super) fn known(facts: &HostFacts, prefix: &str) -> Vec<String> {
    let Some(socket) = of(facts) else { return Vec::new() };
    ask(listed(socket, prefix)).ok().and_then(Result::ok).unwrap_or_default()
}

async fn listed(socket: &Path, prefix: &str) -> Result<Vec<String>, EngineError> {
    let docker = connect(socket).await?;
    let labels = vec![format!("{LABEL_STATE}=cofferdam-{prefix}")];
    let filters = [("label".to_owned(), labels)].into();
    let wanted = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let what = "listing its containers";
    let found = docker.list_containers(Some(wanted)).await;
    let found = found.map_err(|source| EngineError::Refused { what, source })?;
    let labels = found.into_iter().filter_map(|one| one.labels);
    Ok(labels.filter_map(|mut labels| labels.remove(create::LABEL_SANDBOX)).collect())
}

/// Removes the container of a sandbox, if an engine may hold one, and looks for it. Blocking; before
/// anything is unmounted, since its mounts are in the container.
pub(super) fn take_away(traces: &Traces, facts: &HostFacts) -> Vec<WipeCheck> {
    let Some(marker) = Marker::of(traces, facts) else { return Vec::new() };
    let subject = subject(traces, &marker.engine);
    let removed = ask(remove(&marker.engine, &name(traces)));
    let (seen, found) = match removed {
        Ok(Ok(ContainerRemoval { left, id, dir })) => (left, Some((id, dir))),
        Ok(Err(error)) => (Some(error_chain(&error)), None),
        Err(error) => (Some(error.to_string()), None),
    };
    let mut checks = vec![WipeCheck::new(subject, seen)];
    let (id, dir) = found.unwrap_or_default();
    if let Some(id) = id.or(marker.id) {
        checks.push(look_for_groups(&id, facts));
    }
    if let Some(dir) = dir {
        let seen = dir.exists().then(|| "still there".to_owned());
        checks.push(WipeCheck::new(WipeSubject::Directory(dir.display().to_string()), seen));
    }
    checks
}

fn subject(traces: &Traces, engine: &Path) -> WipeSubject {
    WipeSubject::Container { name: name(traces), engine: engine.display().to_string() }
}

/// Looks again for a container: what of it is left, or why that is not known.
pub(super) fn again(name: &str, engine: &str) -> Option<String> {
    match ask(remove(Path::new(engine), name)) {
        Ok(Ok(gone)) => gone.left,
        Ok(Err(error)) => Some(error_chain(&error)),
        Err(error) => Some(error.to_string()),
    }
}

/// What came of removing a container.
#[derive(Debug, Default)]
struct ContainerRemoval {
    /// What is still there.
    left: Option<String>,
    /// Its id, where it was there before.
    id: Option<String>,
    /// Where the engine kept its files.
    dir: Option<PathBuf>,
}

async fn remove(socket: &Path, name: &str) -> Result<ContainerRemoval, EngineError> {
    let docker = connect(socket).await?;
    let found = match docker.inspect_container(name, None).await {
        Ok(found) => found,
        Err(error) if is_missing(&error) => return Ok(ContainerRemoval::default()),
        Err(source) => return Err(refused(source)),
    };
    let dir = found.hostname_path.as_deref().and_then(|path| Path::new(path).parent());
    let dir = dir.filter(|dir| dir.is_absolute() && dir.exists()).map(Path::to_owned);
    let left = end(&docker, name).await?;
    Ok(ContainerRemoval { left, id: found.id, dir })
}

fn refused(source: bollard::errors::Error) -> EngineError {
    EngineError::Refused { what: "removing the container", source }
}

async fn end(docker: &Docker, name: &str) -> Result<Option<String>, EngineError> {
    let mut said = None;
    for _ in 0..TRIES {
        // With its volumes: it has none, and if it had they would be the task's.
        let wanted = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match docker.remove_container(name, Some(wanted)).await {
            Ok(()) => {}
            Err(error) if is_missing(&error) => {}
            Err(error) if is_busy(&error) => said = Some(error.to_string()),
            Err(source) => return Err(refused(source)),
        }
        match docker.inspect_container(name, None).await {
            Err(error) if is_missing(&error) => return Ok(None),
            Err(source) => return Err(refused(source)),
            Ok(_) => clock::sleep(PAUSE).await,
        }
    }
    Ok(Some(said.unwrap_or_else(|| "still there".to_owned())))
}

/// The engine's own groups of a container, which hold no process of the sandbox.
fn look_for_groups(id: &str, facts: &HostFacts) -> WipeCheck {
    let mut left = Vec::new();
    for _ in 0..TRIES {
        let trees = facts.cgroups.hierarchies.iter();
        left = trees.flat_map(|tree| groups_of(&tree.mount, id, DEPTH)).collect::<Vec<_>>();
        if left.is_empty() {
            break;
        }
        clock::sleep_blocking(PAUSE);
    }
    let seen = (!left.is_empty()).then(|| format!("{left:?}"));
    WipeCheck::new(WipeSubject::EngineCgroup(id.to_owned()), seen)
}

fn groups_of(dir: &Path, id: &str, depth: usize) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut found = Vec::new();
    for entry in dirs {
        if entry.file_name().to_string_lossy().contains(id) {
            found.push(entry.path());
        } else if depth > 1 {
            found.extend(groups_of(&entry.path(), id, depth - 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::SandboxId;

    #[test]
    fn an_engines_groups_are_found_under_either_driver_and_no_others() {
        let tree = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let found = [make("docker/abc123"), make("ours.slice/system.slice/docker-abc123.scope")];
        make("docker/def456");
        let mut seen = groups_of(tree.path(), "abc123", DEPTH);
        seen.sort();
        assert_eq!(seen, found);
    }

    #[test]
    fn an_engine_that_does_not_answer_is_a_failed_look_and_can_be_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let id = SandboxId::parse("sb00000000000000000001").unwrap();
        let traces = Traces::of(dir.path(), dir.path(), &id);
        fs::create_dir_all(&traces.dir).unwrap();
        let engine = dir.path().join("docker.sock");
        Marker { engine: engine.clone(), id: None }.write(&traces).unwrap();
        let WipeSubject::Container { name, engine } = subject(&traces, &engine) else { panic!() };
        let seen = again(&name, &engine).unwrap();
        assert!(seen.contains("does not answer"), "{seen}");
    }
}
