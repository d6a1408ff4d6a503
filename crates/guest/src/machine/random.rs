//! Randomness of its own for a machine that was stored.
//!
//! Machines that come from one store hold the same generator in the same state. The host's fresh bytes
//! go into it, and it is told to forget what it would have said.

use std::fs::OpenOptions;
use std::io;

use cofferdam_guest::setup::SEED_BYTES;
use rustix::ioctl::{NoArg, Setter, ioctl};

/// `RNDADDENTROPY`, `_IOW('R', 3, int[2])`.
const ADD: u32 = 0x4008_5203;
/// `RNDRESEEDCRNG`, `_IO('R', 7)`.
const RESEED: u32 = 0x5207;
const SEED_BITS: i32 = 256;
const SEED_LENGTH: i32 = 32;

/// `struct rand_pool_info` with its buffer.
#[repr(C)]
struct Pool {
    bits: i32,
    bytes: i32,
    seed: [u8; SEED_BYTES],
}

/// Mixes the host's bytes in, and makes the next byte that anybody reads depend on them.
#[expect(unsafe_code, reason = "no library has these two calls of the kernel in safe words")]
pub(super) fn reseed(seed: [u8; SEED_BYTES]) -> io::Result<()> {
    let device = OpenOptions::new().write(true).open("/dev/urandom")?;
    let pool = Pool { bits: SEED_BITS, bytes: SEED_LENGTH, seed };
    // SAFETY: the kernel reads a `struct rand_pool_info`, which `Pool` is to the byte: two ints, the
    // second the length of what follows; and the second call has no argument.
    unsafe {
        ioctl(&device, Setter::<ADD, Pool>::new(pool))?;
        ioctl(&device, NoArg::<RESEED>::new())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_that_the_kernel_is_told_is_the_seeds() {
        assert_eq!(usize::try_from(SEED_LENGTH).unwrap(), SEED_BYTES);
        assert_eq!(size_of::<Pool>(), 8 + SEED_BYTES);
    }
}
