//! The allowance for what is kept of a sandbox, in bytes as they are stored: what its tenant's quota leaves, and the disk, of which a
//! part is the database's. It is asked for before anything is stopped, and again while it is written: all that a tenant keeps
//! at one time shares what its quota leaves, and each writer looks at the disk as it goes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use cofferdam_flows::Error;
use cofferdam_flows::objects::bytes_left;
use cofferdam_sandbox::LayerSnapshotError;
use rustix::fs::{FallocateFlags, fallocate, fstatvfs, statvfs};

use crate::refusal::refuse;

const MIB: u64 = 1 << 20;

/// Bytes of each tenant that are on their way to the disk and on no record: the ledger's count of a quota lacks them.
#[derive(Debug, Default)]
pub(crate) struct PendingBytes(Mutex<HashMap<TenantId, TenantBytes>>);

#[derive(Debug, Default)]
struct TenantBytes {
    rooms: usize,
    /// Taken since an allowance of the tenant is open. It never falls while one is, whatever came of the bytes: who began before
    /// they were on record counts them by this, and who begins later finds them in the ledger.
    taken: u64,
    /// Of those the ones whose allowances are open.
    open: u64,
}

impl PendingBytes {
    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, TenantBytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an allowance without an end, before the ledger is asked for one: what is recorded in between is counted twice rather
    /// than not at all.
    pub(crate) fn open(self: &Arc<Self>, tenant: &TenantId) -> WriteAllowance {
        let mut all = self.lock();
        let found = all.entry(tenant.clone()).or_default();
        found.rooms += 1;
        let before = found.taken.saturating_sub(found.open);
        drop(all);
        let (unrecorded, tenant) = (Arc::clone(self), tenant.clone());
        WriteAllowance { unrecorded, tenant, before, quota: 0, disk: 0, own: Mutex::default() }
    }
}

/// How much may be written, until it is on record.
#[derive(Debug)]
pub(crate) struct WriteAllowance {
    unrecorded: Arc<PendingBytes>,
    tenant: TenantId,
    /// What the tenant took of bytes that the quota below knows.
    before: u64,
    pub quota: u64,
    pub disk: u64,
    own: Mutex<u64>,
}

impl WriteAllowance {
    /// Whose it is.
    pub(crate) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Bytes that may be written now.
    pub(crate) fn most(&self) -> u64 {
        let taken = self.unrecorded.lock().get(&self.tenant).map_or(0, |found| found.taken);
        self.end().saturating_sub(taken).min(self.disk)
    }

    /// The count of the tenant's bytes at which its quota is full.
    fn end(&self) -> u64 {
        self.before.saturating_add(self.quota)
    }

    /// Takes so many bytes, or none.
    ///
    /// # Errors
    /// The tenant's quota does not leave them.
    pub(crate) fn take(&self, bytes: u64) -> io::Result<()> {
        let mut all = self.unrecorded.lock();
        let found = all.entry(self.tenant.clone()).or_default();
        let taken = found.taken.saturating_add(bytes);
        if taken > self.end() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        found.taken = taken;
        found.open = found.open.saturating_add(bytes);
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        *own = own.saturating_add(bytes);
        Ok(())
    }

    /// Takes so many bytes if there are as many. Not an error: another measure of the same is asked for instead.
    pub(crate) fn has_taken(&self, bytes: u64) -> bool {
        bytes <= self.disk && self.take(bytes).is_ok()
    }

    /// Gives back what was taken and, of so many bytes that were written, not needed.
    pub(crate) fn settle(&self, written: u64) {
        let mut all = self.unrecorded.lock();
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = own.saturating_sub(written);
        *own = own.saturating_sub(unused);
        if let Some(found) = all.get_mut(&self.tenant) {
            found.taken = found.taken.saturating_sub(unused);
            found.open = found.open.saturating_sub(unused);
        }
    }

    /// An error of writing: one that is this allowance's end says which.
    pub(crate) fn fault(&self, why: &io::Error) -> Error {
        match why.kind() {
            io::ErrorKind::FileTooLarge if self.quota <= self.disk => self.lacks_quota().into(),
            io::ErrorKind::FileTooLarge | io::ErrorKind::StorageFull => self.lacks_disk().into(),
            _ if is_displaced(why) => refuse(ErrorCode::StateConflict, why.to_string()),
            _ => {
                let why = format!("the sandbox's files cannot be kept: {why}");
                refuse(ErrorCode::Unavailable, why)
            }
        }
    }

    fn lacks_quota(&self) -> Refusal {
        let left = shown(self.quota);
        let why = format!(
            "the sandbox's files cannot be kept: the tenant's quota.blobs_mb leaves {left}, and they take more; remove \
             snapshots, or ask the host's admin to raise it"
        );
        Refusal::new(ErrorCode::QueuePolicyViolation, why)
    }

    fn lacks_disk(&self) -> Refusal {
        let left = shown(self.disk);
        let why = format!(
            "the sandbox's files cannot be kept: this host's disk has {left} for them, and they take more; try again later"
        );
        Refusal::new(ErrorCode::Unavailable, why)
    }
}

impl Drop for WriteAllowance {
    fn drop(&mut self) {
        let own = *self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.unrecorded.lock();
        let Some(found) = all.get_mut(&self.tenant) else { return };
        found.rooms = found.rooms.saturating_sub(1);
        found.open = found.open.saturating_sub(own);
        if found.rooms == 0 {
            all.remove(&self.tenant);
        }
    }
}

/// Whether a directory that every sandbox has is something else in these files.
fn is_displaced(why: &io::Error) -> bool {
    let inner = why.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(LayerSnapshotError::Displaced(_)))
}

