//! How this server is, for the thread that accepts connections: over a connection to the database that nothing else uses.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_http::{Probe, Reply};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::health::{FleetHealth, HealthProbe};
use tokio::sync::Mutex;

use crate::answer::respond;
use crate::handlers::health::{PATIENCE, health};

/// For so long an answer is repeated: many who probe ask the database no more often than one.
const FRESH: Duration = Duration::from_millis(100);

struct ServerProbe {
    known: Mutex<HealthCache>,
}

struct HealthCache {
    probe: HealthProbe,
    last: Option<(Stopwatch, Option<FleetHealth>)>,
}

/// The probe of a node on this database.
///
/// # Errors
/// A database's address that cannot be read.
pub fn probe(ledger: &Ledger) -> cofferdam_ledger::Result<Box<dyn Probe>> {
    let known = Mutex::new(HealthCache { probe: ledger.health_probe()?, last: None });
    Ok(Box::new(ServerProbe { known }))
}

impl Probe for ServerProbe {
    fn answer(&self) -> Reply<'_> {
        Box::pin(async move {
            let mut known = self.known.lock().await;
            let fresh = known.last.as_ref().filter(|(since, _)| since.elapsed() < FRESH);
            let fleet = match fresh {
                Some((_, fleet)) => fleet.clone(),
                None => {
                    let asked = tokio::time::timeout(PATIENCE, known.probe.fleet_health()).await;
                    let fleet = asked.ok().and_then(Result::ok);
                    known.last = Some((Stopwatch::start(), fleet.clone()));
                    fleet
                }
            };
            respond(health(fleet))
        })
    }
}
