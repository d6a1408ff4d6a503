//! Values in shell text. A command that is a text is read by a shell, so a value that is put into it may
//! become another command. What may change or be supplied by somebody else stands there as one quoted
//! word (`${form.w | sh}`), or is handed over in `env:`.
//!
//! ```text
//! run: grep ${form.w | sh} notes       one word, whatever it holds
//! run: grep "$W" notes                 with env: {W: "${form.w}"}
//! run: ${form.cmd}                     the whole text: a command by intention, seen whole by approvers
//! run: make ${form.args | raw}         shell text by intention; never for what an approver may edit
//! run: grep ${form.w} notes            refused, unless its schema lets nothing through that a shell reads
//! ```
//! In an argv, a value is an argument of its own or is refused, whatever the program is (`argv`). What is read
//! a second time by a program that is known for it is refused in both (`reader`).
//!
//! **A quoted word is accepted only where the shell reads it as one**: not inside quotes, comments,
//! backquotes, here-documents or arithmetic, where its own quotes would mean something else.

mod argv;
mod quote;
mod reader;
mod scan;
#[cfg(test)]
mod tests;
mod words;

pub use quote::quoted;
use scan::Scan;
use serde_json::Value;
use words::{MAX_REFS, below, is_word};

use crate::recipe::{Cmd, Recipe, TaskSpec};
use crate::template::{Filter, Piece, call, lone, pieces};

/// Programs whose `-c` is followed by shell text.
const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"];

/// Which values have to keep to the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleScope {
    /// At import: every value that a shell could read as more than a word.
    All,
    /// At a start: those that an approver may edit. A recipe that was stored before the rule goes on as it is.
    Editable,
}

/// Whether every command of the recipe keeps to the rule; the error names field and remedy.
pub fn check(recipe: &Recipe, held: RuleScope) -> Result<(), String> {
    faults(recipe, held).next().map_or(Ok(()), Err)
}

/// The first fault of each task.
pub(crate) fn faults(recipe: &Recipe, held: RuleScope) -> impl Iterator<Item = String> {
    let tasks = recipe.plan.tasks.iter().enumerate();
    tasks.filter_map(move |(i, task)| {
        let why = Rule { recipe, task, held }.task().err()?;
        Some(format!("plan.tasks[{i}].{why}"))
    })
}

/// Whether an argument, as it is rendered, may be read as an option that an approver wrote.
pub(crate) fn is_no_option(
    recipe: &Recipe,
    task: &TaskSpec,
    argv: &[String],
    at: usize,
    rendered: &str,
) -> Result<(), String> {
    Rule { recipe, task, held: RuleScope::Editable }.is_option(argv, at, rendered)
}

struct Rule<'a> {
    recipe: &'a Recipe,
    task: &'a TaskSpec,
    held: RuleScope,
}

/// Where a value comes from.
enum Source<'a> {
    /// The recipe's author, or a number.
    Author,
    /// The form: the field at the top, and the schema of what is named.
    Form(Option<&'a str>, Option<&'a Value>),
    /// Names of files.
    Files,
    /// An output of another task: nobody has seen it, neither at import nor at a gate.
    Output,
}

