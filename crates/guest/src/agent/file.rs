//! Writes one file as its bytes come.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown, fchown};
use std::path::{Component, Path};

use cofferdam_guest::wire::decode_path;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};

use super::answer::{Answer, done, refuse};

/// Mode of a file when the request does not say.
const DEFAULT_MODE: u32 = 0o644;

/// `PUT /v1/file?path=&mode=`: creates parents, replaces what is there.
pub async fn put(query: &str, body: Incoming) -> Response<Answer> {
    let Some(target) = target(query) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "path must be an absolute path without `..`, mode an octal number up to 777",
        );
    };
    let path = &target.path;
    match write(&target, body).await {
        Ok(()) => done(),
        Err(error) => refuse(status(&error), format!("{path:?}: {error}")),
    }
}

/// What cannot be written for want of room is another fault than what cannot be written there.
fn status(error: &io::Error) -> StatusCode {
    match error.kind() {
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => StatusCode::CONFLICT,
        _ => StatusCode::INSUFFICIENT_STORAGE,
    }
}

/// What a request names.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    path: String,
    mode: u32,
    /// Owner and group of the file and of the parents that are made for it; the agent's own without.
    owner: Option<(u32, u32)>,
}

fn target(query: &str) -> Option<Target> {
    let (mut path, mut mode) = (None, DEFAULT_MODE);
    let (mut uid, mut gid) = (None, None);
    for pair in query.split('&') {
        match pair.split_once('=')? {
            ("path", text) => path = Some(decode_path(text)?),
            ("mode", text) => mode = u32::from_str_radix(text, 8).ok()?,
            ("uid", text) => uid = Some(text.parse().ok()?),
            ("gid", text) => gid = Some(text.parse().ok()?),
            _ => return None,
        }
    }
    let path = path.filter(|path| is_plain(Path::new(path)))?;
    (mode <= 0o777 && uid.is_some() == gid.is_some()).then_some(Target {
        path,
        mode,
        owner: uid.zip(gid),
    })
}

/// Absolute, below the root, nothing but names.
fn is_plain(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && path.file_name().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
}

/// Makes the parents that are missing, each with the owner.
fn make_parents(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let Some((uid, gid)) = owner else { return fs::create_dir_all(parent) };
    let missing: Vec<&Path> = parent.ancestors().take_while(|dir| !dir.exists()).collect();
    for dir in missing.into_iter().rev() {
        fs::create_dir(dir)?;
        chown(dir, Some(uid), Some(gid))?;
    }
    Ok(())
}

async fn write(target: &Target, mut body: Incoming) -> io::Result<()> {
    let (path, mode) = (Path::new(&target.path), target.mode);
    make_parents(path, target.owner)?;
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    if let Some((uid, gid)) = target.owner {
        fchown(&file, Some(uid), Some(gid))?;
    }
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(io::Error::other)?.into_data() {
            file.write_all(&bytes)?;
        }
    }
    // The mode of an existing file stays when it is opened, and a new one's passes the umask.
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_are_written() {
        let plain = |path: &str, mode| Some(Target { path: path.into(), mode, owner: None });
        assert_eq!(target("path=/work/a&mode=755"), plain("/work/a", 0o755));
        assert_eq!(target("path=/work/a%20b"), plain("/work/a b", DEFAULT_MODE));
        let owned = target("path=/work/a&uid=1000&gid=7").unwrap();
        assert_eq!(owned.owner, Some((1000, 7)));
        assert_eq!(target("path=/work/a&uid=1000"), None);
        for bad in ["path=/", "path=a", "path=/a/../b", "mode=644", "path=/a&mode=9", "path=/a&x=1"]
        {
            assert_eq!(target(bad), None, "{bad}");
        }
    }
}
