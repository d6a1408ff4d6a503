//! Set-user-id and set-group-id bits in what a task wrote through to the host: taken away when it has ended.
//!
//! The system call filter lets none be made; this looks at what is there, whatever kernel stood between. Files that had the bits
//! before the sandbox began, and were not touched since, keep them.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::{WipeCheck, WipeSubject};
use rustix::fs::{AtFlags, Mode, Stat, fchmod, fstat, statat};

use crate::host::hostpath::HostHandle;

/// Entries of one directory that are looked at: half a second.
const MAX_ENTRIES: usize = 100_000;
/// Names that are listed.
const MAX_NAMES: usize = 16;
const SET_ID: u32 = 0o6000;
/// The kernel's clock for files may lag behind the one that we read.
const LAG_S: i64 = 1;

/// Files and directories that a task writes through to, and since when.
#[derive(Debug, Clone, Default)]
pub(crate) struct SetidScan {
    pub opened: Vec<HostHandle>,
    pub since_s: i64,
}

impl SetidScan {
    /// Looks at all of it. What is found is taken away and named.
    pub(crate) fn strip(&self) -> Vec<WipeCheck> {
        self.opened.iter().map(|opened| strip(opened, self.since_s - LAG_S)).collect()
    }
}

fn strip(opened: &HostHandle, since_s: i64) -> WipeCheck {
    let (mut found, mut fault): (Vec<PathBuf>, Option<String>) = (Vec::new(), None);
    if opened.is_dir() {
        let listed = opened.entries(MAX_ENTRIES, &mut |path, is_file| {
            let seen = statat(opened, path, AtFlags::SYMLINK_NOFOLLOW);
            if is_file && seen.is_ok_and(|seen| is_new(&seen, since_s)) {
                found.push(path.to_owned());
            }
            ControlFlow::Continue(())
        });
        fault = listed.err().map(|error| format!("not all of it was looked at: {error}"));
    } else {
        found.push(PathBuf::new());
    }
    let mut names = Vec::new();
    for path in found {
        match take(opened, &path, since_s) {
            Ok(true) => names.push(path.display().to_string()),
            Ok(false) => {}
            Err(error) => fault = Some(format!("{}: {error}", path.display())),
        }
    }
    let taken = (!names.is_empty()).then(|| {
        let listed: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
        format!("set-id bits were taken from {} file(s): {}", names.len(), listed.join(", "))
    });
    let observed: Vec<String> = taken.into_iter().chain(fault).collect();
    WipeCheck {
        looked: WipeSubject::SetId(format!("{:?}", opened.said())),
        // They are gone, or were not looked for and stand in the words: nothing that another look would change.
        ok: true,
        observed: (!observed.is_empty()).then(|| observed.join("; ")),
    }
}

fn is_new(found: &Stat, since_s: i64) -> bool {
    found.st_mode & SET_ID != 0 && found.st_ctime >= since_s
}

/// By its descriptor, looked at again: whether there was something to take away.
fn take(opened: &HostHandle, path: &Path, since_s: i64) -> io::Result<bool> {
    let file = opened.file(path)?;
    let found = fstat(&file)?;
    if !is_new(&found, since_s) {
        return Ok(false);
    }
    fchmod(&file, Mode::from_raw_mode(found.st_mode & 0o1777))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::host::hostpath::{AllowedPaths, HostPath, Links};

    #[test]
    fn m4_bits_that_a_task_left_are_taken_away_and_named_and_older_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        for (name, mode) in [("a", 0o4755), ("sub/b", 0o2750), ("c", 0o755)] {
            fs::write(dir.path().join(name), name).unwrap();
            fs::set_permissions(dir.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        let allowed = AllowedPaths::new(&[dir.path().to_owned()], Vec::new()).unwrap();
        let said = HostPath::said(dir.path().to_str().unwrap());
        let opened = allowed.open(&said, Links::Beneath).unwrap();
        let mode =
            |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o7777;
        let later = SetidScan { opened: vec![opened.clone()], since_s: i64::MAX };
        assert_eq!(later.strip()[0].observed, None);
        assert_eq!(mode("a"), 0o4755);
        let through = SetidScan { opened: vec![opened], since_s: 1 };
        let observed = through.strip()[0].observed.clone().unwrap();
        assert!(observed.contains("2 file(s): a, sub/b"), "{observed}");
        assert_eq!((mode("a"), mode("sub/b"), mode("c")), (0o755, 0o750, 0o755));
    }
}
