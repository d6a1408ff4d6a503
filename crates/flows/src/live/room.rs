//! Room for what is kept of a sandbox, in bytes as they are stored: what its tenant's quota leaves, and the disk, of which a
//! part is the database's. It is asked for before anything is stopped, and holds while it is written.

use std::io::{self, Write};
use std::path::Path;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use cofferdam_sandbox::KeepError;
use rustix::fs::statvfs;

use super::refuse;
use crate::Flows;
use crate::error::{Error, Result};

/// Of the state directory's disk nothing that is kept takes the last bytes: a tenth of it, at most so many.
const OTHERS: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// How much may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptRoom {
    quota: u64,
    disk: u64,
}

impl KeptRoom {
    /// Bytes that may be written.
    pub(super) fn most(self) -> u64 {
        self.quota.min(self.disk)
    }

    /// An error of writing: one that is this room's end says which.
    pub(super) fn fault(self, why: &io::Error) -> Error {
        match why.kind() {
            io::ErrorKind::FileTooLarge => self.lacks().into(),
            _ if is_displaced(why) => refuse(ErrorCode::StateConflict, why.to_string()),
            _ => refuse(ErrorCode::Unavailable, why.to_string()),
        }
    }

    fn lacks(self) -> Refusal {
        if self.quota <= self.disk {
            let left = shown(self.quota);
            let why = format!(
                "the sandbox's files cannot be kept: the tenant's quota.blobs_mb leaves {left}, and they take more; remove \
                 snapshots, or ask the host's admin to raise it"
            );
            return Refusal::new(ErrorCode::QueuePolicyViolation, why);
        }
        let left = shown(self.disk);
        let why = format!(
            "the sandbox's files cannot be kept: this host's disk has {left} for them, and they take more; try again later"
        );
        Refusal::new(ErrorCode::Unavailable, why)
    }
}

/// Whether a directory that every sandbox has is something else in these files.
fn is_displaced(why: &io::Error) -> bool {
    let inner = why.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(KeepError::Displaced(_)))
}

/// So many bytes, for people.
fn shown(bytes: u64) -> String {
    match bytes / MIB {
        0..10 => format!("{} KiB", bytes / 1024),
        mib => format!("{mib} MiB"),
    }
}

/// Bytes of a disk that may be used, of so many in all. Pure.
fn usable(free: u64, all: u64) -> u64 {
    free.saturating_sub(OTHERS.min(all / 10))
}

/// Room on the disk of a directory.
pub(super) fn on_disk(dir: &Path) -> io::Result<u64> {
    let found = statvfs(dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(usable(bytes(found.f_bavail), bytes(found.f_blocks)))
}

impl Flows {
    /// What may be kept of this tenant's sandboxes now; refuses where its quota is full.
    pub(super) async fn kept_room(&self, tenant: &TenantId) -> Result<KeptRoom> {
        let shelf = self.shelf()?;
        let disk = super::kept::blocking(move || {
            shelf.make()?;
            on_disk(shelf.dir())
        });
        let rest = self.ledger.runs().quota_rest(tenant);
        let (admitted, disk, quota) = tokio::join!(self.quota_admit(tenant), disk, rest);
        admitted?;
        let disk = disk.map_err(|why| refuse(ErrorCode::Unavailable, why.to_string()))?;
        Ok(KeptRoom { quota: quota?, disk })
    }
}

/// A writer that takes so many bytes, and then fails as a file that is too large.
#[derive(Debug)]
pub(super) struct Bounded<W> {
    out: W,
    left: u64,
}

impl<W> Bounded<W> {
    pub(super) fn new(out: W, most: u64) -> Self {
        Self { out, left: most }
    }
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let left = self.left.checked_sub(size).ok_or(io::ErrorKind::FileTooLarge)?;
        self.out.write_all(bytes)?;
        self.left = left;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3f5_what_is_written_has_an_end_and_says_which_room_it_lacks() {
        let mut out = Vec::new();
        let mut bounded = Bounded::new(&mut out, 10);
        bounded.write_all(&[1; 6]).unwrap();
        bounded.write_all(&[2; 4]).unwrap();
        let over = bounded.write_all(&[3; 1]).unwrap_err();
        assert_eq!((over.kind(), out.len()), (io::ErrorKind::FileTooLarge, 10));
        let small = KeptRoom { quota: 5 * MIB, disk: 9 * MIB };
        assert_eq!(small.most(), 5 * MIB);
        let refused = small.fault(&over).refusal();
        assert_eq!(refused.code, ErrorCode::QueuePolicyViolation);
        assert!(refused.message.contains("quota.blobs_mb leaves 5120 KiB"), "{}", refused.message);
        let full = KeptRoom { quota: 9 * MIB, disk: MIB };
        let refused = full.fault(&over).refusal();
        assert_eq!(refused.code, ErrorCode::Unavailable);
        assert!(refused.message.contains("disk has 1024 KiB"), "{}", refused.message);
        let other = full.fault(&io::ErrorKind::NotFound.into()).refusal();
        assert!(!other.message.contains("KiB"), "{}", other.message);
    }

    #[test]
    fn the_database_keeps_a_part_of_its_disk() {
        assert_eq!(usable(5 * OTHERS, 100 * OTHERS), 4 * OTHERS);
        assert_eq!(usable(100, 1_000), 0);
        assert_eq!(usable(500, 1_000), 400);
    }
}
