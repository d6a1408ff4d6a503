//! Versions of runtimes with known vulnerabilities, as their authors published them.
//!
//! A distribution mends one and keeps the version, so a version says what to ask, not what is so.

use super::finding::{Finding, Grade};
use crate::host::runtime::Runtime;

/// A vulnerability, and the first version without it on each line of releases: `[1, 2, 8]` mends 1.2 from 1.2.8 on, and what is
/// older than every line is not mended.
struct Vulnerability {
    runtime: &'static str,
    name: &'static str,
    mended: &'static [&'static [u64]],
    what: &'static str,
}

const VULNERABILITIES: [Vulnerability; 10] = [
    Vulnerability {
        runtime: "crun",
        name: "CVE-2022-27650",
        mended: &[&[1, 4, 4]],
        what: "inheritable capabilities",
    },
    Vulnerability {
        runtime: "crun",
        name: "CVE-2025-24965",
        mended: &[&[1, 20]],
        what: "files of the host written by the krun handler, which Cofferdam does not use",
    },
    Vulnerability {
        runtime: "runc",
        name: "CVE-2019-5736",
        mended: &[&[1, 0, 0]],
        what: "the runtime's own program written from a container",
    },
    Vulnerability {
        runtime: "runc",
        name: "CVE-2021-30465",
        mended: &[&[1, 0, 0]],
        what: "a race of mounts with links",
    },
    Vulnerability {
        runtime: "runc",
        name: "CVE-2022-29162",
        mended: &[&[1, 1, 2]],
        what: "inheritable capabilities",
    },
    Vulnerability {
        runtime: "runc",
        name: "CVE-2023-27561, CVE-2023-28642",
        mended: &[&[1, 1, 5]],
        what: "/proc of the image's own by a link",
    },
    Vulnerability {
        runtime: "runc",
        name: "CVE-2024-21626",
        mended: &[&[1, 1, 12]],
        what: "a leaked descriptor leads to the host's files",
    },
    Vulnerability {
        runtime: "runc",
        name: "CVE-2024-45310",
        mended: &[&[1, 1, 14]],
        what: "empty files made on the host",
    },
    Vulnerability {
        runtime: "runc",
        name: "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
        mended: &[&[1, 2, 8], &[1, 3, 3], &[1, 4, 0]],
        what: "masked paths and writes to /proc led elsewhere",
    },
    Vulnerability {
        runtime: "runsc",
        name: "CVE-2023-7258",
        mended: &[&[20_231_218]],
        what: "the sandbox's kernel crashed by its mounts",
    },
];

/// The numbers of a version; runsc has its release's day. `None`: it cannot be read.
fn numbers(said: &str) -> Option<Vec<u64>> {
    let word = said.split_whitespace().find(|word| word.contains(|c: char| c.is_ascii_digit()))?;
    let day = word.split(|c: char| !c.is_ascii_digit()).find(|part| part.len() == 8);
    if let Some(day) = day {
        return Some(vec![day.parse().ok()?]);
    }
    let plain: String =
        word.chars().take_while(|one| one.is_ascii_digit() || *one == '.').collect();
    plain.split('.').map(|part| part.parse().ok()).collect()
}

fn has(hole: &Vulnerability, version: &[u64]) -> bool {
    let Some(last) = hole.mended.last() else { return true };
    // A line is a version without its last number.
    let line = |mended: &&&[u64]| {
        let line = mended.len().saturating_sub(1);
        mended.get(..line).is_some_and(|line| version.starts_with(line))
    };
    let mended = hole.mended.iter().find(line).unwrap_or(last);
    version < *mended
}

/// What `doctor` says of one.
pub(crate) fn look(runtime: &Runtime) -> Option<Finding> {
    let id = match runtime.name.as_str() {
        "crun" => "crun.version",
        "runc" => "runc.version",
        "runsc" => "runsc.version",
        _ => return None,
    };
    let mend = Some(
        "your distribution may have mended it without changing the version (look at its security tracker): if not, \
         install a newer one",
    );
    let of = VULNERABILITIES.iter().filter(|one| one.runtime == runtime.name);
    let Some(version) = numbers(&runtime.version) else {
        let found = format!("{}: a version that cannot be read", runtime.version);
        return Some(Finding { id, grade: Grade::Weak, found, mend });
    };
    let holes: Vec<String> = of
        .filter(|hole| has(hole, &version))
        .map(|hole| format!("{} ({})", hole.name, hole.what))
        .collect();
    let version = &runtime.version;
    Some(match holes.is_empty() {
        true => {
            let found = format!("{version}: no hole of it is known to this program");
            Finding { id, grade: Grade::Good, found, mend: None }
        }
        false => {
            let found =
                format!("{version}: an upstream version with known holes: {}", holes.join("; "));
            Finding { id, grade: Grade::Weak, found, mend }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(name: &str, version: &str) -> String {
        let runtime =
            Runtime { name: name.into(), path: "/x".into(), version: version.into(), sealed: None };
        let found = look(&runtime).unwrap();
        assert_eq!(found.grade == Grade::Weak, found.mend.is_some());
        found.found
    }

    #[test]
    fn a_version_has_the_holes_that_its_line_mended_later() {
        let debian = holes("runc", "runc version 1.1.5+ds1");
        assert!(debian.contains("CVE-2024-21626") && debian.contains("CVE-2025-31133"), "{debian}");
        assert!(!debian.contains("CVE-2022-29162"), "{debian}");
        assert!(!holes("runc", "runc version 1.2.8").contains("CVE"));
        assert!(holes("runc", "runc version 1.3.2").contains("CVE-2025-52881"));
        assert!(!holes("runc", "runc version 1.3.3").contains("CVE"));
        assert!(!holes("runc", "runc version 1.5.0-rc.1").contains("CVE"));
        assert!(holes("crun", "crun version 1.8.1").contains("CVE-2025-24965"));
        assert!(!holes("crun", "crun version 1.20").contains("CVE"));
        assert!(holes("runsc", "runsc version release-20221107.0").contains("CVE-2023-7258"));
        assert!(holes("runsc", "runsc version 0.0~20221219.0").contains("CVE-2023-7258"));
        assert!(!holes("runsc", "runsc version release-20250101.0").contains("CVE"));
        assert!(holes("crun", "crun version UNKNOWN").contains("cannot be read"));
    }
}
