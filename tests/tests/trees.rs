//! Host directories bound by their content: what a yes binds, what each shard and a retry gets, whatever changes on the host meanwhile.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_tests::{Home, Server, tamper, text};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use serde_json::{Value, json};
use support::gates::{say, waiting};
use support::{assert_proven, assert_wiped, count, said, texts, until};

/// Two shards behind a gate, which say what they see.
const GATED: &str = r#"
id: gated
v: "1"
form: {type: object, properties: {dir: {type: string}}}
plan:
  gate: approve-plan
  tasks:
    - name: shard-${item}
      each: [a, b]
      files: [{from: "${form.dir}", to: /work/src, access: workspace-write}]
      exec: {run: "cd src; cat name sub/more; ls | tr '\n' ' '; stat -c %a run; echo changed > name", timeout: 60s}
"#;

/// Fails, and says what it saw.
const FRAGILE: &str = r#"
id: fragile
v: "1"
form: {type: object, properties: {dir: {type: string}}}
plan:
  tasks:
    - {name: t, files: [{from: "${form.dir}", to: /work/src}], exec: {run: "cat src/name; exit 3", timeout: 60s}}
"#;

/// A task for each file that it lists.
const LISTED: &str = r#"
id: listed
v: "1"
form: {type: object, properties: {dir: {type: string}}}
plan:
  tasks:
    - name: one-${index}
      each: '${glob(form.dir, "sub/*")}'
      files: [{from: "${form.dir}", to: /work/src}]
      exec: {run: "cat src/${item | sh}", timeout: 60s}
"#;

struct World {
    up: Server,
    home: Home,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let (home, dir) = (Home::new(), tempfile::tempdir().unwrap());
        let up = home.up();
        Self::of(home, dir, up)
    }

    fn of(home: Home, dir: tempfile::TempDir, up: Server) -> Self {
        let world = Self { up, home, dir };
        fs::create_dir(world.at("sub")).unwrap();
        world.write("name", "one\n");
        world.write("sub/more", "more\n");
        world.write("run", "#!/bin/sh\n");
        set_mode(&world.at("run"), 0o755);
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    fn form(&self) -> Value {
        json!({"dir": self.dir.path()})
    }

    /// What the attempts of a run said, in their order.
    async fn outputs(&self, run: &Value) -> Vec<String> {
        let query = format!(
            "SELECT inline FROM app.artifacts WHERE run_id = '{}' AND kind = 'stdout' ORDER BY step_id, attempt",
            text(run, "runId")
        );
        texts(&self.up.sql().await, &query).await
    }

    async fn run(&self, recipe: &str) -> (Value, Vec<String>) {
        let header = self.up.run_recipe(recipe, self.form(), json!({"runKey": fresh()})).await;
        let end = self.up.wait_terminal(&text(&header, "runId")).await;
        let outputs = self.outputs(&end).await;
        (end, outputs)
    }

    fn copies(&self) -> Vec<PathBuf> {
        named(&self.home.path().join("trees"))
    }

    /// All copies were used long ago, by all tenants.
    fn age(&self) {
        let marks = named(&self.home.path().join("trees/shares"));
        let marks = marks.iter().flat_map(|tenant| named(tenant));
        // The sweep takes what is a day old.
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3_600);
        for path in marks.chain(self.copies()) {
            fs::File::open(path).unwrap().set_modified(hour_ago).unwrap();
        }
    }
}