/// So many bytes, for people.
fn shown(bytes: u64) -> String {
    match bytes / MIB {
        0..10 => format!("{} KiB", bytes / 1024),
        mib => format!("{mib} MiB"),
    }
}

/// Room on the disk of a directory, beyond what is the database's.
pub(crate) fn on_disk(dir: &Path) -> io::Result<u64> {
    Ok(bytes_left(&statvfs(dir)?))
}

/// Puts so many bytes of a file on the disk, and looks that the database's part is left: others may do the same at this moment.
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        // Others have just taken the last of the room, and the kernel calls nothing an invalid number of bytes.
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes)?;
    match bytes_left(&fstatvfs(file)?) {
        0 => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }
}

/// What bounds a writer.
pub(crate) trait WriteBound {
    /// Takes so many bytes, or none.
    ///
    /// # Errors
    /// `FileTooLarge`, or `StorageFull` where it is the disk that has no more.
    fn take(&mut self, bytes: u64) -> io::Result<()>;
}

/// So many bytes for one writer.
#[derive(Debug)]
pub(crate) struct OwnAllowance(pub u64);

impl WriteBound for OwnAllowance {
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(())
    }
}

/// An allowance that others take from meanwhile, and the disk of a file.
#[derive(Debug)]
pub(crate) struct SharedAllowance {
    room: Arc<WriteAllowance>,
    file: File,
    unseen: u64,
}

impl SharedAllowance {
    pub(crate) fn new(room: &Arc<WriteAllowance>, file: &File) -> io::Result<Self> {
        Ok(Self { room: Arc::clone(room), file: file.try_clone()?, unseen: 0 })
    }
}

impl WriteBound for SharedAllowance {
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        self.unseen = self.unseen.saturating_add(bytes);
        // Seldom enough to cost nothing, and often enough for a hundred writers to stay within what is the database's.
        if self.unseen >= MIB {
            self.unseen = 0;
            if bytes_left(&fstatvfs(&self.file)?) == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.room.take(bytes)
    }
}

/// A writer that fails where its bound ends.
#[derive(Debug)]
pub(crate) struct LimitWriter<W, B> {
    out: W,
    bound: B,
}

impl<W, B> LimitWriter<W, B> {
    pub(crate) fn new(out: W, bound: B) -> Self {
        Self { out, bound }
    }
}

impl<W: Write, B: WriteBound> Write for LimitWriter<W, B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bound.take(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
        self.out.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(all: &Arc<PendingBytes>, tenant: &str, quota: u64, disk: u64) -> WriteAllowance {
        let mut room = all.open(&TenantId::parse(tenant).unwrap());
        (room.quota, room.disk) = (quota, disk);
        room
    }

    #[test]
    fn a3f5_what_is_written_has_an_end_and_says_which_room_it_lacks() {
        let mut out = Vec::new();
        let mut bounded = LimitWriter::new(&mut out, OwnAllowance(10));
        bounded.write_all(&[1; 6]).unwrap();
        bounded.write_all(&[2; 4]).unwrap();
        let over = bounded.write_all(&[3; 1]).unwrap_err();
        assert_eq!((over.kind(), out.len()), (io::ErrorKind::FileTooLarge, 10));
        let all = Arc::default();
        let small = room(&all, "one", 5 * MIB, 9 * MIB);
        assert_eq!(small.most(), 5 * MIB);
        let refused = small.fault(&over).refusal();
        assert_eq!(refused.code, ErrorCode::QueuePolicyViolation);
        assert!(refused.message.contains("quota.blobs_mb leaves 5120 KiB"), "{}", refused.message);
        let full = room(&all, "two", 9 * MIB, MIB);
        for why in [over, io::ErrorKind::StorageFull.into()] {
            let refused = full.fault(&why).refusal();
            assert_eq!(refused.code, ErrorCode::Unavailable);
            assert!(refused.message.contains("disk has 1024 KiB"), "{}", refused.message);
        }
        let other = full.fault(&io::ErrorKind::NotFound.into()).refusal();
        assert!(!other.message.contains("KiB"), "{}", other.message);
    }

    #[test]
    fn a_room_that_others_have_emptied_is_full_and_no_fault_of_the_disk() {
        let none = allocate(&tempfile::tempfile().unwrap(), 0).unwrap_err();
        let full = room(&Arc::default(), "one", 5 * MIB, 9 * MIB);
        let refused = full.fault(&none).refusal();
        assert_eq!(refused.code, ErrorCode::QueuePolicyViolation, "{}", refused.message);
    }

    #[test]
    fn a3f5_all_that_a_tenant_keeps_at_one_time_shares_what_its_quota_leaves() {
        let all = Arc::default();
        let (first, second) = (room(&all, "one", 100, 1_000), room(&all, "one", 100, 1_000));
        first.take(60).unwrap();
        assert_eq!(
            (second.most(), second.take(41).unwrap_err().kind()),
            (40, io::ErrorKind::FileTooLarge)
        );
        second.take(30).unwrap();
        // Another tenant has its own.
        room(&all, "two", 100, 1_000).take(100).unwrap();
        // The first is on record now: who began before still counts it, and who begins finds it in the ledger's remainder.
        drop(first);
        assert_eq!(second.take(11).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let third = room(&all, "one", 40, 1_000);
        assert_eq!(third.most(), 10);
        third.take(10).unwrap();
        assert_eq!(second.most(), 0);
        // What was reserved and not needed is there for others again.
        third.settle(4);
        assert_eq!(second.most(), 6);
        drop((second, third));
        assert!(all.lock().is_empty());
    }
}
