//! Changes of directories: as a stream, or kept until they are asked for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_ambient::clock;
use cofferdam_ambient::random::secret_hex;
use cofferdam_flows::live::Agent;
use cofferdam_flows::live::inside::{Change, ChangeKind, NodeKind};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::connect::{self, Fault, Replied};
use super::entry::{described, look};
use super::filesystem::directory;
use super::paths::{plain, unavailable};
use super::room::{MAX_WATCHERS, Person, Room};
use super::shape::ping;

/// Directories that one recursive watch follows. Each is a request to the agent, which serves 64.
const MAX_DIRS: usize = 16;
/// Changes that wait for a reader.
const QUEUED: usize = 1_024;
/// Changes that a watcher keeps for its caller; older ones are dropped first.
const MAX_KEPT: usize = 4_096;

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
    kept: Arc<Mutex<VecDeque<Value>>>,
    task: AbortHandle,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is watched.
#[derive(Clone)]
struct Watched {
    agent: Agent,
    root: String,
    recursive: bool,
    include_entry: bool,
    changes: mpsc::Sender<Value>,
}

async fn begin(room: &Room, person: Person, watch: Watch) -> Result<mpsc::Receiver<Value>, Fault> {
    let agent = room.held.agent.clone();
    let root = directory(&agent, &plain(&watch.path, person)?).await?;
    let (changes, receiver) = mpsc::channel(QUEUED);
    let (recursive, include_entry) = (watch.recursive, watch.include_entry);
    let place = Watched { agent, root: root.clone(), recursive, include_entry, changes };
    let mut dirs = vec![root];
    let mut at = 0;
    while let Some(dir) = dirs.get(at).filter(|_| recursive).cloned() {
        at += 1;
        let entries = place.agent.list(&dir, 10_000).await.unwrap_or_default();
        let below = entries.iter().filter(|e| e.kind == NodeKind::Dir && !e.mangled);
        dirs.extend(below.map(|entry| format!("{}/{}", dir.trim_end_matches('/'), entry.name)));
        if dirs.len() > MAX_DIRS {
            let why = format!("more than {MAX_DIRS} directories cannot be watched at once");
            return Err(Fault::new("resource_exhausted", why));
        }
    }
    let paths: Vec<&str> = dirs.iter().map(String::as_str).collect();
    let watching = place.agent.watch(&paths, u64::MAX).await.map_err(|e| unavailable(&e))?;
    tokio::spawn(follow(place, watching, paths.len()));
    Ok(receiver)
}

/// Sends changes until the reader is gone or the sandbox is over; new directories are watched too.
async fn follow(place: Watched, first: cofferdam_flows::live::Watching, mut dirs: usize) {
    let (sender, mut merged) = mpsc::channel::<Change>(QUEUED);
    tokio::spawn(forward(first, sender.clone()));
    loop {
        let change = tokio::select! {
            change = merged.recv() => change,
            () = place.changes.closed() => None,
        };
        let Some(change) = change else { return };
        let is_new = change.kind == ChangeKind::Made && place.recursive && !change.mangled;
        if is_new
            && dirs < MAX_DIRS
            && let Ok(Some((entry, _))) = look(&place.agent, &change.path).await
            && entry.kind == NodeKind::Dir
            && let Ok(more) = place.agent.watch(&[&change.path], u64::MAX).await
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

async fn forward(mut watching: cofferdam_flows::live::Watching, sender: mpsc::Sender<Change>) {
    loop {
        let next = tokio::select! {
            next = watching.next() => next,
            () = sender.closed() => return,
        };
        let Ok(Some(change)) = next else { return };
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
        && let Ok(entry) = described(&place.agent, &change.path).await
        && let Some(fields) = event.as_object_mut()
    {
        fields.insert("entry".into(), entry);
    }
    Some(event)
}

/// Answers `WatchDir` with changes as they come.
pub(crate) async fn stream(
    room: &Room,
    person: Person,
    message: Replied,
    headers: &HeaderMap,
) -> Response<Body> {
    let begun = match message.and_then(connect::parse) {
        Ok(watch) => begin(room, person, watch).await,
        Err(fault) => Err(fault),
    };
    let mut changes = match begun {
        Ok(changes) => changes,
        Err(fault) => return connect::failed(&fault),
    };
    let (replies, response) = connect::stream();
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
pub(crate) async fn create(room: &Arc<Room>, person: Person, message: Value) -> Replied {
    if room.watchers().len() >= MAX_WATCHERS {
        let why = format!("more than {MAX_WATCHERS} watchers; remove one");
        return Err(Fault::new("resource_exhausted", why));
    }
    let mut changes = begin(room, person, connect::parse(message)?).await?;
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let keeps = Arc::clone(&kept);
    let task = tokio::spawn(async move {
        while let Some(change) = changes.recv().await {
            let mut kept = keeps.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() >= MAX_KEPT {
                kept.pop_front();
            }
            kept.push_back(change);
        }
    });
    let id = secret_hex(8);
    let watcher = Arc::new(Watcher { kept, task: task.abort_handle() });
    room.watchers().insert(id.clone(), watcher);
    Ok(json!({"watcherId": id}))
}

/// Answers `GetWatcherEvents`: hands over what was kept.
pub(crate) fn events(room: &Room, message: Value) -> Replied {
    let WatcherId { watcher_id } = connect::parse(message)?;
    let watcher = room.watchers().get(&watcher_id).cloned();
    let watcher = watcher.ok_or_else(|| Fault::missing("watcher not found"))?;
    let mut kept = watcher.kept.lock().unwrap_or_else(PoisonError::into_inner);
    let events: Vec<Value> = kept.drain(..).collect();
    Ok(json!({"events": events}))
}

/// Answers `RemoveWatcher`: ends one.
pub(crate) fn remove(room: &Room, message: Value) -> Replied {
    let WatcherId { watcher_id } = connect::parse(message)?;
    let removed = room.watchers().remove(&watcher_id);
    removed.map(|_| json!({})).ok_or_else(|| Fault::missing("watcher not found"))
}
