//! What holds sandboxes of a class besides this worker, and what is found and removed there.

use cofferdam_contracts::sandbox::{WipeCheck, WipeMethod, WipeSubject};

use crate::host::traces::Traces;
use crate::spec::facts::HostFacts;

/// What came of having a class take away what it held of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    pub checks: Vec<WipeCheck>,
    /// How, where the sandbox was elsewhere: then nothing of it was on this host.
    pub elsewhere: Option<RemoteRemoval>,
}

/// How a sandbox elsewhere was taken away.
#[derive(Debug)]
pub(crate) struct RemoteRemoval {
    pub method: WipeMethod,
    pub not_recheckable: Vec<String>,
}

/// What holds a class's sandboxes. **Nothing is assumed**: an engine or a provider that is not named here would keep sandboxes
/// that no wipe removes and no reconciler finds.
pub(crate) trait Custody: Sync {
    /// What holds sandboxes of this class besides programs of this host; `None`: nothing does.
    fn custodian(&self) -> Option<&dyn Custodian>;
}

/// An engine or a provider that holds sandboxes of a class.
pub(crate) trait Custodian: Sync {
    /// Has it remove a sandbox of this class, and looks whether it did. Of one that was never this class's nothing. Blocking.
    fn take_away(&self, traces: &Traces, facts: &HostFacts) -> Absence;

    /// Names of sandboxes that it knows for this state directory. Blocking.
    fn known(&self, facts: &HostFacts) -> Vec<String>;

    /// Looks again for what a check of this class' names; `None`: it names nothing of this class' that could be found
    /// again. Inside, what was seen.
    fn again(&self, looked: &WipeSubject) -> Option<Option<String>>;
}
