//! `docs/reference/commands.md`, made from the grammar that the command line is parsed by.

#[path = "../../../contracts/tests/golden/mod.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test; the pages of other crates use the rest"
)]
mod golden;

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};

use super::args::Cli;
use super::exit::Exit;
use golden::page::{begun, code, link, plain, sentence, table, wrapped};

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --bin cofferdam commands_md";
/// Options of clap itself, which every command has.
const OWN: [&str; 2] = ["help", "version"];

/// Each code with its meaning, and what ends so.
const EXITS: [(Exit, &str, &str); 9] = [
    (Exit::Ok, "success", "the run succeeded; every proof is empty"),
    (
        Exit::No,
        "negative answer",
        "the run failed or was canceled; `prove` is NO_GO; unknown id; the server answered 409; \
         `dispatch wait` on a dispatch that did not complete",
    ),
    (
        Exit::Error,
        "an error",
        "no OCI runtime; database unreachable or another one; a recipe that does not parse",
    ),
    (
        Exit::Usage,
        "wrong usage",
        "unknown flag; a copied state directory; `-i` without `=`; `--server` without a key; a sandbox spec that does not fit \
         its schema",
    ),
    (
        Exit::Fenced,
        "this worker was declared dead and stopped (`EX_TEMPFAIL`)",
        "start it again, as a supervisor should",
    ),
    (Exit::HungUp, "the terminal went (HUP)", "as Ctrl-C"),
    (
        Exit::Interrupted,
        "Ctrl-C",
        "at a gate's question, where the run continues; while a run executes, which is canceled",
    ),
    (
        Exit::Unread,
        "the output pipe was closed",
        "`cofferdam ps | head -1`; `exec` then cancels its command",
    ),
    (
        Exit::Terminated,
        "TERM, as a job runner or `timeout` sends it",
        "as Ctrl-C: the run is canceled, and its sandbox ends",
    ),
];

/// What a person may call, without the help that each command has.
fn commands(of: &Command) -> impl Iterator<Item = &Command> {
    of.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
}

/// The arguments that a page lists with a command: those of every command are listed once.
fn arguments(of: &Command, is_root: bool) -> impl Iterator<Item = &Arg> {
    of.get_arguments().filter(move |one| {
        !one.is_hide_set()
            && !OWN.contains(&one.get_id().as_str())
            && (is_root || !one.is_global_set())
    })
}

/// An argument as it is typed: `-i, --input K=V`, or `RECIPE`.
fn typed(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    let values: Vec<String> = match argument.get_action().takes_values() {
        true => argument
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(|name| name.to_string())
            .collect(),
        false => Vec::new(),
    };
    let words = [flags.join(", "), values.join(" ")];
    words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(" ")
}

/// What an argument means, with its default, its values and the variable that stands for it.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut said = vec![sentence(&plain(&help.map(ToString::to_string).unwrap_or_default()))];
    if argument.get_action().takes_values() {
        let values = argument.get_possible_values();
        let names: Vec<String> = values
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| code(value.get_name()))
            .collect();
        if !names.is_empty() {
            said.push(format!("One of {}.", names.join(", ")));
        }
        let defaults: Vec<String> =
            argument.get_default_values().iter().map(|one| code(&one.to_string_lossy())).collect();
        if !defaults.is_empty() && !argument.is_hide_default_value_set() {
            said.push(format!("Default: {}.", defaults.join(", ")));
        }
    }
    if let Some(variable) = argument.get_env() {
        said.push(format!("Variable: {}.", code(&variable.to_string_lossy())));
    }
    said.retain(|part| !part.is_empty());
    said.join(" ")
}

fn listed(page: &mut String, of: &Command, is_root: bool) {
    let items: Vec<String> = arguments(of, is_root)
        .map(|one| wrapped(&format!("{}: {}", code(&typed(one)), meaning(one)), "* ", "  "))
        .collect();
    if !items.is_empty() {
        page.push_str(&items.concat());
        page.push('\n');
    }
}

/// The words of a command: `gate reply`.
fn words(above: &str, of: &Command) -> String {
    format!("{above} {}", of.get_name()).trim().to_owned()
}

fn about(of: &Command) -> String {
    let said = of.get_long_about().or_else(|| of.get_about());
    plain(&said.map(ToString::to_string).unwrap_or_default())
}

/// One command with its subcommands.
fn described(page: &mut String, above: &str, of: &Command) {
    let name = words(above, of);
    let level = if above.is_empty() { "##" } else { "###" };
    write!(page, "{level} `cofferdam {name}`\n\n").unwrap();
    for paragraph in about(of).split("\n\n") {
        page.push_str(&wrapped(&sentence(paragraph), "", ""));
        page.push('\n');
    }
    let usage = of.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    write!(page, "```text\n{usage}\n```\n\n").unwrap();
    listed(page, of, false);
    if let Some(after) = of.get_after_help() {
        page.push_str(&wrapped(&sentence(&plain(&after.to_string())), "", ""));
        page.push('\n');
    }
    for one in commands(of) {
        described(page, &name, one);
    }
}

fn page() -> String {
    let mut cli = Cli::command();
    cli.build();
    let mut page = begun("Commands", WRITES);
    page.push_str(&wrapped(
        "Every command of `cofferdam` with its options, their defaults and the variables that stand for them. \
         `cofferdam COMMAND --help` says the same. Data goes to standard output, everything else to standard error.",
        "",
        "",
    ));
    page.push('\n');
    let rows: Vec<[String; 2]> = commands(&cli)
        .map(|one| {
            let name = one.get_name();
            [link(&code(name), &format!("cofferdam {name}")), about(one)]
        })
        .collect();
    page.push_str(&table(["Command", "What it does"], &rows));
    page.push_str("\n## Options of every command\n\n");
    listed(&mut page, &cli, true);
    page.push_str("## Exit codes\n\n");
    let rows = EXITS.map(|(exit, meaning, examples)| {
        [exit.code().to_string(), meaning.to_owned(), examples.to_owned()]
    });
    page.push_str(&table(["Code", "Meaning", "Examples"], &rows));
    page.push('\n');
    page.push_str(&wrapped(
        "[More about exit codes](../errors/exit-codes.md): a wrong database or server, `exec`, `doctor`.",
        "",
        "",
    ));
    page.push('\n');
    for one in commands(&cli) {
        described(&mut page, "", one);
    }
    page.trim_end().to_owned() + "\n"
}

#[test]
fn commands_md_is_what_the_command_line_takes() {
    let path = "../../docs/reference/commands.md";
    golden::hold_text(env!("CARGO_MANIFEST_DIR"), path, &page(), WRITES);
}

#[test]
fn a_command_without_dashes_before_it_gets_a_hint() {
    let hint = |line: &str| {
        let error = Cli::command().try_get_matches_from(line.split(' ')).unwrap_err();
        let words: Vec<String> = line.split(' ').skip(1).map(str::to_owned).collect();
        super::without_dashes(error.kind(), &words).is_some()
    };
    for bare in ["cofferdam exec echo hi", "cofferdam exec"] {
        assert!(hint(bare), "{bare}");
    }
    for other in ["cofferdam exec --nosuch -- echo", "cofferdam run", "cofferdam exec --help"] {
        assert!(!hint(other), "{other}");
    }
}
