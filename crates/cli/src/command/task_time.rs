//! How long an attempt took, as a person waits for it: its build phase and its command.

use cofferdam_contracts::sandbox::Metrics;
use cofferdam_contracts::step::IN_BUILD;

/// The phases of an attempt in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskTime {
    build_ms: u64,
    exec_ms: u64,
}

impl TaskTime {
    /// Of an attempt with these metrics; `why` is why it failed, by which one whose command never ran is known.
    pub(crate) fn of(metrics: &Metrics, why: Option<&str>) -> Self {
        // The wall time of a build that failed is that of its own command.
        match why.is_some_and(|why| why.starts_with(IN_BUILD)) {
            true => Self { build_ms: metrics.build_ms.max(metrics.wall_ms), exec_ms: 0 },
            false => Self { build_ms: metrics.build_ms, exec_ms: metrics.wall_ms },
        }
    }

    /// All of it, such as `68.0 s`.
    pub(crate) fn total(self) -> String {
        duration(self.total_ms())
    }

    /// All of it in milliseconds.
    pub(crate) fn total_ms(self) -> u64 {
        self.build_ms.saturating_add(self.exec_ms)
    }

    /// Its build phase in milliseconds.
    pub(crate) fn build_ms(self) -> u64 {
        self.build_ms
    }

    /// All of it, and the parts where there are two.
    pub(crate) fn phases(self) -> String {
        match self {
            Self { build_ms: 0, .. } => self.total(),
            Self { exec_ms: 0, .. } => format!("build {}", self.total()),
            Self { build_ms, exec_ms } => {
                format!(
                    "{}: build {}, exec {}",
                    self.total(),
                    duration(build_ms),
                    duration(exec_ms)
                )
            }
        }
    }
}

/// Milliseconds below a second, tenths of a second above.
pub(crate) fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        _ => seconds(ms),
    }
}

/// Tenths of a second, rounded down.
pub(crate) fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_has_the_build_phase_in_it() {
        let time = |build_ms, wall_ms, why| {
            TaskTime::of(&Metrics { build_ms, wall_ms, ..Metrics::default() }, why)
        };
        let said = |build_ms, wall_ms, why| {
            let time = time(build_ms, wall_ms, why);
            (time.total(), time.phases())
        };
        let both = |total: &str, phases: &str| (total.to_owned(), phases.to_owned());
        assert_eq!(said(0, 7, None), both("7 ms", "7 ms"));
        assert_eq!(said(62_140, 5_861, None), both("68.0 s", "68.0 s: build 62.1 s, exec 5.8 s"));
        assert_eq!(said(900, 100, None), both("1.0 s", "1.0 s: build 900 ms, exec 100 ms"));
        let why = Some("in the build phase: exit status 1");
        assert_eq!(said(62_140, 62_000, why), both("62.1 s", "build 62.1 s"));
        assert_eq!(said(0, 0, None), both("0 ms", "0 ms"));
    }
}
