//! `${...}` in recipes: names, two functions and two filters, rendered once, never evaluated again.
//!
//! ```text
//! text  := ( literal | "$${" literal | "${" expr "}" )*
//! expr  := ( path | "range(" path-or-int ")" | "glob(" path-or-string "," string ")" ) [ "|" filter ]
//! path  := ("form" ("." name)+) | "item" ("." name)* | "matrix" "." name | "index" | "count"
//! filter := "sh" | "raw"
//! ```
//! A text that is one single expression has the expression's JSON value; otherwise every value is
//! written as text. An unknown name is an error: a shell's own `${VAR}` is written `$${VAR}`.
//! `sh` writes the value as one word of a POSIX shell; `raw` says that the value is shell text by
//! intention (see [`crate::shell`]). **Every byte is charged to a budget before it is written.**

use std::borrow::Cow;
use std::cell::Cell;
use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shell;

/// The longest list that `range` or `glob` may yield: as many tasks as one plan may hold.
pub const MAX_FANOUT: usize = 10_000;
/// Bytes of one rendered text: a form value of the largest body, once.
pub const MAX_TEXT_BYTES: usize = 1024 * 1024;
/// Bytes of all texts of one plan: ten thousand tasks of 800 bytes, or eight of the longest text. A plan
/// is a row, an artifact and a digest, and its reader holds it whole.
pub const MAX_PLAN_BYTES: usize = 8 * 1024 * 1024;

/// Why a text could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// An expression that the grammar above does not know.
    #[error("`${{{expr}}}`: {why} (a literal `${{` is written `$${{`)")]
    Expression {
        /// The text between the braces.
        expr: String,
        /// What is wrong.
        why: String,
    },
    /// No closing brace.
    #[error("`${{` without `}}`")]
    Unclosed,
    /// A list that is too long.
    #[error("`${{{0}}}` yields more than {MAX_FANOUT} items")]
    TooMany(String),
    /// More bytes than a text or a plan may have.
    #[error("{metric} would pass {limit}")]
    TooLarge {
        /// `rendered_text_bytes` or `rendered_plan_bytes`.
        metric: &'static str,
        /// Bound in bytes: [`MAX_TEXT_BYTES`] or [`MAX_PLAN_BYTES`].
        limit: usize,
    },
    /// It lists files, and whoever renders it here cannot.
    #[error("its files are listed when the plan is compiled on a worker")]
    NeedsFiles,
}

/// Why `glob` yields no files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GlobError {
    /// No files are listed here.
    Elsewhere,
    /// The directory or the pattern is refused, and why.
    Refused(String),
}

/// Lists files for `glob(dir, pattern)`: an effect, so it is handed in.
pub type Globber<'a> = &'a dyn Fn(&str, &str) -> Result<Vec<String>, GlobError>;

/// The bytes that a plan may still have.
#[derive(Debug)]
pub struct RenderBudget(Cell<usize>);

impl Default for RenderBudget {
    fn default() -> Self {
        Self(Cell::new(MAX_PLAN_BYTES))
    }
}

impl RenderBudget {
    /// Takes this many bytes, before anything is allocated for them.
    pub fn charge(&self, bytes: usize) -> Result<(), TemplateError> {
        let left = self.0.get().checked_sub(bytes).ok_or(TemplateError::TooLarge {
            metric: "rendered_plan_bytes",
            limit: MAX_PLAN_BYTES,
        })?;
        self.0.set(left);
        Ok(())
    }
}

/// What the names mean.
pub struct Scope<'a> {
    /// Values of `form`, the recipe's inputs.
    pub form: &'a Value,
    /// `item`, `index` and `count`, inside a fan-out.
    pub item: Option<(&'a Value, usize, usize)>,
    /// Values of `matrix`, inside a task with one.
    pub matrix: Option<&'a Value>,
    /// Listing of files for `glob`.
    pub glob: Globber<'a>,
    /// What everything that is rendered is charged to.
    pub budget: &'a RenderBudget,
}

/// What is done to a value before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// One word of a POSIX shell.
    Sh,
    /// As it is, and meant to be.
    Raw,
}

/// An expression: what is named, and the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expr<'t> {
    /// The text before the filter.
    pub value: &'t str,
    /// Filter after the last bar; `None` writes the value as it is.
    pub filter: Option<Filter>,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'t> {
    /// Written as it stands.
    Literal(&'t str),
    /// `$${`: a literal `${`.
    Brace,
    /// An expression `${...}`.
    Expr(Expr<'t>),
}

/// The parts of a text, in order.
pub fn pieces(text: &str) -> Pieces<'_> {
    Pieces { rest: text, brace: false }
}

