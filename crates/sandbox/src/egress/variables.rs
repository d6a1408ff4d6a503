//! Variables of a phase.

use std::collections::BTreeMap;
use std::fmt;

/// Variables of a phase. What a client was configured with stays unprinted: only names are shown.
#[derive(Clone, Default)]
pub(crate) struct Variables(pub BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
