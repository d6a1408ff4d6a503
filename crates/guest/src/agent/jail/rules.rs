//! The rules of a jail, resolved against the sandbox's own files, and their enforcement by Landlock.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cofferdam_guest::jail::Jail;
use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus,
};
use serde::{Deserialize, Serialize};

/// Where commands are looked for when the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What loads programs: the kernel executes it with each of them.
const LOADERS: [&str; 5] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
    "/lib64/ld64.so.2",
];
/// A script's interpreter may be a script, whose interpreter may be: the kernel stops at five.
const MAX_INTERPRETERS: usize = 5;
/// The first line of a script, as far as the kernel reads it.
const LINE_BYTES: u64 = 256;
/// Where every command may write whatever its rules are: what is there is no file.
const DEVICES: &str = "/dev";
/// Where programs are kept: what a command without rules on writing may not change once its tools are held,
/// because what it writes is not executed.
const PROGRAMS: [&str; 10] =
    ["/.cofferdam", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/opt", "/sbin", "/usr"];
/// Every access that changes something. `Truncate` is of the third version of Landlock (Linux 6.2).
const CHANGES: ABI = ABI::V3;

/// A file, however it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// What is enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The files that may be executed; `None`: all but the denied and what lies where it may be written.
    pub allowed: Option<BTreeSet<PathBuf>>,
    /// The files that may not.
    pub denied: BTreeSet<PathBuf>,
    /// Directories that may be written below.
    pub writable: Option<Vec<PathBuf>>,
    /// Whether network sockets may be made.
    pub sockets: bool,
}

impl Rules {
    /// Resolves a jail's names. The program itself is allowed unless it is denied by name.
    pub fn of(jail: &Jail, program: &Path, path: &str) -> io::Result<Self> {
        let path = if path.is_empty() { DEFAULT_PATH } else { path };
        let denied: BTreeSet<PathBuf> =
            jail.tools_denied.iter().flat_map(|tool| files_of(tool, path)).collect();
        let allowed = jail.tools_allowed.as_ref().map(|tools| {
            let mut allowed = BTreeSet::new();
            for tool in tools.iter().flat_map(|tool| files_of(tool, path)) {
                admit(&mut allowed, &tool, path);
            }
            if let Ok(program) = fs::canonicalize(program) {
                admit(&mut allowed, &program, path);
            }
            for loader in LOADERS {
                allowed.extend(fs::canonicalize(loader));
            }
            allowed.retain(|file| !denied.contains(file));
            allowed
        });
        let writable = jail.writable.as_ref().map(|dirs| {
            let found = dirs.iter().filter_map(|dir| fs::canonicalize(dir).ok());
            found.collect::<Vec<_>>()
        });
        let mut rules = Self { allowed, denied, writable, sockets: jail.sockets };
        if rules.holds_tools() && rules.writable.is_none() {
            rules.writable = Some(all_but_programs()?);
        }
        let lies_apart = |file: &PathBuf| !rules.is_written(file);
        rules.allowed = rules
            .allowed
            .as_ref()
            .map(|all| all.iter().filter(|file| lies_apart(file)).cloned().collect());
        Ok(rules)
    }

    /// Whether a real path lies where this jail may write: a copy of a denied program would be there, and an
    /// allowed file there may have become one.
    fn is_written(&self, real: &Path) -> bool {
        real.starts_with(DEVICES) || self.writable.iter().flatten().any(|dir| real.starts_with(dir))
    }

    /// Whether some programs may not be executed.
    pub fn holds_tools(&self) -> bool {
        self.allowed.is_some() || !self.denied.is_empty()
    }

    /// Whether the file at this path may be executed. `None`: there is none.
    pub fn may_execute(&self, path: &Path) -> Option<bool> {
        let real = fs::canonicalize(path).ok()?;
        let found = fs::metadata(&real).ok()?;
        if !found.is_file() || found.mode() & 0o111 == 0 {
            return None;
        }
        if same_file(&real, &self.denied) || (self.holds_tools() && self.is_written(&real)) {
            return Some(false);
        }
        Some(self.allowed.as_ref().is_none_or(|allowed| same_file(&real, allowed)))
    }

    /// Whether a call that executes this path would load a program around the rules on tools: the
    /// kernel must be able to execute the loader, and nobody else needs to.
    pub fn is_loader(&self, path: &Path) -> bool {
        identity(path).is_some_and(|file| self.is_loader_file(file))
    }

    /// The same of a file that is known already.
    pub fn is_loader_file(&self, file: FileId) -> bool {
        self.holds_tools() && LOADERS.iter().any(|loader| identity(Path::new(loader)) == Some(file))
    }

