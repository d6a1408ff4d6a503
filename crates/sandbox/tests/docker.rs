//! The engine of the class `docker`: found, refused, lost and back again.
//!
//! What the class holds is the list of `conformance.rs`. Where no engine runs, a fake one shows how its
//! words about itself are judged; the rest is named as absent.

use crate::support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;

use cofferdam_ambient::env;
use cofferdam_contracts::sandbox::{ErrCode, WipeStatus};
use cofferdam_sandbox::{
    Class, Host, HostConfig, HostError, Offer, enter_private_mounts, provision, verify_again,
};
use serde_json::{Value, json};
use support::{Bench, sh, test_process, verified, with_bench};

/// A worker of its own, since its engine is named by its environment.
fn child(test: &str, docker_host: &str) -> Output {
    let mut command = test_process(&format!("docker::{test}"));
    command.env("DOCKER_HOST", docker_host).output().unwrap()
}

fn said(test: &str, docker_host: &str) -> String {
    let output = child(test, docker_host);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    let line = text.lines().find_map(|line| line.strip_prefix("said "));
    line.unwrap_or_else(|| panic!("{text}{errors}")).to_owned()
}

/// Says what it found, and whether a worker that wants it starts.
#[test]
#[ignore = "the other tests of this file start it as a process of its own"]
fn detects() {
    let state = tempfile::tempdir().unwrap();
    let config = |runtime: Option<&str>| HostConfig {
        state_dir: state.path().to_owned(),
        runtime: runtime.map(str::to_owned),
        ..HostConfig::default()
    };
    let plain = Host::detect(config(None)).unwrap();
    let offer = |host: &Host, class| {
        host.facts().classes.iter().find(|fact| fact.class == class).unwrap().offer.clone()
    };
    let Offer::Absent { why, .. } = offer(&plain, Class::Docker) else {
        panic!("an engine was asked by a worker that does not want one")
    };
    assert_eq!(why, "no engine was asked for");
    let looked = match offer(&plain.with_engine(), Class::Docker) {
        Offer::Present(engine) => format!("present: {}", engine.version),
        Offer::Absent { why, remedy } => format!("absent: {why} ({remedy})"),
    };
    match Host::detect(config(Some("docker"))) {
        Ok(wants) => {
            assert!(looked.starts_with("present"), "{looked}");
            assert!(matches!(offer(&wants, Class::Container), Offer::Absent { .. }));
            assert_eq!(wants.facts().runtime.name, "docker");
        }
        Err(HostError::NoEngine { why, remedy }) => {
            assert_eq!(looked, format!("absent: {why} ({remedy})"));
        }
        Err(other) => panic!("{other}"),
    }
    plain.leave();
    println!("\nsaid {looked}");
}

/// Answers as an engine does, about itself alone.
fn fake_engine(at: &Path, version: Value, info: Value) {
    let listener = UnixListener::bind(at).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (version, info) = (version.clone(), info.clone());
            thread::spawn(move || fake_answers(stream.unwrap(), &version, &info));
        }
    });
}

fn fake_answers(mut stream: UnixStream, version: &Value, info: &Value) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(request)) = lines.next() {
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let path = request.split(' ').nth(1).unwrap().to_owned();
        let body = if path.ends_with("/version") { version } else { info }.to_string();
        assert!(path.ends_with("/version") || path.ends_with("/info"), "{path}");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
        if write!(stream, "{head} {}\r\n\r\n{body}", body.len()).is_err() {
            return;
        }
    }
}

