//! The whole output of runs on its way to the clients that started them (decision 0139), and their input on its way back.
//!
//! ```text
//! expect (before the run is on record) -> begin (a task of it runs here) --push--> queue --page--> client
//! ```
//! A command waits while the queue of its run is full. A client that stops asking is away: its command goes on, and output
//! beyond what the record keeps is left out again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{RunId, TaskKey};
use cofferdam_contracts::input::{InputMode, InputReceipt};
use cofferdam_contracts::output::{OutputPage, OutputPiece, OutputStream};
use tokio::sync::Notify;

use crate::client_input::ClientInput;
pub use crate::input_queue::InputPart;

/// Bytes that wait for a client. A pipe holds 64 KiB; an answer should be worth a request.
const WINDOW: usize = 1 << 20;
/// Bytes of a piece that grows while it waits.
const PIECE: usize = 64 * 1024;
/// What a piece takes beside its bytes.
const PIECE_COST: usize = 256;
/// Silence after which a client is away. The command line asks every 10 s at least, also while its own reader stands still.
const AWAY: Duration = Duration::from_secs(30);
/// How often a command that waits looks whether its client is away.
const LOOK: Duration = Duration::from_secs(1);
/// Clients at a time, so that their queues take at most 256 MiB, and as much for the input of those that send it. A further one gets what the record keeps.
const MAX_FEEDS: usize = 256;
/// Of one key, so that it leaves some to others.
const MAX_OF_KEY: usize = 64;

/// The outputs that clients of this process wait for.
#[derive(Debug, Default)]
pub struct Feeds(Mutex<BTreeMap<String, Arc<Feed>>>);

/// The output of one run.
#[derive(Debug)]
pub struct Feed {
    /// Key that started the run. No other key takes its output away.
    key_id: String,
    queue: Mutex<Queue>,
    pushed: Notify,
    taken: Notify,
    /// What its client sends.
    input: Option<ClientInput>,
}

#[derive(Debug)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// What the pieces take.
    cost: usize,
    /// Number of the first piece.
    first: u64,
    /// Number of the first piece that no answer had yet.
    unsent: u64,
    begun: bool,
    asked: Stopwatch,
    /// A piece was left out because the client was away.
    broken: bool,
}

#[derive(Debug)]
struct Piece {
    task: TaskKey,
    stream: OutputStream,
    at: u64,
    bytes: Vec<u8>,
}

impl Feeds {
    /// A client will ask for the output of a run that is about to be on record, and may send its input. Whether it was not
    /// expected before.
    pub(crate) fn expect(&self, run: &RunId, key_id: &str, input: Option<InputMode>) -> bool {
        let mut all = self.lock();
        all.retain(|_, feed| !feed.is_away());
        let of_key = all.values().filter(|feed| feed.key_id == key_id).count();
        if all.len() >= MAX_FEEDS || of_key >= MAX_OF_KEY || all.contains_key(run.as_str()) {
            return false;
        }
        all.insert(run.as_str().to_owned(), Arc::new(Feed::new(key_id, input)));
        true
    }

    /// A task of the run begins in this process.
    pub(crate) fn begin(&self, run: &RunId) -> Option<Arc<Feed>> {
        let feed = self.lock().get(run.as_str()).cloned().filter(|feed| !feed.is_away())?;
        feed.lock().begun = true;
        feed.pushed.notify_one();
        Some(feed)
    }

    /// The output of the run, for the key that started it.
    #[must_use]
    pub fn of(&self, run: &RunId, key_id: &str) -> Option<Arc<Feed>> {
        self.lock().get(run.as_str()).filter(|feed| feed.key_id == key_id).cloned()
    }

    /// The run whose input this process takes, for the key that started it.
    ///
    /// # Errors
    /// `wrong_server` where this process has no client of the run, `forbidden` where another key is that.
    pub fn giving(&self, run: &RunId, key_id: &str) -> Result<Arc<Feed>, Refusal> {
        let found = self.lock().get(run.as_str()).cloned();
        let feed = found.ok_or_else(|| {
            let why = "this server takes no input for the run: send it to the server that started the run";
            Refusal::new(ErrorCode::WrongServer, why)
        })?;
        if feed.key_id != key_id {
            let why = "only the key that started the run sends its input";
            return Err(Refusal::new(ErrorCode::Forbidden, why));
        }
        Ok(feed)
    }

