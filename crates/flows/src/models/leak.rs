//! Whether an answer repeats its provider's key: it never passes whole.

use memchr::memmem::Finder;
use zeroize::Zeroizing;

/// Looks for one key in pieces that pass.
pub(crate) struct KeySearch {
    finder: Finder<'static>,
    /// The last bytes that passed, shorter than the key, and room for as many that follow.
    seam: Zeroizing<Vec<u8>>,
}

impl KeySearch {
    /// An empty key is nowhere.
    pub(crate) fn new(key: &str) -> Self {
        Self { finder: Finder::new(key).into_owned(), seam: Zeroizing::default() }
    }

    /// Whether this piece, after those before it, completes the key.
    pub(crate) fn is_in(&mut self, piece: &[u8]) -> bool {
        let Some(most) = self.finder.needle().len().checked_sub(1) else { return false };
        // One that begins in what passed ends within as many bytes as it has, less one.
        let before = self.seam.len();
        self.seam.extend_from_slice(piece.get(..most).unwrap_or(piece));
        let found = self.finder.find(&self.seam).is_some() || self.finder.find(piece).is_some();
        if piece.len() >= most {
            self.seam.clear();
            self.seam.extend_from_slice(piece.get(piece.len() - most..).unwrap_or_default());
        } else {
            let rest = (before + piece.len()).saturating_sub(most);
            self.seam.drain(..rest);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_however_it_is_cut_and_nothing_else_is() {
        for text in ["..abcab..", "abcab", "ababcabx", "..abcaabcab", "abcaxb", "abca", "", "bcab"]
        {
            for size in 1..=text.len().max(1) {
                let mut search = KeySearch::new("abcab");
                let found =
                    text.as_bytes().chunks(size).filter(|piece| search.is_in(piece)).count();
                assert_eq!(found > 0, text.contains("abcab"), "{text} by {size}");
                assert!(search.seam.len() < 5);
            }
        }
        assert!(!KeySearch::new("").is_in(b"text"));
        assert!(KeySearch::new("k").is_in(b"..k"));
    }
}
