//! Sandboxes that this process asked for and does not hold yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::{LiveId, SandboxId, TaskKey, TenantId};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_sandbox::Host;

use super::ahead::Files;
use super::basis::Basis;
use super::registry::Tokens;

/// Creations of one tenant that wait at once. Each may hold a mebibyte of variables.
const MAX_ASKED: usize = 128;

/// One that was asked for.
#[derive(Debug)]
pub(crate) struct Expected {
    pub tenant: TenantId,
    /// The key that asked.
    pub key_id: String,
    /// The whole request. Its environment may hold secrets, so no table has it.
    pub request: LiveRequest,
    /// What it is made of and begins with.
    pub basis: Basis,
    /// Variables of the sandbox whose files these are; its own come before them.
    pub inherited: BTreeMap<String, String>,
    /// What it begins with.
    pub files: Files,
    /// Tokens of its lives before, where they stay; `None`: new ones.
    pub tokens: Option<Tokens>,
}

/// All that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Expectations {
    all: Mutex<HashMap<LiveId, Expected>>,
    /// Names under which sandboxes of tasks are made ahead.
    names: Mutex<HashMap<TaskKey, SandboxId>>,
    /// The same by the sandbox's own id; they stay for a while after that.
    made: Mutex<HashMap<LiveId, SandboxId>>,
}

impl Expectations {
    /// A sandbox is about to be recorded, and this process is to hold it: until it does, or what is given is dropped.
    /// `None`: it is expected already, or too many of the tenant's wait.
    pub(crate) fn expect(
        self: &Arc<Self>,
        id: &LiveId,
        task: &TaskKey,
        one: Expected,
    ) -> Option<Expecting> {
        let mut all = lock(&self.all);
        if all.values().filter(|other| other.tenant == one.tenant).count() >= MAX_ASKED
            || all.contains_key(id)
        {
            return None;
        }
        if let Some(ahead) = &one.files.ahead {
            let name = &ahead.plan().traces.id;
            lock(&self.names).insert(task.clone(), name.clone());
            lock(&self.made).insert(id.clone(), name.clone());
        }
        all.insert(id.clone(), one);
        Some(Expecting { of: Arc::clone(self), id: id.clone(), task: task.clone() })
    }

    /// Nobody waits for what was asked for any more.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.all));
        drop(all);
    }

    /// Takes what is known of one that was asked for: once.
    pub(crate) fn take(&self, id: &LiveId) -> Option<Expected> {
        lock(&self.all).remove(id)
    }

    /// The name under which the sandbox of a task is made already: once, so that no second execution has it.
    pub(crate) fn take_name(&self, task: &TaskKey) -> Option<SandboxId> {
        lock(&self.names).remove(task)
    }

    /// The name under which a sandbox of this id was made ahead, for a while.
    pub(super) fn made(&self, id: &LiveId) -> Option<SandboxId> {
        lock(&self.made).get(id).cloned()
    }

    /// Forgets those that are their task's, or wiped.
    pub(super) fn forget_made(&self, on: &Host) {
        let on = on.names();
        lock(&self.made).retain(|_, name| on.is_ahead(name) || on.has_failed_ahead(name));
    }
}

/// A sandbox is expected while this lives, unless it is held by then.
#[derive(Debug)]
pub(crate) struct Expecting {
    of: Arc<Expectations>,
    id: LiveId,
    task: TaskKey,
}

impl Drop for Expecting {
    fn drop(&mut self) {
        let one = self.of.take(&self.id);
        lock(&self.of.names).remove(&self.task);
        drop(one);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock only means that somebody panicked beside it; the map is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::TemplateName;
    use cofferdam_contracts::live::BASE_TEMPLATE;

    use super::*;

    fn id(n: usize) -> LiveId {
        LiveId::parse(&format!("{n:020}")).unwrap()
    }

    #[test]
    fn what_was_asked_for_is_forgotten_with_its_asker_and_bounded_for_each_tenant() {
        let expectations = Arc::new(Expectations::default());
        let (ann, bob) = (TenantId::parse("ann").unwrap(), TenantId::parse("bob").unwrap());
        let name = TemplateName::parse(BASE_TEMPLATE).unwrap();
        let task = TaskKey::parse(&"0".repeat(64)).unwrap();
        let expect = |n, tenant: &TenantId| {
            let one = Expected {
                tenant: tenant.clone(),
                key_id: "k".to_owned(),
                request: LiveRequest::of(BASE_TEMPLATE),
                basis: Basis::of_host(&name, None),
                inherited: BTreeMap::new(),
                files: Files::of(None, None),
                tokens: None,
            };
            expectations.expect(&id(n), &task, one)
        };
        let asked: Vec<Expecting> = (0..MAX_ASKED).map(|n| expect(n, &ann).unwrap()).collect();
        assert!(expect(MAX_ASKED, &ann).is_none());
        assert!(expect(MAX_ASKED, &bob).is_some());
        assert!(expectations.take(&id(0)).is_some() && expectations.take(&id(0)).is_none());
        drop(asked);
        assert!(lock(&expectations.all).is_empty());
    }
}