    /// Whether something at this path may be changed. `None`: there is no directory for it.
    pub fn may_write(&self, path: &Path) -> Option<bool> {
        let Some(writable) = &self.writable else { return Some(true) };
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(_) => fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?),
        };
        Some(real.starts_with(DEVICES) || writable.iter().any(|dir| real.starts_with(dir)))
    }

    /// Holds this process, and whatever comes of it, for good. What this kernel cannot enforce is an
    /// error.
    pub fn enforce(&self) -> io::Result<()> {
        let changes = AccessFs::from_write(CHANGES);
        let mut handled = BitFlags::<AccessFs>::empty();
        if self.holds_tools() {
            handled |= AccessFs::Execute;
        }
        if self.writable.is_some() {
            handled |= changes;
        }
        if handled.is_empty() {
            return Ok(());
        }
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(handled)
            .and_then(landlock::Ruleset::create)
            .map_err(io::Error::other)?;
        if self.holds_tools() {
            let mut executable = Vec::new();
            match &self.allowed {
                Some(allowed) => executable.extend(allowed.iter().cloned()),
                None => {
                    let denied: BTreeSet<FileId> =
                        self.denied.iter().filter_map(|file| identity(file)).collect();
                    let apart = self.writable.iter().flatten().cloned();
                    let apart = apart.chain([PathBuf::from(DEVICES)]).collect();
                    let but =
                        RuleExceptions { denied: &self.denied, files: &denied, apart: &apart };
                    all_but(Path::new("/"), &but, &mut executable)?;
                }
            }
            for path in executable {
                ruleset = permit(ruleset, &path, AccessFs::Execute.into())?;
            }
        }
        if let Some(writable) = &self.writable {
            for dir in writable {
                ruleset = permit(ruleset, dir, changes)?;
            }
            ruleset =
                permit(ruleset, Path::new(DEVICES), AccessFs::WriteFile | AccessFs::Truncate)?;
        }
        let status = ruleset.restrict_self().map_err(io::Error::other)?;
        match status.ruleset {
            RulesetStatus::FullyEnforced => Ok(()),
            _ => Err(io::Error::other("this kernel's Landlock does not enforce the policy")),
        }
    }
}

fn permit(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> io::Result<RulesetCreated> {
    let handle = PathFd::new(path).map_err(io::Error::other)?;
    // A file has no entries to make or remove.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(CHANGES) };
    ruleset.add_rule(PathBeneath::new(handle, access)).map_err(io::Error::other)
}

/// Every directory of the root that keeps no programs.
fn all_but_programs() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/")? {
        let path = entry?.path();
        let is_dir = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_dir
            && path != Path::new(DEVICES)
            && !PROGRAMS.iter().any(|kept| path == Path::new(kept))
        {
            found.push(path);
        }
    }
    Ok(found)
}

/// What is left out.
struct RuleExceptions<'a> {
    /// Files, by a path of theirs.
    denied: &'a BTreeSet<PathBuf>,
    /// The same files, whatever they are called.
    files: &'a BTreeSet<FileId>,
    /// Directories that are left out whole: the writable ones, and `/dev`.
    apart: &'a BTreeSet<PathBuf>,
}

/// Everything below a directory but these files and directories, in as few rules as there can be: whole
/// directories where none of them lies.
fn all_but(dir: &Path, but: &RuleExceptions<'_>, out: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        if found.is_symlink() || but.apart.contains(&path) {
            continue;
        }
        let mut left_out = but.denied.iter().chain(but.apart);
        if found.is_dir() && left_out.any(|other| other.starts_with(&path)) {
            all_but(&path, but, out)?;
        } else if found.is_dir() || (found.is_file() && !but.files.contains(&of(&found))) {
            out.push(path);
        }
    }
    Ok(())
}

/// Which file this is.
pub fn of(found: &fs::Metadata) -> FileId {
    FileId { device: found.dev(), inode: found.ino() }
}

fn identity(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().as_ref().map(of)
}

fn same_file(path: &Path, set: &BTreeSet<PathBuf>) -> bool {
    set.contains(path)
        || identity(path).is_some_and(|file| set.iter().any(|other| identity(other) == Some(file)))
}

/// The files that a tool's name stands for: one in every directory of the path.
fn files_of(tool: &str, path: &str) -> Vec<PathBuf> {
    if tool.starts_with('/') {
        return fs::canonicalize(tool).into_iter().collect();
    }
    let dirs = path.split(':').filter(|dir| dir.starts_with('/'));
    dirs.filter_map(|dir| fs::canonicalize(Path::new(dir).join(tool)).ok())
        .filter(|file| file.is_file())
        .collect()
}

/// Allows a file, and what interprets it.
fn admit(allowed: &mut BTreeSet<PathBuf>, file: &Path, path: &str) {
    let mut next = vec![file.to_owned()];
    for _ in 0..MAX_INTERPRETERS {
        let Some(file) = next.pop() else { return };
        next.extend(interpreters(&file, path));
        allowed.insert(file);
    }
    allowed.extend(next);
}

