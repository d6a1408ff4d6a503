//! `agent install | ls`: programs of coding agents in this host's state directory, for `dispatch spawn`.
//!
//! ```text
//! npm install (a directory of our own, no scripts) -> the machine's program -> its --version -> agents/NAME/VERSION/NAME
//!                                                                               -> agents/NAME.json, last
//! ```
//! A dispatch that started keeps the file that it was given.

use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::{Args, Subcommand};
use cofferdam_ambient::{env, random};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::printable;
use cofferdam_sandbox::{
    AgentProgram, InstalledAgent, agent_installed, agent_place, agent_program, agent_record,
    agents_dir, beginning, codex_native,
};
use serde_json::json;

use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::table::{self, extra, key, usual};
use super::{flag, output, state};

/// Bytes of a program: today's have 300 MB.
const MAX_PROGRAM: u64 = 2 * 1024 * 1024 * 1024;

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    pub command: AgentCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Install an agent's program by npm, at the version that this program is tested with
    Install {
        /// codex, claude or opencode
        #[arg(required = true, value_parser = flag::one_of(AgentName::ALL, AgentName::name))]
        names: Vec<String>,
        /// Another version of it
        #[arg(long, value_name = "VERSION")]
        release: Option<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List agents and where a dispatch finds their programs
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
}

/// An agent that can be installed.
#[derive(Debug, Clone, Copy)]
enum AgentName {
    Codex,
    Claude,
    Opencode,
}

impl AgentName {
    const ALL: &[Self] = &[Self::Codex, Self::Claude, Self::Opencode];

    const fn name(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::Claude => "claude",
            Self::Opencode => "opencode",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    const fn package(self) -> &'static str {
        match self {
            Self::Codex => "@openai/codex",
            Self::Claude => "@anthropic-ai/claude-code",
            Self::Opencode => "opencode-ai",
        }
    }

    const fn version(self) -> &'static str {
        match self {
            Self::Codex => "0.169.0",
            Self::Claude => "2.1.197",
            Self::Opencode => cofferdam_planner::OPENCODE,
        }
    }

    /// The program of this machine below `node_modules`: npm took the packages of this machine alone.
    fn program(self, modules: &Path) -> Option<PathBuf> {
        let first = |packages: Vec<PathBuf>, program: &str| {
            let mut files = packages.into_iter().map(|dir| dir.join(program));
            files.find(|file| file.is_file())
        };
        match self {
            Self::Codex => codex_native(&modules.join("@openai")),
            Self::Claude => {
                first(beginning(&modules.join("@anthropic-ai"), "claude-code-linux-"), "claude")
            }
            Self::Opencode => first(beginning(modules, "opencode-linux-"), "bin/opencode"),
        }
    }
}

/// Installs and lists.
pub(crate) fn agent(at: &Locations, args: &AgentArgs) -> anyhow::Result<Exit> {
    let state = state::dir(at)?;
    match &args.command {
        AgentCommand::Install { names, release, json } => {
            if release.is_some() && names.len() != 1 {
                return Err(Misuse("--release goes with one agent".to_owned()).into());
            }
            for name in names {
                let known = AgentName::named(name).context("no such agent")?;
                let wanted = release.as_deref().unwrap_or(known.version());
                let installed = install(&state, known, wanted)?;
                said(known, &installed, *json);
            }
        }
        AgentCommand::Ls { json } => list(&state, *json),
    }
    Ok(Exit::Ok)
}

fn said(known: AgentName, installed: &InstalledAgent, as_json: bool) {
    let InstalledAgent { version, sha256, bytes } = installed;
    match as_json {
        true => {
            output::json(&json!({"schemaVersion": 1, "agent": known.name(), "version": version,
            "sha256": sha256, "bytes": bytes}))
        }
        false => output::line(&format!("{} {version} sha256:{sha256}", known.name())),
    }
}

