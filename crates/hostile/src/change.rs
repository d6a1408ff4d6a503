//! What is done to a valid input to make it a hostile one.

use bolero::TypeGenerator;

/// Bytes of an input: the parsers' own bounds lie below it, or far above what fits into a test.
const MAX_BYTES: usize = 64 * 1024;
/// Numbers at which parsers go wrong, as eight bytes of which a number takes what it needs.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    // the last second of which there are nanoseconds in 63 bits, and the next one
    9_223_372_036,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];
/// Texts that mean something to one parser or another.
const WORDS: [&[u8]; 24] = [
    b"\0",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"/",
    b"..",
    b"../",
    b"%",
    b"%00",
    b"\\u0000",
    b"\"",
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b"${",
    b"null",
    b"-1",
    b"1e999",
    b"\xff\xfe",
    "\u{202e}".as_bytes(),
    b"77777777777",
    b"18446744073709551616",
];

/// One change. Places count from the start and wrap around at the end.
#[derive(Debug, Clone, TypeGenerator)]
pub enum Change {
    /// One bit becomes the other.
    Flip {
        /// Offset in bytes.
        at: u16,
        /// Number of the bit, taken modulo 8; 0 is the lowest.
        bit: u8,
    },
    /// One byte becomes another.
    Set {
        /// Offset in bytes.
        at: u16,
        /// What it becomes.
        byte: u8,
    },
    /// A number that parsers stumble over is written over what was there.
    Number {
        /// Offset of the first byte that is overwritten.
        at: u16,
        /// Of the list.
        which: u8,
        /// How wide: one byte, two, four or eight.
        wide: u8,
        /// Which end comes first.
        is_little: bool,
    },
    /// Digits of base 8, with which tar writes numbers.
    Octal {
        /// Offset of the first byte that is overwritten.
        at: u16,
        /// What they say.
        number: u64,
    },
    /// A word comes in between.
    Word {
        /// Before this byte.
        at: u16,
        /// Of the list.
        which: u8,
    },
    /// Bytes come in between.
    Insert {
        /// Before this byte.
        at: u16,
        /// Bytes to write.
        bytes: [u8; 4],
        /// Repetitions of `bytes`, taken modulo 1,024.
        times: u16,
    },
    /// Bytes are left out.
    Remove {
        /// From this byte.
        at: u16,
        /// Bytes to leave out, fewer where the input ends first.
        count: u16,
    },
    /// The end is left out.
    Cut {
        /// From this byte.
        at: u16,
    },
    /// A part comes twice.
    Double {
        /// From this byte.
        at: u16,
        /// Bytes to repeat, fewer where the input ends first.
        count: u16,
    },
    /// A part of another seed is written over what was there.
    Splice {
        /// Index of the other seed, taken modulo their number.
        from: u16,
        /// From this byte of it.
        start: u16,
        /// To this byte.
        at: u16,
        /// Bytes to copy, fewer where the other seed or the input ends first.
        count: u16,
    },
}

/// A seed with these changes; one in sixteen inputs is `bytes` alone.
#[must_use]
pub fn changed(seeds: &[Vec<u8>], index: u16, changes: &[Change], bytes: Vec<u8>) -> Vec<u8> {
    if index % 16 == 15 {
        return bytes;
    }
    let mut input = seed(seeds, index).to_vec();
    for change in changes {
        change.apply(seeds, &mut input);
        input.truncate(MAX_BYTES);
    }
    input
}

fn seed(seeds: &[Vec<u8>], index: u16) -> &[u8] {
    let index = usize::from(index).checked_rem(seeds.len()).unwrap_or(0);
    seeds.get(index).map_or(&[], Vec::as_slice)
}

impl Change {
    fn apply(&self, seeds: &[Vec<u8>], input: &mut Vec<u8>) {
        let length = input.len();
        let place = |at: u16| usize::from(at).checked_rem(length).unwrap_or(0);
        match self {
            Self::Flip { at, bit } => {
                if let Some(byte) = input.get_mut(place(*at)) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            Self::Set { at, byte } => over(input, place(*at), &[*byte]),
            Self::Number { at, which, wide, is_little } => {
                let number = pick(&NUMBERS, *which).copied().unwrap_or(0);
                let wide = 1 << (wide % 4);
                let (big, little) = (number.to_be_bytes(), number.to_le_bytes());
                let bytes = if *is_little { little.get(..wide) } else { big.get(8 - wide..) };
                over(input, place(*at), bytes.unwrap_or_default());
            }
            Self::Octal { at, number } => {
                over(input, place(*at), format!("{number:o}").as_bytes());
            }
            Self::Word { at, which } => {
                let word = pick(&WORDS, *which).copied().unwrap_or_default();
                between(input, place(*at), word);
            }
            Self::Insert { at, bytes, times } => {
                between(input, place(*at), &bytes.repeat(usize::from(*times % 1_024)));
            }
            Self::Remove { at, count } => {
                let start = place(*at);
                let end = start.saturating_add(usize::from(*count)).min(length);
                input.drain(start..end);
            }
            Self::Cut { at } => input.truncate(place(*at)),
            Self::Double { at, count } => {
                let start = place(*at);
                let end = start.saturating_add(usize::from(*count)).min(length);
                let part = input.get(start..end).unwrap_or_default().to_vec();
                between(input, start, &part);
            }
            Self::Splice { from, start, at, count } => {
                let other = seed(seeds, *from);
                let start = usize::from(*start).checked_rem(other.len()).unwrap_or(0);
                let end = start.saturating_add(usize::from(*count)).min(other.len());
                over(input, place(*at), other.get(start..end).unwrap_or_default());
            }
        }
    }
}

fn pick<T>(list: &[T], which: u8) -> Option<&T> {
    list.get(usize::from(which).checked_rem(list.len()).unwrap_or(0))
}

/// Writes over what is there, and no further.
fn over(input: &mut [u8], at: usize, bytes: &[u8]) {
    let room = input.get_mut(at..).unwrap_or_default();
    for (place, byte) in room.iter_mut().zip(bytes) {
        *place = *byte;
    }
}

fn between(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let at = at.min(input.len());
    input.splice(at..at, bytes.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_an_empty_input_is_harmless() {
        let seeds = [Vec::new()];
        for change in [
            Change::Flip { at: 9, bit: 9 },
            Change::Number { at: 9, which: 9, wide: 3, is_little: true },
            Change::Remove { at: 9, count: 9 },
            Change::Double { at: 9, count: 9 },
            Change::Splice { from: 9, start: 9, at: 9, count: 9 },
        ] {
            assert_eq!(changed(&seeds, 0, &[change], Vec::new()), b"");
        }
    }

    #[test]
    fn a_number_takes_the_bytes_that_it_needs() {
        let change = Change::Number { at: 1, which: 6, wide: 1, is_little: false };
        assert_eq!(changed(&[vec![9; 4]], 0, &[change], Vec::new()), [9, 0xff, 0xff, 9]);
    }
}
