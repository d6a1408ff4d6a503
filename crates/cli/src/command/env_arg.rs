//! Variables of a command by `--env` and `--env-file`. Pure, but for the reading of files and of this process's environment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::exit::Misuse;

/// Bytes of one file of variables: all of a recipe's text.
pub(crate) const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Variables of a command, as a request may have them.
const MAX_VARIABLES: usize = 4_096;
/// Bytes of a name and its value together, as a request may have them.
const MAX_VARIABLE_BYTES: usize = 131_070;

/// Characters of a name in a message.
const SHOWN: usize = 64;

type Variables = BTreeMap<String, String>;

/// All of them: files in their order, then the single ones. The last word on a name holds.
///
/// # Errors
/// A name, value or file that cannot be passed, by where it stands.
pub(crate) fn variables(files: &[PathBuf], single: &[String]) -> anyhow::Result<Variables> {
    let own = |name: &str| cofferdam_ambient::env::var(name);
    let mut all = Variables::new();
    for file in files {
        let at = file.display();
        let text = read(file).map_err(|why| Misuse(format!("--env-file {at}: {why}")))?;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = variable(line, own)
                .map_err(|why| Misuse(format!("--env-file {at}:{number}: {why}")))?;
            all.insert(name, value);
        }
    }
    for text in single {
        let (name, value) = variable(text, own).map_err(|why| {
            // Never its value, which may be a secret.
            let name: String =
                text.split('=').next().unwrap_or_default().chars().take(SHOWN).collect();
            Misuse(format!("--env {name:?}: {why}"))
        })?;
        all.insert(name, value);
    }
    if all.len() > MAX_VARIABLES {
        let why = format!("--env: {} variables, and at most {MAX_VARIABLES}", all.len());
        return Err(Misuse(why).into());
    }
    Ok(all)
}

fn read(file: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    let most = MAX_FILE_BYTES.saturating_add(1);
    opened.take(most).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if u64::try_from(bytes.len()).is_ok_and(|size| size > MAX_FILE_BYTES) {
        return Err(format!("more than {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "not text (UTF-8)".to_owned())
}

/// `NAME=VALUE`, the value as it stands; or `NAME`, whose value is that of `own`. Pure.
fn variable(text: &str, own: impl Fn(&str) -> Option<String>) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text.trim_end(), None),
    };
    // A line without `=` may be one of a secret: no message has all of it.
    let shown: String = name.chars().take(SHOWN).collect();
    if name.is_empty() {
        return Err("a name is missing before `=`: write NAME=VALUE".to_owned());
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!(
            "{shown:?} cannot name a variable: it has a space or control character"
        ));
    }
    let value = value
        .or_else(|| own(name))
        .ok_or_else(|| format!("{shown} is not set here: write {shown}=VALUE"))?;
    if value.contains('\0') {
        return Err(format!("the value of {shown} has a NUL character"));
    }
    if name.len().saturating_add(value.len()) > MAX_VARIABLE_BYTES {
        return Err(format!(
            "{name} and its value have more than {MAX_VARIABLE_BYTES} bytes: put it into a file of a directory that \
             --work gives"
        ));
    }
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn one(text: &str) -> Result<(String, String), String> {
        variable(text, |name| (name == "HERE").then(|| "mine".to_owned()))
    }

    #[test]
    fn a_variable_has_the_value_that_is_written_or_this_process_has() {
        for (text, name, value) in [
            ("A=b", "A", "b"),
            ("A=", "A", ""),
            ("A= b=c ", "A", " b=c "),
            ("A=\"q\" ${x}", "A", "\"q\" ${x}"),
            ("HERE", "HERE", "mine"),
        ] {
            assert_eq!(one(text), Ok((name.to_owned(), value.to_owned())), "{text}");
        }
        let whole = format!("A={}", "x".repeat(MAX_VARIABLE_BYTES - 1));
        assert!(one(&whole).is_ok());
    }

    #[test]
    fn what_cannot_be_passed_is_refused_with_what_to_write() {
        let long = format!("A={}", "x".repeat(MAX_VARIABLE_BYTES));
        for (text, word) in [
            ("=b", "NAME=VALUE"),
            ("", "NAME=VALUE"),
            ("A B=c", "space"),
            ("export A=c", "space"),
            ("A\u{1b}=c", "control"),
            ("ABSENT", "ABSENT=VALUE"),
            ("A=\0", "NUL"),
            (long.as_str(), "--work"),
        ] {
            let why = one(text).unwrap_err();
            assert!(why.contains(word), "{text:.20}: {why}");
        }
    }

    #[test]
    fn a_file_has_lines_and_the_last_word_on_a_name_holds() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"# note\n\n  A=1\nB=two words\r\nA=2\n").unwrap();
        let files = [file.path().to_owned()];
        let all = variables(&files, &["B=3".to_owned()]).unwrap();
        let want = [("A", "2"), ("B", "3")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(all, Variables::from(want));
        file.write_all(b"\nno name\n").unwrap();
        let why = variables(&files, &[]).unwrap_err().to_string();
        assert!(why.contains(":7: \"no name\""), "{why}");
        let much: Vec<String> = (0..=MAX_VARIABLES).map(|n| format!("V{n}=")).collect();
        assert!(variables(&[], &much).unwrap_err().to_string().contains("at most 4096"));
    }
}
