//! `filesystem.Filesystem`: what a sandbox's agent does with files, under the names of its clients.

pub(crate) mod list;
pub(crate) mod make_dir;
pub(crate) mod one_path;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod stat;
pub(crate) mod watch;
