//! Capabilities: what the task's root holds, and what it can do with it.

use nix::sys::resource::Resource as RlimitKind;
use nix::unistd::{gethostname, sethostname};
use rustix::process::{
    Pid, Resource, Rlimit, getrlimit, setpriority_process, setrlimit, test_kill_process,
};

use super::answer::{failed, said, status};
use super::entry::{Probe, probe};

const NONE: &[&str] = &["0000000000000000"];
/// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE.
const EIGHT: &[&str] = &["00000000000004fb"];

const HELD: &[&str] = &["held"];
/// What the host's root itself needs of what is counted for each user.
const MAX_SIGNALS: u64 = 4_096;
const MAX_QUEUE_BYTES: u64 = 409_600;

/// A hard limit of this process.
fn at_most(resource: RlimitKind, most: u64) -> String {
    match nix::sys::resource::getrlimit(resource) {
        Ok((_, hard)) if hard <= most => "held".to_owned(),
        Ok((_, hard)) => hard.to_string(),
        Err(error) => failed(&error.into()),
    }
}

pub const PROBES: &[Probe] = &[
    probe("cap.effective", "hold more capabilities than eight", EIGHT, |_| status("CapEff")),
    probe("cap.permitted", "take more capabilities than eight", EIGHT, |_| status("CapPrm")),
    probe("cap.bounding", "gain more capabilities than eight", EIGHT, |_| status("CapBnd")),
    probe("cap.inheritable", "pass capabilities on", NONE, |_| status("CapInh")),
    probe("cap.ambient", "keep capabilities as another user", NONE, |_| status("CapAmb")),
    probe("cap.no-new-privileges", "gain privileges by a set-uid program", &["1"], |_| {
        status("NoNewPrivs")
    }),
    probe("cap.hostname", "change the name of the machine", &["EPERM"], |_| {
        // To the name that it has.
        match gethostname() {
            Ok(name) => said(sethostname(name)),
            Err(error) => failed(&error.into()),
        }
    }),
    probe("cap.priority", "run before others", &["EACCES", "EPERM"], |_| {
        said(setpriority_process(None, -20))
    }),
    probe("cap.limits", "raise its own hard limits", &["EPERM"], |_| {
        let Rlimit { current, maximum } = getrlimit(Resource::Core);
        let more = Rlimit { current, maximum: maximum.map_or(Some(0), |most| Some(most + 1)) };
        said(setrlimit(Resource::Core, more))
    }),
    probe("limit.signals", "let many signals and timers wait", HELD, |_| {
        at_most(RlimitKind::RLIMIT_SIGPENDING, MAX_SIGNALS)
    }),
    probe("limit.queues", "take the memory of message queues", HELD, |_| {
        at_most(RlimitKind::RLIMIT_MSGQUEUE, MAX_QUEUE_BYTES)
    }),
    probe("limit.core", "leave a dump where the host keeps them", HELD, |_| {
        at_most(RlimitKind::RLIMIT_CORE, 1)
    }),
    probe("cap.oom-score", "make the kernel kill others first", &["EACCES", "EPERM"], |_| {
        said(std::fs::write("/proc/self/oom_score_adj", "-1000"))
    }),
    probe("cap.host-signal", "signal a process of the host", &["ESRCH"], |setting| {
        match Pid::from_raw(setting.host_pid) {
            Some(pid) => said(test_kill_process(pid)),
            None => "no pid was given".to_owned(),
        }
    }),
];
