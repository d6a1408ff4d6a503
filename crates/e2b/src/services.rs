//! What the services of E2B's API share: who holds sandboxes, and what is known of each that was talked to.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::id::{LiveId, RunId};
use cofferdam_flows::{Error, Flows};
use cofferdam_http::Site;
use cofferdam_live::{AllGuests, FindAnyGuest, Guest, LiveClient};

use crate::envd::state::Envd;
use crate::template::links::Links;

/// What serves E2B's clients.
#[derive(Debug)]
pub(crate) struct Services {
    pub flows: Flows,
    /// Who holds sandboxes.
    pub live: LiveClient,
    /// The server's address.
    pub site: Site,
    /// What is known of each sandbox that was talked to: its processes and watchers.
    envds: Mutex<HashMap<LiveId, Arc<Envd>>>,
    /// Where files for builds may be sent.
    pub links: Links,
}

impl Services {
    pub(crate) fn new(flows: Flows, live: LiveClient, site: Site) -> Self {
        Self { flows, live, site, envds: Mutex::default(), links: Links::default() }
    }

    /// A running sandbox, by its id.
    pub(crate) async fn envd(&self, id: &LiveId) -> Result<Option<Arc<Envd>>, Error> {
        let known = self.envds().get(id).map(|envd| envd.guest.facts.run.clone());
        let Some(guest) = self.live.ask(FindAnyGuest { id: id.clone() }).await? else {
            let mut envds = self.envds();
            // Another life of it may have been entered meanwhile.
            if envds.get(id).map(|envd| &envd.guest.facts.run) == known.as_ref() {
                envds.remove(id);
            }
            return Ok(None);
        };
        if known.is_none() {
            self.clean_up().await;
        }
        Ok(Some(self.entered(guest)))
    }

    /// The running sandbox whose token, which still holds, is one of these.
    pub(crate) async fn with_token(
        &self,
        is_one: impl Fn(&str) -> bool + Send,
    ) -> Result<Option<Arc<Envd>>, Error> {
        let all = self.live.ask(AllGuests).await?;
        let mut open = all.into_iter().filter(|guest| !guest.is_revoked());
        match open.find(|guest| is_one(&guest.facts.token)) {
            Some(guest) => self.envd(&guest.facts.id).await,
            None => Ok(None),
        }
    }

    /// What is known of a sandbox that runs.
    fn entered(&self, guest: Guest) -> Arc<Envd> {
        let mut envds = self.envds();
        let envd = envds.entry(guest.facts.id.clone());
        let envd = envd.or_insert_with(|| Envd::of(guest.clone()));
        // A sandbox that was paused has another life.
        if envd.guest.facts.run != guest.facts.run {
            *envd = Envd::of(guest);
        }
        Arc::clone(envd)
    }

    /// Forgets sandboxes that are over.
    pub(crate) async fn clean_up(&self) {
        // Only those that were there before it is asked who runs: one that is entered meanwhile stays.
        let known: HashSet<RunId> =
            self.envds().values().map(|envd| envd.guest.facts.run.clone()).collect();
        let Ok(all) = self.live.ask(AllGuests).await else { return };
        let running: HashSet<&RunId> = all.iter().map(|guest| &guest.facts.run).collect();
        let is_over = |run: &RunId| known.contains(run) && !running.contains(run);
        self.envds().retain(|_, envd| !is_over(&envd.guest.facts.run));
    }

    fn envds(&self) -> MutexGuard<'_, HashMap<LiveId, Arc<Envd>>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.envds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
