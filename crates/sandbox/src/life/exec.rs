//! A command, and the verdict on how it ended. Pure.

use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_guest::jail;
use cofferdam_guest::wire::{CommandExit, ExecEnd};

use crate::life::limit_watch::{CommandOutcome, LimitObservation};

/// What shells answer where no program was started.
const UNSTARTED: i32 = 127;
/// What they answer where it is there, and may not be executed.
const DENIED: i32 = 126;
const SIGKILL: i32 = 9;
/// Added to a signal's number, as shells do.
const BY_SIGNAL: i32 = 128;

/// Bytes beyond the limit of each stream: read, counted and dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DropCounts {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutcome {
    /// Exit status; 128 + n for signal n; 127 where it did not start, 126 where its program may not be executed.
    pub exit: i32,
    /// Verdict: a timeout before an OOM before a status.
    pub err_code: ErrCode,
    /// Wall time in ms.
    pub wall_ms: u64,
    /// Milliseconds of the command and its waited-for children.
    pub cpu_ms: u64,
    /// Whether the kernel killed a process of the sandbox for memory meanwhile. A command may
    /// survive that and exit with 0.
    pub oom: bool,
    /// Whether the wall time ran out.
    pub timed_out: bool,
    /// Output beyond the limit.
    pub dropped: DropCounts,
    /// The limits that it reached; a command may survive one and exit with 0.
    pub reached: Vec<LimitKind>,
    /// Why, in words, where the code is not NONE; also what else is worth knowing.
    pub cause: Option<String>,
    /// What its jail saw.
    pub seen: Option<jail::JailReport>,
}

/// What the agent said, and what was seen from outside.
pub(crate) fn judge(end: ExecEnd, limit_ms: u64, seen: &LimitObservation) -> ExecOutcome {
    let seen = &seen.inside(end.counted);
    let oom = seen.oom();
    let (exit, mut causes) = match end.ended {
        CommandExit::Exit(0) => (0, Vec::new()),
        CommandExit::Exit(code) => (code, vec![format!("exit status {code}")]),
        CommandExit::Signal(signal) => {
            (BY_SIGNAL + signal, vec![format!("killed by signal {signal}")])
        }
        CommandExit::Unstarted(reason) if end.denied => (DENIED, vec![reason]),
        CommandExit::Unstarted(reason) => (UNSTARTED, vec![reason]),
    };
    let broken = end.seen.as_ref().and_then(|seen| seen.broken.as_ref());
    let stopped = end.seen.as_ref().is_some_and(|seen| seen.stopped);
    let err_code = match (end.timed_out, exit, oom) {
        // Nothing of the command ran.
        _ if broken.is_some() => ErrCode::BootFail,
        (true, _, _) => ErrCode::Timeout,
        (false, 0, _) => ErrCode::None,
        (false, _, true) => ErrCode::Oom,
        (false, _, false) => ErrCode::CmdNonzero,
    };
    if end.timed_out {
        causes = vec![format!("the wall time of {limit_ms} ms ran out")];
    }
    if let Some(broken) = broken {
        causes = vec![format!("this host cannot enforce the policy: {broken}")];
    }
    if stopped {
        causes = vec!["it executed more commands than it may".to_owned()];
    }
    let dropped = DropCounts { stdout: end.dropped_stdout, stderr: end.dropped_stderr };
    let failed = err_code != ErrCode::None;
    let ending = CommandOutcome { failed, timed_out: end.timed_out, dropped, crowd: end.crowd };
    let reached = seen.reached(&ending, &mut causes);
    ExecOutcome {
        exit,
        err_code,
        wall_ms: end.wall_ms,
        cpu_ms: end.cpu_ms,
        oom,
        timed_out: end.timed_out,
        dropped,
        reached,
        cause: (!causes.is_empty()).then(|| causes.join("; ")),
        seen: end.seen,
    }
}

