//! The directory that a monitor works in, and what of us is in it.
//!
//! ```text
//! api           the monitor listens; we tell it what its machine is
//! disk          we listen, for the monitor alone: the machine's disk, by vhost-user
//! stream_5000   we listen, for the machine's init alone: then nobody does, and the name is gone
//! ```
//! The monitor is nobody, and finds it as its working directory: no way leads there. **Whatever else a
//! machine asks its monitor to connect to, nobody listens.**

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::os::unix::net::{UnixListener as Listener, UnixStream as Socket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_guest::setup;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::net::{UnixListener, UnixStream};

use super::call::call;
use super::machine_spec::{DISK, MachineSpec, Monitor, SOCKET, STREAM};
use crate::machine::disk::{CurrentDisk, Reader};
use crate::machine::launcher::USER;
use crate::machine::qemu::InheritedFd;
use crate::machine::shape::Shape;
use crate::machine::vhost;

/// A monitor listens after some milliseconds; a busy host takes longer.
const LISTEN_MS: u64 = 5_000;
const LOOK_EVERY: Duration = Duration::from_millis(10);
const MIB: u64 = 1024 * 1024;

/// The disk of a machine is served as long as there is this.
#[derive(Debug)]
pub(crate) struct DiskServer {
    _until_dropped: Socket,
}

/// A monitor's directory, before its machine runs.
pub(crate) struct MonitorDir {
    dir: PathBuf,
    /// By which we reach what is in it, however long its name is.
    handle: File,
    stream: UnixListener,
    /// A machine's memory, for a monitor whose own could be taken away again.
    pub(super) lent: InheritedFd,
    pub(super) told: MachineSpec,
}

impl MonitorDir {
    /// Makes the directory, which must not be there. Within a runtime.
    pub(super) fn make(
        dir: &Path,
        disk: Arc<CurrentDisk>,
        shape: Shape,
    ) -> io::Result<(Self, DiskServer)> {
        DirBuilder::new().mode(0o700).create(dir)?;
        let user = Some(USER.parse().map_err(io::Error::other)?);
        chown(dir, user, user)?;
        let handle = File::open(dir)?;
        let listen = |name: &str| {
            let listener = Listener::bind(at(&handle, name))?;
            // Who connects must be able to write to it.
            chown(at(&handle, name), user, user)?;
            Ok::<_, io::Error>(listener)
        };
        let (disks, stream) = (listen(DISK)?, listen(&stream())?);
        stream.set_nonblocking(true)?;
        let (ours, theirs) = Socket::pair()?;
        thread::Builder::new().name("machine-disk".to_owned()).spawn(move || {
            if let Err(error) = vhost::serve(disks, theirs, Reader::new(disk)) {
                tracing::warn!(%error, "a machine's disk ended");
            }
        })?;
        let lent = InheritedFd::new(memory(shape)?.as_fd())?;
        let told = MachineSpec { shape, memory: format!("/proc/self/fd/{}", lent.number()) };
        let stream = UnixListener::from_std(stream)?;
        let place = Self { dir: dir.to_owned(), handle, stream, lent, told };
        Ok((place, DiskServer { _until_dropped: ours }))
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Tells the monitor what its machine is, starts it and meets its init. Or why not, in words.
    pub(crate) async fn begin(self, monitor: &dyn Monitor) -> Result<UnixStream, String> {
        let api = at(&self.handle, SOCKET);
        let clock = Stopwatch::start();
        // Its name is there a moment before it listens.
        while UnixStream::connect(&api).await.is_err() {
            if clock.elapsed_ms() > LISTEN_MS {
                return Err(format!("it did not listen within {LISTEN_MS} ms"));
            }
            clock::sleep(LOOK_EVERY).await;
        }
        let greeting = monitor.greeting();
        let answer = call(&api, &greeting).await;
        let answer = answer.map_err(|why| format!("{} was not answered: {why}", greeting.path))?;
        let version = monitor.version(&answer);
        let version = version.ok_or_else(|| format!("it does not say what it is: {answer}"))?;
        tracing::debug!(version, "a monitor gets its machine");
        for wanted in monitor.start(&self.told) {
            let done = call(&api, &wanted).await;
            done.map_err(|why| format!("{} was refused: {why}", wanted.path))?;
        }
        let (met, _) = self.stream.accept().await.map_err(|error| error.to_string())?;
        // From here on nobody listens for what a machine may ask for.
        drop(self.stream);
        fs::remove_file(at(&self.handle, &stream())).map_err(|error| error.to_string())?;
        Ok(met)
    }
}

/// As both name what a machine connects to.
fn stream() -> String {
    format!("{STREAM}_{}", setup::STREAM)
}

fn at(handle: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", handle.as_raw_fd()))
}

/// Memory of a machine that nobody can make smaller or larger.
fn memory(shape: Shape) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("machine", flags)?);
    file.set_len(shape.mem_mb.saturating_mul(MIB))?;
    let seals = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}
