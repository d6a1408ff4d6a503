//! Programs of coding agents on this host: what its operator installed, or the worker's own `PATH` has.
//!
//! ```text
//! state directory: agents/NAME.json -> agents/NAME/VERSION/NAME     written whole by `cofferdam agent install`
//! PATH:            NAME -> its file -> an executable of the machine, or the one that npm's script starts
//! ```

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_contracts::id::Digest;
use serde::{Deserialize, Serialize};

/// What an executable of the machine begins with.
const ELF: [u8; 4] = *b"\x7fELF";
/// Bytes of a record.
const MAX_RECORD: u64 = 64 * 1024;
/// Where a sandbox on the host's `/usr` looks for programs by itself.
const SHOWN: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

/// An installed program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledAgent {
    /// Its version, which it said itself when it was installed.
    pub version: String,
    /// Digest of its bytes when it was installed.
    pub sha256: Digest,
    /// Size in bytes; a file of another size was changed since.
    pub bytes: u64,
}

/// Where an agent's program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentProgram {
    /// Below `/usr`, where every sandbox on the host's own root finds it.
    Shown,
    /// In a file that a sandbox has to be given.
    At(PathBuf),
}

/// Why an agent has no program here.
#[derive(Debug, thiserror::Error)]
pub enum AgentProgramError {
    /// Neither installed nor in the `PATH`.
    #[error(
        "{0} is not on this host: run `cofferdam agent install {0}`, or mount its program to /opt/agents/bin/{0}"
    )]
    Absent(String),
    /// A script, which needs files that a sandbox does not have.
    #[error(
        "{path} is a script and not {name}'s own program: run `cofferdam agent install {name}`, or mount the program"
    )]
    Script {
        /// Name of the agent, which its program's file has as well.
        name: String,
        /// What was found.
        path: PathBuf,
    },
    /// The installed file is another one than was installed.
    #[error("{0} was changed since it was installed: run `cofferdam agent install {0}` again")]
    Changed(String),
    /// The record or the file cannot be read.
    #[error("{name}'s program cannot be read: {source}")]
    Read {
        /// Name of the agent, which its program's file has as well.
        name: String,
        /// The host's answer.
        source: io::Error,
    },
}

/// Where installed programs lie in a state directory.
#[must_use]
pub fn agents_dir(state: &Path) -> PathBuf {
    state.join("agents")
}

/// The record of a program that may be installed.
#[must_use]
pub fn agent_record(state: &Path, name: &str) -> PathBuf {
    agents_dir(state).join(format!("{name}.json"))
}

/// The place of an installed program.
#[must_use]
pub fn agent_place(state: &Path, name: &str, version: &str) -> PathBuf {
    agents_dir(state).join(name).join(version).join(name)
}

