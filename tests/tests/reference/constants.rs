//! Values of constants, as the sources have them: a page of bounds says what the code says.

use std::collections::BTreeMap;
use std::fs;

use super::root;

/// References to other constants that are followed.
const MAX_DEPTH: usize = 6;
const DAY: u64 = 24 * 60 * 60 * 1_000;

/// The constants of the product by name, each with its file.
pub(super) struct Constants {
    by_name: BTreeMap<String, Vec<Constant>>,
}

struct Constant {
    file: String,
    value: syn::Expr,
}

/// A value: a number, or a time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Plain(u64),
    Millis(u64),
}

/// What `{crate::module::NAME:unit}` shows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Plain,
    Bytes,
    Mib,
    Millis,
    Seconds,
}

/// The constants of a file by name; what a function or a module of tests keeps for itself is no bound of the product.
fn gather(items: Vec<syn::Item>, file: &str, found: &mut BTreeMap<String, Vec<Constant>>) {
    let mut keep = |name: &syn::Ident, value: syn::Expr| {
        let constant = Constant { file: file.to_owned(), value };
        found.entry(name.to_string()).or_default().push(constant);
    };
    let mut inner = Vec::new();
    for item in items {
        match item {
            syn::Item::Const(item) => keep(&item.ident, *item.expr),
            syn::Item::Impl(all) => {
                for item in all.items {
                    if let syn::ImplItem::Const(item) = item {
                        keep(&item.ident, item.expr);
                    }
                }
            }
            syn::Item::Mod(module) if module.ident != "tests" => {
                inner.extend(module.content.map(|(_, items)| items));
            }
            _ => {}
        }
    }
    for items in inner {
        gather(items, file, found);
    }
}

impl Constants {
    /// Reads every source of the product that has a constant.
    pub(super) fn read() -> Self {
        let mut by_name = BTreeMap::new();
        let mut directories = vec![root().join("crates")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                if path.is_dir() {
                    directories.push(path);
                } else if name.ends_with(".rs") && name.contains("/src/") {
                    let text = fs::read_to_string(&path).unwrap();
                    if text.contains("const ") {
                        let file = syn::parse_file(&text).unwrap();
                        gather(file.items, &name, &mut by_name);
                    }
                }
            }
        }
        Self { by_name }
    }

    /// The constant that a path names: crate, modules that its file lies in, name.
    fn find(&self, path: &str) -> Result<&Constant, String> {
        let mut parts: Vec<&str> = path.split("::").collect();
        let name = parts.pop().unwrap_or_default();
        let all = self.by_name.get(name).ok_or_else(|| format!("{path}: no constant {name}"))?;
        let is_there = |constant: &&Constant| {
            let file = constant.file.trim_end_matches(".rs");
            let places: Vec<&str> = file.split('/').filter(|part| *part != "src").skip(1).collect();
            parts.iter().all(|part| places.contains(part))
        };
        let mut found = all.iter().filter(is_there);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(format!("{path}: no file of these modules has it")),
            (Some(one), Some(two)) => Err(format!("{path}: {} and {}", one.file, two.file)),
        }
    }

    /// The value of a constant.
    pub(super) fn value(&self, path: &str) -> Result<Number, String> {
        let constant = self.find(path)?;
        self.number(&constant.value, &constant.file, 0).map_err(|why| format!("{path}: {why}"))
    }

    fn number(&self, of: &syn::Expr, file: &str, depth: usize) -> Result<Number, String> {
        if depth > MAX_DEPTH {
            return Err("refers to others too deeply".to_owned());
        }
        let inner = |of: &syn::Expr| self.number(of, file, depth + 1);
        match of {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(whole), .. }) => {
                whole.base10_parse().map(Number::Plain).map_err(|error| error.to_string())
            }
            syn::Expr::Paren(paren) => inner(&paren.expr),
            syn::Expr::Group(group) => inner(&group.expr),
            syn::Expr::Cast(cast) => inner(&cast.expr),
            syn::Expr::Binary(binary) => {
                let (left, right) = (inner(&binary.left)?.plain(), inner(&binary.right)?.plain());
                let whole = match binary.op {
                    syn::BinOp::Mul(_) => left * right,
                    syn::BinOp::Add(_) => left + right,
                    syn::BinOp::Sub(_) => left - right,
                    syn::BinOp::Div(_) => left / right,
                    syn::BinOp::Shl(_) => left << right,
                    _ => return Err("an operation that no bound has".to_owned()),
                };
                Ok(Number::Plain(whole))
            }
            syn::Expr::Call(call) => {
                let syn::Expr::Path(path) = &*call.func else {
                    return Err("a call of no function".to_owned());
                };
                let name = path.path.segments.last().map(|last| last.ident.to_string());
                let factor = match name.as_deref() {
                    Some("from_millis" | "from_ms") => 1,
                    Some("from_secs" | "from_s") => 1_000,
                    Some("from_mins") => 60_000,
                    Some("from_hours") => 3_600_000,
                    _ => return Err("a call that makes no time".to_owned()),
                };
                let mut arguments = call.args.iter();
                let (Some(argument), None) = (arguments.next(), arguments.next()) else {
                    return Err("a time of one number".to_owned());
                };
                Ok(Number::Millis(inner(argument)?.plain() * factor))
            }
            syn::Expr::Path(path) => {
                let name = path.path.segments.last().ok_or("a path")?.ident.to_string();
                let all = self.by_name.get(&name).ok_or_else(|| format!("no constant {name}"))?;
                let here = all.iter().find(|constant| constant.file == file);
                let only = (all.len() == 1).then(|| all.first()).flatten();
                let constant = here.or(only).ok_or_else(|| format!("{name}: several constants"))?;
                self.number(&constant.value, &constant.file, depth + 1)
            }
            _ => Err("not a number, a time or a sum of them".to_owned()),
        }
    }

    /// A text whose `{path}` and `{path:unit}` are replaced, and the paths.
    pub(super) fn filled(&self, text: &str) -> Result<Filled, String> {
        let mut filled = Filled::default();
        let mut parts = text.split('{');
        filled.text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (name, rest) = part.split_once('}').ok_or_else(|| format!("{text}: no brace"))?;
            let (path, unit) = match name.rsplit_once(':') {
                Some((path, unit)) if !path.ends_with(':') => (path, unit),
                _ => (name, ""),
            };
            filled.text.push_str(&shown(self.value(path)?, Unit::named(unit)?));
            filled.text.push_str(rest);
            filled.paths.push(path.to_owned());
        }
        Ok(filled)
    }
}

