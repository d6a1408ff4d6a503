//! Lines of a program's output, however its chunks are cut.

/// Bytes of a line: a longer one is shown in pieces, so that output without an end of line is shown too.
const MAX_LINE: usize = 64 * 1024;

/// What of a stream is not a whole line yet.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    pending: Vec<u8>,
}

impl LineBuffer {
    /// Takes the next bytes and gives the lines that end in them, each with its end of line. A piece of a line beyond the bound has
    /// none.
    pub(crate) fn push(&mut self, chunk: &[u8], mut line: impl FnMut(&[u8])) {
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(part);
            self.cut(&mut line);
            if part.ends_with(b"\n") {
                line(&self.pending);
                self.pending.clear();
            }
        }
    }

    /// Gives pieces of a line beyond the bound, each at the end of a character.
    fn cut(&mut self, piece: &mut impl FnMut(&[u8])) {
        let mut rest = self.pending.as_slice();
        while rest.len() > MAX_LINE {
            let (before, after) =
                rest.split_at_checked(char_start(rest, MAX_LINE)).unwrap_or((rest, &[]));
            piece(before);
            rest = after;
        }
        let cut = self.pending.len().saturating_sub(rest.len());
        self.pending.drain(..cut);
    }

    /// What is left without an end of line; nothing where the last line ended.
    pub(crate) fn remainder(&mut self) -> Option<Vec<u8>> {
        (!self.pending.is_empty()).then(|| std::mem::take(&mut self.pending))
    }
}

/// The beginning of the character that a byte belongs to; the byte itself where the text around it is not UTF-8. Pure.
fn char_start(text: &[u8], at: usize) -> usize {
    let before = at.saturating_sub(3);
    let is_start = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0b1100_0000 != 0b1000_0000);
    (before..=at).rev().find(is_start).filter(|at| *at > 0).unwrap_or(at)
}

/// The lines that end in the next piece of a stream of lines; `pending` keeps what has no end yet. Pure.
pub(crate) fn whole_lines(pending: &mut Vec<u8>, piece: &[u8]) -> Vec<u8> {
    let before = pending.len();
    pending.extend_from_slice(piece);
    let end = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| before + at + 1);
    let rest = pending.split_off(end);
    std::mem::replace(pending, rest)
}

/// Where the last lines of a text begin; `None` where it has fewer. An end of line at its end begins none. Pure.
pub(crate) fn last_lines(text: &[u8], count: usize) -> Option<usize> {
    let Some(before) = count.checked_sub(1) else { return Some(text.len()) };
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    breaks.map(|(at, _)| at + 1).nth(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut buffer = LineBuffer::default();
        let mut lines: Vec<Vec<u8>> = Vec::new();
        for chunk in text.chunks(step) {
            buffer.push(chunk, |line| lines.push(line.to_vec()));
        }
        lines.extend(buffer.remainder());
        assert_eq!(buffer.remainder(), None);
        lines
    }

    #[test]
    fn a_line_is_never_cut_by_a_chunk() {
        let text = "one\n\ntwo größer\nrest".as_bytes();
        for step in 1..=text.len() {
            let wanted: [&[u8]; 4] = [b"one\n", b"\n", "two größer\n".as_bytes(), b"rest"];
            assert_eq!(lines(text, step), wanted, "{step}");
        }
        assert_eq!(lines(b"one\n", 2), [b"one\n"]);
        assert!(lines(b"", 1).is_empty());
    }

    #[test]
    fn a_line_without_an_end_is_shown_in_pieces_of_whole_characters() {
        // The bound falls into a character.
        let text = "x".to_owned() + &"ö".repeat(MAX_LINE) + "\nnext\n";
        for step in [7, 4_097, MAX_LINE, text.len()] {
            let lines = lines(text.as_bytes(), step);
            assert_eq!(lines.concat(), text.as_bytes(), "{step}");
            assert!(lines.iter().all(|line| line.len() <= MAX_LINE + 1), "{step}");
            assert!(lines.iter().all(|line| std::str::from_utf8(line).is_ok()), "{step}");
            assert_eq!(lines.len(), 4, "{step}: two pieces, the end of the line and the next line");
            assert_eq!(lines[0].len(), MAX_LINE - 1, "{step}");
        }
        let bytes = vec![0x80; MAX_LINE + 1];
        assert_eq!(lines(&bytes, 1_000).concat(), bytes, "no character begins in it");
    }

    #[test]
    fn the_last_lines_are_counted_from_the_end() {
        let text = b"one\ntwo\nthree\n";
        let last = |count| last_lines(text, count).map(|at| &text[at..]);
        assert_eq!(last(0), Some(&b""[..]));
        assert_eq!(last(1), Some(&b"three\n"[..]));
        assert_eq!(last(2), Some(&b"two\nthree\n"[..]));
        assert_eq!(last(3), None, "its first line may have begun before");
        assert_eq!(last_lines(b"one\ntwo", 1), Some(4));
        assert_eq!(last_lines(b"\n\n", 1), Some(1));
        assert_eq!(last_lines(b"", 1), None);
    }
}
