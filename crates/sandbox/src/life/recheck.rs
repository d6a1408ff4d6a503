//! Another look at a sandbox whose wipe failed.
//!
//! What a sandbox is made of has known paths, so destroying it again looks for those again. What the
//! failed look knew besides (a process by its start, a namespace, the base's digest before the task)
//! stands in its evidence and is looked for by it: **a check that failed is never dropped, it is made
//! again or fails again.**

use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::{
    ProcessIdentity, WipeCheck, WipeEvidence, WipeKind, WipeStatus, WipeSubject,
};

use crate::class;
use crate::host::crypt::attached;
use crate::host::holders::Tables;
use crate::host::hostpath::{HostPath, HostSource, Links};
use crate::host::layer;
use crate::host::process::{self, Process};
use crate::host::task::blocking;
use crate::host::traces::locate;
use crate::life::host::Host;
use crate::life::wipe::{self, BUSY, BaseRecord, WipeTarget};
use crate::spec::facts::HostFacts;

/// Destroys what is left of a sandbox whose last look is given, and gives the evidence of this one.
/// `state_dir` is that of the worker that made it.
pub async fn verify_again(host: &Host, last: &WipeEvidence, state_dir: &Path) -> WipeEvidence {
    let (facts, last) = (host.shared(), last.clone());
    let traces = locate(state_dir, &last.sandbox_id);
    // A root has its writes in the layer, and keeps it.
    let of_layer = [&traces.root, &traces.layer].map(|place| place.display().to_string());
    blocking(move || {
        let mut subject = WipeTarget::found(traces);
        subject.base = base_of(&last, &facts);
        let evidence = wipe::destroy(&facts, &subject, &last.reason);
        merged(evidence, &last, &of_layer)
    })
    .await
}

/// The base by its name in the record, which a tenant may have chosen: opened like any other, but whoever's
/// it was. Nothing of it is shown to anybody, its digest is compared.
fn base_of(last: &WipeEvidence, facts: &HostFacts) -> Option<BaseRecord> {
    let name = last.checks.iter().find(|check| check.kind() == WipeKind::Base)?.subject();
    let ours = ["base", "images"].map(|dir| facts.state_dir.join(dir));
    let at = match ours.iter().any(|dir| Path::new(&name).starts_with(dir)) {
        true => Ok(HostSource::Ours(PathBuf::from(&name))),
        false => {
            let opened = facts.allowed.everything().open(&HostPath::said(&name), Links::Refused);
            opened.map(HostSource::Given).map_err(|error| error.to_string())
        }
    };
    Some(BaseRecord { name, at, digest: last.base_before.clone() })
}

