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
//! **A quoted word is accepted only where the shell reads it as one**: not inside quotes, comments,
//! backquotes, here-documents or arithmetic, where its own quotes would mean something else.

use serde_json::Value;

use crate::gate_spec::escape;
use crate::recipe::{Cmd, Recipe, TaskSpec};
use crate::template::{Filter, Piece, call, lone, pieces};

/// Programs whose `-c` is followed by shell text.
const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"];
/// References of one schema that are followed; a circle is not followed for ever.
const MAX_REFS: usize = 8;

/// Hands over the text as one word of a POSIX shell, part by part.
pub fn quoted<E>(text: &str, mut push: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    push("'")?;
    for (n, part) in text.split('\'').enumerate() {
        if n > 0 {
            push(r"'\''")?;
        }
        push(part)?;
    }
    push("'")
}

/// Which values are held against the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// At import: every value that a shell could read as more than a word.
    All,
    /// At a start: those that an approver may edit. A recipe that was stored before the rule goes on as it is.
    Editable,
}

/// Whether every command of the recipe keeps to the rule; the error names field and remedy.
pub fn check(recipe: &Recipe, held: Held) -> Result<(), String> {
    for (i, task) in recipe.plan.tasks.iter().enumerate() {
        let commands = [
            ("build.run", task.build.as_ref().map(|b| &b.run)),
            ("exec.run", task.exec.as_ref().map(|e| &e.run)),
        ];
        for (field, command) in commands {
            let Some(text) = command.and_then(shell_text) else { continue };
            let rule = Rule { recipe, task, held };
            rule.holds(text).map_err(|why| format!("plan.tasks[{i}].{field}: {why}"))?;
        }
    }
    Ok(())
}

/// The text that a shell will read, if one does.
fn shell_text(command: &Cmd) -> Option<&str> {
    let argv = match command {
        Cmd::Shell(text) => return Some(text),
        Cmd::Argv(argv) => argv,
    };
    let program = argv.first()?.rsplit('/').next()?;
    if !SHELLS.contains(&program) {
        return None;
    }
    let is_c = |arg: &String| {
        arg.strip_prefix('-').is_some_and(|flags| {
            flags.contains('c') && flags.bytes().all(|b| b.is_ascii_alphabetic())
        })
    };
    let at = argv.iter().position(is_c)?;
    argv.get(at + 1).map(String::as_str)
}

struct Rule<'a> {
    recipe: &'a Recipe,
    task: &'a TaskSpec,
    held: Held,
}

/// Where a value comes from.
enum Source<'a> {
    /// The recipe's author, or a number.
    Author,
    /// The form: the field at the top, and the schema of what is named.
    Form(Option<&'a str>, Option<&'a Value>),
    /// Names of files.
    Files,
}

impl Rule<'_> {
    fn holds(&self, text: &str) -> Result<(), String> {
        // The whole text: who supplies it supplies the command, and who approves it sees all of it.
        if let Some(Ok(expr)) = lone(text.trim())
            && expr.filter != Some(Filter::Raw)
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
                    let held = editable || self.held == Held::All;
                    match expr.filter {
                        Some(Filter::Raw) if editable => {
                            return Err(raw_is_editable(expr.value));
                        }
                        Some(Filter::Sh) if held && !self.is_safe(expr.value) => {
                            scan.is_a_word().map_err(|place| misplaced(expr.value, place))?;
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
            Source::Author | Source::Files => false,
        }
    }

    /// Whether nothing that it may be is more than a word to a shell.
    fn is_safe(&self, value: &str) -> bool {
        match self.source(value) {
            Source::Author => true,
            Source::Form(_, schema) => {
                schema.is_some_and(|s| is_word(s, self.recipe.form.as_ref(), MAX_REFS))
            }
            Source::Files => false,
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

/// The schema of a property's property.
fn below<'a, 'n>(
    schema: &'a Value,
    names: impl Iterator<Item = &'n str>,
    form: &'a Value,
) -> Option<&'a Value> {
    let mut schema = resolved(schema, form, MAX_REFS)?;
    for name in names {
        schema =
            resolved(schema.pointer(&format!("/properties/{}", escape(name)))?, form, MAX_REFS)?;
    }
    Some(schema)
}

fn resolved<'a>(schema: &'a Value, form: &'a Value, refs: usize) -> Option<&'a Value> {
    match schema.get("$ref").and_then(Value::as_str) {
        None => Some(schema),
        Some(_) if refs == 0 => None,
        Some(target) => resolved(form.pointer(target.strip_prefix('#')?)?, form, refs - 1),
    }
}

/// Whether every value that fits the schema is one plain word.
fn is_word(schema: &Value, form: Option<&Value>, refs: usize) -> bool {
    let Some(schema) = form.map_or(Some(schema), |form| resolved(schema, form, refs)) else {
        return false;
    };
    // What the author lists is the author's text.
    if schema.get("enum").is_some() || schema.get("const").is_some() {
        return true;
    }
    let of_type = |kind: &str| match kind {
        "integer" | "number" | "boolean" | "null" => true,
        "string" => schema.get("pattern").and_then(Value::as_str).is_some_and(is_plain_pattern),
        _ => false,
    };
    match schema.get("type") {
        Some(Value::String(kind)) => of_type(kind),
        Some(Value::Array(kinds)) => {
            !kinds.is_empty() && kinds.iter().all(|kind| kind.as_str().is_some_and(of_type))
        }
        _ => false,
    }
}

/// Characters that mean nothing to a shell, wherever they stand in a word.
const fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ',' | ':' | '/' | '@' | '%' | '+')
}

