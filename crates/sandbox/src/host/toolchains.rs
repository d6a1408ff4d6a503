//! Toolchains of this host: found below the directories that its operator names, known by their own files. No program of theirs runs.
//!
//! ```text
//! directories -> each, and what lies right in it -> has bin/PROGRAM? -> version by its files -> asked for? -> the newest
//! ```
//! **What is found lies below a named directory once its links are resolved.**

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::toolchain::{
    HostToolchain, ToolchainKind, ToolchainSpec, fulfills, is_version, numbers,
};

/// Entries of one directory that are looked at: versions of a tool, not files of a project.
const MAX_ENTRIES: usize = 1_000;
/// Bytes of a file that says a version: rustup's list of a channel is the largest.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// Why a toolchain is not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the toolchain {asked} is not on this host: looked in {looked}; found there: {found}; install it, ask for another version, or \
     let the operator add its directory to `toolchains.dirs`"
)]
pub struct ToolchainAbsence {
    asked: ToolchainSpec,
    /// Where it was looked for.
    looked: String,
    /// What is there of its kind.
    found: String,
}

/// The newest toolchain that fulfills what is asked for. Reads directories.
///
/// # Errors
/// What was looked at, and what is there of its kind.
pub fn find(asked: &ToolchainSpec, dirs: &[PathBuf]) -> Result<HostToolchain, ToolchainAbsence> {
    let all: Vec<(PathBuf, String)> = dirs.iter().flat_map(|dir| below(asked.kind, dir)).collect();
    let fits = all.iter().filter(|(path, version)| fulfills(asked, version, path));
    // Of equal ones the first: directories are in the operator's order.
    let best = fits.reduce(|best, other| match numbers(&other.1) > numbers(&best.1) {
        true => other,
        false => best,
    });
    let found = best.and_then(|(path, _)| read(asked.kind, path).ok());
    found.ok_or_else(|| {
        let versions: Vec<&str> = all.iter().map(|(_, version)| version.as_str()).collect();
        let looked: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        ToolchainAbsence {
            asked: asked.clone(),
            looked: if looked.is_empty() { "no directory".to_owned() } else { looked.join(", ") },
            found: match versions.is_empty() {
                true => "none of its kind".to_owned(),
                false => format!("{} {}", asked.kind.as_str(), versions.join(", ")),
            },
        }
    })
}

/// Whether what a plan names is what is on this host, below these directories. Reads them.
#[must_use]
pub fn has_toolchain(kind: ToolchainKind, pinned: &HostToolchain, dirs: &[PathBuf]) -> bool {
    let path = Path::new(&pinned.path);
    let is_below = |dir: &PathBuf| dir.canonicalize().is_ok_and(|dir| path.starts_with(dir));
    let is_itself = path.canonicalize().is_ok_and(|real| real == path);
    is_itself && dirs.iter().any(is_below) && read(kind, path).is_ok_and(|found| found == *pinned)
}

/// Toolchains of a directory: itself, or what lies right in it, links resolved, by name.
fn below(kind: ToolchainKind, dir: &Path) -> Vec<(PathBuf, String)> {
    let Ok(real) = dir.canonicalize() else { return Vec::new() };
    let entries = fs::read_dir(&real).into_iter().flatten().take(MAX_ENTRIES);
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.insert(0, real.clone());
    let mut found = BTreeMap::new();
    for path in paths {
        let Ok(path) = path.canonicalize() else { continue };
        if !path.starts_with(&real) || !path.join("bin").join(kind.program()).is_file() {
            continue;
        }
        if let Some(version) = version(kind, &path) {
            found.insert(path, version);
        }
    }
    found.into_iter().collect()
}

/// A toolchain as a plan pins it.
fn read(kind: ToolchainKind, path: &Path) -> io::Result<HostToolchain> {
    let unknown = || io::Error::other("its version is not known");
    let version = version(kind, path).ok_or_else(unknown)?;
    let named = path.to_str().ok_or_else(unknown)?.to_owned();
    let mut programs = Vec::new();
    for entry in fs::read_dir(path.join("bin"))?.take(MAX_ENTRIES) {
        let entry = entry?;
        // What a link leads to is what runs.
        let Ok(stat) = fs::metadata(entry.path()) else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        programs.push((name, stat.size(), stat.mtime(), stat.mtime_nsec()));
    }
    programs.sort();
    let mut text = format!("cofferdam-toolchain 1\n{named:?}\n{version}\n");
    for (name, size, seconds, nanos) in programs {
        text.push_str(&format!("{name:?} {size} {seconds}.{nanos}\n"));
    }
    Ok(HostToolchain { version, path: named, sha256: digest_bytes(text.as_bytes()) })
}

/// The version that a toolchain's own files say.
fn version(kind: ToolchainKind, path: &Path) -> Option<String> {
    let said = match kind {
        ToolchainKind::Rust => rust(path),
        ToolchainKind::Node => node(path),
        ToolchainKind::Python => python(path),
        ToolchainKind::Go => go(path),
    };
    said.or_else(|| by_name(path)).filter(|version| is_version(version))
}

/// rustup lists what a channel had; a toolchain of another kind says it by its directory.
fn rust(path: &Path) -> Option<String> {
    let mut is_rustc = false;
    for line in lines(&path.join("lib/rustlib/multirust-channel-manifest.toml"))? {
        if line.starts_with('[') {
            is_rustc = line == "[pkg.rustc]";
        } else if let (true, Some(said)) = (is_rustc, line.strip_prefix("version = \"")) {
            return said.split([' ', '"']).next().map(str::to_owned);
        }
    }
    None
}

