//! `make storm`: a fleet on a database elsewhere, people and programs that use it, and one seeded schedule of faults.
//!
//! ```text
//! clients --HTTP--> shim --wire--+
//!                                +--> PostgreSQL (TCP)      faults: processes, wires, the database
//!           three workers --wire-+                          effects: a file of the host that tasks append to
//! ```
//!
//! What it says on stdout is one JSON object a line: the seed, every fault with its time to full service, and the
//! figures for each kind. The judge reads rows, the host's file and the HTTP answers.
//!
//! `COFFERDAM_TEST_SEED` replays the schedule and the work (not the timing); `COFFERDAM_STORM_SECONDS` says how long.

mod faults;
mod fleet;
mod front;
mod graph;
mod judge;
mod recovery;
mod schedule;
mod work;

use crate::support;

use std::time::{Duration, Instant};

use fleet::Fleet;
use recovery::Figures;
use schedule::Schedule;
use serde_json::json;
use support::{Dice, assert_proven, assert_wiped};
use work::Work;

/// The promise: from a fault's end to full service.
const PROMISE: Duration = Duration::from_secs(10);
/// What it may become in an ordinary test, whose machine builds and tests other things meanwhile.
const BUSY: Duration = Duration::from_secs(90);

/// Rounds of all kinds of faults until the time is up, one round at least.
async fn storm(name: &str, length: Duration) -> Figures {
    let mut dice = Dice::new(name);
    let seed = dice.seed();
    println!("{}", json!({"storm": name, "seed": seed, "seconds": length.as_secs()}));
    let mut fleet = Fleet::start().await;
    let work = Work::begin(&fleet, seed).await;
    let begun = Instant::now();
    let mut figures = Figures::default();
    let mut schedule = Schedule::new(&mut dice);
    while let Some(fault) = schedule.next(begun.elapsed() >= length) {
        tokio::time::sleep(fault.pause).await;
        let at = begun.elapsed();
        let open = work.open();
        faults::strike(&mut fleet, &fault).await;
        let recovered = recovery::full_service(&mut fleet, &work, &open).await;
        println!("{}", figures.record(at, &fault, &recovered));
    }
    let done = work.end().await;
    println!(
        "{}",
        json!({"runs": done.len(), "faults": figures.len(), "took_s": begun.elapsed().as_secs()})
    );
    let sql = fleet.database.sql().await;
    judge::runs(&sql, &done).await;
    judge::replies(&sql, &done).await;
    judge::effects(&sql, &fleet.effects()).await;
    judge::answers(&fleet.front);
    assert_wiped(&fleet.home, &sql).await;
    assert_proven(&fleet.home);
    for line in figures.summary() {
        println!("{line}");
    }
    figures
}

/// One fault of each kind.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_every_fault_loses_nothing_and_ends() {
    storm("a_storm_of_every_fault_loses_nothing_and_ends", Duration::ZERO).await.assert_below(BUSY);
}

/// `make storm SECONDS=500 SEED=..`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make storm` runs it"]
async fn a_long_storm_loses_nothing_and_service_is_back_within_the_promise() {
    let seconds = std::env::var("COFFERDAM_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(500));
    let name = "a_long_storm_loses_nothing_and_service_is_back_within_the_promise";
    let figures = storm(name, length).await;
    figures.keep();
    figures.assert_below(PROMISE);
}