/// A pattern from `^` to `$` of plain characters, classes of them and counts: `^[a-z][a-z0-9-]*$`.
/// Whatever else it is made of, it is taken to let more through.
fn is_plain_pattern(pattern: &str) -> bool {
    let Some(body) = pattern.strip_prefix('^').and_then(|p| p.strip_suffix('$')) else {
        return false;
    };
    let mut chars = body.chars().peekable();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => chars.next().is_some_and(is_plain_escape),
            '[' => is_plain_class(&mut chars),
            // A dot is any character, a plus here would be a count.
            '.' | '+' => false,
            c => is_plain(c),
        };
        if !plain {
            return false;
        }
        match chars.peek() {
            Some('*' | '+' | '?') => {
                chars.next();
            }
            Some('{') => {
                chars.next();
                if !chars.by_ref().take_while(|c| *c != '}').all(|c| c.is_ascii_digit() || c == ',')
                {
                    return false;
                }
            }
            _ => {}
        }
    }
    true
}

/// `\d` and `\w` take in more than ASCII in some engines, so they count as letting more through.
const fn is_plain_escape(c: char) -> bool {
    matches!(c, '.' | '-' | '/' | '+')
}

/// A class after its bracket: plain characters and ranges of letters or of digits.
fn is_plain_class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    let mut last = None;
    let mut some = false;
    while let Some(c) = chars.next() {
        match c {
            ']' => return some,
            '-' if chars.peek() != Some(&']') && last.is_some() => {
                let (Some(from), Some(to)) = (last.take(), chars.next()) else { return false };
                let kinds: [fn(&char) -> bool; 3] =
                    [char::is_ascii_lowercase, char::is_ascii_uppercase, char::is_ascii_digit];
                if !kinds.iter().any(|kind| kind(&from) && kind(&to)) {
                    return false;
                }
            }
            '\\' if chars.next().is_some_and(is_plain_escape) => last = None,
            c if is_plain(c) => last = Some(c),
            _ => return false,
        }
        some = true;
    }
    false
}

/// A shell's text so far: what a quoted word would be at this place.
#[derive(Debug, Default)]
struct Scan {
    quote: Option<char>,
    escaped: bool,
    comment: bool,
    /// Depth of `${`, the shell's own.
    parameter: usize,
    /// The word so far, to know `#` at its beginning, and `eval`.
    word: String,
    last: Option<char>,
    /// What was met after which no place is certain.
    lost: Option<&'static str>,
}

impl Scan {
    fn literal(&mut self, text: &str) {
        text.chars().for_each(|c| self.step(c));
    }

    /// The shell's own `${`.
    fn parameter(&mut self) {
        if self.quote != Some('\'') && !self.comment && !self.escaped {
            self.parameter += 1;
        }
        self.escaped = false;
        self.word.push('$');
    }

    /// A value was written here.
    fn value(&mut self) {
        self.escaped = false;
        self.word.push('v');
        self.last = Some('v');
    }