impl Rule<'_> {
    fn task(&self) -> Result<(), String> {
        let commands = [
            ("build.run", self.task.build.as_ref().map(|b| &b.run)),
            ("exec.run", self.task.exec.as_ref().map(|e| &e.run)),
        ];
        for (field, command) in commands {
            let Some(command) = command else { continue };
            self.command(command).map_err(|why| format!("{field}: {why}"))?;
        }
        self.variables()?;
        self.places().map_err(|why| format!("files.to: {why}"))
    }

    fn command(&self, command: &Cmd) -> Result<(), String> {
        match command {
            Cmd::Shell(text) => self.holds(text),
            Cmd::Argv(argv) => self.argv(argv),
        }
    }

    /// No variable that programs take code from holds what an approver may edit.
    fn variables(&self) -> Result<(), String> {
        let exec = self.task.exec.iter().map(|exec| ("exec.env", &exec.env));
        let build = self.task.build.iter().map(|build| ("build.env", &build.env));
        let all =
            exec.chain(build).flat_map(|(field, env)| env.iter().map(move |one| (field, one)));
        for (field, (name, text)) in all.filter(|(_, (name, _))| reader::is_code_variable(name)) {
            if let Some(value) = self.editable_in(text) {
                return Err(format!(
                    "{field}: `${{{value}}}`, which an approver may edit or another task puts out, is in {name}, which programs take code \
                     from: use a variable of your own, or narrow its schema by `enum`"
                ));
            }
        }
        Ok(())
    }

    /// No file goes where an approver says: it could be any program of the sandbox.
    fn places(&self) -> Result<(), String> {
        match self.task.files.iter().find_map(|file| self.editable_in(&file.to)) {
            None => Ok(()),
            Some(value) => Err(format!(
                "`${{{value}}}`, which an approver may edit, says where a file goes, which may be in a \
                 program's place: write the place, or narrow its schema by `enum` or a `pattern`"
            )),
        }
    }

    /// A value in a text that an approver may edit to anything, or that another task puts out.
    fn editable_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        pieces(text).find_map(|piece| match piece {
            Ok(Piece::Expr(expr)) => Some(expr.value).filter(|value| {
                self.is_output(value) || (self.is_editable(value) && !self.is_safe(value))
            }),
            _ => None,
        })
    }

    fn holds(&self, text: &str) -> Result<(), String> {
        // The whole text: who supplies it supplies the command, and who approves it sees all of it.
        if let Some(Ok(expr)) = lone(text.trim())
            && expr.filter != Some(Filter::Raw)
            && !self.is_output(expr.value)
        {
            return Ok(());
        }
        let mut scan = Scan::default();
        for piece in pieces(text) {
            // What does not parse is refused by its own error when it is rendered.
            let Ok(piece) = piece else { return Ok(()) };
            match piece {
                Piece::Literal(literal) => scan.literal(literal),
                Piece::Brace => scan.parameter(),
                Piece::Expr(expr) => {
                    let editable = self.is_editable(expr.value);
                    let output = self.is_output(expr.value);
                    let held = editable || output || self.held == RuleScope::All;
                    match expr.filter {
                        Some(Filter::Raw) if output => return Err(output_is_raw(expr.value)),
                        Some(Filter::Raw) if editable => {
                            return Err(raw_is_editable(expr.value));
                        }
                        Some(Filter::Sh) if held && !self.is_safe(expr.value) => {
                            scan.is_a_word().map_err(|place| misplaced(expr.value, place))?;
                            if let Some(place) = scan.reads_again() {
                                return Err(argv::again(expr.value, &place));
                            }
                        }
                        None if held && !self.is_safe(expr.value) => {
                            return Err(unquoted(expr.value, editable));
                        }
                        _ => {}
                    }
                    scan.value();
                }
            }
        }
        Ok(())
    }

    fn is_editable(&self, value: &str) -> bool {
        let Some(gate) = &self.recipe.plan.gate else { return false };
        match self.source(value) {
            Source::Form(Some(field), _) => gate.edit.iter().any(|edit| edit == field),
            Source::Form(None, _) => !gate.edit.is_empty(),
            Source::Author | Source::Files | Source::Output => false,
        }
    }

    /// Whether it is an output of another task, which nobody sees before it is used.
    fn is_output(&self, value: &str) -> bool {
        matches!(self.source(value), Source::Output)
    }

    /// Whether nothing that it may be is more than a word to a shell.
    fn is_safe(&self, value: &str) -> bool {
        match self.source(value) {
            Source::Author => true,
            Source::Form(_, schema) => {
                schema.is_some_and(|s| is_word(s, self.recipe.form.as_ref(), MAX_REFS))
            }
            Source::Files | Source::Output => false,
        }
    }

    fn source(&self, value: &str) -> Source<'_> {
        if call(value, "range").is_some() {
            return Source::Author;
        }
        if call(value, "glob").is_some() {
            return Source::Files;
        }
        let mut names = value.split('.').map(str::trim);
        match names.next() {
            Some("form") => self.form(names),
            Some("item") => self.item(names),
            Some("tasks") => Source::Output,
            _ => Source::Author,
        }
    }

    fn form<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> Source<'_> {
        let Some(form) = &self.recipe.form else { return Source::Form(None, None) };
        let Some(first) = names.next() else { return Source::Form(None, None) };
        let properties = form.get("properties").and_then(Value::as_object);
        let found = properties.and_then(|all| all.get_key_value(first));
        let Some((field, schema)) = found else { return Source::Form(None, None) };
        Source::Form(Some(field.as_str()), below(schema, names, form))
    }

    /// What a fan-out hands out one by one.
    fn item<'n>(&self, names: impl Iterator<Item = &'n str>) -> Source<'_> {
        let each = match &self.task.each {
            Some(Value::String(text)) => lone(text.as_str()),
            // A list in the recipe is its author's.
            _ => return Source::Author,
        };
        let Some(Ok(each)) = each else { return Source::Author };
        match self.source_of_list(each.value) {
            Source::Form(field, schema) => {
                let items = schema.and_then(|schema| schema.get("items"));
                let form = self.recipe.form.as_ref();
                let item = items.zip(form).and_then(|(items, form)| below(items, names, form));
                Source::Form(field, item)
            }
            other => other,
        }
    }

    /// A list is never made of items, so this ends.
    fn source_of_list(&self, value: &str) -> Source<'_> {
        match value.split('.').next().map(str::trim) {
            Some("item") => Source::Author,
            _ => self.source(value),
        }
    }
}

/// How the value gets there otherwise.
fn by_env(value: &str) -> String {
    let last = value.rsplit('.').next().unwrap_or(value);
    let name: String =
        last.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(32).collect();
    let name = name.to_ascii_uppercase();
    format!("hand it over as `env: {{{name}: \"${{{value}}}\"}}` and write `\"${name}\"`")
}

fn unquoted(value: &str, editable: bool) -> String {
    let raw = match editable {
        true => String::new(),
        false => {
            format!(", or, if it is meant to be read by the shell, write `${{{value} | raw}}`")
        }
    };
    let whose = if editable { ", which an approver may edit," } else { "" };
    format!(
        "`${{{value}}}`{whose} stands unquoted in shell text: write `${{{value} | sh}}`, or {}{raw}",
        by_env(value)
    )
}

fn misplaced(value: &str, place: &str) -> String {
    format!(
        "`${{{value} | sh}}` is only part of a word {place}: move it out of there, or {}",
        by_env(value)
    )
}

fn output_is_raw(value: &str) -> String {
    format!(
        "`${{{value} | raw}}` would make shell text of a task's output, unseen before it is executed: write \
         `${{{value} | sh}}`, or {}",
        by_env(value)
    )
}

fn raw_is_editable(value: &str) -> String {
    format!(
        "`${{{value} | raw}}` is a field that an approver may edit: write `${{{value} | sh}}`, or {}",
        by_env(value)
    )
}
