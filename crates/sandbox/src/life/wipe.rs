//! Taking a sandbox away, and looking whether it is gone.
//!
//! ```text
//! measure -> kill -> have an engine or a provider remove it -> watch the layer
//!         -> unmount (a large layer: destroy its key, then unmount its disk)
//!         -> remove cgroups, runtime state, directory, image -> look for each of them, and for copies of the layer
//! ```
//! It never fails: what could not be removed is found by the looking and stands in the evidence.
//! Everything is bounded, and nothing is removed below a directory with something mounted in it.
//!
//! One file: one order of removal and of looking, which is the evidence.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::sandbox::{WipeCheck, WipeEvidence, WipeMethod, WipeStatus, WipeSubject};
use cofferdam_guest::removal::remove_tree;
use nix::sys::statvfs::statvfs;

use crate::class::{self, Isolation, RemoteRemoval};
use crate::host::crypt::{KeyEnd, Volume};
use crate::host::detached_layer::DetachedLayer;
use crate::host::file_system_end::FileSystem;
use crate::host::holders::Tables;
use crate::host::hostpath::HostSource;
use crate::host::idrange::{self, IdRange, RangeRetention};
use crate::host::layer::Layer;
use crate::host::mounts::MountText;
use crate::host::process::{self, Netns, Process};
use crate::host::setid::SetidScan;
use crate::host::traces::Traces;
use crate::host::{base, devices, mounts};
use crate::spec::class::Class;
use crate::spec::facts::HostFacts;

/// How long killed processes may take to leave the process table, a millisecond a try.
const GONE_TRIES: usize = 1_000;

/// What is said of a mount that somebody still uses.
pub(crate) const BUSY: &str = "stayed busy and was only detached";

/// The agent as it was seen alive.
#[derive(Debug, Clone)]
pub(crate) struct AgentProcess {
    pub process: Process,
    /// What else was in its cgroup: in the class `gvisor` the runtime, its file server and its stubs.
    pub others: Vec<Process>,
    /// Whether it is the first process of a pid namespace: its end is the end of all in there.
    pub first: bool,
    pub netns: Option<Netns>,
}

/// What is to be wiped, as far as it is known.
#[derive(Debug, Clone)]
pub(crate) struct WipeTarget {
    pub traces: Traces,
    /// `None`: an orphan, of which only the id is known.
    pub class: Option<Class>,
    pub observed: Option<AgentProcess>,
    /// The base before the task.
    pub base: Option<BaseRecord>,
    /// The cached dependencies below its layer, and their digest before the task.
    pub cache: Option<(PathBuf, Digest)>,
    /// What it writes through to the host.
    pub through: SetidScan,
    /// The base as it is after the task, where that was looked at before the rest.
    pub base_after: Option<BaseLook>,
    /// Its own ids, where it has some and this process took them.
    pub ids: Option<IdRange>,
    /// File systems that lay on its layer until they were taken off their places.
    pub over: Vec<FileSystem>,
    /// Who holds its layer, where that does not end with it.
    pub left: Option<Arc<DetachedLayer>>,
    /// Whether our own runtime process was waited for, so that no other can exist.
    pub runtime_reaped: bool,
}

/// The base of a sandbox as it was before the task.
#[derive(Debug, Clone)]
pub(crate) struct BaseRecord {
    /// For the record.
    pub name: String,
    /// Where it is looked at again, or why it cannot be.
    pub at: Result<HostSource, String>,
    /// `None`: it was too large to be described.
    pub digest: Option<Digest>,
}

/// What a look at the base found: its digest, `None` where it is too large for one, or why it cannot be looked at.
pub(crate) type BaseLook = Result<Option<Digest>, String>;

impl BaseRecord {
    /// Looks at it, where it was described before.
    pub(crate) fn look(&self) -> Option<BaseLook> {
        self.digest.as_ref()?;
        let place = self.at.as_ref().map_err(Clone::clone);
        let looked =
            place.and_then(|at| base::tree_digest(&at.path()).map_err(|why| why.to_string()));
        Some(looked)
    }
}

