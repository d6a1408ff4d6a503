//! Which ids of the host are for sandboxes.

use std::fs;

use cofferdam_ambient::env;

/// Ids of one range: as many as a system has by convention.
pub(crate) const COUNT: u32 = cofferdam_guest::upper::IDS;

/// `FIRST:COUNT`, or `off`.
const VARIABLE: &str = "COFFERDAM_ID_RANGE";
/// Where the operator says nothing: behind what systemd gives its containers (0x00080000 to 0x6fffffff), and below the
/// half in which programs take an id for a negative number. 4,096 ranges.
const DEFAULT: Region = Region { first: 0x7000_0000, count: 0x1000_0000 };
/// Ids below are a system's own.
const LEAST: u32 = 65_536;

/// Ids of the host that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    first: u32,
    count: u32,
}

impl Region {
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Number of whole ranges of [`COUNT`] ids in the region.
    pub(super) fn ranges(&self) -> u32 {
        self.count / COUNT
    }

    fn is_whole(self) -> bool {
        self.first >= LEAST && self.count >= COUNT && self.first.checked_add(self.count).is_some()
    }

    fn has(self, id: u32) -> bool {
        id >= self.first && id - self.first < self.count
    }
}

/// The first id of the range of this number.
pub(super) fn nth(regions: &[Region], mut number: u32) -> Option<u32> {
    for region in regions {
        if number < region.ranges() {
            return Some(region.first + number * COUNT);
        }
        number -= region.ranges();
    }
    None
}

/// The operator's, else root's subordinate ids, else the default; why none, otherwise.
pub(super) fn find() -> Result<Vec<Region>, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (uids, gids) = (read("/etc/subuid"), read("/etc/subgid"));
    let known = [read("/etc/passwd"), read("/etc/group")];
    decide(env::var(VARIABLE).as_deref(), &uids, &gids, &known)
}

/// The same of what was read. Pure.
fn decide(
    said: Option<&str>,
    uids: &str,
    gids: &str,
    known: &[String],
) -> Result<Vec<Region>, String> {
    match said {
        Some("off") => return Err(format!("{VARIABLE}=off")),
        Some(text) => {
            let region = parse(text).filter(|region| region.is_whole());
            let wanted =
                format!("{VARIABLE} must be FIRST:COUNT with at least {COUNT} ids from {LEAST} on");
            return region.map(|region| vec![region]).ok_or(wanted);
        }
        None => {}
    }
    let of = |text: &str, name: &str| -> Vec<Region> {
        let mine = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        mine.filter_map(parse).filter(|region| region.is_whole()).collect()
    };
    let gids_of_root = of(gids, "root");
    let roots: Vec<Region> =
        of(uids, "root").into_iter().filter(|region| gids_of_root.contains(region)).collect();
    if !roots.is_empty() {
        return Ok(roots);
    }
    let taken = |id: u32| DEFAULT.has(id);
    let users = known.iter().flat_map(|text| text.lines());
    let users = users.filter_map(|line| line.split(':').nth(2)?.parse().ok());
    let others = uids.lines().chain(gids.lines()).filter_map(|line| parse(line.split_once(':')?.1));
    let met = users.into_iter().any(taken)
        || others.into_iter().any(|other| taken(other.first) || other.has(DEFAULT.first));
    match met {
        true => Err(format!("another user owns ids from {} on; set {VARIABLE}", DEFAULT.first)),
        false => Ok(vec![DEFAULT]),
    }
}

fn parse(text: &str) -> Option<Region> {
    let (first, count) = text.trim().split_once(':')?;
    Some(Region { first: first.parse().ok()?, count: count.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(said: Option<&str>, uids: &str, gids: &str, passwd: &str) -> Option<Vec<(u32, u32)>> {
        let found = decide(said, uids, gids, &[passwd.to_owned()]).ok()?;
        Some(found.iter().map(|region| (region.first, region.count)).collect())
    }

    #[test]
    fn the_operator_comes_first_then_roots_own_ids_then_the_default() {
        let default = (DEFAULT.first, DEFAULT.count);
        assert_eq!(of(Some("200000:131072"), "", "", ""), Some(vec![(200_000, 131_072)]));
        assert_eq!(of(Some("off"), "", "", ""), None);
        for wrong in ["1000:65536", "200000:65535", "200000", "4294901760:65537", ""] {
            assert_eq!(of(Some(wrong), "", "", ""), None, "{wrong}");
        }
        let subs = "user:100000:65536\nroot:300000:65536\n";
        assert_eq!(of(None, subs, subs, ""), Some(vec![(300_000, 65_536)]));
        assert_eq!(of(None, subs, "user:100000:65536\n", ""), Some(vec![default]));
        assert_eq!(of(None, "", "", "x:x:1879048200:1::/:/bin/sh"), None);
        assert_eq!(of(None, "u:1879048192:65536", "", ""), None);
        assert_eq!(of(None, "u:1000000000:2000000000", "", ""), None);
    }

    #[test]
    fn every_range_has_a_number_and_none_overlaps() {
        let regions = [Region { first: 100_000, count: 140_000 }, DEFAULT];
        let first = |number| nth(&regions, number);
        assert_eq!((first(0), first(1)), (Some(100_000), Some(165_536)));
        assert_eq!((first(2), first(4_097)), (Some(0x7000_0000), Some(0x7fff_0000)));
        assert_eq!(first(4_098), None);
    }
}
