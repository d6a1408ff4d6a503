//! Another look at a sandbox whose wipe failed.
//!
//! What a sandbox is made of has known places, so destroying it again looks for those again. What the
//! failed look knew besides (a process by its start, a namespace, the base's digest before the task)
//! stands in its evidence and is looked for by it: **a check that failed is never dropped, it is made
//! again or fails again.**

use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::{WipeCheck, WipeEvidence, WipeStatus};

use crate::boot::blocking;
use crate::crypt::attached;
use crate::docker;
use crate::holders::Tables;
use crate::host::{Host, HostFacts};
use crate::hostpath::{HostPath, Links, Place};
use crate::layer;
use crate::process::{self, Process};
use crate::traces::locate;
use crate::wipe::{self, BUSY, Below, Subject};

/// Destroys what is left of a sandbox whose last look is given, and gives the evidence of this one.
/// `state_dir` is that of the worker that made it.
pub async fn verify_again(host: &Host, last: &WipeEvidence, state_dir: &Path) -> WipeEvidence {
    let (facts, last) = (host.shared(), last.clone());
    let traces = locate(state_dir, &last.sandbox_id);
    blocking(move || {
        let mut subject = Subject::found(traces);
        subject.base = base_of(&last, &facts);
        let evidence = wipe::destroy(&facts, &subject, &last.reason);
        merged(evidence, &last)
    })
    .await
}

/// The base by its name in the record, which a tenant may have chosen: opened like any other, but whoever's
/// it was. Nothing of it is shown to anybody, its digest is compared.
fn base_of(last: &WipeEvidence, facts: &HostFacts) -> Option<Below> {
    let name = last.checks.iter().find(|check| check.kind == "base")?.subject.clone();
    let ours = ["base", "images"].map(|dir| facts.state_dir.join(dir));
    let at = match ours.iter().any(|dir| Path::new(&name).starts_with(dir)) {
        true => Ok(Place::Ours(PathBuf::from(&name))),
        false => {
            let opened = facts.allowed.everything().open(&HostPath::said(&name), Links::Refused);
            opened.map(Place::Given).map_err(|error| error.to_string())
        }
    };
    Some(Below { name, at, digest: last.base_before.clone() })
}

/// The new look and, made again, every failed check of the last one that it does not contain.
fn merged(mut evidence: WipeEvidence, last: &WipeEvidence) -> WipeEvidence {
    let failed = last.checks.iter().filter(|check| !check.ok);
    for check in failed {
        // A mount that stayed busy is on no list any more, though it lives as long as its user.
        let is_detached =
            check.kind == "mount" && check.observed.as_deref().is_some_and(|seen| seen == BUSY);
        let looked = evidence
            .checks
            .iter()
            .position(|new| new.kind == check.kind && new.subject == check.subject);
        match (looked, is_detached) {
            (Some(_), false) => {}
            (Some(at), true) => {
                if let Some(new) = evidence.checks.get_mut(at) {
                    new.clone_from(check);
                }
            }
            (None, _) => evidence.checks.push(again(check)),
        }
    }
    if evidence.checks.iter().any(|check| !check.ok) {
        evidence.status = WipeStatus::Failed;
    }
    evidence
}

fn again(check: &WipeCheck) -> WipeCheck {
    let left = match check.kind.as_str() {
        "process" => processes(&check.subject).map(|all| {
            let alive: Vec<u32> =
                all.into_iter().filter(|one| one.is_alive()).map(|one| one.pid).collect();
            (!alive.is_empty()).then(|| format!("pids {alive:?} are still running"))
        }),
        "netns" => {
            let inside = process::members_of(&check.subject);
            let mounted = Tables::read().of_netns(&check.subject);
            Some(match (inside.is_empty(), mounted.is_empty()) {
                (false, _) => Some(format!("pids {inside:?} are in it")),
                (true, false) => Some(mounted.join(", ")),
                (true, true) => None,
            })
        }
        layer::KIND => layer::again(&check.subject),
        // While no device has the image, no file system of it is there to hold a key.
        "key" => check.subject.split_once(" of ").map(|(_, image)| device_of(image)),
        "loop-device" => Some(device_of(&check.subject)),
        "image" => Some(Path::new(&check.subject).exists().then(|| "still there".to_owned())),
        "container" => Some(docker::again(&check.subject)),
        // Somebody looks now.
        "host" => Some(None),
        _ => None,
    };
    let unknown = || Some("cannot be looked for again".to_owned());
    let observed = left.unwrap_or_else(unknown);
    WipeCheck { ok: observed.is_none(), observed, ..check.clone() }
}

