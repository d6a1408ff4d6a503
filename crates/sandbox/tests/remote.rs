//! The class `remote`: what a sandbox elsewhere does, and what happens when its provider fails.
//!
//! The provider is a stand-in (`support/provider.rs`): its API is written by us, its sandboxes are
//! containers of this host.
//!
//! One file: one provider and its failures, in the order of a sandbox's life.

use crate::provider;
use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{
    ErrCode, IsolationClass, Phase, ViolationReason, WipeEvidence, WipeStatus,
};
use cofferdam_sandbox::{
    Class, Command, Host, HostConfig, HostError, Input, Key, Offer, Plan, RemoteConfig,
    RemoteLocation, ResumeError, Sandbox, SandboxError, Stream, locate, plan, provision, reconcile,
    resume, verify_again,
};
use provider::{Fault, StandIn};
use serde_json::{Value, json};
use support::plain::plain;
use support::{Bench, SLEEPERS, fresh_id, run, sh, with_bench};
use tempfile::TempDir;
use tokio::sync::watch;

/// A worker whose sandboxes the stand-in holds.
struct Worker {
    host: Host,
    state: TempDir,
    hosts: BTreeMap<String, SocketAddr>,
}

async fn detected(
    state: &Path,
    remote: Option<RemoteConfig>,
    hosts: BTreeMap<String, SocketAddr>,
) -> Result<Host, HostError> {
    let runtime = remote.is_some().then(|| "remote".to_owned());
    let config = HostConfig {
        state_dir: state.to_owned(),
        allowed_roots: Vec::new(),
        runtime,
        hosts,
        remote,
    };
    tokio::task::spawn_blocking(move || Host::detect(config)).await.unwrap()
}

impl Worker {
    async fn of(config: RemoteConfig) -> Self {
        Self::with_hosts(config, BTreeMap::new()).await
    }

    async fn with_hosts(config: RemoteConfig, hosts: BTreeMap<String, SocketAddr>) -> Self {
        let state = tempfile::tempdir().unwrap();
        let host = detected(state.path(), Some(config), hosts.clone()).await.unwrap();
        Self { host, state, hosts }
    }

    fn plan(&self, fields: Value) -> Plan {
        let mut whole = json!({"envRef": "host", "cmd": ["true"], "timeoutMs": 20_000});
        for (name, value) in fields.as_object().unwrap() {
            whole[name] = value.clone();
        }
        let plan = plan(&serde_json::from_value(whole).unwrap(), &fresh_id(), self.host.facts());
        let plan = plan.unwrap();
        assert_eq!(plan.class, Class::Remote);
        plan
    }

    async fn start(&self, fields: Value) -> (Sandbox, Plan) {
        let plan = self.plan(fields);
        (provision(&self.host, &plan, &[]).await.unwrap(), plan)
    }

    /// A sandbox whose worker is killed: with its runtime everything ends that could tell the provider.
    async fn lost(&self) -> SandboxId {
        let (host, plan) = (self.host.clone(), self.plan(json!({})));
        let made = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let sandbox = runtime.block_on(provision(&host, &plan, &[])).unwrap();
            drop(runtime);
            sandbox.id().clone()
        };
        tokio::task::spawn_blocking(made).await.unwrap()
    }

    /// A worker that came after this one, on the same state.
    async fn next(self, config: RemoteConfig) -> Self {
        let Self { host, state, hosts } = self;
        drop(host);
        let host = detected(state.path(), Some(config), hosts.clone()).await.unwrap();
        Self { host, state, hosts }
    }

    /// Nothing of any sandbox is here.
    fn assert_clean(self) {
        self.host.leave();
        let left: Vec<_> =
            fs::read_dir(self.state.path().join("remote")).unwrap().flatten().collect();
        let names: Vec<_> = left.iter().map(std::fs::DirEntry::file_name).collect();
        assert_eq!(names, ["tag"]);
        // Where the state directory is in memory it is the live one too, and keeps its empty directories.
        let sandboxes = fs::read_dir(self.host.facts().live_dir.join("sandboxes"));
        assert_eq!(sandboxes.into_iter().flatten().count(), 0);
    }
}

/// A test on a host with a provider; neither may have anything left.
fn with_provider<F: Future<Output = ()>>(test: impl FnOnce(Arc<StandIn>) -> F) {
    with_bench(|bench: Arc<Bench>| async move {
        let provider = Arc::new(StandIn::start(&bench.host).await);
        test(Arc::clone(&provider)).await;
        let provider = Arc::into_inner(provider).expect("the test is done with its provider");
        provider.close().await;
    });
}

