//! What packages of the host put below its `/etc`, for programs of its `/usr`: they do not start without, or not as usual.
//!
//! | what | shown because | never shown |
//! |---|---|---|
//! | a configuration file of a package, readable by all | its content has the digest that the package's list has: nobody of this host wrote in it | one that was changed, whatever it holds |
//! | a link that leads into `/usr` or to such a file | it names what is shown already | any other |
//!
//! Only Debian's packages have such a list. Elsewhere a few files are shown whose content is the same everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use md5::{Digest as _, Md5};

/// Of the status of packages: Debian's whole archive has 60 MB.
const MAX_STATUS: u64 = 128 * 1024 * 1024;
/// Of one file, of all, and how many: a workstation has 2,000 with 10 MB.
const MAX_FILE: u64 = 1024 * 1024;
const MAX_BYTES: u64 = 32 * 1024 * 1024;
const MAX_ENTRIES: usize = 8_000;
const MAX_DEPTH: usize = 8;
const FOR_ALL: u32 = 0o004;

/// Where no list says whose a file is: those that distributions share.
const COMMON: [&str; 8] = [
    "etc/login.defs",
    "etc/mime.types",
    "etc/pki/tls/openssl.cnf",
    "etc/protocols",
    "etc/rpc",
    "etc/services",
    "etc/ssl/openssl.cnf",
    "etc/ssl1.1/openssl.cnf",
];
/// What is shown in another way or is the sandbox's own; and where a host has its keys: nothing needs the packages' own files
/// there, and a directory that is absent is seen to be empty.
const LEFT_OUT: [&str; 5] =
    ["etc/alternatives", "etc/localtime", "etc/mtab", "etc/resolv.conf", "etc/ssh"];

/// Files and links below `/etc`, by their names without a leading slash.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PackageFiles {
    pub files: BTreeMap<String, Vec<u8>>,
    pub links: BTreeMap<String, PathBuf>,
}

/// What the packages of a host have, by the top of its files.
pub(super) fn of_packages(host: &Path) -> PackageFiles {
    let mut found = PackageFiles::default();
    let mut left = MAX_BYTES;
    let status = read(&host.join("var/lib/dpkg/status"), MAX_STATUS);
    let listed = status.map(|text| listed(&String::from_utf8_lossy(&text)));
    let common = || COMMON.iter().map(|name| ((*name).to_owned(), None)).collect();
    for (name, digest) in listed.unwrap_or_else(common) {
        if found.files.len() >= MAX_ENTRIES || is_left_out(&name) {
            continue;
        }
        let Some(bytes) = read(&host.join(&name), MAX_FILE.min(left)) else { continue };
        if digest.is_some_and(|digest| sum(&bytes) != digest) {
            continue;
        }
        left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        found.files.insert(name, bytes);
    }
    let mut links = BTreeMap::new();
    collect(host, Path::new("etc"), MAX_DEPTH, &mut links);
    let files: BTreeSet<&String> = found.files.keys().collect();
    links.retain(|name, target| {
        let end = end_of(name, target);
        end.is_some_and(|end| end.starts_with("usr/") || files.contains(&end))
    });
    found.links = links;
    found
}

/// Configuration files of packages with their digests, of a text in the form of dpkg's status. Pure.
fn listed(status: &str) -> Vec<(String, Option<String>)> {
    let mut all = Vec::new();
    let mut is_list = false;
    for line in status.lines() {
        if !line.starts_with(' ') {
            is_list = line == "Conffiles:";
            continue;
        }
        // A third word says that the package has it no more.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [path, digest] = words[..] else { continue };
        if let Some(name) = path.strip_prefix('/').filter(|name| is_list && is_plain(name)) {
            all.push((name.to_owned(), Some(digest.to_owned())));
        }
    }
    all
}

