//! The process that seals the layer of a paused sandbox, and the worker's end of it.
//!
//! ```text
//! worker --one socket--> sealer: leaves the worker's mounts, waits for work
//!    \--job, layer, file--> (measures; "measured") seals; "sealed"; waits for the end
//!    \--hold--> what it has sealed does not count; "held": reads nothing    \--go on--> seals anew
//!    \--killed: the socket ends--> it seals, and exits; without work it exits
//! ```
//! **An order to hold counts from the moment at which it is given**: whatever was read after it is sealed anew, also by one whose
//! worker is killed. So nobody waits until it is read.
//!
//! Snapshots and forks are sealed by one as well, while their sandbox stands still, at once, and only as long as its worker lives:
//! what a layer's entries take of memory is never the worker's, and has a bound of its own here.
//!
//! **It holds the layer before its pause is on record**, and from then on these files are lost only with it: a worker that is
//! killed leaves a process that seals them and ends. Descriptors wait in the socket, so they are its own from the moment at
//! which it is handed them.
//!
//! One file: both ends of one protocol.

pub(crate) mod line;
pub(crate) mod spare;
mod start;

use std::cell::Cell;
use std::ffi::CStr;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::{Digest, SnapshotId, TenantId};
use cofferdam_ledger::snapshots::SealedFile;
use cofferdam_sandbox::{
    leave_service, measure_files, outlive_hangup, outside_mounts, write_files,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_name};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

pub(crate) use start::SealStart;

use cofferdam_flows::FileKey;

use crate::background::blocking;
use crate::snapshot::again::Again;
use crate::snapshot::handles::{FileHandle, LayerHandle};
use crate::snapshot::room::{Bounded, OwnRoom};
use crate::snapshot::sealed::{FileOwner, Sealing};
use crate::snapshot::shelf::put_head;

/// The hidden command that is the sealer.
pub const SEAL_COMMAND: &str = "seal-layer";
/// The program that runs.
const SELF: &str = "/proc/self/exe";
/// Descriptors of one job: its text, the layer, the file.
const MAX_HANDED: usize = 3;
/// Whoever uses the layer is ended with its worker, within this time.
const USERS_END: Duration = Duration::from_secs(1);
/// What runs in the foreground comes first.
const NICE: i32 = 5;
/// It begins so long after its start: the end of its pause, and a resume that follows at once, have the processors for
/// themselves, and need no file.
const AFTER: Duration = Duration::from_millis(50);

/// Names that `ps` shows.
const WAITS: &CStr = c"sealer-waits";
const SEALS: &CStr = c"sealer";

/// Orders, a byte each.
const LEAVE: u8 = b'l';
const HOLD: u8 = b'h';
const GO_ON: u8 = b's';

/// Bytes of memory that a sealer may have, beside its program: twice what is held of a layer of as many entries as there may be.
const MAX_MEMORY: u64 = 768 * 1024 * 1024;
/// Between two looks whether the sandbox that stands still goes on.
const LOOK: Duration = Duration::from_millis(100);

/// What a sealer is to do, in memory that it reads once for each start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealJob {
    tenant: TenantId,
    snapshot: SnapshotId,
    key: String,
    first: u32,
    /// Bytes that the file may have.
    most: u64,
    again: Again,
}

impl Drop for SealJob {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// What a sealer is given.
#[derive(Debug)]
pub(crate) struct Given {
    job: OwnedFd,
    layer: OwnedFd,
    file: OwnedFd,
}

impl Given {
    /// To seal this layer into this file.
    pub(crate) fn new(
        owner: FileOwner<'_>,
        key: &FileKey,
        again: Again,
        layer: LayerHandle,
        file: FileHandle,
    ) -> io::Result<Self> {
        let key = hex::encode(key.as_slice());
        let (tenant, snapshot) = (owner.tenant.clone(), owner.snapshot.clone());
        let (first, most) = (layer.first_id, file.most);
        let job = SealJob { tenant, snapshot, key, first, most, again };
        let text = Zeroizing::new(serde_json::to_vec(&job)?);
        let memory = memfd_create("cofferdam-seal", MemfdFlags::CLOEXEC)?;
        let mut memory = std::fs::File::from(memory);
        memory.write_all(&text)?;
        Ok(Self { job: memory.into(), layer: layer.dir, file: file.file })
    }
}

/// A sealer that was started.
#[derive(Debug)]
pub(crate) struct Sealer {
    child: Child,
    /// Our end of its socket.
    pub orders: UnixStream,
}

impl Sealer {
    /// Starts one. Once this returns, it holds the layer.
    pub(crate) fn start(given: &Given, start: SealStart) -> io::Result<Self> {
        Self::waiting()?.with_work(given, start)
    }

