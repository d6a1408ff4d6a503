//! Changes of directories: as a stream, or kept until they are asked for.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::Response;
use cofferdam_ambient::clock;
use cofferdam_ambient::random::secret_hex;
use cofferdam_live::inside::{Change, ChangeKind, NodeKind};
use cofferdam_live::{Account, Guest, ListDirectory, WatchDirectories};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message::{self, Messages};
use crate::connect::reply::{self, ping};
use crate::envd::call::{Rpc, StreamRpc};
use crate::envd::entry::{described, look};
use crate::envd::filesystem::list::directory;
use crate::envd::paths::{plain, unavailable};
use crate::envd::state::watcher::{ChangeQueue, Watcher};
use crate::envd::state::{Envd, MAX_WATCHERS};

/// Directories that one recursive watch follows. Each is a request to the agent, which serves 64.
const MAX_DIRS: usize = 16;
/// Changes on their way to a reader. Those that wait are kept, and weighed, where they come from.
const QUEUED: usize = 16;

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

/// The directory that a client watches, and where its changes go.
#[derive(Clone)]
struct WatchTarget {
    guest: Guest,
    root: String,
    recursive: bool,
    include_entry: bool,
    changes: mpsc::Sender<Value>,
}

async fn begin(
    envd: &Envd,
    account: Account,
    watch: Watch,
) -> Result<mpsc::Receiver<Value>, Fault> {
    let guest = envd.guest.clone();
    let root = directory(&guest, &plain(&watch.path, account)?).await?;
    let (changes, receiver) = mpsc::channel(QUEUED);
    let (recursive, include_entry) = (watch.recursive, watch.include_entry);
    let place = WatchTarget { guest, root: root.clone(), recursive, include_entry, changes };
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
async fn follow(place: WatchTarget, first: mpsc::Receiver<Change>, mut dirs: usize) {
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
async fn event(place: &WatchTarget, change: &Change) -> Option<Value> {
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
pub(crate) async fn stream(call: StreamRpc) -> Response<Body> {
    let StreamRpc { envd, account, headers, codec, body } = call;
    let message = Messages::first(body, codec).await;
    let watch = message.and_then(message::parse).and_then(|watch| Ok((watch, account?)));
    let begun = match watch {
        Ok((watch, account)) => begin(&envd, account, watch).await,
        Err(fault) => Err(fault),
    };
    let mut changes = match begun {
        Ok(changes) => changes,
        Err(fault) => return reply::failed(&fault, codec),
    };
    let (replies, response) = reply::stream(codec);
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
pub(crate) async fn create(call: Rpc) -> ReplyResult {
    let Rpc { envd, account, message } = call;
    if envd.watchers().len() >= MAX_WATCHERS {
        return Err(too_many());
    }
    let mut changes = begin(&envd, account?, message::parse(message)?).await?;
    let kept = Arc::new(Mutex::new(ChangeQueue::default()));
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
    let mut watchers = envd.watchers();
    // Others may have begun meanwhile.
    if watchers.len() >= MAX_WATCHERS {
        return Err(too_many());
    }
    watchers.insert(id.clone(), watcher);
    Ok(json!({"watcherId": id}))
}

/// Answers `GetWatcherEvents`: hands over what was kept.
pub(crate) async fn events(call: Rpc) -> ReplyResult {
    let WatcherId { watcher_id } = message::parse(call.message)?;
    let watcher = call.envd.watchers().get(&watcher_id).cloned();
    let watcher = watcher.ok_or_else(|| Fault::missing("watcher not found"))?;
    watcher.settle().await;
    let events = watcher.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(json!({"events": events}))
}

fn too_many() -> Fault {
    Fault::new("resource_exhausted", format!("more than {MAX_WATCHERS} watchers; remove one"))
}

/// Answers `RemoveWatcher`: ends one.
pub(crate) async fn remove(call: Rpc) -> ReplyResult {
    let WatcherId { watcher_id } = message::parse(call.message)?;
    let removed = call.envd.watchers().remove(&watcher_id);
    removed.map(|_| json!({})).ok_or_else(|| Fault::missing("watcher not found"))
}