fn gone(evidence: &WipeEvidence) {
    assert_eq!(evidence.status, WipeStatus::Verified, "{evidence:#?}");
    assert_eq!(evidence.method, "remote-absence");
    for kind in ["remote-sandbox", "remote-listing", "remote-marker", "directory"] {
        assert!(evidence.checks.iter().any(|check| check.kind() == kind), "{kind}: {evidence:#?}");
    }
    assert!(evidence.not_recheckable.iter().any(|text| text.contains("the provider's answers")));
}

fn held(evidence: &WipeEvidence, words: &str) {
    assert_eq!(evidence.status, WipeStatus::Failed, "{evidence:#?}");
    let seen = evidence.checks.iter().filter_map(|check| check.observed.as_deref());
    assert!(seen.clone().any(|text| text.contains(words)), "{words}: {evidence:#?}");
}

/// Until the provider holds so many, ten seconds at most.
async fn until_held(provider: &StandIn, count: usize) {
    for _ in 0..200 {
        if provider.held() == count {
            return;
        }
        clock::sleep(Duration::from_millis(50)).await;
    }
    panic!("the provider holds {}, not {count}", provider.held());
}

#[test]
fn a_sandbox_elsewhere_runs_commands_takes_files_and_gives_them_back() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let fields = json!({"env": {"WHO": "world"}, "workdir": "/srv/task", "limits": {"outputBytes": 100_000}});
        let plan = worker.plan(fields);
        let script = b"echo in; echo out > made.txt".to_vec();
        let input = Input::Bytes { path: "/srv/task/in.sh".into(), bytes: script, mode: 0o755 };
        let large: Vec<u8> = (0..750_000_u32).flat_map(u32::to_be_bytes).collect();
        let big = Input::Bytes { path: "/srv/task/big".into(), bytes: large.clone(), mode: 0o644 };
        let sandbox = provision(&worker.host, &plan, &[input, big]).await.unwrap();
        let effective = sandbox.effective();
        assert_eq!(effective.isolation_class, IsolationClass::Remote);
        assert_eq!(
            (effective.image.as_str(), effective.limits.mem_mb),
            ("template:base", Some(256))
        );
        assert_eq!((effective.limits.cpu, effective.limits.pids), (Some(2.0), None));
        let facts = worker.host.attest(effective).await;
        assert_eq!((facts.runtime.as_str(), facts.cgroups.as_str()), ("remote", "remote"));
        assert!(facts.runtime_version.contains(&provider.url()), "{}", facts.runtime_version);
        for (text, exit, code) in [
            ("exit 3", 3, ErrCode::CmdNonzero),
            ("kill -SEGV $$", 139, ErrCode::CmdNonzero),
            ("exit 0", 0, ErrCode::None),
        ] {
            let outcome = sh(&sandbox, &plan, text).await.outcome;
            assert_eq!((outcome.exit, outcome.err_code), (exit, code), "{text}");
        }
        let said = sh(&sandbox, &plan, "./in.sh; pwd; echo $WHO; echo oops >&2").await;
        assert_eq!(
            (said.stdout.as_str(), said.stderr.as_str()),
            ("in\n/srv/task\nworld\n", "oops\n")
        );
        let said = sh(&sandbox, &plan, "head -c 4000000 /dev/zero").await;
        assert_eq!((said.stdout.len(), said.outcome.dropped.stdout), (100_000, 3_900_000));
        let globs = ["*.txt".to_owned(), "big".to_owned()];
        let files = sandbox.files().collect("/srv/task", &globs).await.unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["big", "made.txt"]);
        assert!(files[0].bytes == large, "what went in comes out");
        gone(&sandbox.wipe("task-end").await);
        assert_eq!(provider.held(), 0);
        worker.assert_clean();
    });
}

