//! Every class by its name, and what is asked of all of them.

use super::detect::HostRuntimes;
use super::isolation::Isolation;
use super::memory_support::MemorySupport;
use crate::spec::class::{Class, ClassFact, classes};
use crate::spec::facts::HostFacts;
use crate::spec::plan::Plan;

macro_rules! registry {
    ($(
        $(#[doc = $about:expr])*
        $(#[cfg($when:meta)])?
        $variant:ident = $name:literal, $strength:ident, $shares:literal, $module:ident;
    )+) => {
        /// What a class does.
        pub(crate) fn of(class: Class) -> Isolation {
            match class {
                $($(#[cfg($when)])? Class::$variant => Isolation::of(&super::$module::CLASS),)+
            }
        }
    };
}
classes!(registry);

/// Every class, in the order of the registry.
pub(crate) fn all() -> impl Iterator<Item = Isolation> {
    Class::ALL.into_iter().map(of)
}

/// Asks every class, in the order of the registry. Blocking.
pub(crate) fn detect(found: &HostRuntimes<'_>) -> Vec<ClassFact> {
    all()
        .map(|isolation| isolation.profile)
        .map(|one| ClassFact { class: one.class(), offer: one.detect(found) })
        .collect()
}

impl Plan {
    /// What its class does.
    pub(crate) fn isolation(&self) -> Isolation {
        of(self.class)
    }
}

impl HostFacts {
    /// Whether pauses of this class keep memory. `None`: no host's do.
    #[must_use]
    pub fn memory_support(&self, class: Class) -> Option<MemorySupport> {
        of(class).snapshots.kept_memory(self)
    }
}
