//! A root of Debian from this machine's own mirrors, by mmdebstrap.

use std::ffi::OsStr;
use std::path::Path;

use super::program::run;
use crate::images::error::{ImageError, at};

/// What `base` has beside Debian's minimum.
const PACKAGES: &str = "bash,ca-certificates,curl,git,jq,nodejs,npm,procps,python-is-python3,\
    python3,python3-pip,python3-venv,sudo,unzip";
/// The root is packed: dpkg need not force each file of it to the disk, which takes minutes.
const DPKG: &str = "force-unsafe-io";
/// Left out: people read them elsewhere, and every sandbox's host keeps them.
const EXCLUDED: [&str; 3] = ["doc", "man", "locale"];
/// Left out too: it would have pip ask every user of a sandbox for `--break-system-packages`.
const EXTERNALLY_MANAGED: &str = "/usr/lib/python3*/EXTERNALLY-MANAGED";
/// What is done to the root, by a shell of this host whose `$1` is the root. How this machine reaches its mirrors is its own
/// business: a sandbox that is granted `@apt` is let through to them by their names.
const HOOKS: [&str; 3] = [
    r#"chroot "$1" useradd --create-home --uid 1000 --user-group --shell /bin/bash user"#,
    r#"printf 'user ALL=(ALL) NOPASSWD:ALL\n' >"$1/etc/sudoers.d/user"; chmod 0440 "$1/etc/sudoers.d/user""#,
    r#"rm -rf "$1/etc/resolv.conf" "$1/etc/hostname" "$1/etc/apt/sources.list" "$1/etc/apt/apt.conf.d/99mmdebstrap""#,
];

/// One of this machine's mirrors.
#[derive(Debug, PartialEq, Eq)]
struct AptSource<'a> {
    site: &'a str,
    release: &'a str,
    keyring: Option<&'a str>,
}

/// Debian's own mirrors of a release, from `apt-get indextargets` in lines `SITE RELEASE COMPONENT KEYRING`; those of
/// third parties are left out. Pure.
fn mirrors<'a>(targets: &'a str, suite: &str) -> Vec<AptSource<'a>> {
    let mut found: Vec<AptSource<'a>> = Vec::new();
    for line in targets.lines() {
        let mut words = line.split_whitespace();
        let (Some(site), Some(release), Some("main")) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let rest = release.strip_prefix(suite);
        if !rest.is_some_and(|rest| matches!(rest, "" | "-updates" | "-security")) {
            continue;
        }
        let keyring = words.next().filter(|word| word.starts_with('/'));
        if !found.iter().any(|one| (one.site, one.release) == (site, release)) {
            found.push(AptSource { site, release, keyring });
        }
    }
    found
}

/// The lines of a sources.list. Pure.
fn sources(mirrors: &[AptSource<'_>]) -> String {
    let line = |mirror: &AptSource<'_>| {
        let signed = mirror.keyring.map_or_else(String::new, |path| format!("[signed-by={path}] "));
        format!("deb {signed}{} {} main\n", mirror.site, mirror.release)
    };
    mirrors.iter().map(line).collect()
}

/// A hook that leaves the root a sources.list of these mirrors. Not those whose address has a secret, or letters that a shell
/// reads; nor keyrings of this machine. Pure.
fn listed(mirrors: &[AptSource<'_>]) -> String {
    let is_plain =
        |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b":/._~+-[]".contains(&b));
    let plain = mirrors.iter().filter(|one| is_plain(one.site) && is_plain(one.release));
    let lines = plain.map(|one| format!("deb {} {} main\\n", one.site, one.release));
    format!("printf '{}' >\"$1/etc/apt/sources.list\"", lines.collect::<String>())
}

/// The code name of this machine's release, from the text of os-release. Pure.
fn suite(release: &str) -> Option<&str> {
    let value = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"'))
    };
    value("VERSION_CODENAME").filter(|_| value("ID") == Some("debian"))
}

/// Lines of `apt-config dump` that say by which proxy a mirror is reached. Pure.
fn proxies(dump: &str) -> Vec<&str> {
    let is_proxy = |line: &&str| {
        ["Acquire::http::Proxy", "Acquire::https::Proxy"].iter().any(|name| line.starts_with(name))
    };
    dump.lines().filter(is_proxy).collect()
}

/// Writes the tar of a root to `tar`.
///
/// # Errors
/// This machine is not Debian, knows no mirror, or has no mmdebstrap; or a package fails.
pub(super) async fn bootstrap(
    tar: &Path,
    note: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ImageError> {
    let path = Path::new("/etc/os-release");
    let release = std::fs::read_to_string(path).map_err(at(path))?;
    let suite = suite(&release).ok_or_else(|| {
        ImageError::malformed(
            "this machine",
            "it is not Debian: build `base` elsewhere and import it",
        )
    })?;
    let format = "$(SITE) $(RELEASE) $(COMPONENT) $(SIGNED_BY)";
    let args = ["indextargets", "--format", format, "Created-By: Packages"].map(OsStr::new);
    let targets = run("apt-get", &args, "", note).await?;
    let mirrors = mirrors(&targets, suite);
    let sources = sources(&mirrors);
    if sources.is_empty() {
        let why = format!("it names no mirror of Debian {suite}: run apt-get update");
        return Err(ImageError::malformed("apt-get", why));
    }
    let dump = run("apt-config", &[OsStr::new("dump")], "", note).await?;
    let mut args: Vec<String> =
        ["--mode=root", "--variant=minbase", "--format=tar"].map(str::to_owned).into();
    args.push("--skip=output/dev".to_owned());
    args.push(format!("--include={PACKAGES}"));
    args.push(format!("--dpkgopt={DPKG}"));
    args.extend(EXCLUDED.map(|dir| format!("--dpkgopt=path-exclude=/usr/share/{dir}/*")));
    args.extend(proxies(&dump).into_iter().map(|line| format!("--aptopt={line}")));
    args.push(format!("--dpkgopt=path-exclude={EXTERNALLY_MANAGED}"));
    args.extend(HOOKS.map(|hook| format!("--customize-hook={hook}")));
    args.push(format!("--customize-hook={}", listed(&mirrors)));
    args.push(suite.to_owned());
    let mut words: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    words.extend([tar.as_os_str(), OsStr::new("-")]);
    run("mmdebstrap", &words, &sources, note).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_debians_own_of_this_release_once() {
        let targets = "http://a/debian bookworm main /usr/share/keyrings/d.gpg\n\
                       http://a/debian bookworm contrib\nhttp://a/debian bookworm main x\n\
                       http://s/sec bookworm-security main $(SIGNED_BY)\nhttp://x/other stable main\n\
                       http://b/debian bookworm-backports main\nbroken\n";
        let found = mirrors(targets, "bookworm");
        assert_eq!(
            sources(&found),
            "deb [signed-by=/usr/share/keyrings/d.gpg] http://a/debian bookworm main\n\
             deb http://s/sec bookworm-security main\n"
        );
        let secret = "http://u:p@c/debian bookworm main\n";
        let found = [found, mirrors(secret, "bookworm")].into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(
            listed(&found),
            "printf 'deb http://a/debian bookworm main\\ndeb http://s/sec bookworm-security main\\n' \
             >\"$1/etc/apt/sources.list\""
        );
        assert_eq!(suite("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(suite("ID=\"other\"\nVERSION_CODENAME=noble\n"), None);
        let dump = "Acquire::http::Proxy \"http://p\";\nAcquire::Retries \"3\";\n";
        assert_eq!(proxies(dump), ["Acquire::http::Proxy \"http://p\";"]);
    }
}
