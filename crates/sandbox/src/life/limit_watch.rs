//! Which limits a command reached, and how that is known.
//!
//! | limit | seen in | by |
//! |---|---|---|
//! | wall | the clock | the agent's and the host's |
//! | memory | `oom_kill` of the cgroup; sockets whose queues no cgroup counts | the kernel: exact; the worker: 20 looks a second |
//! | pids | `pids.events` of the cgroup; where the kernel in between counts for itself (gVisor), about as many processes as allowed when a failed command ended, else what it printed | the kernel: exact; the agent: at its end alone; the task's words |
//! | disk | the layer without room at the end or at any look meanwhile; else what a failed command printed | `statvfs` of the host, in a machine its agent's; the task's words |
//! | nofile | what a failed command printed | the task's words: no kernel counts refused descriptors |
//! | output | bytes that are not kept | the agent, or the host where it takes all: exact |
//!
//! Words are a hint and are told as one. They never turn a success into anything, and never change
//! an `errCode`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::sandbox::{EffectivePolicy, IsolationClass, Limits};
use cofferdam_guest::wire::LimitCounters;
use memchr::memmem;
use nix::sys::statvfs::statvfs;

use crate::agent::Stream;
use crate::host::cgroup::{Cgroups, Events};
use crate::host::sockets::{SocketExcess, SocketLimits};
use crate::host::traces::Traces;
use crate::life::exec::DropCounts;

/// How often the layer is looked at while a command runs. A look is one system call; what fills the
/// layer and clears it again in between is only known by its words.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A layer with less room than this is full: no file of any use fits.
const ROOM_BYTES: u64 = 64 * 1024;

/// The errors' usual texts, without their first letter: programs and languages differ in its case.
const NOFILE_WORDS: [&[u8]; 2] = [b"oo many open files", b"o file descriptors available"];
/// Only believed where nobody counts: the second is said of other waits too.
const PIDS_WORDS: [&[u8]; 2] = [b"annot fork", b"esource temporarily unavailable"];
const DISK_WORDS: [&[u8]; 1] = [b"o space left on device"];
/// The longest of them less one: what has to be kept of a chunk so that no text is cut in two.
const CARRY_BYTES: usize = 30;
/// How many processes fewer than allowed a failed command may leave behind and count as one that had
/// no more: itself, and what it waited for.
const ENDED: u64 = 2;

/// What the output of a command says about limits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Words {
    nofile: bool,
    disk: bool,
    pids: bool,
    carried: [Vec<u8>; 2],
}

impl Words {
    /// Takes the next chunk.
    pub(crate) fn hear(&mut self, stream: Stream, bytes: &[u8]) {
        let [stdout, stderr] = &mut self.carried;
        let carried = match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        };
        let head = bytes.get(..CARRY_BYTES).unwrap_or(bytes);
        let mut seam = std::mem::take(carried);
        seam.extend_from_slice(head);
        for text in [seam.as_slice(), bytes] {
            self.nofile |= NOFILE_WORDS.iter().any(|words| memmem::find(text, words).is_some());
            self.pids |= PIDS_WORDS.iter().any(|words| memmem::find(text, words).is_some());
            self.disk |= DISK_WORDS.iter().any(|words| memmem::find(text, words).is_some());
        }
        let whole = if bytes.len() > CARRY_BYTES { bytes } else { &seam };
        let from = whole.len().saturating_sub(CARRY_BYTES);
        let kept = whole.get(from..).unwrap_or_default().to_vec();
        let [stdout, stderr] = &mut self.carried;
        match stream {
            Stream::Stdout => *stdout = kept,
            Stream::Stderr => *stderr = kept,
        }
    }
}

/// Looks at a sandbox from outside while a command runs.
#[derive(Debug)]
pub(crate) struct LimitWatch<'a> {
    cgroups: &'a Cgroups,
    traces: &'a Traces,
    before: Events,
    layer: PathBuf,
    layer_full: bool,
    sockets: Option<SocketLimits>,
    excess: Option<SocketExcess>,
}

impl<'a> LimitWatch<'a> {
    /// `sockets`: of a sandbox on the host's network stack.
    pub(crate) fn start(
        cgroups: &'a Cgroups,
        traces: &'a Traces,
        sockets: Option<SocketLimits>,
    ) -> Self {
        Self {
            cgroups,
            traces,
            before: cgroups.events(traces),
            layer: traces.layer.clone(),
            layer_full: false,
            sockets,
            excess: None,
        }
    }

    /// Looks now and then until the work is done, and once more then.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            let done = tokio::select! {
                biased;
                done = &mut work => Some(done),
                () = clock::sleep(LOOK_EVERY) => None,
            };
            self.layer_full = self.layer_full || is_full(&self.layer);
            if let Some(sockets) = &mut self.sockets {
                self.excess = sockets.look(self.cgroups, self.traces).or(self.excess);
            }
            if let Some(done) = done {
                return done;
            }
        }
    }

    pub(crate) fn end(self, words: Words, effective: &EffectivePolicy) -> LimitObservation {
        let Self { cgroups, traces, before, layer_full, excess, .. } = self;
        let (limits, class) = (effective.limits, effective.isolation_class);
        let uncounted = class != IsolationClass::Container;
        LimitObservation {
            before,
            after: cgroups.events(traces),
            layer_full,
            excess,
            words,
            limits,
            uncounted,
        }
    }
}