/// The new look and, made again, every failed check of the last one that it does not contain. `of_layer` are the mounts
/// that end with the layer's file system.
fn merged(mut evidence: WipeEvidence, last: &WipeEvidence, of_layer: &[String]) -> WipeEvidence {
    let is_mount = |check: &&WipeCheck| matches!(check.looked, WipeSubject::Mount(_));
    let failed = || last.checks.iter().filter(|check| !check.ok);
    // Whether the layer has ended is known before its mounts are looked at.
    let in_order = failed().filter(|check| !is_mount(check)).chain(failed().filter(is_mount));
    for check in in_order {
        // A mount that stayed busy is on no list any more, though it lives as long as its user.
        let is_detached = match &check.looked {
            WipeSubject::Mount(at) if of_layer.contains(at) && has_layer_ended(&evidence) => false,
            WipeSubject::Mount(_) => check.observed.as_deref().is_some_and(|seen| seen == BUSY),
            _ => false,
        };
        let looked = evidence.checks.iter().position(|new| new.looked == check.looked);
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

/// Whether every layer that was looked for has ended, and at least one was.
fn has_layer_ended(evidence: &WipeEvidence) -> bool {
    let mut layers = evidence
        .checks
        .iter()
        .filter(|check| matches!(check.looked, WipeSubject::Layer { .. }))
        .peekable();
    layers.peek().is_some() && layers.all(|check| check.ok && check.observed.is_none())
}

fn again(check: &WipeCheck) -> WipeCheck {
    let processes = |all: &[ProcessIdentity]| {
        let all = all.iter().map(|one| Process::from(*one));
        let alive: Vec<u32> = all.filter(|one| one.is_alive()).map(|one| one.pid).collect();
        (!alive.is_empty()).then(|| format!("pids {alive:?} are still running"))
    };
    let left = match &check.looked {
        WipeSubject::Process(process) => Some(processes(&[*process])),
        WipeSubject::Others(all) => Some(processes(all)),
        WipeSubject::Netns(name) => Some(netns(name)),
        WipeSubject::Layer { file_system, place } => layer::again(file_system, place),
        // While no device has the image, no file system of it is there to hold a key.
        WipeSubject::Key { image, .. } | WipeSubject::LoopDevice(image) => Some(device_of(image)),
        WipeSubject::Image(image) => {
            Some(Path::new(image).exists().then(|| "still there".to_owned()))
        }
        // A worker of the host looks now.
        WipeSubject::Host(_) => Some(None),
        // What a class had taken away is its class' to find. The others' paths are looked at by the wipe itself, or
        // nothing finds them again.
        WipeSubject::Container { .. }
        | WipeSubject::Mount(_)
        | WipeSubject::Cgroup(_)
        | WipeSubject::EngineCgroup(_)
        | WipeSubject::RuntimeOf(_)
        | WipeSubject::Directory(_)
        | WipeSubject::RuntimeState(_)
        | WipeSubject::Sentinel(_)
        | WipeSubject::Base(_)
        | WipeSubject::CacheBase(_)
        | WipeSubject::SetId(_)
        | WipeSubject::RemoteSandbox { .. }
        | WipeSubject::RemoteListing { .. }
        | WipeSubject::RemoteMarker(_)
        | WipeSubject::Unread { .. } => {
            class::all().find_map(|one| one.custody.custodian()?.again(&check.looked))
        }
    };
    let unknown = || Some("cannot be looked for again".to_owned());
    WipeCheck::new(check.looked.clone(), left.unwrap_or_else(unknown))
}

fn netns(name: &str) -> Option<String> {
    let inside = process::members_of(name);
    let mounted = Tables::read().of_netns(name);
    match (inside.is_empty(), mounted.is_empty()) {
        (false, _) => Some(format!("pids {inside:?} are in it")),
        (true, false) => Some(mounted.join(", ")),
        (true, true) => None,
    }
}

fn device_of(image: &str) -> Option<String> {
    let left = attached(Path::new(image));
    (!left.is_empty()).then(|| format!("{left:?} still has it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::SandboxId;
    use cofferdam_contracts::sandbox::WipeMethod;

    fn check(kind: &str, subject: &str, observed: Option<&str>) -> WipeCheck {
        let looked = WipeSubject::read(WipeKind::parse(kind).unwrap(), subject.to_owned());
        WipeCheck::new(looked, observed.map(str::to_owned))
    }

    fn evidence(checks: Vec<WipeCheck>) -> WipeEvidence {
        let ok = checks.iter().all(|check| check.ok);
        WipeEvidence {
            sandbox_id: SandboxId::parse("sb00000000000000000001").unwrap(),
            method: WipeMethod::Absence,
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
        let of_layer = ["/d/layer", "/d/root"].map(str::to_owned);
        let merged = merged(evidence(new), &evidence(last), &of_layer);
        let left = merged.checks.iter().filter(|check| !check.ok);
        let left: Vec<_> = left
            .map(|c| (c.kind().as_str().to_owned(), c.observed.clone().unwrap_or_default()))
            .collect();
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
    fn a_busy_mount_of_a_layer_ends_with_the_file_system_of_the_layer() {
        let mounts = |seen: Option<&str>| {
            ["/d/layer", "/d/root", "/d/disk"].map(|at| check("mount", at, seen)).to_vec()
        };
        let place = "file system 0:57 id 00000000000000ff of /d/layer";
        let layer = |seen: Option<&str>| check("layer", place, seen);
        let looked = |seen: Option<&str>| {
            let new = [mounts(None), vec![layer(seen)]].concat();
            failed(new, [mounts(Some(BUSY)), vec![layer(Some("is kept by pid 7"))]].concat())
        };
        // A disk is below the layer, and has a file system of its own.
        assert_eq!(looked(None), [("mount".to_owned(), BUSY.to_owned())]);
        assert_eq!(looked(Some("is kept by pid 7")).len(), 4);
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
