//! Isolation classes: the registry, a line each, and what a host offers of one.
//!
//! ```text
//! container (crun, runc) < gvisor (runsc) < microvm     docker: in container's place, if wanted
//! remote: in place of all of them, if wanted
//! class_min = X  ->  the weakest, and so the cheapest, present class that is not weaker than X
//! ```
//! A class that is absent says why and what would change that; nothing ever falls back to a weaker
//! one. `docker` is as strong as `container`, and a worker has one of the two: its operator chooses.

use cofferdam_contracts::sandbox::IsolationClass;

use crate::host::runtime::Runtime;

/// The registry: `Class = name, strength, whether its processes are the host kernel's own, folder`. The order is that in
/// which classes are reported, and chosen among equals.
macro_rules! classes {
    ($then:ident) => {
        $then! {
            /// Namespaces, cgroups and a system call filter on the host's kernel.
            Container = "container", Container, true, container;
            /// A kernel in user space.
            Gvisor = "gvisor", Gvisor, false, gvisor;
            /// A kernel of its own on virtual hardware.
            Microvm = "microvm", Microvm, false, microvm;
            /// A container that a Docker engine holds.
            Docker = "docker", Container, true, docker;
            /// A sandbox that a service elsewhere holds.
            Remote = "remote", Remote, false, remote;
            /// A class that only tests have.
            #[cfg(test)]
            Sixth = "sixth", Microvm, false, sixth;
        }
    };
}
pub(crate) use classes;

macro_rules! define {
    ($(
        $(#[doc = $about:expr])*
        $(#[cfg($when:meta)])?
        $variant:ident = $name:literal, $strength:ident, $shares:literal, $module:ident;
    )+) => {
        /// A way of isolating that a host may offer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Class {
            $($(#[doc = $about])* $(#[cfg($when)])? $variant,)+
        }

        impl Class {
            const COUNT: usize = [$($(#[cfg($when)])? $name,)+].len();

            /// All of them, in the order in which they are reported.
            pub const ALL: [Self; Self::COUNT] = [$($(#[cfg($when)])? Self::$variant,)+];

            /// The name in facts, tables and messages.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($(#[cfg($when)])? Self::$variant => $name,)+ }
            }

            /// Whether its processes are the host kernel's own, so that all that the kernel counts of them is
            /// to be had.
            pub(crate) const fn is_on_host_kernel(self) -> bool {
                match self { $($(#[cfg($when)])? Self::$variant => $shares,)+ }
            }

            /// How strong it is.
            #[must_use]
            pub const fn strength(self) -> IsolationClass {
                match self { $($(#[cfg($when)])? Self::$variant => IsolationClass::$strength,)+ }
            }
        }
    };
}
classes!(define);

impl Class {
    /// Those whose sandboxes are on this host.
    pub const LOCAL: [Self; 4] = [Self::Container, Self::Gvisor, Self::Microvm, Self::Docker];
}

/// What `class_min` means in a request.
pub(crate) const FIELD: &str = "spec.isolation.class_min";

/// What a host offers of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// Sandboxes of it can be made, by this runtime.
    Present(Runtime),
    /// None can be made.
    Absent {
        /// Reason, for the operator.
        why: String,
        /// What would change that.
        remedy: String,
    },
}

/// A class and what this host offers of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassFact {
    /// The isolation class.
    pub class: Class,
    /// Present or absent.
    pub offer: Offer,
}
