//! The HTTP clients of providers: connections are kept, nothing is sent twice, no redirect is followed.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder};

use crate::outbound::{PublicResolver, Reach};

/// Until a connection to a provider stands.
const CONNECT: Duration = Duration::from_secs(10);
/// Idle connections to one provider.
const IDLE: usize = 32;

/// Clients by what they may reach; each is made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    public: OnceLock<Option<Client>>,
    private: OnceLock<Option<Client>>,
}

impl Clients {
    /// `private`: the host's own admin wrote the address, so it may be one of this host, and is reached as the worker's
    /// environment says.
    pub(crate) fn get(&self, private: bool) -> Option<&Client> {
        let slot = if private { &self.private } else { &self.public };
        let made = slot.get_or_init(|| {
            let builder = match private {
                true => builder().dns_resolver(PublicResolver(Reach::Private)),
                false => builder().no_proxy().dns_resolver(PublicResolver(Reach::Public)),
            };
            builder
                .build()
                .inspect_err(|error| tracing::error!(%error, "no client for providers of models"))
                .ok()
        });
        made.as_ref()
    }
}

fn builder() -> ClientBuilder {
    // A second call changes nothing: one provider is enough for all of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT)
        .pool_max_idle_per_host(IDLE)
        .tcp_nodelay(true)
        .http1_only()
}
