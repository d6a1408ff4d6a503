//! The unprivileged user who runs the server: PostgreSQL refuses to run as root.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Stdio;

use nix::unistd::{Uid, User, geteuid};
use tokio::process::Command;

use super::error::ClusterError;
use super::server::Server;

/// The user that is nobody else's, where an administrator has made it.
pub(super) const OWN: &str = "cofferdam";
/// In order of preference. What else runs as one of the others owns the database's files with it.
const NAMES: &[&str] = &[OWN, "postgres", "nobody"];

/// Who runs the server.
#[derive(Debug, Clone)]
pub(super) struct Account {
    name: String,
    /// User and group to become; `None` when we already are the user.
    ids: Option<(u32, u32)>,
}

impl Account {
    /// The owner of `data` where there is one, else ourselves, or somebody unprivileged if root.
    pub(super) fn of(data: &Path) -> Result<Self, ClusterError> {
        let me = geteuid();
        let owner = data.metadata().ok().map(|meta| (meta.uid(), meta.gid()));
        match owner {
            Some((uid, _)) if uid == 0 || (!me.is_root() && uid != me.as_raw()) => {
                Err(ClusterError::Owner { path: data.to_owned(), owner: uid })
            }
            Some(ids) if me.is_root() => Ok(Self { name: name(ids.0), ids: Some(ids) }),
            None if me.is_root() => {
                let found = NAMES.iter().find_map(|name| User::from_name(name).ok().flatten());
                let user = found.ok_or(ClusterError::NoAccount(NAMES))?;
                let ids = Some((user.uid.as_raw(), user.gid.as_raw()));
                Ok(Self { name: user.name, ids })
            }
            _ => Ok(Self { name: name(me.as_raw()), ids: None }),
        }
    }

    /// Whether that is not who we are.
    pub(super) const fn is_another(&self) -> bool {
        self.ids.is_some()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A program run as the user in `dir`, without our environment, groups, input or output.
    pub(super) fn command(&self, program: impl AsRef<OsStr>, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(dir).env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid); // std drops the supplementary groups with the user id
        }
        command
    }

    /// Hands a path to the user.
    pub(super) fn own(&self, path: &Path) -> Result<(), ClusterError> {
        let Some((uid, gid)) = self.ids else { return Ok(()) };
        chown(path, Some(uid), Some(gid)).map_err(ClusterError::io("hand over", path))
    }

    /// Whether the user can enter `dir`: tried, not computed, so that access lists, mounts and
    /// security modules have their say.
    pub(super) async fn reaches(&self, server: &Server, dir: &Path) -> Result<bool, ClusterError> {
        let postgres = server.bin.join("postgres");
        match self.command(&postgres, dir).arg("-V").status().await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let anywhere = self.command(&postgres, Path::new("/")).arg("-V").status().await;
                anywhere.map(|_| false).map_err(|source| ClusterError::BrokenServer {
                    program: postgres.clone(),
                    detail: format!("as user {}: {source}", self.name),
                })
            }
            Err(error) => Err(ClusterError::io("enter, as the database's user,", dir)(error)),
        }
    }
}

fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}
