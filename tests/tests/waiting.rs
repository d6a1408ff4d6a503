//! The container that waits for the next sandbox, in the shipped default: who gets it, and where it ends.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use cofferdam_tests::{Home, Server, assert_nothing_left, live_dir, text};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sqlx::PgPool;
use support::{
    assert_no_sandbox, assert_proven, assert_wiped, count, names, signal, texts, until, waiting,
};

const SOON: Duration = Duration::from_secs(60);
const SHIM: &[&str] = &["shim", "--listen", "127.0.0.1:0"];
const WORKER: &[&str] = &["worker"];
const BRIEF: &str =
    "id: brief\nv: '1'\nplan: {tasks: [{name: t, exec: {run: [/bin/true], timeout: 60s}}]}\n";

/// A run of this tenant to its end, and the sandbox that it had.
async fn sandbox(up: &Server, sql: &PgPool, key: &str, recipe: &str, run_key: String) -> String {
    let opts = json!({"runKey": run_key});
    let (status, header) = up.start_recipe_as(key, recipe, json!({}), opts).await;
    assert_eq!(status, 201, "{header}");
    let run = text(&header, "runId");
    until("it ends", SOON, async || {
        let (_, header) = up.get_as(key, &format!("/api/runs/{run}")).await;
        header["status"] == "succeeded"
    })
    .await;
    let of = format!("SELECT sandbox_id FROM app.remote_execution_sessions WHERE run_id = '{run}'");
    texts(sql, &of).await.remove(0)
}

/// Two sandboxes of one shape, and then the name of the one that waits for the next.
async fn warmed(home: &Home, up: &Server, sql: &PgPool) -> String {
    for turn in 0..2 {
        sandbox(up, sql, &up.key, BRIEF, format!("warm-{turn}-{}", up.pid())).await;
    }
    one_waits(home).await
}

async fn one_waits(home: &Home) -> String {
    let is_ready = |id: &String| init(home, id).is_some();
    until("one waits", SOON, async || waiting(home.path()).iter().any(is_ready)).await;
    waiting(home.path()).remove(0)
}

/// The process of a container's agent, by the runtime's own state.
fn init(home: &Home, id: &str) -> Option<String> {
    let state = live_dir(home.path()).join("run").join(id).join("status");
    let state: Value = serde_json::from_slice(&fs::read(state).ok()?).ok()?;
    state["pid"].as_u64().map(|pid| pid.to_string())
}

