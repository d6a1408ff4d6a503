//! Which bases of the dependency cache a host gives up. Pure: rows and names in, removals out.

use std::collections::BTreeSet;

use cofferdam_contracts::id::Digest;
use cofferdam_ledger::cache::{CacheRow, EvictionReason};

/// Bytes of all bases of one state directory: a few dozen of common size, and a part of a small
/// server's disk that it does not miss.
const MAX_TOTAL_BYTES: u64 = 16 << 30;
/// A base that nobody had for two weeks belongs to a lock file that nobody has any more.
const MAX_IDLE_MS: i64 = 14 * 24 * 3_600_000;

/// What the bases of a state directory are held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictBounds {
    /// Bytes of all of them.
    pub total_bytes: u64,
    /// How long nobody may have had one.
    pub idle_ms: i64,
}

impl Default for EvictBounds {
    fn default() -> Self {
        Self { total_bytes: MAX_TOTAL_BYTES, idle_ms: MAX_IDLE_MS }
    }
}

/// A base that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Eviction {
    pub key: Digest,
    /// Its row; `None`: no row vouches for it, so nobody may have it.
    pub entry: Option<i64>,
    pub why: EvictionReason,
}

/// The rows come with the longest unused first; `on_disk` was listed after them.
pub(crate) fn evictions(
    rows: &[CacheRow],
    on_disk: &BTreeSet<String>,
    bounds: EvictBounds,
) -> Vec<Eviction> {
    let mut gone = Vec::new();
    let mut total: u64 = rows.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
    for row in rows {
        let why = match () {
            () if row.doomed => EvictionReason::Asked,
            () if !on_disk.contains(row.key.as_str()) => EvictionReason::Missing,
            () if row.idle_ms >= bounds.idle_ms => EvictionReason::Age,
            () if total > bounds.total_bytes => EvictionReason::Size,
            () => continue,
        };
        total = total.saturating_sub(row.bytes);
        gone.push(Eviction { key: row.key.clone(), entry: Some(row.entry_id), why });
    }
    let known: BTreeSet<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    let unknown = on_disk.iter().filter(|key| !known.contains(key.as_str()));
    gone.extend(unknown.filter_map(|key| {
        let key = Digest::parse(key).ok()?;
        Some(Eviction { key, entry: None, why: EvictionReason::Missing })
    }));
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::canonical::digest_bytes;

    const BOUNDS: EvictBounds = EvictBounds { total_bytes: 100, idle_ms: 1_000 };

    fn row(entry_id: i64, bytes: u64, idle_ms: i64, doomed: bool) -> CacheRow {
        let key = digest_bytes(&entry_id.to_be_bytes());
        CacheRow { entry_id, key, bytes, idle_ms, doomed }
    }

    fn disk(rows: &[CacheRow]) -> BTreeSet<String> {
        rows.iter().map(|row| row.key.to_string()).collect()
    }

    fn gone(rows: &[CacheRow], on_disk: &BTreeSet<String>) -> Vec<(Option<i64>, EvictionReason)> {
        evictions(rows, on_disk, BOUNDS).into_iter().map(|e| (e.entry, e.why)).collect()
    }

    #[test]
    fn the_longest_unused_goes_first_until_the_rest_fits() {
        let rows = [row(1, 60, 900, false), row(2, 60, 500, false), row(3, 40, 1, false)];
        assert_eq!(gone(&rows, &disk(&rows)), [(Some(1), EvictionReason::Size)]);
        let rows = [row(1, 60, 900, false), row(2, 40, 500, false)];
        assert_eq!(gone(&rows, &disk(&rows)), [], "exactly the bound fits");
    }

    #[test]
    fn age_and_a_wish_count_whatever_the_size() {
        let rows = [row(1, 1, 1_000, false), row(2, 1, 999, false), row(3, 1, 0, true)];
        let want = [(Some(1), EvictionReason::Age), (Some(3), EvictionReason::Asked)];
        assert_eq!(gone(&rows, &disk(&rows)), want);
    }

    #[test]
    fn the_disk_says_what_is_there_and_the_rows_whose_it_is() {
        let rows = [row(1, 90, 5, false), row(2, 90, 4, false)];
        let mut on_disk = disk(&rows[1..]);
        on_disk.insert(digest_bytes(b"nobody's").to_string());
        on_disk.insert("no key at all".into());
        let want = [(Some(1), EvictionReason::Missing), (None, EvictionReason::Missing)];
        assert_eq!(gone(&rows, &on_disk), want, "what is missing takes no room");
    }
}
