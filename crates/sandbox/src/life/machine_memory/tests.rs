//! Streams with a memory, and machines that go on with one.

use std::io::{Cursor, Seek as _};

use cofferdam_ambient::random;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{Phase, WipeStatus};

use super::*;
use crate::host::task::blocking;
use crate::host::traces::Traces;
use crate::machine::tests::machines;
use crate::{Command, InitialFiles, Plan, provision, provision_filled};

fn stream(is_whole: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (bytes, is_whole) in [(&b"a: b\n"[..], true), (b"files", true), (&[7; 3_000_000], is_whole)]
    {
        let mut pieces = PieceWriter::to(&mut out, FILE_PIECE);
        pieces.write_all(bytes).unwrap();
        pieces.finish(is_whole).unwrap();
    }
    out
}

#[test]
fn a_memory_goes_on_with_its_mark_alone_and_its_files_with_any() {
    let whole = stream(true);
    let mut memory = read(&mut whole.as_slice(), "a: b\n").unwrap();
    memory.rewind().unwrap();
    let mut bytes = Vec::new();
    memory.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [7; 3_000_000]);
    let other = read(&mut whole.as_slice(), "a: c\n").unwrap_err().to_string();
    assert!(other.contains("a changed: it was b, and is c"), "{other}");
    let broken = read(&mut stream(false).as_slice(), "a: b\n").unwrap_err();
    assert!(broken.to_string().contains("not whole"), "{broken}");
    let cut = whole[..whole.len() - 5].to_vec();
    assert!(read(&mut cut.as_slice(), "a: b\n").is_err());
    for one in [whole, stream(false), cut] {
        let mut read = Vec::new();
        files(Box::new(io::Cursor::new(one))).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, b"files");
    }
}

/// No server has one memory go on twice; whoever did would find no number drawn twice.
#[test]
fn two_lives_of_one_memory_draw_other_numbers() {
    let state = tempfile::tempdir().unwrap();
    let Some((host, plan)) = machines(state.path()) else { return };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
        let sandbox = provision(&host, &plan, &[]).await.unwrap();
        let sleeping = sandbox.snapshotter().unwrap().sleep().await.unwrap();
        assert!(!sleeping.is_asleep(), "its files are written first");
        let (kept, stream) = blocking(move || {
            let mut out = Vec::new();
            let kept = sleeping.snapshot(&mut out, &|| true, &|| {});
            (kept, out)
        })
        .await;
        let (still, fault) = kept.unwrap();
        assert!(fault.is_none(), "{fault:?}");
        still.end();
        let evidence = sandbox.wipe("paused").await;
        assert_eq!(evidence.status, WipeStatus::Verified);
        let mut drawn = Vec::new();
        for _ in 0..2 {
            let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10))).unwrap();
            let facts = host.facts();
            let traces = Traces::of(&facts.state_dir, &facts.live_dir, &id);
            let plan = Plan { traces, ..plan.clone() };
            let filling = InitialFiles::with_memory_last(Cursor::new(stream.clone()));
            let sandbox = provision_filled(&host, &plan, &[], filling).await.unwrap();
            assert!(sandbox.boot().went_on);
            let command = Command {
                argv: ["od", "-An", "-tx1", "-N16", "/dev/urandom"].map(str::to_owned).into(),
                env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
                cwd: "/".to_owned(),
                timeout_ms: 20_000,
                phase: Phase::Exec,
                user: None,
                groups: Vec::new(),
                stdin_file: None,
                jail: None,
            };
            let mut said = Vec::new();
            let done = sandbox.exec(&command, |_, bytes| said.extend_from_slice(bytes)).await;
            assert_eq!(done.unwrap().exit, 0);
            assert!(said.len() > 32, "{said:?}");
            drawn.push(said);
            assert_eq!(sandbox.wipe("task-end").await.status, WipeStatus::Verified);
        }
        assert_ne!(drawn[0], drawn[1]);
    });
}