impl WipeTarget {
    /// A sandbox of which only the id is known.
    pub(crate) fn found(traces: Traces) -> Self {
        Self {
            traces,
            class: None,
            observed: None,
            base: None,
            cache: None,
            base_after: None,
            through: SetidScan::default(),
            ids: None,
            over: Vec::new(),
            left: None,
            runtime_reaped: false,
        }
    }
}

/// Finds the agent, or the kernel that runs it, among the members of the sandbox's cgroup. The runtime's pid file
/// would say the same, but crun writes it later than the agent answers.
pub(crate) fn observe(
    facts: &HostFacts,
    traces: &Traces,
    class: Option<Class>,
) -> Option<(AgentProcess, OwnedFd)> {
    let members = facts.cgroups.members(traces);
    let first = || members.iter().copied().find(|pid| process::is_init(*pid));
    let pid =
        classes_of(class).into_iter().find_map(|one| one.supervision.init(&members)).or_else(first);
    let pid = pid.filter(|pid| process::is_member(*pid, &traces.cgroup))?;
    let init = process::handle(pid)?;
    let process = Process::of(pid).filter(|_| process::is_member(pid, &traces.cgroup))?;
    let others = members.into_iter().filter(|member| *member != pid);
    let others = others.filter_map(Process::of).collect();
    let first = process::is_init(pid);
    Some((AgentProcess { process, others, first, netns: Netns::of(pid) }, init))
}

/// How far a sandbox has ended when its wipe begins.
pub(crate) struct EndState<R> {
    /// Whether no process of it runs any more, so that its mounts are nobody's.
    pub is_dead: bool,
    /// Waits for the end of our own runtime process; whether it was reaped, so that no other can exist.
    pub runtime: R,
}

/// Destroys it and gives the evidence. Blocking, for a few seconds at worst.
pub(crate) fn destroy(facts: &HostFacts, subject: &WipeTarget, reason: &str) -> WipeEvidence {
    let reaped = subject.runtime_reaped;
    destroy_ended(facts, subject, reason, EndState { is_dead: false, runtime: || reaped })
}

/// The same of one whose processes may have ended already: its mounts go while its runtime cleans up.
pub(crate) fn destroy_ended(
    facts: &HostFacts,
    subject: &WipeTarget,
    reason: &str,
    ended: EndState<impl FnOnce() -> bool>,
) -> WipeEvidence {
    let traces = &subject.traces;
    let mut checks = Vec::new();
    let look = || observe(facts, traces, subject.class).map(|(observed, _)| observed);
    // Before anything is killed: in some classes the runtime takes the sandbox along.
    let mut observed = subject.observed.clone().or_else(look);
    facts.cgroups.end_frozen(traces);
    let stays = subject.left.is_some();
    let early = ended.is_dead.then(|| ClearOutcome::of(subject, stays, &mut checks, || ()));
    if !(ended.runtime)() {
        kill_runtimes(traces, &mut checks);
        observed = observed.or_else(look);
    }
    let elsewhere = take_away(facts, subject, &mut checks);
    let end_processes = || facts.cgroups.destroy(traces);
    let cleared = match early {
        Some(cleared) => {
            end_processes();
            cleared
        }
        None => ClearOutcome::of(subject, stays, &mut checks, end_processes),
    };
    let ClearOutcome {
        usage: (upper_bytes, upper_inodes),
        method,
        volume,
        layer,
        has_dev,
        mounted,
    } = cleared;
    let places = [&traces.dir, &traces.runtime_state];
    let left = mounted.as_ref().map(|text| places.map(|dir| text.below(dir)).concat());
    let dev_apart = !has_dev && subject.class.is_none_or(Class::is_on_host_kernel);
    let stays = stays && volume.is_none() && layer.is_some();
    let method = if stays { WipeMethod::LayerKept } else { method };
    let method = elsewhere.as_ref().map_or(method, |gone| gone.method);
    let groups = facts.cgroups.dirs(traces);
    look_for_processes(observed.as_ref(), &groups, &mut checks);
    checks.extend(layer.map(if stays { Layer::stays } else { Layer::check }));
    checks.extend(subject.through.strip());
    checks.push(absent(WipeSubject::Sentinel, &traces.sentinel()));
    remove_dirs(traces, left.as_deref(), &mut checks);
    if let Some(volume) = &volume {
        checks.extend(volume.remove());
    }
    checks.extend(groups.iter().map(|dir| absent(WipeSubject::Cgroup, dir)));
    let (base_before, base_after) = compare_base(subject, &mut checks);
    let (cache_before, cache_after) = compare_cache(subject, &mut checks);
    let ok = checks.iter().all(|check| check.ok);
    give_back(facts, subject, ok);
    WipeEvidence {
        sandbox_id: traces.id.clone(),
        method,
        reason: reason.to_owned(),
        status: if ok { WipeStatus::Verified } else { WipeStatus::Failed },
        wiped_at_ms: clock::now_ms(),
        upper_bytes,
        upper_inodes,
        base_before,
        base_after,
        cache_before,
        cache_after,
        checks,
        not_recheckable: match elsewhere {
            Some(gone) => gone.not_recheckable,
            None => not_recheckable(facts, volume.is_some(), dev_apart),
        },
    }
}

