//! The dependency cache through the whole house: a second run hits, another tenant never does, and what
//! is given up is gone from the disk and said in the ledger.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped, count, names, recipe, said, signal, texts, until};

/// The build leaves what no other build leaves, so whoever has it has exactly that base.
const DEPS: &str = r#"
id: deps
v: "1"
form:
  type: object
  additionalProperties: false
  properties: {lock: {type: string, default: "a==1"}}
plan:
  tasks:
    - name: work
      files: [{text: "${form.lock}", to: /work/req.txt}]
      build: {run: "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n' > /deps/id; echo built", cache: req.txt, timeout: 30s}
      exec: {run: "cat /deps/id; echo x >> /deps/id; echo; ls /deps", timeout: 30s}
      limits: {mem_mb: 128, disk_mb: 64}
"#;

struct Ended {
    id: String,
    cache: Value,
    /// What the build left.
    deps: String,
    built: bool,
}

async fn run_with(up: &Server, key: &str, run_key: &str, form: Value) -> Ended {
    let opts = json!({"runKey": run_key});
    let (status, header) = up.start_recipe_as(key, DEPS, form, opts).await;
    assert_eq!(status, 201, "{header}");
    ended(up, key, text(&header, "runId")).await
}

async fn ended(up: &Server, key: &str, id: String) -> Ended {
    let path = format!("/api/runs/{id}");
    until("the run has ended", Duration::from_secs(60), async || {
        up.get_as(key, &path).await.1["durableStatus"] == "SUCCESS"
    })
    .await;
    let (_, steps) = up.get_as(key, &format!("{path}/steps")).await;
    let step = steps.as_array().unwrap().iter().find(|s| s["stepId"] == "ExecuteST:work").unwrap();
    assert_eq!(step["output"]["errCode"], "NONE", "{step}");
    let cache = step["output"]["cache"].clone();
    assert_eq!(
        step["output"]["effective"]["cache"], cache,
        "requested, effective, observed: one story"
    );
    let sql = up.sql().await;
    let out =
        texts(&sql, &format!("SELECT response->>'stdout' FROM app.sbx_runs WHERE run_id = '{id}'"))
            .await
            .remove(0);
    sql.close().await;
    let (built, out) = match out.strip_prefix("built\n") {
        Some(rest) => (true, rest.to_owned()),
        None => (false, out),
    };
    Ended { id, cache, deps: out.lines().next().unwrap().to_owned(), built }
}

async fn run(up: &Server, run_key: &str, form: Value) -> Ended {
    run_with(up, &up.key, run_key, form).await
}

