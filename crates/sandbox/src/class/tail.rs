//! The last words of what holds a sandbox.

/// Of what is kept and what comes, the last bytes.
pub(crate) fn keep_last(kept: &mut Vec<u8>, bytes: &[u8], most: usize) {
    kept.extend_from_slice(bytes);
    let excess = kept.len().saturating_sub(most);
    kept.drain(..excess);
}
