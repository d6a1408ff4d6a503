//! Every class beside what it is built on: create, `/usr/bin/true`, verified wipe against the bare
//! runtimes' `run`, bubblewrap and docker, all in turns in one run so that they see one machine.

use std::time::Instant;

use cofferdam_sandbox::{Class, Offer, Runtime, provision};
use serde_json::json;

use super::bare::Bare;
use super::figures::{emit, median, percentile, rounded, table};
use super::life::{BenchHost, Times, life, ms, planned, request, wipe};

/// Turns; one more before them warms the caches.
const TURNS: usize = 30;
/// Bounds: container against `runc run`, against a `crun run` with ids of its own and idmapped mounts too, and
/// in milliseconds; gVisor against `runsc run`.
const CONTAINER_RATIO: f64 = 1.2;
const OWN_IDS_RATIO: f64 = 1.25;
const CONTAINER_MS: f64 = 12.0;
const GVISOR_RATIO: f64 = 1.25;
/// And a machine that is restored where its processor is emulated.
const RESTORED_MS: f64 = 150.0;
/// Machines that boot.
const BOOTS: u64 = 5;

/// A class of ours on a runtime.
struct Ours {
    name: String,
    class: &'static str,
    place: BenchHost,
    times: Vec<Times>,
}

/// Somebody else's.
struct Theirs {
    name: &'static str,
    bare: Bare,
    times: Vec<f64>,
}

pub async fn run() {
    let (mut ours, mut absent) = present();
    let mut theirs = Vec::new();
    let scratch = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir().unwrap();
    for (name, found) in Bare::all(scratch.path()) {
        match found {
            Ok(bare) => theirs.push(Theirs { name, bare, times: Vec::new() }),
            Err(why) => absent.push((name.to_owned(), why)),
        }
    }
    for turn in 0..=TURNS {
        for one in &mut ours {
            let times = life(&one.place.host, one.class).await;
            if turn > 0 {
                one.times.push(times);
            }
        }
        for one in &mut theirs {
            let took = one.bare.run();
            if turn > 0 {
                one.times.push(took);
            }
        }
    }
    report(&ours, &theirs, &absent);
    if ours.iter().any(|one| one.class == "microvm") {
        boots().await;
    }
}

/// A machine from its request to its agent's first answer: restored and waiting, restored from what was
/// stored, and booted.
async fn boots() {
    let place = BenchHost::new(None, [].into());
    let request = request("microvm");
    // The first looks at the files that the next ones show.
    let first = life(&place.host, "microvm").await;
    if !place.host.warm(&planned(&place.host, &request)).await {
        println!(
            "{}",
            json!({"name": "boot_microvm_restored", "absent": "nothing is stored here"})
        );
        return;
    }
    let (mut times, mut read) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        assert!(place.host.warm(&planned(&place.host, &request)).await);
        // The one that waits, and straight after it one for which none does.
        for (waits, times) in [(true, &mut times), (false, &mut read)] {
            let plan = planned(&place.host, &request);
            let clock = Instant::now();
            let sandbox = provision(&place.host, &plan, &[]).await.unwrap();
            times.push(ms(clock));
            assert!(sandbox.boot().is_restored && sandbox.boot().has_waited == waits);
            wipe(sandbox).await;
        }
    }
    // One of each other size, which nobody asked for yet.
    let mut booted = Vec::new();
    for more_mb in 1..=BOOTS {
        let mut other = request.clone();
        other.limits.mem_mb = Some(256 + more_mb);
        let plan = planned(&place.host, &other);
        let clock = Instant::now();
        let sandbox = provision(&place.host, &plan, &[]).await.unwrap();
        booted.push(ms(clock));
        assert!(!sandbox.boot().is_restored);
        wipe(sandbox).await;
        // It has one stored, which the next boot should not have beside it.
        place.host.warm(&plan).await;
    }
    let more = json!({"p90": rounded(percentile(times.clone(), 90)), "n": TURNS,
                      "without_one_that_waits": rounded(median(read)),
                      "booted": rounded(median(booted)), "booted_n": BOOTS,
                      "first": rounded(first.boot)});
    emit("boot_microvm_restored", median(times), "ms", RESTORED_MS, more);
}

