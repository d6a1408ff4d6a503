//! Changes of directories: as a stream, or kept until they are asked for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_ambient::random::secret_hex;
use cofferdam_live::inside::{Change, ChangeKind, NodeKind};
use cofferdam_live::{Account, Guest, ListDirectory, WatchDirectories};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::connect::{self, Codec, Fault, Replied};
use super::entry::{described, look};
use super::filesystem::directory;
use super::paths::{plain, unavailable};
use super::room::{MAX_WATCHERS, Room};
use super::shape::ping;

/// Directories that one recursive watch follows. Each is a request to the agent, which serves 64.
const MAX_DIRS: usize = 16;
/// Changes on their way to a reader. Those that wait are kept, and weighed, where they come from.
const QUEUED: usize = 16;
/// Changes that a watcher keeps for its caller, and bytes of them; older ones are dropped first.
const MAX_KEPT: usize = 4_096;
const MAX_KEPT_BYTES: usize = 1024 * 1024;

/// How long a caller that asks for changes waits for the first one: who wrote a file before asks for its change. Those that
/// belong together come within the second time, and no caller waits longer than three of the first.
const HEARD_WITHIN: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Watch {
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
    /// There are no network mounts inside.
    #[serde(default)]
    #[expect(dead_code, reason = "it is read so that a client may say it")]
    allow_network_mounts: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WatcherId {
    watcher_id: String,
}

/// A watcher that keeps its changes. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watcher {
    kept: Arc<Mutex<Kept>>,
    /// Told of every change that is kept.
    arrived: Arc<Notify>,
    task: AbortHandle,
}