#[test]
fn what_a_command_leaves_behind_ends_with_it_and_the_wall_time_ends_it() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let (sandbox, plan) = worker.start(json!({"timeoutMs": 700})).await;
        let daemon = "(setsid sleep 1000 &) ; (setsid sh -c 'sleep 999 & sleep 998' &) ; echo done";
        let said = sh(&sandbox, &plan, daemon).await;
        assert_eq!((said.stdout.as_str(), said.outcome.exit), ("done\n", 0));
        let clock = Stopwatch::start();
        let stubborn = "trap '' TERM INT HUP; setsid sleep 1000 & while :; do sleep 1; done";
        let outcome = sh(&sandbox, &plan, stubborn).await.outcome;
        assert_eq!((outcome.err_code, outcome.timed_out), (ErrCode::Timeout, true));
        assert!(clock.elapsed_ms() < 8_000, "{outcome:?}");
        // It gets as far as the provider's own bound on processes.
        let bomb = "bomb() { bomb | bomb & sleep 0.01; bomb; }; bomb 2> /dev/null";
        assert_ne!(sh(&sandbox, &plan, bomb).await.outcome.err_code, ErrCode::None);
        let left = sh(&sandbox, &plan, SLEEPERS).await;
        assert_eq!(left.stdout, "0\n");
        gone(&sandbox.wipe("task-end").await);
        worker.assert_clean();
    });
}

#[test]
fn a_kill_from_outside_ends_the_command_and_the_sandbox() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let (sandbox, plan) = worker.start(json!({})).await;
        let kill = sandbox.kill_handle();
        assert!(kill.is_alive());
        let command = Command { argv: vec!["sleep".into(), "1000".into()], ..plan.task.clone() };
        let (ended, ()) = tokio::join!(sandbox.exec(&command, |_, _| {}), async { kill.kill() });
        assert!(matches!(ended, Err(SandboxError::Killed)), "{ended:?}");
        until_held(&provider, 0).await;
        assert!(!kill.is_alive());
        gone(&sandbox.wipe("canceled").await);

        // The same when the sandbox dies there.
        let (sandbox, plan) = worker.start(json!({})).await;
        let command = Command { argv: vec!["sleep".into(), "1000".into()], ..plan.task.clone() };
        let (ended, ()) =
            tokio::join!(sandbox.exec(&command, |_, _| {}), async { provider.kill_all() });
        let outcome = ended.unwrap();
        assert_eq!((outcome.exit, outcome.err_code), (137, ErrCode::CmdNonzero), "{outcome:?}");
        assert!(outcome.cause.unwrap().contains("agent ended"));
        gone(&sandbox.wipe("task-end").await);
        worker.assert_clean();
    });
}

#[test]
fn a_phase_reaches_the_names_that_it_lists_through_the_worker_and_no_other() {
    with_provider(|provider| async move {
        let (address, _told) = plain();
        let hosts = [("b.example".to_owned(), address)].into();
        let worker = Worker::with_hosts(provider.config(), hosts).await;
        let (sandbox, plan) = worker.start(json!({"net": ["b.example"]})).await;
        for script in ["curl -sS http://b.example/", "curl -sS --noproxy '*' http://b.example/"] {
            let said = sh(&sandbox, &plan, script).await;
            assert!(said.stdout.contains("b.example"), "{script}: {} {}", said.stdout, said.stderr);
        }
        let said = sh(&sandbox, &plan, "curl -sSf https://x.example/").await;
        assert_ne!(said.outcome.exit, 0);
        let refused = sandbox.traffic().violations().0;
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!((refused[0].why, refused[0].phase), (ViolationReason::Name, Phase::Exec));
        gone(&sandbox.wipe("task-end").await);
        worker.assert_clean();
    });
}

#[test]
fn a_service_beside_the_task_is_spared_by_what_ends_a_command() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let listen = "$l = IO::Socket::INET->new(Listen => 5, LocalAddr => \"127.0.0.1\", LocalPort => \
                      7000) or die; $SIG{PIPE} = \"IGNORE\"; while (1) { $c = $l->accept or next; print \
                      $c \"served\\n\"; close $c }";
        let cmd = json!(["perl", "-MIO::Socket::INET", "-e", listen]);
        let echo = json!({"name": "echo", "port": 7000, "cmd": cmd});
        let (sandbox, plan) = worker.start(json!({"spec": {"services": [echo]}})).await;
        let ask = "setsid sleep 100 & perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr \
                   => \"$ENV{ECHO_HOST}:$ENV{ECHO_PORT}\")->getline'";
        for _ in 0..2 {
            let said = sh(&sandbox, &plan, ask).await;
            assert_eq!(said.stdout, "served\n", "{:?} {}", said.outcome, said.stderr);
        }
        let left = sh(&sandbox, &plan, SLEEPERS).await;
        assert_eq!(left.stdout, "0\n");
        assert_eq!(sandbox.services()[0].report.exit, None, "the sweep after a command spares it");
        gone(&sandbox.wipe("task-end").await);
        worker.assert_clean();
    });
}