/// What the first line of a script names, and what `env` finds for it.
fn interpreters(file: &Path, path: &str) -> Vec<PathBuf> {
    let mut line = Vec::new();
    let Ok(opened) = fs::File::open(file) else { return Vec::new() };
    if opened.take(LINE_BYTES).read_to_end(&mut line).is_err() {
        return Vec::new();
    }
    let Some(words) = line.strip_prefix(b"#!") else { return Vec::new() };
    let words = words.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let text = String::from_utf8_lossy(words).into_owned();
    let mut words = text.split_whitespace();
    let Some(first) = words.next() else { return Vec::new() };
    let mut found: Vec<PathBuf> = fs::canonicalize(first).into_iter().collect();
    if Path::new(first).file_name() == Some(OsStr::new("env")) {
        let named = words.find(|word| !word.starts_with('-') && !word.contains('='));
        found.extend(named.into_iter().flat_map(|name| files_of(name, path)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jail(allowed: Option<&[&str]>, denied: &[&str]) -> Jail {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        Jail {
            tools_allowed: allowed.map(words),
            tools_denied: words(denied),
            writable: Some(vec!["/tmp".into()]),
            ..Jail::default()
        }
    }

    #[test]
    fn a_list_allows_the_program_and_what_it_names_and_nothing_else() {
        let rules = Rules::of(&jail(Some(&["cat"]), &[]), Path::new("/bin/sh"), "").unwrap();
        assert_eq!(rules.may_execute(Path::new("/bin/cat")), Some(true));
        assert_eq!(rules.may_execute(Path::new("/usr/bin/cat")), Some(true));
        assert_eq!(rules.may_execute(Path::new("/bin/sh")), Some(true));
        assert_eq!(rules.may_execute(Path::new("/bin/ls")), Some(false));
        assert_eq!(rules.may_execute(Path::new("/bin/no-such-program")), None);
    }

    #[test]
    fn a_loader_is_one_by_every_name_and_only_where_tools_are_held() {
        let held = Rules::of(&jail(None, &["ls"]), Path::new("/bin/sh"), "").unwrap();
        let free = Rules::of(&jail(None, &[]), Path::new("/bin/sh"), "").unwrap();
        let here: Vec<_> = LOADERS.iter().filter_map(|l| fs::canonicalize(l).ok()).collect();
        for loader in here {
            assert!(held.is_loader(&loader) && !free.is_loader(&loader), "{loader:?}");
        }
        assert!(!held.is_loader(Path::new("/bin/cat")) && !held.is_loader(Path::new("/no/such")));
    }

    #[test]
    fn a_denied_tool_is_denied_by_every_name() {
        let rules = Rules::of(&jail(None, &["ls"]), Path::new("/bin/sh"), "").unwrap();
        assert_eq!(rules.may_execute(Path::new("/bin/ls")), Some(false));
        assert_eq!(rules.may_execute(Path::new("/usr/bin/ls")), Some(false));
        assert_eq!(rules.may_execute(Path::new("/bin/cat")), Some(true));
    }

    #[test]
    fn m6_nothing_is_executed_where_it_may_be_written() {
        let copy = PathBuf::from(format!("/tmp/cofferdam-m6-{}", std::process::id()));
        fs::copy("/bin/sh", &copy).unwrap();
        let everywhere = Jail { writable: None, ..jail(None, &["ls"]) };
        for held in [jail(None, &["ls"]), everywhere] {
            let rules = Rules::of(&held, Path::new("/bin/sh"), "").unwrap();
            assert_eq!(rules.may_execute(&copy), Some(false));
            assert_eq!(rules.may_execute(Path::new("/bin/cat")), Some(true));
            assert_eq!(rules.may_write(Path::new("/tmp/new")), Some(true));
            assert_eq!(rules.may_write(Path::new("/usr/bin/new")), Some(false));
        }
        // A file of the list that the command could change is not executed either.
        let listed = copy.to_str().unwrap();
        let rules =
            Rules::of(&jail(Some(&[listed, "cat"]), &[]), Path::new("/bin/sh"), "").unwrap();
        assert_eq!(rules.may_execute(&copy), Some(false));
        assert_eq!(rules.may_execute(Path::new("/bin/cat")), Some(true));
        // Without rules on tools nothing of this holds.
        let rules = Rules::of(&jail(None, &[]), Path::new("/bin/sh"), "").unwrap();
        let free = rules.may_execute(&copy);
        fs::remove_file(&copy).unwrap();
        assert_eq!(free, Some(true));
    }

    #[test]
    fn writing_is_for_the_listed_directories_and_devices() {
        let rules = Rules::of(&jail(None, &[]), Path::new("/bin/sh"), "").unwrap();
        assert_eq!(rules.may_write(Path::new("/tmp/new")), Some(true));
        assert_eq!(rules.may_write(Path::new("/dev/null")), Some(true));
        assert_eq!(rules.may_write(Path::new("/tmp/../etc/new")), Some(false));
        assert_eq!(rules.may_write(Path::new("/etc/passwd")), Some(false));
        assert_eq!(rules.may_write(Path::new("/no-such-dir/x")), None);
    }
}
