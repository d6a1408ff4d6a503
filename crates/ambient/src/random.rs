//! Fresh identifiers and keys.
//!
//! With `RANDOM_SEED` set, ids come from a ChaCha stream that is keyed by the seed and by the
//! *name* of what is being identified, so that two runs of the same input get the same ids however
//! their threads interleave. Secrets never come from the seed.

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// Where fresh ids come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ids {
    /// The operating system's randomness.
    System,
    /// A seed (`RANDOM_SEED`): same seed and same name, same id.
    Seeded(String),
}

impl Ids {
    /// What the environment asks for.
    #[must_use]
    pub fn from_env() -> Self {
        crate::env::var("RANDOM_SEED").map_or(Self::System, Self::Seeded)
    }

    /// `len` bytes as lower-case hex. `name` says what is identified; it matters only when seeded.
    #[must_use]
    pub fn hex(&self, name: &str, len: usize) -> String {
        let mut bytes = vec![0u8; len];
        match self {
            Self::System => fill(&mut bytes),
            Self::Seeded(seed) => {
                let key = Sha256::new().chain_update(seed).chain_update([0]).chain_update(name);
                ChaCha20Rng::from_seed(key.finalize().into()).fill_bytes(&mut bytes);
            }
        }
        hex::encode(bytes)
    }
}

/// A secret of `len` bytes as lower-case hex, from the operating system whatever the seed says.
#[must_use]
pub fn secret_hex(len: usize) -> String {
    let mut bytes = vec![0u8; len];
    fill(&mut bytes);
    hex::encode(bytes)
}

/// Secret bytes, from the operating system whatever the seed says.
#[must_use]
pub fn secret_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

#[expect(clippy::expect_used, reason = "a host without randomness must not issue ids or keys")]
fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_name_always_give_the_same_id() {
        let ids = Ids::Seeded("7".into());
        assert_eq!(ids.hex("run:a", 16), ids.hex("run:a", 16));
        assert_ne!(ids.hex("run:a", 16), ids.hex("run:b", 16));
        assert_ne!(ids.hex("run:a", 16), Ids::Seeded("8".into()).hex("run:a", 16));
    }

    #[test]
    fn system_ids_differ() {
        assert_ne!(Ids::System.hex("x", 16), Ids::System.hex("x", 16));
        assert_ne!(secret_hex(16), secret_hex(16));
    }
}
