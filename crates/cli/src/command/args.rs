//! The command line's grammar.

use clap::{Parser, Subcommand};

use super::agent::AgentArgs;
use super::apply::{ApplyArgs, PatchArgs};
use super::artifacts::ArtifactsArgs;
use super::cache::CacheArgs;
use super::changes::{ChangesArgs, RevertArgs};
use super::check::CheckArgs;
use super::config::ConfigArgs;
use super::df::DfArgs;
use super::dispatch_args::{DispatchArgs, DispatchCommand};
use super::doctor::DoctorArgs;
use super::erase::EraseArgs;
use super::exec_args::ExecArgs;
use super::gate::GateArgs;
use super::gc::GcArgs;
use super::gitlab_executor::GitlabArgs;
use super::hook::{HookArgs, HookCommand};
use super::image::{ImageArgs, ImageCommand};
use super::key::KeyArgs;
use super::locations::Locations;
use super::logs::LogsArgs;
use super::model::ModelArgs;
use super::ops::{ActArgs, ForkArgs, IdArgs};
use super::prove::ProveArgs;
use super::ps::PsArgs;
use super::read::ShowArgs;
use super::recipe::RecipeArgs;
use super::run::RunArgs;
use super::sandbox::SandboxArgs;
use super::schedule::ScheduleArgs;
use super::secret::SecretArgs;
use super::serve::{ApiArgs, ServeArgs};
use super::sessions::SessionArgs;
use super::template::{TemplateArgs, TemplateCommand};
use super::usage::UsageArgs;
use super::webhook::WebhookArgs;
use super::worker::WorkerArgs;

/// Runs commands, test suites and agents in sandboxes that are wiped afterwards
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub at: Locations,
    /// Log more to stderr: -v info, -vv debug; COFFERDAM_LOG overrides
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success; 1 negative answer (a run failed, NO_GO, not found); \
2 an error; 3 wrong usage; 75 this worker was declared dead: start it again; 130 Ctrl-C; \
141 the output pipe was closed.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Submit a recipe and follow its run; exit 0 only on success
    Run(RunArgs),
    /// Run one command in one sandbox
    Exec(ExecArgs),
    /// Serve the API and execute runs, in one process
    Up(ServeArgs),
    /// Serve the API only
    #[command(alias = "shim")]
    Api(ApiArgs),
    /// Execute runs only
    Worker(WorkerArgs),
    /// List runs, newest first
    Ps(PsArgs),
    /// Show a run: steps, artifacts, sandboxes and their wipes
    Show(ShowArgs),
    /// Print a run's output
    Logs(LogsArgs),
    /// List, fetch and print the files that a run's tasks left
    Artifacts(ArtifactsArgs),
    /// Cancel a run or task, with its sandboxes
    Cancel(ActArgs),
    /// Resume a canceled run
    Resume(ActArgs),
    /// Continue a failed run from its first step without success
    Retry(IdArgs),
    /// Repeat a run from a step, as a new run
    Fork(ForkArgs),
    /// List, show and answer gates
    Gate(GateArgs),
    /// List sandbox sessions; settle those whose wipe is not verified
    Session(SessionArgs),
    /// List, promote, export and import stored recipes
    Recipe(RecipeArgs),
    /// Find what is wrong with recipe files, without a server: exit 0 nothing, 1 errors, 2 a file cannot be read
    Check(CheckArgs),
    /// Print the patch of a run, as git format-patch writes one
    Patch(PatchArgs),
    /// Write the patch of a run to a new branch, after approval
    Apply(ApplyArgs),
    /// List what an agent's build changed, file by file
    Changes(ChangesArgs),
    /// Write the way back of some files of an agent's build as a patch
    Revert(RevertArgs),
    /// Run every proof query: exit 0 GO, 1 NO_GO
    Prove(ProveArgs),
    /// Report isolation classes and weak points of this host
    Doctor(DoctorArgs),
    /// Read and write configuration: profiles, ceilings, allowlists
    Config(ConfigArgs),
    /// Run coding agents, each in its own sandbox
    Dispatch(DispatchArgs),
    /// Install the programs of coding agents on this host, and list them
    Agent(AgentArgs),
    /// Create, list and revoke API keys
    Key(KeyArgs),
    /// Create long-lived sandboxes, run commands in them, extend and kill them
    Sandbox(SandboxArgs),
    /// Set, list, rotate and remove secrets that the egress proxy adds to requests
    Secret(SecretArgs),
    /// Run recipes by the clock: add, list, pause, resume and remove schedules
    Schedule(ScheduleArgs),
    /// Run recipes by signed deliveries of GitHub, GitLab and others, and by pushes of git
    Hook(HookArgs),
    /// Stages of GitLab Runner's custom executor: each job is a sandbox that is wiped
    GitlabExecutor(GitlabArgs),
    /// Add, list and replay webhooks for events of gates and runs
    Webhook(WebhookArgs),
    /// Add, list and remove providers of models; show what a run's calls took
    Model(ModelArgs),
    /// Show what tenants used by day: sandboxes, cores, memory, bytes, calls of models and their price
    Usage(UsageArgs),
    /// Import, pull, build and remove images for `image: image:NAME`
    Image(ImageArgs),
    /// Build, add, list and remove templates of long-lived sandboxes
    Template(TemplateArgs),
    /// List, evict and verify cached dependencies
    Cache(CacheArgs),
    /// Erase content of ended runs that retention leaves no room for, and what nothing refers to
    Gc(GcArgs),
    /// Show who uses what: rows, artifacts, cache, images, pauses, database
    Df(DfArgs),
    /// Erase a prompt, an output, both of a run, or a secret, everywhere; the record stays
    Erase(EraseArgs),
    /// Print the database's URL, for psql and for auditors
    Db {
        /// URL of the private database's superuser, for manual maintenance
        #[arg(long)]
        superuser: bool,
    },
    /// Accept a restored state directory, or another database, in place of a lost original
    Adopt,
    /// Print the OpenAPI document
    Openapi,
    /// Print a JSON Schema, or list their names
    Schema { name: Option<String> },
    /// Seal the layer of a paused sandbox; started by a worker
    #[command(name = cofferdam_live::SEAL_COMMAND, hide = true)]
    SealLayer,
    /// Print shell completions
    Completions { shell: clap_complete::Shell },
}

