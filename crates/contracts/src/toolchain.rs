//! Toolchains of the host that a task is given: asked for by name, found by the host that compiles the plan, pinned in it.
//!
//! `node@22` is the newest node of the host whose version begins with 22. It is mounted read-only at a place that names its version and
//! identity, which `PATH` begins with: a base of the cache that was built with another one has another key.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};
use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::enum_names::named;
use crate::id::Digest;
use crate::own_schema::own_schema;

/// Where toolchains are looked for by default: rustup, nvm, pyenv and uv of the server's user, `/opt`, and what is
/// installed by hand.
pub const DEFAULT_TOOLCHAIN_DIRS: [&str; 7] = [
    "~/.rustup/toolchains",
    "~/.nvm/versions/node",
    "~/.pyenv/versions",
    "~/.local/share/uv/python",
    "/opt",
    "/usr/local",
    "/usr/local/go",
];
/// Toolchains of one task: one of each kind that there is.
pub const MAX_TOOLCHAINS: usize = 4;
/// Characters of a version, asked for or found.
const MAX_VERSION: usize = 32;
/// Below which toolchains are mounted.
const MOUNTS: &str = "/opt/toolchains";
/// Where programs are looked for after those of the toolchains.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

named! {
    /// Kinds of toolchains.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum ToolchainKind {
        /// `rustc` and `cargo`: a toolchain of rustup.
        Rust = "rust",
        /// `node` and `npm`.
        Node = "node",
        /// `python3`, and `pip` as its module.
        Python = "python",
        /// `go` with its compiler and tools.
        Go = "go",
    }
}

impl ToolchainKind {
    /// The program below `bin/` that a toolchain of this kind is known by.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Rust => "rustc",
            Self::Node => "node",
            Self::Python => "python3",
            Self::Go => "go",
        }
    }
}

/// A toolchain as a recipe asks for it: a kind, and the beginning of a version, or a channel of rustup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, SerializeDisplay, DeserializeFromStr)]
pub struct ToolchainSpec {
    /// Language whose compiler or interpreter it is.
    pub kind: ToolchainKind,
    /// What its version begins with, by whole numbers; `None`: any.
    pub version: Option<String>,
}

/// Why a text asks for no toolchain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a toolchain: write one of go, node, python, rust, and after `@` a version such as 3.12"
)]
pub struct ToolchainError(String);

impl FromStr for ToolchainSpec {
    type Err = ToolchainError;

    fn from_str(text: &str) -> Result<Self, ToolchainError> {
        let refused = || ToolchainError(text.chars().take(64).collect());
        let (kind, version) = match text.split_once('@') {
            Some((kind, version)) => (kind, Some(version)),
            None => (text, None),
        };
        let kind = ToolchainKind::parse(kind).ok_or_else(refused)?;
        match version.is_none_or(is_version) {
            true => Ok(Self { kind, version: version.map(str::to_owned) }),
            false => Err(refused()),
        }
    }
}

impl fmt::Display for ToolchainSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            None => f.write_str(self.kind.as_str()),
            Some(version) => write!(f, "{}@{version}", self.kind.as_str()),
        }
    }
}

own_schema!(ToolchainSpec, |_| {
    json_schema!({"type": "string", "pattern": "^(go|node|python|rust)(@[0-9a-z][0-9A-Za-z.+-]{0,31})?$"})
});

/// Whether a text can be a version, and so a part of a path.
#[must_use]
pub fn is_version(text: &str) -> bool {
    let first = text.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
        && text.len() <= MAX_VERSION
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-".contains(&byte))
}

/// A toolchain of a request.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Toolchain {
    /// As the recipe asks for it.
    pub asked: ToolchainSpec,
    /// What the host has. Set by the server.
    pub found: Option<HostToolchain>,
}