/// Where a process stands on the host: its cgroups and the user ids that it has.
fn stands(pid: &str) -> Option<(String, String)> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    read("cgroup").zip(read("uid_map"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_given_the_container_that_waited_and_a_stopped_worker_leaves_none() {
    let home = Home::new();
    let mut up = home.up();
    let sql = up.sql().await;
    let mut waits = warmed(&home, &up, &sql).await;
    let mut was_given = false;
    // One that is still being made when it is asked for is the next one's.
    for turn in 0..20 {
        let had = sandbox(&up, &sql, &up.key, BRIEF, format!("after-{turn}")).await;
        was_given = had == waits;
        if was_given {
            break;
        }
        waits = one_waits(&home).await;
    }
    assert!(was_given, "no task was given one that waited");
    let waits = one_waits(&home).await;
    let wiped = "SELECT count(*) FROM app.remote_execution_sessions s JOIN app.secure_wipe_evidence w USING (sandbox_id)
                  WHERE s.ended_at IS NOT NULL AND w.wipe_status = 'verified'";
    let all = count(&sql, "SELECT count(*) FROM app.remote_execution_sessions").await;
    assert_eq!(count(&sql, wiped).await, all);
    // It has no row before a task takes it.
    let known = format!(
        "SELECT sandbox_id FROM app.remote_execution_sessions WHERE sandbox_id = '{waits}'"
    );
    assert!(texts(&sql, &known).await.is_empty());
    assert_wiped(&home, &sql).await;
    sql.close().await;
    assert!(up.stop().success());
    for dir in ["sandboxes", "run", "waits"] {
        let left = names(&live_dir(home.path()).join(dir));
        assert!(left.is_empty(), "{dir}: {left:?}");
    }
    assert_no_sandbox(home.path(), &[waits]);
    assert_nothing_left(home.path());
}

/// It prints what it finds, and leaves what the next one must not find. Its own text does not hold the word.
fn nosy(word: &str) -> String {
    let (head, tail) = word.split_at(3);
    let script = format!(
        "w={head}''{tail}; cat /work/* /tmp/* /dev/shm/* /root/* 2>/dev/null; \
         ls -a /work /tmp /dev /dev/shm /root; echo sleepers $(cat /proc/[0-9]*/comm | grep -c sleep); \
         env; hostname; cat /proc/self/cgroup; \
         for at in /work /tmp /dev /dev/shm /root; do echo $w > $at/$w; done 2>/dev/null; \
         (setsid sleep 300 &) ; true"
    );
    let run = json!({"run": ["/bin/sh", "-c", script], "timeout": "60s"});
    let tasks = json!([{"name": "t", "exec": run}]);
    json!({"id": "nosy", "v": word, "plan": {"tasks": tasks}}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_in_turn_find_nothing_of_each_other_in_what_waited() {
    const TURNS: usize = 6;
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let words = ["acmeword", "bravoword"];
    let mut keys = Vec::new();
    for tenant in ["acme", "bravo"] {
        let roles = json!({"tenant": tenant, "roles": ["submitter", "operator"]});
        keys.push(up.new_key(&roles).await.1);
    }
    warmed(&home, &up, &sql).await;
    let mut given = [0, 0];
    let mut had: [Vec<String>; 2] = Default::default();
    for turn in 0..TURNS {
        let who = turn % 2;
        let waits = one_waits(&home).await;
        let recipe = nosy(words[who]);
        let id = sandbox(&up, &sql, &keys[who], &recipe, format!("turn-{turn}")).await;
        given[who] += usize::from(id == waits);
        had[who].push(id);
    }
    assert!(given.iter().all(|n| *n > 0), "who was given one that waited: {given:?}");
    let all: BTreeSet<&String> = had.iter().flatten().collect();
    assert_eq!(all.len(), TURNS, "a sandbox has one task: {had:?}");
    for (who, tenant) in ["acme", "bravo"].into_iter().enumerate() {
        let other = 1 - who;
        // Neither files, processes, names nor cgroups; and no files of its own earlier sandboxes either.
        let found = texts(&sql, &format!(
            "SELECT coalesce(response->>'stdout', '') FROM app.sbx_runs s JOIN app.runs r ON r.id = s.run_id
              WHERE r.tenant_id = '{tenant}'"
        )).await;
        assert_eq!(found.len(), TURNS / 2);
        for out in &found {
            assert!(out.contains("/work:") && out.contains("sleepers 0\n"), "{out}");
            let strange = words.into_iter().chain(had[other].iter().map(String::as_str));
            let told = strange.into_iter().find(|word| out.contains(word));
            assert_eq!(told, None, "{out}");
        }
        for id in &had[other] {
            let (status, _) = up.get_as(&keys[who], &format!("/api/sessions/{id}")).await;
            assert_eq!(status, 404);
        }
        let (_, listed) = up.get_as(&keys[who], "/api/sessions?limit=50").await;
        let listed: BTreeSet<String> =
            listed.as_array().unwrap().iter().map(|row| text(row, "sandboxId")).collect();
        assert_eq!(listed, had[who].iter().cloned().collect());
        // Each wipe looked for its own sandbox, and names no other.
        let evidence = texts(&sql, &format!(
            "SELECT w.sandbox_id || ' ' || w.evidence::text FROM app.secure_wipe_evidence w
               JOIN app.remote_execution_sessions s USING (sandbox_id) WHERE s.tenant_id = '{tenant}'"
        )).await;
        for text in evidence {
            let own = text.split(' ').next().unwrap();
            assert!(!all.iter().any(|id| *id != own && text.contains(id.as_str())), "{text}");
        }
    }
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_waits_beside_a_task_has_user_ids_and_cgroups_of_its_own() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let slow = BRIEF.replace("/bin/true", "/bin/sleep, '300'").replace("brief", "slow");
    warmed(&home, &up, &sql).await;
    let (status, header) = up.start_recipe_as(&up.key, &slow, json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    support::executing(&sql, SOON).await;
    let of = "SELECT sandbox_id FROM app.remote_execution_sessions WHERE state = 'EXECUTING'";
    let busy = texts(&sql, of).await.remove(0);
    let waits = one_waits(&home).await;
    let [one, other] = [&busy, &waits].map(|id| stands(&init(&home, id).unwrap()).unwrap());
    assert_ne!(one.0, other.0, "cgroups");
    // Without ranges (an old kernel) both are the host's, and the class says that it is weak.
    if one.1.split_whitespace().nth(1) != Some("0") {
        assert_ne!(one.1, other.1, "user ids");
    }
    let why = json!({"actor": "test", "reason": "not wanted"});
    let wid = text(&header, "workflowID");
    assert_eq!(up.post(&format!("/api/ops/wf/{wid}/cancel"), &why).await.0, 202);
    assert_eq!(up.wait_terminal(&text(&header, "runId")).await["status"], "canceled");
    let open = "SELECT count(*) FROM app.remote_execution_sessions WHERE ended_at IS NULL";
    until("its sandbox is wiped", SOON, async || count(&sql, open).await == 0).await;
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_waiting_container_is_taken_away_by_its_successor() {
    let home = Home::new();
    let mut up = home.up();
    let waits = warmed(&home, &up, &up.sql().await).await;
    let agent = init(&home, &waits).unwrap();
    up.kill();
    until("its agent ends with its stream", SOON, async || {
        stands(&agent).is_none_or(|(groups, _)| !groups.contains(&waits))
    })
    .await;
    assert!(waiting(home.path()).is_empty(), "the mark of a dead worker stands");
    let up = home.up();
    assert_no_sandbox(home.path(), std::slice::from_ref(&waits));
    let sql = up.sql().await;
    let next = warmed(&home, &up, &sql).await;
    assert_ne!(next, waits, "a name is given once");
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_leaves_the_container_of_another_alone_until_that_one_is_killed() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let mut first = Server::start(&home, WORKER, &[]);
    let sql = shim.sql().await;
    let waits = warmed(&home, &shim, &sql).await;
    let agent = init(&home, &waits).unwrap();
    // It reconciles when it starts and when it ends.
    drop(Server::start(&home, WORKER, &[]));
    let second = Server::start(&home, WORKER, &[]);
    assert_eq!(waiting(home.path()), std::slice::from_ref(&waits));
    assert!(stands(&agent).unwrap().0.contains(&waits), "its agent was ended");
    first.kill();
    // No worker starts: one that lives takes it away.
    assert_no_sandbox(home.path(), &[waits]);
    sandbox(&shim, &sql, &shim.key, BRIEF, "after".to_owned()).await;
    assert_wiped(&home, &sql).await;
    drop(second);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lost_its_lease_takes_its_waiting_container_along() {
    let home = Home::new();
    let shim = Server::start(&home, SHIM, &[]);
    let mut first = Server::start(&home, WORKER, &[]);
    let sql = shim.sql().await;
    let waits = warmed(&home, &shim, &sql).await;
    let _second = Server::start(&home, WORKER, &[]);
    signal(first.pid(), Signal::SIGSTOP);
    until("it is declared dead", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.executors WHERE state = 'dead'").await == 1
    })
    .await;
    // What waits with it is its own: it is not killed, and no other worker's task is given it.
    assert_eq!(waiting(home.path()), std::slice::from_ref(&waits));
    for turn in 0..2 {
        let had = sandbox(&shim, &sql, &shim.key, BRIEF, format!("meanwhile-{turn}")).await;
        assert_ne!(had, waits);
    }
    signal(first.pid(), Signal::SIGCONT);
    until("it has ended", SOON, async || first.has_ended()).await;
    assert!(!waiting(home.path()).contains(&waits));
    assert_no_sandbox(home.path(), &[waits]);
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_only_keeps_a_text_takes_no_container() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let waits = warmed(&home, &up, &sql).await;
    let body = json!({"value": 1, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/quota.blobs_mb";
    let (status, said) = up.request("PUT", path, Some(&up.key), Some(body.into_bytes())).await;
    assert_eq!(status, 200, "{said}");
    // The first text fills the quota while its run goes on; a worker is asked for the second then.
    let keep = json!({
        "id": "keep", "v": "1",
        "form": {"type": "object", "properties": {"s": {"type": "string"}}},
        "caps": {"concurrency": 1, "steps": 8},
        "plan": {"tasks": [{"name": "k-${item}", "each": "${range(2)}", "value": "${index} ${form.s}"}]},
    });
    let form = json!({"s": "y".repeat(400_000)});
    let (status, header) =
        up.start_recipe_as(&up.key, &keep.to_string(), form, json!({"runKey": "full"})).await;
    assert_eq!(status, 201, "{header}");
    let run = text(&header, "runId");
    assert_eq!(up.wait_terminal(&run).await["status"], "failed");
    let by_worker = format!(
        "SELECT count(*) FROM app.sbx_executions e JOIN app.sbx_runs s USING (task_key)
                              WHERE s.run_id = '{run}' AND e.sandbox_id IS NULL"
    );
    assert!(count(&sql, &by_worker).await > 0, "no worker was asked for a text");
    assert_eq!(waiting(home.path()), [waits]);
}