    /// The client has all of it, or the run was not started.
    pub fn forget(&self, run: &RunId) {
        self.lock().remove(run.as_str());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Feed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed {
    fn new(key_id: &str, input: Option<InputMode>) -> Self {
        let queue = Queue {
            pieces: VecDeque::new(),
            cost: 0,
            first: 0,
            unsent: 0,
            begun: false,
            asked: Stopwatch::start(),
            broken: false,
        };
        Self {
            key_id: key_id.to_owned(),
            queue: Mutex::new(queue),
            pushed: Notify::new(),
            taken: Notify::new(),
            input: input.map(ClientInput::new),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_away(&self) -> bool {
        self.lock().asked.elapsed() > AWAY
    }

    /// What its client sends, if it does.
    pub(crate) fn input(&self) -> Option<&ClientInput> {
        self.input.as_ref()
    }

    /// The same, for the client itself.
    ///
    /// # Errors
    /// `state_conflict` where the run's command takes none.
    pub fn client_input(&self) -> Result<&ClientInput, Refusal> {
        self.lock().asked = Stopwatch::start();
        self.input.as_ref().ok_or_else(|| {
            let why = "no command of the run takes input from its client: `exec.input` asks for it";
            Refusal::new(ErrorCode::StateConflict, why)
        })
    }

    /// Takes a part of the input; waits until some of it fits.
    ///
    /// # Errors
    /// As [`Self::client_input`]; `conflict` where the part does not join what came before it.
    pub async fn put(&self, part: InputPart<'_>, wait: Duration) -> Result<InputReceipt, Refusal> {
        self.client_input()?.put(part, wait).await
    }

    /// Takes a piece of a task's output, which begins at byte `at` of its stream.
    pub(crate) fn push(&self, task: &TaskKey, stream: OutputStream, at: u64, bytes: &[u8]) {
        self.lock().push(task, stream, at, bytes);
        self.pushed.notify_one();
    }

    /// Until there is room for more, or the client is away.
    pub(crate) async fn room(&self) {
        while !self.lock().has_room() {
            tokio::select! {
                () = self.taken.notified() => {}
                () = clock::sleep(LOOK) => {}
            }
        }
    }

    /// The pieces from number `from` on; those before are let go. Waits for the first one. `None`: a piece was left out.
    pub async fn page(&self, from: u64, wait: Duration) -> Option<OutputPage> {
        let waited = Stopwatch::start();
        loop {
            let page = self.lock().page(from);
            self.taken.notify_one();
            let left = wait.saturating_sub(waited.elapsed());
            match page {
                Some(page) if page.pieces.is_empty() && !left.is_zero() => tokio::select! {
                    () = self.pushed.notified() => {}
                    () = clock::sleep(left) => {}
                },
                page => return page,
            }
        }
    }
}

impl Queue {
    fn has_room(&self) -> bool {
        self.broken || self.cost < WINDOW || self.asked.elapsed() > AWAY
    }

    fn push(&mut self, task: &TaskKey, stream: OutputStream, at: u64, bytes: &[u8]) {
        if self.broken || (self.cost >= WINDOW && self.asked.elapsed() > AWAY) {
            self.broken = true;
            self.pieces.clear();
            return;
        }
        let after = |count: usize| self.first.saturating_add(wide(count));
        let is_unsent = after(self.pieces.len()) > self.unsent;
        self.cost = self.cost.saturating_add(bytes.len());
        if let Some(last) = self.pieces.back_mut()
            && is_unsent
            && (&last.task, last.stream) == (task, stream)
            && last.bytes.len() < PIECE
        {
            last.bytes.extend_from_slice(bytes);
            return;
        }
        self.cost = self.cost.saturating_add(PIECE_COST);
        self.pieces.push_back(Piece { task: task.clone(), stream, at, bytes: bytes.to_vec() });
    }

    fn page(&mut self, from: u64) -> Option<OutputPage> {
        self.asked = Stopwatch::start();
        if self.broken {
            return None;
        }
        while self.first < from
            && let Some(piece) = self.pieces.pop_front()
        {
            self.first = self.first.saturating_add(1);
            self.cost = self.cost.saturating_sub(piece.bytes.len().saturating_add(PIECE_COST));
        }
        self.unsent = self.first.saturating_add(wide(self.pieces.len()));
        let piece = |piece: &Piece| OutputPiece {
            task_key: piece.task.clone(),
            stream: piece.stream,
            at: piece.at,
            base64: STANDARD.encode(&piece.bytes),
        };
        let pieces = self.pieces.iter().map(piece).collect();
        Some(OutputPage { held: true, next: self.unsent, begun: self.begun, pieces })
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;

    fn run(id: &str) -> RunId {
        RunId::parse(id).unwrap()
    }

    fn task() -> TaskKey {
        TaskKey::parse(&"a".repeat(64)).unwrap()
    }

    fn bytes(page: &OutputPage) -> Vec<(u64, Vec<u8>)> {
        page.pieces.iter().map(|p| (p.at, STANDARD.decode(&p.base64).unwrap())).collect()
    }

    #[tokio::test]
    async fn what_a_client_did_not_confirm_is_answered_again_and_small_pieces_become_one() {
        let feeds = Feeds::default();
        let id = run(&format!("rn_{:032x}", 1));
        assert!(feeds.begin(&id).is_none());
        feeds.expect(&id, "key", None);
        assert!(feeds.of(&id, "another").is_none());
        let feed = feeds.begin(&id).unwrap();
        feed.push(&task(), OutputStream::Stdout, 0, b"a\xff");
        feed.push(&task(), OutputStream::Stdout, 2, b"b");
        let read = feeds.of(&id, "key").unwrap();
        let first = read.page(0, NO_WAIT).await.unwrap();
        assert!(first.begun);
        assert_eq!(bytes(&first), [(0, b"a\xffb".to_vec())]);
        feed.push(&task(), OutputStream::Stdout, 3, b"c");
        let again = read.page(0, NO_WAIT).await.unwrap();
        assert_eq!(bytes(&again), [(0, b"a\xffb".to_vec()), (3, b"c".to_vec())]);
        let next = read.page(first.next, NO_WAIT).await.unwrap();
        assert_eq!(bytes(&next), [(3, b"c".to_vec())]);
        assert!(read.page(next.next, NO_WAIT).await.unwrap().pieces.is_empty());
        feeds.forget(&id);
        assert!(feeds.of(&id, "key").is_none());
    }

    #[tokio::test]
    async fn a_command_waits_while_the_queue_is_full() {
        let (feeds, id) = (Feeds::default(), run(&format!("rn_{:032x}", 1)));
        feeds.expect(&id, "key", None);
        let feed = feeds.begin(&id).unwrap();
        feed.push(&task(), OutputStream::Stderr, 0, &vec![0; WINDOW]);
        let mut room = std::pin::pin!(feed.room());
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut room).await.is_err());
        let page = feed.page(0, NO_WAIT).await.unwrap();
        assert!(tokio::time::timeout(soon, &mut room).await.is_err(), "not confirmed yet");
        feed.page(page.next, NO_WAIT).await.unwrap();
        room.await;
    }

    #[test]
    fn clients_have_a_bound() {
        let feeds = Feeds::default();
        for n in 0..=MAX_FEEDS {
            let key = format!("key{}", n % 5);
            assert_eq!(feeds.expect(&run(&format!("rn_{n:032x}")), &key, None), n < MAX_FEEDS);
        }
        let feeds = Feeds::default();
        for n in 0..=MAX_OF_KEY {
            assert_eq!(feeds.expect(&run(&format!("rn_{n:032x}")), "key", None), n < MAX_OF_KEY);
        }
        assert!(feeds.expect(&run(&format!("rn_{:032x}", MAX_FEEDS)), "another", None));
    }
    #[tokio::test]
    async fn the_key_that_started_a_run_alone_sends_its_input() {
        let (feeds, id) = (Feeds::default(), run(&format!("rn_{:032x}", 1)));
        assert_eq!(feeds.giving(&id, "key").unwrap_err().code, ErrorCode::WrongServer);
        feeds.expect(&id, "key", Some(InputMode::Stream));
        assert_eq!(feeds.giving(&id, "another").unwrap_err().code, ErrorCode::Forbidden);
        let part = InputPart { at: 0, bytes: b"a", is_last: true };
        let feed = feeds.giving(&id, "key").unwrap();
        assert_eq!(feed.put(part, NO_WAIT).await.unwrap().next, 1);
        let (silent, other) = (Feeds::default(), run(&format!("rn_{:032x}", 2)));
        silent.expect(&other, "key", None);
        let refused = silent.giving(&other, "key").unwrap().put(part, NO_WAIT).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::StateConflict);
    }
}
