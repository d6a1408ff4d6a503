//! The server of a machine's disk for monitors that take no NBD: the block device of vhost-user, read-only.
//!
//! ```text
//! monitor -- its machine's memory, one queue --> thread of ours
//! machine -- request in that memory, a kick  --> read into that memory, a call
//! ```
//! Its client is the monitor, which a hostile machine may have taken. What the queue says is bounded by the
//! memory that was given, and **memory that could be taken away again is refused**: a read of it would end
//! this worker. All that can be had is the disk that the machine was given.
//!
//! One file: one protocol with a hostile end, each message beside its bound.

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
    VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use virtio_queue::{DescriptorChain, Queue, QueueT as _, Reader, Writer};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use super::disk::{self, SIZE};

const SECTOR: u64 = 512;
/// What the device says that it can, by the numbers of the virtio standard.
const SEGMENTS: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 5;
const INDIRECT: u64 = 1 << 28;
const VERSION_1: u64 = 1 << 32;
/// The most that a monitor gives a queue: QEMU's, by its driver's choice; the others have 128 or 256.
const MAX_QUEUE: u16 = 1024;
/// Of one request: what is left of the smallest queue that a monitor has, with a head and a status.
const MAX_SEGMENTS: u32 = 126;
/// A head: kind, nothing, sector. Then the data, then one byte of status.
const HEAD: usize = 16;
const KIND_READ: u32 = 0;
const DONE: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;
/// Of one read.
const MAX_READ: usize = 32 * 1024 * 1024;
/// Of a read at once.
const CHUNK: usize = 256 * 1024;
/// Where the device's own description has the segments and the number of queues.
const SEGMENTS_AT: usize = 12;
const QUEUES_AT: usize = 34;
const CONFIG: usize = 256;

