//! The apply gate under a law, the record of what was written, and hosts without git.

use std::process::Stdio;

use cofferdam_contracts::id::{Digest, RunId};
use cofferdam_contracts::patch::{GitId, PatchCommit};
use cofferdam_tests::text;
use serde_json::{Value, json};

use super::gate_run;
use super::world::{World, said};
use crate::support::{assert_proven, count};

const ROWS: &str = "SELECT count(*) FROM app.patch_applies";

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_gate_has_a_group_and_a_quorum_and_what_was_written_is_on_record_once() {
    let world = World::new();
    let run = world.done("echo x >>README").await;
    let member = async |name: &str| {
        let key = json!({"roles": ["approver"], "groups": [name]});
        world.up.new_key(&key).await.1
    };
    let (one, two, other) = (member("sre").await, member("sre").await, member("dev").await);
    let repo = world.repo();
    let repo = repo.to_str().unwrap();
    let args = ["apply", &run, "--repo", repo, "--branch", "b", "--group", "sre", "--quorum", "2"];
    let mut waiting = world.home.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    let gate = gate_run(&world).await;
    let reply = format!("/api/runs/{gate}/gates/approve-plan/reply");
    let yes = |key: &str| json!({"payload": {"choice": "yes"}, "dedupeKey": key});
    assert_eq!(world.up.post_as(&other, &reply, &yes("0")).await.0, 403, "not of the group");
    assert_eq!(world.up.post_as(&one, &reply, &yes("1")).await.0, 200);
    assert!(waiting.try_wait().unwrap().is_none() && world.branch("b").is_none(), "one of two");
    let sql = world.up.sql().await;
    // What nobody agreed to yet is no record.
    let applies = format!("/api/runs/{run}/applies");
    let record = record_of(&world, &run, &gate).await;
    let early = world.up.post(&applies, &record).await;
    assert_eq!((early.0, &early.1["code"]), (409, &json!("state_conflict")), "{}", early.1);
    assert_eq!(world.up.post_as(&two, &reply, &yes("2")).await.0, 200);
    let done = waiting.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let commit = world.branch("b").unwrap();
    assert_eq!(count(&sql, ROWS).await, 1);
    let listed = said(&world.home.run(&["patch", &run, "--applied"]));
    for word in [&commit, "b", repo] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    // Again: the same approval, commit and row.
    let again = world.home.run(&[&args[..], &["--json"]].concat());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&again["created"], &again["commit"]), (&json!(false), &json!(commit)), "{again}");
    let rows = world.home.run_json(&["patch", &run, "--applied", "--json"]);
    let rows = rows["applied"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0]["by"], &rows[0]["at"]), (&again["by"], &again["at"]));
    assert_eq!(rows[0]["written"]["approvedIn"], json!(gate));
    // An approval is of one patch, repository and branch, and of one commit.
    let mut wrong = rows[0]["written"].clone();
    for (field, value, code) in [
        ("branch", json!("c"), "state_conflict"),
        ("repo", json!("/elsewhere"), "state_conflict"),
        ("approvedIn", json!(run), "state_conflict"),
        ("commit", json!("1".repeat(40)), "conflict"),
    ] {
        let was = std::mem::replace(&mut wrong[field], value);
        let refused = world.up.post(&applies, &wrong).await;
        assert_eq!((refused.0, text(&refused.1, "code")), (409, code.to_owned()), "{field}");
        wrong[field] = was;
    }
    assert_eq!(world.up.post(&applies, &wrong).await.0, 200, "as it was");
    assert_eq!(count(&sql, ROWS).await, 1);
    assert!(sqlx::query("UPDATE app.patch_applies SET branch = 'c'").execute(&sql).await.is_err());
    assert_proven(&world.home);
}

async fn sha(world: &World, run: &str) -> String {
    let all = world.up.get(&format!("/api/runs/{run}/artifacts")).await.1;
    let all = all.as_array().unwrap();
    let patch = all.iter().find(|one| text(one, "uri").ends_with("/patch.json")).unwrap();
    text(patch, "sha256")
}

#[tokio::test(flavor = "multi_thread")]
async fn without_git_apply_says_so_before_anybody_is_asked_and_a_task_says_so_itself() {
    let world = World::new();
    let run = world.done("echo x >>README").await;
    let before = world.state();
    let repo = world.repo();
    let args = ["apply", &run, "--repo", repo.to_str().unwrap(), "--yes"];
    let none = world.home.command(&args).env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(none.status.code(), Some(1), "{}", said(&none));
    assert!(
        said(&none).contains("this host has no git, and nothing was written"),
        "{}",
        said(&none)
    );
    assert_eq!(world.up.get("/api/hitl/inbox").await.1, json!([]));
    assert_eq!(world.state(), before);
    // What it can be taken elsewhere by needs none.
    let mut shown = world.home.command(&["patch", &run]);
    let shown = shown.env("PATH", "/nonexistent").output().unwrap();
    assert!(shown.status.success() && said(&shown).contains("+x"), "{}", said(&shown));
    let mut recipe: Value = serde_json::from_str(&world.recipe("true")).unwrap();
    recipe["plan"]["tasks"][0]["build"] = json!({"run": "true", "env": {"PATH": "/nonexistent"}});
    let run = world.up.run_recipe(&recipe.to_string(), json!({}), json!({})).await;
    let header = world.up.wait_terminal(&text(&run, "runId")).await;
    assert_ne!(header["status"], "succeeded", "{header}");
    let sql = world.up.sql().await;
    let words =
        "SELECT count(*) FROM app.sbx_runs WHERE response::text LIKE '%this root has no git%'";
    assert!(count(&sql, words).await >= 1, "{header}");
}

