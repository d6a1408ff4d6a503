//! How much of its answers one sandbox has in this worker's memory: what has to be read whole, or goes on record.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of answers that one sandbox may have under way: two of the largest. Without it, 256 connections would each hold one.
const MOST: usize = 128 << 20;

/// The answer budget of one sandbox.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerBudget(Arc<AtomicUsize>);

/// What one answer has taken of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct AnswerShare {
    room: AnswerBudget,
    bytes: usize,
}

impl AnswerBudget {
    pub(crate) fn enter(&self) -> AnswerShare {
        AnswerShare { room: self.clone(), bytes: 0 }
    }
}

impl AnswerShare {
    /// Takes more; `false`: there is no more.
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        let before = self.room.0.fetch_add(bytes, Ordering::AcqRel);
        self.bytes = self.bytes.saturating_add(bytes);
        before.saturating_add(bytes) <= MOST
    }
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_one_sandbox_share_a_room_and_leave_it() {
        let room = AnswerBudget::default();
        let (mut one, mut other) = (room.enter(), room.enter());
        assert!(one.more(MOST) && !other.more(1));
        drop(other);
        drop(one);
        assert!(room.enter().more(MOST));
    }
}
