//! One sandbox as envd's clients see it, and who may talk to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_live::inside::User;
use cofferdam_live::{Held, STREAMS, USUAL_PATH, USUAL_VARIABLES};
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::adopted::adopt;
use super::connect::Fault;
use super::process::Process;
use super::watchers::Watcher;
use super::{TOKEN, carried};

/// How long a command, transfer, watch or connection waits for a stream of its own.
pub(crate) const PLACE_PATIENCE: Duration = Duration::from_secs(10);
/// Watchers without a stream of their own.
pub(crate) const MAX_WATCHERS: usize = 8;

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct Room {
    pub held: Arc<Held>,
    processes: Mutex<HashMap<u32, Arc<Process>>>,
    watchers: Mutex<HashMap<String, Arc<Watcher>>>,
    /// Once the commands that a pause did not end are in the list.
    adopted: OnceCell<()>,
}

/// A user of the base template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Person {
    pub name: &'static str,
    pub user: User,
    pub home: &'static str,
}

/// Every user of the base template; the first is the default.
pub(crate) const PEOPLE: [Person; 2] = [
    Person { name: "user", user: User { uid: 1_000, gid: 1_000 }, home: "/home/user" },
    Person { name: "root", user: User { uid: 0, gid: 0 }, home: "/root" },
];

/// The user of this name; the default user without one.
pub(crate) fn person(name: Option<&str>) -> Result<Person, Fault> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or("user");
    let found = PEOPLE.into_iter().find(|person| person.name == name);
    found.ok_or_else(|| {
        let name: String = name.chars().take(64).collect();
        Fault::new("unauthenticated", format!("invalid username: '{name}'"))
    })
}

/// As whom a request acts: `Authorization: Basic base64("NAME:")`, or by default.
fn acting(headers: &HeaderMap, default: &str) -> Result<Person, Fault> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return person(Some(default)) };
    let name = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix("Basic "))
        .and_then(|text| STANDARD.decode(text).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.split_once(':').map(|(name, _)| name.to_owned()));
    match name {
        Some(name) => person(Some(&name)),
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

/// Variables of a command without a network: pip and npm would try again for a minute what cannot work.
const UNCONNECTED: [(&str, &str); 2] = [("PIP_RETRIES", "0"), ("npm_config_fetch_retries", "0")];

/// Environment of a command of this person.
pub(crate) fn environment(held: &Held, person: Person) -> BTreeMap<String, String> {
    let base = [
        ("PATH", USUAL_PATH),
        ("HOME", person.home),
        ("USER", person.name),
        ("LOGNAME", person.name),
        ("E2B_SANDBOX", "true"),
        ("E2B_SANDBOX_ID", held.id.as_str()),
    ];
    let alone = UNCONNECTED.into_iter().filter(|_| held.egress().is_none());
    let all = base.into_iter().chain(USUAL_VARIABLES).chain(alone);
    let mut env: BTreeMap<String, String> =
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.extend(held.env());
    env
}

impl Room {
    pub(crate) fn of(held: Arc<Held>) -> Arc<Self> {
        let adopted = OnceCell::new();
        Arc::new(Self { held, processes: Mutex::default(), watchers: Mutex::default(), adopted })
    }

    /// Enters the commands that a pause did not end, before anybody asks for one.
    pub(crate) async fn adopt(self: &Arc<Self>) {
        if self.held.went_on {
            self.adopted.get_or_init(|| adopt(self)).await;
        }
    }

    /// As whom a request acts: whom it names, or the user that the template chose.
    pub(crate) fn acting(&self, headers: &HeaderMap) -> Result<Person, Fault> {
        acting(headers, self.held.defaults().0.as_str())
    }

    /// The user of this name; without one, whom the template chose.
    pub(crate) fn person(&self, name: Option<&str>) -> Result<Person, Fault> {
        let name = name.filter(|name| !name.is_empty());
        person(name.or(Some(self.held.defaults().0.as_str())))
    }

    /// Where commands of this user run by default.
    pub(crate) fn cwd(&self, person: Person) -> &str {
        self.held.defaults().1.unwrap_or(person.home)
    }

    /// Whether a request may talk to envd.
    pub(crate) fn opens(&self, headers: &HeaderMap) -> bool {
        !self.held.is_revoked()
            && carried(headers, TOKEN).is_some_and(|token| is_same(token, &self.held.token))
    }

    /// So many of the agent's streams.
    pub(crate) async fn streams(&self, count: u32) -> Result<OwnedSemaphorePermit, Fault> {
        self.held.streams(count, PLACE_PATIENCE).await.ok_or_else(|| {
            let why = format!(
                "{STREAMS} streams of this sandbox are in use: one for each command, open input, watch, transfer and \
                 connection; end one"
            );
            Fault::new("resource_exhausted", why)
        })
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
            acting(&headers, "user").map(|person| person.name)
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