/// Iterator over the parts of a text; [`pieces`] makes it.
#[derive(Debug)]
pub struct Pieces<'t> {
    rest: &'t str,
    brace: bool,
}

impl<'t> Iterator for Pieces<'t> {
    type Item = Result<Piece<'t>, TemplateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.brace) {
            return Some(Ok(Piece::Brace));
        }
        let Some(at) = self.rest.find("${") else {
            let rest = std::mem::take(&mut self.rest);
            return (!rest.is_empty()).then_some(Ok(Piece::Literal(rest)));
        };
        let (before, tail) = self.rest.split_at(at);
        let after = tail.strip_prefix("${").unwrap_or(tail);
        if let Some(literal) = before.strip_suffix('$') {
            (self.rest, self.brace) = (after, true);
            return Some(Ok(Piece::Literal(literal)));
        }
        if !before.is_empty() {
            self.rest = tail;
            return Some(Ok(Piece::Literal(before)));
        }
        let Some((inner, next)) = after.split_once('}') else {
            self.rest = "";
            return Some(Err(TemplateError::Unclosed));
        };
        self.rest = next;
        Some(expression(inner).map(Piece::Expr))
    }
}

/// The one expression that a text consists of, if it does.
pub fn lone(text: &str) -> Option<Result<Expr<'_>, TemplateError>> {
    let inner = text.strip_prefix("${").and_then(|t| t.strip_suffix('}'))?;
    (!inner.contains('}')).then(|| expression(inner))
}

fn expression(inner: &str) -> Result<Expr<'_>, TemplateError> {
    let whole = Expr { value: inner.trim(), filter: None };
    let Some((value, name)) = inner.rsplit_once('|') else { return Ok(whole) };
    let filter = match name.trim() {
        "sh" => Filter::Sh,
        "raw" => Filter::Raw,
        // A pattern of `glob` may hold a bar.
        name if name.contains(['"', ')']) => return Ok(whole),
        name => {
            return Err(wrong(inner, &format!("unknown filter `{name}`: there are sh and raw")));
        }
    };
    Ok(Expr { value: value.trim(), filter: Some(filter) })
}

/// Renders a text to a JSON value.
pub fn render_value(text: &str, scope: &Scope<'_>) -> Result<Value, TemplateError> {
    match lone(text) {
        Some(expr) => {
            let expr = expr?;
            match expr.filter {
                None => evaluate(expr.value, scope).map(Cow::into_owned),
                Some(_) => render(text, scope).map(Value::String),
            }
        }
        None => render(text, scope).map(Value::String),
    }
}

/// Renders a text to text.
pub fn render(text: &str, scope: &Scope<'_>) -> Result<String, TemplateError> {
    let mut out = RenderBuffer { text: String::new(), budget: scope.budget };
    for piece in pieces(text) {
        match piece? {
            Piece::Literal(literal) => out.push(literal)?,
            Piece::Brace => out.push("${")?,
            Piece::Expr(expr) => {
                let value = evaluate(expr.value, scope)?;
                match expr.filter {
                    None | Some(Filter::Raw) => out.value(&value)?,
                    Some(Filter::Sh) => match value.as_ref() {
                        Value::String(word) => shell::quoted(word, |part| out.push(part))?,
                        other => {
                            let mut word =
                                RenderBuffer { text: String::new(), budget: scope.budget };
                            word.value(other)?;
                            shell::quoted(&word.text, |part| out.push(part))?;
                        }
                    },
                }
            }
        }
    }
    Ok(out.text)
}

/// A text while it is rendered.
struct RenderBuffer<'a> {
    text: String,
    budget: &'a RenderBudget,
}

impl RenderBuffer<'_> {
    fn push(&mut self, part: &str) -> Result<(), TemplateError> {
        if self.text.len().saturating_add(part.len()) > MAX_TEXT_BYTES {
            return Err(TemplateError::TooLarge {
                metric: "rendered_text_bytes",
                limit: MAX_TEXT_BYTES,
            });
        }
        self.budget.charge(part.len())?;
        self.text.push_str(part);
        Ok(())
    }

    fn value(&mut self, value: &Value) -> Result<(), TemplateError> {
        match value {
            Value::String(text) => self.push(text),
            Value::Null => Ok(()),
            other => {
                let mut sink = Sink { out: self, full: None };
                let written = serde_json::to_writer(&mut sink, other);
                let full = sink.full.take();
                match (written, full) {
                    (Err(_), Some(full)) => Err(full),
                    (Err(error), None) => Err(wrong("", &error.to_string())),
                    (Ok(()), _) => Ok(()),
                }
            }
        }
    }
}

