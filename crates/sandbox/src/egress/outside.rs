//! Names that the worker itself asks in the place of a sandbox: they lead where the sandbox's proxy would go.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::net::lookup_host;

use super::dial::is_forbidden;
use super::policy::Name;

/// Where names lead from this host.
#[derive(Debug, Clone, Default)]
pub struct OutsideNames {
    hosts: BTreeMap<String, SocketAddr>,
}

/// Why a name is not asked.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// Not a domain name, as lists of egress have it.
    #[error("{0:?} is not a domain name")]
    Name(String),
    /// It leads where no sandbox may go.
    #[error("{0} leads to an address that sandboxes must not reach")]
    Forbidden(String),
    /// The host's resolver does not know it.
    #[error("{name} cannot be resolved")]
    Resolve {
        /// Name that was asked.
        name: String,
        /// Error of the resolver.
        source: std::io::Error,
    },
}

impl OutsideNames {
    /// As the host's resolver says, but for the names of the operator's table.
    #[must_use]
    pub const fn new(hosts: BTreeMap<String, SocketAddr>) -> Self {
        Self { hosts }
    }

    /// Whether the operator's table says where a name is: then no proxy is asked for it.
    #[must_use]
    pub fn is_pinned(&self, name: &str) -> bool {
        self.hosts.contains_key(name)
    }

    /// Its addresses, with the table's port or none (0).
    ///
    /// # Errors
    /// [`OutsideError`].
    pub async fn addresses(&self, name: &str) -> Result<Vec<SocketAddr>, OutsideError> {
        if Name::parse(name).is_none() {
            return Err(OutsideError::Name(name.to_owned()));
        }
        if let Some(address) = self.hosts.get(name) {
            return Ok(vec![*address]);
        }
        let found = lookup_host((name, 0)).await;
        let found =
            found.map_err(|source| OutsideError::Resolve { name: name.to_owned(), source })?;
        let addresses: Vec<SocketAddr> = found.collect();
        match addresses.iter().any(|address| is_forbidden(address.ip(), false)) {
            true => Err(OutsideError::Forbidden(name.to_owned())),
            false => Ok(addresses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_leads_where_the_table_says_and_never_to_this_host() {
        let here: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let names = OutsideNames::new(BTreeMap::from([("git.example".to_owned(), here)]));
        assert_eq!(names.addresses("git.example").await.unwrap(), [here]);
        for name in ["127.0.0.1", "a b", ""] {
            assert!(matches!(names.addresses(name).await, Err(OutsideError::Name(_))), "{name}");
        }
        let refused = names.addresses("localhost").await;
        assert!(matches!(refused, Err(OutsideError::Forbidden(_) | OutsideError::Name(_))));
    }
}
