//! Hostile input for the tests of parsers.
//!
//! ```text
//! crates/NAME/corpus/TARGET/*  -> each seed as it is, then seeds changed at random -> the parser
//! ```
//! A parser passes if it returns: an error is an answer, a panic is a finding. Randomness without seeds
//! never gets past the first magic number, so most inputs are a valid one with a few changes. In
//! `make test` all targets together take a minute, in `make fuzz` each takes ten; `cargo test` alone gives
//! each a fixed number of inputs. A failure prints the seed of its randomness (`BOLERO_RANDOM_SEED`) and the
//! bytes, which then belong into the corpus.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! change
//! ```

mod change;

use std::fs;
use std::path::Path;

pub use bolero;
use bolero::generator::ValueGenerator;
use bolero::produce;

pub use change::{Change, changed};

/// Changes to one seed: more of them leave nothing that looks like it.
const MAX_CHANGES: usize = 8;
/// Inputs where nothing says how long: all targets together take less than a minute.
pub const INPUTS: usize = 2_000;

/// The seeds of a target: every file of its directory, in the order of their names.
///
/// # Panics
/// Where there are none: a target without a corpus tests nothing.
#[must_use]
#[expect(clippy::panic, reason = "only tests call it, and without seeds they must fail")]
pub fn seeds(dir: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    let read =
        |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let seeds: Vec<_> = paths.iter().map(|path| read(path)).collect();
    assert!(!seeds.is_empty(), "{dir}: no seeds");
    seeds
}

/// Inputs that are a seed with changes, or a few bytes that chance chose alone.
pub fn inputs(seeds: Vec<Vec<u8>>) -> impl ValueGenerator<Output = Vec<u8>> {
    let changes = produce::<Vec<Change>>().with().len(1..=MAX_CHANGES);
    (produce::<u16>(), changes, produce::<Vec<u8>>())
        .map_gen(move |(index, changes, bytes)| changed(&seeds, index, &changes, bytes))
}

/// Gives a parser its corpus and its random inputs: `fuzz!("dns", |bytes: &[u8]| ...)`, and with a
/// number in the middle fewer of them where one input is slow.
#[macro_export]
macro_rules! fuzz {
    ($target:literal, $parse:expr) => {
        $crate::fuzz!($target, $crate::INPUTS, $parse)
    };
    ($target:literal, $inputs:expr, $parse:expr) => {{
        // A parser that has panicked is not asked again: the test ends there.
        let parse = std::panic::AssertUnwindSafe($parse);
        let seeds = $crate::seeds(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/", $target));
        for seed in &seeds {
            (parse.0)(seed.as_slice());
        }
        $crate::bolero::check!()
            .with_iterations($inputs)
            .with_generator($crate::inputs(seeds))
            .for_each(|bytes: &Vec<u8>| {
                // The whole wrapper, and not what it wraps.
                let parse = &parse;
                (parse.0)(bytes.as_slice());
            });
    }};
}
