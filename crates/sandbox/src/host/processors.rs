//! Processors of a sandbox whose time is limited: as many as its limit has use for, so that `nproc`, Go and Node start no more
//! threads than can run. The quota holds whatever a task does with the mask.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Looks for threads that began while others were moved.
const LOOKS: usize = 4;

/// Of util-linux, which every system has that runs a shell of ours.
const TASKSET: &str = "/usr/bin/taskset";

/// Where the next sandbox's processors begin: one after the other, so that all have as many.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Has processes, and what they start, run on as many processors as a limit has use for. Where that is all of them, nobody asks
/// for `members`; where the kernel refuses, nothing changes.
pub(crate) fn pin(cpu: f64, members: impl Fn() -> Vec<u32>) {
    let mut set = CpuSet::new();
    let chosen = choice(cpu);
    if chosen.is_empty() {
        return;
    }
    chosen.iter().for_each(|at| set.set(*at));
    let mut moved = Vec::new();
    for _ in 0..LOOKS {
        let mut threads: Vec<i32> = members().into_iter().flat_map(threads_of).collect();
        threads.retain(|one| !moved.contains(one));
        if threads.is_empty() {
            return;
        }
        for one in threads {
            // It may have ended.
            let _ = sched_setaffinity(Pid::from_raw(one), &set);
            moved.push(one);
        }
    }
}

/// The processors of a sandbox, as the kernel's groups and programs write them; `None`: all of them.
pub(crate) fn list(cpu: f64) -> Option<String> {
    let chosen: Vec<String> = choice(cpu).iter().map(usize::to_string).collect();
    (!chosen.is_empty()).then(|| chosen.join(","))
}

/// What starts a program on these, before its arguments: a kernel that is a program counts its processors once, as it starts.
pub(crate) fn starter(list: &str) -> Vec<String> {
    match Path::new(TASKSET).exists() {
        true => [TASKSET, "-c", list].map(str::to_owned).to_vec(),
        false => Vec::new(),
    }
}

/// Processors of this process for one sandbox; none: all of them.
fn choice(cpu: f64) -> Vec<usize> {
    let Ok(own) = sched_getaffinity(None) else { return Vec::new() };
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|at| own.is_set(*at)).collect();
    let Some(wanted) = useful(cpu, usable.len()) else { return Vec::new() };
    let first = NEXT.fetch_add(wanted.get(), Ordering::Relaxed) % usable.len();
    usable.iter().cycle().skip(first).take(wanted.get()).copied().collect()
}

/// `None`: all of them.
fn useful(cpu: f64, usable: usize) -> Option<NonZeroUsize> {
    let whole: usize = format!("{:.0}", cpu.ceil()).parse().ok()?;
    NonZeroUsize::new(whole).filter(|whole| whole.get() < usable)
}

fn threads_of(pid: u32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_use_for_whole_processors() {
        let of = |cpu| useful(cpu, 4).map(NonZeroUsize::get);
        assert_eq!([0.01, 0.5, 1.0, 1.2, 3.0].map(of), [1, 1, 1, 2, 3].map(Some));
        assert_eq!([4.0, 3.5, 64.0, f64::NAN].map(of), [None; 4]);
    }

    #[test]
    fn what_is_pinned_and_what_it_starts_run_there() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "read _; nproc"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        pin(1.0, || vec![shell.id()]);
        drop(shell.stdin.take());
        let output = shell.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1");
    }
}