/// The agent never said how the command ended.
pub(crate) fn unheard(
    wall_ms: u64,
    timed_out: bool,
    cause: &str,
    seen: &LimitObservation,
) -> ExecOutcome {
    let oom = seen.oom();
    let err_code = match (timed_out, oom) {
        (true, _) => ErrCode::Timeout,
        (false, true) => ErrCode::Oom,
        (false, false) => ErrCode::CmdNonzero,
    };
    let mut causes = vec![cause.to_owned()];
    let ending =
        CommandOutcome { failed: true, timed_out, dropped: DropCounts::default(), crowd: 0 };
    let reached = seen.reached(&ending, &mut causes);
    ExecOutcome {
        exit: BY_SIGNAL + SIGKILL,
        err_code,
        wall_ms,
        cpu_ms: 0,
        oom,
        timed_out,
        dropped: DropCounts::default(),
        reached,
        cause: Some(causes.join("; ")),
        seen: None,
    }
}

/// The phase's network could not be set up, so the command was not started.
pub(crate) fn unconnected(cause: String) -> ExecOutcome {
    ExecOutcome {
        exit: UNSTARTED,
        err_code: ErrCode::NetFail,
        wall_ms: 0,
        cpu_ms: 0,
        oom: false,
        timed_out: false,
        dropped: DropCounts::default(),
        reached: Vec::new(),
        cause: Some(cause),
        seen: None,
    }
}

/// Adds what else a failed command should be known by.
pub(crate) fn explain(outcome: &mut ExecOutcome, words: String) {
    if outcome.err_code != ErrCode::None {
        let said = outcome.cause.take().map(|cause| format!("{cause}; ")).unwrap_or_default();
        outcome.cause = Some(said + &words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_guest::wire::LimitCounters;

    use crate::host::cgroup::Events;

    fn end(ended: CommandExit) -> ExecEnd {
        ExecEnd { wall_ms: 1, cpu_ms: 1, max_rss_kb: 1, ..ExecEnd::of(ended) }
    }

    fn seen(after: Events) -> LimitObservation {
        LimitObservation { after, ..LimitObservation::default() }
    }

    #[test]
    fn a_status_becomes_an_exit_and_a_code() {
        let quiet = Events::default();
        let code = |ended, after| {
            let outcome = judge(end(ended), 1, &seen(after));
            (outcome.exit, outcome.err_code)
        };
        let killed = Events { oom_kills: 1, pids_refused: 0, tcp_refused: 0 };
        assert_eq!(code(CommandExit::Exit(0), quiet), (0, ErrCode::None));
        assert_eq!(code(CommandExit::Exit(3), quiet), (3, ErrCode::CmdNonzero));
        assert_eq!(code(CommandExit::Signal(11), quiet), (139, ErrCode::CmdNonzero));
        assert_eq!(code(CommandExit::Signal(9), killed), (137, ErrCode::Oom));
        assert_eq!(code(CommandExit::Exit(0), killed), (0, ErrCode::None));
        assert_eq!(code(CommandExit::Unstarted("no".into()), quiet), (127, ErrCode::CmdNonzero));
        let denied = ExecEnd { denied: true, ..end(CommandExit::Unstarted("no".into())) };
        assert_eq!(judge(denied, 1, &seen(quiet)).exit, 126);
    }

    #[test]
    fn a_kernel_of_its_own_counts_instead_of_the_hosts() {
        let counted =
            Some(LimitCounters { oom_kills: 1, pids_refused: 0, layer_full: true, no_routes: 0 });
        let end = ExecEnd { counted, ..end(CommandExit::Signal(9)) };
        let outcome =
            judge(end, 1, &seen(Events { oom_kills: 0, pids_refused: 3, tcp_refused: 0 }));
        assert_eq!((outcome.err_code, outcome.oom), (ErrCode::Oom, true));
        assert_eq!(outcome.reached, [LimitKind::Memory, LimitKind::Disk]);
    }

    #[test]
    fn a_timeout_comes_before_everything_else() {
        let mut late = end(CommandExit::Signal(9));
        late.timed_out = true;
        let outcome =
            judge(late, 7, &seen(Events { oom_kills: 1, pids_refused: 2, tcp_refused: 0 }));
        assert_eq!(outcome.err_code, ErrCode::Timeout);
        assert_eq!(outcome.reached, [LimitKind::Wall, LimitKind::Memory, LimitKind::Pids]);
        let cause = outcome.cause.unwrap();
        assert!(cause.contains("7 ms") && cause.contains("refused 2"), "{cause}");
    }
}
