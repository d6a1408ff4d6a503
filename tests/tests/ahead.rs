//! What tests install once, installed before they ask for it: `scripts/test` does so beside the first tests.

use crate::e2b;
use crate::support::agents::Programs;

/// Whatever cannot be installed is reported by the tests that lack it.
#[test]
#[ignore = "scripts/test runs it beside the tests of the other crates"]
fn what_tests_install_is_there_when_they_begin() {
    // Each waits for a registry more than it computes.
    std::thread::scope(|scope| {
        scope.spawn(Programs::installed);
        scope.spawn(e2b::install_clients);
        scope.spawn(e2b::install_interpreter);
    });
}