    fn step(&mut self, c: char) {
        let last = self.last.replace(c);
        if std::mem::take(&mut self.escaped) {
            self.word.push(c);
            return;
        }
        if self.comment {
            self.comment = c != '\n';
            return;
        }
        if self.quote == Some('\'') {
            if c == '\'' {
                self.quote = None;
            }
            return;
        }
        match (c, last) {
            ('`', _) => self.lost = Some("after a backquote"),
            ('(', Some('(')) => self.lost = Some("after an arithmetic expansion"),
            ('(', Some('$')) if self.quote.is_some() => {
                self.lost = Some("after a command substitution inside quotes");
            }
            ('<', Some('<')) if self.quote.is_none() => self.lost = Some("after a here-document"),
            ('\'' | '"', Some('$')) if self.quote.is_none() => {
                self.lost = Some("after a quote that not every shell knows");
            }
            ('\'' | '"', _) if self.parameter > 0 => {
                self.lost = Some("after quotes inside a parameter expansion");
            }
            _ => {}
        }
        if self.parameter > 0 {
            if c == '}' {
                self.parameter -= 1;
            }
            return;
        }
        match (c, self.quote) {
            ('\\', _) => self.escaped = true,
            ('"', Some(_)) => self.quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => {
                self.quote = Some(c);
                self.word.push(c);
            }
            ('#', None) if self.word.is_empty() => self.comment = true,
            (c, None) if c.is_whitespace() || "|&;()<>".contains(c) => {
                if self.word == "eval" {
                    self.lost = Some("after `eval`, which reads it a second time");
                }
                self.word.clear();
            }
            (c, None) => self.word.push(c),
        }
    }

    /// Whether a quoted word is one here; where it stands, if not.
    fn is_a_word(&self) -> Result<(), &'static str> {
        if let Some(lost) = self.lost {
            return Err(lost);
        }
        match self.quote {
            Some(_) => Err("inside quotes"),
            None if self.comment => Err("in a comment"),
            None if self.escaped => Err("after a backslash"),
            None if self.last == Some('$') => Err("after a dollar sign"),
            None if self.parameter > 0 => Err("inside a parameter expansion"),
            None => Ok(()),
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
        "`${{{value} | sh}}` is no word of its own {place}: move it out of there, or {}",
        by_env(value)
    )
}

