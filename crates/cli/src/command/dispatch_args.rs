//! The grammar of `dispatch`. Every flag takes `--name=value` and `--name value`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cofferdam_contracts::dispatch::{AgentType, DispatchStatus};
use cofferdam_contracts::duration::Duration;
use cofferdam_contracts::project::ProjectLocation;
use cofferdam_contracts::sandbox::AccessMode;

use super::flag;

const EXIT_CODES: &str = "Exit codes: 0 success; 1 negative answer (not found, limit reached, a wait \
that ended failed, canceled or timed out); 2 an error; 3 wrong usage.";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DispatchArgs {
    #[command(subcommand)]
    pub command: DispatchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DispatchCommand {
    /// Start an agent; prints the dispatch's id
    Spawn(Box<SpawnArgs>),
    /// Show a dispatch: requested and enforced policy
    Status(OneArgs),
    /// List dispatches, newest first
    List(ListArgs),
    /// Check once; with --output, write the output of a finished dispatch
    Poll(PollArgs),
    /// Wait for a dispatch; exit 0 only if it completed
    Wait(WaitArgs),
    /// End a dispatch and its sandbox
    Kill(OneArgs),
    /// Remove ended dispatches older than an age
    Prune {
        /// Age, such as 12h or 7d; a plain number is seconds
        #[arg(long, default_value = "7d", value_name = "DURATION", value_parser = flag::seconds)]
        older_than: Duration,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Count tokens of a dispatch, a scope, or all
    Tokens(TokensArgs),
    /// Repeat a dispatch that did not complete, as a new one that refers to it
    Retry(OneArgs),
    /// Import ended dispatches from another program's SQLite file (read only)
    Import {
        file: PathBuf,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SpawnArgs {
    /// File with the agent's prompt
    #[arg(long, value_name = "FILE")]
    pub prompt_file: PathBuf,
    /// Kind of agent; command runs the words after `--`, or the prompt file as a shell script
    #[arg(long = "type", default_value = "codex", value_parser = flag::one_of(AgentType::ALL, AgentType::as_str))]
    pub agent_type: String,
    /// The agent's program: auto takes the one of `agent install`, or of the server's PATH; a path of the server's host is
    /// mounted
    #[arg(long, default_value = "auto", value_name = "auto|FILE")]
    pub agent: String,
    /// Directory of the project; --sandbox says what the agent may change in it
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub project: PathBuf,
    /// Where the agent finds the project: at its own path (and at /work), or at /work alone
    #[arg(long, default_value = "own", value_parser = flag::one_of(ProjectLocation::ALL, ProjectLocation::as_str))]
    pub project_at: String,
    /// The project is a linked git worktree: show its repository as well, copy-on-write
    #[arg(long, conflicts_with = "commit")]
    pub worktree: bool,
    /// Work on this commit of the project's repository: HEAD, a branch, a tag or an id; its changes become a patch
    #[arg(long, value_name = "COMMIT")]
    pub commit: Option<String>,
    /// Repository of --commit, then a full id, that the sandbox fetches in place of the project
    #[arg(long, value_name = "URL", requires = "commit")]
    pub repo_url: Option<String>,
    /// Recorded path for programs that read it; no command writes it (see `wait --output`)
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Name for people, 1 to 128 characters, as `dispatch list` shows it
    #[arg(long)]
    pub name: Option<String>,
    /// The agent's model
    #[arg(long)]
    pub model: Option<String>,
    /// Access to the project; a spec's access_mode overrides it
    #[arg(long, default_value = "workspace-write", value_parser = flag::one_of(AccessMode::ALL, AccessMode::as_str))]
    pub sandbox: String,
    /// The requested policy: JSON, or @FILE
    #[arg(long, value_name = "JSON|@FILE")]
    pub sandbox_spec: Option<String>,
    /// Accept unknown fields of the spec; the effective record marks them as not enforced
    #[arg(long)]
    pub lenient_spec: bool,
    /// End the dispatch at max_turns and max_commands; otherwise only report them
    #[arg(long)]
    pub enforce: bool,
    /// Group of dispatches
    #[arg(long)]
    pub scope_id: Option<String>,
    /// Id of the dispatch that spawns this one
    #[arg(long)]
    pub parent_id: Option<String>,
    /// How long it may work, from 1s to 24h; a plain number is seconds
    #[arg(long, value_name = "DURATION", value_parser = flag::wall_seconds)]
    pub timeout: Option<Duration>,
    /// Run after interactive work; return before the start
    #[arg(long)]
    pub scheduled: bool,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
    /// The command, for --type=command; without one the prompt file is a shell script
    #[arg(last = true)]
    pub cmd: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OneArgs {
    /// The dispatch's id
    pub id: String,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write the output to this new file after the end
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace an existing --output file
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
    /// How long to wait, such as 90s; a plain number is seconds; default: for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = flag::seconds)]
    pub timeout: Option<Duration>,
    /// Accepted for clients of other orchestrators and ignored: the server says when a dispatch ends
    #[arg(long, value_name = "DURATION", value_parser = flag::seconds, hide = true)]
    pub poll: Option<Duration>,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only live dispatches
    #[arg(long)]
    pub active: bool,
    /// Only dispatches with this status
    #[arg(long, value_parser = flag::one_of(DispatchStatus::ALL, DispatchStatus::as_str))]
    pub status: Option<String>,
    /// Only dispatches of this scope
    #[arg(long, alias = "scope")]
    pub scope_id: Option<String>,
    /// Maximum number of rows
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokensArgs {
    pub id: Option<String>,
    /// Only this group of dispatches
    #[arg(long, alias = "scope")]
    pub scope_id: Option<String>,
    #[arg(long, help = super::flag::JSON)]
    pub json: bool,
}
