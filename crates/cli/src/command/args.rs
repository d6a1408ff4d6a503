//! The command line's grammar.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use cofferdam_ambient::env;
use cofferdam_contracts::gate::Choice;
use cofferdam_server::{HostName, PublicUrl};

use super::cache::CacheArgs;
use super::config::ConfigArgs;
use super::output;
use super::recipe::RecipeArgs;
use super::remote::RemoteArgs;
use super::sessions::SessionArgs;
use super::webhook::WebhookArgs;

/// Runs work that people and agents ask for, in sandboxes that do not outlive it.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub at: At,
    /// More of the log on stderr: -v informs, -vv debugs. COFFERDAM_LOG overrides.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success; 1 the answer is no (a run failed, NO_GO, not found); \
2 an error; 3 wrong usage; 75 this worker was declared dead: start it again; 130 Ctrl-C; \
141 nobody reads the output.";

/// Where everything is.
#[derive(Debug, Clone, Args)]
pub(crate) struct At {
    /// State directory. Default: /var/lib/cofferdam as root, ~/.local/state/cofferdam otherwise.
    #[arg(long, global = true, env = "COFFERDAM_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// PostgreSQL to use instead of a private one in the state directory.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub db: Option<String>,
    /// A running server, which gets the key that is given with it; default: the one of the state directory, by its
    /// socket, or this process itself.
    #[arg(long, global = true, env = "COFFERDAM_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// The file with the API key; default: the variable COFFERDAM_KEY, else the admin key of the state
    /// directory, which goes to that directory's own server alone.
    #[arg(long, global = true, env = "COFFERDAM_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The key itself. Everybody on a host reads arguments: taken for the sake of old scripts, with a warning.
    #[arg(long, global = true, hide = true, conflicts_with = "key_file")]
    pub key: Option<String>,
}

impl At {
    /// The key that the caller gives, wherever that is.
    ///
    /// # Errors
    /// A key file that cannot be read or is empty.
    pub(crate) fn key(&self) -> anyhow::Result<Option<String>> {
        if let Some(key) = &self.key {
            let why = "--key is read by everybody on this host: use --key-file, or the variable COFFERDAM_KEY";
            output::note(why);
            return Ok(Some(key.clone()));
        }
        let Some(path) = &self.key_file else { return Ok(env::var(KEY).filter(|k| !k.is_empty())) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the key in {}", path.display()))?;
        let key = text.trim();
        anyhow::ensure!(!key.is_empty(), "{} is empty: it should hold a key", path.display());
        Ok(Some(key.to_owned()))
    }
}

/// Where the caller's key is, if no file is named.
const KEY: &str = "COFFERDAM_KEY";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Submit a recipe, follow it, exit 0 only on success
    Run(RunArgs),
    /// One sandbox, now
    Exec(ExecArgs),
    /// Serve the API and execute, in one process
    Up(ServeArgs),
    /// Serve the API only
    Shim(ShimArgs),
    /// Execute only
    Worker(WorkerArgs),
    /// List runs
    Ps(PsArgs),
    /// Show a run: steps, artifacts, sandboxes and their wipes
    Show(ShowArgs),
    /// Print a run's output
    Logs(LogsArgs),
    /// Cancel a run or a task, with everything below it
    Cancel(ActArgs),
    /// Put a canceled run back
    Resume(ActArgs),
    /// Go on with a failed run from its first step without success
    Retry(IdArgs),
    /// Repeat a run from a step, as a new run
    Fork(ForkArgs),
    /// Gates: what waits for a person
    Gate(GateArgs),
    /// Sandboxes' sessions, and those whose wipe could not be verified
    Session(SessionArgs),
    /// Recipes that are stored: their versions, and which are stable
    Recipe(RecipeArgs),
    /// Run every proof query: exit 0 GO, 1 NO_GO
    Prove(ProveArgs),
    /// What this host can isolate, and what it lacks
    Doctor(DoctorArgs),
    /// Profiles and ceilings: what is in force, and since when
    Config(ConfigArgs),
    /// Agents that are sent off, each in a sandbox of its own
    Dispatch(super::dispatch_args::DispatchArgs),
    /// API keys
    Key(KeyArgs),
    /// Webhooks: who is told when gates and runs move
    Webhook(WebhookArgs),
    /// Images of this host: what `image: image:NAME` of a task means
    Image(ImageArgs),
    /// Cached dependencies: what build phases left for the next task
    Cache(CacheArgs),
    /// Print the database's URL, for psql and for auditors
    Db {
        /// As the private database's superuser, for maintenance by hand
        #[arg(long)]
        superuser: bool,
    },
    /// Let a state directory and database that were restored take the place of their originals, which are gone
    Adopt,
    /// Print the OpenAPI document
    Openapi,
    /// Print a JSON Schema, or list their names
    Schema { name: Option<String> },
    /// Print shell completions
    Completions { shell: clap_complete::Shell },
}

