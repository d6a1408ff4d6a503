//! As whom a request acts.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_live::{Account, ReadEnvironment};

use crate::connect::fault::Fault;
use crate::envd::paths::unavailable;
use crate::envd::state::Envd;

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

impl Envd {
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

    /// Environment of a command of this user.
    pub(crate) async fn environment(
        &self,
        account: Account,
    ) -> Result<BTreeMap<String, String>, Fault> {
        let inside = self.guest.ask(ReadEnvironment).await.map_err(|error| unavailable(&error))?;
        Ok(inside.of(account, &self.guest.facts.id))
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
}