impl Command {
    /// Whether sandboxes may be made by this very process.
    pub(crate) fn executes(&self) -> bool {
        match self {
            Self::Run(_)
            | Self::Apply(_)
            | Self::Exec(_)
            | Self::Up(_)
            | Self::Worker(_)
            | Self::Doctor(_) => true,
            Self::Dispatch(args) => {
                matches!(args.command, DispatchCommand::Wait(_))
            }
            Self::Hook(args) => matches!(args.command, HookCommand::Git(_)),
            Self::Image(args) => matches!(args.command, ImageCommand::Build { .. }),
            Self::Template(args) => matches!(args.command, TemplateCommand::Build { .. }),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command};

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("cofferdam").chain(line.split_whitespace()))
    }

    #[test]
    fn the_grammar_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_duration_of_the_command_line_is_never_a_profile() {
        for flag in [
            "gate link r g --for x --expires=",
            "gate reply r g --choice yes --grant a.example --until=",
            "gate delegate k --ttl=",
            "gate delegate k --ttl-s=",
            "run r.yaml --timeout=",
            "exec --timeout=",
            "dispatch prune --older-than=",
            "dispatch wait d --timeout=",
            "dispatch spawn --prompt-file f --timeout=",
        ] {
            let end = if flag.starts_with("exec") { " -- true" } else { "" };
            for good in ["90s", "5m", "1h", "2000ms", "1d"] {
                let line = format!("{flag}{good}{end}");
                assert!(parsed(&line).is_ok(), "{line}");
            }
            // These also take what clients of other orchestrators write, "1.5m" among it.
            let is_lenient =
                ["dispatch", "exec", "gate delegate"].iter().any(|c| flag.starts_with(c));
            let fraction = if is_lenient { "1.5y" } else { "1.5m" };
            for bad in ["python", "5minutes", "-1s", fraction, "h"] {
                let line = format!("{flag}{bad}{end}");
                let refused = parsed(&line).map(drop).unwrap_err().to_string();
                assert!(refused.contains("is not a duration"), "{line}: {refused}");
                assert!(refused.contains("90s or 5m"), "{line}: says what to write: {refused}");
            }
        }
    }

    #[test]
    fn a_bare_number_is_seconds_only_where_the_help_says_so() {
        for line in [
            "exec --timeout=5 -- true",
            "dispatch prune --older-than=0",
            "dispatch wait d --timeout=5",
        ] {
            assert!(parsed(line).is_ok(), "{line}");
        }
        for line in [
            "run r.yaml --timeout=5",
            "gate link r g --for x --expires=60",
            "dispatch spawn --prompt-file f --timeout=0",
            "dispatch spawn --prompt-file f --timeout=25h",
            "gate link r g --for x --expires=25h",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_granted_name_is_an_exact_one() {
        let line = |name: &str| format!("gate reply r g --choice yes --until 5m --grant {name}");
        assert!(parsed(&line("a.example")).is_ok());
        for bad in ["*.example.org", "127.1", "@pip", "localhost"] {
            let refused = parsed(&line(bad)).map(drop).unwrap_err().to_string();
            assert!(refused.contains("is not an exact domain name"), "{refused}");
        }
    }

    #[test]
    fn the_api_answers_to_its_old_name_too() {
        for name in ["api", "shim"] {
            assert!(matches!(parsed(name).unwrap().command, Command::Api(_)), "{name}");
        }
    }
}
