//! Programs that a command did not find inside and that this host has where a sandbox does not look: in a home, mostly of a
//! version manager.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cofferdam_sandbox::is_executable;

/// Directories that image `host` shows.
const SHOWN: [&str; 4] = ["/usr", "/bin", "/sbin", "/lib"];
/// What shells say behind a program's name.
const WORDS: [&str; 2] = [": command not found", ": not found"];

/// A program of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostProgram {
    program: String,
    dir: PathBuf,
    /// What has to be shown: shims start programs that lie beside them.
    shown: PathBuf,
    /// Where rustup keeps what its programs start.
    toolchains: Option<PathBuf>,
}

impl HostProgram {
    /// The first program that is said to be missing and that `path`, this host's own PATH, has outside of what image `host` shows.
    pub(crate) fn of(words: &str, path: &str) -> Option<Self> {
        missing(words).into_iter().find_map(|program| Self::on_path(program, path))
    }

    /// Looks for one program on `path`.
    pub(crate) fn on_path(program: &str, path: &str) -> Option<Self> {
        if program.contains('/') {
            return None;
        }
        let dirs = path.split(':').map(Path::new).filter(|dir| dir.is_absolute());
        let mut dirs = dirs.filter(|dir| !SHOWN.iter().any(|shown| dir.starts_with(shown)));
        let dir = dirs.find(|dir| is_executable(&dir.join(program)))?;
        let target = dir.join(program).canonicalize().ok()?;
        let is_rustups = target.file_name().is_some_and(|name| name == "rustup");
        let beside = || Some(dir.parent()?.parent()?.join(".rustup"));
        let toolchains = is_rustups.then(beside).flatten().filter(|dir| dir.is_dir());
        let shown = if dir.ends_with("shims") { dir.parent()? } else { dir };
        let (dir, shown) = (dir.to_owned(), shown.to_owned());
        Some(Self { program: program.to_owned(), dir, shown, toolchains })
    }

    /// What to do about it, with the flags of `exec`.
    pub(crate) fn for_exec(&self) -> String {
        let flags: Vec<String> =
            self.dirs().map(|dir| format!("--mount {}", dir.display())).collect();
        format!(
            "{} is in {}, which is not mounted: {}",
            self.program,
            self.dir.display(),
            flags.join(" ")
        )
    }

    /// What to do about it, with the fields of a recipe.
    pub(crate) fn for_recipe(&self) -> String {
        let inputs: Vec<String> =
            self.dirs().map(|dir| format!("{{from: {0}, to: {0}}}", dir.display())).collect();
        format!(
            "{} is in {}, which is not mounted: give the task files: [{}], and call it by its path",
            self.program,
            self.dir.display(),
            inputs.join(", ")
        )
    }

    fn dirs(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.shown.as_path()).chain(self.toolchains.as_deref())
    }
}

/// Names that shells say they did not find. Pure.
fn missing(words: &str) -> BTreeSet<&str> {
    let named = |line| {
        let before = WORDS.iter().find_map(|words| str::strip_suffix(line, words))?;
        let name = before.rsplit(": ").next()?.trim();
        let is_name = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c));
        is_name.then_some(name)
    };
    words.lines().filter_map(|line| named(line.trim_end())).collect()
}

/// PATH inside for directories that are shown besides: those of this host's own PATH come first. `None`: nothing of it is shown.
pub(crate) fn path_inside(mounts: &[PathBuf], path: &str, usual: &str) -> Option<String> {
    let is_shown = |dir: &&str| mounts.iter().any(|mount| Path::new(dir).starts_with(mount));
    let mut dirs: Vec<&str> = path.split(':').filter(is_shown).collect();
    dirs.dedup();
    (!dirs.is_empty()).then(|| format!("{}:{usual}", dirs.join(":")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn r47_a_program_of_a_home_is_named_with_the_flag_that_shows_it() {
        let home = tempfile::tempdir().unwrap();
        let bin = home.path().join(".cargo/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir(home.path().join(".rustup")).unwrap();
        std::fs::write(bin.join("rustup"), "").unwrap();
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join("rustup"), runs).unwrap();
        std::os::unix::fs::symlink("rustup", bin.join("cargo")).unwrap();
        let path = format!("relative:/usr/bin:{}:/sbin", bin.display());
        let words =
            "bash: line 1: nonesuch: command not found\nbash: line 1: cargo: command not found\n";
        let said = HostProgram::of(words, &path).unwrap();
        let (home, bin) = (home.path().display(), bin.display());
        assert_eq!(
            said.for_exec(),
            format!(
                "cargo is in {bin}, which is not mounted: --mount {bin} --mount {home}/.rustup"
            )
        );
        assert!(said.for_recipe().contains(&format!("{{from: {bin}, to: {bin}}}")));
        assert_eq!(HostProgram::of("sh: 1: sh: not found\n", &path), None);
        assert_eq!(HostProgram::on_path("/usr/bin/cargo", &path), None);
        assert_eq!(missing("cat: /x: not found\na b: not found\nno"), BTreeSet::new());
    }

    #[test]
    fn r47_what_is_shown_of_the_hosts_path_comes_first() {
        let mounts = [PathBuf::from("/h/.cargo")];
        let inside =
            path_inside(&mounts, "/h/.cargo/bin:/h/.cargo/bin:/h/.py/bin:/usr/bin", "/bin");
        assert_eq!(inside.as_deref(), Some("/h/.cargo/bin:/bin"));
        assert_eq!(path_inside(&mounts, "/usr/bin", "/bin"), None);
    }
}
