//! Isolation classes: which of them this host has, and which one a request gets.
//!
//! ```text
//! container (crun, runc) < gvisor (runsc) < microvm     docker: in container's place, if wanted
//! remote: in place of all of them, if wanted
//! class_min = X  ->  the weakest, and so the cheapest, present class that is not weaker than X
//! ```
//! A class that is absent says why and what would change that; nothing ever falls back to a weaker
//! one. `docker` is as strong as `container`, and a worker has one of the two: its operator chooses.

use cofferdam_contracts::sandbox::{IsolationClass, SandboxRequest};

use crate::docker;
use crate::host::HostFacts;
use crate::microvm;
use crate::refuse::PlanError;
use crate::remote;
use crate::runtime::{self, Runtime};

/// What `class_min` means in a request.
pub(crate) const FIELD: &str = "spec.isolation.class_min";

/// A way of isolating that a host may offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Namespaces, cgroups and a system call filter on the host's kernel.
    Container,
    /// A kernel in user space.
    Gvisor,
    /// A kernel of its own on virtual hardware.
    Microvm,
    /// A container that a Docker engine holds.
    Docker,
    /// A sandbox that a service elsewhere holds.
    Remote,
}

impl Class {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 5] =
        [Self::Container, Self::Gvisor, Self::Microvm, Self::Docker, Self::Remote];
    /// Those whose sandboxes are on this host.
    pub const LOCAL: [Self; 4] = [Self::Container, Self::Gvisor, Self::Microvm, Self::Docker];

    /// The name in facts, tables and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Microvm => "microvm",
            Self::Docker => "docker",
            Self::Remote => remote::NAME,
        }
    }

    /// Whether its processes are the host kernel's own, so that all that the kernel counts of them is
    /// to be had.
    pub(crate) const fn is_on_host_kernel(self) -> bool {
        matches!(self, Self::Container | Self::Docker)
    }

    /// How strong it is.
    #[must_use]
    pub const fn strength(self) -> IsolationClass {
        match self {
            Self::Container | Self::Docker => IsolationClass::Container,
            Self::Gvisor => IsolationClass::Gvisor,
            Self::Microvm => IsolationClass::Microvm,
            Self::Remote => IsolationClass::Remote,
        }
    }
}

/// What a host offers of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// Sandboxes of it can be made, by this runtime.
    Present(Runtime),
    /// None can be made.
    Absent {
        /// Why.
        why: String,
        /// What would change that.
        remedy: String,
    },
}

/// A class and what this host offers of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassFact {
    /// Which.
    pub class: Class,
    /// Present or absent.
    pub offer: Offer,
}

/// Looks for the runtime of every class; those of `container` (or `docker` in its place) and `microvm`
/// were looked for before.
pub(crate) fn detect(
    holder: &Runtime,
    microvm: Result<Runtime, microvm::Absent>,
) -> Vec<ClassFact> {
    let offer = |class| match class {
        Class::Container | Class::Docker | Class::Remote if class == held_by(holder) => {
            Offer::Present(holder.clone())
        }
        _ if held_by(holder) == Class::Remote => absent(
            "a provider elsewhere holds this worker's sandboxes",
            "start without --runtime remote",
        ),
        Class::Container => absent(
            "a Docker engine holds this worker's sandboxes",
            "start without --runtime docker",
        ),
        Class::Gvisor => match runtime::gvisor() {
            Ok(runsc) => Offer::Present(runsc),
            Err((why, remedy)) => absent(&why, remedy),
        },
        Class::Microvm => match &microvm {
            Ok(qemu) => Offer::Present(qemu.clone()),
            Err((why, remedy)) => absent(why, remedy),
        },
        Class::Docker => absent(
            "no engine was asked for",
            "--runtime docker; `container` is as strong and needs no engine",
        ),
        Class::Remote => absent(
            "no provider was asked for",
            "--runtime remote --remote-url URL --remote-template NAME",
        ),
    };
    Class::ALL.map(|class| ClassFact { class, offer: offer(class) }).into()
}

/// The class of what this runtime holds: an engine or a provider stands where those of the class
/// `container` do.
fn held_by(holder: &Runtime) -> Class {
    match holder.name.as_str() {
        docker::NAME => Class::Docker,
        remote::NAME => Class::Remote,
        _ => Class::Container,
    }
}

fn absent(why: &str, remedy: &str) -> Offer {
    Offer::Absent { why: why.to_owned(), remedy: remedy.to_owned() }
}

/// The cheapest present class that is at least as strong as the request wants. Pure.
pub(crate) fn choose<'a>(
    request: &SandboxRequest,
    facts: &'a HostFacts,
) -> Result<(Class, &'a Runtime), PlanError> {
    let least = request.class_min();
    let mut missing = Vec::new();
    let holder = held_by(&facts.runtime);
    let cheapest = facts.classes.iter().filter(|fact| fact.class == holder);
    let stronger =
        facts.classes.iter().filter(|fact| fact.class != holder && !fact.class.is_on_host_kernel());
    for fact in cheapest.chain(stronger) {
        match &fact.offer {
            _ if fact.class.strength() < least => {}
            Offer::Present(runtime) => return Ok((fact.class, runtime)),
            Offer::Absent { why, remedy } => {
                missing.push(format!("{}: {why} ({remedy})", fact.class.as_str()));
            }
        }
    }
    let missing = match missing.is_empty() {
        true => "this version of Cofferdam has no class that is as strong".to_owned(),
        false => missing.join("; "),
    };
    Err(PlanError::new(FIELD, format!("this host has no class that is strong enough: {missing}")))
}
