//! What the floors above ask of a class, in six parts.
//!
//! ```text
//! ClassProfile   detect, weak, refuse, limits, root, kernel ..     the host, the plan and the record
//! InputMounts    gives, medium, shows_host                         what it is given of the host
//! Launch         config, host_layout, hear, start ..               the start, up to a `RuntimeHandle`
//! Supervision    init, settle, way, attempts ..                    its life
//! Snapshots      keeps_files, kept_memory, store_memory            a pause
//! Custody        take_away, known, again                          what else holds it, and every look behind it
//! ```
//! Where most classes answer alike, a part has the answer of a program of this host that is started on a root, a layer and
//! cgroups of this host. **Where such an answer could hide a weakness, an attempt or a sandbox, a class has to give its own.**

mod custody;
mod inputs;
mod launch;
mod profile;
mod runtime_handle;
mod snapshots;
mod supervision;

pub(crate) use custody::{Absence, Custodian, Custody, RemoteRemoval};
pub(crate) use inputs::{InputMounts, ShowsHost};
pub(crate) use launch::{
    AttemptWatch, HostLayout, Launch, LaunchInput, LaunchResult, ReadyStart, StartError,
};
pub(crate) use profile::ClassProfile;
pub(crate) use runtime_handle::{RemoteLine, RuntimeFuture, RuntimeHandle, TakeOutput};
pub(crate) use snapshots::Snapshots;
pub(crate) use supervision::{Attempts, Supervision};

/// A class of isolation, by its parts: a function that needs one of them takes no other.
#[derive(Clone, Copy)]
pub(crate) struct Isolation {
    pub profile: &'static dyn ClassProfile,
    pub inputs: &'static dyn InputMounts,
    pub launch: &'static dyn Launch,
    pub supervision: &'static dyn Supervision,
    pub snapshots: &'static dyn Snapshots,
    pub custody: &'static dyn Custody,
}

impl Isolation {
    /// The class that one type implements.
    pub fn of<C>(class: &'static C) -> Self
    where
        C: ClassProfile + InputMounts + Launch + Supervision + Snapshots + Custody,
    {
        Self {
            profile: class,
            inputs: class,
            launch: class,
            supervision: class,
            snapshots: class,
            custody: class,
        }
    }
}
