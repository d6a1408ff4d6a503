//! Writes one file as its bytes come.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
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
    let Some((path, mode)) = target(query) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "path must be an absolute path without `..`, mode an octal number up to 777",
        );
    };
    match write(&path, mode, body).await {
        Ok(()) => done(),
        Err(error) => refuse(StatusCode::INSUFFICIENT_STORAGE, format!("{path:?}: {error}")),
    }
}

fn target(query: &str) -> Option<(String, u32)> {
    let (mut path, mut mode) = (None, DEFAULT_MODE);
    for pair in query.split('&') {
        match pair.split_once('=')? {
            ("path", text) => path = Some(decode_path(text)?),
            ("mode", text) => mode = u32::from_str_radix(text, 8).ok()?,
            _ => return None,
        }
    }
    let path = path.filter(|path| is_plain(Path::new(path)))?;
    (mode <= 0o777).then_some((path, mode))
}

/// Absolute, below the root, nothing but names.
fn is_plain(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && path.file_name().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
}

async fn write(path: &str, mode: u32, mut body: Incoming) -> io::Result<()> {
    let path = Path::new(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
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
        assert_eq!(target("path=/work/a&mode=755"), Some(("/work/a".into(), 0o755)));
        assert_eq!(target("path=/work/a%20b"), Some(("/work/a b".into(), DEFAULT_MODE)));
        for bad in ["path=/", "path=a", "path=/a/../b", "mode=644", "path=/a&mode=9", "path=/a&x=1"]
        {
            assert_eq!(target(bad), None, "{bad}");
        }
    }
}