fn is_full(layer: &Path) -> bool {
    let Ok(stat) = statvfs(layer) else { return false };
    let room = stat.blocks_available().saturating_mul(stat.fragment_size());
    room < ROOM_BYTES || stat.files_available() == 0
}

/// What was seen of a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct LimitObservation {
    pub before: Events,
    pub after: Events,
    pub layer_full: bool,
    /// Too many sockets whose queues no cgroup counts.
    pub excess: Option<SocketExcess>,
    pub words: Words,
    /// Limits of the sandbox as enforced, which messages quote.
    pub limits: Limits,
    /// Whether a kernel of its own refuses processes, and the cgroup never hears of it.
    pub uncounted: bool,
}

/// How it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandOutcome {
    pub failed: bool,
    pub timed_out: bool,
    pub dropped: DropCounts,
    /// Processes and threads of a failed command, just before the rest of them was killed.
    pub crowd: u64,
}

impl LimitObservation {
    pub(crate) fn oom(&self) -> bool {
        self.after.oom_kills > self.before.oom_kills || self.excess.is_some()
    }

    /// The same with what a kernel of the sandbox's own counted, where it has one: the host's
    /// counters are then its emulator's.
    pub(crate) fn inside(&self, counted: Option<LimitCounters>) -> Self {
        let mut seen = self.clone();
        if let Some(LimitCounters { oom_kills, pids_refused, layer_full, .. }) = counted {
            seen.before = Events::default();
            seen.after = Events { oom_kills, pids_refused, tcp_refused: 0 };
            seen.uncounted = false;
            seen.layer_full |= layer_full;
        }
        seen
    }

    /// The limits that were reached, in their order, each with its words added to the causes. The
    /// wall time's are there already.
    pub(crate) fn reached(
        &self,
        ending: &CommandOutcome,
        causes: &mut Vec<String>,
    ) -> Vec<LimitKind> {
        let wall = ending.timed_out.then_some((LimitKind::Wall, String::new()));
        let found = [self.memory(), self.pids(ending), self.disk(ending), self.nofile(ending)];
        let found = found.into_iter().chain([self.output(ending)]).chain([wall]).flatten();
        let mut kinds = Vec::new();
        for (kind, words) in found {
            kinds.push(kind);
            if !words.is_empty() {
                causes.push(words);
            }
        }
        kinds.sort_unstable();
        kinds
    }

    fn memory(&self) -> Option<(LimitKind, String)> {
        if let Some(excess) = self.excess {
            return Some((LimitKind::Memory, excess.words()));
        }
        let count = self.after.oom_kills.saturating_sub(self.before.oom_kills);
        if count > 0 {
            let words =
                format!("the memory limit was reached and the kernel killed {count} process(es)");
            return Some((LimitKind::Memory, words));
        }
        // Nobody is killed for it: connections wait for each other.
        let tcp = self.after.tcp_refused.saturating_sub(self.before.tcp_refused);
        let words = format!("buffers of TCP connections met the memory limit {tcp} time(s)");
        (tcp > 0).then_some((LimitKind::Memory, words))
    }

    fn pids(&self, ending: &CommandOutcome) -> Option<(LimitKind, String)> {
        let refused = self.after.pids_refused.saturating_sub(self.before.pids_refused);
        if refused > 0 {
            let words = format!("the limit on processes refused {refused} of them");
            return Some((LimitKind::Pids, words));
        }
        let most = self.limits.pids?;
        if !self.uncounted || !ending.failed {
            return None;
        }
        if ending.crowd.saturating_add(ENDED) >= most && ending.crowd.saturating_mul(2) >= most {
            let left = ending.crowd;
            let words = format!("{left} processes still ran when it failed; {most} are allowed");
            return Some((LimitKind::Pids, words));
        }
        let words = "its output says that no process could be started".to_owned();
        self.words.pids.then_some((LimitKind::Pids, words))
    }

    fn disk(&self, ending: &CommandOutcome) -> Option<(LimitKind, String)> {
        let words = match (self.layer_full, ending.failed && self.words.disk) {
            (true, _) => {
                format!("the writable layer of {} MiB was full", self.limits.disk_mb.unwrap_or(0))
            }
            (false, true) => "its output says that a file system had no space left".to_owned(),
            (false, false) => return None,
        };
        Some((LimitKind::Disk, words))
    }

    fn nofile(&self, ending: &CommandOutcome) -> Option<(LimitKind, String)> {
        let most = self.limits.nofile.unwrap_or(0);
        let words = format!(
            "its output says that a process had too many open files, of which {most} are allowed"
        );
        (ending.failed && self.words.nofile).then_some((LimitKind::Nofile, words))
    }

