//! Users of the base template, and the environment of their commands.

use std::collections::BTreeMap;

use cofferdam_contracts::id::LiveId;
use cofferdam_sandbox::USUAL_PATH;
use cofferdam_sandbox::inside::User;

use crate::guest::state::GuestEnvironment;
use crate::template::program::USUAL_VARIABLES;

/// A user of the base template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: &'static str,
    /// Its numbers.
    pub user: User,
    /// Its home directory.
    pub home: &'static str,
}

/// Every user of the base template; the first is the default.
pub const ACCOUNTS: [Account; 2] = [
    Account { name: "user", user: User { uid: 1_000, gid: 1_000 }, home: "/home/user" },
    Account { name: "root", user: User { uid: 0, gid: 0 }, home: "/root" },
];

/// Variables of a command without a network: pip and npm would try again for a minute what cannot work.
const UNCONNECTED: [(&str, &str); 2] = [("PIP_RETRIES", "0"), ("npm_config_fetch_retries", "0")];

impl Account {
    /// The user of this name; the default one without a name.
    ///
    /// # Errors
    /// In words: there is none of this name.
    pub fn named(name: Option<&str>) -> Result<Self, String> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("user");
        let found = ACCOUNTS.into_iter().find(|account| account.name == name);
        found.ok_or_else(|| {
            let name: String = name.chars().take(64).collect();
            format!("invalid username: '{name}'")
        })
    }

    /// Environment of a command that this user runs in a sandbox. Pure.
    #[must_use]
    pub fn environment(
        self,
        sandbox: &LiveId,
        inside: GuestEnvironment,
    ) -> BTreeMap<String, String> {
        let base = [
            ("PATH", USUAL_PATH),
            ("HOME", self.home),
            ("USER", self.name),
            ("LOGNAME", self.name),
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", sandbox.as_str()),
        ];
        let alone = UNCONNECTED.into_iter().filter(|_| !inside.is_connected);
        let all = base.into_iter().chain(USUAL_VARIABLES).chain(alone);
        let mut env: BTreeMap<String, String> =
            all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        env.extend(inside.variables);
        env
    }
}
