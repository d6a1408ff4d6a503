//! The owner of a project as the user of a sandbox.
//!
//! ```text
//! file system:   owner   user    everybody else
//!                     \ /             |
//! sandbox:       owner   user    as they are
//! ```
//! What belongs to the owner of a project's top directory belongs inside to whom the task runs as. The map is one to one, so
//! what belongs to that user's number outside belongs to the owner's number inside.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use cofferdam_guest::wire::User;

use super::region::COUNT;
use super::{IdRange, space};

/// Ids of a host without ranges: all that the kernel has.
const ALL: u32 = u32::MAX;

/// A namespace whose map exchanges the two; `taken` are the ids of the sandbox, where it has some of its own. `holder` is the
/// agent's program.
pub(crate) fn exchanged(
    holder: &Path,
    taken: Option<&IdRange>,
    owner: User,
    user: User,
) -> io::Result<OwnedFd> {
    let (first, count) = taken.map_or((0, ALL), |taken| (taken.first, COUNT));
    let uids = map(first, count, owner.uid, user.uid);
    space::made(holder, &uids, &map(first, count, owner.gid, user.gid), 0)
}

/// The lines of a map: ids of the file system, ids of the host that the sandbox has for them, and how many. Pure.
fn map(first: u32, count: u32, owner: u32, user: u32) -> String {
    let mut lines = vec![(owner, user, 1)];
    // An owner beyond the range has no number inside that the other one could get.
    if user != owner && owner < count {
        lines.push((user, owner, 1));
    }
    let mut from = 0;
    for cut in [owner.min(user), owner.max(user)].into_iter().filter(|cut| *cut < count) {
        if cut > from {
            lines.push((from, from, cut - from));
        }
        from = from.max(cut + 1);
    }
    if from < count {
        lines.push((from, from, count - from));
    }
    let line = |(outside, inside, many): (u32, u32, u32)| {
        format!("{outside} {} {many}\n", first.saturating_add(inside))
    };
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a map makes of an id.
    fn shown(map: &str, id: u32) -> Vec<u32> {
        let lines = map.lines().map(|line| {
            let numbers: Vec<u32> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            (numbers[0], numbers[1], numbers[2])
        });
        let has = |(from, to, many): (u32, u32, u32)| {
            let step = id.checked_sub(from)?;
            (step < many).then(|| to + step)
        };
        lines.filter_map(has).collect()
    }

    #[test]
    fn owner_and_user_are_exchanged_and_everybody_else_stays() {
        for (owner, user) in [(1_000, 33), (33, 1_000), (0, 1_000), (65_535, 1), (7, 8), (5, 5)] {
            let map = map(100_000, COUNT, owner, user);
            for id in [0, 1, 5, 6, 7, 8, 9, 32, 33, 34, 999, 1_000, 1_001, 65_534, 65_535] {
                let other = if id == owner {
                    user
                } else if id == user {
                    owner
                } else {
                    id
                };
                assert_eq!(shown(&map, id), [100_000 + other], "{owner} {user} {id}: {map}");
            }
            assert!(shown(&map, COUNT).is_empty());
        }
    }

    #[test]
    fn an_owner_beyond_the_range_is_shown_as_the_user() {
        let map = map(100_000, COUNT, 1_500_000, 1_000);
        assert_eq!(shown(&map, 1_500_000), [101_000]);
        assert!(shown(&map, 1_000).is_empty());
        assert_eq!(shown(&map, 999), [100_999]);
    }

    #[test]
    fn a_host_without_ranges_keeps_all_ids() {
        let map = map(0, ALL, 0, 1_000);
        assert_eq!((shown(&map, 0), shown(&map, 1_000)), (vec![1_000], vec![0]));
        assert_eq!(shown(&map, 4_000_000_000), [4_000_000_000]);
    }
}