fn bases(home: &Home) -> Vec<String> {
    names(&home.path().join("cache/bases"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_run_hits_and_a_changed_lock_file_does_not() {
    let home = Home::new();
    let mut up = home.up();
    let first = run(&up, "1", json!({})).await;
    assert_eq!((first.built, &first.cache["outcome"]), (true, &json!("kept")), "{}", first.cache);
    let second = run(&up, "2", json!({})).await;
    assert_eq!(
        (second.built, &second.cache["outcome"]),
        (false, &json!("hit")),
        "{}",
        second.cache
    );
    assert_eq!(second.deps, first.deps, "no build ran, and the first task's writes are not there");
    assert_eq!(second.cache["digest"], first.cache["digest"]);
    let other = run(&up, "3", json!({"lock": "a==2"})).await;
    assert_eq!(other.cache["outcome"], "kept");
    assert_ne!(other.deps, first.deps);
    // A worker that starts again finds what is on the disk.
    assert!(up.stop().success());
    let up = home.up();
    let third = run(&up, "4", json!({})).await;
    assert_eq!((&third.deps, &third.cache["outcome"]), (&first.deps, &json!("hit")));
    let sql = up.sql().await;
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.dependency_cache_index WHERE state = 'ready'").await,
        2
    );
    assert_eq!(count(&sql, "SELECT count(*) FROM app.dependency_cache_uses").await, 2);
    let same = format!(
        "SELECT w.evidence->>'cacheBefore' = w.evidence->>'cacheAfter' AND w.wipe_status = 'verified'
                AND w.evidence->'checks' @> '[{{\"kind\": \"cache-base\", \"ok\": true}}]'
           FROM app.secure_wipe_evidence w WHERE w.run_id = '{}'", second.id
    );
    assert!(
        sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(same)).fetch_one(&sql).await.unwrap()
    );
    assert_wiped(&home, &sql).await;
    sql.close().await;
    assert_proven(&home);
}

/// The same recipe, lock file and build for any directory: what the build leaves is the directory's own.
const OF_A_DIRECTORY: &str = r#"
id: deps
v: "1"
form:
  type: object
  additionalProperties: false
  properties: {from: {type: string}}
plan:
  tasks:
    - name: work
      files: [{from: "${form.from}", to: /given, access: read-only}]
      build: {run: "cat /given/who > /deps/id; echo built", cache: CACHE, timeout: 30s}
      exec: {run: "cat /deps/id", timeout: 30s}
      limits: {mem_mb: 128, disk_mb: 64}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_base_stays_with_the_directory_that_it_was_built_from() {
    let (home, allowed) = (Home::new(), tempfile::tempdir().unwrap());
    let dir = allowed.path().to_str().unwrap();
    let up = Server::start(&home, &["up", "--listen", "127.0.0.1:0", "--allow-dir", dir], &[]);
    for who in ["mine", "theirs"] {
        std::fs::create_dir(allowed.path().join(who)).unwrap();
        std::fs::write(allowed.path().join(who).join("lock"), "a==1").unwrap();
        std::fs::write(allowed.path().join(who).join("who"), format!("{who}\n")).unwrap();
    }
    let said = "{repo: same, paths: [/given/lock]}";
    for (kind, cache) in [("lock", "/given/lock"), ("said", said)] {
        let yaml = OF_A_DIRECTORY.replace("CACHE", cache);
        let mut seen = Vec::new();
        for (turn, who) in ["theirs", "mine", "theirs", "mine"].into_iter().enumerate() {
            let from = format!("{dir}/{who}");
            let (status, header) = up
                .start_recipe_as(
                    &up.key,
                    &yaml.replace("id: deps", &format!("id: deps-{kind}")),
                    json!({"from": from}),
                    json!({"runKey": format!("{kind}{turn}")}),
                )
                .await;
            assert_eq!(status, 201, "{header}");
            let ended = ended(&up, &up.key, text(&header, "runId")).await;
            assert_eq!(ended.deps, who, "dependencies of its own directory: {}", ended.cache);
            assert_eq!(ended.cache["repo"], format!("dir:{from}"));
            seen.push(ended.cache["outcome"].clone());
        }
        assert_eq!(seen, ["kept", "kept", "hit", "hit"]);
    }
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenant_misses_sees_nothing_and_cannot_give_it_up() {
    let home = Home::new();
    let up = home.up();
    let mut keys = Vec::new();
    for tenant in ["acme", "zenith"] {
        let roles = json!({"tenant": tenant, "roles": ["submitter", "operator"]});
        keys.push(up.new_key(&roles).await.1);
    }
    let [acme, zenith] = keys.as_slice() else { panic!("two keys") };
    let first = run_with(&up, acme, "1", json!({})).await;
    let (_, listed) = up.get_as(zenith, "/api/cache").await;
    assert_eq!(listed, json!([]));
    let key = first.cache["key"].as_str().unwrap();
    let path = format!("/api/cache/{key}");
    assert_eq!(up.request("DELETE", &path, Some(zenith), None).await.0, 404);
    let theirs = run_with(&up, zenith, "1", json!({})).await;
    assert_eq!(theirs.cache["outcome"], "kept", "the same request, and nothing of another's");
    assert_eq!(theirs.cache["lockHash"], first.cache["lockHash"]);
    assert_ne!(theirs.cache["key"], first.cache["key"]);
    assert_ne!(theirs.deps, first.deps);
    // Who names another tenant is refused before anything is written.
    let foreign = DEPS.replace(
        "      build:",
        "      cache: {org: acme, repo: deps, paths: [req.txt]}\n      build:",
    );
    let foreign = foreign.replace("id: deps", "id: foreign");
    let sql = up.sql().await;
    let before = count(&sql, "SELECT count(*) FROM app.intents").await;
    let (status, refused) = up.start_recipe_as(zenith, &foreign, json!({}), json!({})).await;
    assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
    assert_eq!(refused["details"]["field"], "plan.tasks[0].cache.org", "{refused}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.intents").await, before);
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_leaves_the_disk_and_what_left_the_disk_is_a_miss() {
    let home = Home::new();
    let up = home.up();
    let first = run(&up, "1", json!({})).await;
    let other = run(&up, "2", json!({"lock": "b==1"})).await;
    let listed = home.run_json(&["cache", "ls", "--json"]);
    assert_eq!(listed["entries"].as_array().unwrap().len(), 2, "{listed}");
    assert!(listed["bytes"].as_u64().unwrap() >= 64, "{listed}");
    let key = first.cache["key"].as_str().unwrap();
    let output = home.run(&["cache", "rm", &key[..16]]);
    assert!(output.status.success(), "{}", said(&output));
    until("the base is gone", Duration::from_secs(20), async || {
        !bases(&home).contains(&key.to_owned())
    })
    .await;
    assert_eq!(bases(&home), [other.cache["key"].as_str().unwrap()]);
    let output = home.run(&["cache", "rm", key]);
    assert_eq!(output.status.code(), Some(1), "it is not there any more: {}", said(&output));
    let again = run(&up, "3", json!({})).await;
    assert_eq!(again.cache["outcome"], "kept");
    assert_ne!(again.deps, first.deps);
    // Damaged by hand: not used, and built again.
    let file = home.path().join("cache/bases").join(key).join("layer/0/id");
    std::fs::write(&file, "damaged").unwrap();
    let healed = run(&up, "4", json!({})).await;
    assert_eq!(healed.cache["outcome"], "kept");
    // With its bytes changed in secret, only the full check sees it.
    assert!(home.run(&["cache", "verify"]).status.success());
    let before = std::fs::metadata(&file).unwrap();
    let bytes = vec![b'x'; usize::try_from(before.len()).unwrap()];
    std::fs::write(&file, bytes).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_modified(before.modified().unwrap())
        .unwrap();
    let output = home.run(&["cache", "verify", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains(key), "{}", said(&output));
    let rebuilt = run(&up, "5", json!({})).await;
    assert_eq!(rebuilt.cache["outcome"], "kept");
    let evicted = home.run_json(&["cache", "evict", "--json"]);
    assert_eq!(evicted["doomed"], 2, "{evicted}");
    until("all are gone", Duration::from_secs(20), async || bases(&home).is_empty()).await;
    let sql = up.sql().await;
    until("the ledger says so", Duration::from_secs(20), async || {
        count(&sql, "SELECT count(*) FROM app.dependency_cache_index WHERE state <> 'evicted'")
            .await
            == 0
    })
    .await;
    let whys = "SELECT evicted_why FROM app.dependency_cache_index ORDER BY entry_id";
    assert_eq!(texts(&sql, whys).await, ["asked", "asked", "damaged", "missing", "asked"]);
    assert_eq!(count(&sql, "SELECT count(*) FROM app.audit WHERE op LIKE 'cache.%'").await, 2);
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_keeps_one_base_and_a_base_that_nobody_vouches_for_is_taken_away() {
    let home = Home::new();
    let file = recipe(
        home.path(),
        "fan.yaml",
        &DEPS.replace("    - name: work\n", "    - name: work-${item}\n      each: [a, b, c]\n"),
    );
    let output = home.run(&["run", &file]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert_eq!(
        text.matches(", cache kept)").count() + text.matches(", cache hit)").count(),
        3,
        "{text}"
    );
    assert!(text.contains(", cache kept)"), "{text}");
    assert_eq!(bases(&home).len(), 1);
    let output = home.run(&["run", &file]);
    assert_eq!(said(&output).matches(", cache hit)").count(), 3, "{}", said(&output));
    // As after a kill between the rename and its row.
    let place = home.path().join("cache/bases");
    let known = bases(&home).remove(0);
    let nobodys = place.join("0".repeat(64));
    std::fs::create_dir_all(nobodys.join("layer/0")).unwrap();
    std::fs::create_dir_all(home.path().join("cache/drafts/left/layer")).unwrap();
    let up = home.up();
    until("what is nobody's is gone", Duration::from_secs(20), async || {
        bases(&home) == [known.clone()] && names(&home.path().join("cache/drafts")).is_empty()
    })
    .await;
    drop(up);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_or_cannot_be_kept_leaves_no_base() {
    let home = Home::new();
    let fails = DEPS.replace("echo built\"", "exit 7\"").replace("id: deps", "id: fails");
    let output = home.run(&["run", &recipe(home.path(), "fails.yaml", &fails)]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("cache dropped: the build did not end well"),
        "{}",
        said(&output)
    );
    let pipe = DEPS.replace("echo built\"", "mkfifo /deps/p\"").replace("id: deps", "id: pipe");
    let output = home.run(&["run", &recipe(home.path(), "pipe.yaml", &pipe)]);
    assert!(output.status.success(), "the task has what it needs: {}", said(&output));
    assert!(
        said(&output).contains("cache dropped: \"p\" is a device, a pipe or a socket"),
        "{}",
        said(&output)
    );
    assert!(bases(&home).is_empty());
    assert_proven(&home);
}

#[test]
fn a_run_without_a_cache_leaves_no_trace_of_one() {
    let home = Home::new();
    let output = home.run(&["run", "examples/hello.yaml"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(!home.path().join("cache").exists());
    let listed = home.run_json(&["cache", "ls", "--json"]);
    assert_eq!(listed["entries"], json!([]));
}

/// A build that takes its time, of one repository whatever the recipe is called.
fn slow(id: &str, each: &str, timeout: &str) -> String {
    format!(
        r#"
id: {id}
v: "1"
plan:
  tasks:
    - name: work-${{item}}
      each: {each}
      files: [{{text: "a==1", to: /work/req.txt}}]
      build:
        run: "echo built-$WHO-$SHARD; sleep 3; echo there > /deps/id"
        env: {{WHO: build}}
        cache: {{repo: slow, paths: [req.txt], dirs: [/deps]}}
        timeout: {timeout}
      exec: {{run: "cat /deps/id; echo shard-$WHO-$SHARD", env: {{SHARD: "${{item}}"}}, timeout: 30s}}
      limits: {{mem_mb: 64, disk_mb: 32}}
"#
    )
}

async fn begin(up: &Server, yaml: &str) -> String {
    let (status, header) = up.start_recipe_as(&up.key, yaml, json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    text(&header, "runId")
}

async fn building(sql: &sqlx::PgPool, run: &str) {
    until("its build runs", Duration::from_secs(60), async || {
        let said = format!(
            "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'BUILDING' AND run_id = '{run}'"
        );
        count(sql, &said).await > 0
    })
    .await;
}

async fn outcomes(sql: &sqlx::PgPool, run: &str) -> Vec<String> {
    let query = format!(
        "SELECT coalesce(response->'cache'->>'outcome', 'none') FROM app.sbx_runs
          WHERE run_id = '{run}' ORDER BY 1"
    );
    texts(sql, &query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_of_cold_shards_one_builds_and_none_sees_the_variables_of_the_other_phase() {
    let home = Home::new();
    let up = home.up();
    let run = begin(&up, &slow("shards", "[a, b, c, d]", "60s")).await;
    up.wait_terminal(&run).await;
    let sql = up.sql().await;
    assert_eq!(outcomes(&sql, &run).await, ["hit", "hit", "hit", "kept"]);
    let said = format!("SELECT response->>'stdout' FROM app.sbx_runs WHERE run_id = '{run}'");
    let mut said = texts(&sql, &said).await.concat();
    for shard in ["a", "b", "c", "d"] {
        let line = format!("there\nshard--{shard}\n");
        assert!(said.contains(&line), "its own variables and no other's: {said}");
        said = said.replace(&line, "");
    }
    assert_eq!(said, "built-build-\n", "one build, with its own variables alone");
    until("no flight is left", Duration::from_secs(20), async || {
        names(&home.path().join("cache/flights")).is_empty()
    })
    .await;
    assert_wiped(&home, &sql).await;
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_a_build_that_failed_passes_on_and_who_waits_can_be_canceled() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let first = begin(&up, &slow("fails", "[a]", "2s")).await;
    building(&sql, &first).await;
    let second = begin(&up, &slow("canceled", "[a]", "60s")).await;
    let third = begin(&up, &slow("waits", "[a]", "60s")).await;
    let output = home.run(&["cancel", &second]);
    assert!(output.status.success(), "{}", said(&output));
    up.wait_terminal(&second).await;
    up.wait_terminal(&first).await;
    up.wait_terminal(&third).await;
    assert_eq!(outcomes(&sql, &first).await, ["dropped"]);
    assert_eq!(outcomes(&sql, &third).await, ["kept"], "the turn was passed on");
    let built = format!(
        "SELECT response->>'stdout' FROM app.sbx_runs WHERE run_id = '{second}' AND response->>'stdout' <> ''"
    );
    assert_eq!(texts(&sql, &built).await, Vec::<String>::new(), "it waited, and built nothing");
    assert_wiped(&home, &sql).await;
    sql.close().await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_workers_of_one_host_build_once_and_a_killed_or_stopped_builder_holds_nobody_up() {
    let home = Home::new();
    let shim = Server::start(&home, &["shim", "--listen", "127.0.0.1:0"], &[]);
    let mut first = Server::start(&home, &["worker"], &[]);
    let sql = shim.sql().await;
    let killed = begin(&shim, &slow("killed", "[a]", "60s")).await;
    building(&sql, &killed).await;
    let second = Server::start(&home, &["worker"], &[]);
    let waits = begin(&shim, &slow("waits", "[a, b, c, d]", "60s")).await;
    first.kill();
    shim.wait_terminal(&waits).await;
    shim.wait_terminal(&killed).await;
    let mut all = outcomes(&sql, &waits).await;
    all.extend(outcomes(&sql, &killed).await);
    all.sort_unstable();
    assert_eq!(all, ["hit", "hit", "hit", "hit", "kept"]);
    // One that is only stopped keeps its lock, and is not waited for.
    assert!(home.run(&["cache", "evict"]).status.success());
    until("the base is gone", Duration::from_secs(20), async || bases(&home).is_empty()).await;
    let stopped = begin(&shim, &slow("stopped", "[a]", "60s")).await;
    building(&sql, &stopped).await;
    signal(second.pid(), Signal::SIGSTOP);
    let third = Server::start(&home, &["worker"], &[]);
    let last = begin(&shim, &slow("last", "[a]", "60s")).await;
    shim.wait_terminal(&last).await;
    shim.wait_terminal(&stopped).await;
    signal(second.pid(), Signal::SIGCONT);
    drop((second, third));
    let mut all = outcomes(&sql, &last).await;
    all.extend(outcomes(&sql, &stopped).await);
    all.sort_unstable();
    assert_eq!(all, ["hit", "kept"]);
    sql.close().await;
    assert_proven(&home);
}
