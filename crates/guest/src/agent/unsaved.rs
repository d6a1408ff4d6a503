//! What a kernel that stores its sandbox cannot store: files that were removed while a process has them. It opens every
//! file again by its name.

use std::fs;
use std::path::{Path, PathBuf};

/// What the kernel writes behind the name of a file that has none any more.
const DELETED: &str = " (deleted)";
/// File systems that are the kernel's own, and stored with it.
const OWN: [&str; 6] = ["tmpfs", "devtmpfs", "proc", "sysfs", "devpts", "mqueue"];

/// One that is found, in words. Looks at every process.
pub fn find() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts_of(&mounts);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        let path = of(pid).into_iter().find(|path| is_unsaved(path, &mounts))?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(format!("process {pid} ({}) has the removed file {path} open", name.trim()))
    })
}

/// Removed files of one process, by the names that they had.
fn of(pid: u32) -> Vec<String> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let opened = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
    let opened = opened.map(|entry| entry.path());
    let own = ["cwd", "root", "exe"].map(|name| dir.join(name));
    let links = opened.chain(own).filter_map(|link| fs::read_link(link).ok());
    let links = links.filter_map(|path| Some(path.to_str()?.strip_suffix(DELETED)?.to_owned()));
    let maps = fs::read_to_string(dir.join("maps")).unwrap_or_default();
    links.chain(maps.lines().filter_map(mapped)).collect()
}

/// The removed file of a line of `maps`.
fn mapped(line: &str) -> Option<String> {
    let at = line.find('/')?;
    Some(line.get(at..)?.strip_suffix(DELETED)?.to_owned())
}

/// Places and kinds of what is mounted.
fn mounts_of(text: &str) -> Vec<(PathBuf, String)> {
    let one = |line: &str| {
        let mut words = line.split(' ').skip(1);
        Some((PathBuf::from(words.next()?), words.next()?.to_owned()))
    };
    text.lines().filter_map(one).collect()
}

/// Whether a file lies on a file system that is not the kernel's own. Pure.
fn is_unsaved(path: &str, mounts: &[(PathBuf, String)]) -> bool {
    // A file of memory never had a name.
    if !path.starts_with('/') || path.starts_with("/memfd:") {
        return false;
    }
    let above = mounts.iter().filter(|(place, _)| Path::new(path).starts_with(place));
    let nearest = above.max_by_key(|(place, _)| place.components().count());
    nearest.is_none_or(|(_, kind)| !OWN.contains(&kind.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_is_unsaved_unless_it_lies_in_memory_of_the_kernels_own() {
        let text = "none / 9p rw 0 0\nnone /dev tmpfs rw 0 0\nnone /dev/data 9p rw 0 0\nnone /proc proc ro 0 0\n";
        let mounts = mounts_of(text);
        for (path, unsaved) in [
            ("/tmp/x", true),
            ("/home/user/a b", true),
            ("/dev/shm/x", false),
            ("/dev/data/x", true),
            ("/memfd:x", false),
            ("pipe:[3]", false),
        ] {
            assert_eq!(is_unsaved(path, &mounts), unsaved, "{path}");
        }
    }

    #[test]
    fn a_line_of_the_maps_names_its_file() {
        let line = "7f00-7f01 r--s 00000000 00:0d 7 /tmp/a b (deleted)";
        assert_eq!(mapped(line).as_deref(), Some("/tmp/a b"));
        assert_eq!(mapped("7f00-7f01 r--s 00000000 00:0d 7 /tmp/a"), None);
        assert_eq!(mapped("7f00-7f01 rw-p 00000000 00:00 0 [heap]"), None);
    }
}
