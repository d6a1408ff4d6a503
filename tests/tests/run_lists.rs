//! Lists of runs and names of runs: pages, filters, beginnings of ids, `last`, and how wide a terminal's table is.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::pty::{Interrupt, Terminal};
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;

/// Runs of a tenant that are over, as they are stored: seven were created at each instant.
const RUNS: &str = "WITH n AS (SELECT n, md5($1::text || n) AS hex FROM generate_series($2::int, $3) n),
       i AS (INSERT INTO app.intents (id, tenant_id, goal, inputs, constraints, key_id, origin)
             SELECT 'it_' || hex, $1, 'g', '{}', '{}', 'k', 'manual' FROM n)
     INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v, recipe_hash,
                           partition_key, priority, app_version, origin, key_id, created_at)
     SELECT 'rn_' || hex, 'it_' || hex, 'it_' || hex, $1,
            CASE n % 4 WHEN 0 THEN 'failed' WHEN 1 THEN 'canceled' ELSE 'succeeded' END, 'LOCAL_NATIVE',
            CASE n % 3 WHEN 0 THEN 'rare' ELSE 'usual' END, '1', repeat('0', 64), $1, 1, 'v', 'manual', 'k',
            timestamptz '2020-01-01 00:00:00Z' + (n / 7) * interval '1 second'
       FROM n";

/// Writes runs with these numbers.
async fn add(sql: &PgPool, tenant: &str, numbers: std::ops::RangeInclusive<i32>) {
    // The foreign key is looked at when the statement ends, so that both can be written by one.
    let mut tx = sql.begin().await.unwrap();
    sqlx::query(RUNS)
        .bind(tenant)
        .bind(numbers.start())
        .bind(numbers.end())
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// A server without a worker: nothing ends or moves what is written beside it.
fn api(home: &Home) -> Server {
    Server::start(home, &["api", "--listen", "127.0.0.1:0"], &[])
}

/// A page of a list, and the path of the page after it.
async fn page(server: &Server, key: &str, path: &str) -> (Vec<Value>, Option<String>) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.get(format!("{}{path}", server.url)).bearer_auth(key).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200, "{path}");
    let link = answer.headers().get("link").map(|link| link.to_str().unwrap().to_owned());
    let next = link.map(|link| {
        let path = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
        path.unwrap_or_else(|| panic!("{link}")).to_owned()
    });
    (answer.json().await.unwrap(), next)
}

