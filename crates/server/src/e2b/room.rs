//! One sandbox as envd's clients see it, and who may talk to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_live::{Account, Guest, ReadEnvironment};
use tokio::sync::OnceCell;

use super::adopted::adopt;
use super::connect::Fault;
use super::paths::unavailable;
use super::process::Process;
use super::watchers::Watcher;
use super::{TOKEN, carried};

/// Watchers without a stream of their own.
pub(crate) const MAX_WATCHERS: usize = 8;

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct Room {
    pub guest: Guest,
    processes: Mutex<HashMap<u32, Arc<Process>>>,
    watchers: Mutex<HashMap<String, Arc<Watcher>>>,
    /// Once the commands that a pause did not end are in the list.
    adopted: OnceCell<()>,
}

/// The user of this name; the default user without one.
pub(crate) fn account(name: Option<&str>) -> Result<Account, Fault> {
    Account::named(name).map_err(|why| Fault::new("unauthenticated", why))
}

/// As whom a request acts: `Authorization: Basic base64("NAME:")`, or by default.
fn acting(headers: &HeaderMap, default: &str) -> Result<Account, Fault> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return account(Some(default)) };
    let name = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix("Basic "))
        .and_then(|text| STANDARD.decode(text).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.split_once(':').map(|(name, _)| name.to_owned()));
    match name {
        Some(name) => account(Some(&name)),
        None => Err(Fault::new(
            "unauthenticated",
            "the Authorization header is not Basic with a user name",
        )),
    }
}

/// Whether two secrets are the same, in a time that does not tell where they differ.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && differ == 0
}

impl Room {
    pub(crate) fn of(guest: Guest) -> Arc<Self> {
        let adopted = OnceCell::new();
        Arc::new(Self { guest, processes: Mutex::default(), watchers: Mutex::default(), adopted })
    }

    /// Enters the commands that a pause did not end, before anybody asks for one.
    pub(crate) async fn adopt(self: &Arc<Self>) {
        if self.guest.facts.went_on {
            self.adopted.get_or_init(|| adopt(self)).await;
        }
    }

    /// As whom a request acts: whom it names, or the user that the template chose.
    pub(crate) fn acting(&self, headers: &HeaderMap) -> Result<Account, Fault> {
        acting(headers, self.guest.facts.user.as_str())
    }

    /// The user of this name; without one, whom the template chose.
    pub(crate) fn account(&self, name: Option<&str>) -> Result<Account, Fault> {
        let name = name.filter(|name| !name.is_empty());
        account(name.or(Some(self.guest.facts.user.as_str())))
    }

    /// Where commands of this user run by default.
    pub(crate) fn cwd(&self, account: Account) -> &str {
        self.guest.facts.workdir.as_deref().unwrap_or(account.home)
    }

    /// Whether a request may talk to envd.
    pub(crate) fn opens(&self, headers: &HeaderMap) -> bool {
        !self.guest.is_revoked()
            && carried(headers, TOKEN).is_some_and(|token| is_same(token, &self.guest.facts.token))
    }

    /// Environment of a command of this user.
    pub(crate) async fn environment(
        &self,
        account: Account,
    ) -> Result<BTreeMap<String, String>, Fault> {
        let inside = self.guest.ask(ReadEnvironment).await.map_err(|error| unavailable(&error))?;
        Ok(account.environment(&self.guest.facts.id, inside))
    }

    pub(crate) fn processes(&self) -> MutexGuard<'_, HashMap<u32, Arc<Process>>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watchers(&self) -> MutexGuard<'_, HashMap<String, Arc<Watcher>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_or_refused_by_name() {
        let of = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            }
            acting(&headers, "user").map(|account| account.name)
        };
        let basic = |name: &str| format!("Basic {}", STANDARD.encode(format!("{name}:")));
        assert_eq!(of(None), Ok("user"));
        assert_eq!(of(Some(&basic("root"))), Ok("root"));
        let fault = of(Some(&basic("x"))).unwrap_err();
        assert_eq!(
            (fault.code, fault.message.as_str()),
            ("unauthenticated", "invalid username: 'x'")
        );
        for bad in ["Bearer x", "Basic !", "Basic eA=="] {
            assert_eq!(of(Some(bad)).unwrap_err().code, "unauthenticated", "{bad}");
        }
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(is_same("abc", "abc"));
        for other in ["", "ab", "abd", "abcd", "bbc"] {
            assert!(!is_same("abc", other), "{other}");
        }
    }
}
