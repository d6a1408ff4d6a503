//! An agent that a task has taken over: whatever it answers is an error, never a panic or a flood.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use cofferdam_guest::frame::{Kind, encode};
use cofferdam_guest::wire::CollectRequest;
use http_body_util::Full;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;

use super::*;

/// An agent whose every answer has this status and these bytes.
async fn forger(status: StatusCode, body: Vec<u8>) -> (Agent, Driver) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let body = Bytes::from(body);
    tokio::spawn(async move {
        let service = service_fn(move |_| {
            let mut response = Response::new(Full::new(body.clone()));
            *response.status_mut() = status;
            async move { Ok::<_, Infallible>(response) }
        });
        Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(theirs), service).await
    });
    Agent::connect(ours).await.unwrap()
}

fn exec_request() -> ExecRequest {
    ExecRequest {
        argv: vec!["true".into()],
        env: Default::default(),
        cwd: "/".into(),
        timeout_ms: 1,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
        stream_limit_bytes: 4,
    }
}

async fn exec(body: Vec<u8>) -> AgentError {
    let (agent, _driver) = forger(StatusCode::OK, body).await;
    agent
        .exec(&exec_request(), |_: Stream, bytes: &[u8]| assert!(bytes.len() <= 4))
        .await
        .unwrap_err()
}

async fn collect(frames: &[(Kind, &[u8])]) -> AgentError {
    let body = frames.iter().flat_map(|(kind, payload)| encode(*kind, payload)).collect();
    let (agent, _driver) = forger(StatusCode::OK, body).await;
    let request = CollectRequest {
        root: "/".into(),
        globs: vec!["*".into()],
        max_bytes: 10,
        max_files: 2,
        exact: true,
    };
    agent.collect(&request).await.unwrap_err()
}