    /// Gives the work to one that waits, or starts one where none does. Once this returns, it holds the layer.
    pub(crate) fn begin(
        waiting: Option<Self>,
        given: &Given,
        start: SealStart,
    ) -> io::Result<Self> {
        match waiting.map(|waiting| waiting.with_work(given, start)) {
            Some(Ok(sealer)) => Ok(sealer),
            _ => Self::start(given, start),
        }
    }

    /// Bytes of the stream, of one that measures. Blocking.
    pub(crate) fn measured(&self, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
        match self.says(goes_on)? {
            Said::Measured(bytes) => Ok(bytes),
            said => Err(said.fault()),
        }
    }

    /// The file, once it is written. Blocking; once `goes_on` says no, it is an error.
    pub(crate) fn sealed(&self, goes_on: &dyn Fn() -> bool) -> io::Result<SealedFile> {
        match self.says(goes_on)? {
            Said::Sealed(file) => Ok(file),
            said => Err(said.fault()),
        }
    }

    /// The next line that it says, and nothing behind it.
    fn says(&self, goes_on: &dyn Fn() -> bool) -> io::Result<Said> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if !goes_on() {
                return Err(io::Error::other("the sandbox ends"));
            }
            let patience = Timespec::try_from(LOOK).ok();
            if poll(&mut [PollFd::new(&self.orders, PollFlags::IN)], patience.as_ref())? == 0 {
                continue;
            }
            let mut byte = [0];
            if (&self.orders).read(&mut byte)? == 0 {
                return Err(io::Error::other("what writes the sandbox's files has ended"));
            }
            line.extend(byte);
        }
        let said = String::from_utf8_lossy(&line);
        Said::parse(&said).ok_or_else(|| io::Error::other("a sealer sent an unknown line"))
    }

    /// Starts one without work.
    pub(crate) fn waiting() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let outside: Vec<OwnedFd> = outside_mounts().into_iter().collect();
        let handed: Vec<BorrowedFd<'_>> = outside.iter().map(AsFd::as_fd).collect();
        hand(&ours, LEAVE, &handed)?;
        let child = Command::new(SELF)
            .arg(SEAL_COMMAND)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C at the worker's terminal is the worker's business alone.
            .process_group(0)
            .spawn()?;
        Ok(Self { child, orders: ours })
    }

    /// One that cannot be given it has ended.
    fn with_work(self, given: &Given, start: SealStart) -> io::Result<Self> {
        let handed = [&given.job, &given.layer, &given.file].map(|one| one.as_fd());
        match hand(&self.orders, start.order(), &handed) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end();
                Err(error)
            }
        }
    }

    /// [`Sealer::end`], beside who waits for it.
    pub(crate) async fn ended(self) {
        let _ = blocking(move || {
            self.end();
            Ok(())
        })
        .await;
    }

    /// Ends it, and waits until it has ended: nothing of it holds the layer then. Blocking, for milliseconds.
    pub(crate) fn end(mut self) {
        drop(self.orders);
        // One that has ended is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Orders to a sealer.
pub(crate) fn order_of(hold: bool) -> [u8; 1] {
    [if hold { HOLD } else { GO_ON }]
}

/// What a sealer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// It reads nothing.
    Held,
    /// Its file is whole, and on the disk.
    Sealed(SealedFile),
    /// Bytes of its stream.
    Measured(u64),
    /// There is no room for its file, and it has ended.
    Full,
    /// It could not, and has ended.
    Failed(String),
}

impl Said {
    fn line(&self) -> String {
        match self {
            Self::Held => "held\n".to_owned(),
            Self::Sealed(SealedFile { bytes, sha256 }) => format!("sealed {bytes} {sha256}\n"),
            Self::Measured(bytes) => format!("measured {bytes}\n"),
            Self::Full => "full\n".to_owned(),
            Self::Failed(why) => format!("failed {}\n", why.replace('\n', " ")),
        }
    }

    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => Self::Full,
            _ => Self::Failed(error.to_string()),
        }
    }

    /// Why something else is not said.
    fn fault(self) -> io::Error {
        match self {
            Self::Full => io::ErrorKind::FileTooLarge.into(),
            Self::Failed(why) => io::Error::other(why),
            said => io::Error::other(format!("a sealer says {said:?} out of turn")),
        }
    }

    /// Reads a line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        match word {
            "held" => Some(Self::Held),
            "sealed" => {
                let (bytes, sha256) = rest.split_once(' ')?;
                let (bytes, sha256) = (bytes.parse().ok()?, Digest::parse(sha256).ok()?);
                Some(Self::Sealed(SealedFile { bytes, sha256 }))
            }
            "measured" => Some(Self::Measured(rest.parse().ok()?)),
            "full" => Some(Self::Full),
            "failed" => Some(Self::Failed(rest.to_owned())),
            _ => None,
        }
    }
}

