//! `${...}` in recipes: names and two functions, rendered once, never evaluated again.
//!
//! ```text
//! text  := ( literal | "$${" literal | "${" expr "}" )*
//! expr  := path | "range(" path-or-int ")" | "glob(" path-or-string "," string ")"
//! path  := ("form" ("." name)+) | "item" ("." name)* | "index" | "count"
//! ```
//! A text that is one single expression has the expression's JSON value; otherwise every value is
//! written as text. An unknown name is an error: a shell's own `${VAR}` is written `$${VAR}`.

use serde_json::Value;

/// The longest list that `range` or `glob` may yield: as many tasks as one plan may hold.
pub const MAX_FANOUT: usize = 10_000;

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
}

/// Lists files for `glob(dir, pattern)`: an effect, so it is handed in.
pub type Globber<'a> = &'a dyn Fn(&str, &str) -> Result<Vec<String>, String>;

/// What the names mean.
pub struct Scope<'a> {
    /// `form`
    pub form: &'a Value,
    /// `item`, `index` and `count`, inside a fan-out.
    pub item: Option<(&'a Value, usize, usize)>,
    /// `glob`
    pub glob: Globber<'a>,
}

/// Renders a text to a JSON value.
pub fn render_value(text: &str, scope: &Scope<'_>) -> Result<Value, TemplateError> {
    if let Some(inner) = text.strip_prefix("${").and_then(|t| t.strip_suffix('}'))
        && !inner.contains('}')
    {
        return evaluate(inner, scope);
    }
    render(text, scope).map(Value::String)
}

/// Renders a text to text.
pub fn render(text: &str, scope: &Scope<'_>) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, tail) = rest.split_at(at);
        let after = tail.strip_prefix("${").unwrap_or(tail);
        if let Some(literal) = before.strip_suffix('$') {
            out.push_str(literal);
            out.push_str("${");
            rest = after;
            continue;
        }
        out.push_str(before);
        let (expr, next) = after.split_once('}').ok_or(TemplateError::Unclosed)?;
        match evaluate(expr, scope)? {
            Value::String(s) => out.push_str(&s),
            Value::Null => {}
            other => out.push_str(&other.to_string()),
        }
        rest = next;
    }
    out.push_str(rest);
    Ok(out)
}

fn evaluate(expr: &str, scope: &Scope<'_>) -> Result<Value, TemplateError> {
    let expr = expr.trim();
    if let Some(argument) = call(expr, "range") {
        let n = operand(argument, scope, expr)?;
        let n = n.as_u64().ok_or_else(|| wrong(expr, "range wants a whole number"))?;
        if usize::try_from(n).map_or(true, |n| n > MAX_FANOUT) {
            return Err(TemplateError::TooMany(expr.to_owned()));
        }
        return Ok((0..n).map(Value::from).collect());
    }
    if let Some(arguments) = call(expr, "glob") {
        let (dir, pattern) = arguments
            .split_once(',')
            .ok_or_else(|| wrong(expr, "glob wants a directory and a pattern"))?;
        let (dir, pattern) = (operand(dir, scope, expr)?, operand(pattern, scope, expr)?);
        let (Some(dir), Some(pattern)) = (dir.as_str(), pattern.as_str()) else {
            return Err(wrong(expr, "glob wants two texts"));
        };
        let files = (scope.glob)(dir, pattern).map_err(|why| wrong(expr, &why))?;
        if files.len() > MAX_FANOUT {
            return Err(TemplateError::TooMany(expr.to_owned()));
        }
        return Ok(files.into_iter().map(Value::from).collect());
    }
    path(expr, scope)
}

fn call<'t>(expr: &'t str, name: &str) -> Option<&'t str> {
    expr.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')').map(str::trim)
}

fn operand(text: &str, scope: &Scope<'_>, whole: &str) -> Result<Value, TemplateError> {
    let text = text.trim();
    if let Some(quoted) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        return Ok(Value::from(quoted));
    }
    if let Ok(number) = text.parse::<u64>() {
        return Ok(Value::from(number));
    }
    path(text, scope).map_err(|e| match e {
        TemplateError::Expression { why, .. } => wrong(whole, &why),
        other => other,
    })
}

fn path(expr: &str, scope: &Scope<'_>) -> Result<Value, TemplateError> {
    let mut parts = expr.split('.');
    let root = match (parts.next().unwrap_or(""), scope.item) {
        ("form", _) => scope.form.clone(),
        ("item", Some((item, _, _))) => item.clone(),
        ("index", Some((_, index, _))) => Value::from(index),
        ("count", Some((_, _, count))) => Value::from(count),
        ("item" | "index" | "count", None) => {
            return Err(wrong(expr, "only inside a task with `each`"));
        }
        (name, _) => return Err(wrong(expr, &format!("unknown name `{name}`"))),
    };
    parts.try_fold(root, |value, name| match value.get(name) {
        Some(inner) => Ok(inner.clone()),
        None => Err(wrong(expr, &format!("`{name}` is not there; is it in the form?"))),
    })
}

fn wrong(expr: &str, why: &str) -> TemplateError {
    TemplateError::Expression { expr: expr.chars().take(80).collect(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn none(_: &str, _: &str) -> Result<Vec<String>, String> {
        Err("no files here".into())
    }

    #[test]
    fn names_render_as_text_and_a_lone_expression_keeps_its_type() {
        let form = json!({"n": 3, "who": {"name": "Ada"}});
        let item = json!("x");
        let scope = Scope { form: &form, item: Some((&item, 1, 3)), glob: &none };
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
        let scope = Scope { form: &form, item: None, glob: &none };
        assert!(render("${HOME}", &scope).unwrap_err().to_string().contains("unknown name `HOME`"));
        assert!(render("${item}", &scope).is_err());
        assert_eq!(render("${form.x", &scope).unwrap_err(), TemplateError::Unclosed);
        assert!(render("${form.x}", &scope).is_err());
        assert!(render_value("${range(10001)}", &scope).is_err());
        assert!(render_value("${glob(\"/x\", \"*\")}", &scope).is_err());
    }

    #[test]
    fn what_a_value_contains_is_never_rendered_again() {
        let form = json!({"cmd": "echo ${form.secret}"});
        let scope = Scope { form: &form, item: None, glob: &none };
        assert_eq!(render("${form.cmd}", &scope).unwrap(), "echo ${form.secret}");
    }
}
