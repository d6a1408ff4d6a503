//! Users of a root file system, looked up in that root's own databases as Docker's `--user` does.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd;

use cofferdam_guest::wire::User;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// A user database of a real system has some KiB.
const MAX_DATABASE: u64 = 1024 * 1024;
/// Groups of one user: a directory service's largest have some hundreds.
const MAX_GROUPS: usize = 1_024;
/// Where a user without an entry is at home, as in Docker.
const NO_HOME: &str = "/";

/// A user of a root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Numeric ids of the user and of the primary group.
    pub user: User,
    /// Every group that the user is a member of, the primary one included.
    pub groups: Vec<u32>,
    /// The home directory, absolute.
    pub home: String,
}

/// Why a text names no account.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountError {
    #[error("no user {0:?} is in /etc/passwd of the root file system; name one of it, or a number")]
    User(String),
    #[error("no group {0:?} is in /etc/group of the root file system; name one of it, or a number")]
    Group(String),
    #[error("{0:?} is in more than {MAX_GROUPS} groups of /etc/group")]
    Groups(String),
    #[error("/etc/{name} of the root file system cannot be read")]
    Database { name: &'static str, source: io::Error },
}

/// Finds `NAME`, `UID`, `NAME:GROUP` or `UID:GID`. A number is an id, also where a name is spelled so.
pub(crate) fn find(root: impl AsFd, text: &str) -> Result<Account, AccountError> {
    let (name, group) = text.split_once(':').map_or((text, None), |(n, g)| (n, Some(g)));
    let asked = name.parse::<u32>().ok();
    let people = database(&root, "passwd")?;
    let is_it = |row: &&Vec<String>| match asked {
        Some(id) => number(row, 2) == Some(id),
        None => row.first().is_some_and(|found| found == name),
    };
    let found = people.iter().find(is_it);
    let uid = asked.or_else(|| found.and_then(|row| number(row, 2)));
    let uid = uid.ok_or_else(|| AccountError::User(name.to_owned()))?;
    let home = found.and_then(|row| row.get(5)).filter(|home| home.starts_with('/'));
    let home = home.cloned().unwrap_or_else(|| NO_HOME.to_owned());
    let known = found.and_then(|row| row.first());
    let (gid, mut groups) = match group {
        Some(group) => (group_id(&root, group)?, Vec::new()),
        None => (
            found.and_then(|row| number(row, 3)).unwrap_or(0),
            known.map_or(Ok(Vec::new()), |name| memberships(&root, name))?,
        ),
    };
    groups.push(gid);
    groups.sort_unstable();
    groups.dedup();
    Ok(Account { user: User { uid, gid }, groups, home })
}

fn group_id(root: impl AsFd, group: &str) -> Result<u32, AccountError> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    let groups = database(root, "group")?;
    let found = groups.iter().find(|row| row.first().is_some_and(|name| name == group));
    let gid = found.and_then(|row| number(row, 2));
    gid.ok_or_else(|| AccountError::Group(group.to_owned()))
}

/// The groups that list a user as a member.
fn memberships(root: impl AsFd, name: &str) -> Result<Vec<u32>, AccountError> {
    let groups = database(root, "group")?;
    let has = |row: &&Vec<String>| {
        row.get(3).is_some_and(|members| members.split(',').any(|member| member == name))
    };
    let ids: Vec<u32> = groups.iter().filter(has).filter_map(|row| number(row, 2)).collect();
    match ids.len() < MAX_GROUPS {
        true => Ok(ids),
        false => Err(AccountError::Groups(name.to_owned())),
    }
}

fn number(row: &[String], column: usize) -> Option<u32> {
    row.get(column)?.parse().ok()
}

/// The rows of a file of the root, never one of the host: links are followed within the root. A root without the file has
/// no names.
fn database(root: impl AsFd, name: &'static str) -> Result<Vec<Vec<String>>, AccountError> {
    let fault = |source: io::Error| AccountError::Database { name, source };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(root, format!("etc/{name}"), flags, Mode::empty(), resolve) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
        Err(errno) => return Err(fault(errno.into())),
    };
    if !file.metadata().map_err(fault)?.is_file() {
        return Err(fault(io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_DATABASE).read_to_end(&mut bytes).map_err(fault)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn r12_a_user_is_looked_up_as_docker_does_and_in_its_root_alone() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        let dir = File::open(root.path()).unwrap();
        let of = |text: &str| find(&dir, text).map_err(|error| error.to_string());
        let is = |uid, gid, groups: &[u32], home: &str| {
            Ok(Account { user: User { uid, gid }, groups: groups.to_vec(), home: home.to_owned() })
        };
        // A root without databases, such as that of a static program, has numbers alone.
        assert_eq!(of("7:8"), is(7, 8, &[8], "/"));
        assert!(of("app").unwrap_err().contains("name one of it, or a number"));
        fs::create_dir(&etc).unwrap();
        let passwd = "root:x:0:0::/root:/bin/sh\napp:x:1001:1002::/srv/app:/bin/sh\n\
            1001:x:5:5::/odd:/bin/sh\nodd:x:9:9::relative:\nbroken:x:-1:9::/:\n";
        fs::write(etc.join("passwd"), passwd).unwrap();
        let group = "root:x:0:\nstaff:x:50:other,app\napp:x:1002:\nvideo:x:44:app\n";
        fs::write(etc.join("group"), group).unwrap();
        assert_eq!(of("root"), is(0, 0, &[0], "/root"));
        assert_eq!(of("app"), is(1001, 1002, &[44, 50, 1002], "/srv/app"));
        assert_eq!(of("1001"), of("app"));
        // A group that is named is the only one.
        assert_eq!(of("app:staff"), is(1001, 50, &[50], "/srv/app"));
        assert_eq!(of("1001:7"), is(1001, 7, &[7], "/srv/app"));
        assert_eq!(of("4242"), is(4242, 0, &[0], "/"));
        assert_eq!(of("odd"), is(9, 9, &[9], "/"));
        for (bad, word) in [("nobody-here", "user"), ("broken", "user"), ("app:none", "group")] {
            let words = of(bad).unwrap_err();
            assert!(words.starts_with(&format!("no {word} ")), "{words}");
        }
        // A link of the root leads into the root: the host has a user `daemon`.
        fs::remove_file(etc.join("passwd")).unwrap();
        symlink("/../../etc/passwd", etc.join("passwd")).unwrap();
        assert!(of("daemon").is_err());
        fs::remove_file(etc.join("passwd")).unwrap();
        fs::create_dir(etc.join("passwd")).unwrap();
        assert!(of("daemon").unwrap_err().contains("/etc/passwd"));
    }

    #[test]
    fn a_database_is_read_within_bounds() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/passwd"), "app:x:1:1::/:\n").unwrap();
        let many: String = (0..2_000).map(|id| format!("g{id}:x:{id}:app\n")).collect();
        fs::write(root.path().join("etc/group"), many).unwrap();
        let dir = File::open(root.path()).unwrap();
        let words = find(&dir, "app").unwrap_err().to_string();
        assert!(words.contains("1024 groups"), "{words}");
        // The group that is named is the only one, and needs no list.
        assert_eq!(find(&dir, "app:g7").unwrap().groups, [7]);
    }
}