/// Says a number every 50 ms, forty times, and leaves a line with its process beside each.
const COUNT: &str = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; echo err $i >&2; \
                     echo $$ >> ran; sleep 0.05; done; exit 7";

fn counted() -> String {
    (1..=40).map(|i| format!("line {i}\n")).collect()
}

/// One process said all of it, once.
async fn assert_ran_once(sandbox: &Sandbox, plan: &Plan) {
    let said = sh(sandbox, plan, "sort ran | uniq -c | wc -l; wc -l < ran").await;
    assert_eq!(said.stdout, "1\n40\n");
}

#[test]
fn a_command_goes_on_when_what_is_between_cuts_its_stream_and_every_byte_comes_once() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let (sandbox, plan) = worker.start(json!({})).await;
        let argv = ["sh", "-c", COUNT].map(str::to_owned).to_vec();
        let command = Command { argv, ..plan.task.clone() };
        let (lines, heard) = (watch::Sender::new(0_usize), watch::Sender::new(Vec::new()));
        let running = sandbox.exec(&command, |stream, bytes| {
            if stream == Stream::Stdout {
                heard.send_modify(|all: &mut Vec<u8>| all.extend_from_slice(bytes));
                lines.send_modify(|n| *n += bytes.iter().filter(|byte| **byte == b'\n').count());
            }
        });
        let cutting = async {
            let mut seen = lines.subscribe();
            for least in [5, 15, 25] {
                seen.wait_for(|n| *n >= least).await.unwrap();
                provider.cut().await;
            }
        };
        let (ended, ()) = tokio::join!(running, cutting);
        let outcome = ended.unwrap();
        assert_eq!((outcome.exit, outcome.err_code), (7, ErrCode::CmdNonzero), "{outcome:?}");
        assert_eq!(String::from_utf8(heard.borrow().clone()).unwrap(), counted());
        assert_ran_once(&sandbox, &plan).await;
        let attached = provider.calls().iter().filter(|call| call.ends_with("/Start")).count();
        assert!(attached >= 4, "{attached} streams");
        // The agent remembers a bounded number of commands, and each has its own output.
        for n in 0..70 {
            assert_eq!(sh(&sandbox, &plan, &format!("echo {n}")).await.stdout, format!("{n}\n"));
        }
        gone(&sandbox.wipe("task-end").await);
        worker.assert_clean();
    });
}

#[test]
fn a_worker_that_is_lost_is_followed_by_one_that_goes_on_with_its_command() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let plan = worker.plan(json!({"cmd": ["sh", "-c", COUNT]}));
        let (host, lost) = (worker.host.clone(), plan.clone());
        // With its runtime everything ends that could tell the provider.
        let place = tokio::task::spawn_blocking(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let sandbox = provision(&host, &lost, &[]).await.unwrap();
                let begun = watch::Sender::new(false);
                let running = sandbox.exec(&lost.task, |_, _| {
                    begun.send_replace(true);
                });
                let mut has_begun = begun.subscribe();
                tokio::select! {
                    ended = running => panic!("{ended:?}"),
                    _ = has_begun.wait_for(|begun| *begun) => {}
                }
                sandbox.outlives().expect("nothing of it is the worker's")
            })
        });
        let place = place.await.unwrap();
        assert_eq!(provider.held(), 1, "nobody told the provider");
        let sandbox = resume(&worker.host, &plan, &place).await.unwrap();
        let ended = run(&sandbox, &plan.task).await;
        assert_eq!((ended.outcome.exit, ended.stdout), (7, counted()));
        assert_eq!(ended.stderr.lines().count(), 40);
        assert_ran_once(&sandbox, &plan).await;
        gone(&sandbox.wipe("task-end").await);

        // What is no more, or another's, is not begun again by this.
        let ended = resume(&worker.host, &plan, &place).await.unwrap_err();
        assert!(matches!(&ended, ResumeError::Gone(why) if why.contains("no more")), "{ended:?}");
        let other = RemoteLocation { provider: "https://api.other.example".to_owned(), ..place };
        let ended = resume(&worker.host, &plan, &other).await.unwrap_err();
        assert!(matches!(ended, ResumeError::Gone(_)), "{ended:?}");
        gone(
            &cofferdam_sandbox::verify_absent(
                &worker.host,
                &plan.traces.id,
                worker.state.path(),
                "orphan",
            )
            .await,
        );
        worker.assert_clean();
    });
}

