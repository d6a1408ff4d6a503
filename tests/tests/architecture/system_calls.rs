//! One crate of system calls: `rustix`. `nix` stays for what that one lacks (decision 0160).

use super::sources;

/// Where `nix` is used, and what for.
const NIX: &[(&str, &str)] = &[
    (
        "crates/cli/src/command/end_signal.rs",
        "a session, which is 0 where it began outside a namespace",
    ),
    ("crates/cli/src/command/node.rs", "accounts of the host"),
    ("crates/cli/src/command/user.rs", "accounts, and the user of all threads"),
    ("crates/guest/src/agent/identity.rs", "the user of a process"),
    ("crates/guest/src/agent/jail/caller.rs", "the user as files see it"),
    ("crates/guest/src/agent/mod.rs", "the user of a process"),
    ("crates/guest/src/agent/reaper.rs", "usage of children, a signal to all processes"),
    ("crates/guest/src/user_namespace.rs", "namespaces without unsafe code, the user of a process"),
    ("crates/guest/src/machine/mod.rs", "namespaces without unsafe code"),
    ("crates/guest/src/machine/warmup.rs", "namespaces without unsafe code"),
    ("crates/guest/src/machine/vsock.rs", "addresses of machines"),
    ("crates/http/src/", "options of sockets, limits; there is no `rustix` there"),
    ("crates/ledger/src/", "accounts; there is no `rustix` there"),
    ("crates/probe/src/", "calls that are refused: fanotify, ptrace, quotas, modules"),
    ("crates/sandbox/src/class/", "not changed yet"),
    ("crates/sandbox/src/host/mount_namespace.rs", "namespaces without unsafe code"),
    ("crates/sandbox/src/host/mounts.rs", "namespaces without unsafe code"),
    ("crates/sandbox/src/host/service.rs", "blocked signals"),
    ("crates/sandbox/src/life/", "not changed yet"),
    ("crates/sandbox/src/machine/", "not changed yet"),
];

/// Whether a line of code names something of `nix`; `std::os::unix` is none of it.
fn is_nix(line: &str) -> bool {
    let code = line.trim_start();
    !code.starts_with("//")
        && code.match_indices("nix::").any(|(at, _)| {
            let before = code.get(..at).unwrap_or_default();
            !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
        })
}

#[test]
fn nix_is_used_for_what_rustix_lacks() {
    let users: Vec<String> = sources(&["crates"])
        .into_iter()
        .filter(|(path, text)| path.contains("/src/") && text.lines().any(is_nix))
        .map(|(path, _)| path)
        .collect();
    let unlisted: Vec<&String> = users
        .iter()
        .filter(|path| !NIX.iter().any(|(listed, _)| path.starts_with(listed)))
        .collect();
    assert!(unlisted.is_empty(), "use rustix, or list what it lacks: {unlisted:?}");
    for (listed, _) in NIX {
        assert!(users.iter().any(|path| path.starts_with(listed)), "{listed} uses no nix any more");
    }
}
