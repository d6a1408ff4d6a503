//! What a file costs on its way into the artifact store and out of it, against `cp` followed by `sha256sum`, in turns.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use cofferdam_contracts::id::TenantId;
use cofferdam_store::{ObjectHead, ObjectReader, ObjectWriter, Store};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::figures::{emit, median};

/// Bytes of the file, and rounds of each.
const BYTES: usize = 512 * 1024 * 1024;
const ROUNDS: usize = 7;
/// One read or write of a file.
const CHUNK: usize = 1024 * 1024;

fn fill(path: &Path, bytes: usize) {
    let mut file = File::create(path).expect("a file");
    let mut piece = vec![0_u8; CHUNK];
    for at in 0..bytes / CHUNK {
        for (n, byte) in piece.iter_mut().enumerate() {
            *byte = (n.wrapping_mul(at | 1) >> 3) as u8;
        }
        file.write_all(&piece).expect("room");
    }
    file.sync_all().expect("a sync");
}

fn run(program: &str, args: &[&Path]) {
    let output = Command::new(program).args(args).output().expect("a program");
    assert!(output.status.success(), "{program}");
}

/// A file is copied and its copy is hashed; the copy is on the disk, as an object is.
fn plain(from: &Path, to: &Path) -> f64 {
    let begun = Instant::now();
    run("cp", &[from, to]);
    run("sync", &[to]);
    run("sha256sum", &[to]);
    let took = begun.elapsed().as_secs_f64();
    std::fs::remove_file(to).expect("the copy");
    took
}

async fn stored(store: &Store, from: &Path, to: &Path) -> (f64, f64) {
    let tenant = TenantId::parse("bench").expect("a tenant");
    let begun = Instant::now();
    let mut file = File::open(from).expect("the file");
    let mut writer = ObjectWriter::begin(store, &tenant).await.expect("an object");
    let mut piece = vec![0; CHUNK];
    loop {
        let count = file.read(&mut piece).expect("bytes");
        if count == 0 {
            break;
        }
        writer.write(&piece[..count]).await.expect("room");
    }
    let staged = writer.finish().await.expect("room");
    let head = ObjectHead {
        id: staged.id().clone(),
        tenant,
        sha256: staged.sha256().expect("a digest").clone(),
        size: staged.size(),
    };
    let key = staged.key().clone();
    staged.record().await;
    let into = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let reader = ObjectReader::open(store, head.clone(), &key).await.expect("the object");
    let mut stream = reader.stream(0..head.size);
    let (mut file, mut sha256) = (File::create(to).expect("a file"), Sha256::new());
    while let Some(piece) = stream.next().await.expect("bytes") {
        // As `artifacts get` does.
        sha256.update(&piece);
        file.write_all(&piece).expect("room");
    }
    file.sync_all().expect("a sync");
    let found: String = sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, head.sha256.as_str());
    let out = begun.elapsed().as_secs_f64();
    std::fs::remove_file(to).expect("the copy");
    store.remove(&head.sha256, &head.id).expect("the object");
    (into, out)
}

/// `objects_in_ratio`, `objects_out_ratio`: throughput of the store as a part of that of `cp`, `sync` and `sha256sum`.
pub async fn objects() {
    let is_quick = std::env::var_os("BENCH_QUICK").is_some();
    let (bytes, rounds) = if is_quick { (BYTES / 8, 3) } else { (BYTES, ROUNDS) };
    let dir = tempfile::tempdir().expect("a directory");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fill(&from, bytes);
    let store = Store::open(&dir.path().join("objects")).expect("a store");
    let (mut ins, mut outs, mut plains) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let own = plain(&from, &to);
        let (into, out) = stored(&store, &from, &to).await;
        ins.push(own / into);
        outs.push(own / out);
        plains.push(bytes as f64 / own / 1e6);
    }
    let more = json!({"n": rounds, "bytes": bytes, "cp_mb_s": median(plains)});
    emit("objects_in_ratio", median(ins), "x", 0.6, more.clone());
    emit("objects_out_ratio", median(outs), "x", 0.6, more);
}