    fn output(&self, ending: &CommandOutcome) -> Option<(LimitKind, String)> {
        let DropCounts { stdout, stderr } = ending.dropped;
        let most = self.limits.output_bytes.unwrap_or(0);
        let words = format!(
            "the record keeps the first {most} bytes of each stream, not the further {stdout} bytes of stdout and {stderr} \
             of stderr"
        );
        (stdout > 0 || stderr > 0).then_some((LimitKind::Output, words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: CommandOutcome = CommandOutcome {
        failed: true,
        timed_out: false,
        dropped: DropCounts { stdout: 0, stderr: 0 },
        crowd: 0,
    };

    fn heard(chunks: &[&str]) -> Words {
        let mut words = Words::default();
        chunks.iter().for_each(|chunk| words.hear(Stream::Stderr, chunk.as_bytes()));
        words
    }

    fn kinds(seen: &LimitObservation, ending: &CommandOutcome) -> Vec<LimitKind> {
        let mut causes = Vec::new();
        let kinds = seen.reached(ending, &mut causes);
        let told = kinds.iter().filter(|kind| **kind != LimitKind::Wall).count();
        assert_eq!(causes.len(), told, "each kind has its words: {causes:?}");
        kinds
    }

    #[test]
    fn words_are_heard_however_they_are_cut() {
        let text = "OSError: [Errno 24] Too many open files: 'x'";
        for cut in 0..=text.len() {
            let (a, b) = text.split_at(cut);
            assert!(heard(&[a, b]).nofile, "{cut}");
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert!(heard(&letters).nofile);
        assert!(heard(&["head: error writing: No space left on device"]).disk);
        let mut apart = Words::default();
        apart.hear(Stream::Stderr, b"too many open");
        apart.hear(Stream::Stdout, b" files");
        assert!(!apart.nofile, "two streams are two texts");
    }

    #[test]
    fn the_carry_is_one_less_than_the_longest_words() {
        let longest = NOFILE_WORDS
            .iter()
            .chain(&DISK_WORDS)
            .chain(&PIDS_WORDS)
            .map(|words| words.len())
            .max();
        assert_eq!(longest, Some(CARRY_BYTES + 1));
    }

    #[test]
    fn words_of_a_success_are_not_believed() {
        let words = heard(&["too many open files, no space left on device"]);
        let seen = LimitObservation { words, ..LimitObservation::default() };
        assert_eq!(kinds(&seen, &QUIET), [LimitKind::Disk, LimitKind::Nofile]);
        assert!(kinds(&seen, &CommandOutcome { failed: false, ..QUIET }).is_empty());
    }

    #[test]
    fn every_limit_has_its_own_sign() {
        let limits = Limits { pids: Some(8), ..Limits::default() };
        let quiet = LimitObservation { limits, ..LimitObservation::default() };
        assert!(kinds(&quiet, &QUIET).is_empty());
        let oom = LimitObservation {
            after: Events { oom_kills: 2, pids_refused: 0, tcp_refused: 0 },
            ..quiet.clone()
        };
        assert_eq!(kinds(&oom, &QUIET), [LimitKind::Memory]);
        let refused = LimitObservation {
            after: Events { oom_kills: 0, pids_refused: 1, tcp_refused: 0 },
            ..quiet.clone()
        };
        assert_eq!(kinds(&refused, &QUIET), [LimitKind::Pids]);
        assert!(
            kinds(&quiet, &CommandOutcome { crowd: 8, ..QUIET }).is_empty(),
            "the kernel counts"
        );
        let tcp = LimitObservation {
            after: Events { tcp_refused: 1, ..Events::default() },
            ..quiet.clone()
        };
        assert_eq!(kinds(&tcp, &QUIET), [LimitKind::Memory]);
        let sockets =
            LimitObservation { excess: Some(SocketExcess::SocketLimits(9, 8)), ..quiet.clone() };
        assert_eq!(kinds(&sockets, &QUIET), [LimitKind::Memory]);
        let other = LimitObservation { uncounted: true, ..quiet.clone() };
        assert_eq!(kinds(&other, &CommandOutcome { crowd: 6, ..QUIET }), [LimitKind::Pids]);
        assert!(kinds(&other, &CommandOutcome { crowd: 5, ..QUIET }).is_empty());
        assert!(kinds(&other, &CommandOutcome { crowd: 8, failed: false, ..QUIET }).is_empty());
        let said = LimitObservation { words: heard(&["sh: 1: Cannot fork"]), ..other };
        assert_eq!(kinds(&said, &QUIET), [LimitKind::Pids]);
        let full = LimitObservation { layer_full: true, ..quiet.clone() };
        assert_eq!(kinds(&full, &CommandOutcome { failed: false, ..QUIET }), [LimitKind::Disk]);
        let dropped = DropCounts { stdout: 0, stderr: 1 };
        let flood = CommandOutcome { dropped, failed: false, ..QUIET };
        assert_eq!(kinds(&quiet, &flood), [LimitKind::Output]);
        assert_eq!(kinds(&oom, &CommandOutcome { timed_out: true, ..QUIET })[0], LimitKind::Wall);
    }
}