#[tokio::test]
async fn answers_of_exec_that_are_no_answers_are_errors() {
    assert!(matches!(exec(vec![77, 0, 0, 0, 0]).await, AgentError::Frame(_)));
    assert!(matches!(exec(vec![1, 255, 255, 255, 255]).await, AgentError::Frame(_)));
    assert!(matches!(exec(vec![1, 0, 0]).await, AgentError::Lost));
    assert!(matches!(exec(Vec::new()).await, AgentError::Lost));
    for (kind, payload) in [
        (Kind::End, b"{}".as_slice()),
        (Kind::End, b"{\"ended\":{\"exit\":1e99}}"),
        (Kind::File, b"{}"),
        (Kind::Stdout, b"12345"),
    ] {
        let error = exec(encode(kind, payload).to_vec()).await;
        assert!(matches!(error, AgentError::Forged(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_read_and_a_forged_one_is_an_error() {
    let (agent, _driver) = forger(StatusCode::BAD_REQUEST, b"{\"error\":\"no\"}".to_vec()).await;
    let error = agent.files().put("/x", 0o644, Bytes::new()).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused { status: 400, .. }), "{error:?}");
    let (agent, _driver) = forger(StatusCode::BAD_REQUEST, vec![b'x'; 1_000_000]).await;
    assert!(matches!(agent.health().await.unwrap_err(), AgentError::Forged(_)));
    let (agent, _driver) = forger(StatusCode::OK, b"[]".to_vec()).await;
    assert!(matches!(agent.health().await.unwrap_err(), AgentError::Forged(_)));
}

#[tokio::test]
async fn collections_that_leave_their_bounds_are_errors() {
    let end = |files: u64| format!("{{\"files\":{files},\"error\":null}}").into_bytes();
    let (none, one) = (end(0), end(1));
    let head =
        |path: &str, size: u64| format!("{{\"path\":\"{path}\",\"size\":{size}}}").into_bytes();
    let (a, b, c) = (head("a", 0), head("b", 0), head("c", 0));
    let (up, abs) = (head("../a", 0), head("/a", 0));
    let (four, vast) = (head("a", 4), head("a", 11));
    let dir = b"{\"path\":\"a\",\"size\":1,\"kind\":\"directory\"}".to_vec();
    let link = b"{\"path\":\"a\",\"size\":0,\"kind\":\"link\"}".to_vec();
    // This agent never said that it collects exactly.
    let unasked = b"{\"path\":\"a\",\"size\":0,\"kind\":\"executable\"}".to_vec();
    for frames in [
        vec![(Kind::Chunk, b"x".as_slice())],
        vec![(Kind::File, up.as_slice())],
        vec![(Kind::File, &abs)],
        vec![(Kind::File, &vast)],
        vec![(Kind::File, &b), (Kind::File, &a)],
        vec![(Kind::File, &a), (Kind::File, &a)],
        vec![(Kind::File, &a), (Kind::File, &b), (Kind::File, &c)],
        vec![(Kind::File, &four), (Kind::Chunk, b"12345")],
        vec![(Kind::File, &four), (Kind::Chunk, b"1"), (Kind::End, &one)],
        vec![(Kind::File, &a), (Kind::End, &none)],
        vec![(Kind::Stdout, b"x")],
        vec![(Kind::File, &dir)],
        vec![(Kind::File, &link)],
        vec![(Kind::File, &unasked), (Kind::End, &one)],
    ] {
        let error = collect(&frames).await;
        assert!(matches!(error, AgentError::Forged(_)), "{frames:?}: {error:?}");
    }
}

#[tokio::test]
async fn an_old_agent_is_never_asked_what_it_does_not_know() {
    let (agent, _driver) = forger(StatusCode::OK, b"{\"version\":\"0.0.1\"}".to_vec()).await;
    assert_eq!(agent.health().await.unwrap().level, 1);
    for error in [
        agent.start(exec_request(), ExecOptions::default()).await.unwrap_err(),
        agent.dial(80).await.unwrap_err(),
        agent.metrics().await.unwrap_err(),
        agent.files().read("/a", 1).await.unwrap_err(),
        agent.files().watch(&["/a"], 1).await.unwrap_err(),
    ] {
        assert!(matches!(error, AgentError::Old { has: 1, needs: 2 }), "{error:?}");
    }
}

/// An agent that says it is new and then answers this.
async fn new_forger(frames: &[(Kind, &[u8])]) -> (Agent, Driver) {
    let body = frames.iter().flat_map(|(kind, payload)| encode(*kind, payload)).collect();
    let (agent, driver) = forger(StatusCode::OK, body).await;
    agent.level.store(wire::LEVEL, Ordering::Release);
    (agent, driver)
}

#[tokio::test]
async fn forged_files_lists_and_changes_are_errors() {
    let head = |size: u64| format!("{{\"path\":\"a\",\"size\":{size}}}").into_bytes();
    let end = |files: u64| format!("{{\"files\":{files},\"error\":null}}").into_bytes();
    let entry = |name: &str| {
        format!("{{\"name\":\"{name}\",\"kind\":\"file\",\"size\":0,\"mode\":0,\"mtime\":0}}")
            .into_bytes()
    };
    let (one, nine, ended) = (head(1), head(9), end(1));
    for frames in [
        vec![(Kind::Chunk, b"x".as_slice())],
        vec![(Kind::File, nine.as_slice())],
        vec![(Kind::File, &one), (Kind::Chunk, b"xx")],
        vec![(Kind::File, &one), (Kind::End, &ended)],
        vec![(Kind::File, &one), (Kind::File, &one)],
    ] {
        let (agent, _driver) = new_forger(&frames).await;
        let error = agent.files().read("/a", 8).await.unwrap_err();
        assert!(matches!(error, AgentError::Forged(_)), "{frames:?}: {error:?}");
    }
    let (a, b, up) = (entry("a"), entry("b"), entry("../a"));
    for frames in [
        vec![(Kind::Item, up.as_slice())],
        vec![(Kind::Item, &a), (Kind::Item, &b)],
        vec![(Kind::End, &ended)],
        vec![(Kind::Stdout, b"x")],
    ] {
        let (agent, _driver) = new_forger(&frames).await;
        let error = agent.files().list("/", 1).await.unwrap_err();
        assert!(matches!(error, AgentError::Forged(_)), "{frames:?}: {error:?}");
    }
    let link = b"{\"path\":\"a\",\"size\":3,\"kind\":\"link\"}".as_slice();
    let frames = [(Kind::File, link), (Kind::Chunk, b"a\0b"), (Kind::End, &ended)];
    let (agent, _driver) = new_forger(&frames).await;
    let request = CollectRequest {
        root: "/".into(),
        globs: vec!["*".into()],
        max_bytes: 10,
        max_files: 2,
        exact: true,
    };
    let error = agent.collect(&request).await.unwrap_err();
    assert!(matches!(error, AgentError::Forged(_)), "a target that no kernel has: {error:?}");
    let change = b"{\"path\":\"/a\",\"kind\":\"made\"}".as_slice();
    let (agent, _driver) = new_forger(&[(Kind::Item, change), (Kind::Item, change)]).await;
    let mut watching = agent.files().watch(&["/"], 1).await.unwrap();
    assert!(watching.next().await.unwrap().is_some());
    assert!(matches!(watching.next().await.unwrap_err(), AgentError::Forged(_)));
}

#[tokio::test]
async fn a_list_is_bounded_in_bytes_as_well() {
    let name = "n".repeat(60_000);
    let entry = |at: u32| {
        format!("{{\"name\":\"{name}{at}\",\"kind\":\"file\",\"size\":0,\"mode\":0,\"mtime\":0}}")
            .into_bytes()
    };
    let entries: Vec<Vec<u8>> = (0..400).map(entry).collect();
    let frames: Vec<(Kind, &[u8])> =
        entries.iter().map(|entry| (Kind::Item, entry.as_slice())).collect();
    let (agent, _driver) = new_forger(&frames).await;
    let error = agent.files().list("/", 10_000).await.unwrap_err();
    assert!(matches!(error, AgentError::Collect(_)), "{error:?}");
}

/// Counted alone, sixteen thousand of these would take a quarter of a gigabyte of the host for each watch.
#[tokio::test]
async fn changes_that_wait_for_their_reader_are_weighed() {
    let path = "p".repeat(15_000);
    let change = format!("{{\"path\":\"/{path}\",\"kind\":\"made\"}}").into_bytes();
    let many = vec![(Kind::Item, change.as_slice()); 200];
    let (agent, _driver) = new_forger(&many).await;
    let mut watching = agent.files().watch(&["/"], u64::MAX).await.unwrap();
    // Nobody reads until all of it has arrived.
    cofferdam_ambient::clock::sleep(std::time::Duration::from_secs(2)).await;
    let (mut bytes, mut count) = (0, 0);
    while let Ok(Some(change)) = watching.next().await {
        bytes += change.path.len();
        count += 1;
    }
    assert!(bytes <= 2 * 1024 * 1024 && (1..200).contains(&count), "{bytes} {count}");
    let huge = "p".repeat(20_000);
    let change = format!("{{\"path\":\"/{huge}\",\"kind\":\"made\"}}").into_bytes();
    let (agent, _driver) = new_forger(&[(Kind::Item, change.as_slice())]).await;
    let mut watching = agent.files().watch(&["/"], u64::MAX).await.unwrap();
    assert!(matches!(watching.next().await.unwrap_err(), AgentError::Forged(_)));
}

/// It takes as long as the longest of the bounds, which are those of a pause and of a resume with memory.
#[tokio::test]
async fn an_agent_that_never_answers_is_waited_for_no_longer_than_its_bound() {
    async fn silent() -> (Agent, Driver) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(async move {
            let service =
                service_fn(|_| pending::<std::result::Result<Response<Full<Bytes>>, Infallible>>());
            Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(theirs), service).await
        });
        let (agent, driver) = Agent::connect(ours).await.unwrap();
        agent.level.store(wire::LEVEL, Ordering::Release);
        (agent, driver)
    }
    let (sleeper, _driver) = silent().await;
    let (reporter, _driver) = silent().await;
    // It says that it falls asleep, and does not.
    let (waker, _driver) = new_forger(&[]).await;
    let all = async { tokio::join!(sleeper.sleep(), waker.sleep(), reporter.commands()) };
    let (slept, woken, told) =
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("an end");
    assert!(matches!(slept, Err(AgentError::Lost)), "{slept:?}");
    assert!(matches!(woken, Err(AgentError::Lost)), "{woken:?}");
    assert!(matches!(told, Err(AgentError::Lost)), "{told:?}");
    assert!(matches!(*sleeper.sleep.borrow(), Sleep::Awake), "a pause may be tried again");
}

/// What a client began and did not complete must not look whole.
#[tokio::test]
async fn a_file_whose_bytes_broke_off_ends_in_an_error_at_the_agent() {
    for (pieces, is_whole) in [(vec![Some("a"), None], true), (vec![Some("a")], false)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (heard, mut hears) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let heard = heard.clone();
                async move {
                    let whole = request.into_body().collect().await.is_ok();
                    heard.send(whole).await.unwrap();
                    let mut response = Response::new(Full::new(Bytes::new()));
                    *response.status_mut() = StatusCode::NO_CONTENT;
                    Ok::<_, Infallible>(response)
                }
            });
            Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(theirs), service).await
        });
        let (agent, _driver) = Agent::connect(ours).await.unwrap();
        agent.level.store(wire::LEVEL, Ordering::Release);
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        for piece in pieces {
            sender
                .send(piece.map(|text: &'static str| Bytes::from_static(text.as_bytes())))
                .await
                .unwrap();
        }
        drop(sender);
        let owner = cofferdam_guest::wire::User { uid: 1, gid: 1 };
        let poured = agent.files().pour("/a", 0o644, owner, receiver).await;
        assert_eq!((hears.recv().await, poured.is_ok()), (Some(is_whole), is_whole));
    }
}

