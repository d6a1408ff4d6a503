//! The sealer itself: a process without the worker's mounts, whose memory has a bound.

use std::cell::Cell;
use std::ffi::CStr;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_flows::FileKey;
use cofferdam_ledger::snapshots::SealedFile;
use cofferdam_sandbox::{leave_service, measure_files, outlive_hangup, write_files};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_name};
use zeroize::Zeroizing;

use super::job::SealJob;
use super::message::SealerMessage;
use super::orders::{GO_ON, HOLD, LEAVE, MAX_HANDED, handed};
use super::start::SealStart;
use crate::snapshot::allowance::{LimitWriter, OwnAllowance};
use crate::snapshot::store::put_head;
use crate::snapshot::writer::{FileOwner, SealWriter};

/// The sandbox that uses the layer ends with the worker, within this time.
const USERS_END: Duration = Duration::from_secs(1);
/// What runs in the foreground comes first.
const NICE: i32 = 5;
/// It begins so long after its start: the end of its pause, and a resume that follows at once, have the processors for
/// themselves, and need no file.
const AFTER: Duration = Duration::from_millis(50);
/// Names that `ps` shows.
const WAITS: &CStr = c"sealer-waits";
const SEALS: &CStr = c"sealer";
/// Bytes of memory that a sealer may have, beside its program: twice what is held of a layer of as many entries as there may be.
const MAX_MEMORY: u64 = 768 * 1024 * 1024;

/// Why nothing was sealed.
enum SealFailure {
    Held,
    Failed(io::Error),
}

/// The sealer itself: call it before any thread is started. Its socket is its standard input.
///
/// # Errors
/// What it could not do; its worker was told.
pub fn seal_layer() -> io::Result<()> {
    outlive_hangup()?;
    let orders = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, outside) = handed(&orders)?;
    if order != LEAVE {
        return Err(io::Error::other("it is not started by hand"));
    }
    if let Some(outside) = outside.first() {
        // A process in the worker's mount namespace keeps every sandbox's mounts.
        move_into_link_name_space(outside.as_fd(), Some(LinkNameSpaceType::Mount))?;
    }
    drop(outside);
    // Where the kernel refuses any of them, it seals all the same.
    let _ = leave_service();
    let _ = set_name(WAITS);
    let (order, all) = handed(&orders)?;
    let Ok([job, layer, file]) = <[OwnedFd; MAX_HANDED]>::try_from(all) else {
        // Its worker has ended, or does not need it any more.
        return Ok(());
    };
    let _ = set_name(SEALS);
    let start = SealStart::of(order).ok_or_else(|| io::Error::other("an unknown order"))?;
    bound_memory()?;
    if !start.is_now() {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
    let (job, file) = (SealJob::read(job)?, std::fs::File::from(file));
    let done = work(&job, &layer, &file, &orders, start);
    if let Err(error) = &done {
        say(&orders, &SealerMessage::of(error));
    }
    done
}

/// Seals, as often as an order to hold comes in between, and waits for the end.
fn work(
    job: &SealJob,
    layer: &OwnedFd,
    file: &std::fs::File,
    mut orders: &UnixStream,
    start: SealStart,
) -> io::Result<()> {
    if start.is_measured() {
        say(orders, &SealerMessage::Measured(measure_files(layer, job.first, &|| true)?));
    }
    let (is_now, mut stopped) = (start.is_now(), start == SealStart::Held);
    loop {
        if stopped {
            say(orders, &SealerMessage::Held);
            wait_for(orders);
            clock::sleep_blocking(USERS_END);
        }
        if !stopped && !is_now {
            listen_for(orders, AFTER);
        }
        match seal(job, layer, file, orders, is_now) {
            Ok(sealed) => {
                say(orders, &SealerMessage::Sealed(sealed));
                // Until its worker has the name of the file on the disk, or has ended.
                let mut rest = Vec::new();
                let _ = orders.read_to_end(&mut rest);
                return Ok(());
            }
            // Its worker has ended, and with it the sandbox.
            Err(SealFailure::Held) if is_now => return Ok(()),
            Err(SealFailure::Held) => stopped = true,
            Err(SealFailure::Failed(error)) => return Err(error),
        }
    }
}

/// A worker that was killed hears nothing.
fn say(mut orders: &UnixStream, said: &SealerMessage) {
    let _ = orders.write_all(said.line().as_bytes());
}

/// Nothing that a tenant wrote makes it larger than this.
fn bound_memory() -> io::Result<()> {
    let most = Rlimit { current: Some(MAX_MEMORY), maximum: Some(MAX_MEMORY) };
    Ok(setrlimit(Resource::Data, most)?)
}