#[test]
fn a_provider_that_is_lost_ends_the_command_and_holds_the_wipe_until_it_is_back() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let (sandbox, plan) = worker.start(json!({})).await;
        let command = Command { argv: vec!["sleep".into(), "1000".into()], ..plan.task.clone() };
        let (ended, ()) = tokio::join!(sandbox.exec(&command, |_, _| {}), provider.stop());
        assert_eq!(ended.unwrap().err_code, ErrCode::CmdNonzero);
        let id = sandbox.id().clone();
        let first = sandbox.wipe("task-end").await;
        held(&first, "does not answer");
        assert_eq!(provider.held(), 1, "it still has the sandbox");
        // Another look finds as little.
        let second = verify_again(&worker.host, &first, worker.state.path()).await;
        held(&second, "does not answer");
        // Nor does a start go anywhere else.
        let error = provision(&worker.host, &worker.plan(json!({})), &[]).await.unwrap_err();
        assert_eq!(error.code, ErrCode::BootFail);
        held(&error.evidence, "does not answer");
        provider.resume().await;
        let third = verify_again(&worker.host, &second, worker.state.path()).await;
        gone(&third);
        assert_eq!((&third.sandbox_id, provider.held()), (&id, 0));
        gone(&verify_again(&worker.host, &error.evidence, worker.state.path()).await);
        worker.assert_clean();
    });
}

#[test]
fn a_wipe_that_the_provider_only_claims_is_held() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let (sandbox, _) = worker.start(json!({})).await;
        provider.fault(Some(Fault::Undying));
        let evidence = sandbox.wipe("task-end").await;
        held(&evidence, "still there");
        held(&evidence, "listed: i");
        provider.fault(None);
        gone(&verify_again(&worker.host, &evidence, worker.state.path()).await);
        // A worker without the provider cannot know, and says so.
        let (sandbox, _) = worker.start(json!({})).await;
        provider.stop().await;
        let evidence = sandbox.wipe("task-end").await;
        provider.resume().await;
        let plain = detected(worker.state.path(), None, BTreeMap::new()).await.unwrap();
        held(&verify_again(&plain, &evidence, worker.state.path()).await, "no key for it");
        gone(&verify_again(&worker.host, &evidence, worker.state.path()).await);
        worker.assert_clean();
    });
}

#[test]
fn a_worker_that_is_lost_leaves_orphans_that_the_next_one_deletes_and_others_keep() {
    with_provider(|provider| async move {
        let worker = Worker::of(provider.config()).await;
        let other = Worker::of(provider.config()).await;
        let (theirs, _) = other.start(json!({})).await;
        let mut left: Vec<SandboxId> = Vec::new();
        for _ in 0..3 {
            left.push(worker.lost().await);
        }
        assert_eq!(provider.held(), 4);
        // Of one the marker is lost too, and the whole state of it but for its tag.
        let traces = locate(worker.state.path(), &left[0]);
        fs::remove_file(&traces.marker).unwrap();
        fs::remove_dir_all(&traces.dir).unwrap();
        left.sort();
        let worker = worker.next(provider.config()).await;
        let evidence = reconcile(&worker.host, |_| false).await;
        let found: Vec<_> = evidence.iter().map(|one| one.sandbox_id.clone()).collect();
        assert_eq!(found, left);
        evidence.iter().for_each(gone);
        assert!(reconcile(&worker.host, |_| false).await.is_empty());
        assert_eq!(provider.held(), 1, "the other worker's lives");
        gone(&theirs.wipe("task-end").await);
        worker.assert_clean();
        other.assert_clean();
    });
}

#[test]
fn a_sandbox_lives_as_long_as_its_worker_prolongs_it_and_no_longer() {
    with_provider(|provider| async move {
        let worker = Worker::of(RemoteConfig { term_s: 2, ..provider.config() }).await;
        let (sandbox, plan) = worker.start(json!({})).await;
        let said = sh(&sandbox, &plan, "sleep 5; echo alive").await;
        assert_eq!(said.stdout, "alive\n", "{:?}", said.outcome);
        provider.pass(Duration::from_secs(1_000)).await;
        assert_eq!(provider.held(), 0);
        let outcome = run(&sandbox, &plan.task).await.outcome;
        assert_eq!(outcome.err_code, ErrCode::CmdNonzero);
        assert!(!sandbox.kill_handle().is_alive());
        gone(&sandbox.wipe("task-end").await);
        worker.assert_clean();
    });
}

