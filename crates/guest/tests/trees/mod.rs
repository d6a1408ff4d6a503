//! Small trees of a layer, as bytes say: directories, files with holes, links of both kinds, modes and times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What is made of one piece of the bytes: as many as this.
const STEP: usize = 6;
const MAX_STEPS: usize = 64;

/// Makes a tree. What one step cannot make is left out.
pub fn grow(top: &Path, bytes: &[u8]) {
    let (mut dir, mut files, mut dirs) =
        (top.to_owned(), Vec::<PathBuf>::new(), vec![top.to_owned()]);
    for step in bytes.chunks_exact(STEP).take(MAX_STEPS) {
        let [kind, name, more, size, mode, time] = *step else { continue };
        let at = dir.join(std::ffi::OsStr::from_bytes(&named(name, more)));
        let pick = |count: usize| usize::from(more) % count.max(1);
        match kind % 8 {
            0 | 1 if fs::create_dir(&at).is_ok() => {
                dirs.push(at.clone());
                dir = at;
            }
            2 | 3 => {
                let Ok(file) = File::options().write(true).create_new(true).open(&at) else {
                    continue;
                };
                file.set_len(u64::from(size) << (more % 10)).unwrap();
                file.write_all_at(&vec![more; usize::from(mode)], u64::from(size) * 100).unwrap();
                fs::set_permissions(&at, Permissions::from_mode(u32::from(mode) << 4 | 0o600))
                    .unwrap();
                let when = SystemTime::UNIX_EPOCH
                    + Duration::new(u64::from(time) << (size % 24), time.into());
                file.set_modified(when).unwrap();
                files.push(at);
            }
            4 => drop(symlink(std::ffi::OsStr::from_bytes(&named(size, mode)), &at)),
            5 if !files.is_empty() => drop(fs::hard_link(&files[pick(files.len())], &at)),
            6 => dir = dirs[pick(dirs.len())].clone(),
            7 => drop(fs::rename(&at, dir.join("moved"))),
            _ => {}
        }
    }
    for dir in dirs.iter().filter(|dir| dir.exists()) {
        File::open(dir).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
}

fn named(byte: u8, length: u8) -> Vec<u8> {
    let byte = if matches!(byte, 0 | b'/' | b'.') { b'_' } else { byte };
    vec![byte; usize::from(length % 3).saturating_add(1)]
}

/// What a tree has, by path: kind and mode, time, names, and bytes or target.
pub fn seen(top: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, u64, Vec<u8>)> {
    let (mut all, mut due) = (BTreeMap::new(), BTreeSet::from([PathBuf::new()]));
    while let Some(path) = due.pop_first() {
        let at = top.join(&path);
        let found = fs::symlink_metadata(&at).unwrap();
        let bytes = match (found.is_dir(), found.is_symlink()) {
            (true, _) => {
                due.extend(
                    fs::read_dir(&at).unwrap().map(|one| path.join(one.unwrap().file_name())),
                );
                Vec::new()
            }
            (_, true) => fs::read_link(&at).unwrap().as_os_str().as_bytes().to_vec(),
            _ => fs::read(&at).unwrap(),
        };
        let names = if found.is_dir() { 0 } else { found.nlink() };
        all.insert(path, (found.mode(), found.mtime(), found.mtime_nsec(), names, bytes));
    }
    all
}
