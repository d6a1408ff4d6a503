//! Layers of paused sandboxes: in memory until they are sealed, and for a while after that.
//!
//! ```text
//! pause      -> Sealing                            a sealer has the layer
//! Sealing    -> Waiting -> Sealing or Unsealable   the sealer failed: the next one comes later, in the end none
//!            -> Settling, or Sealed -> Settling    the file is whole; a layer that is lent is given back first
//! Settling   -> Resting, Ending or Over            there is memory to retain it; or the layer ends
//! Resting    -> Ending                             its time is over, memory is short, a life gave it back, this process stops
//! Unsealable -> Ending                             this process stops
//! Ending     -> Over, or Kept -> Over              no process keeps the layer; one does, and is looked for again
//! any        -> Over when the life that has it begins, -> Ending when its snapshot is erased and it is not lent
//! ```
//! Beside its state a layer has a loan state: `Free`, `Asked` (a life waits for it), `Lent`, or `Recalled` (lent, and its snapshot is
//! erased). `transitions` has both and says what follows what, in a table; `task` does it. **A layer is lent to one life at a time, and a
//! lent layer is not ended. A process of its own has the last copy of the files** until they are sealed, the next life is on record,
//! or no sealer is tried any more.

pub(crate) mod layer_memory;
pub(crate) mod layers;
pub(crate) mod loan;
pub(crate) mod local_layers;
pub(crate) mod paused_layer;
mod retention;
mod retry;
pub(crate) mod sealer;
mod task;
mod transitions;
