//! A row that keeps its key is locked by `FOR NO KEY UPDATE`: whoever refers to it need not wait (migration 0055).

use super::sources;

#[test]
fn a_lock_of_a_row_spares_those_who_refer_to_it() {
    let mut found = 0;
    for (path, text) in sources(&["crates/ledger/src", "crates/flows/src", "crates/live/src"]) {
        assert!(!text.contains("FOR UPDATE"), "{path}: FOR NO KEY UPDATE");
        found += text.matches("FOR NO KEY UPDATE").count();
    }
    assert!(found > 20, "only {found} locks were seen: are they written otherwise now?");
}
