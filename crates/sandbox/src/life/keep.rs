//! The files of a sandbox that runs, kept as a stream, and put into the layer of another before it begins.
//!
//! ```text
//! Sandbox --keeper--> LayerKeeper --keep--> freeze -> stream -> Still --dropped--> it goes on
//!                         |                                      ^   \--end--> its processes are killed where they stand
//!                         \--stand--> freeze -> PlainLayer ------/
//! stream or PlainLayer -> Filling --provision_filled--> a sandbox with these files
//! ```
//! While the stream is written every process stands still, so it has the files of one moment: what was written, in the
//! order in which it was written. What a program still has in its own memory is not in it.

use std::io::{self, Read, Write};
use std::sync::Arc;

use crate::class;
use crate::host::freeze::Frozen;
use crate::host::idrange::Taken;
use crate::host::plain::PlainLayer;
use crate::host::traces::Traces;
use crate::host::{process, upper};
use crate::life::sandbox::{KillHandle, Sandbox};
use crate::spec::class::Class;
use crate::spec::facts::HostFacts;

/// Why the files of a sandbox could not be kept. It goes on.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The kernel did not stop its processes.
    #[error("the sandbox could not be stopped for a moment: {0}")]
    Freeze(#[source] io::Error),
    /// A file could not be read, or the stream not written.
    #[error("the sandbox's files could not be kept: {0}")]
    Files(#[source] io::Error),
}

/// Why nothing keeps the files of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the files of a sandbox of the class `{0}` cannot be kept: only the class `container` has pause, snapshot and fork"
)]
pub struct Unkept(&'static str);

/// Keeps the files of one sandbox, from anywhere.
#[derive(Debug, Clone)]
pub struct LayerKeeper {
    facts: Arc<HostFacts>,
    traces: Traces,
    first: u32,
    ids: Option<Taken>,
    kill: KillHandle,
}

impl Sandbox {
    /// What keeps its files.
    ///
    /// # Errors
    /// Its class cannot.
    pub fn keeper(&self) -> Result<LayerKeeper, Unkept> {
        kept_by(self.subject.class)?;
        Ok(LayerKeeper {
            facts: Arc::clone(&self.facts),
            traces: self.subject.traces.clone(),
            first: self.first_id(),
            ids: self.subject.ids.clone(),
            kill: self.kill_handle(),
        })
    }
}

/// Whether the files of a class's sandboxes can be kept. Pure.
fn kept_by(class: Option<Class>) -> Result<(), Unkept> {
    match class {
        Some(class) if class::of(class).keeps_files() => Ok(()),
        class => Err(Unkept(class.map_or("unknown", Class::as_str))),
    }
}

impl LayerKeeper {
    /// Stops the sandbox, writes all its files and gives it as it stands. Blocking; once `goes_on` says no, it is an error.
    /// The sandbox must not be wiped meanwhile.
    ///
    /// # Errors
    /// It could not be stopped, or a file not be read or written; then it goes on.
    pub fn keep(
        &self,
        out: &mut dyn Write,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Still, KeepError> {
        let frozen = self.facts.cgroups.freeze(&self.traces).map_err(KeepError::Freeze)?;
        let written = upper::pack(&self.traces.layer.join("upper"), self.first, out, goes_on);
        written.map_err(KeepError::Files)?;
        Ok(Still { frozen, keeper: self.clone() })
    }
}

impl LayerKeeper {
    /// Stops the sandbox and holds its layer, which then outlives it: nothing is copied. Blocking. `None`: the layer does not
    /// lie in memory, and its files have to be written. The sandbox must not be wiped meanwhile.
    ///
    /// # Errors
    /// It could not be stopped, or its layer not be held; then it goes on.
    pub fn stand(&self) -> Result<Option<(Still, PlainLayer)>, KeepError> {
        let Traces { layer, dir, .. } = &self.traces;
        let frozen = self.facts.cgroups.freeze(&self.traces).map_err(KeepError::Freeze)?;
        let plain = PlainLayer::of(layer, dir, self.ids.clone()).map_err(KeepError::Files)?;
        Ok(plain.map(|plain| (Still { frozen, keeper: self.clone() }, plain)))
    }
}

/// A sandbox that stands still. It goes on when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Still {
    frozen: Frozen,
    keeper: LayerKeeper,
}

impl Still {
    /// Kills every process where it stands: none of them runs another instruction of its program.
    pub fn end(self) {
        let Self { frozen, keeper } = self;
        keeper.kill.kill();
        for pid in keeper.facts.cgroups.members(&keeper.traces) {
            process::kill_member(pid, &keeper.traces.cgroup);
        }
        drop(frozen);
    }
}

/// Files that a sandbox begins with.
pub enum Filling {
    /// What [`LayerKeeper::keep`] wrote.
    Stream(Box<dyn Read + Send + Sync>),
    /// The layer itself.
    Layer(Arc<PlainLayer>),
}

impl std::fmt::Debug for Filling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Filling")
    }
}

impl Filling {
    /// What [`LayerKeeper::keep`] wrote.
    pub fn new(stream: impl Read + Send + Sync + 'static) -> Self {
        Self::Stream(Box::new(stream))
    }

    pub(crate) fn is_layer(&self) -> bool {
        self.layer().is_some()
    }

    pub(crate) fn layer(&self) -> Option<&Arc<PlainLayer>> {
        match self {
            Self::Layer(layer) => Some(layer),
            Self::Stream(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_containers_files_are_kept_and_every_other_class_is_refused_by_its_name() {
        for class in Class::ALL {
            match kept_by(Some(class)) {
                Ok(()) => assert_eq!(class, Class::Container),
                Err(why) => {
                    assert_ne!(class, Class::Container);
                    let named = format!("class `{}` cannot", class.as_str());
                    assert!(why.to_string().contains(&named), "{why}");
                }
            }
        }
    }
}