/// A toolchain of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostToolchain {
    /// Its version, as its own files say.
    pub version: String,
    /// Its directory on the host, links resolved.
    pub path: String,
    /// Identity: SHA-256 over its path, its version, and the names, sizes and times of its programs.
    pub sha256: Digest,
}

impl HostToolchain {
    /// Where a task finds it.
    #[must_use]
    pub fn mount(&self, kind: ToolchainKind) -> String {
        let identity: String = self.sha256.as_str().chars().take(8).collect();
        format!("{MOUNTS}/{}-{}-{identity}", kind.as_str(), self.version)
    }
}

/// `PATH` with the programs of these toolchains before those of `said`, or of the usual directories. Pure.
#[must_use]
pub fn path_with(toolchains: &[Toolchain], said: Option<&str>) -> String {
    let found = toolchains.iter().filter_map(|one| Some((one.asked.kind, one.found.as_ref()?)));
    let mut all: Vec<String> =
        found.map(|(kind, found)| format!("{}/bin", found.mount(kind))).collect();
    all.push(said.unwrap_or(USUAL_PATH).to_owned());
    all.join(":")
}

/// Whether a version fulfills what was asked for; `directory`: its name, which begins with the channel of a toolchain of rustup. Pure.
#[must_use]
pub fn fulfills(asked: &ToolchainSpec, version: &str, directory: &Path) -> bool {
    let Some(wanted) = &asked.version else { return true };
    let channel = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_channel = asked.kind == ToolchainKind::Rust
        && channel
            .strip_prefix(wanted.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let begins = version.strip_prefix(wanted.as_str());
    is_channel || begins.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '+']))
}

/// The numbers of a version, by which the newest is chosen. Pure.
#[must_use]
pub fn numbers(version: &str) -> Vec<u64> {
    version
        .split('.')
        .map_while(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part.get(..end)?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::digest_bytes;

    #[test]
    fn a_toolchain_is_a_kind_and_the_beginning_of_a_version() {
        for good in ["rust", "node@22", "python@3.12", "rust@nightly-2026-01-01", "go@1.22.1"] {
            assert_eq!(good.parse::<ToolchainSpec>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "ruby",
            "node@",
            "node@../x",
            "node@/",
            "Node",
            "node@22@1",
            "python@3 12",
            "rust@-x",
        ] {
            assert!(bad.parse::<ToolchainSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_version_is_fulfilled_by_whole_numbers_and_a_channel_by_its_directory() {
        let fits = |asked: &str, version: &str, dir: &str| {
            fulfills(&asked.parse().unwrap(), version, Path::new(dir))
        };
        assert!(fits("node@22", "22.11.0", "/n/v22.11.0") && fits("node", "1.0", "/n/x"));
        assert!(!fits("node@2", "22.11.0", "/n/v22.11.0") && !fits("node@22.1", "22.11.0", "/n/x"));
        assert!(fits("rust@stable", "1.95.0", "/t/stable-x86_64-unknown-linux-gnu"));
        assert!(
            fits("rust@1.95", "1.95.0", "/t/stable") && !fits("rust@beta", "1.95.0", "/t/stable")
        );
        assert!(numbers("3.12.4") > numbers("3.9.19") && numbers("22.11.0-rc") == [22, 11, 0]);
    }

    #[test]
    fn the_path_names_version_and_identity() {
        let found = HostToolchain {
            version: "22.11.0".into(),
            path: "/n/v22".into(),
            sha256: digest_bytes(b"n"),
        };
        let mount = found.mount(ToolchainKind::Node);
        assert!(mount.starts_with("/opt/toolchains/node-22.11.0-"), "{mount}");
        let one = Toolchain { asked: "node@22".parse().unwrap(), found: Some(found) };
        let absent = Toolchain { asked: "go".parse().unwrap(), found: None };
        let all = [one, absent];
        assert_eq!(path_with(&all, Some("/mine")), format!("{mount}/bin:/mine"));
        assert!(path_with(&all, None).ends_with(":/usr/bin:/sbin:/bin"));
    }
}
