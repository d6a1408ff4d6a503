//! Files of a running sandbox, kept where its class can.

use std::sync::Arc;

use cofferdam_sandbox::{Class, Offer, enter_private_mounts};
use serde_json::json;

use super::support::{Bench, KEEPING, sh};
use super::{Ground, not_run, runtime_of, wiped};

/// Of every class that this host has, by a real sandbox, which goes on.
#[test]
fn files_are_kept_of_three_classes_and_another_says_its_name() {
    in_each_class(async |ground| {
        let (sandbox, plan) = ground.start(json!({})).await;
        match sandbox.keeper() {
            Ok(keeper) => {
                assert!(KEEPING.contains(&ground.class));
                let still = keeper.keep(&mut std::io::sink(), &|| true);
                drop(still.unwrap());
                // Its layer can be held while it goes on.
                let (still, layer) = keeper.stand().unwrap().expect("a layer in memory");
                assert!(layer.size().unwrap() > 0);
                layer.let_go();
                drop(still);
            }
            Err(why) => {
                assert!(!KEEPING.contains(&ground.class));
                let named = format!("class `{}` cannot", ground.class.as_str());
                assert!(why.to_string().contains(&named), "{why}");
            }
        }
        assert_eq!(sh(&sandbox, &plan, "exit 3").await.outcome.exit, 3);
        wiped(&sandbox.wipe("task-end").await);
    });
}

/// Once in each class that this host has; the others are named.
fn in_each_class(test: impl AsyncFn(&Ground)) {
    enter_private_mounts().expect("these tests need root: run them as root");
    let found = Bench::new(None);
    for class in Class::LOCAL {
        let with_engine = found.host.with_engine();
        let fact = with_engine.facts().classes.iter().find(|fact| fact.class == class).unwrap();
        if let Offer::Absent { why, remedy } = &fact.offer {
            not_run(&format!("the class {}", class.as_str()), &format!("{why} ({remedy})"));
            continue;
        }
        let ground = Ground { bench: Arc::new(Bench::new(runtime_of(class))), class };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(test(&ground));
        drop(runtime);
        ground.bench.assert_clean();
    }
}