impl Command {
    /// Whether sandboxes may be made by this very process.
    pub(crate) fn executes(&self) -> bool {
        match self {
            Self::Run(_) | Self::Exec(_) | Self::Up(_) | Self::Worker(_) | Self::Doctor(_) => true,
            Self::Dispatch(args) => {
                matches!(args.command, super::dispatch_args::DispatchCommand::Wait(_))
            }
            Self::Image(args) => matches!(args.command, ImageCommand::Build { .. }),
            _ => false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A recipe file, or the id (or id@v) of an imported recipe
    pub recipe: String,
    /// An input of the recipe's form, as name=value; values are JSON or text
    #[arg(short, long = "input", value_name = "NAME=VALUE")]
    pub inputs: Vec<String>,
    /// Say yes to the plan without asking
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// One JSON object on stdout at the end
    #[arg(long)]
    pub json: bool,
    /// Print the ids and return at once
    #[arg(long)]
    pub detach: bool,
    /// Equal starts with equal keys are one run; default: a fresh key each time
    #[arg(long, value_name = "TEXT")]
    pub run_key: Option<String>,
    /// Wall time of the whole run, such as 10m
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,
    /// Run after interactive work
    #[arg(long)]
    pub batch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Root file system: host, dir:/path, or image:NAME (see `image`)
    #[arg(long, default_value = "host")]
    pub image: String,
    /// Weakest isolation class accepted: container, gvisor, microvm, remote
    #[arg(long)]
    pub isolation: Option<String>,
    /// Network: none, or exact names and mirrors (@pip, @npm, @cargo, @apt), comma separated
    #[arg(long, default_value = "none")]
    pub egress: String,
    /// Memory in MiB
    #[arg(long)]
    pub mem: Option<u64>,
    /// CPUs, such as 0.5
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Processes
    #[arg(long)]
    pub pids: Option<u64>,
    /// Seconds until it is killed
    #[arg(long, default_value_t = 600)]
    pub timeout: u64,
    /// A directory of this host as /work, copy on write
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Globs of files to keep, relative to /work
    #[arg(long, value_name = "GLOB")]
    pub keep: Vec<String>,
    /// Leave standard input alone; a pipe or file is the command's input otherwise, at most 128 KiB of text
    #[arg(long)]
    pub no_stdin: bool,
    /// One JSON object instead of the command's output
    #[arg(long)]
    pub json: bool,
    /// The command
    #[arg(required = true, last = true)]
    pub cmd: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Address of the API; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,
    /// Let callers without a key submit and approve in the tenant `default` (loopback only)
    #[arg(long)]
    pub no_auth: bool,
    /// A name that requests may give this server besides its addresses, such as a proxy's (repeatable)
    #[arg(long = "allow-host", env = "COFFERDAM_ALLOW_HOST", value_delimiter = ',', value_name = "NAME", value_parser = HostName::parse)]
    pub allow_hosts: Vec<HostName>,
    /// The address by which people elsewhere reach this server, such as a proxy's: what reply links begin with, and a
    /// name that requests may give; default: where it listens
    #[arg(long, env = "COFFERDAM_PUBLIC_URL", value_name = "URL", value_parser = PublicUrl::parse)]
    pub public_url: Option<PublicUrl>,
    /// Speak TLS with the certificate chain in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub worker: WorkerArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShimArgs {
    /// Become this user, with its groups, once the addresses are bound; needs root and --db
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    #[command(flatten)]
    pub serve: ServeArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WorkerArgs {
    /// A host directory that tasks of every tenant may be given (repeatable)
    #[arg(long = "allow-dir", value_name = "DIR")]
    pub allow_dirs: Vec<PathBuf>,
    /// crun, runc or an absolute path, or docker, or remote; firecracker or cloud-hypervisor make machines in
    /// QEMU's place; default: the best that is installed
    #[arg(long)]
    pub runtime: Option<String>,
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Where a name that a phase lists really is; it is listed by its phase alone (repeatable)
    #[arg(long = "egress-host", value_name = "NAME=IP:PORT", value_parser = egress_host)]
    pub egress_hosts: Vec<(String, SocketAddr)>,
    /// Memory that all sandboxes of this worker may take together, in MiB; tasks wait for it in order
    /// [default: nine tenths of the host's]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory_mb: Option<u64>,
    /// Let webhooks reach addresses of this host and its private networks
    #[arg(long)]
    pub webhook_private: bool,
}

/// The names of a closed list of the contract: what is offered, shown in the help and completed.
pub(crate) fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> PossibleValuesParser {
    PossibleValuesParser::new(all.iter().copied().map(name))
}

fn egress_host(text: &str) -> Result<(String, SocketAddr), String> {
    let (name, address) = text.split_once('=').ok_or("expected NAME=IP:PORT")?;
    let address = address.parse().map_err(|error| format!("{address}: {error}"))?;
    Ok((name.to_owned(), address))
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Only runs with this status
    #[arg(long)]
    pub status: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 20)]
    pub limit: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Run id or workflow id
    pub id: String,
    /// List the recorded steps instead, as `fork --step` counts them (needs the role of an auditor)
    #[arg(long)]
    pub steps: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Run id, workflow id or task key
    pub id: String,
    /// Go on until the run ends
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    /// Run id or workflow id
    pub id: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ActArgs {
    /// Run id, workflow id or task key
    pub id: String,
    /// Why, for the audit
    #[arg(long, default_value = "asked for on the command line")]
    pub reason: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// Run id or workflow id
    pub id: String,
    /// The first step that executes again, from 0, as `show --steps` counts them
    #[arg(long)]
    pub step: i32,
    /// Why, for the audit
    #[arg(long, default_value = "asked for on the command line")]
    pub reason: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    #[command(subcommand)]
    pub command: GateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Open gates, the most urgent first
    Ls {
        #[arg(long)]
        json: bool,
    },
    /// One run's gates, and the plan that they are about
    Show {
        run: String,
        #[arg(long)]
        json: bool,
    },
    /// Make a link that answers a gate once, for a person without a key
    Link {
        run: String,
        gate: String,
        /// Who answers with it, for the record
        #[arg(long = "for", value_name = "NAME")]
        name: String,
        /// How long it works, such as 1h: at most 24h, and never beyond the gate's deadline
        #[arg(long, default_value = "1h", value_name = "DURATION")]
        expires: String,
        /// The only choice that it may make
        #[arg(long, value_parser = one_of(Choice::ALL, Choice::as_str))]
        choice: Option<String>,
        /// The server's address as that person reaches it; default: what the server says (`up --public-url`)
        #[arg(long, value_name = "URL")]
        base: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Answer a gate
    Reply {
        run: String,
        gate: String,
        #[arg(long, value_parser = one_of(Choice::ALL, Choice::as_str))]
        choice: String,
        #[arg(long)]
        rationale: Option<String>,
        /// With yes to a task that asks for a name: that name
        #[arg(long, value_name = "NAME", requires = "until")]
        grant: Option<String>,
        /// How long it may use it, such as 10m
        #[arg(long, value_name = "DURATION", requires = "grant")]
        until: Option<String>,
        /// Change an input that the gate lets approvers change: NAME=VALUE, JSON or text (repeatable)
        #[arg(long = "edit", value_name = "NAME=VALUE")]
        edits: Vec<String>,
        /// Equal replies with equal keys are one; default: a fresh key
        #[arg(long)]
        dedupe_key: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Let another key answer in this one's place
    Delegate {
        /// The other key's id
        to: String,
        /// For how many seconds: up to 30 days
        #[arg(long)]
        ttl_s: u32,
        /// Only at gates of this group
        #[arg(long)]
        group: Option<String>,
        #[arg(long)]
        reason: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// End a delegation early
    Undelegate { delegation: u64 },
    /// Who answers in whose place
    Delegations {
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// Only this run
    #[arg(long)]
    pub run: Option<String>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Take in an OCI layout (a directory or tar) or the tar of `docker save`
    Import {
        file: PathBuf,
        /// Default: the name that is written in the file
        #[arg(long)]
        name: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Take in an image from a registry: HOST/PATH:TAG or HOST/PATH@sha256:HEX
    Pull {
        reference: String,
        /// Default: the reference
        #[arg(long)]
        name: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Build an image from a list of steps; `copy` reads the file's own directory
    Build {
        /// YAML: from, steps (run, copy, env, workdir, user, cmd), limits, timeout_ms
        file: PathBuf,
        #[arg(long)]
        name: String,
        /// crun, runc or an absolute path, or docker; default: the best that is installed
        #[arg(long)]
        runtime: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// List images with their digests
    Ls {
        #[arg(long)]
        json: bool,
    },
    /// Remove an image's name, and what only it needed
    Rm { name: String },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 fit; 1 a probe saw a surprise, or weak with --strict; 2 unfit."
)]
pub(crate) struct DoctorArgs {
    /// Try to escape from real sandboxes of every installed runtime, and say how that went
    #[arg(long)]
    pub probe: bool,
    /// Print a checklist for a security review (markdown, or with --json the same as JSON); probes
    #[arg(long)]
    pub attest: bool,
    /// Exit 1 where anything is weak
    #[arg(long)]
    pub strict: bool,
    #[arg(long)]
    pub json: bool,
}

impl DoctorArgs {
    pub(crate) fn probes(&self) -> bool {
        self.probe || self.attest
    }
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key; its secret is shown once
    Create {
        #[arg(long)]
        tenant: Option<String>,
        /// submitter, approver, operator, auditor or admin (repeatable)
        #[arg(long = "role", required = true)]
        roles: Vec<String>,
        /// A group that gates may ask for (repeatable)
        #[arg(long = "group")]
        groups: Vec<String>,
        #[arg(long)]
        label: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// List keys, without their secrets
    Ls {
        /// Another tenant's, for the host's admin
        #[arg(long)]
        tenant: Option<String>,
        /// Every tenant's, for the host's admin
        #[arg(long, conflicts_with = "tenant")]
        all: bool,
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key
    Revoke {
        key_id: String,
        /// Whose it is, where that is another tenant, for the host's admin
        #[arg(long)]
        tenant: Option<String>,
    },
    /// The signing key of webhooks and reply links: whether this host has it
    Signing {
        /// Replace a lost or leaked one: webhooks get new secrets (add them again), open links are void
        #[arg(long)]
        replace: bool,
    },
}