/// What is left of a sandbox when nothing of it is mounted on this host any more.
struct ClearOutcome {
    /// Bytes and inodes that its layer had.
    usage: (u64, u64),
    method: WipeMethod,
    /// Where its layer was encrypted on disk.
    volume: Option<Volume>,
    layer: Option<Layer>,
    /// Whether `/dev`, with its shared memory, was a part of the layer.
    has_dev: bool,
    /// What is mounted on this host now; `None` if that cannot be known.
    mounted: Option<MountText>,
}

impl ClearOutcome {
    /// Measures its layer, has its processes ended and unmounts all.
    fn of(
        WipeTarget { traces, over, .. }: &WipeTarget,
        stays: bool,
        checks: &mut Vec<WipeCheck>,
        end_processes: impl FnOnce(),
    ) -> Self {
        let mut points = points_of(traces, over);
        let usage = usage(&traces.layer, &points);
        end_processes();
        let volume = Volume::of(traces);
        let volume = volume.is_there(&points).then_some(volume);
        if let Some(volume) = &volume {
            volume.reach(&points);
            points = mounts::mounted_below(&traces.dir).unwrap_or_default();
        }
        // Of a large one the end of its key is the proof: what others still have mounted is ciphertext.
        let layer = Layer::of(traces, &points, over, stays).filter(|_| volume.is_none());
        let has_dev = layer.is_some() && devices::of(&traces.layer).exists();
        // Of one that stays the end is looked for later, and tells of whoever has any of it now.
        let is_watched = layer.as_ref().is_some_and(|layer| stays || layer.is_watched());
        let UnmountOutcome { left: mounted, key } =
            unmount_all(traces, &points, is_watched, stays && layer.is_some(), checks);
        let method = method(volume.is_some(), key.as_ref(), &points);
        checks.extend(key.map(|end| end.check));
        Self { usage, method, volume, layer, has_dev, mounted }
    }
}

/// What is mounted below its directory. Of one whose root was taken off its place little is left, at places that are known: what is
/// mounted elsewhere is found when all is unmounted.
fn points_of(traces: &Traces, taken_off: &[FileSystem]) -> Vec<PathBuf> {
    let few = [&traces.root, &traces.layer, &traces.disk];
    let asked = few.map(|at| mounts::is_mount_point(at).map(|there| (at, there)));
    match asked {
        [Some((_, false)), Some(layer), Some(disk)] if !taken_off.is_empty() => {
            let all = [layer, disk].into_iter().filter(|(_, there)| *there);
            all.map(|(at, _)| at.clone()).collect()
        }
        _ => mounts::mounted_below(&traces.dir).unwrap_or_default(),
    }
}

