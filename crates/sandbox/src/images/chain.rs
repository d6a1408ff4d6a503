//! Chain ids: the name of what a stack of layers adds up to (OCI image specification, "ChainID").

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;

use super::name::text_of;

/// The chain id of every prefix of these diff ids, the shortest first.
pub(crate) fn chains(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff in diff_ids {
        let next = match chains.last() {
            None => diff.clone(),
            Some(below) => digest_bytes(format!("{} {}", text_of(below), text_of(diff)).as_bytes()),
        };
        chains.push(next);
    }
    chains
}

/// The root of no layers at all has a name too.
pub(crate) fn empty() -> Digest {
    digest_bytes(b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_the_hash_of_what_is_below_and_the_layer() {
        let (a, b) = (digest_bytes(b"a"), digest_bytes(b"b"));
        let got = chains(&[a.clone(), b.clone()]);
        assert_eq!(got[0], a);
        assert_eq!(got[1], digest_bytes(format!("sha256:{a} sha256:{b}").as_bytes()));
        assert!(chains(&[]).is_empty());
    }
}