/// Waits for the order to go on, or for the end of the worker. One that is killed before it has read what was said to it
/// leaves a reset connection, and no end of file.
fn wait_for(orders: &UnixStream) {
    let mut order = [0];
    loop {
        match (&*orders).read(&mut order) {
            Ok(0) => return,
            Ok(_) if order == [GO_ON] => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Waits for an order or for the end of the worker, no longer than this. The order is read later.
fn listen_for(orders: &UnixStream, patience: Duration) {
    let patience = Timespec::try_from(patience).ok();
    // Where the kernel does not say, it begins at once.
    let _ = poll(&mut [PollFd::new(orders, PollFlags::IN)], patience.as_ref());
}

fn seal(
    job: &SealJob,
    layer: &OwnedFd,
    mut file: &std::fs::File,
    orders: &UnixStream,
    is_now: bool,
) -> Result<SealedFile, SealFailure> {
    let is_held = Cell::new(false);
    let goes_on = || {
        let mut order = [0];
        // All that was said: orders to go on that came late hide no order to hold.
        while !is_held.get() && matches!(recv(orders, &mut order, RecvFlags::DONTWAIT), Ok((_, 1)))
        {
            is_held.set(order == [HOLD]);
        }
        if is_now && matches!(recv(orders, &mut order, RecvFlags::DONTWAIT), Ok((_, 0))) {
            is_held.set(true);
        }
        !is_held.get()
    };
    let mut sealed = || -> io::Result<SealedFile> {
        let key = Zeroizing::new(hex::decode(&job.key).map_err(io::Error::other)?);
        let key = <[u8; 32]>::try_from(key.as_slice()).map_err(io::Error::other)?;
        let key = FileKey::new(key);
        file.rewind()?;
        let out = LimitWriter::new(file.try_clone()?, OwnAllowance(job.most));
        let owner = FileOwner { tenant: &job.tenant, snapshot: &job.snapshot };
        let mut sealing = SealWriter::new(out, &key, owner)?;
        let written = put_head(&mut sealing, &job.resume_spec)
            .and_then(|()| write_files(layer, job.first, &mut sealing, &goes_on));
        if let Err(error) = written {
            return Err(sealing.why(error));
        }
        let (_, whole) = sealing.finish()?;
        // What was reserved and not needed.
        file.set_len(whole.bytes)?;
        if !is_now {
            file.sync_all()?;
        }
        // Behind the last look at the layer: it is lent as soon as the order to hold is given.
        match goes_on() {
            true => Ok(whole),
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    };
    // A layer that its next life changes cannot be read, which is no fault.
    sealed().map_err(|error| match goes_on() {
        true => SealFailure::Failed(error),
        false => SealFailure::Held,
    })
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::{SnapshotId, TenantId};
    use cofferdam_contracts::live::{BASE_TEMPLATE, LiveRequest};

    use super::*;
    use crate::snapshot::resume_spec::ResumeSpec;

    #[test]
    fn an_order_to_hold_counts_however_many_orders_to_go_on_are_before_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("upper")).unwrap();
        std::fs::write(dir.path().join("upper/file"), "a tenant's").unwrap();
        let layer = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let sealed = |said: &[u8]| {
            let job = SealJob {
                tenant: TenantId::parse("ann").unwrap(),
                snapshot: SnapshotId::parse(&"a".repeat(20)).unwrap(),
                key: "0".repeat(64),
                first: 0,
                most: u64::MAX,
                resume_spec: ResumeSpec {
                    request: LiveRequest::of(BASE_TEMPLATE),
                    image: None,
                    tokens: None,
                    memory: false,
                    memory_last: false,
                    built: None,
                },
            };
            let (worker, sealer) = UnixStream::pair().unwrap();
            (&worker).write_all(said).unwrap();
            let file = tempfile::tempfile().unwrap();
            seal(&job, &layer, &file, &sealer, false)
        };
        assert!(sealed(&[GO_ON; 500]).is_ok());
        let mut late = vec![GO_ON; 500];
        late.push(HOLD);
        assert!(matches!(sealed(&late), Err(SealFailure::Held)));
        late.push(GO_ON);
        assert!(matches!(sealed(&late), Err(SealFailure::Held)), "it was lent in between");
    }

    #[test]
    fn a_worker_that_is_killed_before_it_heard_is_gone_like_any_other() {
        let (worker, sealer) = UnixStream::pair().unwrap();
        (&sealer).write_all(SealerMessage::Held.line().as_bytes()).unwrap();
        drop(worker);
        let read = (&sealer).read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let (worker, sealer) = UnixStream::pair().unwrap();
        (&sealer).write_all(SealerMessage::Held.line().as_bytes()).unwrap();
        drop(worker);
        wait_for(&sealer);
    }
}
