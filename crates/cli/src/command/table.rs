//! Tables: rows in aligned columns under their heads, cut to the width of a terminal.
//!
//! On a terminal every line fits: cells are cut to the least width of their column, then columns of low priority go, and the last
//! column that stays takes several lines. Which columns went is said after the table. **Off a terminal nothing is cut and no column
//! goes: programs read it.**
//!
//! [`fitted`] decides how wide each column is; [`Table`] prints.

use std::io::IsTerminal;

use super::cells::{cells_of, cut, fitting};
use super::output;
use cofferdam_contracts::id::RunId;
use cofferdam_contracts::printable;
use cofferdam_contracts::run_name::short;

/// Cells between columns.
const GAP: usize = 2;
/// Lines that a cell of the last column takes; what is longer is cut. `show` and `--json` have all of it.
const MAX_LINES: usize = 4;

/// Which columns go first where a terminal is too narrow; of equal ones the right-most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    Extra,
    Usual,
    /// A row means nothing without it.
    Key,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column<'a> {
    head: &'a str,
    priority: Priority,
    /// The cells of a terminal that it keeps before another column goes; `None`: as wide as its longest cell.
    least: Option<usize>,
}

/// A column that every terminal shows.
pub(crate) const fn key(head: &str) -> Column<'_> {
    Column { head, priority: Priority::Key, least: None }
}

/// A column that goes after all of [`extra`].
pub(crate) const fn usual(head: &str) -> Column<'_> {
    Column { head, priority: Priority::Usual, least: None }
}

/// A column that goes first.
pub(crate) const fn extra(head: &str) -> Column<'_> {
    Column { head, priority: Priority::Extra, least: None }
}

impl Column<'_> {
    /// Its text may be cut, down to so many cells of a terminal.
    pub(crate) const fn least(mut self, cells: usize) -> Self {
        self.least = Some(cells);
        self
    }
}

/// How wide each column is on a terminal of this width; `None`: it goes. The sum with the gaps is at most `width` wherever that has a
/// cell for each column that stays. Pure.
fn fitted(columns: &[Column<'_>], natural: &[usize], width: usize) -> Vec<Option<usize>> {
    let least = |column: &Column<'_>, natural: usize| column.least.unwrap_or(natural).min(natural);
    let mut widths: Vec<Option<usize>> = columns
        .iter()
        .zip(natural)
        .map(|(column, natural)| Some(least(column, *natural)))
        .collect();
    while total(&widths) > width {
        // Of those that are here and may go, from the right.
        let may_go = columns.iter().zip(&mut widths).rev();
        let may_go =
            may_go.filter(|(column, width)| column.priority < Priority::Key && width.is_some());
        match may_go.min_by_key(|(column, _)| column.priority) {
            Some((_, width)) => *width = None,
            None => break,
        }
    }
    // The keys alone are too wide: the widest gives way.
    while total(&widths) > width {
        let Some(widest) = widths.iter_mut().flatten().max() else { break };
        if *widest < 2 {
            break;
        }
        *widest -= 1;
    }
    let mut spare = width.saturating_sub(total(&widths));
    for (cells, natural) in widths.iter_mut().zip(natural) {
        if let Some(cells) = cells {
            let more = natural.saturating_sub(*cells).min(spare);
            *cells += more;
            spare -= more;
        }
    }
    widths
}

/// The columns that a terminal has no cells for, in a line; `None` where it has all. Every command with a table has `--json`. Pure.
fn omission(heads: &[&str]) -> Option<String> {
    let verb = if heads.len() == 1 { "is" } else { "are" };
    let named = heads.join(", ");
    (!heads.is_empty()).then(|| format!("narrow: {named} {verb} left out; --json has all"))
}

/// Cells of a line with these columns.
fn total(widths: &[Option<usize>]) -> usize {
    let stay = widths.iter().flatten();
    stay.clone().sum::<usize>() + GAP * stay.count().saturating_sub(1)
}

/// The text in lines of so many cells, broken at spaces where there are some. Pure.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while lines.len() + 1 < MAX_LINES && cells_of(rest) > width {
        let most = fitting(rest, width);
        let (head, tail) = rest.split_at(most);
        let space = head.rfind(' ').filter(|at| !tail.starts_with(' ') && *at > 0);
        let (line, after) = rest.split_at(space.unwrap_or(most));
        if line.is_empty() {
            break;
        }
        lines.push(line.trim_end().to_owned());
        rest = after.trim_start();
    }
    lines.push(cut(rest, width));
    lines
}