fn hand(socket: &UnixStream, order: u8, all: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDED))];
    let mut handed = SendAncillaryBuffer::new(&mut space);
    if !all.is_empty() && !handed.push(SendAncillaryMessage::ScmRights(all)) {
        return Err(io::Error::other("too many descriptors"));
    }
    sendmsg(socket, &[IoSlice::new(&[order])], &mut handed, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn handed(socket: &UnixStream) -> io::Result<(u8, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDED))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut order = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut [IoSliceMut::new(&mut order)], &mut ancillary, flags)?;
    let mut all = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            all.extend(some);
        }
    }
    let [order] = order;
    Ok((order, all))
}

/// Why nothing was sealed.
enum Stopped {
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
        // Whoever is in the worker's mount namespace keeps every sandbox's mounts.
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
    let job = read_job(job.into())?;
    let file = std::fs::File::from(file);
    let say = |said: &Said| {
        // A worker that was killed hears nothing.
        let _ = (&orders).write_all(said.line().as_bytes());
    };
    let mut stopped = start == SealStart::Held;
    if start.is_measured() {
        match measure_files(&layer, job.first, &|| true) {
            Ok(bytes) => say(&Said::Measured(bytes)),
            Err(error) => {
                say(&Said::of(&error));
                return Err(error);
            }
        }
    }
    let is_now = start.is_now();
    loop {
        if stopped {
            say(&Said::Held);
            wait_for(&orders);
            clock::sleep_blocking(USERS_END);
        }
        if !stopped && !is_now {
            listen_for(&orders, AFTER);
        }
        match seal(&job, &layer, &file, &orders, is_now) {
            Ok(sealed) => {
                say(&Said::Sealed(sealed));
                // Until its worker has the name of the file on the disk, or has ended.
                let mut rest = Vec::new();
                let _ = (&orders).read_to_end(&mut rest);
                return Ok(());
            }
            // Its worker has ended, and with it the sandbox.
            Err(Stopped::Held) if is_now => return Ok(()),
            Err(Stopped::Held) => stopped = true,
            Err(Stopped::Failed(error)) => {
                say(&Said::of(&error));
                return Err(error);
            }
        }
    }
}

/// Nothing that a tenant wrote makes it larger than this.
fn bound_memory() -> io::Result<()> {
    let most = Rlimit { current: Some(MAX_MEMORY), maximum: Some(MAX_MEMORY) };
    Ok(setrlimit(Resource::Data, most)?)
}

fn read_job(job: std::fs::File) -> io::Result<SealJob> {
    let size = usize::try_from(job.metadata()?.len()).map_err(io::Error::other)?;
    let mut text = Zeroizing::new(vec![0; size]);
    job.read_exact_at(&mut text, 0)?;
    Ok(serde_json::from_slice(&text)?)
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

/// Waits for an order or for the end of the worker, no longer than this; whoever looks next reads it.
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
) -> Result<SealedFile, Stopped> {
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
        let out = Bounded::new(file.try_clone()?, OwnRoom(job.most));
        let owner = FileOwner { tenant: &job.tenant, snapshot: &job.snapshot };
        let mut sealing = Sealing::new(out, &key, owner)?;
        let written = put_head(&mut sealing, &job.again)
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
        true => Stopped::Failed(error),
        false => Stopped::Held,
    })
}

#[cfg(test)]
impl Given {
    /// Of no layer.
    pub(crate) fn of_nothing() -> Self {
        let nothing = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        Self { job: nothing(), layer: nothing(), file: nothing() }
    }
}

#[cfg(test)]
impl Sealer {
    /// A program that seals nothing.
    pub(crate) fn of_nothing() -> Self {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        Self { child, orders: UnixStream::pair().unwrap().0 }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::live::{BASE_TEMPLATE, LiveRequest};

    use super::*;

    #[test]
    fn what_a_sealer_says_is_read_back() {
        let digest = Digest::parse(&"a".repeat(64)).unwrap();
        for said in [
            Said::Held,
            Said::Sealed(SealedFile { bytes: 7, sha256: digest }),
            Said::Measured(9),
            Said::Full,
            Said::Failed("a device".to_owned()),
        ] {
            assert_eq!(Said::parse(&said.line()), Some(said));
        }
        assert_eq!(Said::parse("sealed 7"), None);
    }

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
                again: Again {
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
        assert!(matches!(sealed(&late), Err(Stopped::Held)));
        late.push(GO_ON);
        assert!(matches!(sealed(&late), Err(Stopped::Held)), "it was lent in between");
    }

    #[test]
    fn a_worker_that_is_killed_before_it_heard_is_gone_like_any_other() {
        let (worker, sealer) = UnixStream::pair().unwrap();
        (&sealer).write_all(Said::Held.line().as_bytes()).unwrap();
        drop(worker);
        let read = (&sealer).read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let (worker, sealer) = UnixStream::pair().unwrap();
        (&sealer).write_all(Said::Held.line().as_bytes()).unwrap();
        drop(worker);
        wait_for(&sealer);
    }
}
