//! An agent that sleeps while its sandbox is stored, and goes on with the next stream. These routes came with level 9.
//!
//! | route | request | answer |
//! |---|---|---|
//! | `POST /v1/sleep` | | 204; 409: it cannot, in words |
//! | `GET /v1/commands` | | frames: [`Command`]s, one [`crate::wire::CollectEnd`] |
//! | `POST /v1/follow` | [`Follow`] | as of a run, from now on; 404: it has ended |
//!
//! ```text
//! sleep -> 204 -> the connection ends, the stream stays open -> [`ASK`]ed until [`ASLEEP`] is said ... stored ...
//!       -> [`WAKE`] on the stream that is there then -> a new connection
//! ```
//! Until then the stream is the agent's life line as before: where it closes, the agent exits. A sleeping agent reads no
//! output; once it wakes, what nobody follows is read and dropped.
//!
//! The agent of a machine sleeps while its task stands still ([`crate::layer_stream`]), and the task goes on once the agent woke. Between the
//! two the machine's init has the stream, and is told what is new ([`crate::setup::RestoreSetup`]).

use serde::{Deserialize, Serialize};

/// `POST`: ends the connection and waits for the next one.
pub const SLEEP: &str = "/v1/sleep";
/// `GET`: commands that run and may be followed.
pub const COMMANDS: &str = "/v1/commands";
/// `POST`: follows one.
pub const FOLLOW: &str = "/v1/follow";

/// Ends a connection of HTTP/2 whose other end does not end it: no stream may have such a frame. Between words it is nothing.
pub const CUT: &[u8; 9] = &[0; 9];
/// Bytes after which a connection that was cut off within a frame has read [`CUT`]: the largest frame, and one of those.
pub const CUT_WITHIN: usize = 16_384 + 9;
/// Asks whether the agent sleeps; an ending connection may still have read it, so it is asked again.
pub const ASK: &[u8; 32] = b"cofferdam: are you asleep now?  ";
/// Says that the agent reads the stream for [`WAKE`] alone. What comes before it is the end of the connection before.
pub const ASLEEP: &[u8; 32] = b"cofferdam: asleep, store me now ";
/// Wakes a sleeping agent. What comes before it is the end of the connection before.
pub const WAKE: &[u8; 32] = b"cofferdam: wake, the next begins";
/// Says that the init of a machine reads the stream. What comes before it is the end of the connection before.
pub const AWAKE: &[u8; 32] = b"cofferdam: the machine is awake ";

/// Bytes of a command's note: it and what is told of the command fit into one frame, whatever JSON makes of them.
pub const MAX_NOTE: usize = 24 * 1024;

/// A command that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Id that the host gave the command in its [`crate::process::RunRequest`].
    pub id: u64,
    /// Its process id, as processes of its sandbox see it.
    pub pid: u32,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether it takes input that nobody gives now.
    pub stdin: bool,
    /// What the host noted with its request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Which command is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Follow {
    /// Id that the host gave the command in its [`crate::process::RunRequest`].
    pub id: u64,
}

/// Looks for a word in a stream, byte by byte.
#[derive(Debug)]
pub struct WordMatcher {
    word: &'static [u8; 32],
    last: [u8; 32],
}

impl WordMatcher {
    /// For this word.
    #[must_use]
    pub const fn to(word: &'static [u8; 32]) -> Self {
        Self { word, last: [0; 32] }
    }

    /// Whether the word ends with this byte.
    pub fn hears(&mut self, byte: u8) -> bool {
        self.last.rotate_left(1);
        if let Some(last) = self.last.last_mut() {
            *last = byte;
        }
        self.last == *self.word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_heard_after_anything_and_at_its_last_byte_only() {
        let mut listening = WordMatcher::to(WAKE);
        let before = [b"what was before".as_slice(), &WAKE[..31], ASLEEP].concat();
        assert!(!before.iter().any(|byte| listening.hears(*byte)));
        let heard: Vec<bool> = WAKE.iter().map(|byte| listening.hears(*byte)).collect();
        assert_eq!(heard.iter().filter(|heard| **heard).count(), 1);
        assert!(heard[31]);
    }
}