/// A table that prints its rows a page at a time.
pub(crate) struct Table<'a> {
    columns: &'a [Column<'a>],
    /// The color of a cell of the last column.
    color: fn(&str) -> Option<&'static str>,
    /// Cells of the terminal; `None` off a terminal, or on one that does not say.
    width: Option<usize>,
    /// The longest cell of each column so far, its head among them.
    natural: Vec<usize>,
    has_heads: bool,
    /// Heads of the columns that went; of a later page as many or more, since cells only grow.
    gone: Vec<&'a str>,
}

impl<'a> Table<'a> {
    /// A table on standard output.
    pub(crate) fn new(columns: &'a [Column<'a>]) -> Self {
        Self::of_width(columns, terminal_width())
    }

    pub(super) fn of_width(columns: &'a [Column<'a>], width: Option<usize>) -> Self {
        let natural = columns.iter().map(|column| column.head.len()).collect();
        Self { columns, color: |_| None, width, natural, has_heads: false, gone: Vec::new() }
    }

    /// With a color for each cell of the last column that asks for one.
    pub(crate) fn colored(mut self, color: fn(&str) -> Option<&'static str>) -> Self {
        self.color = color;
        self
    }

    /// Prints rows, the first of them under the heads. A cell is one line of text, whatever is in it.
    pub(crate) fn page(&mut self, rows: impl IntoIterator<Item = Vec<String>>) {
        self.lines(rows).iter().for_each(|line| output::put(line));
    }

    /// Says which columns the terminal has no cells for. Call it after the last page; nothing is said off a terminal.
    pub(crate) fn end(self) {
        if std::io::stderr().is_terminal() {
            self.closing().iter().for_each(|line| output::note(line));
        }
    }

    /// What is said after the last page, as wide as the table.
    fn closing(&self) -> Vec<String> {
        let words = self.width.zip(omission(&self.gone));
        words.map(|(width, words)| wrapped(&words, width)).unwrap_or_default()
    }

    /// Lines as they are printed: what is not ours is escaped here.
    pub(super) fn lines(&mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Vec<String> {
        let escaped =
            |row: Vec<String>| row.iter().map(|cell| printable::line(cell).into_owned()).collect();
        let rows: Vec<Vec<String>> = rows.into_iter().map(escaped).collect();
        for row in &rows {
            let widths: Vec<usize> = row.iter().map(|cell| self.measure(cell)).collect();
            for (natural, width) in self.natural.iter_mut().zip(widths) {
                *natural = width.max(*natural);
            }
        }
        let widths = match self.width {
            Some(width) => fitted(self.columns, &self.natural, width),
            None => self.natural.iter().copied().map(Some).collect(),
        };
        let gone = self.columns.iter().zip(&widths).filter(|(_, width)| width.is_none());
        self.gone = gone.map(|(column, _)| column.head).collect();
        let mut lines = Vec::new();
        if !self.has_heads {
            self.has_heads = true;
            let heads: Vec<String> = self.columns.iter().map(|one| one.head.to_owned()).collect();
            lines.extend(self.aligned(&heads, &widths, |_| None));
        }
        for row in &rows {
            lines.extend(self.aligned(row, &widths, self.color));
        }
        lines
    }

    /// A row's lines: several where the cell of its last column takes them.
    fn aligned(
        &self,
        row: &[String],
        widths: &[Option<usize>],
        color: fn(&str) -> Option<&'static str>,
    ) -> Vec<String> {
        let inked = |at: usize, cell: String, whole: &str| match color(whole) {
            Some(color) if at + 1 == self.columns.len() => {
                output::inked(&std::io::stdout(), color, &cell)
            }
            _ => cell,
        };
        let kept: Vec<TableCell<'_>> = row
            .iter()
            .zip(widths)
            .enumerate()
            .filter_map(|(at, (text, width))| width.map(|width| TableCell { at, text, width }))
            .collect();
        let Some((last, before)) = kept.split_last() else { return Vec::new() };
        let (mut line, mut lines) = (String::new(), Vec::new());
        for cell in before {
            let text = match self.width {
                Some(_) => cut(cell.text, cell.width),
                None => cell.text.to_owned(),
            };
            let pad = cell.width.saturating_sub(self.measure(&text)) + GAP;
            line.push_str(&inked(cell.at, text, cell.text));
            line.push_str(&" ".repeat(pad));
        }
        let indent = before.iter().map(|cell| cell.width + GAP).sum();
        let parts = match self.width {
            Some(_) => wrapped(last.text, last.width),
            None => vec![last.text.to_owned()],
        };
        for part in parts {
            line.push_str(&inked(last.at, part, last.text));
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(indent);
        }
        lines
    }

    /// How wide a text is. Off a terminal a column is as wide as it has characters: what reads it counts those.
    fn measure(&self, text: &str) -> usize {
        match self.width {
            Some(_) => cells_of(text),
            None => text.chars().count(),
        }
    }
}

