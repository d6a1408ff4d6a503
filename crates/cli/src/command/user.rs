//! The user that a shim becomes: parsing what strangers send needs none of root's rights.

use anyhow::Context;
use nix::unistd::{ROOT, User, geteuid, initgroups, setgid, setgroups, setuid};
use std::ffi::CString;

use super::args::At;
use super::exit::Misuse;

/// Who it will be, looked up before anything starts.
///
/// # Errors
/// A name that is nobody's or root's, a caller without the rights, or no database that this user reaches.
pub(crate) fn wanted(at: &At, name: &str) -> anyhow::Result<User> {
    if !geteuid().is_root() {
        return Err(Misuse("--user needs root: start it as root, or as that user".into()).into());
    }
    if at.db.is_none() {
        let why = "--user needs a database that this user reaches: give --db URL or DATABASE_URL";
        return Err(Misuse(why.into()).into());
    }
    let user = User::from_name(name)
        .with_context(|| format!("cannot look up the user {name}"))?
        .ok_or_else(|| Misuse(format!("there is no user {name}: adduser --system {name}")))?;
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
    anyhow::ensure!(setuid(ROOT).is_err(), "the way back to root is open: it is not served so");
    Ok(())
}
