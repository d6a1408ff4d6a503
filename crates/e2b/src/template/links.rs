//! Links for the files of builds: each is for one archive, and needs no key.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::id::{Digest, TemplateId, TenantId};
use cofferdam_flows::key_slots::KeySlots;

/// How long a link may be used: as long as clients give an upload.
pub(crate) const LIFE: Duration = Duration::from_secs(3_600);
/// Links of one tenant; the oldest goes for the next one. A build has at most as many steps.
const MAX_LINKS: usize = 512;
/// Uploads of one tenant at once: its quota is asked before each, and what is under way is not counted yet. Others wait.
pub(crate) const AT_ONCE: usize = 4;
/// Bytes of a link's secret.
const SECRET_BYTES: usize = 20;

/// Where one archive may be sent.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub tenant: TenantId,
    /// The key that asked for it: a link ends with its key.
    pub key: String,
    pub template: TemplateId,
    pub hash: Digest,
    pub since: Stopwatch,
}

/// The path of an archive, as a request names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArchivePath<'a> {
    pub template: &'a str,
    /// What the client calls the archive.
    pub hash: &'a str,
}

/// Links of this process, by their secret. A server that restarts has none: the client asks for the next one.
#[derive(Debug)]
pub(crate) struct Links {
    all: Mutex<HashMap<String, Link>>,
    /// Slots of each tenant that sent something.
    pub places: KeySlots<TenantId>,
}

impl Default for Links {
    fn default() -> Self {
        Self { all: Mutex::default(), places: KeySlots::of(AT_ONCE) }
    }
}

impl Links {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Link>> {
        // A poisoned lock only means that somebody panicked beside it; the map is whole.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, link: Link) -> String {
        let mut all = self.all();
        all.retain(|_, one| one.since.elapsed() < LIFE);
        let own = all.iter().filter(|(_, one)| one.tenant == link.tenant);
        let (count, oldest) = own.fold((0usize, None::<(&String, &Link)>), |(count, old), one| {
            let older = old.filter(|old| old.1.since.elapsed() >= one.1.since.elapsed());
            (count.saturating_add(1), older.or(Some(one)))
        });
        let over = oldest.filter(|_| count >= MAX_LINKS).map(|(secret, _)| secret.clone());
        if let Some(secret) = over {
            all.remove(&secret);
        }
        let secret = secret_hex(SECRET_BYTES);
        all.insert(secret.clone(), link);
        secret
    }

    /// The link of this secret, for this path.
    pub(crate) fn find(&self, secret: &str, path: ArchivePath<'_>) -> Option<Link> {
        let found = self.all().get(secret).cloned()?;
        let fits = found.template.as_str() == path.template && found.hash.as_str() == path.hash;
        (fits && found.since.elapsed() < LIFE).then_some(found)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn link(tenant: &str) -> Link {
        Link {
            tenant: TenantId::parse(tenant).unwrap(),
            key: "k".to_owned(),
            template: TemplateId::parse(&"t".repeat(20)).unwrap(),
            hash: Digest::parse(&"a".repeat(64)).unwrap(),
            since: Stopwatch::start(),
        }
    }

    #[test]
    fn a_link_is_for_one_archive_and_a_tenant_has_so_many() {
        let links = Links::default();
        let (template, hash) = ("t".repeat(20), "a".repeat(64));
        let first = links.add(link("ann"));
        let path = ArchivePath { template: &template, hash: &hash };
        assert!(links.find(&first, path).is_some());
        let other = "b".repeat(64);
        assert!(links.find(&first, ArchivePath { hash: &other, ..path }).is_none());
        let other = "u".repeat(20);
        assert!(links.find(&first, ArchivePath { template: &other, ..path }).is_none());
        assert!(links.find("", path).is_none());
        let other = links.add(link("bob"));
        for _ in 0..MAX_LINKS {
            links.add(link("ann"));
        }
        assert!(links.find(&first, path).is_none());
        assert!(links.find(&other, path).is_some());
        assert_eq!(links.all().len(), MAX_LINKS + 1);
    }
}