/// What a directory has whose name is a digest.
fn named(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().len() == 64).collect()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Another run of equal inputs.
fn fresh() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("key-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn set_modified(path: &Path, tv_sec: i64) {
    let time = Timespec { tv_sec, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_at_its_gate_gets_what_was_bound_whatever_changes_since() {
    let mut world = World::new();
    let run = waiting(&world.up, GATED, world.form(), json!({})).await;
    let (_, card) = world.up.get(&format!("/api/runs/{}/artifacts", text(&run, "runId"))).await;
    assert!(card.to_string().contains("plan_card"), "{card}");
    let sql = world.up.sql().await;
    let bound = texts(&sql, "SELECT sha256 FROM app.intent_trees").await;
    let card = texts(&sql, "SELECT inline FROM app.artifacts WHERE kind = 'plan_card'").await;
    assert_eq!(card[0].matches(bound[0].as_str()).count(), 2, "each shard names it: {}", card[0]);
    world.write("name", "two\n");
    fs::remove_dir_all(world.at("sub")).unwrap();
    world.write("new", "new\n");
    set_mode(&world.at("run"), 0o644);
    // Another process reads it from the disk.
    sql.close().await;
    world.up.kill();
    world.up = world.home.up();
    assert_eq!(say(&world.up, &world.up.key, &run, "k", "yes").await.0, 200);
    let end = world.up.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    assert_eq!(world.outputs(&run).await, ["one\nmore\nname run sub 755\n"; 2]);
    assert_eq!(fs::read_to_string(world.at("name")).unwrap(), "two\n", "nothing was written to it");
    let sql = world.up.sql().await;
    let given = "SELECT count(*) FROM app.task_trees g JOIN app.intent_trees i USING (source, sha256, copy)";
    assert_eq!(count(&sql, given).await, 2);
    let shown = world.home.run(&["show", &text(&run, "runId")]);
    assert!(said(&shown).contains(&bound[0]), "{}", said(&shown));
    assert_proven(&world.home);
    assert_wiped(&world.home, &sql).await;
    // The next run has what is there now, of which the last copy has a part.
    let (end, _) = world.run(FRAGILE).await;
    assert_eq!(world.outputs(&end).await, ["two\n"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_has_the_source_of_its_run_and_the_next_run_has_that_of_its_time() {
    let world = World::new();
    let (failed, seen) = world.run(FRAGILE).await;
    assert_eq!((&failed["status"], seen), (&json!("failed"), vec!["one\n".to_owned()]));
    world.write("name", "two\n");
    let path = format!("/api/runs/{}/retry", text(&failed, "runId"));
    assert_eq!(world.up.post(&path, &json!({})).await.0, 202);
    world
        .up
        .wait_for(&text(&failed, "runId"), "retried", |h| {
            h["retryCount"] == 1 && h["status"] == "failed"
        })
        .await;
    assert_eq!(world.outputs(&failed).await, ["one\n", "one\n"], "not a mix of two versions");
    assert_eq!(world.run(FRAGILE).await.1, ["two\n"]);
    // A change that leaves size and time as they were.
    set_modified(&world.at("name"), 1_000_000_000);
    assert_eq!(world.run(FRAGILE).await.1, ["two\n"]);
    world.write("name", "six\n");
    set_modified(&world.at("name"), 1_000_000_000);
    assert_eq!(world.run(FRAGILE).await.1, ["six\n"], "a time that is set back hides nothing");
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_listed_of_the_content_that_the_tasks_are_given() {
    let world = World::new();
    world.write("sub/other", "other\n");
    let (end, seen) = world.run(LISTED).await;
    assert_eq!(
        (&end["status"], seen.concat()),
        (&json!("succeeded"), "more\nother\n".to_owned()),
        "{end}"
    );
    let live =
        FRAGILE.replace("to: /work/src", "to: /work/src, live: true").replace("exit 3", "exit 0");
    let (end, seen) = world.run(&live).await;
    assert_eq!((&end["status"], seen), (&json!("succeeded"), vec!["one\n".to_owned()]));
    let sql = world.up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.intent_trees").await, 1, "live is not bound");
    let wide = "id: wide\nv: \"1\"\nplan:\n  tasks:\n    - {name: t, files: [{from: /sys/kernel, to: /k}], exec: {run: \"true\"}}\n";
    let (status, refused) =
        world.up.start_recipe_as(&world.up.key, wide, json!({}), json!({})).await;
    assert_eq!((status, &refused["code"]), (400, &json!("recipe_invalid")), "{refused}");
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_no_run_needs_is_swept_and_one_that_waits_is_not() {
    let world = World::new();
    let run = waiting(&world.up, GATED, world.form(), json!({})).await;
    let (needed, sql) = (world.copies(), world.up.sql().await);
    world.write("name", "two\n");
    let done = FRAGILE.replace("exit 3", "exit 0");
    assert_eq!(world.run(&done).await.0["status"], "succeeded");
    let idle: Vec<PathBuf> = world.copies().into_iter().filter(|path| *path != needed[0]).collect();
    assert_eq!((needed.len(), idle.len()), (1, 1));
    let copies = || world.home.run_json(&["df", "--json"])["tenants"][0]["trees"].take();
    assert_eq!(copies()["count"], 1, "the run at its gate needs one");
    assert!(copies()["bytes"].as_u64().unwrap() > 0);
    let long_ago = 1_000_000_000;
    set_modified(&needed[0], long_ago);
    set_modified(&idle[0], long_ago);
    until("the unneeded copy is gone", Duration::from_secs(30), async || {
        let look = "WITH n AS MATERIALIZED (SELECT pg_notify('cofferdam', 'c:' || host_id) FROM app.executors)
                    SELECT count(*) FROM n";
        count(&sql, look).await;
        !idle[0].exists()
    })
    .await;
    assert!(needed[0].exists());
    assert_eq!(say(&world.up, &world.up.key, &run, "k", "yes").await.0, 200);
    assert_eq!(world.up.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    assert_eq!(copies(), json!({"count": 0, "bytes": 0}));
    // One that was removed by hand: the same content may be bound again, another is refused.
    let (failed, _) = world.run(FRAGILE).await;
    for path in world.copies() {
        fs::remove_dir_all(path).unwrap();
    }
    let retry = format!("/api/runs/{}/retry", text(&failed, "runId"));
    assert_eq!(world.up.post(&retry, &json!({})).await.0, 202);
    let again = |n: i32| move |h: &Value| h["retryCount"] == n && h["status"] == "failed";
    world.up.wait_for(&text(&failed, "runId"), "retried", again(1)).await;
    assert_eq!(world.outputs(&failed).await, ["two\n"; 2]);
    for path in world.copies() {
        fs::remove_dir_all(path).unwrap();
    }
    world.write("name", "six\n");
    assert_eq!(world.up.post(&retry, &json!({})).await.0, 202);
    let end = world.up.wait_for(&text(&failed, "runId"), "refused", again(2)).await;
    let (_, steps) = world.up.get(&format!("/api/runs/{}/steps", text(&end, "runId"))).await;
    assert!(steps.to_string().contains("is bound to"), "{steps}");
    assert!(!world.outputs(&failed).await.contains(&"six\n".to_owned()));
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_binds_ever_new_contents_has_its_share_and_no_more() {
    let (home, dir) = (Home::new(), tempfile::tempdir().unwrap());
    let up = home.up_with(&["--allow-dir", dir.path().to_str().unwrap()], &[]);
    let world = World::of(home, dir, up);
    let quota = json!({"value": 1, "expectedVersion": 0}).to_string().into_bytes();
    let set =
        world.up.request("PUT", "/api/config/quota.trees_mb", Some(&world.up.key), Some(quota));
    assert_eq!(set.await.0, 200);
    let write = |content: &str| world.write("large", &content.repeat(700_000));
    let done = FRAGILE.replace("exit 3", "exit 0");
    let refused = async || {
        let (key, form) = (world.up.key.clone(), world.form());
        let opts = json!({"runKey": fresh()});
        let (status, refused) = world.up.start_recipe_as(&key, &done, form, opts).await;
        assert_eq!(
            (status, &refused["code"]),
            (400, &json!("queue_policy_violation")),
            "{refused}"
        );
        let details = json!({"metric": "trees_mb", "limit": 1, "observed": 2});
        assert_eq!(refused["details"], details, "{refused}");
    };
    write("1");
    assert_eq!(world.run(&done).await.0["status"], "succeeded");
    let first = world.copies();
    write("2");
    refused().await;
    // Its run is over: a copy that was not used for a while makes room.
    world.age();
    assert_eq!(world.run(&done).await.0["status"], "succeeded");
    assert_eq!((first.len(), world.copies().len()), (1, 1));
    assert!(!first[0].exists());
    let run = waiting(&world.up, GATED, world.form(), json!({})).await;
    write("3");
    world.age();
    refused().await;
    assert_eq!(world.copies().len(), 1, "what a run needs that goes on stays");
    // Another tenant has a share of its own.
    let roles = json!({"tenant": "bravo", "roles": ["submitter", "operator"]});
    let bravo = world.up.new_key(&roles).await.1;
    let (status, header) = world.up.start_recipe_as(&bravo, &done, world.form(), json!({})).await;
    assert_eq!(status, 201, "{header}");
    assert_eq!(world.copies().len(), 2);
    assert_eq!(say(&world.up, &world.up.key, &run, "k", "yes").await.0, 200);
    assert_eq!(world.up.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
    let sql = world.up.sql().await;
    until("each run is over", Duration::from_secs(60), async || {
        count(&sql, "SELECT count(*) FROM app.runs WHERE NOT app.is_over(status)").await == 0
    })
    .await;
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_not_what_was_bound_is_found_by_its_proof() {
    let world = World::new();
    let (end, _) = world.run(&FRAGILE.replace("exit 3", "exit 0")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    assert_proven(&world.home);
    let sql = world.up.sql().await;
    tamper(&sql, "UPDATE app.task_trees SET sha256 = repeat('a', 64)").await;
    let proven = world.home.run(&["prove"]);
    let words = said(&proven);
    assert!(!proven.status.success() && words.contains("trees_are_what_was_bound"), "{words}");
}
