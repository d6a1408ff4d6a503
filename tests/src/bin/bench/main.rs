//! `make bench`: the numbers of SPECIFICATION.md, one JSON object a line on stdout, a table on stderr, and each result in its file
//! below `bench/results`, from which the pages are made.
//!
//! `BENCH_ONLY=name,name` selects: `latency`, `throughput`, `statements`, `idle`, `start`, `flat`, `cache`, `gates`,
//! `parked`, `backlog`, `capacity`, `first_output`, `graphs`, `gc` (runs on the real binary), `models`, `objects` (the store alone), `schemas`, `trees`, `secrets`, `e2b`, `e2b_builds`, `e2b_memory`, `interpreter` (on it too, as root), `classes`, `pair`, `sandboxes`, `busy`,
//! `egress` (the sandbox crate alone; they need root). With `COFFERDAM_OTHER=FILE`, `binaries` compares that build of the binary with this
//! one. `BENCH_QUICK=1` shrinks the long ones. Latencies are medians of many runs. Nothing here
//! asserts a time: a machine under load is slow, not wrong.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::as_conversions,
    reason = "a bench that cannot go on should say so and stop"
)]

mod backlog;
mod bare;
mod binaries;
mod busy;
mod cache;
mod capacity;
mod classes;
mod e2b;
mod e2b_builds;
mod e2b_memory;
mod egress;
mod figures;
mod first_output;
mod gates;
mod gc;
mod graphs;
mod interpreter;
mod life;
mod models;
mod objects;
mod pair;
mod proxy;
mod runs;
mod sandboxes;
mod schemas;
mod trees;

use tokio::runtime::Runtime;

fn main() {
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only.split(',').any(|one| one == name);
    // Only the thread that calls it and those that it starts later are moved.
    if [
        "classes",
        "pair",
        "sandboxes",
        "busy",
        "egress",
        "e2b",
        "e2b_builds",
        "e2b_memory",
        "interpreter",
    ]
    .into_iter()
    .any(wanted)
    {
        cofferdam_sandbox::enter_private_mounts().expect("a private mount namespace (root)");
    }
    // What a build wrote before goes to disk now, and not while a commit is timed.
    nix::unistd::sync();
    let runtime = Runtime::new().expect("a runtime");
    if wanted("classes") {
        served(&runtime, classes::run());
    }
    if wanted("pair") {
        served(&runtime, pair::run());
    }
    if wanted("sandboxes") {
        served(&runtime, sandboxes::run());
    }
    if wanted("busy") {
        served(&runtime, busy::run());
    }
    if wanted("egress") {
        served(&runtime, egress::run());
    }
    if wanted("e2b") {
        runtime.block_on(e2b::run());
    }
    if wanted("interpreter") {
        runtime.block_on(interpreter::run());
    }
    if wanted("e2b_builds") {
        runtime.block_on(e2b_builds::run());
    }
    if wanted("e2b_memory") {
        runtime.block_on(e2b_memory::run());
    }
    if wanted("schemas") {
        schemas::run();
    }
    if wanted("objects") {
        runtime.block_on(objects::objects());
    }
    if wanted("trees") {
        trees::run();
    }
    if wanted("models") {
        runtime.block_on(models::run());
    }
    if wanted("secrets") {
        runtime.block_on(proxy::secrets());
    }
    if let Some(other) = std::env::var_os("COFFERDAM_OTHER").filter(|_| wanted("binaries")) {
        runtime.block_on(binaries::run(other.as_ref()));
    }
    if wanted("capacity") {
        runtime.block_on(capacity::run());
    }
    runtime.block_on(runs::run(wanted));
}

/// Runs it in a task, as a worker runs all that it does: the thread that waits for a runtime belongs to none of its
/// own, and each step that is handed over to it costs a wake-up more.
fn served(runtime: &Runtime, work: impl Future<Output = ()> + Send + 'static) {
    runtime.block_on(runtime.spawn(work)).expect("a bench");
}
