//! How each fault is done. A fault is over when this returns: what follows is recovery.

use std::time::Duration;

use nix::sys::signal::Signal;
use sqlx::{Connection, PgConnection};

use crate::storm::fleet::Fleet;
use crate::storm::schedule::{Fault, Kind};
use crate::support::proxy::{Proxy, Wire};
use crate::support::signal;

/// The server's first words on a connection, to a statement's answer: a cut lies somewhere among them.
const FIRST_WORDS: u64 = 700;

pub async fn strike(fleet: &mut Fleet, fault: &Fault) {
    let victim = usize::try_from(fault.chance).unwrap() % fleet.workers.len();
    match fault.kind {
        Kind::KillWorker => fleet.workers[victim].server.kill(),
        Kind::KillShim => fleet.shim.kill(),
        Kind::StopWorker => {
            let pid = fleet.workers[victim].server.pid();
            signal(pid, Signal::SIGSTOP);
            tokio::time::sleep(fault.lasts).await;
            signal(pid, Signal::SIGCONT);
        }
        Kind::BlackHole => {
            fleet.wires().for_each(|wire| wire.all(Wire::Silent));
            tokio::time::sleep(fault.lasts).await;
            fleet.wires().for_each(|wire| wire.all(Wire::Open));
        }
        Kind::BlackHoleWorker => {
            fleet.workers[victim].wire.all(Wire::Silent);
            tokio::time::sleep(fault.lasts).await;
            fleet.workers[victim].wire.all(Wire::Open);
        }
        Kind::Cut => cut(fleet, fault).await,
        Kind::HalfOpen => fleet.wires().for_each(|wire| {
            wire.present(Wire::Half);
        }),
        Kind::RestartDatabase => {
            let how =
                if fault.chance.is_multiple_of(2) { Signal::SIGKILL } else { Signal::SIGQUIT };
            fleet.database.end(how);
            tokio::time::sleep(fault.lasts).await;
            fleet.database.resume().await;
        }
        Kind::TerminateBackends => terminate(fleet).await,
        Kind::LoseLeader => lose_leader(fleet).await,
    }
}

/// Connections end, and for a while each new one does after some bytes.
async fn cut(fleet: &Fleet, fault: &Fault) {
    let after = |wire: &Proxy, bytes| wire.cut_after(bytes);
    let bytes = usize::try_from(fault.chance % FIRST_WORDS).unwrap();
    fleet.wires().for_each(|wire| after(wire, Some(bytes)));
    let waves = 5;
    for _ in 0..waves {
        fleet.wires().for_each(|wire| wire.present(Wire::Cut));
        tokio::time::sleep(fault.lasts / waves).await;
    }
    fleet.wires().for_each(|wire| after(wire, None));
    fleet.wires().for_each(|wire| wire.present(Wire::Cut));
}

async fn terminate(fleet: &Fleet) {
    let mut conn = PgConnection::connect(&fleet.database.url()).await.unwrap();
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    )
    .execute(&mut conn)
    .await
    .unwrap();
}

/// Whoever leads is lost with everything that it held; another host is brought up in its place.
async fn lose_leader(fleet: &mut Fleet) {
    let mut conn = PgConnection::connect(&fleet.database.url()).await.unwrap();
    let leader: Option<i32> = sqlx::query_scalar(
        "SELECT e.pid FROM app.leader l JOIN app.executors e ON e.id = l.executor_id WHERE e.state = 'live'",
    )
    .fetch_optional(&mut conn)
    .await
    .unwrap();
    let lost = fleet.workers.iter().position(|worker| Some(worker.server.pid()) == leader);
    let mut lost = fleet.workers.remove(lost.unwrap_or(0));
    lost.wire.all(Wire::Silent);
    lost.server.kill();
    let new = fleet.new_worker().await;
    fleet.workers.push(new);
    // Its connections are never closed: the database finds out by itself.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        drop(lost);
    });
}
