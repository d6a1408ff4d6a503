//! `check`: what is wrong with recipes, without a server.
//!
//! ```text
//! FILE, -, DIR --search--> recipe files --lint--> file:line:column: error|warning: what [code]
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use cofferdam_contracts::lint::{LintFinding, LintReport, LintSeverity, lint};
use cofferdam_contracts::recipe::MAX_RECIPE_BYTES;
use serde_json::{Value, json};

use super::exit::Exit;
use super::flag;
use super::output::{self, Ink};

/// Entries of directories that are looked at: a large repository.
const MAX_ENTRIES: usize = 200_000;
/// Recipes that are found in directories.
const MAX_FILES: usize = 2_000;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Recipe files; in a directory every .yaml and .yml that has a `plan`, below it too; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub paths: Vec<PathBuf>,
    /// Exit 1 for warnings too
    #[arg(long)]
    pub deny_warnings: bool,
    #[arg(long, help = flag::JSON)]
    pub json: bool,
}

/// A file, and what is known of it.
#[derive(Debug)]
struct CheckedFile {
    name: String,
    /// Findings, or why it could not be read.
    report: Result<LintReport, String>,
}

/// What all files come to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    files: usize,
    unread: usize,
    errors: usize,
    warnings: usize,
}

/// Looks at every file, prints what was found, and says by the exit code whether all is well.
pub(crate) fn check(args: &CheckArgs) -> Exit {
    let mut skipped = 0;
    let mut checked = Vec::new();
    for path in &args.paths {
        match path.is_dir() {
            true => {
                let search = search(path);
                skipped += search.skipped;
                checked.extend(search.files);
                checked.extend(
                    search.fault.map(|why| CheckedFile {
                        name: path.display().to_string(),
                        report: Err(why),
                    }),
                );
            }
            false => checked.push(of_path(path)),
        }
    }
    let tally = Tally::of(&checked);
    match args.json {
        true => output::json(&document(&checked, &tally, skipped)),
        false => checked.iter().for_each(print),
    }
    if !args.json {
        if skipped > 0 {
            output::note(&format!("{skipped} YAML files without a top-level `plan` were skipped"));
        }
        output::note(&tally.words());
    }
    tally.exit(args.deny_warnings)
}

/// What a directory has.
#[derive(Debug, Default)]
struct Search {
    files: Vec<CheckedFile>,
    /// YAML that holds something other than a recipe.
    skipped: usize,
    /// Why not all of it was looked at.
    fault: Option<String>,
}

/// Recipes below a directory, by their names. Links and hidden directories are left out.
fn search(top: &Path) -> Search {
    let mut search = Search::default();
    let (mut next, mut entries) = (vec![top.to_owned()], 0_usize);
    while let Some(directory) = next.pop() {
        let listed = std::fs::read_dir(&directory);
        let listed = listed.and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let mut listed = match listed {
            Ok(listed) => listed,
            Err(error) => {
                search.fault = Some(format!("cannot read {}: {error}", directory.display()));
                continue;
            }
        };
        entries += listed.len();
        if entries > MAX_ENTRIES {
            search.fault = Some(format!("more than {MAX_ENTRIES} entries; name the files"));
            break;
        }
        listed.sort_by_key(std::fs::DirEntry::file_name);
        let mut below = Vec::new();
        for entry in listed {
            let (path, kind) = (entry.path(), entry.file_type());
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            match kind {
                Ok(kind) if kind.is_dir() && !is_hidden => below.push(path),
                Ok(kind) if kind.is_file() && is_yaml(&path) => search.add(&path),
                _ => {}
            }
        }
        if search.files.len() > MAX_FILES {
            search.fault = Some(format!("more than {MAX_FILES} recipes; name the files"));
            break;
        }
        next.extend(below.into_iter().rev());
    }
    search
}

impl Search {
    fn add(&mut self, path: &Path) {
        let name = path.display().to_string();
        match read(path) {
            Ok(text) if !is_recipe(&text) => self.skipped += 1,
            Ok(text) => self.files.push(CheckedFile { name, report: Ok(lint(&text)) }),
            Err(why) => self.files.push(CheckedFile { name, report: Err(why) }),
        }
    }
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Whether a YAML file of a directory is a recipe: one that is broken is too.
fn is_recipe(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("plan:"))
}

fn of_path(path: &Path) -> CheckedFile {
    let is_stdin = path.as_os_str() == "-";
    let (name, text) = match is_stdin {
        true => ("-".to_owned(), text_of(io::stdin())),
        false => (path.display().to_string(), read(path)),
    };
    CheckedFile { name, report: text.map(|text| lint(&text)) }
}

fn read(path: &Path) -> Result<String, String> {
    File::open(path).map_err(|error| format!("cannot read it: {error}")).and_then(text_of)
}

/// At most one byte more than a recipe may have.
fn text_of(from: impl Read) -> Result<String, String> {
    let most = u64::try_from(MAX_RECIPE_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    from.take(most).read_to_end(&mut bytes).map_err(|error| format!("cannot read it: {error}"))?;
    // What is cut within a character is too large in any case.
    let is_cut = bytes.len() > MAX_RECIPE_BYTES;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if is_cut => Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
        Err(_) => Err("cannot read it: it is not UTF-8".to_owned()),
    }
}

