//! One module a command family. Only this crate prints, reads the process's environment and exits.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! args
//! exec
//! hook
//! dispatch exec_recipe hook_git input_relay logs read relay schedule
//! apply gitlab_executor run sandbox sandbox_snapshot tail
//! check
//! artifacts cache changes config df erase follow gate gc key model ops prove ps question recipe sandbox_cp sandbox_shell secret
//!    sessions usage webhook
//! gate_reply
//! connection dispatch_import doctor envd failure live_output plan_show recipe_lookup run_lookup sandbox_network serve test_reports
//!    tree_transfer
//! client node progress signing_key template
//! agent database image
//! local_tree state user vault
//! file_transfer locations dispatch_show secret_input directory_identity prompt stdin stop
//! submission table
//! artifact_notes output strict
//! dispatch_args end_signal env_arg exec_args exec_report local grant_arg stdout worker
//! output_directory task_choice
//! bounds cells destination exit flag host_program line_buffer outfile project raw_terminal remote task_time
//! ```

mod agent;
mod apply;
mod args;
mod artifact_notes;
mod artifacts;
mod bounds;
mod cache;
mod cells;
mod changes;
mod check;
mod client;
mod config;
mod connection;
mod database;
mod destination;
mod df;
mod directory_identity;
mod dispatch;
mod dispatch_args;
mod dispatch_import;
mod dispatch_show;
mod doctor;
mod end_signal;
mod env_arg;
mod envd;
mod erase;
mod exec;
mod exec_args;
mod exec_recipe;
mod exec_report;
mod exit;
mod failure;
mod file_transfer;
mod flag;
mod follow;
mod gate;
mod gate_reply;
mod gc;
mod gitlab_executor;
mod grant_arg;
mod hook;
mod hook_git;
mod host_program;
mod image;
mod input_relay;
mod key;
mod line_buffer;
mod live_output;
mod local;
mod local_tree;
mod locations;
mod logs;
mod model;
mod node;
mod ops;
mod outfile;
mod output;
mod output_directory;
mod plan_show;
mod progress;
mod project;
mod prompt;
mod prove;
mod ps;
mod question;
mod raw_terminal;
mod read;
mod recipe;
mod recipe_lookup;
mod relay;
mod remote;
mod run;
mod run_lookup;
mod sandbox;
mod sandbox_cp;
mod sandbox_network;
mod sandbox_shell;
mod sandbox_snapshot;
mod schedule;
mod secret;
mod secret_input;
mod serve;
mod sessions;
mod signing_key;
mod state;
mod stdin;
mod stdout;
mod stop;
mod strict;
mod submission;
mod table;
mod tail;
mod task_choice;
mod task_time;
mod template;
mod test_reports;
#[cfg(test)]
mod tests;
mod tree_transfer;
mod usage;
mod user;
mod vault;
mod webhook;
mod worker;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use exit::Exit;

/// Parses, runs, and turns the outcome into an exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if let (Err(unwritten), false) = (error.print(), error.use_stderr()) {
                stdout::lose(&unwritten);
            }
            let words: Vec<String> = std::env::args_os()
                .skip(1)
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            if let Some(hint) = without_dashes(error.kind(), &words) {
                output::note(hint);
            }
            return ended(if error.use_stderr() { Exit::Usage } else { Exit::Ok }).into();
        }
    };
    logging(cli.verbose);
    match start(cli) {
        Ok(exit) => ended(exit).into(),
        Err(error) => {
            output::failure(&error);
            exit::of(&error).into()
        }
    }
}

/// What to say of a command line that gives a command to execute without `--` before it. Pure.
fn without_dashes(kind: ErrorKind, words: &[String]) -> Option<&'static str> {
    let is_kind = matches!(kind, ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    let is = |wanted: &str| words.iter().any(|word| word == wanted);
    (is_kind && is("exec") && !is("--"))
        .then_some("write `--` before the command, such as: cofferdam exec -- echo hi")
}