impl Watcher {
    /// Until the changes of what its caller saw end are kept.
    async fn settle(&self) {
        let has_none = || self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        let mut patience = if has_none() { HEARD_WITHIN } else { QUIET };
        let since = Stopwatch::start();
        while tokio::time::timeout(patience, self.arrived.notified()).await.is_ok()
            && since.elapsed() < 3 * HEARD_WITHIN
        {
            patience = QUIET;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Changes that nobody asked for yet.
#[derive(Debug, Default)]
struct Kept {
    changes: VecDeque<(Value, usize)>,
    bytes: usize,
}

impl Kept {
    fn push(&mut self, change: Value) {
        let weight = change.to_string().len();
        self.bytes += weight;
        self.changes.push_back((change, weight));
        while self.changes.len() > MAX_KEPT || self.bytes > MAX_KEPT_BYTES {
            let Some((_, weight)) = self.changes.pop_front() else { return };
            self.bytes -= weight;
        }
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn take(&mut self) -> Vec<Value> {
        self.bytes = 0;
        self.changes.drain(..).map(|(change, _)| change).collect()
    }
}

/// What is watched.
#[derive(Clone)]
struct Watched {
    guest: Guest,
    root: String,
    recursive: bool,
    include_entry: bool,
    changes: mpsc::Sender<Value>,
}

async fn begin(
    room: &Room,
    account: Account,
    watch: Watch,
) -> Result<mpsc::Receiver<Value>, Fault> {
    let guest = room.guest.clone();
    let root = directory(&guest, &plain(&watch.path, account)?).await?;
    let (changes, receiver) = mpsc::channel(QUEUED);
    let (recursive, include_entry) = (watch.recursive, watch.include_entry);
    let place = Watched { guest, root: root.clone(), recursive, include_entry, changes };
    let mut dirs = vec![root];
    let mut at = 0;
    while let Some(dir) = dirs.get(at).filter(|_| recursive).cloned() {
        at += 1;
        let list = ListDirectory { path: dir.clone(), most: 10_000 };
        let entries = place.guest.ask(list).await.unwrap_or_default();
        let below = entries.iter().filter(|e| e.kind == NodeKind::Dir && !e.mangled);
        dirs.extend(below.map(|entry| format!("{}/{}", dir.trim_end_matches('/'), entry.name)));
        if dirs.len() > MAX_DIRS {
            let why = format!("more than {MAX_DIRS} directories cannot be watched at once");
            return Err(Fault::new("resource_exhausted", why));
        }
    }
    let count = dirs.len();
    let watch = WatchDirectories { paths: dirs, waits: true };
    let first = place.guest.ask(watch).await.map_err(|error| unavailable(&error))?;
    let gone = place.changes.clone();
    tokio::spawn(async move {
        // An agent that was taken over may leave a question open for ever: who hung up does not wait for it.
        tokio::select! {
            () = follow(place, first, count) => {}
            () = gone.closed() => {}
        }
    });
    Ok(receiver)
}

/// Sends changes until the reader is gone or the sandbox is over; new directories are watched too.
async fn follow(place: Watched, first: mpsc::Receiver<Change>, mut dirs: usize) {
    let (sender, mut merged) = mpsc::channel::<Change>(QUEUED);
    tokio::spawn(forward(first, sender.clone()));
    loop {
        let Some(change) = merged.recv().await else { return };
        let is_new = change.kind == ChangeKind::Made && place.recursive && !change.mangled;
        if is_new
            && dirs < MAX_DIRS
            && let Ok(Some((entry, _))) = look(&place.guest, &change.path).await
            && entry.kind == NodeKind::Dir
            && let Ok(more) = place.guest.ask(of_one(&change.path)).await
        {
            dirs += 1;
            tokio::spawn(forward(more, sender.clone()));
        }
        if let Some(event) = event(&place, &change).await
            && place.changes.send(event).await.is_err()
        {
            return;
        }
    }
}

/// A watch of one more directory, where there is a stream for it.
fn of_one(path: &str) -> WatchDirectories {
    WatchDirectories { paths: vec![path.to_owned()], waits: false }
}

async fn forward(mut changes: mpsc::Receiver<Change>, sender: mpsc::Sender<Change>) {
    loop {
        let next = tokio::select! {
            next = changes.recv() => next,
            () = sender.closed() => return,
        };
        let Some(change) = next else { return };
        if sender.send(change).await.is_err() {
            return;
        }
    }
}

/// A change as clients read it; none of what the kernel dropped.
async fn event(place: &Watched, change: &Change) -> Option<Value> {
    let kind = match change.kind {
        ChangeKind::Made => "EVENT_TYPE_CREATE",
        ChangeKind::Written => "EVENT_TYPE_WRITE",
        ChangeKind::Gone => "EVENT_TYPE_REMOVE",
        ChangeKind::Lost => return None,
    };
    let name = change.path.strip_prefix(place.root.trim_end_matches('/'))?;
    let mut event = json!({"name": name.trim_start_matches('/'), "type": kind});
    if place.include_entry
        && change.kind != ChangeKind::Gone
        && let Ok(entry) = described(&place.guest, &change.path).await
        && let Some(fields) = event.as_object_mut()
    {
        fields.insert("entry".into(), entry);
    }
    Some(event)
}

/// Answers `WatchDir` with changes as they come.
pub(crate) async fn stream(
    room: &Room,
    account: Account,
    message: Replied,
    headers: &HeaderMap,
    codec: Codec,
) -> Response<Body> {
    let begun = match message.and_then(connect::parse) {
        Ok(watch) => begin(room, account, watch).await,
        Err(fault) => Err(fault),
    };
    let mut changes = match begun {
        Ok(changes) => changes,
        Err(fault) => return connect::failed(&fault, codec),
    };
    let (replies, response) = connect::stream(codec);
    let silence = ping(headers.get("keepalive-ping-interval"));
    tokio::spawn(async move {
        let mut next = json!({"start": {}});
        while replies.send(&next).await {
            next = tokio::select! {
                change = changes.recv() => match change {
                    Some(change) => json!({"filesystem": change}),
                    None => {
                        let why = "the connection to the sandbox ended";
                        return replies.end(Some(&Fault::new("unavailable", why))).await;
                    }
                },
                () = clock::sleep(silence) => json!({"keepalive": {}}),
                () = replies.closed() => return,
            };
        }
    });
    response
}

/// Answers `CreateWatcher`: begins to keep changes.
pub(crate) async fn create(room: &Arc<Room>, account: Account, message: Value) -> Replied {
    if room.watchers().len() >= MAX_WATCHERS {
        return Err(too_many());
    }
    let mut changes = begin(room, account, connect::parse(message)?).await?;
    let kept = Arc::new(Mutex::new(Kept::default()));
    let arrived = Arc::new(Notify::new());
    let (keeps, tells) = (Arc::clone(&kept), Arc::clone(&arrived));
    let task = tokio::spawn(async move {
        while let Some(change) = changes.recv().await {
            keeps.lock().unwrap_or_else(PoisonError::into_inner).push(change);
            tells.notify_one();
        }
    });
    let id = secret_hex(8);
    let watcher = Arc::new(Watcher { kept, arrived, task: task.abort_handle() });
    let mut watchers = room.watchers();
    // Others may have begun meanwhile.
    if watchers.len() >= MAX_WATCHERS {
        return Err(too_many());
    }
    watchers.insert(id.clone(), watcher);
    Ok(json!({"watcherId": id}))
}

/// Answers `GetWatcherEvents`: hands over what was kept.
pub(crate) async fn events(room: &Room, message: Value) -> Replied {
    let WatcherId { watcher_id } = connect::parse(message)?;
    let watcher = room.watchers().get(&watcher_id).cloned();
    let watcher = watcher.ok_or_else(|| Fault::missing("watcher not found"))?;
    watcher.settle().await;
    let events = watcher.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(json!({"events": events}))
}

fn too_many() -> Fault {
    Fault::new("resource_exhausted", format!("more than {MAX_WATCHERS} watchers; remove one"))
}

/// Answers `RemoveWatcher`: ends one.
pub(crate) fn remove(room: &Room, message: Value) -> Replied {
    let WatcherId { watcher_id } = connect::parse(message)?;
    let removed = room.watchers().remove(&watcher_id);
    removed.map(|_| json!({})).ok_or_else(|| Fault::missing("watcher not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_nobody_asks_for_are_bounded_in_number_and_in_bytes() {
        let mut kept = Kept::default();
        for n in 0..=MAX_KEPT {
            kept.push(json!(n));
        }
        let small = kept.take();
        assert_eq!((small.len(), &small[0]), (MAX_KEPT, &json!(1)));
        let large = "x".repeat(MAX_KEPT_BYTES / 4);
        for n in 0..9 {
            kept.push(json!(format!("{n}{large}")));
        }
        assert_eq!((kept.take().len(), kept.bytes), (3, 0));
    }
}