/// JSON on its way into a text, which may be full.
struct Sink<'r, 'a> {
    out: &'r mut RenderBuffer<'a>,
    full: Option<TemplateError>,
}

impl io::Write for Sink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.out.push(part).map_err(|full| {
            self.full = Some(full);
            io::Error::other("full")
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn evaluate<'s>(expr: &str, scope: &'s Scope<'_>) -> Result<Cow<'s, Value>, TemplateError> {
    if let Some(argument) = call(expr, "range") {
        let n = operand(argument, scope, expr)?;
        let n = n.as_u64().ok_or_else(|| wrong(expr, "range wants a whole number"))?;
        if usize::try_from(n).map_or(true, |n| n > MAX_FANOUT) {
            return Err(TemplateError::TooMany(expr.to_owned()));
        }
        return Ok(Cow::Owned((0..n).map(Value::from).collect()));
    }
    if let Some(arguments) = call(expr, "glob") {
        let (dir, pattern) = arguments
            .split_once(',')
            .ok_or_else(|| wrong(expr, "glob wants a directory and a pattern"))?;
        let (dir, pattern) = (operand(dir, scope, expr)?, operand(pattern, scope, expr)?);
        let (Some(dir), Some(pattern)) = (dir.as_str(), pattern.as_str()) else {
            return Err(wrong(expr, "glob wants two texts"));
        };
        let files = (scope.glob)(dir, pattern).map_err(|error| match error {
            GlobError::Elsewhere => TemplateError::NeedsFiles,
            GlobError::Refused(why) => wrong(expr, &why),
        })?;
        if files.len() > MAX_FANOUT {
            return Err(TemplateError::TooMany(expr.to_owned()));
        }
        return Ok(Cow::Owned(files.into_iter().map(Value::from).collect()));
    }
    path(expr, scope)
}

/// The argument of a call of this function, if the expression is one.
pub(crate) fn call<'t>(expr: &'t str, name: &str) -> Option<&'t str> {
    expr.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')').map(str::trim)
}

fn operand<'s>(
    text: &str,
    scope: &'s Scope<'_>,
    whole: &str,
) -> Result<Cow<'s, Value>, TemplateError> {
    let text = text.trim();
    if let Some(quoted) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return Ok(Cow::Owned(Value::from(quoted)));
    }
    if let Ok(number) = text.parse::<u64>() {
        return Ok(Cow::Owned(Value::from(number)));
    }
    path(text, scope).map_err(|e| match e {
        TemplateError::Expression { why, .. } => wrong(whole, &why),
        other => other,
    })
}

/// Borrowed: a form of a megabyte that is named a thousand times is not copied a thousand times.
fn path<'s>(expr: &str, scope: &'s Scope<'_>) -> Result<Cow<'s, Value>, TemplateError> {
    let mut parts = expr.split('.');
    let root: &'s Value = match (parts.next().unwrap_or(""), scope.item) {
        ("form", _) => scope.form,
        ("item", Some((item, _, _))) => item,
        ("index", Some((_, index, _))) => return number(expr, parts.next(), index),
        ("count", Some((_, _, count))) => return number(expr, parts.next(), count),
        ("matrix", _) => {
            scope.matrix.ok_or_else(|| wrong(expr, "only inside a task with `matrix`"))?
        }
        ("tasks", _) => {
            return Err(wrong(
                expr,
                "an output is known only when the task starts: use it in exec.run, exec.env, build.run, build.env, \
                 files.text, value, each or when",
            ));
        }
        ("item" | "index" | "count", None) => {
            return Err(wrong(expr, "only inside a task with `each`"));
        }
        (name, _) => return Err(wrong(expr, &format!("unknown name `{name}`"))),
    };
    let is_form = expr.starts_with("form");
    let found = parts.try_fold(root, |value, name| {
        value.get(name).ok_or_else(|| wrong(expr, &absent(name, is_form)))
    });
    found.map(Cow::Borrowed)
}

fn number<'s>(expr: &str, more: Option<&str>, n: usize) -> Result<Cow<'s, Value>, TemplateError> {
    match more {
        None => Ok(Cow::Owned(Value::from(n))),
        Some(name) => Err(wrong(expr, &absent(name, false))),
    }
}

/// What is said of a name without a value. An optional input that a start left out, and one that the form does not declare, look
/// alike here. Pure.
fn absent(name: &str, is_form: bool) -> String {
    match is_form {
        true => format!(
            "the input `{name}` has no value: give it with -i {name}=VALUE, or declare it in the form with a `default`"
        ),
        false => format!("no field is called `{name}`"),
    }
}