/// The exit of a command that did what it was asked for, if its output arrived too.
fn ended(exit: Exit) -> Exit {
    match stdout::verdict() {
        Ok(verdict) => verdict.unwrap_or(exit),
        Err(error) => {
            output::failure(&error);
            Exit::Error
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<Exit> {
    if let Command::Completions { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "cofferdam", &mut script);
        stdout::write(&script);
        return Ok(Exit::Ok);
    }
    if let Command::Check(args) = &cli.command {
        return Ok(check::check(args));
    }
    if let Command::SealLayer = cli.command {
        cofferdam_live::seal_layer()?;
        return Ok(Exit::Ok);
    }
    // Before the runtime's threads exist: every mount of ours then vanishes with this process.
    if cli.command.executes() && rustix::process::geteuid().is_root() {
        cofferdam_sandbox::enter_private_mounts()?;
    }
    if matches!(cli.command, Command::Up(_) | Command::Api(_) | Command::Worker(_)) {
        cofferdam_sandbox::go_first();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(dispatch(cli));
    // What still runs is background work that the process's end ends anyway.
    runtime.shutdown_background();
    outcome
}

async fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    let at = cli.at;
    match cli.command {
        Command::Run(args) => run::run(&at, &args).await,
        Command::Exec(args) => exec::exec(&at, &args).await,
        Command::Up(args) => serve::serve(&at, &args, serve::Part::Both).await,
        Command::Api(args) => serve::serve(&at, &args, serve::Part::Api).await,
        Command::Worker(args) => serve::serve(&at, &args, serve::Part::Worker).await,
        Command::Ps(args) => ps::ps(&at, &args).await,
        Command::Show(args) => read::show(&at, &args).await,
        Command::Logs(args) => logs::logs(&at, &args).await,
        Command::Artifacts(args) => artifacts::artifacts(&at, &args).await,
        Command::Cancel(args) => ops::cancel(&at, &args).await,
        Command::Resume(args) => ops::resume(&at, &args).await,
        Command::Retry(args) => ops::retry(&at, &args).await,
        Command::Fork(args) => ops::fork(&at, &args).await,
        Command::Gate(args) => gate::gate(&at, &args).await,
        Command::Session(args) => sessions::session(&at, &args).await,
        Command::Recipe(args) => recipe::recipe(&at, &args).await,
        Command::Apply(args) => apply::apply(&at, &args).await,
        Command::Patch(args) => apply::patch(&at, &args).await,
        Command::Changes(args) => changes::changes(&at, &args).await,
        Command::Revert(args) => changes::revert(&at, &args).await,
        Command::Prove(args) => prove::prove(&at, &args).await,
        Command::Doctor(args) => doctor::doctor(&at, &args).await,
        Command::Config(args) => config::config(&at, &args).await,
        Command::Dispatch(args) => dispatch::dispatch(&at, &args).await,
        Command::Agent(args) => agent::agent(&at, &args),
        Command::Key(args) => key::key(&at, &args).await,
        Command::Sandbox(args) => sandbox::sandbox(&at, &args).await,
        Command::Secret(args) => secret::secret(&at, &args).await,
        Command::Schedule(args) => schedule::schedule(&at, &args).await,
        Command::Hook(args) => hook::hook(&at, &args).await,
        Command::GitlabExecutor(args) => gitlab_executor::gitlab_executor(&at, &args).await,
        Command::Webhook(args) => webhook::webhook(&at, &args).await,
        Command::Model(args) => model::model(&at, &args).await,
        Command::Usage(args) => usage::usage(&at, &args).await,
        Command::Image(args) => image::image(&at, &args).await,
        Command::Template(args) => template::template(&at, &args).await,
        Command::Cache(args) => cache::cache(&at, &args).await,
        Command::Gc(args) => gc::gc(&at, &args).await,
        Command::Df(args) => df::df(&at, &args).await,
        Command::Erase(args) => erase::erase(&at, &args).await,
        Command::Db { superuser } => node::print_url(&at, superuser).await,
        Command::Adopt => node::adopt(&at).await,
        Command::Openapi => output::document(&cofferdam_server::openapi::document()),
        Command::Schema { name } => output::schema(name.as_deref()),
        Command::SealLayer | Command::Check(_) | Command::Completions { .. } => Ok(Exit::Ok),
    }
}

/// Logs go to stderr. The engine warns for every workflow that the dispatcher starts ("already
/// exists on a different queue"): that is how a claimed row is started, so it is silenced by default.
fn logging(verbose: u8) {
    let default = match verbose {
        0 => "warn,dbos=error,sqlx=error",
        1 => "info,dbos=warn,sqlx=warn",
        _ => "debug,hyper=info,h2=info",
    };
    let directives =
        cofferdam_ambient::env::var("COFFERDAM_LOG").unwrap_or_else(|| default.to_owned());
    let filter = tracing_subscriber::EnvFilter::try_new(&directives)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(output::is_colored(&std::io::stderr()))
        .without_time()
        .init();
}