fn device_of(image: &str) -> Option<String> {
    let left = attached(Path::new(image));
    (!left.is_empty()).then(|| format!("{left:?} still has it"))
}

/// The processes that a check names, as [`wipe`] writes them; `None` where it names none.
fn processes(subject: &str) -> Option<Vec<Process>> {
    let words: Vec<&str> = subject.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let found: Vec<Process> = words
        .windows(4)
        .filter_map(|four| match four {
            ["pid", pid, "started", at] => {
                Some(Process { pid: pid.parse().ok()?, started: at.parse().ok()? })
            }
            _ => None,
        })
        .collect();
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::SandboxId;

    fn check(kind: &str, subject: &str, observed: Option<&str>) -> WipeCheck {
        WipeCheck {
            kind: kind.into(),
            subject: subject.into(),
            ok: observed.is_none(),
            observed: observed.map(str::to_owned),
        }
    }

    fn evidence(checks: Vec<WipeCheck>) -> WipeEvidence {
        let ok = checks.iter().all(|check| check.ok);
        WipeEvidence {
            sandbox_id: SandboxId::parse("sb00000000000000000001").unwrap(),
            method: "absence".into(),
            reason: "task-end".into(),
            status: if ok { WipeStatus::Verified } else { WipeStatus::Failed },
            wiped_at_ms: 1,
            upper_bytes: 0,
            upper_inodes: 0,
            base_before: None,
            base_after: None,
            cache_before: None,
            cache_after: None,
            checks,
            not_recheckable: Vec::new(),
        }
    }

    fn failed(new: Vec<WipeCheck>, last: Vec<WipeCheck>) -> Vec<(String, String)> {
        let merged = merged(evidence(new), &evidence(last));
        let left = merged.checks.iter().filter(|check| !check.ok);
        let left: Vec<_> =
            left.map(|c| (c.kind.clone(), c.observed.clone().unwrap_or_default())).collect();
        assert_eq!(merged.status == WipeStatus::Failed, !left.is_empty());
        left
    }

    #[test]
    fn what_is_looked_for_again_and_not_found_is_verified() {
        let new = vec![check("directory", "/d", None), check("mount", "/d/layer", None)];
        let last = vec![
            check("directory", "/d", Some("still there")),
            check("mount", "/d/layer", Some("still mounted")),
            check("host", "0123", Some("nobody to look")),
            check("process", "pid 4194303 started 1", Some("still running")),
            check("key", "fscrypt 00 of /gone/layers/a.img", Some("after: incompletely removed")),
            check("loop-device", "/gone/layers/a.img", Some("/dev/loop0 still has it")),
            check("image", "/gone/layers/a.img", Some("still there")),
        ];
        assert_eq!(failed(new, last), []);
    }

    #[test]
    fn what_cannot_be_looked_for_again_stays_failed() {
        let new = vec![check("mount", "/d/layer", None)];
        let last = vec![
            check("mount", "/d/layer", Some(BUSY)),
            check("base", "/b", Some("its digest changed")),
            check("process", "runtime of sb1", Some("pids [7]")),
            check("image", "/proc/version", Some("still there")),
        ];
        let unknown = "cannot be looked for again".to_owned();
        let left = failed(new, last);
        assert_eq!(
            left,
            [
                ("mount".to_owned(), BUSY.to_owned()),
                ("base".to_owned(), unknown.clone()),
                ("process".to_owned(), unknown),
                ("image".to_owned(), "still there".to_owned()),
            ]
        );
    }

    #[test]
    fn a_process_is_found_by_its_start_and_not_by_its_pid_alone() {
        let me = Process::of(std::process::id()).unwrap();
        let at = |started: u64| {
            format!("others of its cgroup: pid 1 started 0, pid {} started {started}", me.pid)
        };
        let last = |started| vec![check("process", &at(started), Some("alive"))];
        assert_eq!(failed(Vec::new(), last(me.started + 1)), []);
        let left = failed(Vec::new(), last(me.started));
        assert!(left[0].1.contains(&me.pid.to_string()), "{left:?}");
    }
}