fn install(state: &Path, known: AgentName, version: &str) -> anyhow::Result<InstalledAgent> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-+_".contains(c);
    let is_number = version.starts_with(|c: char| c.is_ascii_digit());
    if !is_number || version.len() > 64 || !version.chars().all(is_plain) {
        return Err(
            Misuse(format!("--release {version:?}: write one version, such as 1.2.3")).into()
        );
    }
    let name = known.name();
    let dir = agents_dir(state);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let stage = Stage::make(&dir)?;
    output::note(&format!("npm installs {}@{version}", known.package()));
    npm(&stage.0, &format!("{}@{version}", known.package()))?;
    let program = known.program(&stage.0.join("node_modules"));
    let program = program.with_context(|| {
        format!("{}@{version} has no program for this machine", known.package())
    })?;
    let told = version_of(&program, &stage.0)?;
    anyhow::ensure!(
        told.split_whitespace().any(|word| word == version),
        "{name} says that it is {:?} and not {version}; nothing was installed",
        printable::line(told.trim())
    );
    let mut bytes = Vec::new();
    fs::File::open(&program)?.take(MAX_PROGRAM).read_to_end(&mut bytes)?;
    let installed = InstalledAgent {
        version: version.to_owned(),
        sha256: digest_bytes(&bytes),
        bytes: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
    };
    let place = agent_place(state, name, version);
    let parent = place.parent().context("the place has no directory")?;
    fs::create_dir_all(parent)?;
    for dir in [Some(parent), parent.parent(), Some(dir.as_path())].into_iter().flatten() {
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    fs::rename(&program, &place).with_context(|| format!("cannot write {}", place.display()))?;
    // What names the program comes last, whole.
    let draft = stage.0.join("record");
    fs::write(&draft, serde_json::to_vec(&installed)?)?;
    fs::set_permissions(&draft, Permissions::from_mode(0o644))?;
    fs::rename(&draft, agent_record(state, name))?;
    Ok(installed)
}

/// A directory beside the installed programs, on their file system; dropped, it goes with what is left in it.
#[derive(Debug)]
struct Stage(PathBuf);

impl Stage {
    fn make(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(format!(".install-{}", random::secret_hex(8)));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
        Ok(Self(path))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Takes one package with the programs of this machine. None of its scripts runs.
fn npm(prefix: &Path, package: &str) -> anyhow::Result<()> {
    let made = Command::new("npm")
        .args([
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--ignore-scripts",
            "--loglevel=error",
        ])
        .arg("--prefix")
        .arg(prefix)
        .arg(package)
        .stdin(Stdio::null())
        .output()
        .context("cannot start npm; install it, or put the agent's program into the PATH")?;
    let words = String::from_utf8_lossy(&made.stderr);
    anyhow::ensure!(made.status.success(), "npm: {}", printable::block(words.trim()));
    Ok(())
}

/// What a program says of its version, with a home of its own.
fn version_of(program: &Path, home: &Path) -> anyhow::Result<String> {
    let said = Command::new(program)
        .arg("--version")
        .env("HOME", home)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} does not run on this host", program.display()))?;
    anyhow::ensure!(said.status.success(), "{} --version failed", program.display());
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

fn list(state: &Path, as_json: bool) {
    let path = env::var_os("PATH");
    let rows: Vec<[String; 4]> = AgentName::ALL
        .iter()
        .map(|known| {
            let name = known.name();
            let version = agent_installed(state, name).ok().flatten().map(|found| found.version);
            let place = match agent_program(state, name, path.as_deref()) {
                Ok(AgentProgram::Shown) => "PATH".to_owned(),
                Ok(AgentProgram::At(file)) => file.display().to_string(),
                Err(error) => error.to_string(),
            };
            let tested = known.version().to_owned();
            [name.to_owned(), version.unwrap_or_else(|| "-".to_owned()), tested, place]
        })
        .collect();
    if as_json {
        let agents: Vec<_> = rows
            .iter()
            .map(|[name, installed, tested, place]| {
                json!({"agent": name, "installed": installed, "tested": tested, "program": place})
            })
            .collect();
        return output::json(&json!({"schemaVersion": 1, "agents": agents}));
    }
    let heads =
        [key("AGENT"), usual("INSTALLED"), extra("TESTED WITH"), usual("PROGRAM").least(16)];
    table::print(&heads, rows.into_iter().map(Vec::from));
}
