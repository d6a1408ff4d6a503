//! The arguments of `exec`.

use std::path::PathBuf;

use clap::Args;
use cofferdam_contracts::duration::Duration;
use cofferdam_contracts::egress::Egress;
use cofferdam_contracts::user::UserName;

use super::flag;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Root file system: host, dir:/path, or image:NAME (see `image`)
    #[arg(long, default_value = "host")]
    pub image: String,
    /// Weakest isolation class accepted: container, gvisor, microvm, remote
    #[arg(long)]
    pub isolation: Option<String>,
    /// Network: none, or exact names and mirrors (@pip, @npm, @cargo, @apt), comma separated
    #[arg(long, default_value = "none", value_name = "NAMES", value_parser = flag::egress)]
    pub egress: Egress,
    /// Memory in MiB
    #[arg(long)]
    pub mem: Option<u64>,
    /// CPUs, such as 0.5
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Maximum number of processes
    #[arg(long)]
    pub pids: Option<u64>,
    /// Room for files that it writes, in MiB
    #[arg(long)]
    pub disk: Option<u64>,
    /// How long it may run, such as 90s; a plain number is seconds
    #[arg(long, default_value = "10m", value_name = "DURATION", value_parser = flag::seconds)]
    pub timeout: Duration,
    /// Host directory to work in, copy-on-write, at its own path and as /work; with the repository of a linked git worktree
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Whom it runs as: NAME, UID, NAME:GROUP or UID:GID of the root file system; files of --work are that user's inside
    #[arg(long, value_name = "USER", value_parser = flag::user)]
    pub user: Option<UserName>,
    /// Another host directory, such as a toolchain in a home: copy-on-write at its own path, and in PATH as on this host
    #[arg(long, value_name = "DIR")]
    pub mount: Vec<PathBuf>,
    /// Globs of files to keep, relative to where it works
    #[arg(long, value_name = "GLOB")]
    pub keep: Vec<String>,
    /// Variable of the command, NAME=VALUE, or NAME for its value here; on record with the run, so not for secrets
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// File of variables, one NAME=VALUE a line; --env comes after it
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Stream standard input to the command as it comes: bytes of any kind, however many, none on record
    #[arg(short, long)]
    pub interactive: bool,
    /// Run the command in a terminal of its own, which is this one; stream its keys, too
    #[arg(short, long, conflicts_with = "json")]
    pub tty: bool,
    /// Do not read standard input; otherwise a pipe or file is the command's input
    #[arg(long, conflicts_with_all = ["interactive", "tty"])]
    pub no_stdin: bool,
    /// One JSON object at the end instead of the command's output, which it has: at most 8 MiB of each stream
    #[arg(long)]
    pub json: bool,
    /// Program to run and its arguments, after `--`
    #[arg(required = true, last = true)]
    pub cmd: Vec<String>,
}