fn print(file: &CheckedFile) {
    let report = match &file.report {
        Ok(report) => report,
        Err(why) => return output::note(&format!("{}: {why}", file.name)),
    };
    for finding in &report.findings {
        let (color, severity) = match finding.severity {
            LintSeverity::Error => ("31", "error"),
            LintSeverity::Warning => ("33", "warning"),
        };
        let place = format!("{}: ", place(&file.name, finding));
        let rest = format!(": {} [{}]", finding.message, finding.code.as_str());
        output::line_of(&[Ink::Plain(&place), Ink::Color(color, severity), Ink::Plain(&rest)]);
    }
    if report.more > 0 {
        output::line(&format!("{}: {} more findings", file.name, report.more));
    }
}

/// `file:line:column`, as editors read it.
fn place(name: &str, finding: &LintFinding) -> String {
    match (finding.line, finding.column) {
        (Some(line), Some(column)) => format!("{name}:{line}:{column}"),
        _ => name.to_owned(),
    }
}

fn document(checked: &[CheckedFile], tally: &Tally, skipped: usize) -> Value {
    let file = |file: &CheckedFile| match &file.report {
        Ok(report) => json!({
            "file": file.name, "recipe": report.recipe, "findings": report.findings, "more": report.more,
        }),
        Err(why) => json!({"file": file.name, "error": why}),
    };
    json!({
        "files": checked.iter().map(file).collect::<Vec<_>>(),
        "errors": tally.errors, "warnings": tally.warnings, "unread": tally.unread, "skipped": skipped,
    })
}

impl Tally {
    fn of(checked: &[CheckedFile]) -> Self {
        let mut tally = Self { files: checked.len(), ..Self::default() };
        for file in checked {
            match &file.report {
                Ok(report) => {
                    tally.errors += report.count(LintSeverity::Error);
                    tally.warnings += report.count(LintSeverity::Warning);
                }
                Err(_) => tally.unread += 1,
            }
        }
        tally
    }

    /// Errors and warnings in words.
    fn words(&self) -> String {
        let count = |number: usize, what: &str| match number {
            1 => format!("1 {what}"),
            _ => format!("{number} {what}s"),
        };
        let found = format!("{}, {}", count(self.errors, "error"), count(self.warnings, "warning"));
        let files = count(self.files, "file");
        match (self.unread, self.errors + self.warnings) {
            (0, 0) => format!("{files}: nothing found"),
            (0, _) => format!("{files}: {found}"),
            (unread, _) => format!("{files}, {unread} not read: {found}"),
        }
    }

    /// An unread file is an error of the command, a finding its negative answer.
    fn exit(&self, deny_warnings: bool) -> Exit {
        match (self.unread, self.errors, self.warnings) {
            (1.., ..) => Exit::Error,
            (0, 1.., _) => Exit::No,
            (0, 0, 1..) if deny_warnings => Exit::No,
            _ => Exit::Ok,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str = "id: a\nv: \"1\"\nplan:\n  tasks:\n    - {name: t, value: x}\n";

    #[test]
    fn the_exit_says_whether_all_is_well() {
        let tally = |unread, errors, warnings| Tally { files: 1, unread, errors, warnings };
        for (of, strict, exit) in [
            (tally(0, 0, 0), false, Exit::Ok),
            (tally(0, 0, 2), false, Exit::Ok),
            (tally(0, 0, 2), true, Exit::No),
            (tally(0, 1, 0), false, Exit::No),
            (tally(1, 1, 0), false, Exit::Error),
        ] {
            assert_eq!(of.exit(strict), exit, "{of:?}");
        }
        assert_eq!(tally(0, 1, 2).words(), "1 file: 1 error, 2 warnings");
        assert_eq!(tally(0, 0, 0).words(), "1 file: nothing found");
    }

    #[test]
    fn a_directory_is_searched_for_recipes_and_for_nothing_else() {
        let top = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = top.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("b.yaml", GOOD);
        write("a/deep/c.yml", GOOD);
        write("a/broken.yaml", "plan: [\n");
        write("a/compose.yaml", "services: {}\n");
        write("a/recipe.txt", GOOD);
        write(".hidden/d.yaml", GOOD);
        write("binary.yaml", "x");
        fs::write(top.path().join("binary.yaml"), [0xff, 0xfe]).unwrap();
        std::os::unix::fs::symlink("b.yaml", top.path().join("link.yaml")).unwrap();
        let search = search(top.path());
        let names: Vec<&str> = search.files.iter().map(|file| file.name.as_str()).collect();
        let inside = |name: &str| top.path().join(name).display().to_string();
        assert_eq!(
            names,
            [
                inside("b.yaml"),
                inside("binary.yaml"),
                inside("a/broken.yaml"),
                inside("a/deep/c.yml")
            ]
        );
        assert_eq!((search.skipped, search.fault), (1, None));
        let tally = Tally::of(&search.files);
        assert_eq!((tally.unread, tally.errors), (1, 1), "{:?}", search.files);
    }

    #[test]
    fn a_file_that_is_not_there_or_too_large_is_said_and_the_others_are_checked() {
        let top = tempfile::tempdir().unwrap();
        let large = top.path().join("large.yaml");
        fs::write(&large, format!("id: a # {}", "ä".repeat(MAX_RECIPE_BYTES))).unwrap();
        let report = of_path(&large).report.unwrap();
        assert!(report.findings[0].message.contains("larger than"), "{report:?}");
        let absent = of_path(&top.path().join("none.yaml")).report.unwrap_err();
        assert!(absent.contains("cannot read it"), "{absent}");
        let whole = document(
            &[of_path(&large), of_path(&top.path().join("none.yaml"))],
            &Tally { files: 2, unread: 1, errors: 1, warnings: 0 },
            0,
        );
        assert_eq!(whole["files"][0]["findings"][0]["code"], "recipe_invalid");
        assert!(whole["files"][1]["error"].is_string(), "{whole}");
    }
}
