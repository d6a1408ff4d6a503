//! Tars into and out of real sandboxes: honest ones, and every hostile one that we could think of.

use crate::support;

use bytes::Bytes;
use cofferdam_guest::archive::{Pack, Unpack};
use cofferdam_guest::wire::User;
use cofferdam_sandbox::{Agent, AgentError, Plan, Sandbox};
use serde_json::json;
use support::{sh, verified, with_bench};
use tar::{Archive, Builder, EntryType, Header};
use tokio::sync::mpsc;

/// One entry whose name and target are taken as they are, which no honest writer would.
fn entry(kind: EntryType, name: &str, target: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    old.linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header.set_size(u64::try_from(bytes.len()).unwrap());
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn file(name: &str) -> Vec<u8> {
    entry(EntryType::Regular, name, "", b"new")
}

fn link(name: &str, target: &str) -> Vec<u8> {
    entry(EntryType::Symlink, name, target, b"")
}

fn hard(name: &str, target: &str) -> Vec<u8> {
    entry(EntryType::Link, name, target, b"")
}

fn ended(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut tar = parts.concat();
    tar.resize(tar.len() + 1024, 0);
    tar
}

fn into(path: &str) -> Unpack {
    Unpack { path: path.into(), max_bytes: 1 << 20, max_entries: 50, owner: None }
}

async fn unpack(
    agent: &Agent,
    request: &Unpack,
    tar: Vec<u8>,
    piece: usize,
) -> Result<(), AgentError> {
    let (pieces, body) = mpsc::channel(1);
    let sent = tokio::spawn(async move {
        for piece in tar.chunks(piece) {
            // A refusal ends it early.
            if pieces.send(Bytes::copy_from_slice(piece)).await.is_err() {
                return;
            }
        }
    });
    let outcome = agent.files().unpack(request, body).await;
    sent.abort();
    outcome
}

fn refused(outcome: Result<(), AgentError>) -> (u16, String) {
    match outcome {
        Err(AgentError::Refused { status, error }) => (status, error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_honest_tar_is_unpacked_in_pieces_of_any_size_as_its_owners() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let long = format!("{}/deep", ["directory"; 30].join("/"));
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o640);
        header.set_mtime(1_000_000_000);
        builder.append_data(&mut header, &long, b"far".as_slice()).unwrap();
        builder.append_pax_extensions([("path", b"by pax".as_slice())]).unwrap();
        builder.append_data(&mut header.clone(), "short", b"pax".as_slice()).unwrap();
        let mut tar = builder.get_ref().clone();
        tar.extend(ended(&[
            entry(EntryType::Directory, "./", "", b""),
            entry(EntryType::Directory, "bin/", "", b""),
            entry(EntryType::Regular, "./bin/tool", "", &[b'x'; 1500]),
            hard("bin/same", "bin/tool"),
            link("bin/to", "/etc/passwd"),
        ]));
        for (round, piece) in [7, 511, 100_000].into_iter().enumerate() {
            sh(&sandbox, &plan, &format!("mkdir /work/{round}")).await;
            let mut request = into(&format!("/work/{round}"));
            request.owner = Some(User { uid: 4, gid: 5 });
            unpack(sandbox.agent(), &request, tar.clone(), piece).await.unwrap();
            let said = sh(
                &sandbox,
                &plan,
                &format!(
                    "cd /work/{round} && stat -c '%a %u %g %h %s %Y' bin/tool && \
                     stat -c '%a %u' bin/same && readlink bin/to && cat {long} && cat 'by pax'; \
                     test ! -e short && test bin/tool -ef bin/same && stat -c ' %a' {long}"
                ),
            )
            .await;
            let expected = "755 4 5 2 1500 1000000000\n755 4\n/etc/passwd\nfarpax 640\n";
            assert_eq!(said.stdout, expected, "{}", said.stderr);
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn no_name_in_a_tar_leads_out_of_its_directory() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let made =
            "mkdir -p in out && echo old > out/f && ln -s ../out in/there && echo mine > in/mine";
        sh(&sandbox, &plan, made).await;
        let hostile = [
            (400, vec![file("/work/out/f")]),
            (400, vec![file("../out/f")]),
            (400, vec![file("a/../../out/f")]),
            (400, vec![file("..")]),
            (400, vec![file(".")]),
            (400, vec![hard("h", "/work/out/f")]),
            (400, vec![hard("h", "../out/f")]),
            (400, vec![hard("h", "there/f")]),
            (400, vec![hard("h", "there")]),
            // There, but not brought by this tar; and what it brings only later.
            (400, vec![hard("h", "mine")]),
            (400, vec![hard("h", "later"), file("later")]),
            (400, vec![file("self"), hard("self", "self")]),
            // Through a link that is there, one that the tar brings, and one of them as a directory.
            (409, vec![file("there/f")]),
            (409, vec![file("there/new")]),
            (409, vec![link("l", "../out"), file("l/f")]),
            (409, vec![link("l", "/work/out"), entry(EntryType::Directory, "l", "", b"")]),
            (400, vec![link("l", "../out/f"), hard("h", "l")]),
            (400, vec![entry(EntryType::Char, "null", "", b"")]),
            (400, vec![entry(EntryType::Block, "disk", "", b"")]),
            (400, vec![entry(EntryType::Fifo, "fifo", "", b"")]),
            (400, vec![entry(EntryType::GNUSparse, "holes", "", b"")]),
            (400, vec![entry(EntryType::Symlink, "bytes", "x", b"body")]),
            (400, vec![entry(EntryType::GNULongName, "x", "", b"../out/f\0"), file("short")]),
            (400, vec![entry(EntryType::XHeader, "x", "", b"17 path=../out/f\n"), file("short")]),
            (400, vec![entry(EntryType::XHeader, "x", "", b"22 GNU.sparse.major=1\n"), file("s")]),
            (400, vec![entry(EntryType::XHeader, "x", "", b"999 path=x\n"), file("short")]),
            (413, vec![entry(EntryType::GNULongName, "x", "", &[b'n'; 20_000]), file("short")]),
            (413, vec![entry(EntryType::Regular, "large", "", &vec![0; (1 << 20) + 1])]),
            (413, (0..51).map(|at| file(&format!("f{at}"))).collect()),
            (413, vec![file(&"d/".repeat(49)), file(&format!("e/{}f", "d/".repeat(40)))]),
        ];
        for (status, parts) in hostile {
            let outcome = unpack(sandbox.agent(), &into("/work/in"), ended(&parts), 4096).await;
            let name = String::from_utf8_lossy(&parts.last().unwrap()[..30]).into_owned();
            let (got, said) = refused(outcome);
            assert_eq!(got, status, "{name}: {said}");
        }
        let said = sh(
            &sandbox,
            &plan,
            "cat out/f in/mine; ls out; find . -links +1 -type f; find . -perm /7000; \
             find . ! -type f ! -type d ! -type l",
        )
        .await;
        assert_eq!(said.stdout, "old\nmine\nf\n", "{}", said.stderr);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn what_is_there_is_replaced_and_never_written_into() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let made = "mkdir in in/dir && echo old > f && ln -s ../f in/link && ln f in/twin";
        sh(&sandbox, &plan, made).await;
        let tar = ended(&[file("link"), file("twin")]);
        unpack(sandbox.agent(), &into("/work/in"), tar, 700).await.unwrap();
        let over = unpack(sandbox.agent(), &into("/work/in"), ended(&[file("dir")]), 700).await;
        assert_eq!(refused(over).0, 400);
        let said = sh(&sandbox, &plan, "cat f in/link in/twin; test -L in/link || echo file").await;
        assert_eq!(said.stdout, "old\nnewnewfile\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_tar_that_is_none_or_only_a_part_is_refused_and_the_agent_lives() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        sh(&sandbox, &plan, "mkdir in; ln -s in link").await;
        let agent = sandbox.agent();
        let mut wrong = ended(&[file("f")]);
        wrong[0] ^= 1;
        let mut trailing = ended(&[file("f")]);
        trailing.resize(trailing.len() + (2 << 20), 7);
        for tar in
            [Vec::new(), vec![b'x'; 2048], file("f"), file("f")[..600].to_vec(), wrong, trailing]
        {
            let outcome = unpack(agent, &into("/work/in"), tar, 1000).await;
            assert_eq!(refused(outcome).0, 400);
        }
        for (path, status) in
            [("/work/none", 404), ("/work/link", 409), ("/work/../etc", 400), ("in", 400)]
        {
            let outcome = unpack(agent, &into(path), ended(&[file("f")]), 1000).await;
            assert_eq!(refused(outcome).0, status, "{path}");
        }
        unpack(agent, &into("/work/in"), ended(&[file("f")]), 1000).await.unwrap();
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_directory_comes_out_as_it_is_and_goes_in_again() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let long = "n".repeat(200);
        let made = format!(
            "mkdir -p from/a/b to && printf 12345 > from/a/b/f && chmod 4751 from/a/b/f && \
             ln -s /etc/shadow from/out && ln -s a from/dir && ln from/a/b/f from/twin && \
             mkfifo from/fifo && printf long > from/{long} && head -c 300000 /dev/zero > from/zero"
        );
        assert_eq!(sh(&sandbox, &plan, &made).await.outcome.exit, 0);
        let agent = sandbox.agent();
        let mut tar = Vec::new();
        let count =
            agent.files().pack(&request(1 << 20, 20), |bytes| tar.extend_from_slice(bytes)).await;
        assert_eq!(count.unwrap(), 8);
        let mut found = Vec::new();
        for entry in Archive::new(tar.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            let path = entry.path().unwrap().display().to_string();
            found.push((
                path,
                header.entry_type(),
                header.mode().unwrap() & 0o7000,
                header.size().unwrap(),
            ));
        }
        let (dir, plain, link) = (EntryType::Directory, EntryType::Regular, EntryType::Symlink);
        let expected = [
            ("a/", dir, 0, 0),
            ("a/b/", dir, 0, 0),
            ("a/b/f", plain, 0, 5),
            ("dir", link, 0, 0),
            (&long, plain, 0, 4),
            ("out", link, 0, 0),
            ("twin", plain, 0, 5),
            ("zero", plain, 0, 300_000),
        ];
        assert_eq!(
            found,
            expected.map(|(path, kind, mode, size)| (path.to_owned(), kind, mode, size))
        );
        unpack(agent, &into("/work/to"), tar, 5000).await.unwrap();
        let same =
            sh(&sandbox, &plan, "rm from/fifo; diff -r --no-dereference from to && echo same");
        assert_eq!(same.await.stdout, "same\n");
        // Bounds are errors, and a link is no directory.
        for (bytes, most, word) in [(300_000, 20, "bytes"), (1 << 20, 7, "entries")] {
            let outcome = agent.files().pack(&request(bytes, most), |_| {}).await;
            assert!(
                matches!(&outcome, Err(AgentError::Collect(said)) if said.contains(word)),
                "{outcome:?}"
            );
        }
        assert_exact(&sandbox, &plan).await;
        let linked = Pack { path: "/work/from/dir".into(), ..request(9, 9) };
        assert_eq!(refused(agent.files().pack(&linked, |_| {}).await.map(|_| ())).0, 409);
        verified(&sandbox.wipe("task-end").await);
    });
}

/// Who keeps a directory is told more, and of what cannot be sent.
async fn assert_exact(sandbox: &Sandbox, plan: &Plan) {
    let (agent, dir, plain) = (sandbox.agent(), EntryType::Directory, EntryType::Regular);
    let exact = || Pack { path: "/work/exact".into(), exact: true, ..request(1 << 20, 20) };
    let make = "mkdir exact && chmod 1777 exact && touch exact/f && chown 7:8 exact/f exact && \
                chmod 4700 exact/f";
    assert_eq!(sh(sandbox, plan, make).await.outcome.exit, 0);
    let mut tar = Vec::new();
    let count = agent.files().pack(&exact(), |bytes| tar.extend_from_slice(bytes)).await;
    assert_eq!(count.unwrap(), 2);
    let mut found = Vec::new();
    for entry in Archive::new(tar.as_slice()).entries().unwrap() {
        let header = entry.unwrap().header().clone();
        let owner = (header.uid().unwrap(), header.gid().unwrap());
        found.push((header.entry_type(), header.mode().unwrap(), owner));
    }
    assert_eq!(found, [(dir, 0o1777, (7, 8)), (plain, 0o700, (7, 8))]);
    assert_eq!(sh(sandbox, plan, "mkfifo exact/p").await.outcome.exit, 0);
    let outcome = agent.files().pack(&exact(), |_| {}).await;
    assert!(matches!(&outcome, Err(AgentError::Collect(said)) if said.contains("a pipe")));
    // Who only looks is told the same and sent nothing, however large it is.
    let look = || Pack { max_bytes: 0, look: true, ..exact() };
    let outcome = agent.files().pack(&look(), |_| panic!("something was sent")).await;
    assert!(matches!(&outcome, Err(AgentError::Collect(said)) if said.contains("a pipe")));
    assert_eq!(sh(sandbox, plan, "rm exact/p; echo >> exact/f").await.outcome.exit, 0);
    assert_eq!(agent.files().pack(&look(), |_| panic!("something was sent")).await.unwrap(), 0);
}

fn request(max_bytes: u64, max_entries: u64) -> Pack {
    Pack { path: "/work/from".into(), max_bytes, max_entries, exact: false, look: false }
}
