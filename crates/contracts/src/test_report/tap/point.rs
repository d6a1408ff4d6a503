//! One test point: `not ok 3 - name # TODO reason`.

/// What a point says of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Directive {
    /// It did not run, or its result counts for nothing.
    Skip,
    /// It is expected to fail.
    Todo,
}

/// A point as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestPoint {
    pub(super) is_ok: bool,
    pub(super) id: Option<u64>,
    /// Description without its directive; empty where there is none.
    pub(super) name: String,
    pub(super) directive: Option<Directive>,
    /// Of `# time=12.3ms`, as node-tap writes it.
    pub(super) took_ms: Option<u64>,
}

impl TestPoint {
    /// `None` for a line that is not a point.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (is_ok, behind) = match line.strip_prefix("not ok") {
            Some(behind) => (false, behind),
            None => (true, line.strip_prefix("ok")?),
        };
        if !behind.is_empty() && !behind.starts_with([' ', '\t']) {
            return None;
        }
        let (id, behind) = id(behind.trim_start());
        let (name, note) = parts(behind);
        let directive = directive(note);
        let took_ms = note.strip_prefix("time=").and_then(|time| time.trim().strip_suffix("ms"));
        let took_ms = took_ms.and_then(super::diagnostic::ms);
        // An unknown directive is a part of the name.
        let name = if directive.is_some() || took_ms.is_some() { name } else { behind };
        let name = name.trim_start().strip_prefix("- ").unwrap_or(name).trim();
        let name = if name == "-" { "" } else { name };
        Some(Self { is_ok, id, name: unescaped(name), directive, took_ms })
    }
}

/// The number of a point and what stands behind it, with the white space between.
fn id(text: &str) -> (Option<u64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, behind) = text.split_at(end);
    let is_whole = behind.is_empty() || behind.starts_with([' ', '\t']);
    match digits.parse() {
        Ok(id) if is_whole => (Some(id), behind),
        _ => (None, text),
    }
}

/// What stands before and behind the first `#` that has white space before it and no `\`.
fn parts(text: &str) -> (&str, &str) {
    let is_start = |at: &usize| {
        let before = text.get(..*at).unwrap_or_default();
        before.is_empty() || before.ends_with([' ', '\t'])
    };
    let at = text.match_indices('#').map(|(at, _)| at).find(is_start);
    match at.and_then(|at| text.split_at_checked(at)) {
        Some((name, note)) => (name, note.trim_start_matches('#').trim_start()),
        None => (text, ""),
    }
}

/// `SKIP` and `TODO` in any case, and words that begin so: `skipped:`.
fn directive(note: &str) -> Option<Directive> {
    match note.get(..4)?.to_ascii_lowercase().as_str() {
        "skip" => Some(Directive::Skip),
        "todo" => Some(Directive::Todo),
        _ => None,
    }
}

/// `\#` and `\\` as version 14 has them.
fn unescaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = chars.next_if(|next| c == '\\' && matches!(next, '#' | '\\'));
        text.push(escaped.unwrap_or(c));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_has_a_number_a_name_and_a_directive() {
        use Directive::{Skip, Todo};
        for (line, is_ok, id, name, directive) in [
            ("ok", true, None, "", None),
            ("not ok", false, None, "", None),
            ("ok 1", true, Some(1), "", None),
            ("ok 1 - a name", true, Some(1), "a name", None),
            ("ok 1 a name", true, Some(1), "a name", None),
            ("ok - 3 names", true, None, "3 names", None),
            ("ok 3rd", true, None, "3rd", None),
            ("ok 99999999999999999999 a", true, None, "99999999999999999999 a", None),
            ("not ok 7 - a # TODO b", false, Some(7), "a", Some(Todo)),
            ("not ok 7 # todo", false, Some(7), "", Some(Todo)),
            ("ok 3 - #SkIp reason", true, Some(3), "", Some(Skip)),
            ("ok 3 - a # Skipped: reason", true, Some(3), "a", Some(Skip)),
            ("ok 3 - a \\# SKIP", true, Some(3), "a # SKIP", None),
            ("ok 3 - http://a#skip", true, Some(3), "http://a#skip", None),
            ("ok 3 - number # 4", true, Some(3), "number # 4", None),
            ("ok 3 - a \\\\ b", true, Some(3), "a \\ b", None),
            ("ok 3 -", true, Some(3), "", None),
            ("ok 3 - ä # größer", true, Some(3), "ä # größer", None),
        ] {
            let point = TestPoint::parse(line).unwrap();
            let found = (point.is_ok, point.id, point.name.as_str(), point.directive);
            assert_eq!(found, (is_ok, id, name, directive), "{line}");
        }
        for line in ["okay", "ok-1", "not okay", "OK 1", " ok 1", "not  ok 1", "", "1..3"] {
            assert_eq!(TestPoint::parse(line), None, "{line}");
        }
        let timed = TestPoint::parse("ok 1 - test/a.js # time=12.6ms").unwrap();
        assert_eq!((timed.name.as_str(), timed.took_ms), ("test/a.js", Some(13)));
    }
}