/// A cell of a column that stays.
struct TableCell<'a> {
    /// The column's place in the table.
    at: usize,
    text: &'a str,
    width: usize,
}

/// Prints rows in aligned columns under their heads, and what a narrow terminal lacks of them.
pub(crate) fn print(columns: &[Column<'_>], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new(columns);
    table.page(rows);
    table.end();
}

/// Cells of a line of the terminal that reads standard output.
fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    Some(usize::from(size.ws_col)).filter(|cells| *cells > 0)
}

/// Runs as a table names them: on a terminal by the shortest beginnings that tell them from each other, and whole for programs.
pub(crate) fn run_ids<'a>(ids: impl IntoIterator<Item = &'a RunId>) -> Vec<String> {
    let ids: Vec<&RunId> = ids.into_iter().collect();
    match std::io::stdout().is_terminal() {
        true => short(&ids).into_iter().map(str::to_owned).collect(),
        false => ids.into_iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [Column<'_>; 5] = [
        key("RUN"),
        key("STATUS").least(9),
        usual("RECIPE").least(8),
        extra("CREATED (UTC)"),
        usual("ERROR").least(16),
    ];

    fn row(cells: [&str; 5]) -> Vec<String> {
        cells.map(str::to_owned).into()
    }

    fn rows() -> Vec<Vec<String>> {
        vec![
            row(["rn_0a1b2c3d", "succeeded", "tests@1", "2026-11-22 00:00:00", ""]),
            row([
                "rn_ffffffff",
                "queued (memory: 3 before you)",
                "a-recipe-with-a-long-name@12",
                "2026-11-22 00:00:00",
                "the task t failed: its command ended with exit code 1 after 12 s",
            ]),
        ]
    }

    fn shown(columns: &[Column<'_>], rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
        Table::of_width(columns, width).lines(rows)
    }

    #[test]
    fn a_wide_terminal_has_every_column_and_a_narrow_one_those_that_matter() {
        assert_eq!(
            shown(&RUNS, rows(), Some(80)),
            [
                "RUN          STATUS              RECIPE    CREATED (UTC)        ERROR",
                "rn_0a1b2c3d  succeeded           tests@1   2026-11-22 00:00:00",
                "rn_ffffffff  queued (memory: 3…  a-recip…  2026-11-22 00:00:00  the task t",
                "                                                                failed: its",
                "                                                                command ended",
                "                                                                with exit code…",
            ]
        );
        assert_eq!(
            shown(&RUNS, rows(), Some(40)),
            [
                "RUN          STATUS             RECIPE",
                "rn_0a1b2c3d  succeeded          tests@1",
                "rn_ffffffff  queued (memory:…   a-recipe",
                "                                -with-a-",
                "                                long-nam",
                "                                e@12",
            ]
        );
    }

    #[test]
    fn a_table_knows_which_columns_its_terminal_lacks() {
        let closing = |width: Option<usize>| {
            let mut table = Table::of_width(&RUNS, width);
            table.lines(rows());
            table.closing()
        };
        assert!(closing(None).is_empty() && closing(Some(80)).is_empty());
        let one = ["narrow: CREATED (UTC) is left out; --json has all"];
        assert_eq!(closing(Some(60)), one);
        let two = ["narrow: CREATED (UTC), ERROR are left", "out; --json has all"];
        assert_eq!(closing(Some(40)), two);
    }

    #[test]
    fn a_later_page_of_a_table_lacks_at_least_what_an_earlier_one_did() {
        let [short, long] = [rows().remove(0), rows().remove(1)];
        for width in 5..160 {
            let mut table = Table::of_width(&RUNS, Some(width));
            table.lines([short.clone()]);
            let before = table.gone.clone();
            table.lines([long.clone()]);
            assert!(before.iter().all(|head| table.gone.contains(head)), "{width}: {before:?}");
            table.lines(Vec::new());
            assert!(before.iter().all(|head| table.gone.contains(head)), "{width}: no rows");
        }
    }

    #[test]
    fn no_line_is_wider_than_its_terminal() {
        let wide = row([
            "日本語日本語",
            "\u{301}e\u{301}é",
            "\u{1f389}\u{1f389}",
            "x",
            "日本 語 日本語日本語 日本語",
        ]);
        for width in 5..160 {
            for line in shown(&RUNS, [rows(), vec![wide.clone()]].concat(), Some(width)) {
                assert!(cells_of(&line) <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn wide_characters_align_and_are_never_halved() {
        let columns = [key("NAME").least(4), key("N")];
        let row = |name: &str| vec![name.to_owned(), "1".to_owned()];
        let lines = shown(&columns, vec![row("日本"), row("abcd"), row("e\u{301}")], Some(80));
        assert_eq!(lines, ["NAME  N", "日本  1", "abcd  1", "e\u{301}     1"]);
        assert_eq!((cut("日本語", 5), cut("日本語", 6)), ("日本…".into(), "日本語".into()));
        assert_eq!(
            (cut("日本語", 4), cut("日本語", 1), cut("日", 0)),
            ("日…".into(), "…".into(), String::new())
        );
    }

    #[test]
    fn off_a_terminal_nothing_is_cut_and_escapes_of_others_are_shown_anywhere() {
        let lines = shown(&RUNS, rows(), None);
        assert!(
            lines[2].ends_with("the task t failed: its command ended with exit code 1 after 12 s")
        );
        assert_eq!(lines[0].find("STATUS"), Some(13));
        // By characters, as before there were widths.
        let row = |name: &str| vec![name.to_owned(), "1".to_owned()];
        assert_eq!(
            shown(&[key("NAME"), key("N")], vec![row("日本")], None),
            ["NAME  N", "日本    1"]
        );
        for width in [None, Some(80), Some(7)] {
            let lines =
                shown(&[key("NAME"), key("N")], vec![row("a\u{1b}[2K\nforged ok\u{202e}")], width);
            assert!(!lines.concat().contains(['\u{1b}', '\n', '\u{202e}']), "{lines:?}");
        }
        let whole = shown(&[key("NAME")], vec![vec!["a\u{1b}[2K\n\u{202e}".into()]], None);
        assert_eq!(whole[1], "a\\x1b[2K\\n\\u{202e}");
    }

    #[test]
    fn a_long_last_cell_takes_some_lines_and_ends_there() {
        assert_eq!(wrapped("one two three", 20), ["one two three"]);
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh", 3), ["abc", "def", "gh"]);
        let lines = wrapped(&"x ".repeat(100), 4);
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (MAX_LINES, Some("x x…")));
        assert_eq!(wrapped("日", 1), ["…"]);
        assert_eq!(wrapped("", 0), [""]);
    }

    #[test]
    fn pages_of_one_table_have_one_head_and_widths_that_grow() {
        let columns = [key("A"), key("B")];
        let mut table = Table::of_width(&columns, None);
        let row = |a: &str| vec![vec![a.to_owned(), "x".to_owned()]];
        assert_eq!(table.lines(row("aaa")), ["A    B", "aaa  x"]);
        assert_eq!(table.lines(row("aaaaa")), ["aaaaa  x"]);
        assert_eq!(table.lines(row("a")), ["a      x"]);
        assert_eq!(shown(&columns, Vec::new(), Some(80)), ["A  B"]);
    }
}
