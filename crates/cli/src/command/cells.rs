//! How many cells of a terminal a text takes, and as much of it as fits. Pure.

use unicode_width::UnicodeWidthChar;

/// Stands for what was cut off.
pub(crate) const CUT: char = '…';

/// The cells that a text takes on a terminal: two of each wide character, none of a mark on the one before.
pub(crate) fn cells_of(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The beginning of a text that fits, in bytes.
pub(crate) fn fitting(text: &str, width: usize) -> usize {
    let mut taken = 0;
    for (at, c) in text.char_indices() {
        taken += c.width().unwrap_or(0);
        if taken > width {
            return at;
        }
    }
    text.len()
}

/// The text in so many cells; where it is longer it ends in [`CUT`].
pub(crate) fn cut(text: &str, width: usize) -> String {
    if cells_of(text) <= width {
        return text.to_owned();
    }
    let (kept, _) = text.split_at(fitting(text, width.saturating_sub(1)));
    let mark = if width == 0 { String::new() } else { CUT.to_string() };
    format!("{}{mark}", kept.trim_end())
}