fn id(run: &Value) -> String {
    text(run, "runId")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_runs_are_paged_without_a_gap_while_runs_are_added() {
    let home = Home::new();
    let server = api(&home);
    let sql = server.sql().await;
    add(&sql, "default", 1..=2_000).await;
    let before: BTreeSet<String> = sqlx::query_scalar("SELECT id FROM app.runs")
        .fetch_all(&sql)
        .await
        .unwrap()
        .into_iter()
        .collect();
    let (mut seen, mut added) = (Vec::new(), 2_000);
    let mut path = Some("/api/runs?limit=97".to_owned());
    while let Some(here) = path {
        let (runs, next) = page(&server, &server.key, &here).await;
        assert!(next.is_none() || runs.len() == 97, "{here}: {} of 97", runs.len());
        seen.extend(runs);
        add(&sql, "default", added + 1..=added + 5).await;
        added += 5;
        path = next;
    }
    let ids: BTreeSet<String> = seen.iter().map(id).collect();
    assert_eq!((ids.len(), &ids), (seen.len(), &before), "each run once, and none that came later");
    let at = |run: &Value| (run["createdAt"].as_i64().unwrap(), id(run));
    assert!(
        seen.windows(2).all(|two| at(&two[0]) > at(&two[1])),
        "newest first, equal times by id"
    );

    let all = home.run_json(&["ps", "--all", "--json"]);
    let all: BTreeSet<String> = all["runs"].as_array().unwrap().iter().map(id).collect();
    assert_eq!(all.len(), usize::try_from(added).unwrap());
    let some = home.run(&["ps", "--limit", "700"]);
    let some = String::from_utf8(some.stdout).unwrap();
    assert_eq!(some.lines().count(), 701, "more than one page, under one head");
    let whole = |line: &str| line.split(' ').next().is_some_and(|id| id.len() == 35);
    assert!(some.lines().skip(1).all(whole), "whole ids off a terminal");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_the_runs_that_its_filters_leave() {
    let home = Home::new();
    let server = api(&home);
    let sql = server.sql().await;
    add(&sql, "default", 1..=84).await;
    let (status, imported) =
        server.post("/api/recipes/import", &json!({"yaml": "{id: waits, v: '1', plan: {tasks: [{name: t, exec: {run: 'true'}}]}}"})).await;
    assert_eq!(status, 201, "{imported}");
    let start = json!({"recipeRef": imported["recipeRef"], "formData": {}, "opts": {}});
    let (status, queued) = server.post("/api/run", &start).await;
    assert_eq!(status, 201, "{queued}");
    let list = async |query: &str| {
        page(&server, &server.key, &format!("/api/runs?limit=500&{query}")).await.0
    };
    for (query, count) in [
        ("status=failed", 21),
        ("failed=true", 21),
        ("status=failed,canceled", 42),
        ("status=queued", 1),
        ("status=running", 0),
        ("status=queued,running", 1),
        ("recipe=rare", 28),
        ("recipe=rare&failed=true", 7),
        ("recipe=none", 0),
        // Seven for each second; the first has six.
        ("until=2020-01-01T00:00:01Z", 6),
        ("since=2020-01-01T00:00:01Z&until=2020-01-01T00:00:03Z", 14),
        ("since=2021-01-01T00:00:00Z", 1),
    ] {
        let runs = list(query).await;
        assert_eq!(runs.len(), count, "{query}: {runs:?}");
    }
    let waits = list("status=queued").await;
    assert!(waits[0]["waitsFor"].is_string() && id(&waits[0]) == id(&queued), "{waits:?}");
    for bad in [
        "status=",
        "status=failed,failed",
        "status=done",
        "failed=true&status=failed",
        "failed=1",
        "since=yesterday",
        "recipe=A",
        "after=rn_00000000000000000000000000000000",
        "after=it_1",
        "limit=0",
    ] {
        let (status, refused) = server.get(&format!("/api/runs?{bad}")).await;
        assert_eq!(
            (status, &refused["code"]),
            (400, &json!("schema_violation")),
            "{bad}: {refused}"
        );
    }
    let counted = |flags: &[&str]| {
        let runs = home.run_json(&[&["ps", "--json"], flags].concat());
        runs["runs"].as_array().unwrap().len()
    };
    assert_eq!(counted(&["--failed", "--limit", "50"]), 21);
    assert_eq!(counted(&["--status", "failed", "--status", "queued", "--all"]), 22);
    assert_eq!(counted(&["--since", "2h"]), 1);
    assert_eq!(counted(&["--until", "2020-01-01 00:00:01", "--recipe", "rare"]), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_other_tenants_are_the_hosts_admins_to_list() {
    let home = Home::new();
    let server = api(&home);
    let sql = server.sql().await;
    add(&sql, "acme", 1..=30).await;
    add(&sql, "other", 1..=30).await;
    let acme = server.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await.1;
    let auditor = server.new_key(&json!({"roles": ["auditor"]})).await.1;
    for (key, tenant) in [(&acme, "other"), (&acme, "*"), (&auditor, "acme"), (&auditor, "*")] {
        let (status, refused) = server.get_as(key, &format!("/api/runs?tenant={tenant}")).await;
        assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{tenant}: {refused}");
    }
    assert_eq!(page(&server, &acme, "/api/runs?tenant=acme&limit=500").await.0.len(), 30);
    assert_eq!(page(&server, &server.key, "/api/runs?tenant=other&limit=500").await.0.len(), 30);
    let (mut all, mut path) = (Vec::new(), Some("/api/runs?tenant=*&limit=7".to_owned()));
    while let Some(here) = path {
        let (runs, next) = page(&server, &server.key, &here).await;
        all.extend(runs);
        path = next;
    }
    let ids: BTreeSet<String> = all.iter().map(id).collect();
    assert_eq!((ids.len(), all.len()), (60, 60));
    let of = |tenant: &str| all.iter().filter(|run| run["tenantId"] == tenant).count();
    assert_eq!((of("acme"), of("other")), (30, 30));
    let table = String::from_utf8(home.run(&["ps", "--tenant", "*", "--all"]).stdout).unwrap();
    assert!(
        table.starts_with("RUN ") && table.lines().next().unwrap().contains("TENANT"),
        "{table}"
    );
    assert_eq!(table.lines().count(), 61);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_named_by_the_beginning_of_its_id_and_as_the_callers_last() {
    let home = Home::new();
    let server = api(&home);
    let sql = server.sql().await;
    add(&sql, "default", 1..=50).await;
    add(&sql, "other", 1..=50).await;
    let recipe = "{id: named, v: '1', plan: {tasks: [{name: t, exec: {run: 'true'}}]}}";
    let (ann, bob) = {
        let body = json!({"roles": ["submitter", "operator", "auditor"]});
        (server.new_key(&body).await.1, server.new_key(&body).await.1)
    };
    let start = async |key: &str, n: u32| {
        let (status, run) = server
            .start_recipe_as(key, recipe, json!({}), json!({"runKey": format!("k{n}")}))
            .await;
        assert_eq!(status, 201, "{run}");
        id(&run)
    };
    let (first, second, of_bob) =
        (start(&ann, 1).await, start(&ann, 2).await, start(&bob, 3).await);
    let named =
        async |key: &str, name: &str| server.get_as(key, &format!("/api/runs/{name}")).await;
    for (key, name, run) in [
        (&ann, "last".to_owned(), &second),
        (&bob, "last".to_owned(), &of_bob),
        (&ann, first[..9].to_owned(), &first),
        (&ann, first[3..12].to_owned(), &first),
        (&bob, first[..34].to_owned(), &first),
        (&bob, first[3..].to_owned(), &first),
    ] {
        let (status, found) = named(key, &name).await;
        assert_eq!((status, found["runId"].as_str()), (200, Some(run.as_str())), "{name}: {found}");
        // What belongs to a run is found by the same names.
        let (status, steps) = server.get_as(key, &format!("/api/runs/{name}/steps")).await;
        assert_eq!(status, 200, "{name}: {steps}");
    }
    let fresh = server.new_key(&json!({"roles": ["auditor"]})).await.1;
    assert_eq!(named(&fresh, "last").await.0, 404, "it started none");

    let foreign: String =
        sqlx::query_scalar("SELECT id FROM app.runs WHERE tenant_id = 'other' LIMIT 1")
            .fetch_one(&sql)
            .await
            .unwrap();
    for name in [&foreign[..11], &foreign[3..11], foreign.as_str(), "rn_ffffff", "rn_fff"] {
        let (status, refused) = named(&ann, name).await;
        assert_eq!((status, &refused["code"]), (404, &json!("not_found")), "{name}: {refused}");
    }

    // Commands that act take the same names, and act once.
    let own = start(&server.key, 4).await;
    let canceled = home.run(&["cancel", "last"]);
    assert_eq!(canceled.status.code(), Some(0), "{}", String::from_utf8_lossy(&canceled.stderr));
    let workflow = text(&server.get(&format!("/api/runs/{own}")).await.1, "workflowID");
    assert_eq!(String::from_utf8(canceled.stdout).unwrap().trim(), workflow);
    let shown = home.run(&["show", &own[3..13]]);
    assert!(String::from_utf8(shown.stdout).unwrap().starts_with(&format!("run {own} ")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_of_several_ids_is_refused_with_those_of_the_tenant() {
    let home = Home::new();
    let server = api(&home);
    let sql = server.sql().await;
    add(&sql, "default", 1..=1).await;
    let first: String =
        sqlx::query_scalar("SELECT id FROM app.runs").fetch_one(&sql).await.unwrap();
    let named = async |name: &str| server.get(&format!("/api/runs/{name}")).await;
    let alike = |n: u32| format!("rn_abcdef{n:026x}");
    let copies = "INSERT INTO app.runs (id, intent_id, workflow_id, tenant_id, status, execution_mode, recipe_id, recipe_v,
                    recipe_hash, partition_key, priority, app_version, origin, key_id)
                  SELECT $1, intent_id, workflow_id || '.f' || $2, $3, 'succeeded', execution_mode, recipe_id, recipe_v,
                    recipe_hash, $3, 1, 'v', 'manual', 'k' FROM app.runs WHERE id = $4";
    for n in 1..=8_u32 {
        // The last is of another tenant, and is no candidate.
        let tenant = if n == 8 { "other" } else { "default" };
        let copy = sqlx::query(copies).bind(alike(n)).bind(n.to_string()).bind(tenant).bind(&first);
        copy.execute(&sql).await.unwrap();
        let (status, found) = named("abcdef").await;
        match n {
            1 => assert_eq!((status, id(&found)), (200, alike(1))),
            n => {
                assert_eq!((status, &found["code"]), (409, &json!("conflict")), "{found}");
                let candidates = found["details"]["candidates"].as_array().unwrap();
                assert_eq!(candidates.len(), usize::try_from(n.min(5)).unwrap(), "{found}");
                assert!(!candidates.contains(&json!(alike(8))), "{found}");
            }
        }
    }
    let refused = home.run(&["show", "rn_abcdef"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(1)
            && said.contains("conflict")
            && said.contains("rn_abcdef0"),
        "{said}"
    );
    assert_eq!(named(&alike(2)).await.0, 200, "a whole id is no beginning");
}

/// What a command shows on a terminal that is so wide.
fn on_terminal(home: &Home, columns: u16, args: &[&str]) -> String {
    let terminal = Terminal::sized(&home.command(args), Interrupt::Usual, 24, columns);
    let (status, shown) = terminal.ended(Duration::from_secs(60));
    assert!(status.success(), "{shown}");
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_terminals_of_40_and_80_columns() {
    let home = Home::new();
    let server = api(&home);
    let sql = server.sql().await;
    add(&sql, "default", 1..=12).await;
    let long = format!("\u{1b}[2K\u{202e} 日本語 {}", "of many words ".repeat(20));
    sqlx::query("UPDATE app.runs SET error = $1 WHERE status = 'failed'")
        .bind(&long)
        .execute(&sql)
        .await
        .unwrap();
    let label = "label ".repeat(10);
    server.new_key(&json!({"roles": ["auditor", "operator"], "label": label})).await;
    let plan = json!({"tasks": [{"name": "t", "value": "v"}]});
    let titled = json!({"id": "a-recipe-with-a-long-name-of-its-own", "v": "1", "title": long, "plan": plan});
    let (status, imported) =
        server.post("/api/recipes/import", &json!({"recipe": titled, "origin": "test"})).await;
    assert_eq!(status, 201, "{imported}");
    for args in
        [&["ps"][..], &["ps", "--all"], &["key", "ls"], &["recipe", "ls"], &["session", "ls"]]
    {
        for columns in [40, 80] {
            let shown = on_terminal(&home, columns, args);
            for line in shown.lines() {
                // A Japanese character takes two cells.
                let cells: usize =
                    line.trim_end().chars().map(|c| if c > '\u{3000}' { 2 } else { 1 }).sum();
                assert!(cells <= usize::from(columns), "{args:?} at {columns}: {line:?}");
            }
            assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
            // No sandbox was made.
            assert!(args[0] == "session" || shown.lines().count() > 1, "{args:?}: {shown}");
        }
    }
    let narrow = on_terminal(&home, 40, &["ps"]);
    let heads = narrow.lines().next().unwrap();
    assert!(heads.contains("STATUS") && !heads.contains("CREATED"), "{narrow}");
    let words: Vec<&str> = narrow.split_whitespace().collect();
    let words = words.join(" ");
    assert!(
        words.contains("narrow: CREATED (UTC), ERROR are left out; --json has all"),
        "{narrow}"
    );
    let wide = on_terminal(&home, 80, &["ps"]);
    assert!(wide.contains("CREATED (UTC)") && wide.contains("ERROR"), "{wide}");
    assert!(!wide.contains("narrow: "), "{wide}");
    // A run's short name is one that the server takes.
    let name = wide.lines().nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(name.len(), "rn_".len() + 8, "{name}");
    assert_eq!(server.get(&format!("/api/runs/{name}")).await.0, 200, "{name}");
}
