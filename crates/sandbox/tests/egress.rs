//! What a phase with names can reach, and everything that it cannot.
//!
//! The servers are this test's own, on the host's loopback, which the host's table of names leads to.
//!
//! One file: what is reached and what is not are rows of one policy, against the same servers.

use crate::support;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::sandbox::{Egress, ErrCode, Phase, ViolationReason};
use cofferdam_guest::wire::{CommandExit, ExecRequest};
use cofferdam_sandbox::{Class, Command, ExecOptions, Input, NetworkError, Sandbox, provision};
use nix::sched::{CloneFlags, setns};
use serde_json::json;
use support::not_run::not_run;
use support::plain::{PROXY, count, plain};
use support::{Said, in_classes, run, sh, verified};

/// A server of TLS with a certificate that nothing but this test trusts.
struct Tls {
    server: Child,
    address: SocketAddr,
    certificate: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl Tls {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (key, certificate) = (dir.path().join("key"), dir.path().join("crt"));
        let made = Process::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-nodes", "-days", "1", "-subj", "/CN=t", "-addext"])
            .args(["subjectAltName=DNS:a.example", "-keyout"])
            .args([&key, std::path::Path::new("-out"), &certificate])
            .output()
            .expect("this test needs openssl: apt-get install openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = Process::new("openssl")
            .args(["s_server", "-www", "-accept", "127.0.0.1:0", "-key"])
            .args([&key, std::path::Path::new("-cert"), &certificate])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let accept = lines.find_map(|l| l.unwrap().strip_prefix("ACCEPT ").map(str::to_owned));
        // Its pipe must not fill up.
        thread::spawn(move || lines.for_each(drop));
        let certificate = std::fs::read(certificate).unwrap();
        Self { server, address: accept.unwrap().parse().unwrap(), certificate, _dir: dir }
    }

    fn ca(&self) -> Input {
        Input::Bytes { path: "/work/ca".into(), bytes: self.certificate.clone(), mode: 0o444 }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    [&kind.to_be_bytes(), &length.to_be_bytes(), content].concat()
}

/// The first message of TLS, in hexadecimal digits.
fn hello(name: Option<&str>, hidden: bool) -> String {
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let length = u16::try_from(name.len()).unwrap();
        let list = [&(length + 3).to_be_bytes(), &[0][..], &length.to_be_bytes(), name.as_bytes()];
        extensions.extend(extension(0, &list.concat()));
    }
    if hidden {
        extensions.extend(extension(0xfe0d, &[0; 16]));
    }
    let length = u16::try_from(extensions.len()).unwrap();
    let suites = [0, 2, 0x13, 1, 1, 0];
    let body = [&[3, 3][..], &[7; 32], &[0], &suites, &length.to_be_bytes(), &extensions].concat();
    let size = u16::try_from(body.len()).unwrap();
    let message = [&[1, 0][..], &size.to_be_bytes(), &body].concat();
    let size = u16::try_from(message.len()).unwrap();
    let record = [&[22, 3, 1][..], &size.to_be_bytes(), &message].concat();
    record.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Perl that asks for a tunnel (or not), says something and prints all that comes back.
fn say(address: &str, connect: Option<&str>, bytes: &str) -> String {
    let ask = connect.map_or_else(String::new, |target| {
        format!(
            "print $s \"CONNECT {target} HTTP/1.1\\r\\n\\r\\n\"; my $l = <$s>; \
             $l =~ / 200 / or exit 9; do {{ $l = <$s> }} until $l eq \"\\r\\n\";"
        )
    });
    format!(
        "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(PeerAddr => \"{address}\") or \
         exit 8; $s->autoflush(1); {ask} print $s pack(\"H*\", \"{bytes}\"); local $/; \
         my $r = <$s>; exit(length($r // \"\") ? 0 : 7)'"
    )
}

#[test]
fn a_listed_name_is_reached_by_tunnel_and_by_name_alone() {
    let (tls, (plain, _gone)) = (Tls::start(), plain());
    let ca = tls.ca();
    in_classes(&[("a.example", tls.address), ("b.example", plain)], |bench| async {
        let bench = bench;
        let fields = json!({"net": ["a.example", "b.example"]});
        let (sandbox, plan) = bench.start_with(fields, std::slice::from_ref(&ca)).await;
        for (script, expected) in [
            ("curl -sS --cacert ca https://a.example/", "Ciphers supported"),
            ("curl -sS --noproxy '*' --cacert ca https://a.example/", "Ciphers supported"),
            ("curl -sS http://b.example/", "b.example"),
            ("curl -sS --noproxy '*' http://B.EXAMPLE/", "b.example"),
            ("getent hosts a.example", "127.0.0.53"),
        ] {
            let said = sh(&sandbox, &plan, script).await;
            assert!(said.stdout.contains(expected), "{script}: {} {}", said.stdout, said.stderr);
        }
        assert_eq!(sandbox.traffic().violations(), (Vec::new(), 0));
        let listed =
            Egress::Names(vec!["a.example".parse().unwrap(), "b.example".parse().unwrap()]);
        assert_eq!(sandbox.effective().egress, listed);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn every_other_way_out_is_refused_and_recorded() {
    let (tls, (plain, _gone)) = (Tls::start(), plain());
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = own.local_addr().unwrap().port();
    let ca = tls.ca();
    in_classes(&[("a.example", tls.address), ("b.example", plain)], |bench| async {
        let bench = bench;
        let fields = json!({"net": ["a.example", "b.example"]});
        let (sandbox, plan) = bench.start_with(fields, std::slice::from_ref(&ca)).await;
        for (script, why, name, port) in ways_out(own) {
            let before = count(&sandbox.traffic().violations().0, why, name, port);
            let said = sh(&sandbox, &plan, &script).await;
            assert_ne!(said.outcome.exit, 0, "{script}: {}", said.stdout);
            let after = sandbox.traffic().violations().0;
            assert!(count(&after, why, name, port) > before, "{script}: {after:#?}");
            let cause = said.outcome.cause.unwrap();
            assert!(cause.contains("network policy of the exec phase"), "{script}: {cause}");
        }
        // What never comes to the proxy has nowhere to go.
        let perl = |code: &str| format!("perl -MSocket=:all -e '{code} or exit 7'");
        let direct = "connect($s, pack_sockaddr_in(443, inet_aton(\"192.0.2.1\")))";
        let udp = "send($s, \"x\", 0, pack_sockaddr_in(53, inet_aton(\"192.0.2.1\")))";
        let six = "connect($s, pack_sockaddr_in6(443, inet_pton(AF_INET6, \"2001:db8::1\")))";
        for script in [
            perl(&format!("socket(my $s, AF_INET, SOCK_STREAM, 0); {direct}")),
            perl(&format!("socket(my $s, AF_INET, SOCK_DGRAM, 0); {udp}")),
            perl(&format!("socket(my $s, AF_INET6, SOCK_STREAM, 0); {six}")),
            perl("socket(my $s, AF_INET, SOCK_RAW, 1)"),
            perl(
                "socket(my $s, AF_INET, SOCK_DGRAM, 1) && send($s, pack(\"C8\", 8), 0, \
                  pack_sockaddr_in(0, inet_aton(\"192.0.2.1\")))",
            ),
            format!("curl -sS -m 5 --noproxy '*' http://127.0.0.1:{own}/"),
            "curl -sS -m 5 --noproxy '*' http://169.254.169.254/".into(),
        ] {
            assert_ne!(sh(&sandbox, &plan, &script).await.outcome.exit, 0, "{script}");
        }
        for violation in sandbox.traffic().violations().0 {
            assert_eq!(violation.phase, Phase::Exec);
            assert!(violation.first_ms > 0 && violation.first_ms <= violation.last_ms);
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

/// What is tried, and what is recorded of it: why, the name and the port.
fn ways_out(own: u16) -> Vec<WayOut> {
    use ViolationReason as Why;
    let tunnel = Some("a.example:443");
    let plain_hello = hello(Some("a.example"), false);
    let curl = |rest: &str| format!("curl -sSf -m 5 --cacert ca {rest}");
    vec![
        (curl("https://x.example/"), Why::Name, Some("x.example"), 443),
        (curl("https://x.a.example/"), Why::Name, Some("x.a.example"), 443),
        (curl("http://y.example/"), Why::Name, Some("y.example"), 80),
        (curl("https://a.example:8443/"), Why::Port, Some("a.example"), 8443),
        (curl("http://b.example:22/"), Why::Port, Some("b.example"), 22),
        (curl("https://192.0.2.1/"), Why::IpLiteral, Some("192.0.2.1"), 443),
        (curl("http://169.254.169.254/"), Why::IpLiteral, Some("169.254.169.254"), 80),
        (curl("https://[2001:db8::1]/"), Why::IpLiteral, Some("2001:db8::1"), 443),
        (
            curl(&format!("-x http://{PROXY} --noproxy '' http://127.0.0.1:{own}/")),
            Why::IpLiteral,
            Some("127.0.0.1"),
            own,
        ),
        (
            curl(&format!("-x http://{PROXY} --noproxy '' http://localhost:{own}/")),
            Why::Name,
            Some("localhost"),
            own,
        ),
        // TLS that asks for another name than its tunnel, or for one that is not listed.
        (say(PROXY, tunnel, &hello(Some("b.example"), false)), Why::Sni, Some("b.example"), 443),
        (
            curl("--noproxy '*' --resolve z.example:443:127.0.0.53 https://z.example/"),
            Why::Name,
            Some("z.example"),
            443,
        ),
        (say(PROXY, tunnel, &hello(None, false)), Why::NoSni, Some("a.example"), 443),
        (say(PROXY, tunnel, &hello(Some("a.example"), true)), Why::Ech, Some("a.example"), 443),
        (say(PROXY, tunnel, "5353482d322e30"), Why::NotTls, Some("a.example"), 443),
        (say("127.0.0.53:443", None, &hello(Some("a.example"), true)), Why::Ech, None, 443),
        (say("127.0.0.53:443", None, "474554202f"), Why::NotTls, None, 443),
        (say(PROXY, Some("b.example:80"), &plain_hello), Why::Port, Some("b.example"), 80),
        // A secret in a question.
        ("getent hosts c2VjcmV0.t.example".into(), Why::Name, Some("c2VjcmV0.t.example"), 53),
    ]
}

type WayOut = (String, ViolationReason, Option<&'static str>, u16);

fn build(command: &Command, script: &str) -> Command {
    Command {
        argv: vec!["sh".into(), "-c".into(), script.into()],
        phase: Phase::Build,
        ..command.clone()
    }
}

async fn heard(told: &Arc<Mutex<mpsc::Receiver<bool>>>) -> bool {
    let told = Arc::clone(told);
    let wait = move || told.lock().unwrap().recv_timeout(Duration::from_secs(10)).unwrap();
    tokio::task::spawn_blocking(wait).await.unwrap()
}

#[test]
fn the_switch_cuts_live_flows_and_there_is_no_way_back() {
    let (address, told) = plain();
    let told = Arc::new(Mutex::new(told));
    in_classes(&[("b.example", address)], |bench| async {
        let bench = bench;
        let fields = json!({"build": {"cmd": ["true"], "net": ["b.example"]}});
        let (sandbox, plan) = bench.start(fields).await;
        let sandbox = Arc::new(sandbox);
        let tunnel = say(PROXY, Some("b.example:443"), &hello(Some("b.example"), false));
        let script = format!(
            "curl -sS -o /dev/null http://b.example/endless & a=$!; {tunnel} & wait $a; echo cut $?; \
             wait; exit 5"
        );
        let command = build(&plan.task, &script);
        let live = tokio::spawn({
            let sandbox = Arc::clone(&sandbox);
            async move { run(&sandbox, &command).await }
        });
        for _ in 0..2 {
            assert!(heard(&told).await, "both flows run");
        }
        let clock = Stopwatch::start();
        let said = sh(&sandbox, &plan, "env | grep -ci proxy").await;
        let switched = clock.elapsed();
        assert_eq!(said.stdout, "0\n", "a phase without names needs no proxy");
        for _ in 0..2 {
            assert!(!heard(&told).await, "the server's end was cut");
        }
        println!("switch and a command: {switched:?}; seen by both servers: {:?}", clock.elapsed());
        let cut: Said = tokio::time::timeout(Duration::from_secs(10), live).await.unwrap().unwrap();
        assert!(cut.stdout.contains("cut ") && !cut.stdout.contains("cut 0"), "{}", cut.stdout);
        let back = run(&sandbox, &build(&plan.task, "true")).await.outcome;
        assert_eq!((back.err_code, back.exit), (ErrCode::NetFail, 127));
        assert!(back.cause.unwrap().contains("build phase is over"));
        for port in [3128, 443, 80] {
            assert!(refuses(&sandbox, port).await, "{port}");
        }
        let sandbox = Arc::into_inner(sandbox).unwrap();
        assert_eq!(sandbox.effective().egress, Egress::None);
        assert_eq!(
            sandbox.effective().build_egress,
            Egress::Names(vec!["b.example".parse().unwrap()])
        );
        verified(&sandbox.wipe("task-end").await);
    });
}

/// Two flows of names that both go on, then one name less, none, another, and the end of the sandbox.
#[test]
fn a_change_cuts_the_flows_of_names_that_are_gone_and_no_others() {
    let ((a, a_told), (b, b_told)) = (plain(), plain());
    let told = [a_told, b_told].map(|told| Arc::new(Mutex::new(told)));
    let told = Arc::new(told);
    in_classes(&[("a.example", a), ("b.example", b)], |bench| async {
        let bench = bench;
        let (sandbox, plan) = bench.start(json!({})).await;
        let network = sandbox.network();
        let sandbox = Arc::new(sandbox);
        let names = |list: &[&str]| list.iter().map(|n| n.parse().unwrap()).collect::<Vec<_>>();
        sandbox.traffic().open(Phase::Exec).await.unwrap();
        let once = |name: &str| {
            format!("curl -sSf -m 5 -o /dev/null -w '%{{http_code}}' http://{name}/ || echo none")
        };
        assert!(sh(&sandbox, &plan, &once("a.example")).await.stdout.contains("none"));
        let opened = network.change(&names(&["a.example", "b.example"])).await.unwrap();
        assert_eq!(
            (opened.names, opened.cut),
            (vec!["a.example".to_owned(), "b.example".into()], 0)
        );
        assert!(opened.env.contains_key("HTTPS_PROXY"));
        // Both by the resolver and by the proxy.
        assert_eq!(sh(&sandbox, &plan, &once("a.example")).await.stdout, "200");
        let endless = |name: &'static str, proxy: &'static str| {
            let (sandbox, plan) = (Arc::clone(&sandbox), plan.clone());
            let script =
                format!("curl -sS {proxy} -o /dev/null http://{name}/endless; echo cut $?");
            tokio::spawn(async move { sh(&sandbox, &plan, &script).await })
        };
        let stays = endless("a.example", "--noproxy '*'");
        let goes = endless("b.example", "-x http://127.0.0.53:3128");
        assert!(heard(&told[0]).await && heard(&told[1]).await, "both flows run");
        let narrowed = network.change(&names(&["a.example"])).await.unwrap();
        assert_eq!((narrowed.names, narrowed.cut), (vec!["a.example".to_owned()], 1));
        assert!(!heard(&told[1]).await, "the server's end was cut");
        let cut = tokio::time::timeout(Duration::from_secs(10), goes).await.unwrap().unwrap();
        assert!(cut.stdout.contains("cut ") && !cut.stdout.contains("cut 0"), "{}", cut.stdout);
        assert!(!stays.is_finished(), "what stays listed goes on");
        assert!(sh(&sandbox, &plan, &once("b.example")).await.stdout.contains("none"));
        let none = network.change(&[]).await.unwrap();
        assert_eq!((none.names, none.cut, none.env.len()), (vec![], 1, 0));
        assert!(!heard(&told[0]).await, "the server's end was cut");
        assert_ne!(stays.await.unwrap().stdout, "cut 0\n");
        for port in [3128, 443, 80] {
            assert!(refuses(&sandbox, port).await, "{port}");
        }
        network.change(&names(&["b.example"])).await.unwrap();
        assert_eq!(sh(&sandbox, &plan, &once("b.example")).await.stdout, "200");
        let sandbox = Arc::into_inner(sandbox).unwrap();
        verified(&sandbox.wipe("task-end").await);
        let late = network.change(&names(&["a.example"])).await;
        assert_eq!(late, Err(NetworkError::Over));
    });
}

#[test]
fn a_worker_in_doubt_cuts_the_tasks_names_off_and_not_the_builds() {
    let (address, told) = plain();
    let told = Arc::new(Mutex::new(told));
    in_classes(&[("b.example", address)], |bench| async {
        let bench = bench;
        let fields =
            json!({"build": {"cmd": ["true"], "net": ["b.example"]}, "net": ["b.example"]});
        let (sandbox, plan) = bench.start(fields).await;
        let sandbox = Arc::new(sandbox);
        let once = "curl -sS -o /dev/null -w '%{http_code}' http://b.example/ || echo none";
        bench.host.doubt(true);
        assert_eq!(
            run(&sandbox, &build(&plan.task, once)).await.stdout,
            "200",
            "a build only fetches"
        );
        assert!(sh(&sandbox, &plan, once).await.stdout.contains("none"));
        bench.host.doubt(false);
        assert_eq!(sh(&sandbox, &plan, once).await.stdout, "200");
        let live = tokio::spawn({
            let (sandbox, plan) = (Arc::clone(&sandbox), plan.clone());
            async move {
                sh(&sandbox, &plan, "curl -sS -o /dev/null http://b.example/endless; echo cut $?")
                    .await
            }
        });
        assert!(heard(&told).await, "the flow runs");
        bench.host.doubt(true);
        assert!(!heard(&told).await, "the server's end was cut");
        let cut = tokio::time::timeout(Duration::from_secs(10), live).await.unwrap().unwrap();
        assert!(cut.stdout.contains("cut ") && !cut.stdout.contains("cut 0"), "{}", cut.stdout);
        let violations = sandbox.traffic().violations().0;
        assert!(
            violations.iter().any(|v| v.why == ViolationReason::Lease && v.phase == Phase::Exec),
            "{violations:?}"
        );
        bench.host.doubt(false);
        assert_eq!(sh(&sandbox, &plan, once).await.stdout, "200", "confirmed again");
        let sandbox = Arc::into_inner(sandbox).unwrap();
        verified(&sandbox.wipe("task-end").await);
    });
}

/// Whether nothing listens at this port of the proxy's address: asked inside, in no phase.
async fn refuses(sandbox: &Sandbox, port: u16) -> bool {
    let probe = format!(
        "exec perl -MIO::Socket::INET -e \
         'exit(IO::Socket::INET->new(PeerAddr => \"127.0.0.53:{port}\") ? 0 : 7)'"
    );
    let exec = ExecRequest {
        argv: ["/bin/sh", "-c", &probe].map(str::to_owned).to_vec(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: "/".into(),
        timeout_ms: 20_000,
        stream_limit_bytes: 1_000,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    };
    let running = sandbox.agent().start(exec, ExecOptions::default()).await.unwrap();
    match running.follow(|_, _| {}).await.unwrap().ended {
        CommandExit::Exit(0) => false,
        CommandExit::Exit(7) => true,
        other => panic!("{other:?}"),
    }
}

/// The same from the host, of a namespace whose sandbox is gone.
fn refuses_in(netns: &File, port: u16) -> bool {
    let netns = netns.try_clone().unwrap();
    thread::spawn(move || {
        setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
        TcpStream::connect(("127.0.0.53", port)).is_err()
    })
    .join()
    .unwrap()
}

#[test]
fn nothing_listens_after_the_wipe_nor_in_a_sandbox_that_is_dropped() {
    let (address, _gone) = plain();
    in_classes(&[("b.example", address)], |bench| async move {
        for wiped in [true, false] {
            let (sandbox, plan) = bench.start(json!({"net": ["b.example"]})).await;
            let netns = File::open(format!("/proc/{}/ns/net", sandbox.init_pid())).unwrap();
            assert!(refuses(&sandbox, 3128).await, "nothing listens before the phase begins");
            assert_eq!(sh(&sandbox, &plan, "curl -sS http://b.example/").await.outcome.exit, 0);
            assert!(!refuses(&sandbox, 3128).await && !refuses(&sandbox, 53).await);
            if wiped {
                verified(&sandbox.wipe("task-end").await);
            } else {
                drop(sandbox);
                let evidence = cofferdam_sandbox::reconcile(&bench.host, |_| false).await;
                assert_eq!(evidence.len(), 1);
                verified(&evidence[0]);
                cofferdam_ambient::clock::sleep(Duration::from_millis(100)).await;
            }
            if bench.class == Class::Container {
                for port in [3128, 443, 80, 53] {
                    // A process that another test starts at this moment has copies of our sockets until it executes.
                    let mut looks = 0;
                    while !refuses_in(&netns, port) {
                        looks += 1;
                        assert!(looks < 50, "{port} wiped: {wiped}");
                        cofferdam_ambient::clock::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }
    });
}

#[test]
fn a_sandbox_without_names_has_no_proxy_at_all() {
    in_classes(&[], |bench| async move {
        let (sandbox, plan) = bench.start(json!({"build": {"cmd": ["true"]}})).await;
        let look = "env | grep -ci proxy; cat /etc/resolv.conf; cd /.cofferdam; echo *";
        // `none` is empty: it covers what is masked.
        let seen = sh(&sandbox, &plan, look).await.stdout;
        assert!(
            ["0\nagent gitconfig\n", "0\nagent gitconfig none\n"].contains(&seen.as_str()),
            "{seen}"
        );
        assert!(refuses(&sandbox, 3128).await && refuses(&sandbox, 53).await);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_proxy_that_cannot_be_set_up_is_a_net_failure_with_evidence() {
    let nowhere = "127.0.0.1:9".parse().unwrap();
    in_classes(&[("not a name", nowhere)], |bench| async move {
        let plan = bench.plan(json!({"net": ["a.example"]}));
        let error = provision(&bench.host, &plan, &[]).await.unwrap_err();
        assert_eq!(error.code, ErrCode::NetFail, "{error}");
        assert!(error.message.contains("not a name"), "{error}");
        assert!(error.evidence.checks.iter().all(|check| check.ok));
    });
}

/// The whole way, with this machine's own index, whatever that is.
#[test]
fn pip_downloads_through_its_mirror_in_the_build_phase_and_not_in_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let host = Process::new("timeout")
        .args(["60", "python3", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "-qd"])
        .arg(dir.path())
        .arg("idna")
        .output();
    if !host.as_ref().is_ok_and(|said| said.status.success()) {
        not_run("an index for pip", "this machine's own pip reaches none, so no sandbox can");
        return;
    }
    in_classes(&[], |bench| async move {
        let fields = json!({
            "build": {"cmd": ["true"], "net": ["@pip"]},
            // An emulated machine beside other tests needs half a minute.
            "timeoutMs": 120_000,
            "limits": {"memMB": 512, "diskMB": 128, "pids": 64},
        });
        let (sandbox, plan) = bench.start(fields).await;
        let download =
            "/usr/bin/python3 -m pip download --no-deps --no-cache-dir -d /work/got idna";
        let said = run(&sandbox, &build(&plan.task, download)).await;
        assert_eq!(said.outcome.exit, 0, "{} {:#?}", said.stderr, sandbox.traffic().violations());
        let said =
            sh(&sandbox, &plan, &format!("echo got/*; rm -r got; {download} --retries 0")).await;
        assert!(said.stdout.contains("idna"), "{}", said.stdout);
        assert_ne!(said.outcome.exit, 0, "{}", said.stdout);
        assert_eq!(sandbox.effective().build_egress, Egress::Names(vec!["@pip".parse().unwrap()]));
        verified(&sandbox.wipe("task-end").await);
    });
}
