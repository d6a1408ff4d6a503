//! A shell's text as far as a quoted word is concerned: what it would be read as at a place.

use super::reader;

/// Words after which a command begins.
const KEYWORDS: [&str; 10] = ["if", "then", "elif", "else", "while", "until", "do", "!", "{", "}"];

/// A shell's text so far: what a quoted word would be at this place.
#[derive(Debug, Default)]
pub(super) struct Scan {
    quote: Option<char>,
    escaped: bool,
    comment: bool,
    /// Depth of `${`, the shell's own.
    parameter: usize,
    /// The word so far, to know `#` at its beginning, and `eval`.
    word: String,
    last: Option<char>,
    /// Whether what follows is a file's name.
    redirects: bool,
    /// The words of the simple command so far.
    words: Vec<String>,
    /// What was met after which no place is certain.
    lost: Option<&'static str>,
}

impl Scan {
    pub(super) fn literal(&mut self, text: &str) {
        text.chars().for_each(|c| self.step(c));
    }

    /// The shell's own `${`.
    pub(super) fn parameter(&mut self) {
        if self.quote != Some('\'') && !self.comment && !self.escaped {
            self.parameter += 1;
        }
        self.escaped = false;
        self.word.push('$');
    }

    /// A value was written here.
    pub(super) fn value(&mut self) {
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
            (c, None) if c.is_whitespace() || "|&;()<>".contains(c) => self.word_ends(c),
            (c, None) => self.word.push(c),
        }
    }

    fn word_ends(&mut self, c: char) {
        let word = std::mem::take(&mut self.word);
        self.redirects = matches!(c, '<' | '>') || (self.redirects && word.is_empty());
        if word == "eval" {
            self.lost = Some("after `eval`, which reads it a second time");
        }
        // `&&` and `||` are a part of what `[[` reads, up to its end.
        let is_open = self.words.iter().any(|word| word == "[[") && word != "]]";
        let is_keyword = self.words.is_empty() && KEYWORDS.contains(&word.as_str());
        if !word.is_empty() && !is_keyword {
            self.words.push(word);
        }
        if !is_open && (c == '\n' || "|&;()".contains(c))
            || self.words.last().is_some_and(|w| w == "]]")
        {
            self.words.clear();
        }
    }

    /// Why a value is more than a word to what it is handed to, if it is.
    pub(super) fn reads_again(&self) -> Option<String> {
        if reader::is_code_flag(&self.word) {
            return Some(format!("behind `{}`, where it is code", self.word));
        }
        let is_assignment = |word: &str| {
            word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            })
        };
        let mut words =
            self.words.iter().map(String::as_str).skip_while(|word| is_assignment(word)).peekable();
        // An assignment before a command, or a file that it is redirected to, is no program.
        if words.peek().is_none() && (is_assignment(&self.word) || self.redirects) {
            return None;
        }
        reader::reads_again(words.collect::<Vec<_>>().into_iter())
    }

    /// Whether a quoted word is one here; where it stands, if not.
    pub(super) fn is_a_word(&self) -> Result<(), &'static str> {
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
