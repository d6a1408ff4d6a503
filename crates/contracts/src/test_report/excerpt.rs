//! The beginning of a text, with at most so many bytes.

/// A text that grows up to a bound and ignores what comes after.
#[derive(Debug, Clone)]
pub(super) struct Excerpt {
    text: String,
    bound: usize,
    is_full: bool,
    is_blank: bool,
}

impl Excerpt {
    pub(super) fn new(bound: usize) -> Self {
        Self { text: String::new(), bound, is_full: false, is_blank: true }
    }

    /// Appends whole characters up to the bound. A NUL, which no row can store, becomes U+FFFD.
    pub(super) fn push(&mut self, more: &str) {
        for c in more.chars() {
            if self.is_full {
                return;
            }
            let c = if c == '\0' { char::REPLACEMENT_CHARACTER } else { c };
            match self.text.len().saturating_add(c.len_utf8()) <= self.bound {
                true => {
                    self.is_blank &= c.is_whitespace();
                    self.text.push(c);
                }
                false => self.is_full = true,
            }
        }
    }

    /// Appends a line and its end.
    pub(super) fn push_line(&mut self, line: &str) {
        self.push(line);
        self.push("\n");
    }

    /// Whether it has white space alone. Known as it grows: a report may ask at each of millions of lines.
    pub(super) fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// First line that has a character, without the white space around it.
    pub(super) fn first_line(&self) -> &str {
        self.text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
    }

    /// The text without empty lines before and white space behind it.
    pub(super) fn finish(self) -> String {
        self.text.trim_end().trim_start_matches(['\r', '\n']).to_owned()
    }
}

/// The beginning of a text, without white space around it.
pub(super) fn excerpt(text: &str, bound: usize) -> String {
    let mut cut = Excerpt::new(bound);
    cut.push(text.trim());
    cut.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_has_no_nul() {
        assert_eq!(excerpt(" a\0b ", 10), "a\u{fffd}b");
        assert_eq!(excerpt("äöü", 5), "äö");
        assert_eq!(excerpt("äöü", 6), "äöü");
        let mut cut = Excerpt::new(3);
        ["ab", "äc", "d"].iter().for_each(|part| cut.push(part));
        assert_eq!(cut.finish(), "ab", "nothing comes after what did not fit");
        let mut cut = Excerpt::new(20);
        cut.push("\n  \n  a\n  b\n");
        assert_eq!(cut.first_line(), "a");
        assert_eq!(cut.finish(), "  \n  a\n  b");
    }
}