#[test]
fn an_engine_that_is_missing_elsewhere_or_mapped_is_absent_with_why_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let unix = |path: &Path| format!("unix://{}", path.display());
    let absent = said("detects", &unix(&at("missing")));
    assert!(absent.starts_with("absent: no engine listens at"), "{absent}");
    assert!(absent.contains("apt-get install docker.io"), "{absent}");
    let absent = said("detects", "tcp://127.0.0.1:2375");
    assert!(absent.contains("only an engine of this host"), "{absent}");
    fs::write(at("file"), "").unwrap();
    let absent = said("detects", &unix(&at("file")));
    assert!(absent.contains("does not answer"), "{absent}");

    let engine = json!({"Version": "27.0.1", "ApiVersion": "1.46", "MinAPIVersion": "1.24",
                        "Components": [{"Name": "Engine", "Version": "27.0.1"}]});
    let podman = json!({"Version": "4.3.1", "ApiVersion": "1.41", "MinAPIVersion": "1.24",
                        "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]});
    let plain = json!({"SecurityOptions": ["name=seccomp,profile=default"]});
    let rootless = json!({"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]});
    fake_engine(&at("good"), engine.clone(), plain.clone());
    assert_eq!(said("detects", &unix(&at("good"))), "present: Docker Engine 27.0.1 (API 1.46)");
    fake_engine(&at("rootless"), engine, rootless);
    let absent = said("detects", &unix(&at("rootless")));
    assert!(absent.contains("maps users (name=rootless)"), "{absent}");
    fake_engine(&at("podman"), podman, plain);
    let absent = said("detects", &unix(&at("podman")));
    assert!(absent.contains("Podman Engine 4.3.1 is not a Docker Engine"), "{absent}");
}

#[test]
fn an_engine_that_is_lost_fails_starts_and_holds_wipes_until_it_is_back() {
    with_bench(|bench| async move {
        if !bench.has_class(Class::Docker) {
            return;
        }
        let engine = bench.host.with_engine();
        let offers = engine.facts().classes.iter().map(|fact| (fact.class, &fact.offer));
        let socket = offers.into_iter().find_map(|(class, offer)| match offer {
            Offer::Present(runtime) if class == Class::Docker => Some(runtime.path.clone()),
            _ => None,
        });
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("engine.sock");
        symlink(socket.unwrap(), &link).unwrap();
        assert_eq!(said("loses", &format!("unix://{}", link.display())), "held and verified");
    });
}

/// Its engine is named by a link, which it takes away and puts back.
#[test]
#[ignore = "the other tests of this file start it as a process of its own"]
fn loses() {
    enter_private_mounts().unwrap();
    let named = env::var("DOCKER_HOST").unwrap();
    let link = PathBuf::from(named.strip_prefix("unix://").unwrap());
    let real = fs::read_link(&link).unwrap();
    let bench = Bench::new(Some("docker"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (sandbox, plan) = bench.start(json!({})).await;
        assert_eq!(sh(&sandbox, &plan, "echo held").await.stdout, "held\n");
        fs::remove_file(&link).unwrap();

        let error = provision(&bench.host, &bench.plan(json!({})), &[]).await.unwrap_err();
        assert_eq!((error.code, error.evidence.status), (ErrCode::BootFail, WipeStatus::Verified));
        assert!(error.message.contains("does not answer"), "{error}");

        // The sandbox ends, and nobody can say that its container does.
        let held = sandbox.wipe("task-end").await;
        assert_eq!(held.status, WipeStatus::Failed);
        let failed: Vec<_> = held.checks.iter().filter(|check| !check.ok).collect();
        assert!(failed.iter().any(|check| check.kind() == "container"), "{failed:#?}");
        let still = verify_again(&bench.host, &held, bench.state.path()).await;
        assert_eq!(still.status, WipeStatus::Failed);

        symlink(&real, &link).unwrap();
        let again = verify_again(&bench.host, &still, bench.state.path()).await;
        verified(&again);
        assert!(again.checks.iter().any(|check| check.kind() == "container"), "{again:#?}");
    });
    bench.assert_clean();
    println!("\nsaid held and verified");
}

#[test]
fn a_containers_evidence_names_what_the_engine_had_of_it() {
    with_bench(|bench| async move {
        if !bench.has_class(Class::Docker) {
            return;
        }
        let bench = Bench::new(Some("docker"));
        let (sandbox, plan) = bench.start(json!({})).await;
        assert_eq!(sh(&sandbox, &plan, "grep -c . /proc/mounts >&2; ls /").await.outcome.exit, 0);
        let attested = bench.host.attest(sandbox.effective()).await;
        assert_eq!(attested.runtime, "docker");
        assert!(attested.runtime_version.starts_with("Docker Engine "), "{attested:?}");
        assert_eq!(attested.runtime_digest, None, "an engine is no file of ours");
        let evidence = sandbox.wipe("task-end").await;
        verified(&evidence);
        let named = |kind: &str, part: &str| {
            evidence
                .checks
                .iter()
                .any(|check| check.kind() == kind && check.subject().contains(part))
        };
        assert!(named("container", "cofferdam-") && named("container", " of unix:///"));
        assert!(named("cgroup", "the engine's of ") && named("directory", "/containers/"));
        bench.assert_clean();
    });
}
