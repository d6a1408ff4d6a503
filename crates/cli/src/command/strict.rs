//! Strict mode at the start of a server or worker: the real daemon and no stand-in, or a refusal that names what lacks.
//!
//! `OC_STRICT_MODE=1` is the design's own variable (docs/opencode.md, decision 0148). What a run lacks, such as a provider's
//! credential, is refused where the run is submitted.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use cofferdam_ambient::env;

use super::exit::Misuse;
use super::worker::WorkerArgs;

const VARIABLE: &str = "OC_STRICT_MODE";
/// Places of test builds at which a process is killed or made busy; a shipped build does not know them.
const ARMED: [&str; 3] = ["COFFERDAM_FAILPOINT", "COFFERDAM_SHORT", "COFFERDAM_BUSY"];
/// Where agents lie beside `PATH`.
const AGENTS: &str = "/opt/agents/bin";

/// Whether this process is strict.
///
/// # Errors
/// A value that is neither 1 nor 0.
fn is_on() -> Result<bool, Misuse> {
    read(env::var(VARIABLE).as_deref())
}

fn read(value: Option<&str>) -> Result<bool, Misuse> {
    match value {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(Misuse(format!("{VARIABLE} is {other:?}: give 1 or 0"))),
    }
}

/// Refuses, in strict mode, to start with a stand-in or without the daemon that plans are made by.
///
/// # Errors
/// What lacks, all of it, each with its remedy.
pub(crate) fn check(worker: Option<&WorkerArgs>) -> Result<bool, Misuse> {
    if !is_on()? {
        return Ok(false);
    }
    let Some(worker) = worker else { return Ok(true) };
    let armed: Vec<&str> = ARMED.iter().copied().filter(|name| env::var(name).is_some()).collect();
    let found = said_version();
    let lacks = lacking(worker.egress_hosts.len(), &armed, found.as_deref());
    match lacks.is_empty() {
        true => Ok(true),
        false => Err(Misuse(format!("{VARIABLE}=1: {}", lacks.join("; ")))),
    }
}

/// Pure: `found` is what the daemon's program says its version is.
fn lacking(stand_ins: usize, armed: &[&str], found: Option<&str>) -> Vec<String> {
    let wanted = cofferdam_planner::OPENCODE;
    let mut lacks = Vec::new();
    if stand_ins > 0 {
        lacks.push("--egress-host puts another server in a name's place: leave it out".to_owned());
    }
    lacks.extend(armed.iter().map(|name| format!("{name} is set: unset it")));
    match found {
        Some(version) if version == wanted => {}
        Some(version) => lacks.push(format!(
            "OpenCode on this host is {version:?}: install opencode-ai@{wanted} with npm"
        )),
        None => lacks.push(format!(
            "OpenCode is neither in PATH nor in {AGENTS}: install opencode-ai@{wanted} with npm"
        )),
    }
    lacks
}

/// The version that `opencode` prints; `None` where the program is absent or fails.
fn said_version() -> Option<String> {
    let path = env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain([AGENTS]).filter(|dir| dir.starts_with('/'));
    let program =
        dirs.map(|dir| PathBuf::from(dir).join("opencode")).find(|file| file.is_file())?;
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let line = String::from_utf8_lossy(&said.stdout).lines().next_back()?.trim().to_owned();
    (said.status.success() && !line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_mode_is_on_off_or_a_mistake() {
        for (value, wanted) in
            [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)]
        {
            assert_eq!(read(value).unwrap(), wanted);
        }
        for value in ["yes", "true", "2", " 1"] {
            assert!(read(Some(value)).unwrap_err().0.contains("give 1 or 0"), "{value}");
        }
    }

    #[test]
    fn all_that_lacks_is_named_with_its_remedy() {
        let wanted = cofferdam_planner::OPENCODE;
        assert!(lacking(0, &[], Some(wanted)).is_empty());
        let all = lacking(1, &["COFFERDAM_FAILPOINT"], None).join("\n");
        for words in ["--egress-host", "unset it", "install opencode-ai@"] {
            assert!(all.contains(words), "{all}");
        }
        let other = lacking(0, &[], Some("0.0.1"));
        assert!(
            other.len() == 1 && other[0].contains("0.0.1") && other[0].contains(wanted),
            "{other:?}"
        );
    }
}
