//! Users of the base template, and what their commands find in their environment.

use std::collections::BTreeMap;

use cofferdam_contracts::template_build::TemplateUser;
use cofferdam_sandbox::USUAL_PATH;
use cofferdam_sandbox::inside::User;

/// Variables of every command of a long-lived sandbox: letters are UTF-8, and nothing in a sandbox but its own user manages
/// its packages.
const USUAL_VARIABLES: [(&str, &str); 2] =
    [("LANG", "C.UTF-8"), ("PIP_BREAK_SYSTEM_PACKAGES", "1")];

/// A user of the base template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// User name in the sandbox: `user` or `root`.
    pub name: &'static str,
    /// User and group id, both 1000 for `user` and 0 for `root`.
    pub user: User,
    /// Its home directory.
    pub home: &'static str,
}

impl Account {
    /// The account of a user that a template can name.
    #[must_use]
    pub const fn of(user: TemplateUser) -> Self {
        let id = match user {
            TemplateUser::User => 1_000,
            TemplateUser::Root => 0,
        };
        Self { name: user.as_str(), user: User { uid: id, gid: id }, home: user.home() }
    }

    /// The user of this name; the default one without a name.
    ///
    /// # Errors
    /// In words: there is none of this name.
    pub fn named(name: Option<&str>) -> Result<Self, String> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(Self::of(TemplateUser::User));
        };
        TemplateUser::parse(name).map(Self::of).ok_or_else(|| {
            let name: String = name.chars().take(64).collect();
            format!("invalid username: '{name}'")
        })
    }

    /// What every command of this user finds in its environment.
    pub(crate) fn environment(self) -> BTreeMap<String, String> {
        let own = [
            ("PATH", USUAL_PATH),
            ("HOME", self.home),
            ("USER", self.name),
            ("LOGNAME", self.name),
            ("E2B_SANDBOX", "true"),
        ];
        let all = own.into_iter().chain(USUAL_VARIABLES);
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}
