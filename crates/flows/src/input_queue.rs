//! The window of a client's input: what the command did not take yet, by offset. Pure.
//!
//! ```text
//! 0 ......... end - held ........... end ........ end + room
//!   taken by the command | waits here |  is taken   | is sent again
//! ```
//! A client that does not know what became of a request sends it again: bytes before `end` are known and left out.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use cofferdam_contracts::input::InputReceipt;

/// Bytes that wait for the command. What a request has beyond them is not taken.
const WINDOW: usize = 1 << 20;
/// Bytes of a piece.
const PIECE: usize = 64 * 1024;

/// A part of the input, as a client sends it.
#[derive(Debug, Clone, Copy)]
pub struct InputPart<'a> {
    /// Bytes of the input before it.
    pub at: u64,
    /// The part itself, which may be empty.
    pub bytes: &'a [u8],
    /// Nothing comes after it.
    pub is_last: bool,
}

/// Why a part is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputFault {
    /// What comes before it is not here.
    Gap { next: u64 },
    /// It differs from what was said before about where the input ends.
    Ended { next: u64 },
}

/// What the command gets next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputPiece {
    Bytes(Bytes),
    End,
}

/// The bytes that wait, and how far the input is known.
#[derive(Debug, Default)]
pub(crate) struct InputQueue {
    pieces: VecDeque<BytesMut>,
    /// Bytes of the pieces.
    held: usize,
    /// Bytes that were taken from the client.
    end: u64,
    has_ended: bool,
    is_closed: bool,
}

impl InputQueue {
    /// Takes of a part what is new and has room.
    pub(crate) fn put(&mut self, part: InputPart<'_>) -> Result<InputReceipt, InputFault> {
        let InputPart { at, bytes, is_last } = part;
        let next = self.end;
        let known = next.checked_sub(at).ok_or(InputFault::Gap { next })?;
        let fresh = usize::try_from(known).ok().and_then(|known| bytes.get(known..));
        let goes_back = fresh.is_none();
        let fresh = fresh.unwrap_or_default();
        if (self.has_ended && !fresh.is_empty()) || (is_last && goes_back) {
            return Err(InputFault::Ended { next });
        }
        let room = match self.is_closed {
            true => fresh.len(),
            false => WINDOW.saturating_sub(self.held),
        };
        let taken = fresh.get(..room.min(fresh.len())).unwrap_or_default();
        if !self.is_closed {
            self.keep(taken);
        }
        self.end = next.saturating_add(u64::try_from(taken.len()).unwrap_or(u64::MAX));
        self.has_ended |= is_last && taken.len() == fresh.len();
        Ok(InputReceipt { next: self.end, closed: self.is_closed.then_some(true) })
    }

    /// What is given out is beside the window, so that no piece is larger than one.
    fn keep(&mut self, mut bytes: &[u8]) {
        self.held = self.held.saturating_add(bytes.len());
        if let Some(last) = self.pieces.back_mut() {
            let space = PIECE.saturating_sub(last.len()).min(bytes.len());
            let (head, rest) = bytes.split_at_checked(space).unwrap_or((bytes, &[]));
            last.extend_from_slice(head);
            bytes = rest;
        }
        self.pieces.extend(bytes.chunks(PIECE).map(BytesMut::from));
    }

    /// The next piece for the command, or the end; `None`: it is not here yet.
    pub(crate) fn pop(&mut self) -> Option<InputPiece> {
        if let Some(piece) = self.pieces.pop_front() {
            self.held = self.held.saturating_sub(piece.len());
            return Some(InputPiece::Bytes(piece.freeze()));
        }
        self.has_ended.then_some(InputPiece::End)
    }

    /// The command reads no more: what waits is dropped, and what comes.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.pieces.clear();
        self.held = 0;
    }

    /// Whether the client has said where its input ends.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(at: u64, bytes: &[u8]) -> InputPart<'_> {
        InputPart { at, bytes, is_last: false }
    }

    fn last(at: u64, bytes: &[u8]) -> InputPart<'_> {
        InputPart { at, bytes, is_last: true }
    }

    fn next(queue: &mut InputQueue, part: InputPart<'_>) -> u64 {
        queue.put(part).unwrap().next
    }

    fn all(queue: &mut InputQueue) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(InputPiece::Bytes(piece)) = queue.pop() {
            bytes.extend_from_slice(&piece);
        }
        bytes
    }

    #[test]
    fn a_part_that_is_sent_again_is_taken_once() {
        let mut queue = InputQueue::default();
        assert_eq!(next(&mut queue, part(0, b"abc")), 3);
        assert_eq!(next(&mut queue, part(0, b"abc")), 3);
        assert_eq!(all(&mut queue), b"abc");
        // Also after the command took it, and where only its end is new.
        assert_eq!(next(&mut queue, part(0, b"abc")), 3);
        assert_eq!(next(&mut queue, part(1, b"bcde")), 5);
        assert_eq!(next(&mut queue, part(1, b"b")), 5);
        assert_eq!(all(&mut queue), b"de");
        assert_eq!(queue.put(part(7, b"x")), Err(InputFault::Gap { next: 5 }));
        assert_eq!(queue.pop(), None, "it has not ended");
    }

    #[test]
    fn the_end_comes_once_and_nothing_after_it() {
        let mut queue = InputQueue::default();
        for _ in 0..2 {
            assert_eq!(next(&mut queue, last(0, b"ab")), 2);
        }
        assert!(queue.has_ended());
        assert_eq!(queue.put(part(2, b"c")), Err(InputFault::Ended { next: 2 }));
        assert_eq!(queue.put(last(0, b"a")), Err(InputFault::Ended { next: 2 }));
        assert_eq!(all(&mut queue), b"ab");
        assert_eq!(queue.pop(), Some(InputPiece::End));
        let mut empty = InputQueue::default();
        assert_eq!(next(&mut empty, last(0, b"")), 0);
        assert_eq!(empty.pop(), Some(InputPiece::End));
    }

    #[test]
    fn what_has_no_room_is_sent_again_and_its_end_with_it() {
        let mut queue = InputQueue::default();
        let bytes: Vec<u8> = (0..WINDOW + 3).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let window = u64::try_from(WINDOW).unwrap();
        assert_eq!(next(&mut queue, last(0, &bytes)), window);
        assert!(!queue.has_ended());
        assert_eq!(next(&mut queue, last(window, &bytes[WINDOW..])), window, "it is full");
        let first = all(&mut queue);
        assert_eq!(next(&mut queue, last(window, &bytes[WINDOW..])), window + 3);
        let rest = all(&mut queue);
        assert_eq!([first, rest].concat(), bytes);
        assert_eq!(queue.pop(), Some(InputPiece::End));
    }

    #[test]
    fn what_nobody_reads_is_taken_and_dropped() {
        let mut queue = InputQueue::default();
        queue.put(part(0, b"abc")).unwrap();
        queue.close();
        let much = vec![0; 2 * WINDOW];
        let receipt = queue.put(part(3, &much)).unwrap();
        assert_eq!(receipt.next, 3 + 2 * u64::try_from(WINDOW).unwrap());
        assert_eq!(receipt.closed, Some(true));
        assert_eq!(all(&mut queue), b"");
    }

    #[test]
    fn small_parts_grow_into_one_piece() {
        let mut queue = InputQueue::default();
        for at in 0..1_000 {
            queue.put(part(at, b"x")).unwrap();
        }
        assert_eq!(queue.pieces.len(), 1);
        assert_eq!(queue.held, 1_000);
    }
}
