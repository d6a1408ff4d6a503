//! Looking for bytes: in the memory, environment and files of a sandbox, in rows, and in files of the host.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sqlx::PgPool;

use crate::support::texts;

/// The forms of a value that are looked for: as it is, as basic authentication writes it, in hexadecimal.
pub fn forms(value: &str) -> Vec<Vec<u8>> {
    use base64::Engine as _;
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("ci:{value}"));
    vec![
        value.as_bytes().to_vec(),
        basic.into_bytes(),
        value.bytes().map(|b| format!("{b:02x}")).collect::<String>().into_bytes(),
    ]
}

/// The processes of the sandbox that this process is one of: those in its pid namespace.
pub fn of_sandbox(pid: i32) -> Vec<i32> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(&pid.to_string());
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        (name.bytes().all(|b| b.is_ascii_digit()) && namespace(&name) == own).then_some(name)
    });
    all.map(|pid| pid.parse().unwrap()).collect()
}

/// Where the needles are in a process's memory and environment.
pub fn in_process(pid: i32, needles: &[Vec<u8>]) -> Vec<String> {
    let mut found = Vec::new();
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    if memmem(&environ, needles) {
        found.push(format!("{pid} environ"));
    }
    let memory = match File::open(format!("/proc/{pid}/mem")) {
        // It has ended meanwhile.
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => return found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return found,
        opened => opened.expect("root reads a process's memory"),
    };
    for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with('r') || line.ends_with("[vvar]") || line.ends_with("[vsyscall]") {
            continue;
        }
        // A file of memory is read as one: a look at its holes through a process would fill them, at the sandbox's cost.
        if line.contains("/memfd:") {
            continue;
        }
        let (from, to) = range.split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        if is_between(&memory, (at(from), at(to)), needles) {
            found.push(format!("{pid} {line}"));
        }
    }
    found
}

/// Bytes that are read at a time: what a process maps may be larger than this machine's memory.
const PIECE: u64 = 8 << 20;

/// Whether a needle lies between two places; what cannot be read is passed over, a page at a time.
fn is_between(file: &File, (from, to): (u64, u64), needles: &[Vec<u8>]) -> bool {
    let longest = needles.iter().map(Vec::len).max().unwrap_or(1);
    let zero = [0; 4096];
    // The end of the piece before, in which a needle may begin.
    let (mut at, mut text) = (from, Vec::new());
    let mut piece = vec![0; usize::try_from(PIECE).unwrap()];
    while at < to {
        let most = usize::try_from(PIECE.min(to - at)).unwrap();
        let read = file.read_at(&mut piece[..most], at).unwrap_or(0);
        if read == 0 {
            at += 4096;
            text.clear();
            continue;
        }
        at += u64::try_from(read).unwrap();
        // Most of a machine's memory was never written.
        for page in piece[..read].chunks(4096) {
            if page == &zero[..page.len()] {
                text.clear();
                continue;
            }
            text.extend_from_slice(page);
            if memmem(&text, needles) {
                return true;
            }
            text.drain(..text.len().saturating_sub(longest - 1));
        }
    }
    false
}

/// Where the needles are in files without a name that a process holds open, such as the memory of gVisor's tasks. Each
/// is looked at once.
pub fn in_memory_files(
    pid: i32,
    needles: &[Vec<u8>],
    seen: &mut BTreeSet<(u64, u64)>,
) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let name = target.to_string_lossy().into_owned();
        let Ok(file) = File::open(entry.path()) else { continue };
        let what = file.metadata().unwrap();
        let is_memory = name.starts_with("/memfd:") || name.ends_with(" (deleted)");
        if !is_memory || !what.is_file() || !seen.insert((what.dev(), what.ino())) {
            continue;
        }
        if data_of(&file).into_iter().any(|part| is_between(&file, part, needles)) {
            found.push(format!("{pid} {name}"));
        }
    }
    found
}

/// The parts of a file that are not holes.
fn data_of(file: &File) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let mut parts = Vec::new();
    let mut at = 0;
    while let Ok(from) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(from)).unwrap();
        parts.push((from, at));
    }
    parts
}

/// Files below a directory that hold a needle. Links are not followed.
pub fn in_files(dir: &Path, needles: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file()
                && fs::read(entry.path()).is_ok_and(|bytes| memmem(&bytes, needles))
            {
                found.push(entry.path());
            }
        }
    }
    found
}

/// Tables with a row that holds a needle, every column as text.
pub async fn in_rows(sql: &PgPool, needles: &[Vec<u8>]) -> BTreeSet<String> {
    let tables = texts(
        sql,
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('app', 'dbos')",
    )
    .await;
    assert!(tables.len() > 30, "{tables:?}");
    let mut found = BTreeSet::new();
    for table in tables {
        for needle in needles {
            let needle = String::from_utf8(needle.clone()).unwrap();
            let query = format!(
                "SELECT 1::text FROM {table} t WHERE position('{needle}' IN t::text) > 0 LIMIT 1"
            );
            if !texts(sql, &query).await.is_empty() {
                found.insert(table.clone());
            }
        }
    }
    found
}

fn memmem(bytes: &[u8], needles: &[Vec<u8>]) -> bool {
    needles.iter().any(|needle| memchr::memmem::find(bytes, needle).is_some())
}
