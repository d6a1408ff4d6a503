//! What a host has that classes run on.

use super::{docker, remote};
use crate::host::runtime::Runtime;
use crate::machine::Absent;
use crate::spec::class::{Class, Offer};

/// What was found before the classes are asked: an engine, a provider or a machine is looked for once.
pub(crate) struct HostRuntimes<'a> {
    /// What holds the containers of this worker, or what stands in their place.
    pub holder: &'a Runtime,
    /// What makes machines, or why nothing does.
    pub machine: &'a Result<Runtime, Absent>,
}

impl HostRuntimes<'_> {
    /// Of a class that a worker has in place of `container`: present where it holds this worker's sandboxes.
    pub(crate) fn holds(&self, class: Class) -> Option<Offer> {
        let is_it = class_of(self.holder) == class;
        is_it.then(|| Offer::Present(self.holder.clone())).or_else(|| self.elsewhere())
    }

    /// Of every class of this host: absent where a provider holds this worker's sandboxes.
    pub(crate) fn elsewhere(&self) -> Option<Offer> {
        (class_of(self.holder) == Class::Remote).then(|| {
            absent(
                "a provider elsewhere holds this worker's sandboxes",
                "start without --runtime remote",
            )
        })
    }
}

/// The class of what this runtime holds: an engine or a provider stands where those of the class
/// `container` do.
pub(crate) fn class_of(holder: &Runtime) -> Class {
    match holder.name.as_str() {
        docker::NAME => Class::Docker,
        remote::NAME => Class::Remote,
        _ => Class::Container,
    }
}

pub(crate) fn absent(why: &str, remedy: &str) -> Offer {
    Offer::Absent { why: why.to_owned(), remedy: remedy.to_owned() }
}