/// What a caller might say was written: a tree that is nowhere, and the commit that it would be.
async fn record_of(world: &World, run: &str, gate: &str) -> Value {
    let header = world.up.get(&format!("/api/runs/{run}")).await.1;
    let (patch, base) = (sha(world, run).await, GitId::parse(&world.base).unwrap());
    let id = |text: &str| RunId::parse(text).unwrap();
    let commit = PatchCommit {
        message: None,
        run: &id(run),
        task: "ExecuteST:work",
        patch: &Digest::parse(&patch).unwrap(),
        approved: &id(gate),
        base: &base,
        at_s: header["createdAt"].as_i64().unwrap().div_euclid(1_000),
    };
    let tree = "2".repeat(40);
    let commit = commit.id(&GitId::parse(&tree).unwrap());
    let repo = world.repo().join(".git");
    json!({"approvedIn": gate, "task": "ExecuteST:work", "patch": patch, "repo": repo, "branch": "b",
        "base": world.base, "tree": tree, "commit": commit})
}

#[tokio::test(flavor = "multi_thread")]
async fn a3f10_a_receipt_with_another_difference_opens_no_gate_and_a_made_up_commit_is_no_record() {
    let world = World::new();
    let run = world.done("echo DOOR >>README").await;
    let (repo, applies) = (world.repo(), format!("/api/runs/{run}/applies"));
    let args = ["apply", &run, "--repo", repo.to_str().unwrap(), "--branch", "b"];
    let mut waiting = world.home.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    let gate = gate_run(&world).await;
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    let made = world.up.get(&format!("/api/runs/{gate}/repro")).await.1;
    let receipt = text(&made["formData"], "receipt");
    assert!(receipt.contains("+DOOR"), "{receipt}");
    let start = async |receipt: &str, key: &str| {
        let body = json!({"recipeRef": {"id": made["recipe"]["id"], "v": made["recipe"]["v"]},
            "recipeHash": made["recipeHash"], "formData": {"receipt": receipt}, "opts": {"runKey": key}});
        world.up.post("/api/run", &body).await
    };
    let again = start(&receipt, "as it is").await;
    assert!(again.0 < 300, "{}", again.1);
    for (from, to) in [
        ("+DOOR", "+typo"),
        ("1 files", "0 files"),
        ("changed 100644", "changed 100755"),
        ("(succeeded)", "(failed) (succeeded)"),
        (&world.base, &"1".repeat(40)),
        (&run, &gate),
        ("diff:", "all is well\ndiff:"),
    ] {
        let shown = receipt.replacen(from, to, 1);
        assert_ne!(shown, receipt, "{from}");
        let refused = start(&shown, to).await;
        assert_eq!((refused.0, text(&refused.1, "code")), (400, "policy_violation".into()), "{to}");
    }
    // Nor does another text of the recipe show it under the same name.
    let mut recipe = made["recipe"].clone();
    recipe["title"] = json!("Correct a typo");
    recipe["v"] = json!("2");
    let other = world.up.post("/api/recipes/import", &json!({"recipe": recipe})).await;
    assert!(other.0 < 300, "{}", other.1);
    let body =
        json!({"recipeRef": {"id": recipe["id"], "v": "2"}, "formData": {"receipt": receipt}});
    let refused = world.up.post("/api/run", &body).await;
    assert_eq!(refused.0, 400, "{}", refused.1);
    // A yes to what is there is a yes to no other commit.
    let reply = ["gate", "reply", &gate, "approve-plan", "--choice", "yes"];
    assert!(world.home.run(&reply).status.success());
    assert_eq!(world.up.wait_terminal(&gate).await["status"], "succeeded");
    let good = record_of(&world, &run, &gate).await;
    for (field, value) in
        [("commit", json!("1".repeat(40))), ("tree", json!("4".repeat(40))), ("tree", Value::Null)]
    {
        let mut made_up = good.clone();
        made_up[field] = value;
        let refused = world.up.post(&applies, &made_up).await;
        assert_eq!((refused.0, text(&refused.1, "code")), (409, "conflict".into()), "{made_up}");
    }
    let sql = world.up.sql().await;
    assert_eq!(count(&sql, ROWS).await, 0);
    assert!(world.home.run(&args).status.success(), "and the one that git makes is");
    assert_eq!(count(&sql, ROWS).await, 1);
    assert_proven(&world.home);
}
