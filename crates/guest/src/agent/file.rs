//! Writes one file as its bytes come.
//!
//! A file that this request makes and does not complete is removed; one that was there before stays, cut off.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown, fchown};
use std::path::{Component, Path};

use cofferdam_guest::wire::{User, decode_path};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use rustix::fs::OFlags;

use super::answer::{Answer, done, refuse};
use super::freeze;

/// Mode of a file when the request does not say.
const DEFAULT_MODE: u32 = 0o644;

/// `PUT /v1/file?path=&mode=`: creates parents, replaces what is there.
pub async fn put(query: &str, body: Incoming) -> Response<Answer> {
    let Some(target) = target(query) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "path must be an absolute path without `..`, mode an octal number up to 777",
        );
    };
    let path = &target.path;
    match write(&target, body).await {
        Ok(()) => done(),
        Err(error) => refuse(status(&error), format!("{path:?}: {error}")),
    }
}

/// What cannot be written for want of room is another fault than what cannot be written there.
fn status(error: &io::Error) -> StatusCode {
    use io::ErrorKind::{FileTooLarge, OutOfMemory, QuotaExceeded, StorageFull, UnexpectedEof};
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge | OutOfMemory => {
            StatusCode::INSUFFICIENT_STORAGE
        }
        UnexpectedEof => StatusCode::BAD_REQUEST,
        _ => StatusCode::CONFLICT,
    }
}

/// What a request names.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    path: String,
    mode: u32,
    /// Owner and group of the file and of the parents that are made for it; the agent's own without.
    owner: Option<User>,
}

fn target(query: &str) -> Option<Target> {
    let (mut path, mut mode) = (None, DEFAULT_MODE);
    let (mut uid, mut gid) = (None, None);
    for pair in query.split('&') {
        match pair.split_once('=')? {
            ("path", text) => path = Some(decode_path(text)?),
            ("mode", text) => mode = u32::from_str_radix(text, 8).ok()?,
            ("uid", text) => uid = Some(text.parse().ok()?),
            ("gid", text) => gid = Some(text.parse().ok()?),
            _ => return None,
        }
    }
    let path = path.filter(|path| is_plain(Path::new(path)))?;
    (mode <= 0o777 && uid.is_some() == gid.is_some()).then_some(Target {
        path,
        mode,
        owner: uid.zip(gid).map(|(uid, gid)| User { uid, gid }),
    })
}

/// Absolute, below the root, nothing but names.
fn is_plain(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && path.file_name().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
}

/// Makes the parents that are missing, each with the owner.
fn make_parents(path: &Path, owner: Option<User>) -> io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let Some(User { uid, gid }) = owner else { return fs::create_dir_all(parent) };
    let missing: Vec<&Path> = parent.ancestors().take_while(|dir| !dir.exists()).collect();
    for dir in missing.into_iter().rev() {
        fs::create_dir(dir)?;
        chown(dir, Some(uid), Some(gid))?;
    }
    Ok(())
}

async fn write(target: &Target, body: Incoming) -> io::Result<()> {
    let path = Path::new(&target.path);
    make_parents(path, target.owner)?;
    let (file, is_new) = open(path, target.mode)?;
    let written = fill(file, target, body).await;
    if written.is_err() && is_new {
        freeze::over().await;
        // An error means that somebody else removed it.
        let _ = fs::remove_file(path);
    }
    written
}

/// The file, and whether it was made here. `O_NONBLOCK`: this process has one thread, and opening a FIFO that nobody
/// reads, or writing to a terminal that nobody empties, would stop all of it.
fn open(path: &Path, mode: u32) -> io::Result<(File, bool)> {
    let flags =
        i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).map_err(io::Error::other)?;
    let mut options = OpenOptions::new();
    options.write(true).mode(mode).custom_flags(flags);
    match options.clone().create_new(true).open(path) {
        Ok(file) => return Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let file = options.create(true).truncate(true).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok((file, false)),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

async fn fill(mut file: File, target: &Target, mut body: Incoming) -> io::Result<()> {
    if let Some(User { uid, gid }) = target.owner {
        fchown(&file, Some(uid), Some(gid))?;
    }
    let cut = |_| io::Error::new(io::ErrorKind::UnexpectedEof, "its bytes broke off");
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(cut)?.into_data() {
            freeze::over().await;
            file.write_all(&bytes)?;
        }
    }
    freeze::over().await;
    // The mode of an existing file stays when it is opened, and a new one's passes the umask.
    file.set_permissions(Permissions::from_mode(target.mode))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_fifo_that_nobody_reads_is_refused_at_once() {
        let dir = std::env::temp_dir().join(format!("cofferdam-file-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (fifo, file) = (dir.join("fifo"), dir.join("file"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_bits_truncate(0o600), 0).unwrap();
        assert_eq!(status(&open(&fifo, 0o644).unwrap_err()), StatusCode::CONFLICT);
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap())
            .open(&fifo)
            .unwrap();
        assert_eq!(status(&open(&fifo, 0o644).unwrap_err()), StatusCode::CONFLICT);
        drop(reader);
        assert!(open(&file, 0o644).unwrap().1);
        assert!(!open(&file, 0o644).unwrap().1);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_lack_of_room_is_told_apart_from_a_place_that_cannot_be_written() {
        let of = |errno: Errno| status(&io::Error::from(errno));
        assert_eq!(of(Errno::NOSPC), StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(of(Errno::ROFS), StatusCode::CONFLICT);
        assert_eq!(of(Errno::ACCESS), StatusCode::CONFLICT);
    }

    #[test]
    fn only_plain_absolute_paths_are_written() {
        let plain = |path: &str, mode| Some(Target { path: path.into(), mode, owner: None });
        assert_eq!(target("path=/work/a&mode=755"), plain("/work/a", 0o755));
        assert_eq!(target("path=/work/a%20b"), plain("/work/a b", DEFAULT_MODE));
        let owned = target("path=/work/a&uid=1000&gid=7").unwrap();
        assert_eq!(owned.owner, Some(User { uid: 1000, gid: 7 }));
        assert_eq!(target("path=/work/a&uid=1000"), None);
        for bad in ["path=/", "path=a", "path=/a/../b", "mode=644", "path=/a&mode=9", "path=/a&x=1"]
        {
            assert_eq!(target(bad), None, "{bad}");
        }
    }
}