/// Has its class take away what others hold of it. Of an orphan only the id is known, so every class is asked.
fn take_away(
    facts: &HostFacts,
    subject: &WipeTarget,
    checks: &mut Vec<WipeCheck>,
) -> Option<RemoteRemoval> {
    let mut elsewhere = None;
    for isolation in classes_of(subject.class) {
        let custodian = isolation.custody.custodian();
        let taken = custodian.map(|one| one.take_away(&subject.traces, facts)).unwrap_or_default();
        checks.extend(taken.checks);
        elsewhere = elsewhere.or(taken.elsewhere);
    }
    elsewhere
}

/// Its own class, or every one where it is not known.
fn classes_of(class: Option<Class>) -> Vec<Isolation> {
    class.map_or_else(|| class::all().collect(), |class| vec![class::of(class)])
}

/// Its ids are another's once it is known to be gone, and nobody's before.
fn give_back(facts: &HostFacts, subject: &WipeTarget, is_gone: bool) {
    let dir = &subject.traces.dir;
    // The files that stay have owners among them.
    if subject.left.is_some() {
        return idrange::keep(dir, RangeRetention::Layer);
    }
    if !is_gone {
        return idrange::keep(dir, RangeRetention::Failed);
    }
    idrange::give_back(dir, subject.ids.as_ref().map(|taken| taken.first));
    if let (Ok(ranges), Some(taken)) = (&facts.ids, &subject.ids) {
        ranges.recycle(taken.clone());
    }
}

/// How it was taken away.
fn method(encrypted: bool, key: Option<&KeyEnd>, points: &[PathBuf]) -> WipeMethod {
    match (encrypted, key) {
        (true, Some(end)) if end.destroyed => WipeMethod::FscryptKeyDestroyed,
        // Its file system, and with it the key, was gone before, or had no key yet.
        (true, _) => WipeMethod::FscryptImageDeleted,
        (false, _) if points.is_empty() => WipeMethod::Absence,
        (false, _) => WipeMethod::TmpfsUnmount,
    }
}

fn not_recheckable(facts: &HostFacts, encrypted: bool, dev_apart: bool) -> Vec<String> {
    let mut said = vec![
        "that the freed pages of the tmpfs are overwritten: the kernel does so when it hands them \
         out again"
            .to_owned(),
        "process, namespace and mount numbers: the kernel may use them again".to_owned(),
        "whether an administrator of the host entered its network namespace from outside and is \
         still there, or keeps it by an open file or by a mount that neither the worker nor the \
         host's first process sees"
            .to_owned(),
    ];
    if encrypted {
        said.extend(
            [
                "that the kernel overwrote the key of the layer: its file system, the only one that had \
                 it, is gone",
                "the freed blocks of the image: they are ciphertext, but for sizes, owners, modes, times \
                 and extended attributes",
            ]
            .map(str::to_owned),
        );
    }
    if dev_apart {
        said.push(
            "whether a process of the host holds open what the sandbox wrote in /dev or /dev/shm, \
             as far as these were no part of its layer"
                .to_owned(),
        );
    }
    if facts.swap {
        said.push("what the kernel moved to the swap device while the sandbox lived".to_owned());
    }
    said
}

/// Bytes and inodes that are in use in a mounted layer; zeros where nothing is mounted there.
fn usage(layer: &Path, points: &[PathBuf]) -> (u64, u64) {
    if !points.iter().any(|point| point == layer) {
        return (0, 0);
    }
    let Ok(stat) = statvfs(layer) else { return (0, 0) };
    let blocks = stat.blocks().saturating_sub(stat.blocks_free());
    let inodes = stat.files().saturating_sub(stat.files_free());
    (blocks.saturating_mul(stat.fragment_size()), inodes)
}