#[tokio::test]
async fn a_tar_is_bounded_by_what_was_asked_for() {
    for (frames, whole) in [
        (vec![(Kind::Chunk, vec![0; 60_000])], false),
        (
            vec![
                (Kind::Chunk, vec![0; 2_000]),
                (Kind::End, br#"{"files":9,"error":null}"#.to_vec()),
            ],
            false,
        ),
        (vec![(Kind::File, b"{}".to_vec())], false),
        (
            vec![
                (Kind::Chunk, vec![0; 2_000]),
                (Kind::End, br#"{"files":1,"error":null}"#.to_vec()),
            ],
            true,
        ),
    ] {
        let body = frames.iter().flat_map(|(kind, payload)| encode(*kind, payload)).collect();
        let (agent, _driver) = forger(StatusCode::OK, body).await;
        agent.level.store(wire::LEVEL, Ordering::Release);
        let request = cofferdam_guest::archive::Pack {
            path: "/".into(),
            max_bytes: 10,
            max_entries: 2,
            exact: false,
            look: false,
        };
        let outcome = agent.files().pack(&request, |_| {}).await;
        assert!(
            matches!(outcome, Ok(1) if whole)
                || matches!(outcome, Err(AgentError::Forged(_)) if !whole)
        );
        let unpack = cofferdam_guest::archive::Unpack {
            path: "/".into(),
            max_bytes: 1,
            max_entries: 1,
            owner: None,
        };
        agent.level.store(2, Ordering::Release);
        let (_, none) = tokio::sync::mpsc::channel(1);
        let old = agent.files().unpack(&unpack, none).await;
        assert!(matches!(old, Err(AgentError::Old { has: 2, needs: 3 })));
    }
}

#[tokio::test]
async fn a_forged_list_of_commands_is_an_error_or_bounded() {
    let one = |id: u64| format!("{{\"id\":{id},\"pid\":2,\"terminal\":false,\"stdin\":false}}");
    let end = b"{\"files\":0,\"error\":null}".as_slice();
    for frames in [
        vec![(Kind::Item, b"{}".as_slice())],
        vec![(Kind::Stdout, b"x")],
        vec![(Kind::Item, one(1).as_bytes()), (Kind::Begun, b"{}")],
    ] {
        let (agent, _driver) = new_forger(&frames).await;
        assert!(matches!(agent.commands().await.unwrap_err(), AgentError::Forged(_)), "{frames:?}");
    }
    let items: Vec<String> = (0..600).map(one).collect();
    let mut frames: Vec<(Kind, &[u8])> =
        items.iter().map(|item| (Kind::Item, item.as_bytes())).collect();
    frames.push((Kind::End, end));
    let (agent, _driver) = new_forger(&frames).await;
    assert_eq!(agent.commands().await.unwrap().len(), 256);
    // The next command has a name of its own all the same.
    assert_eq!(agent.last_id.load(Ordering::Relaxed), 600);
}

/// The files of a machine whose agent answers so; what came of them, and what was written.
async fn kept(frames: &[(Kind, &[u8])]) -> (std::io::Result<()>, Vec<u8>) {
    let body = frames.iter().flat_map(|(kind, payload)| encode(*kind, payload)).collect();
    let (agent, _driver) = forger(StatusCode::OK, body).await;
    agent.level.store(wire::LEVEL, Ordering::Release);
    let read = tokio::task::spawn_blocking(move || {
        let mut files = agent.open_layer_stream(&|| true).unwrap();
        let mut out = Vec::new();
        let passed = crate::host::upper::pass(&mut files, &mut out, 200);
        (passed.and_then(|()| files.end()).map(drop), out)
    });
    read.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_machine_that_are_no_files_go_no_further() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("name"), b"bytes").unwrap();
    let mut stream = Vec::new();
    crate::host::upper::pack(dir.path(), 0, &mut stream, &|| true).unwrap();
    let end = b"{\"files\":0,\"error\":null}".as_slice();
    let (first, rest) = stream.split_at(9);
    let (whole, out) = kept(&[(Kind::Chunk, first), (Kind::Chunk, rest), (Kind::End, end)]).await;
    whole.unwrap();
    assert_eq!(out, stream);
    let name = stream.windows(4).position(|part| part == b"name").unwrap();
    let mut leads_out = stream.clone();
    leads_out[name..name + 4].copy_from_slice(b"../x");
    let more = [stream.as_slice(), b"more"].concat();
    let failed = b"{\"files\":0,\"error\":\"/name: it is a device\"}".as_slice();
    std::fs::write(dir.path().join("name"), vec![7; 200]).unwrap();
    let mut large = Vec::new();
    crate::host::upper::pack(dir.path(), 0, &mut large, &|| true).unwrap();
    for (frames, why) in [
        (vec![(Kind::Chunk, leads_out.as_slice()), (Kind::End, end)], "leads elsewhere"),
        (vec![(Kind::Chunk, more.as_slice()), (Kind::End, end)], "says more than the files"),
        (vec![(Kind::Chunk, first), (Kind::End, end)], "fill whole buffer"),
        (vec![(Kind::Chunk, first), (Kind::End, failed)], "/name: it is a device"),
        (vec![(Kind::Chunk, &stream)], "hung up"),
        (vec![(Kind::Chunk, &stream), (Kind::Stdout, b"x")], "something else"),
        (vec![(Kind::Chunk, b""), (Kind::Chunk, &stream), (Kind::End, end)], "something else"),
        (vec![(Kind::Chunk, b"cfdlyr03")], "another form"),
        (vec![(Kind::Chunk, &large), (Kind::End, end)], "more than 200 bytes"),
    ] {
        let (kept, out) = kept(&frames).await;
        let error = kept.unwrap_err().to_string();
        assert!(error.contains(why) && out.len() <= 200, "{frames:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a3l_who_gives_up_does_not_wait_for_a_machine_that_says_nothing() {
    let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
    let (agent, _driver) = Agent::connect(ours).await.unwrap();
    agent.level.store(wire::LEVEL, Ordering::Release);
    let since = cofferdam_ambient::clock::Stopwatch::start();
    let asked = tokio::task::spawn_blocking(move || {
        let looks = std::cell::Cell::new(0);
        let wanted = || looks.replace(looks.get() + 1) < 3;
        (agent.open_layer_stream(&wanted).map(drop), looks.get())
    });
    let (kept, looks) = asked.await.unwrap();
    assert!(matches!(kept, Err(AgentError::Lost)) && looks == 4, "{kept:?} {looks}");
    assert!(since.elapsed() < std::time::Duration::from_secs(20));
}
