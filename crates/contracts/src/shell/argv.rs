//! Values in an argv. Each argument reaches its program as it is, so a value that is an argument of its own is
//! one, and nothing more; a part of a larger one may be code to whatever reads that: a shell behind `env`, an
//! interpreter, a program that is not known here. **The rule is the same for every program.**

use serde_json::Value;

use super::{Filter, Piece, Rule, RuleScope, SHELLS, by_env, lone, pieces, reader};

/// Which argument a shell reads as its text, if the program is one.
fn shell_text(argv: &[String]) -> Option<usize> {
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
    // More options may stand between.
    let rest = argv.iter().enumerate().skip(at + 1);
    rest.skip_while(|(_, arg)| arg.starts_with(['-', '+'])).map(|(at, _)| at).next()
}

impl Rule<'_> {
    pub(super) fn argv(&self, argv: &[String]) -> Result<(), String> {
        let text = shell_text(argv);
        for (at, arg) in argv.iter().enumerate() {
            let said =
                if text == Some(at) { self.holds(arg) } else { self.argument(argv, at, arg) };
            said.map_err(|why| format!("argument {at}: {why}"))?;
        }
        Ok(())
    }

    fn argument(&self, argv: &[String], at: usize, arg: &str) -> Result<(), String> {
        let own = lone(arg).is_some();
        for piece in pieces(arg) {
            // What does not parse is refused by its own error when it is rendered.
            let Ok(piece) = piece else { return Ok(()) };
            let Piece::Expr(expr) = piece else { continue };
            let editable = self.is_editable(expr.value);
            let output = self.is_output(expr.value);
            if output && expr.filter == Some(Filter::Raw) {
                return Err(super::output_is_raw(expr.value));
            }
            let is_meant = expr.filter == Some(Filter::Raw) && !editable;
            let is_held = editable || output || self.held == RuleScope::All;
            if is_meant || !is_held || self.is_safe(expr.value) {
                continue;
            }
            if !own {
                return Err(embedded(expr.value, editable));
            }
            let before = argv.get(..at).unwrap_or_default();
            if let Some(place) = reader::reads_again(before.iter().map(String::as_str)) {
                return Err(again(expr.value, &place));
            }
        }
        Ok(())
    }

    /// Whether the rendered value of an argument may be read as an option that an approver wrote. A number
    /// is none, and neither is what the recipe's author lists.
    pub(super) fn is_option(
        &self,
        argv: &[String],
        at: usize,
        rendered: &str,
    ) -> Result<(), String> {
        let Some(Ok(expr)) = argv.get(at).and_then(|arg| lone(arg)) else { return Ok(()) };
        let ended = argv.iter().take(at).any(|arg| arg == "--");
        if ended || !rendered.starts_with('-') || rendered.parse::<f64>().is_ok() {
            return Ok(());
        }
        if !self.is_editable(expr.value) || self.is_listed(expr.value) {
            return Ok(());
        }
        Err(format!(
            "argument {at}: `${{{0}}}`, which an approver may edit, would be read as an option: write `--` \
             before it if the program knows that, or {1}",
            expr.value,
            by_env(expr.value)
        ))
    }

    fn is_listed(&self, value: &str) -> bool {
        let super::Source::Form(_, Some(schema)) = self.source(value) else { return false };
        let has = |name| schema.get(name).is_some_and(|found: &Value| !found.is_null());
        has("enum") || has("const")
    }
}

fn embedded(value: &str, editable: bool) -> String {
    let (whose, raw) = match editable {
        true => (", which an approver may edit,", String::new()),
        false => {
            ("", format!(", or, if it is meant to be a part of it, write `${{{value} | raw}}`"))
        }
    };
    format!(
        "`${{{value}}}`{whose} is a part of a larger argument: make it an argument of its own, narrow its \
         schema by `enum` or a `pattern` of plain characters, or {}{raw}",
        by_env(value)
    )
}

pub(super) fn again(value: &str, place: &str) -> String {
    format!("`${{{value}}}` stands {place}: move it out of there, or {}", by_env(value))
}
