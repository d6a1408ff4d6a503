//! A project that is put back, in the classes container and gvisor: what the dead turn took is there again.

use std::fs;
use std::os::unix::fs::symlink;

use cofferdam_tests::not_run::not_run;
use serde_json::json;

use super::history;
use super::world::{MEND, World, approved, ended, plan, script, started, unit};
use crate::support::agents::Programs;
use crate::support::{assert_proven, assert_wiped, texts};

#[tokio::test(flavor = "multi_thread")]
async fn links_empty_directories_and_modes_that_a_dead_turn_took_are_put_back() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let project = world.project.path();
    symlink("calc.py", project.join("latest")).unwrap();
    symlink("/nowhere//else", project.join("old/away")).unwrap();
    fs::create_dir(project.join("hollow")).unwrap();
    let up = world.up(&[]).await;
    // Once, as the test above; what it finds the second time is what was there the first time.
    let take = "rm -r latest old hollow; chmod 700 run.sh; ln -s / new; ln -s run.sh hollow";
    let there = "test \"$(readlink latest) $(readlink old/away)\" = \"calc.py /nowhere//else\" && test -d hollow && test ! -L new";
    let die = format!(
        "{MEND}; {there} || touch changed.py; mkdir -p __pycache__; \
         test -e __pycache__/died || {{ touch __pycache__/died; {take}; kill -9 $PPID; }}"
    );
    let steps = script(&plan(&["calc.py"], &["unit"]), &die);
    let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
    approved(&up, &run).await;
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let sql = up.sql().await;
    assert_eq!(history(&sql, &run).await, ["calc.py 420 420"]);
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: `make contract` runs it"]
async fn a_run_is_planned_built_and_tested_in_gvisor() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let doctor = world.home.run_json(&["doctor", "--json"]);
    if doctor["classes"]["gvisor"] != true {
        not_run("the class gvisor", &doctor["classNotes"]["gvisor"].to_string());
        return;
    }
    symlink("calc.py", world.project.path().join("latest")).unwrap();
    let up = world.up(&[]).await;
    // The daemon dies once, so that the project is put back there too.
    let die = format!(
        "{MEND}; mkdir -p __pycache__; test -L latest || touch changed.py; \
         test -e __pycache__/died || {{ touch __pycache__/died; rm -r latest old; chmod 700 run.sh; kill -9 $PPID; }}"
    );
    let steps = script(&plan(&["calc.py"], &["unit"]), &die);
    let gvisor = json!({"isolation": {"class_min": "gvisor"}});
    let mut tests = unit();
    tests[0]["isolation"] = gvisor["isolation"].clone();
    let run = started(&up, &world.recipe(&steps, gvisor, tests)).await;
    approved(&up, &run).await;
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert_eq!(world.steps_asked(), [0, 1, 2]);
    let sql = up.sql().await;
    assert_eq!(history(&sql, &run).await, ["calc.py 420 420"]);
    let classes = "SELECT DISTINCT class FROM app.remote_execution_sessions";
    assert_eq!(texts(&sql, classes).await, ["gvisor"]);
    assert_wiped(&world.home, &sql).await;
    assert_proven(&world.home);
}
