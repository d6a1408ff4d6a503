//! Sandboxes that are made before they are on record.

use crate::support;

use cofferdam_sandbox::{EarlySandbox, abandoned, plan, remains};
use serde_json::json;
use support::{Bench, run, verified, with_bench};

fn begun(bench: &Bench) -> EarlySandbox<&'static str> {
    let name = bench.host.names().reserve().unwrap();
    let request = support::request(json!({"cmd": ["echo", "ran"]}));
    let plan = plan(&request, name.id(), bench.host.facts()).unwrap();
    name.make(&bench.host, plan, None, "kept")
}

#[test]
fn a_sandbox_that_is_made_ahead_is_nobodys_orphan_and_is_taken_as_it_was_planned() {
    with_bench(|bench| async move {
        let ahead = begun(&bench);
        let planned = ahead.plan().clone();
        let dir = planned.traces.dir.clone();
        while !dir.exists() {
            cofferdam_ambient::clock::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(remains(&bench.host).is_empty(), "it is marked");
        assert!(bench.host.names().is_early(&planned.traces.id));
        let (made, kept) = ahead.take().await.unwrap();
        let sandbox = made.unwrap();
        assert_eq!((sandbox.id(), kept), (&planned.traces.id, "kept"));
        assert!(remains(&bench.host).contains(sandbox.id()), "from now on it is on record");
        assert!(!bench.host.names().is_early(sandbox.id()));
        assert_eq!(run(&sandbox, &planned.task).await.stdout, "ran\n");
        verified(&sandbox.wipe("task-end").await);
        assert!(!dir.exists());
    });
}

/// A task that has its name and gives it up must not wait for it as for one that is being wiped.
#[test]
fn a_container_that_waits_is_not_made_ahead() {
    with_bench(|bench| async move {
        let request = support::request(json!({"cmd": ["true"]}));
        let plan = plan(&request, &support::fresh_id(), bench.host.facts()).unwrap();
        assert!(bench.host.warm(&plan).await);
        let name = bench.host.names().next().unwrap();
        assert!(!bench.host.names().is_early(name.id()));
        name.give_back();
    });
}

#[test]
fn what_nobody_takes_is_wiped_at_every_point_of_its_making() {
    with_bench(|bench| async move {
        for after_ms in [0, 1, 3, 6, 10, 50] {
            let ahead = begun(&bench);
            let dir = ahead.plan().traces.dir.clone();
            cofferdam_ambient::clock::sleep(std::time::Duration::from_millis(after_ms)).await;
            if after_ms == 50 {
                ahead.end().await;
            } else {
                let id = ahead.plan().traces.id.clone();
                drop(ahead);
                let mark = bench.host.facts().live_dir.join("waits").join(id.as_str());
                while mark.exists() {
                    cofferdam_ambient::clock::sleep(std::time::Duration::from_millis(1)).await;
                }
            }
            assert!(!dir.exists(), "after {after_ms} ms");
            assert!(abandoned(&bench.host).is_empty() && remains(&bench.host).is_empty());
        }
    });
}
