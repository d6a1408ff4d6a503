//! Changes in directories, as the kernel tells them.
//!
//! Nothing is kept here: a host that is slow fills the kernel's queue, which then drops changes and
//! says so once.

use std::collections::HashMap;
use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::name;
use cofferdam_guest::tree::{Change, ChangeKind, Watch};
use hyper::{Response, StatusCode};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc::Sender;

use super::answer::{self, Answer, refuse};
use super::tree;

const MAX_PATHS: usize = 64;
/// One read: a few dozen changes with names of some length.
const READ_BYTES: usize = 4_096;
const EVENT_BYTES: usize = 16;

struct DirWatcher {
    queue: Receiver,
    paths: HashMap<i32, String>,
}

/// `POST /v1/watch`. When it answers, nothing is missed any more.
pub fn watch(request: Watch) -> Response<Answer> {
    if request.paths.is_empty() || request.paths.len() > MAX_PATHS {
        return refuse(StatusCode::BAD_REQUEST, "1 to 64 directories can be watched");
    }
    let watching = match begin(&request.paths) {
        Ok(watching) => watching,
        Err(refusal) => return *refusal,
    };
    let (frames, response) = answer::frames();
    tokio::spawn(async move {
        let told = tell(&watching, request.most, &frames).await;
        let (count, error) = match told {
            Ok(count) => (count, None),
            Err(error) => (0, Some(error.to_string())),
        };
        tree::end(&frames, count, error).await;
    });
    response
}

fn begin(paths: &[String]) -> Result<DirWatcher, Box<Response<Answer>>> {
    let fault = |error: io::Error| {
        Box::new(refuse(StatusCode::INSUFFICIENT_STORAGE, format!("watching: {error}")))
    };
    let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .map_err(|errno| fault(errno.into()))?;
    let flags = WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::ONLYDIR;
    let mut watched = HashMap::new();
    for path in paths {
        let handle = tree::directory(path).map_err(|error| Box::new(error.refusal()))?;
        let number = inotify::add_watch(&queue, tree::through(&handle), flags)
            .map_err(|errno| fault(errno.into()))?;
        watched.insert(number, path.trim_end_matches('/').to_owned());
    }
    let queue = Receiver::from_owned_fd_unchecked(queue).map_err(fault)?;
    Ok(DirWatcher { queue, paths: watched })
}

async fn tell(watching: &DirWatcher, most: u64, frames: &Sender<Bytes>) -> io::Result<u64> {
    let mut count = 0;
    let mut buffer = vec![0; READ_BYTES];
    while count < most {
        tokio::select! {
            ready = watching.queue.readable() => ready?,
            () = frames.closed() => return Ok(count),
        }
        let read = match watching.queue.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            read => read?,
        };
        // One piece for one read: a host that is slow gives up on a stream of tiny ones.
        let mut piece = BytesMut::new();
        for change in changes(&watching.paths, buffer.get(..read).unwrap_or_default()) {
            if count == most {
                break;
            }
            let item = serde_json::to_vec(&change).unwrap_or_default();
            piece.extend_from_slice(&frame::encode(Kind::Item, &item));
            count += 1;
        }
        if frames.send(piece.freeze()).await.is_err() {
            return Ok(count);
        }
    }
    Ok(count)
}

/// What one read of the queue says. inotify(7): whole events of four numbers and a padded name.
fn changes(paths: &HashMap<i32, String>, mut bytes: &[u8]) -> Vec<Change> {
    let mut changes = Vec::new();
    while bytes.remaining() >= EVENT_BYTES {
        let (number, mask) = (bytes.get_i32_ne(), bytes.get_u32_ne());
        let (_cookie, length) = (bytes.get_u32_ne(), bytes.get_u32_ne());
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.remaining());
        let (padded, rest) = bytes.split_at(length);
        bytes = rest;
        let name = padded.split(|byte| *byte == 0).next().unwrap_or_default();
        let plain = std::str::from_utf8(name);
        let mangled = plain.is_err();
        let name = plain.map_or_else(|_| name::encode(name), str::to_owned);
        let path = paths.get(&number).map(|dir| format!("{dir}/{name}")).unwrap_or_default();
        let kind = kind(ReadFlags::from_bits_retain(mask));
        changes.extend(kind.map(|kind| Change { path, mangled, kind }));
    }
    changes
}

/// Nothing for the end of a watch: the directory itself is gone.
fn kind(flags: ReadFlags) -> Option<ChangeKind> {
    match flags {
        _ if flags.contains(ReadFlags::QUEUE_OVERFLOW) => Some(ChangeKind::Lost),
        _ if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => Some(ChangeKind::Made),
        _ if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) => Some(ChangeKind::Gone),
        _ if flags.contains(ReadFlags::CLOSE_WRITE) => Some(ChangeKind::Written),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_the_queue_becomes_changes() {
        let mut bytes = Vec::new();
        for (number, flags, name) in [
            (1, ReadFlags::CREATE, b"a\0\0\0".as_slice()),
            (-1, ReadFlags::QUEUE_OVERFLOW, b""),
            (1, ReadFlags::CLOSE_WRITE, b"\xff\0"),
            (1, ReadFlags::IGNORED, b""),
        ] {
            bytes.extend_from_slice(&i32::to_ne_bytes(number));
            for field in [flags.bits(), 0, u32::try_from(name.len()).unwrap()] {
                bytes.extend_from_slice(&field.to_ne_bytes());
            }
            bytes.extend_from_slice(name);
        }
        let paths = HashMap::from([(1, "/d".to_owned())]);
        assert_eq!(
            changes(&paths, &bytes),
            [
                Change { path: "/d/a".into(), mangled: false, kind: ChangeKind::Made },
                Change { path: String::new(), mangled: false, kind: ChangeKind::Lost },
                Change { path: "/d/%FF".into(), mangled: true, kind: ChangeKind::Written },
            ],
        );
        assert_eq!(changes(&paths, &bytes[..9]), []);
    }
}
