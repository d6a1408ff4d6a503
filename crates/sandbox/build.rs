//! Builds the guest agent and the escape self-test as static binaries, so that the host binary can carry them inside.
//!
//! It is a cargo invocation of its own with a target directory of its own (`target/guest`), because
//! the outer cargo holds the lock of its target directory, and because the agent wants other flags:
//! static, small, no unwinding. All profiles of the host share the one agent. Both forms of it share the directory, and so the
//! macros that their crates are made with: cargo keeps what it built with other flags. The self-test is built together with the usual
//! form, so that what they share is compiled once.

#![expect(
    clippy::disallowed_methods,
    reason = "a build script is told everything by its environment"
)]

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the outer cargo, or a wrapper such as clippy, set for itself.
const OUTER: [&str; 8] = [
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

/// The library starts a command without copying the agent first if it may change the directory there,
/// and in a static program it looks for that function in vain unless the linker is told to keep it.
const SPAWN_IN_PLACE: &str = "-C link-arg=-Wl,-u,posix_spawn_file_actions_addchdir_np";

/// At the address that it is linked for. A program that can be anywhere writes its addresses into 116 KiB of its own data at each start,
/// which every sandbox then has a copy of. Stack, heap and the kernel's pages are elsewhere each time as before.
const WHERE_IT_IS_LINKED: &str = "-C relocation-model=static";

/// In gVisor the agent waits by `poll`, not by `epoll`. After a restore gVisor's `epoll` reports registrations that were ended before
/// the checkpoint, and the runtime would follow their address to memory that it has freed. Elsewhere it does not: with `poll` the
/// runtime keeps a few hundred bytes of each pipe that has ended (decision 0115).
const WAITS_BY_POLL: &str = "--cfg mio_unsupported_force_poll_poll";

const AGENT: &str = "cofferdam-guest";
const SELF_TEST: &str = "cofferdam-probe";

fn main() -> Result<(), Box<dyn Error>> {
    let manifest = env::var("CARGO_MANIFEST_DIR")?;
    let workspace =
        Path::new(&manifest).ancestors().nth(2).ok_or("the crate lies in <workspace>/crates")?;
    for input in ["guest/src", "guest/Cargo.toml", "probe/src", "probe/Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join("crates").join(input).display());
    }
    println!("cargo::rerun-if-changed={}", workspace.join("Cargo.lock").display());
    let target_dir = workspace.join("target/guest");
    fs::create_dir_all(&target_dir)?;
    // Both forms are built under one name: no other build may replace it before it is copied.
    let lock = File::create(target_dir.join("forms.lock"))?;
    lock.lock()?;
    let included = PathBuf::from(env::var("OUT_DIR")?);
    let built = build(workspace, &target_dir, "", &[AGENT, SELF_TEST])?;
    fs::copy(built.join(AGENT), included.join(AGENT))?;
    fs::copy(built.join(SELF_TEST), included.join(SELF_TEST))?;
    let built = build(workspace, &target_dir, WAITS_BY_POLL, &[AGENT])?;
    fs::copy(built.join(AGENT), included.join("cofferdam-guest-poll"))?;
    Ok(())
}

/// Builds these programs, each the only one of the package of its name, and says in which directory they are.
fn build(
    workspace: &Path,
    target_dir: &Path,
    flags: &str,
    programs: &[&str],
) -> Result<PathBuf, Box<dyn Error>> {
    let target = format!("{}-unknown-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .current_dir(workspace)
        .args(["build", "--release", "--bins", "--target", &target, "--target-dir"])
        .arg(target_dir);
    for program in programs {
        cargo.args(["--package", program]);
    }
    for outer in OUTER {
        cargo.env_remove(outer);
    }
    let status = cargo
        .env(
            "RUSTFLAGS",
            format!("-C target-feature=+crt-static {WHERE_IT_IS_LINKED} {SPAWN_IN_PLACE} {flags}"),
        )
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .status()?;
    if !status.success() {
        return Err(format!("building {programs:?} for {target}: {status}").into());
    }
    Ok(target_dir.join(target).join("release"))
}
