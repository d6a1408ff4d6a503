//! Steps of init and agent in a machine, and how one that failed is told.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use rustix::path::Arg as _;

/// Where init and agent look for the cgroup tree.
pub const CGROUPS: &str = "/cgroups";
/// And for what the kernel traces.
pub const TRACES: &str = "/traces";

/// A step that failed, in words.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Fault {
    what: String,
    source: io::Error,
}

/// Names the step of an error.
pub fn at<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Fault {
    let what = what.into();
    move |error| Fault { what, source: error.into() }
}

/// Mounts a file system that has no device.
pub fn make(kind: &str, path: &Path, flags: MountFlags, data: Option<&str>) -> Result<(), Fault> {
    let data = data.map(|data| data.into_c_str()).transpose();
    data.and_then(|data| mount(kind, path, kind, flags, data.as_deref()))
        .map_err(at(format!("{kind} at {}", path.display())))
}

/// Writes one of the kernel's files.
pub fn write(path: impl AsRef<Path>, text: &str) -> Result<(), Fault> {
    let path = path.as_ref();
    let written = fs::OpenOptions::new().write(true).open(path);
    written
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(at(path.display().to_string()))
}
