//! Where the times of a file tell of every change to it.
//!
//! The kernel moves mtime and ctime before `write(2)` changes a file. Of memory that a program maps it moves them as a page is first
//! written to, and again only after the page was written back: a file whose times are older than that is what it was when they were taken.
//! A file system that keeps its files in memory writes nothing back, and moves no time again.

use std::fs;
use std::os::fd::AsFd;

use rustix::fs::fstatfs;

use super::fill::SETTLE_MS;

/// File systems with this host's own clock that write back, by the number that `statfs(2)` gives: ext4, XFS, btrfs, f2fs, ZFS. Not
/// overlayfs, which may lie on one that does not.
const WRITTEN_BACK: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1];
/// After so many hundredths of a second a changed page is to be written back.
const EXPIRE: &str = "/proc/sys/vm/dirty_expire_centisecs";
/// The kernel looks for such pages this often; 0: never.
const INTERVAL: &str = "/proc/sys/vm/dirty_writeback_centisecs";
/// Time that the writing itself may take.
const WRITE_MS: i64 = 20_000;

/// Whether they do so of what is open, on this host as it is set up.
pub(super) fn tell_of_changes(opened: impl AsFd) -> bool {
    let is_written_back = fstatfs(opened).is_ok_and(|found| is_written_back(found.f_type));
    let setting = |at| fs::read_to_string(at).ok()?.trim().parse::<i64>().ok();
    is_written_back
        && setting(EXPIRE)
            .zip(setting(INTERVAL))
            .is_some_and(|(expire, interval)| is_soon(expire, interval))
}

fn is_written_back(kind: i64) -> bool {
    u64::try_from(kind).is_ok_and(|kind| WRITTEN_BACK.contains(&kind))
}

fn is_soon(expire: i64, interval: i64) -> bool {
    let ms = expire.saturating_add(interval).saturating_mul(10).saturating_add(WRITE_MS);
    expire >= 0 && interval > 0 && ms <= SETTLE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_pages_are_written_back_within_the_minute() {
        assert!(is_soon(3_000, 500), "as Linux is set up");
        for (expire, interval) in [(3_000, 0), (60_000, 500), (3_000, 60_000), (i64::MAX, 1)] {
            assert!(!is_soon(expire, interval), "{expire} {interval}");
        }
        let tmpfs = 0x0102_1994;
        assert!(is_written_back(0xef53) && !is_written_back(tmpfs));
    }
}