fn sum(bytes: &[u8]) -> String {
    Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_left_out(name: &str) -> bool {
    let is = |rest: &str| rest.is_empty() || rest.starts_with('/');
    LEFT_OUT.iter().any(|left_out| name.strip_prefix(left_out).is_some_and(is))
}

/// Whether a name lies below `/etc` and leads nowhere else.
fn is_plain(name: &str) -> bool {
    let is_normal = |part: Component<'_>| matches!(part, Component::Normal(_));
    name.starts_with("etc/") && Path::new(name).components().all(is_normal)
}

/// A file that everybody may read, through no link.
fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let found = file.metadata().ok()?;
    if !found.is_file() || found.permissions().mode() & FOR_ALL == 0 || found.len() > most {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Links below a directory, as deep as packages put them.
fn collect(host: &Path, dir: &Path, depth: usize, links: &mut BTreeMap<String, PathBuf>) {
    let mut open = vec![(dir.to_owned(), depth)];
    while let Some((dir, depth)) = open.pop() {
        let Ok(entries) = fs::read_dir(host.join(&dir)) else { continue };
        for entry in entries.flatten() {
            let path = dir.join(entry.file_name());
            let (Some(name), Ok(kind)) = (path.to_str(), entry.file_type()) else { continue };
            if is_left_out(name) || links.len() >= MAX_ENTRIES {
                continue;
            }
            if kind.is_dir() && depth > 0 {
                open.push((path, depth - 1));
            } else if kind.is_symlink()
                && let Ok(target) = fs::read_link(host.join(&path))
            {
                links.insert(name.to_owned(), target);
            }
        }
    }
}

/// Where a link leads by its text, without a leading slash. Pure.
fn end_of(name: &str, target: &Path) -> Option<String> {
    let mut parts: Vec<&str> = match target.is_absolute() {
        true => Vec::new(),
        false => name.rsplit_once('/').map_or_else(Vec::new, |(dir, _)| dir.split('/').collect()),
    };
    for part in target.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::symlink;

    fn put(top: &Path, name: &str, text: &str, mode: u32) {
        let path = top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn r26_r27_what_packages_put_there_is_shown_and_nothing_that_somebody_wrote() {
        let root = tempfile::TempDir::new().unwrap();
        let top = root.path();
        let status = format!(
            "Package: a\nStatus: install ok installed\nConffiles:\n /etc/services {0}\n /etc/changed {0}\n /etc/closed {0}\n \
             /etc/old {0} obsolete\n /etc/../root/x {0}\n /usr/x {0}\n /etc/link {0}\n /etc/ssh/ssh_config {0}\nDescription: x\n /etc/passwd {0}\n\n\
             Package: b\nConffiles:\n /etc/b/conf {0}\n",
            sum(b"own")
        );
        put(top, "var/lib/dpkg/status", &status, 0o644);
        put(top, "etc/services", "own", 0o644);
        put(top, "etc/changed", "own, and password=1", 0o644);
        put(top, "etc/closed", "own", 0o600);
        put(top, "etc/old", "own", 0o644);
        put(top, "etc/passwd", "own", 0o644);
        put(top, "etc/secret", "own", 0o644);
        put(top, "etc/ssh/ssh_config", "own", 0o644);
        put(top, "etc/b/conf", "own", 0o644);
        symlink("services", top.join("etc/link")).unwrap();
        symlink("../secret", top.join("etc/b/secret")).unwrap();
        symlink("../../usr/share/b", top.join("etc/b/share")).unwrap();
        symlink("../../../x", top.join("etc/b/out")).unwrap();
        symlink("/usr/share/zoneinfo/UTC", top.join("etc/localtime")).unwrap();
        let found = of_packages(top);
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["etc/b/conf", "etc/services"]);
        assert_eq!(found.links.keys().collect::<Vec<_>>(), ["etc/b/share", "etc/link"]);
        // Without a list of packages a few files are known by name.
        fs::remove_file(top.join("var/lib/dpkg/status")).unwrap();
        assert_eq!(of_packages(top).files.keys().collect::<Vec<_>>(), ["etc/services"]);
    }
}