/// Serves the first that connects, until it ends or `stop` does. Blocking.
pub(super) fn serve(
    listener: UnixListener,
    stop: impl AsFd,
    reader: disk::Reader,
) -> io::Result<()> {
    if wait(&[stop.as_fd(), listener.as_fd()])?.first() == Some(&true) {
        return Ok(());
    }
    let (stream, _) = listener.accept()?;
    drop(listener);
    let socket = stream.try_clone()?;
    let device = Arc::new(Mutex::new(Device::new(reader)));
    let mut requests = BackendReqHandler::from_stream(stream, Arc::clone(&device));
    loop {
        let kick = lock(&device).kick.clone();
        let mut watched = vec![stop.as_fd(), socket.as_fd()];
        watched.extend(kick.as_ref().map(|kick| kick.as_fd()));
        let ready = wait(&watched)?;
        if ready.first() == Some(&true) {
            return Ok(());
        }
        if ready.get(2) == Some(&true) {
            lock(&device).kicked()?;
        }
        if ready.get(1) == Some(&true) {
            match requests.handle_request() {
                Ok(()) if lock(&device).is_refused => return Err(refused()),
                Ok(()) => {}
                Err(Error::Disconnected | Error::SocketBroken(_)) => return Ok(()),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

fn refused() -> io::Error {
    io::Error::other("the monitor's memory could be taken away from under its reader")
}

fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which of them have something to say, or have ended.
fn wait(fds: &[BorrowedFd<'_>]) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        match poll(&mut polled, None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
        }
    }
}

type GuestRam = GuestMemoryMmap<()>;

/// A machine's memory, and where its monitor has it.
struct Memory {
    guest: GuestRam,
    spans: Vec<VhostUserMemoryRegion>,
}

impl Memory {
    fn of(spans: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<Self> {
        let mut regions = Vec::new();
        for (span, file) in spans.iter().zip(files) {
            if !is_fixed(&file) {
                return Err(Error::ReqHandlerError(refused()));
            }
            let region =
                GuestRegionMmap::new(span.mmap_region(file)?, GuestAddress(span.guest_phys_addr));
            regions.push(region.ok_or(Error::InvalidParam)?);
        }
        let guest = GuestRam::from_regions(regions).map_err(|_| Error::InvalidParam)?;
        Ok(Self { guest, spans: spans.to_vec() })
    }

    /// What the monitor names by its own address.
    fn address(&self, theirs: u64) -> Result<GuestAddress> {
        for span in &self.spans {
            let (start, size, guest) = (span.user_addr, span.memory_size, span.guest_phys_addr);
            let inside = theirs.checked_sub(start).filter(|inside| *inside < size);
            if let Some(address) = inside.and_then(|inside| guest.checked_add(inside)) {
                return Ok(GuestAddress(address));
            }
        }
        Err(Error::InvalidParam)
    }
}

/// Memory that nobody can make smaller, of a kind that is there when it is read.
fn is_fixed(file: &File) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        && fstatfs(file).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

struct Device {
    reader: disk::Reader,
    memory: Option<Memory>,
    queue: Queue,
    kick: Option<Arc<File>>,
    call: Option<File>,
    is_enabled: bool,
    is_refused: bool,
    /// Of what is read at once.
    chunk: Vec<u8>,
}

impl Device {
    fn new(reader: disk::Reader) -> Self {
        // The size is one of those that are possible.
        let queue = Queue::new(MAX_QUEUE).unwrap_or_default();
        Self {
            reader,
            memory: None,
            queue,
            kick: None,
            call: None,
            is_enabled: false,
            is_refused: false,
            chunk: vec![0; CHUNK],
        }
    }

    fn kicked(&mut self) -> io::Result<()> {
        let Some(kick) = self.kick.clone() else { return Ok(()) };
        let mut count = [0; 8];
        match (&*kick).read(&mut count) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Ok(0) => self.kick = None,
            read => drop(read?),
        }
        self.work()
    }

    /// Answers all that waits.
    fn work(&mut self) -> io::Result<()> {
        let Self { reader, memory: Some(memory), queue, chunk, .. } = self else { return Ok(()) };
        let guest = &memory.guest;
        if !self.is_enabled || !queue.is_valid(guest) {
            return Ok(());
        }
        let mut any = false;
        while let Some(chain) = queue.pop_descriptor_chain(guest) {
            let head = chain.head_index();
            let written = answer(reader, guest, chain, chunk);
            queue.add_used(guest, head, written).map_err(io::Error::other)?;
            any = true;
        }
        if any
            && queue.needs_notification(guest).map_err(io::Error::other)?
            && let Some(mut call) = self.call.as_ref()
        {
            match call.write(&1_u64.to_ne_bytes()) {
                // Its count is full, so it was told already.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => drop(written?),
            }
        }
        Ok(())
    }

    fn only(&self, index: u32) -> Result<()> {
        if index == 0 { Ok(()) } else { Err(Error::InvalidParam) }
    }
}

type Chain<'a> = DescriptorChain<&'a GuestRam>;

/// Bytes that were written into the machine's memory.
fn answer(reader: &mut disk::Reader, guest: &GuestRam, chain: Chain<'_>, chunk: &mut [u8]) -> u32 {
    let (asked, room) = (Reader::new(guest, chain.clone()), Writer::new(guest, chain));
    let (Ok(mut asked), Ok(mut data)) = (asked, room) else { return 0 };
    let Some(length) = data.available_bytes().checked_sub(1) else { return 0 };
    let Ok(mut status) = data.split_at(length) else { return 0 };
    let mut head = [0; HEAD];
    let said = match asked.read_exact(&mut head) {
        Ok(()) => read(reader, head, &mut data, chunk),
        Err(_) => FAILED,
    };
    if status.write_all(&[said]).is_err() {
        return 0;
    }
    u32::try_from(data.bytes_written() + 1).unwrap_or(0)
}

fn read(
    reader: &mut disk::Reader,
    head: [u8; HEAD],
    data: &mut Writer<'_>,
    chunk: &mut [u8],
) -> u8 {
    let [kind, _nothing, low, high] = [0, 4, 8, 12].map(|at| {
        let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(u32::MAX, u32::from_le_bytes)
    });
    if kind != KIND_READ {
        // A driver that writes to what says that it is read-only is told so.
        return if kind == 1 { FAILED } else { UNSUPPORTED };
    }
    let sector = u64::from(high) << 32 | u64::from(low);
    let wanted = data.available_bytes();
    let end = sector
        .checked_mul(SECTOR)
        .and_then(|start| start.checked_add(u64::try_from(wanted).ok()?))
        .filter(|end| *end <= SIZE);
    let (Some(_), true) = (end, wanted <= MAX_READ) else { return FAILED };
    let mut offset = sector * SECTOR;
    while data.available_bytes() > 0 {
        let count = data.available_bytes().min(chunk.len());
        let part = chunk.get_mut(..count).unwrap_or_default();
        if let Err(error) = reader.read(offset, part).and_then(|()| data.write_all(part)) {
            tracing::debug!(%error, "a read of a machine's disk failed");
            return FAILED;
        }
        offset += u64::try_from(count).unwrap_or(0);
    }
    DONE
}

/// The device's own description, as the driver reads it.
fn config() -> [u8; CONFIG] {
    let mut config = [0; CONFIG];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = config.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, &(SIZE / SECTOR).to_le_bytes());
    put(SEGMENTS_AT, &MAX_SEGMENTS.to_le_bytes());
    put(QUEUES_AT, &1_u16.to_le_bytes());
    config
}

/// What this device has no part in.
fn no<T>() -> Result<T> {
    Err(Error::InvalidOperation("this disk has none of it"))
}

/// As neither side waits for the other: a monitor that is hostile could let a read or write of it wait.
fn signal(fd: Option<File>) -> Result<File> {
    let file = fd.ok_or(Error::InvalidParam)?;
    let flags = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::NONBLOCK));
    flags.map_err(|error| Error::ReqHandlerError(error.into()))?;
    Ok(file)
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        no()
    }

    fn get_features(&mut self) -> Result<u64> {
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        Ok(SEGMENTS | READ_ONLY | INDIRECT | VERSION_1 | protocol)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        // Of what was not offered some say something all the same, and none of it changes what is done here.
        // Who knows nothing of enabling finds it enabled.
        self.is_enabled |= features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        spans: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        match Memory::of(spans, files) {
            Ok(memory) => {
                self.memory = Some(memory);
                Ok(None)
            }
            Err(error) => {
                self.memory = None;
                self.is_refused = true;
                Err(error)
            }
        }
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.only(index)?;
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        self.queue.try_set_size(size).map_err(|_| Error::InvalidParam)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.only(index)?;
        let memory = self.memory.as_ref().ok_or(Error::InvalidParam)?;
        let queue = &mut self.queue;
        let set = queue
            .try_set_desc_table_address(memory.address(descriptor)?)
            .and(queue.try_set_avail_ring_address(memory.address(available)?))
            .and(queue.try_set_used_ring_address(memory.address(used)?));
        set.map_err(|_| Error::InvalidParam)?;
        // The base that the monitor says is of the other ring alone.
        let used = queue.used_idx(&memory.guest, Ordering::Relaxed);
        queue.set_next_used(used.map_err(|_| Error::InvalidParam)?.0);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.only(index)?;
        self.queue.set_next_avail(u16::try_from(base).map_err(|_| Error::InvalidParam)?);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.only(index)?;
        self.queue.set_ready(false);
        self.is_enabled = false;
        (self.kick, self.call) = (None, None);
        Ok(VhostUserVringState::new(index, u32::from(self.queue.next_avail())))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.only(index.into())?;
        self.kick = Some(Arc::new(signal(fd)?));
        self.queue.set_ready(true);
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.only(index.into())?;
        self.call = Some(signal(fd)?);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.only(index.into())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::CONFIG)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(1)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.only(index)?;
        self.is_enabled = enable;
        // A kick may have come before.
        self.work().map_err(Error::ReqHandlerError)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let [offset, size] = [offset, size].map(|number| usize::try_from(number).unwrap_or(CONFIG));
        let range = offset..offset.saturating_add(size);
        config().get(range).map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        no()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        no()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        no()
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        no()
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        no()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        no()
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        no()
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        no()
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        no()
    }

    fn check_device_state(&mut self) -> Result<()> {
        no()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        no()
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        no()
    }
}