/// A runtime whose worker died may still be on its way to a sandbox.
fn kill_runtimes(traces: &Traces, checks: &mut Vec<WipeCheck>) {
    let mut left = Vec::new();
    for _ in 0..GONE_TRIES {
        left = process::runtimes_of(traces.id.as_str(), &traces.dir);
        if left.is_empty() {
            break;
        }
        left.iter().filter_map(|pid| process::handle(*pid)).for_each(|one| process::kill(&one));
        clock::sleep_blocking(Duration::from_millis(1));
    }
    let seen = (!left.is_empty()).then(|| format!("pids {left:?}"));
    checks.push(WipeCheck::new(WipeSubject::RuntimeOf(traces.id.to_string()), seen));
}

struct UnmountOutcome {
    /// What is mounted on this host afterwards; `None` if that cannot be known.
    left: Option<MountText>,
    /// Of a large layer that was mounted.
    key: Option<KeyEnd>,
}

/// Unmounts everything, the last mounted first; a key is destroyed when its file system alone is left. **Where the layer's
/// end is watched the root goes at once, with all that is mounted in it**: whoever still uses any of it keeps the layer,
/// or has what is the host's. Each of these mounts alone would wait for every processor of the host. A layer that stays is its
/// pause's, whose sealer may read it by this very mount.
fn unmount_all(
    traces: &Traces,
    points: &[PathBuf],
    is_watched: bool,
    stays: bool,
    checks: &mut Vec<WipeCheck>,
) -> UnmountOutcome {
    let mut faults = Vec::new();
    let mut key = None;
    let is_gone =
        is_watched && points.contains(&traces.root) && mounts::detach(&traces.root).is_ok();
    for point in points.iter().filter(|point| !is_gone || !point.starts_with(&traces.root)) {
        if *point == traces.disk {
            key = Volume::of(traces).end_key();
        }
        if stays && *point == traces.layer && mounts::detach(point).is_ok() {
            continue;
        }
        let fault = match mounts::unmount(point) {
            Ok(true) => continue,
            Ok(false) => BUSY.to_owned(),
            Err(error) => error.to_string(),
        };
        faults.push((point.clone(), fault));
    }
    let mut left = MountText::read();
    let more = left.as_ref().map(|text| text.below(&traces.dir)).unwrap_or_default();
    let has_fault = |point: &PathBuf| faults.iter().any(|(at, _)| at == point);
    // Mounted meanwhile, or where nobody knew of.
    let more: Vec<PathBuf> = more.into_iter().filter(|point| !has_fault(point)).collect();
    if !more.is_empty() {
        for point in more {
            // Nobody has seen whether these have ended: they are looked at again.
            let fault = match mounts::unmount(&point) {
                Ok(true) => "it was mounted besides".to_owned(),
                Ok(false) => BUSY.to_owned(),
                Err(error) => error.to_string(),
            };
            faults.push((point, fault));
        }
        left = MountText::read();
    }
    for at in [&traces.root, &traces.layer, &traces.disk] {
        let fault = faults.iter().find(|(point, _)| point == at).map(|(_, fault)| fault.clone());
        let seen = match left.as_ref().map(|text| text.below(at)) {
            Ok(points) if points.contains(at) => Some("still mounted".to_owned()),
            Ok(_) => fault,
            Err(error) => Some(format!("mountinfo cannot be read: {error}")),
        };
        checks.push(WipeCheck::new(WipeSubject::Mount(at.display().to_string()), seen));
    }
    UnmountOutcome { left: left.ok(), key }
}