fn node(path: &Path) -> Option<String> {
    let header: Vec<String> = lines(&path.join("include/node/node_version.h"))?.collect();
    let number = |name: &str| {
        let begin = format!("#define NODE_{name}_VERSION ");
        header.iter().find_map(|line| line.strip_prefix(&begin)?.trim().parse::<u64>().ok())
    };
    Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}

fn python(path: &Path) -> Option<String> {
    let includes = fs::read_dir(path.join("include")).ok()?.take(MAX_ENTRIES);
    let headers = includes.filter_map(|entry| Some(entry.ok()?.path().join("patchlevel.h")));
    let said = headers.filter_map(|header| {
        let line = lines(&header)?.find(|line| line.starts_with("#define PY_VERSION "))?;
        line.split('"').nth(1).map(str::to_owned)
    });
    // Of several, the one that `python3` most likely is.
    said.max_by_key(|version| numbers(version))
}

fn go(path: &Path) -> Option<String> {
    lines(&path.join("VERSION"))?.next()?.strip_prefix("go").map(str::to_owned)
}

/// `v22.11.0`, `3.12.4`, `cpython-3.12.4-linux-x86_64-gnu`, `1.95.0-x86_64-unknown-linux-gnu`.
fn by_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let mut parts = name.split('-').map(|part| part.trim_start_matches('v'));
    parts
        .find(|part| part.starts_with(|c: char| c.is_ascii_digit()) && part.contains('.'))
        .map(str::to_owned)
}

/// Lines of a text file, up to a bound.
fn lines(path: &Path) -> Option<impl Iterator<Item = String>> {
    let file =
        File::open(path).ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file()))?;
    Some(BufReader::new(file.take(MAX_FILE_BYTES)).lines().map_while(Result::ok))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn host() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (version, patch) in [("v22.9.0", "9"), ("v22.11.0", "11"), ("v20.1.0", "1")] {
            write(dir.path(), &format!("nvm/{version}/bin/node"), version);
            let major = version.get(1..3).unwrap();
            let header = format!(
                "x\n#define NODE_MAJOR_VERSION {major}\n#define NODE_MINOR_VERSION {patch}\n#define NODE_PATCH_VERSION 0\n"
            );
            write(dir.path(), &format!("nvm/{version}/include/node/node_version.h"), &header);
        }
        write(dir.path(), "rustup/stable-x86_64-unknown-linux-gnu/bin/rustc", "r");
        let list = "[pkg.rust]\nversion = \"9.9.9 (x)\"\n[pkg.rustc]\nversion = \"1.95.0 (abc 2026-04-14)\"\n";
        write(
            dir.path(),
            "rustup/stable-x86_64-unknown-linux-gnu/lib/rustlib/multirust-channel-manifest.toml",
            list,
        );
        write(dir.path(), "pyenv/3.12.4/bin/python3", "p");
        write(dir.path(), "go/bin/go", "g");
        write(dir.path(), "go/VERSION", "go1.22.1\ntime 2026\n");
        dir
    }

    fn dirs(host: &tempfile::TempDir) -> Vec<PathBuf> {
        ["nvm", "rustup", "pyenv", "go", "absent"].map(|name| host.path().join(name)).to_vec()
    }

    fn version(host: &tempfile::TempDir, asked: &str) -> Result<String, String> {
        let found = find(&asked.parse().unwrap(), &dirs(host));
        found.map(|found| found.version).map_err(|absence| absence.to_string())
    }

    #[test]
    fn the_newest_that_fits_is_found_and_an_absent_one_is_said_with_what_is_there() {
        let host = host();
        for (asked, found) in [
            ("node", "22.11.0"),
            ("node@22", "22.11.0"),
            ("node@20", "20.1.0"),
            ("rust", "1.95.0"),
            ("rust@stable", "1.95.0"),
            ("python@3.12", "3.12.4"),
            ("go@1.22", "1.22.1"),
        ] {
            assert_eq!(version(&host, asked).as_deref(), Ok(found), "{asked}");
        }
        let why = version(&host, "node@18").unwrap_err();
        assert!(why.contains("20.1.0, 22.11.0, 22.9.0") && why.contains("/nvm"), "{why}");
        assert!(version(&host, "python@2").unwrap_err().contains("python 3.12.4"));
        let nothing = find(&"go".parse().unwrap(), &[]).unwrap_err().to_string();
        assert!(
            nothing.contains("looked in no directory; found there: none of its kind"),
            "{nothing}"
        );
    }

    #[test]
    fn what_leads_out_is_not_found_and_what_changed_is_another_one() {
        let (host, outside) = (host(), tempfile::tempdir().unwrap());
        write(outside.path(), "v30.0.0/bin/node", "out");
        symlink(outside.path().join("v30.0.0"), host.path().join("nvm/v30.0.0")).unwrap();
        assert_eq!(version(&host, "node").as_deref(), Ok("22.11.0"));
        let pinned = find(&"node@22".parse().unwrap(), &dirs(&host)).unwrap();
        assert!(has_toolchain(ToolchainKind::Node, &pinned, &dirs(&host)));
        assert!(!has_toolchain(ToolchainKind::Node, &pinned, &[host.path().join("rustup")]));
        write(host.path(), "nvm/v22.11.0/bin/node", "another");
        assert!(!has_toolchain(ToolchainKind::Node, &pinned, &dirs(&host)));
        let again = find(&"node@22".parse().unwrap(), &dirs(&host)).unwrap();
        assert_ne!(again.sha256, pinned.sha256);
    }
}
