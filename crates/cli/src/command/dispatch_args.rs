//! The grammar of `dispatch`. Every flag takes `--name=value` and `--name value`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cofferdam_contracts::dispatch::{AgentType, DispatchStatus};
use cofferdam_contracts::sandbox::AccessMode;

use super::args::one_of;

const EXIT_CODES: &str = "Exit codes: 0 success; 1 the answer is no (not found, limit reached, a wait \
that ended failed, cancelled or timed out); 2 an error; 3 wrong usage.";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DispatchArgs {
    #[command(subcommand)]
    pub command: DispatchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DispatchCommand {
    /// Send an agent off; prints the dispatch's id
    Spawn(Box<SpawnArgs>),
    /// One dispatch: what was asked of its sandbox and what was enforced
    Status(OneArgs),
    /// Dispatches, newest first
    List(ListArgs),
    /// Look once; with --output, writes what one said that is over
    Poll(PollArgs),
    /// Wait for the end; exit 0 only if it completed
    Wait(WaitArgs),
    /// End a dispatch with its whole sandbox
    Kill(OneArgs),
    /// Remove ended dispatches that are older
    Prune {
        /// Age, such as 12h or 7d; a plain number is seconds
        #[arg(long, default_value = "7d", value_parser = age)]
        older_than: u64,
        #[arg(long)]
        json: bool,
    },
    /// Tokens of one dispatch, of a scope, or of all
    Tokens(TokensArgs),
    /// Send one that did not complete off again, as a new one that names it
    Retry(OneArgs),
    /// Take over the ended dispatches of another program's SQLite file, which is only read
    Import {
        file: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SpawnArgs {
    /// What the agent is told
    #[arg(long, value_name = "FILE")]
    pub prompt_file: PathBuf,
    /// Which agent
    #[arg(long = "type", default_value = "codex", value_parser = one_of(AgentType::ALL, AgentType::as_str))]
    pub agent_type: String,
    /// The directory that it works in
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub project: PathBuf,
    /// Kept on record for programs that read it; no command writes there (see `wait --output`)
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// A name for people
    #[arg(long)]
    pub name: Option<String>,
    /// The agent's model
    #[arg(long)]
    pub model: Option<String>,
    /// The simple policy; a spec's access_mode supersedes it
    #[arg(long, default_value = "workspace-write", value_parser = one_of(AccessMode::ALL, AccessMode::as_str))]
    pub sandbox: String,
    /// The requested policy: JSON, or @FILE
    #[arg(long, value_name = "JSON|@FILE")]
    pub sandbox_spec: Option<String>,
    /// Keep fields of the spec that are not known; the effective record says that they do not hold
    #[arg(long)]
    pub lenient_spec: bool,
    /// End the dispatch at max_turns and max_commands, which otherwise are only reported
    #[arg(long)]
    pub enforce: bool,
    /// Groups dispatches
    #[arg(long)]
    pub scope_id: Option<String>,
    /// The dispatch that spawns this one
    #[arg(long)]
    pub parent_id: Option<String>,
    /// Seconds that it may work
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: Option<u64>,
    /// Run after interactive work, and do not wait for the start
    #[arg(long)]
    pub scheduled: bool,
    #[arg(long)]
    pub json: bool,
    /// The command, for --type=command; without one the prompt file is a shell script
    #[arg(last = true)]
    pub cmd: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OneArgs {
    /// The dispatch's id
    pub id: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write what it said into this new file, once it is over
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the file of --output where there is one
    #[arg(long, requires = "output")]
    pub force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PollArgs {
    #[command(flatten)]
    pub one: OneArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The dispatch's id
    pub id: String,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Seconds to wait; default: for as long as it takes
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those that are not over
    #[arg(long)]
    pub active: bool,
    /// Only those with this status
    #[arg(long, value_parser = one_of(DispatchStatus::ALL, DispatchStatus::as_str))]
    pub status: Option<String>,
    /// Only those of this scope
    #[arg(long)]
    pub scope_id: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokensArgs {
    pub id: Option<String>,
    #[arg(long)]
    pub scope_id: Option<String>,
    #[arg(long)]
    pub json: bool,
}

/// Seconds of an age.
fn age(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.strip_prefix(digits).unwrap_or("") {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        other => return Err(format!("{other:?} is no unit: s, m, h or d")),
    };
    let count: u64 =
        digits.parse().map_err(|_| format!("{text:?} is no age, such as 12h or 7d"))?;
    Ok(count.saturating_mul(unit).min(3_153_600_000))
}

#[cfg(test)]
mod tests {
    use super::age;

    #[test]
    fn an_age_is_a_number_and_a_unit() {
        assert_eq!((age("90"), age("2m"), age("7d")), (Ok(90), Ok(120), Ok(604_800)));
        assert!(age("-1").is_err() && age("x").is_err() && age("3w").is_err());
    }
}
