//! Programs that a test writes and somebody starts a moment later.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a program. The file is open for writing in another process alone: a child that a test beside this one forks in that
/// moment would have our copy, and the kernel starts no program that somebody can write to ("Text file busy").
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-D", "-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = install.spawn().expect("install of coreutils");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("a program's text");
    assert!(child.wait().expect("its end").success(), "{}", path.display());
}