/// Our classes on this host, and those that it has not.
fn present() -> (Vec<Ours>, Vec<(String, String)>) {
    let (mut ours, mut absent) = (Vec::new(), Vec::new());
    let add = |class: Class, runtime: &str, wanted: Option<&str>| Ours {
        name: format!("{} ({runtime})", class.as_str()),
        class: class.as_str(),
        place: BenchHost::new(wanted, [].into()),
        times: Vec::new(),
    };
    for runtime in Runtime::all() {
        ours.push(add(Class::Container, &runtime.name, Some(&runtime.name)));
    }
    let facts = BenchHost::new(None, [].into());
    for fact in &facts.host.with_engine().facts().classes {
        match &fact.offer {
            _ if fact.class == Class::Container => {}
            // A worker has it in place of `container`, and so do its requests.
            Offer::Present(engine) if fact.class == Class::Docker => {
                ours.push(Ours {
                    class: "container",
                    ..add(fact.class, &engine.name, Some(&engine.name))
                });
            }
            Offer::Present(runtime) => ours.push(add(fact.class, &runtime.name, None)),
            Offer::Absent { why, .. } => absent.push((fact.class.as_str().to_owned(), why.clone())),
        }
    }
    (ours, absent)
}

fn report(ours: &[Ours], theirs: &[Theirs], absent: &[(String, String)]) {
    let bare = |name: &str| theirs.iter().find(|one| one.name == name).map(|one| p50(&one.times));
    let mut rows = vec![head()];
    for one in ours {
        let part = |of: fn(&Times) -> f64| one.times.iter().map(of).collect::<Vec<f64>>();
        let all = part(Times::all);
        let (beside, most, limit) = match one.class {
            _ if one.name.starts_with("docker") => (bare("docker run"), None, None),
            "container" => (bare("runc run"), Some(CONTAINER_RATIO), Some(CONTAINER_MS)),
            "gvisor" => (bare("runsc run"), Some(GVISOR_RATIO), None),
            _ => (None, None, None),
        };
        let parts = [part(|t| t.boot), part(|t| t.exec), part(|t| t.wipe)].map(median);
        let name = one.name.replace([' ', '(', ')'], "_").replace("__", "_");
        let name = format!("life_{}", name.trim_matches('_'));
        let more = json!({"p90": rounded(percentile(all.clone(), 90)), "n": TURNS,
                          "boot": rounded(parts[0]), "exec": rounded(parts[1]),
                          "wipe": rounded(parts[2])});
        emit(&name, median(all.clone()), "ms", limit, more);
        let ratio = beside.map(|beside| p50(&all) / beside);
        if let Some(ratio) = ratio {
            emit(&format!("{name}_ratio"), ratio, "x bare run", most, json!({"n": TURNS}));
        }
        if one.class == "container" && one.name.contains("crun") {
            for (peer, most) in [("crun run with own ids", Some(OWN_IDS_RATIO)), ("crun run", None)]
            {
                let Some(beside) = bare(peer) else { continue };
                let name = format!("{name}_{}_ratio", peer.replace(' ', "_"));
                emit(&name, p50(&all) / beside, "x bare run", most, json!({"n": TURNS}));
            }
        }
        let cells = parts
            .into_iter()
            .map(Some)
            .chain([Some(p50(&all))])
            .chain([Some(percentile(all.clone(), 90)), ratio]);
        rows.push([one.name.clone()].into_iter().chain(cells.map(cell)).collect());
    }
    for one in theirs {
        let name = format!("bare_{}", one.name.replace(' ', "_"));
        let (half, most) = (p50(&one.times), percentile(one.times.clone(), 90));
        emit(&name, half, "ms", None, json!({"p90": rounded(most), "n": TURNS}));
        let cells = [None, None, None, Some(half), Some(most), None];
        rows.push([one.name.to_owned()].into_iter().chain(cells.map(cell)).collect());
    }
    for (name, why) in absent {
        println!("{}", json!({"name": name, "absent": why}));
        rows.push(vec![format!("{name}: absent, {why}")]);
    }
    // Its width is no column's.
    let (full, words): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.len() > 1);
    table(&full);
    table(&words);
}

fn head() -> Vec<String> {
    let heads =
        ["create -> /usr/bin/true -> gone, ms", "boot", "exec", "wipe", "p50", "p90", "x bare"];
    heads.map(str::to_owned).into()
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn p50(values: &[f64]) -> f64 {
    median(values.to_vec())
}