/// What is installed under a name.
///
/// # Errors
/// A record that cannot be read.
pub fn agent_installed(state: &Path, name: &str) -> io::Result<Option<InstalledAgent>> {
    let mut text = String::new();
    match File::open(agent_record(state, name)) {
        Ok(file) => file.take(MAX_RECORD).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    serde_json::from_str(&text).map(Some).map_err(io::Error::other)
}

/// The program of an agent: the installed one, or else the first in `path`, a value of the variable `PATH`.
///
/// # Errors
/// [`AgentProgramError`], in words for the caller.
pub fn agent_program(
    state: &Path,
    name: &str,
    path: Option<&OsStr>,
) -> Result<AgentProgram, AgentProgramError> {
    let read = |source| AgentProgramError::Read { name: name.to_owned(), source };
    if let Some(installed) = agent_installed(state, name).map_err(read)? {
        let place = agent_place(state, name, &installed.version);
        let found = place.symlink_metadata().map_err(read)?;
        // Its digest costs a second; what grew or shrank is seen at once.
        return match found.is_file() && found.size() == installed.bytes {
            true => Ok(AgentProgram::At(place)),
            false => Err(AgentProgramError::Changed(name.to_owned())),
        };
    }
    let dirs = path.into_iter().flat_map(std::env::split_paths);
    let mut found = dirs.map(|dir| dir.join(name)).filter(|file| is_executable(file));
    let first = found.next().ok_or_else(|| AgentProgramError::Absent(name.to_owned()))?;
    let real = first.canonicalize().map_err(read)?;
    if is_elf(&real).map_err(read)? {
        let is_shown =
            first.parent().is_some_and(|dir| SHOWN.iter().any(|one| dir == Path::new(one)));
        return Ok(match is_shown && real.starts_with("/usr") {
            true => AgentProgram::Shown,
            false => AgentProgram::At(real),
        });
    }
    let native = native_of(&real).filter(|file| is_elf(file).unwrap_or(false));
    native
        .map(AgentProgram::At)
        .ok_or_else(|| AgentProgramError::Script { name: name.to_owned(), path: real })
}

/// Whether a path leads to a file that somebody may execute.
#[must_use]
pub fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn is_elf(file: &Path) -> io::Result<bool> {
    let mut begin = [0_u8; ELF.len()];
    match File::open(file)?.read_exact(&mut begin) {
        Ok(()) => Ok(begin == ELF),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The program of the machine that npm's script of codex starts: `PACKAGE/bin/codex.js` has it in a package beside its own
/// or below it.
fn native_of(script: &Path) -> Option<PathBuf> {
    let package = script.parent()?.parent()?;
    let places = [package.join("node_modules/@openai"), package.parent()?.to_owned()];
    places.iter().find_map(|scope| codex_native(scope))
}

/// The program of the machine in one of codex's packages for a platform, in the directory of its scope.
#[must_use]
pub fn codex_native(scope: &Path) -> Option<PathBuf> {
    let vendors = beginning(scope, "codex-linux-").into_iter();
    let triples = vendors.flat_map(|dir| beginning(&dir.join("vendor"), ""));
    triples.map(|dir| dir.join("bin/codex")).find(|file| file.is_file())
}

/// Entries of a directory whose names begin so, the shortest first; none where it cannot be read.
#[must_use]
pub fn beginning(dir: &Path, with: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named =
        entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(with.as_bytes()));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    found.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::canonical::digest_bytes;
    use std::fs::Permissions;

    fn program(file: &Path, bytes: &[u8]) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn agents_b1_an_installed_program_is_taken_before_one_of_the_path() {
        let home = tempfile::tempdir().unwrap();
        let (state, bin) = (home.path().join("state"), home.path().join("bin"));
        let find = || agent_program(&state, "codex", Some(bin.as_os_str()));
        assert!(matches!(find(), Err(AgentProgramError::Absent(_))));
        program(&bin.join("codex"), b"\x7fELF of the path");
        let own = bin.join("codex").canonicalize().unwrap();
        assert_eq!(find().unwrap(), AgentProgram::At(own));
        let place = agent_place(&state, "codex", "1.2");
        program(&place, b"\x7fELF installed");
        let record = InstalledAgent { version: "1.2".into(), sha256: digest_bytes(b""), bytes: 14 };
        fs::write(agent_record(&state, "codex"), serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(find().unwrap(), AgentProgram::At(place.clone()));
        program(&place, b"\x7fELF of another length");
        assert!(matches!(find(), Err(AgentProgramError::Changed(_))));
    }

    #[test]
    fn agents_b1_npms_script_leads_to_the_program_that_it_starts() {
        let home = tempfile::tempdir().unwrap();
        let (bin, modules) = (home.path().join("bin"), home.path().join("node_modules/@openai"));
        let script = modules.join("codex/bin/codex.js");
        program(&script, b"#!/usr/bin/env node\n");
        fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink(&script, bin.join("codex")).unwrap();
        let find = || agent_program(home.path(), "codex", Some(bin.as_os_str()));
        assert!(matches!(find(), Err(AgentProgramError::Script { .. })));
        let native = modules.join("codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex");
        program(&native, b"\x7fELF");
        assert_eq!(find().unwrap(), AgentProgram::At(native.canonicalize().unwrap()));
    }
}