/// What became of a text.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Filled {
    pub text: String,
    pub paths: Vec<String>,
}

impl Number {
    const fn plain(self) -> u64 {
        match self {
            Self::Plain(whole) | Self::Millis(whole) => whole,
        }
    }
}

impl Unit {
    fn named(name: &str) -> Result<Self, String> {
        match name {
            "" => Ok(Self::Plain),
            "bytes" => Ok(Self::Bytes),
            "mib" => Ok(Self::Mib),
            "ms" => Ok(Self::Millis),
            "s" => Ok(Self::Seconds),
            other => Err(format!("{other}: no unit; write bytes, mib, ms or s")),
        }
    }
}

fn shown(number: Number, unit: Unit) -> String {
    match (number, unit) {
        (Number::Millis(ms), _) | (Number::Plain(ms), Unit::Millis) => time(ms),
        (Number::Plain(s), Unit::Seconds) => time(s * 1_000),
        (Number::Plain(bytes), Unit::Bytes) => size(bytes),
        (Number::Plain(mib), Unit::Mib) => size(mib << 20),
        (Number::Plain(whole), Unit::Plain) => grouped(whole),
    }
}

/// The largest unit of which it is a whole number.
fn time(ms: u64) -> String {
    let units = [(DAY, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let whole = units.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit) && ms > 0);
    match whole {
        Some((DAY, _)) if ms == DAY => "24 h".to_owned(),
        Some((unit, name)) => format!("{} {name}", grouped(ms / unit)),
        None => format!("{} ms", grouped(ms)),
    }
}

fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes.is_multiple_of(1 << shift) && bytes > 0);
    match whole {
        Some((shift, name)) => format!("{} {name}", grouped(bytes >> shift)),
        None => format!("{} bytes", grouped(bytes)),
    }
}

fn grouped(whole: u64) -> String {
    let digits = whole.to_string();
    let mut said = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            said.push(',');
        }
        said.push(digit);
    }
    said
}

#[test]
fn a_constant_is_shown_by_its_unit() {
    let shown_as = |number, unit| shown(number, Unit::named(unit).unwrap());
    assert_eq!(shown_as(Number::Plain(1_048_576), "bytes"), "1 MiB");
    assert_eq!(shown_as(Number::Plain(512), "mib"), "512 MiB");
    assert_eq!(shown_as(Number::Plain(100_000), ""), "100,000");
    assert_eq!(shown_as(Number::Plain(250), "ms"), "250 ms");
    assert_eq!(shown_as(Number::Plain(DAY / 1_000), "s"), "24 h");
    assert_eq!(shown_as(Number::Millis(90_000), ""), "90 s");
    assert!(Unit::named("mb").is_err());
}

#[test]
fn an_expression_is_worked_out() {
    let mut by_name = BTreeMap::new();
    let text = "const A: usize = 4 * B; pub const B: usize = 1 << 10; const C: Duration = Duration::from_secs(30);";
    let file = syn::parse_file(text).unwrap();
    gather(file.items, "crates/flows/src/task_secrets.rs", &mut by_name);
    let constants = Constants { by_name };
    assert_eq!(constants.value("flows::task_secrets::A"), Ok(Number::Plain(4096)));
    let filled = constants.filled("at most {flows::task_secrets::A:bytes}, {flows::C}").unwrap();
    assert_eq!(filled.text, "at most 4 KiB, 30 s");
    assert_eq!(filled.paths, ["flows::task_secrets::A", "flows::C"]);
    assert!(constants.value("ledger::A").is_err());
}
