//! What the sandbox uses, read where the task could read it too: `/proc` and the root's file system.

use std::fs;

use cofferdam_guest::process::Usage;
use rustix::fs::statvfs;
use rustix::param::{clock_ticks_per_second, page_size};

use crate::machine;

/// The agent is the first process of its sandbox.
const AGENT: u32 = 1;

/// Answers `GET /v1/metrics`: sums over the processes in `/proc`, and the space of `/`.
pub fn usage() -> Usage {
    let mut usage = Usage { no_routes: machine::no_routes(), ..Usage::default() };
    let tick_ms = 1_000 / clock_ticks_per_second().max(1);
    let page_kb = u64::try_from(page_size()).unwrap_or(4_096) / 1_024;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        // One that ended meanwhile is no longer used.
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        let Some((ticks, pages)) = used(&stat, pid == AGENT) else { continue };
        usage.processes += 1;
        usage.cpu_ms += ticks.saturating_mul(tick_ms);
        usage.rss_kb += pages.saturating_mul(page_kb);
        if pid == AGENT {
            usage.agent_rss_kb = pages.saturating_mul(page_kb);
        }
    }
    if let Ok(disk) = statvfs("/") {
        usage.disk_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
        usage.disk_free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    }
    usage
}

/// Processes and threads that are not the agent's own.
pub fn crowd() -> u64 {
    let numbers = |path: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let others = numbers("/proc").filter(|pid| *pid != AGENT);
    let threads = others.map(|pid| numbers(&format!("/proc/{pid}/task")).count());
    u64::try_from(threads.sum::<usize>()).unwrap_or(u64::MAX)
}

/// Clock ticks and resident pages. Children that are gone count at their last ancestor, the agent.
fn used(stat: &[u8], with_children: bool) -> Option<(u64, u64)> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    // proc_pid_stat(5): the state, the third field, is the first here.
    let field = |number: usize| rest.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let own = field(14)? + field(15)?;
    let children = if with_children { field(16)? + field(17)? } else { 0 };
    Some((own + children, field(24)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_hostile_name_is_read() {
        let line = b"7 (a) R 9 9 (b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 70 80 20 0 1 0 9 1000 33 0";
        assert_eq!(used(line, false), Some((110, 33)));
        assert_eq!(used(line, true), Some((260, 33)));
        assert_eq!(used(b"7 (a", true), None);
    }
}