fn raw_is_editable(value: &str) -> String {
    format!(
        "`${{{value} | raw}}` is a field that an approver may edit: write `${{{value} | sh}}`, or {}",
        by_env(value)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "
form:
  type: object
  properties:
    w: {type: string}
    free: {type: string}
    n: {type: integer}
    pick: {enum: [a, 'b c']}
    slug: {type: string, pattern: '^[a-z][a-z0-9-]{0,9}$'}
    loose: {type: string, pattern: '^[a-z]'}
    dotted: {type: string, pattern: '^.+$'}
    list: {type: array, items: {type: string}}
    nums: {type: array, items: {type: integer}}
    ref: {$ref: '#/$defs/slug'}
    deep: {type: object, properties: {x: {type: string}, y: {type: number}}}
  $defs: {slug: {type: string, pattern: '^[A-Za-z0-9_./+-]+$'}}
";

    fn recipe(task: &str, gate: &str) -> Result<Recipe, String> {
        let yaml = format!("id: r\nv: '1'\n{FORM}plan:\n{gate}  tasks:\n    - {task}\n");
        Recipe::from_yaml("r", &yaml).map_err(|refusal| refusal.message)
    }

    fn run(text: &str) -> Result<Recipe, String> {
        recipe(&format!("{{name: a, exec: {{run: {}}}}}", serde_json::json!(text)), "")
    }

    #[test]
    fn m7_a_value_that_a_shell_may_read_is_refused_unquoted_with_its_remedy() {
        let why = run("echo word=${form.w}").unwrap_err();
        for part in ["plan.tasks[0].exec.run", "`${form.w}`", "| sh}", "env: {W:", "| raw}"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        for bad in [
            "echo ${form.loose}",
            "echo ${form.dotted}",
            "echo ${form.list}",
            "echo ${form.deep.x}",
            "echo ${form.deep}",
            "echo ${form}",
            "echo '${form.w}'",
            "${form.w} ${form.n}",
        ] {
            assert!(run(bad).is_err(), "{bad}");
        }
        for good in [
            "${form.w}",
            "  ${form.w}\n",
            "echo ${form.w | sh}",
            "echo a=${form.w|sh} 'x' \"y\" | grep ${form.free | sh} # ${form.n}\nls ${form.w | sh}",
            "x=$(cat ${form.w | sh})",
            "echo $${HOME} ${form.w | sh}",
            "echo ${form.n} ${form.pick} ${form.slug} ${form.ref} ${form.deep.y}",
            "make ${form.w | raw}",
            "echo \"${form.n}\"",
        ] {
            run(good).unwrap_or_else(|why| panic!("{good}: {why}"));
        }
    }

    #[test]
    fn m7_a_quoted_word_is_refused_where_a_shell_does_not_read_it_as_one() {
        for (bad, place) in [
            ("echo '${form.w | sh}'", "inside quotes"),
            ("echo \"${form.w | sh}\"", "inside quotes"),
            ("echo \"a 'b' ${form.w | sh}\"", "inside quotes"),
            ("echo `cat ${form.w | sh}`", "backquote"),
            ("cat <<EOF\n${form.w | sh}\nEOF", "here-document"),
            ("echo $((${form.w | sh}))", "arithmetic"),
            ("true # ${form.w | sh}", "comment"),
            ("echo \\${form.w | sh}", "backslash"),
            ("echo $${X:-${form.w | sh}}", "parameter"),
            ("echo \"$(echo \"x\" ${form.w | sh})\"", "command substitution"),
            ("eval echo ${form.w | sh}", "eval"),
            ("echo $'a' ${form.w | sh}", "not every shell"),
        ] {
            let why = run(bad).unwrap_err();
            assert!(why.contains(place) && why.contains("env: {W:"), "{bad}: {why}");
        }
    }

    #[test]
    fn m7_what_an_approver_may_edit_is_never_raw_and_held_at_a_start_too() {
        let gate = "  gate: {key: approve-plan, edit: [w, list]}\n";
        let of = |text: &str| {
            recipe(&format!("{{name: a, exec: {{run: {}}}}}", serde_json::json!(text)), gate)
        };
        assert!(of("make ${form.w | raw}").unwrap_err().contains("may edit"));
        assert!(!of("make ${form.w}").unwrap_err().contains("| raw"));
        of("${form.w}").unwrap();
        of("make ${form.free | raw} ${form.w | sh}").unwrap();
        // As it was stored before the rule.
        let stored = |text: &str| {
            let mut recipe = of("true").unwrap();
            recipe.plan.tasks[0].exec.as_mut().unwrap().run = Cmd::Shell(text.into());
            check(&recipe, Held::Editable)
        };
        assert!(stored("echo ${form.w}").is_err() && stored("echo ${form}").is_err());
        stored("echo ${form.free}").unwrap();
        let each = "{name: 'a-${index}', each: '${form.list}', exec: {run: 'echo ${item}'}}";
        assert!(recipe(each, gate).unwrap_err().contains("may edit"));
    }

    #[test]
    fn m7_items_are_held_by_where_they_come_from() {
        let each = |each: &str| {
            recipe(
                &format!("{{name: 'a-${{index}}', each: {each}, exec: {{run: 'echo ${{item}}'}}}}"),
                "",
            )
        };
        for good in ["'${range(3)}'", "[a, 'b c']", "'${form.nums}'"] {
            each(good).unwrap_or_else(|why| panic!("{good}: {why}"));
        }
        for bad in ["'${form.list}'", "'${glob(form.w, \"*\")}'"] {
            assert!(each(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn m7_an_argv_is_never_read_by_a_shell_unless_it_names_one() {
        let of = |argv: &str| recipe(&format!("{{name: a, exec: {{run: {argv}}}}}"), "");
        of(r#"[echo, "a ${form.w}"]"#).unwrap();
        of(r#"[sh, -c, 'echo "$1"', x, "${form.w}"]"#).unwrap();
        of(r#"[/bin/bash, -ec, "${form.w}"]"#).unwrap();
        assert!(of(r#"[/bin/bash, -ec, "echo ${form.w}"]"#).is_err());
        assert!(of(r#"[sh, -c, "echo '${form.w | sh}'"]"#).is_err());
    }
}
