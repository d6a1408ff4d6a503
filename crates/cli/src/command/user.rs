//! The user that `api` becomes: parsing what strangers send needs none of root's rights.

use anyhow::Context;
use nix::unistd::{ROOT, User, geteuid, initgroups, setgid, setgroups, setuid};
use std::ffi::CString;

use super::exit::Misuse;
use super::locations::Locations;

/// Who it will be, looked up before anything starts.
///
/// # Errors
/// A name that is nobody's or root's, a caller without the rights, or no database that this user reaches.
pub(crate) fn wanted(at: &Locations, name: &str) -> anyhow::Result<User> {
    if !geteuid().is_root() {
        return Err(Misuse(
            "--user requires root; start as root, or as that user without --user".into(),
        )
        .into());
    }
    if at.db.is_none() {
        let why =
            "--user requires a database that this user can reach; pass --db URL or DATABASE_URL";
        return Err(Misuse(why.into()).into());
    }
    let user = User::from_name(name)
        .with_context(|| format!("cannot look up the user {name}"))?
        .ok_or_else(|| {
            Misuse(format!(
                "--user: no user {name:?} on this host; make it with `adduser --system {name}`"
            ))
        })?;
    if user.uid == ROOT {
        return Err(Misuse("--user is for a user other than root".into()).into());
    }
    Ok(user)
}

/// Becomes the user, in every thread and for good. Groups first: without root's id they cannot be changed.
pub(crate) fn become_user(user: &User) -> anyhow::Result<()> {
    let name = CString::new(user.name.as_str())?;
    let become_it = || -> nix::Result<()> {
        setgroups(&[])?;
        initgroups(&name, user.gid)?;
        setgid(user.gid)?;
        setuid(user.uid)
    };
    become_it().with_context(|| format!("cannot become the user {}", user.name))?;
    anyhow::ensure!(
        setuid(ROOT).is_err(),
        "root's rights could be regained after the change of user; refusing to serve"
    );
    Ok(())
}
