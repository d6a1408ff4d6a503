//! What is said to a sandbox while it runs, much of it at the same time.
//!
//! Everything goes over one stream, whatever carries it: a socket, two pipes, or the port of a machine.
//! Messages that arrive together must be heard without another one that comes after them.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_guest::process::Size;
use cofferdam_guest::wire::{CommandExit, ExecRequest};
use cofferdam_sandbox::{ExecOptions, Sandbox};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use super::support::sh;
use super::{Ground, wiped};

const SIZE: Size = Size { rows: 30, cols: 90 };
/// Commands that run beside each other.
const CROWD: usize = 20;
/// Runs of a program in one sandbox.
const RUNS: usize = 6;

fn script(text: &str) -> ExecRequest {
    ExecRequest {
        argv: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        cwd: "/".to_owned(),
        timeout_ms: 60_000,
        stream_limit_bytes: 1_000_000,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    }
}

async fn told(
    sandbox: &Sandbox,
    text: &str,
    options: ExecOptions,
    input: &[&[u8]],
) -> (CommandExit, String) {
    let running = sandbox.agent().start(script(text), options).await.unwrap();
    let remote = running.remote();
    let (pieces, body) = mpsc::channel(1);
    let given = tokio::spawn(async move { remote.stdin(body).await });
    let input: Vec<Bytes> = input.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
    let giving = tokio::spawn(async move {
        for piece in input {
            pieces.send(piece).await.unwrap();
        }
    });
    let mut said = String::new();
    let end = running.follow(|_, bytes| said.push_str(&String::from_utf8_lossy(bytes))).await;
    giving.await.unwrap();
    given.await.unwrap().unwrap();
    (end.unwrap().ended, said)
}

pub async fn input(ground: Arc<Ground>) {
    let (sandbox, _) = ground.start(json!({})).await;
    let piped = ExecOptions { stdin: true, ..ExecOptions::default() };
    let pieces = [[b'x'; 50_000].as_slice(); 20];
    let (ended, said) = told(&sandbox, "wc -c; echo done", piped, &pieces).await;
    assert_eq!((ended, said.as_str()), (CommandExit::Exit(0), "1000000\ndone\n"));
    let terminal = ExecOptions { terminal: Some(SIZE), ..piped };
    let text = "test -t 0 && test -t 1 && tty && stty size; read line; echo got $line";
    let (ended, said) = told(&sandbox, text, terminal, &[b"hello\n"]).await;
    assert_eq!(ended, CommandExit::Exit(0), "{said}");
    for part in ["/dev/pts/", "30 90", "got hello"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    wiped(&sandbox.wipe("task-end").await);
}

pub async fn crowd(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({})).await;
    let sandbox = Arc::new(sandbox);
    let at_once = (0..CROWD).map(|number| {
        let (sandbox, plan) = (Arc::clone(&sandbox), plan.clone());
        tokio::spawn(async move {
            let path = format!("/work/{number}");
            let text = Bytes::from(format!("{number}\n").repeat(1_000));
            sandbox.agent().files().put(&path, 0o644, text.clone()).await.unwrap();
            let said = sh(&sandbox, &plan, &format!("cat {path}; exit {number}")).await;
            assert_eq!(said.stdout.as_bytes(), text, "{number}: {:?}", said.outcome);
            assert_eq!(said.outcome.exit, i32::try_from(number).unwrap());
            assert_eq!(sandbox.agent().files().read(&path, 10_000).await.unwrap(), text);
        })
    });
    let at_once: Vec<_> = at_once.collect();
    for one in at_once {
        one.await.unwrap();
    }
    wiped(&Arc::into_inner(sandbox).unwrap().wipe("task-end").await);
}

pub async fn port(ground: Arc<Ground>) {
    let (sandbox, plan) = ground.start(json!({"timeoutMs": 120_000})).await;
    let sandbox = Arc::new(sandbox);
    let echo = "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 5, LocalAddr => \
                \"127.0.0.1\", LocalPort => 7000) or die; mkdir \"/work/up\"; $c = $l->accept; \
                while (sysread $c, $b, 65536) { syswrite $c, $b }'";
    let beside = Arc::clone(&sandbox);
    let serving = tokio::spawn(async move { sh(&beside, &plan, echo).await.outcome });
    while sandbox.agent().files().stat("/work/up").await.is_err() {
        assert!(!serving.is_finished(), "the server ended");
    }
    let mut stream = sandbox.agent().dial(7_000).await.unwrap();
    let sent = vec![b'y'; 300_000];
    let (mut from, mut to) = tokio::io::split(&mut stream);
    let mut heard = vec![0; sent.len()];
    let both = tokio::join!(to.write_all(&sent), from.read_exact(&mut heard));
    both.0.unwrap();
    both.1.unwrap();
    assert_eq!(heard, sent);
    drop(stream);
    assert_eq!(serving.await.unwrap().exit, 0);
    wiped(&Arc::into_inner(sandbox).unwrap().wipe("task-end").await);
}

/// Modules are hundreds of small files of the host, and a program that starts others waits for pipes.
pub async fn modules(ground: Arc<Ground>) {
    let fields = json!({
        "timeoutMs": 120_000, "limits": {"memMB": 256, "diskMB": 64, "pids": 64},
    });
    let (sandbox, plan) = ground.start(fields).await;
    let mut program = String::from(
        "import asyncio, email, json, sqlite3, subprocess, tempfile, unittest, xml.dom.minidom\n",
    );
    let _ = writeln!(
        program,
        "with tempfile.TemporaryDirectory() as d:\n \
         [open(f'{{d}}/{{n}}', 'w').write(json.dumps({{'n': n}})) for n in range(300)]\n \
         s = sum(json.load(open(f'{{d}}/{{n}}'))['n'] for n in range(300))\n\
         db = sqlite3.connect(':memory:')\n\
         s += db.execute('select 1').fetchone()[0]\n\
         out = subprocess.run(['/bin/echo', str(s)], capture_output=True, text=True).stdout\n\
         async def main(): await asyncio.sleep(0.01); print(out, end='')\n\
         asyncio.run(main())"
    );
    let agent = sandbox.agent();
    agent.files().put("/work/program.py", 0o644, Bytes::from(program)).await.unwrap();
    for run in 0..RUNS {
        let said = sh(&sandbox, &plan, "/usr/bin/python3 /work/program.py").await;
        assert_eq!(said.stdout, "44851\n", "run {run}: {:?} {}", said.outcome, said.stderr);
    }
    wiped(&sandbox.wipe("task-end").await);
}