#[test]
fn a_provider_that_does_not_know_the_key_or_makes_no_sense_fails_closed() {
    with_provider(|provider| async move {
        let state = tempfile::tempdir().unwrap();
        let start = async |config: RemoteConfig| {
            let error = detected(state.path(), Some(config), BTreeMap::new()).await.unwrap_err();
            error.to_string()
        };
        let secret = Key::new("e2b_notthis");
        let wrong = start(RemoteConfig { key: secret.clone(), ..provider.config() }).await;
        assert!(wrong.contains("401: the key is wrong"), "{wrong}");
        assert!(!wrong.contains("e2b_notthis") && !format!("{secret:?}").contains("notthis"));
        for (url, words) in [
            ("http://127.0.0.1:9", "does not answer"),
            ("http://provider.example", "must be https://"),
            ("https://user:secret@provider.example", "must be https://"),
            ("nonsense", "must be https://"),
        ] {
            let said = start(RemoteConfig { url: url.to_owned(), ..provider.config() }).await;
            assert!(said.contains(words) && !said.contains("secret@"), "{url}: {said}");
        }
        provider.fault(Some(Fault::Answers("v2/sandboxes", 200, "<html>")));
        assert!(start(provider.config()).await.contains("makes no sense"));
        provider.fault(None);

        let worker = Worker::of(provider.config()).await;
        for (fault, words) in [
            (Fault::Answers("/sandboxes", 500, "{\"message\":\"no room\"}"), "no room"),
            (Fault::Answers("/sandboxes", 201, "{}"), "makes no sense"),
            (Fault::Answers("/sandboxes", 201, "{\"sandboxID\":\"../../etc\"}"), "makes no sense"),
            (Fault::Answers("/files", 507, "{\"message\":\"disk is full\"}"), "disk is full"),
            (Fault::Answers("/Start", 200, "no frames at all"), "makes no sense"),
            (Fault::Answers("/Start", 200, ""), "the connection to the agent ended"),
            (Fault::Answers("/SendInput", 500, "{\"message\":\"no pipe\"}"), "no pipe"),
            (Fault::Open, "reaches the internet"),
        ] {
            provider.fault(Some(fault.clone()));
            let error = provision(&worker.host, &worker.plan(json!({})), &[]).await.unwrap_err();
            assert_eq!(error.code, ErrCode::BootFail, "{fault:?}");
            assert!(error.message.contains(words), "{fault:?}: {}", error.message);
            provider.fault(None);
            match error.evidence.status {
                WipeStatus::Verified => gone(&error.evidence),
                // It makes no sense at the wipe either.
                _ => gone(&verify_again(&worker.host, &error.evidence, worker.state.path()).await),
            }
        }
        worker.assert_clean();
    });
}

#[test]
fn nobody_is_given_it_who_did_not_ask_and_who_did_is_given_nothing_else() {
    with_provider(|provider| async move {
        let state = tempfile::tempdir().unwrap();
        let plain = detected(state.path(), None, BTreeMap::new()).await.unwrap();
        let offer = |host: &Host, class| {
            let found = host.facts().classes.iter().find(|fact| fact.class == class);
            found.unwrap().offer.clone()
        };
        let Offer::Absent { why, remedy } = offer(&plain, Class::Remote) else { panic!("unasked") };
        assert!(why.contains("no provider was asked for") && remedy.contains("--remote-url"));
        assert!(provider.calls().is_empty(), "{:?}", provider.calls());
        let worker = Worker::of(provider.config()).await;
        assert_eq!(provider.calls(), ["GET /v2/sandboxes"]);
        assert!(matches!(offer(&worker.host, Class::Remote), Offer::Present(_)));
        for class in Class::LOCAL {
            assert!(matches!(offer(&worker.host, class), Offer::Absent { .. }), "{class:?}");
        }
        for least in ["container", "gvisor", "microvm", "remote"] {
            worker.plan(json!({"spec": {"isolation": {"class_min": least}}}));
        }
        plain.leave();
        worker.assert_clean();
    });
}