fn wrong(expr: &str, why: &str) -> TemplateError {
    TemplateError::Expression { expr: expr.chars().take(80).collect(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn none(_: &str, _: &str) -> Result<Vec<String>, GlobError> {
        Err(GlobError::Refused("no files here".into()))
    }

    #[test]
    fn names_render_as_text_and_a_lone_expression_keeps_its_type() {
        let form = json!({"n": 3, "who": {"name": "Ada"}});
        let item = json!("x");
        let budget = RenderBudget::default();
        let scope = Scope {
            form: &form,
            item: Some((&item, 1, 3)),
            matrix: None,
            glob: &none,
            budget: &budget,
        };
        assert_eq!(
            render("hi ${form.who.name} ${index}/${count} ${item}", &scope).unwrap(),
            "hi Ada 1/3 x"
        );
        assert_eq!(render_value("${form.n}", &scope).unwrap(), json!(3));
        assert_eq!(render_value("${range(form.n)}", &scope).unwrap(), json!([0, 1, 2]));
        assert_eq!(render("$${HOME} costs $5", &scope).unwrap(), "${HOME} costs $5");
    }

    #[test]
    fn an_unknown_name_and_a_missing_brace_are_errors() {
        let form = json!({});
        let budget = RenderBudget::default();
        let scope = Scope { form: &form, item: None, matrix: None, glob: &none, budget: &budget };
        assert!(render("${HOME}", &scope).unwrap_err().to_string().contains("unknown name `HOME`"));
        assert!(render("${item}", &scope).is_err());
        assert_eq!(render("${form.x", &scope).unwrap_err(), TemplateError::Unclosed);
        let absent = render("${form.x}", &scope).unwrap_err().to_string();
        assert!(absent.contains("`x` has no value: give it with -i x=VALUE"), "{absent}");
        assert!(render_value("${range(10001)}", &scope).is_err());
        assert!(render_value("${glob(\"/x\", \"*\")}", &scope).is_err());
    }

    #[test]
    fn what_a_value_contains_is_never_rendered_again() {
        let form = json!({"cmd": "echo ${form.secret}"});
        let budget = RenderBudget::default();
        let scope = Scope { form: &form, item: None, matrix: None, glob: &none, budget: &budget };
        assert_eq!(render("${form.cmd}", &scope).unwrap(), "echo ${form.secret}");
    }

    #[test]
    fn sh_makes_one_word_of_a_value_and_a_bar_in_a_pattern_is_no_filter() {
        let form = json!({"w": "it's; $(id) `x`", "n": 3, "e": ""});
        let budget = RenderBudget::default();
        let glob = |_: &str, pattern: &str| Ok(vec![pattern.to_owned()]);
        let scope = Scope { form: &form, item: None, matrix: None, glob: &glob, budget: &budget };
        let text = |t: &str| render(t, &scope).unwrap();
        assert_eq!(text("echo ${form.w | sh} ${form.n|sh}"), r"echo 'it'\''s; $(id) `x`' '3'");
        assert_eq!((text("${form.e | sh}"), text("${form.n | raw}")), ("''".into(), "3".into()));
        assert_eq!(render_value("${form.n | sh}", &scope).unwrap(), json!("'3'"));
        assert_eq!(render_value("${glob(\"/d\", \"a|sh\")}", &scope).unwrap(), json!(["a|sh"]));
        let unknown = render("${form.n | html}", &scope).unwrap_err().to_string();
        assert!(unknown.contains("unknown filter `html`"), "{unknown}");
    }

    fn scope_of<'a>(form: &'a Value, budget: &'a RenderBudget) -> Scope<'a> {
        Scope { form, item: None, matrix: None, glob: &none, budget }
    }

    #[test]
    fn h6_a_text_is_refused_before_it_is_as_large_as_it_would_be() {
        let form = json!({"s": "y".repeat(500_000), "list": vec!["z".repeat(1_000); 900]});
        for text in ["${form.s}".repeat(20_000), "${form.list}".repeat(20_000)] {
            let budget = RenderBudget::default();
            let error = render(&text, &scope_of(&form, &budget)).unwrap_err();
            let metric = "rendered_text_bytes";
            assert_eq!(error, TemplateError::TooLarge { metric, limit: MAX_TEXT_BYTES });
            let charged = MAX_PLAN_BYTES - budget.0.get();
            assert!(charged <= MAX_TEXT_BYTES, "{charged} bytes were written");
        }
        let (budget, mut rendered) = (RenderBudget::default(), 0);
        let error = loop {
            match render("${form.s}", &scope_of(&form, &budget)) {
                Ok(text) => rendered += text.len(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, TemplateError::TooLarge { metric: "rendered_plan_bytes", .. }));
        assert!(rendered <= MAX_PLAN_BYTES && rendered > MAX_PLAN_BYTES - 500_000);
    }
}