fn look_for_processes(
    observed: Option<&AgentProcess>,
    groups: &[PathBuf],
    checks: &mut Vec<WipeCheck>,
) {
    let Some(observed) = observed else { return };
    let alive = survivors(std::slice::from_ref(&observed.process));
    let gone = alive.is_empty();
    let seen = (!gone).then(|| "still running".to_owned());
    checks.push(WipeCheck::new(WipeSubject::Process(observed.process.into()), seen));
    if !observed.others.is_empty() {
        let alive = survivors(&observed.others);
        let seen = (!alive.is_empty()).then(|| format!("pids {alive:?} are still running"));
        let others = observed.others.iter().map(|one| (*one).into()).collect();
        checks.push(WipeCheck::new(WipeSubject::Others(others), seen));
    }
    if let Some(netns) = &observed.netns {
        // Nobody is in it, and our own handle, the last, is closed with this subject. Everybody who
        // was born in it was in this pid namespace and in these groups: the kernel kills all of the
        // one with its first process, and gives up no group that has a member. Only without that,
        // or where it is not the sandbox's own, is every process of the host asked, which takes
        // longer the more there are.
        let is_own = Netns::of(std::process::id()).is_some_and(|ours| ours.name != netns.name);
        let left = groups.iter().any(|dir| dir.exists());
        let ended = observed.first && gone && is_own && !left;
        let inside = if ended { Vec::new() } else { netns.members() };
        let mounted = || Tables::nearest().of_netns(&netns.name);
        let seen = match inside.is_empty() {
            true => Some(mounted()).filter(|all| !all.is_empty()).map(|all| all.join(", ")),
            false => Some(format!("pids {inside:?} are in it")),
        };
        checks.push(WipeCheck::new(WipeSubject::Netns(netns.name.clone()), seen));
    }
}

/// Those that do not end in time.
fn survivors(all: &[Process]) -> Vec<u32> {
    let mut alive = Vec::new();
    for _ in 0..GONE_TRIES {
        alive = all.iter().filter(|one| one.is_alive()).map(|one| one.pid).collect();
        if alive.is_empty() {
            break;
        }
        clock::sleep_blocking(Duration::from_millis(1));
    }
    alive
}

fn remove_dirs(traces: &Traces, mounted: Option<&[PathBuf]>, checks: &mut Vec<WipeCheck>) {
    checks.push(remove_dir(WipeSubject::RuntimeState, &traces.runtime_state, mounted));
    checks.push(remove_dir(WipeSubject::Directory, &traces.dir, mounted));
}

fn remove_dir(
    looked: fn(String) -> WipeSubject,
    dir: &Path,
    mounted: Option<&[PathBuf]>,
) -> WipeCheck {
    let removed = match mounted.is_some_and(|all| all.iter().all(|point| !point.starts_with(dir))) {
        true => remove_tree(dir),
        false => Err(io::Error::other("something is still mounted in it")),
    };
    let mut after = absent(looked, dir);
    if let (false, Err(error)) = (after.ok, removed) {
        after.observed = Some(error.to_string());
    }
    after
}

fn compare_base(
    subject: &WipeTarget,
    checks: &mut Vec<WipeCheck>,
) -> (Option<Digest>, Option<Digest>) {
    let Some(below @ BaseRecord { name, digest: Some(before), .. }) = &subject.base else {
        return (None, None);
    };
    let (after, seen) = match subject.base_after.clone().or_else(|| below.look()) {
        Some(Ok(Some(after))) if after == *before => (Some(after), None),
        Some(Ok(after)) => (after, Some("its digest changed".to_owned())),
        Some(Err(why)) => (None, Some(why)),
        None => (None, Some("it was not looked at".to_owned())),
    };
    checks.push(WipeCheck::new(WipeSubject::Base(name.clone()), seen));
    (Some(before.clone()), after)
}

fn compare_cache(
    subject: &WipeTarget,
    checks: &mut Vec<WipeCheck>,
) -> (Option<Digest>, Option<Digest>) {
    let Some((path, before)) = &subject.cache else { return (None, None) };
    let (after, seen) = match base::tree_digest_of(path, usize::MAX) {
        Ok(Some(after)) if after == *before => (Some(after), None),
        Ok(after) => (after, Some("its digest changed".to_owned())),
        Err(error) => (None, Some(error.to_string())),
    };
    checks.push(WipeCheck::new(WipeSubject::CacheBase(path.display().to_string()), seen));
    (Some(before.clone()), after)
}

fn absent(what: fn(String) -> WipeSubject, path: &Path) -> WipeCheck {
    let seen = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(error.to_string()),
        Ok(_) => Some("still there".to_owned()),
    };
    WipeCheck::new(what(path.display().to_string()), seen)
}
