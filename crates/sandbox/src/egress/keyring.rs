//! The secrets of one sandbox's proxy: opened by the worker for a request, held for a moment, counted.
//!
//! ```text
//! request -> held for less than HOLD_MS? -> added
//!               \-- no: source.open (the ledger: in force? this tenant's, for this host, consented to?
//!                       the use is on record before anything is sent)
//! ```
//! A value that was rotated or removed is therefore in force in a running sandbox within [`HOLD_MS`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::sandbox::Phase;
use cofferdam_contracts::secret::{OpenSecret, SecretUse};
use hyper::header::{HeaderName, HeaderValue};
use rustls::ClientConfig;
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::authority::CertificateAuthority;
use super::body_screen::Needles;

/// How long an opened value serves without a look at the ledger.
const HOLD_MS: u64 = 1_000;

/// What a [`SecretSource`] answers with.
pub type SecretFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Requests that carried a version since its last count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretVersionCount {
    /// Version of the secret that the requests carried.
    pub version: u32,
    /// Number of those requests, at least 1.
    pub count: u64,
}

/// Opens secrets for the proxy of one sandbox, and records their uses.
pub trait SecretSource: Debug + Send + Sync {
    /// The version in force, with one use of it on record; `sent` is counted too. `Err`: why it may not be
    /// used, for the operator.
    fn open<'a>(
        &'a self,
        phase: Phase,
        used: &'a SecretUse,
        sent: Option<SecretVersionCount>,
    ) -> SecretFuture<'a, Result<OpenSecret, String>>;

    /// Counts uses at the end of a phase.
    fn count<'a>(
        &'a self,
        phase: Phase,
        used: &'a SecretUse,
        sent: SecretVersionCount,
    ) -> SecretFuture<'a, ()>;
}

/// A header with a secret in it, and what must not come back.
#[derive(Debug)]
pub(crate) struct SecretHeader {
    pub name: HeaderName,
    pub value: HeaderValue,
    pub needles: Needles,
}

impl SecretHeader {
    fn new(used: &SecretUse, opened: &OpenSecret) -> Option<Self> {
        let filled = used.form.filled(&opened.value);
        let mut value = HeaderValue::from_bytes(&filled).ok()?;
        value.set_sensitive(true);
        let mut needles = Needles::of(opened.value.expose());
        // What basic authentication encodes is the secret in other letters.
        if let Some(encoded) = filled.strip_prefix(b"Basic ") {
            needles.add(Arc::new(Zeroizing::new(encoded.to_vec())));
        }
        Some(Self { name: used.form.header().parse().ok()?, value, needles })
    }
}

#[derive(Debug)]
struct CachedSecret {
    added: Arc<SecretHeader>,
    version: u32,
    opened: Stopwatch,
    /// Requests since its last count.
    sent: u64,
}

impl CachedSecret {
    fn sent(&self) -> Option<SecretVersionCount> {
        (self.sent > 0).then_some(SecretVersionCount { version: self.version, count: self.sent })
    }
}

/// The secrets of one sandbox, and how TLS is ended for their hosts and for mirrors.
#[derive(Debug)]
pub(crate) struct Keyring {
    pub authority: CertificateAuthority,
    /// What the proxy trusts when it goes on to a host that gets a secret.
    pub tls: Arc<ClientConfig>,
    source: OnceLock<Arc<dyn SecretSource>>,
    held: Mutex<BTreeMap<(Phase, SecretUse), CachedSecret>>,
}

impl Keyring {
    pub(crate) fn new(authority: CertificateAuthority, tls: Arc<ClientConfig>) -> Self {
        Self { authority, tls, source: OnceLock::new(), held: Mutex::default() }
    }

    /// From whom secrets come; before, no request that needs one passes.
    pub(crate) fn set_source(&self, source: Arc<dyn SecretSource>) {
        // A second one would be the same worker's for the same task.
        let _ = self.source.set(source);
    }

    /// What is added to one request of these uses; `None`: one of them cannot be used now.
    pub(crate) async fn added(
        &self,
        phase: Phase,
        uses: &[SecretUse],
    ) -> Option<Vec<Arc<SecretHeader>>> {
        // Held while the ledger is asked, so that a hundred requests ask it once.
        let mut held = self.held.lock().await;
        let mut all = Vec::with_capacity(uses.len());
        for used in uses {
            let key = (phase, used.clone());
            if let Some(known) = held.get_mut(&key)
                && known.opened.elapsed_ms() < HOLD_MS
            {
                known.sent = known.sent.saturating_add(1);
                all.push(Arc::clone(&known.added));
                continue;
            }
            let sent = held.remove(&key).and_then(|known| known.sent());
            let source = self.source.get()?;
            let opened = match source.open(phase, used, sent).await {
                Ok(opened) => opened,
                Err(why) => {
                    tracing::info!(secret = %used.name, host = %used.host, why, "a secret cannot be used");
                    return None;
                }
            };
            let added = Arc::new(SecretHeader::new(used, &opened)?);
            all.push(Arc::clone(&added));
            let opened = CachedSecret {
                added,
                version: opened.version,
                opened: Stopwatch::start(),
                sent: 0,
            };
            held.insert(key, opened);
        }
        Some(all)
    }

    /// Counts what is not counted yet, and forgets every value.
    pub(crate) async fn settle(&self) {
        let held = std::mem::take(&mut *self.held.lock().await);
        let Some(source) = self.source.get() else { return };
        for ((phase, used), known) in held {
            if let Some(sent) = known.sent() {
                source.count(phase, &used, sent).await;
            }
        }
    }
}
