//! Branches and tags in place of a commit: what they stood for when the plan was compiled is what everything gets.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

use super::gate_run;
use super::world::{World, git, recipe, said};
use crate::secrets::forge::Forge;
use crate::support::{assert_proven, assert_wiped};

/// Another commit of the branch `main`.
fn moved(repo: &Path, content: &str) -> String {
    fs::write(repo.join("README"), content).unwrap();
    git(repo, &["commit", "-q", "-am", content]);
    git(repo, &["rev-parse", "HEAD"])
}

fn named(repo: &Path, name: &str) -> Value {
    let repo = json!({"path": repo, "ref": name});
    serde_json::from_str(&recipe(repo, "git rev-parse HEAD; echo more >more")).unwrap()
}

/// How a run of the recipe ended, with what its task said.
async fn end(up: &Server, home: &Home, recipe: &Value) -> (Value, String) {
    // The same recipe without a key would be the same run.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let key = json!({"runKey": format!("again-{}", NEXT.fetch_add(1, Ordering::Relaxed))});
    let run = text(&up.run_recipe(&recipe.to_string(), json!({}), key).await, "runId");
    let header = up.wait_terminal(&run).await;
    let logs = said(&home.run(&["logs", &run]));
    (header, logs)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_the_commit_that_a_person_approved_whatever_is_pushed_meanwhile() {
    let world = World::new();
    let mut recipe = named(&world.repo(), "main");
    recipe["plan"]["gate"] = json!("approve-plan");
    let run = text(&world.up.run_recipe(&recipe.to_string(), json!({}), json!({})).await, "runId");
    assert_eq!(gate_run(&world).await, run);
    let shown = said(&world.home.run(&["gate", "show", &run]));
    assert!(shown.contains(&world.base), "{shown}");
    let next = moved(&world.repo(), "pushed while it waited\n");
    let yes = world.home.run(&["gate", "reply", &run, "approve-plan", "--choice", "yes"]);
    assert!(yes.status.success(), "{}", said(&yes));
    let header = world.up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let logs = said(&world.home.run(&["logs", &run]));
    assert!(logs.contains(&world.base) && !logs.contains(&next), "{logs}");
    let shown = said(&world.home.run(&["show", &run]));
    let bound = format!("bound           {} main {}", world.repo().display(), world.base);
    assert!(shown.contains(&bound), "{shown}");
    // Its patch is of that commit, so it can be applied.
    let index: Value =
        serde_json::from_slice(&world.home.run(&["patch", &run, "--json"]).stdout).unwrap();
    assert_eq!(index["base"], json!(world.base));
    // A fork of the run compiles again, and is of the same commit; another run is of the new one.
    let path = format!("/api/ops/wf/{}/fork", text(&header, "workflowID"));
    let forked =
        world.up.post(&path, &json!({"actor": "ada", "reason": "again", "stepN": 0})).await;
    assert_eq!(forked.0, 202, "{}", forked.1);
    let fork = text(&forked.1, "newRunId");
    assert_eq!(gate_run(&world).await, fork);
    let shown = said(&world.home.run(&["gate", "show", &fork]));
    assert!(shown.contains(&world.base) && !shown.contains(&next), "{shown}");
    let no = world.home.run(&["gate", "reply", &fork, "approve-plan", "--choice", "no"]);
    assert!(no.status.success(), "{}", said(&no));
    world.up.wait_terminal(&fork).await;
    recipe["plan"].as_object_mut().unwrap().remove("gate");
    recipe["v"] = json!("2");
    let (header, logs) = end(&world.up, &world.home, &recipe).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert!(logs.contains(&next), "{logs}");
    let sql = world.up.sql().await;
    let rows =
        "SELECT DISTINCT commit_id FROM app.intent_refs WHERE ref = 'main' ORDER BY commit_id";
    let bound: Vec<String> = sqlx::query_scalar(rows).fetch_all(&sql).await.unwrap();
    let mut wanted = vec![world.base.clone(), next];
    wanted.sort();
    assert_eq!(bound, wanted);
    assert_wiped(&world.home, &sql).await;
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_of_every_kind_lead_to_their_commit_and_what_leads_to_none_is_said() {
    let world = World::new();
    let repo = world.repo();
    git(&repo, &["tag", "light"]);
    git(&repo, &["tag", "-a", "-m", "a tag", "full"]);
    git(&repo, &["tag", "-a", "-m", "a tag of a tag", "outer", "full"]);
    git(&repo, &["branch", "feature/x"]);
    let tips = ["HEAD", "light", "full", "outer", "refs/tags/full", "feature/x"];
    for is_packed in [false, true] {
        if is_packed {
            git(&repo, &["pack-refs", "--all"]);
            git(&repo, &["gc", "-q"]);
        }
        for name in tips {
            let (header, logs) = end(&world.up, &world.home, &named(&repo, name)).await;
            assert_eq!(header["status"], "succeeded", "{name} {is_packed}: {header} {logs}");
            assert!(logs.contains(&world.base), "{name} {is_packed}: {logs}");
        }
    }
    moved(&repo, "more\n");
    git(&repo, &["branch", "light"]);
    git(&repo, &["tag", "blob", "HEAD:README"]);
    let linked = world.beside("linked");
    git(&repo, &["worktree", "add", "-q", "-b", "w", linked.to_str().unwrap()]);
    fs::create_dir(world.beside("empty")).unwrap();
    let secret = world.beside("secret");
    fs::write(&secret, "not for anybody\n").unwrap();
    symlink(&secret, repo.join(".git/refs/heads/out")).unwrap();
    fs::write(repo.join(".git/refs/heads/up"), "ref: ../../secret\n").unwrap();
    fs::write(repo.join(".git/refs/heads/ring"), "ref: refs/heads/ring\n").unwrap();
    fs::write(repo.join(".git/refs/heads/odd"), "not for anybody\n").unwrap();
    for (dir, name, why) in [
        (&repo, "light", "is a branch and a tag"),
        (&repo, "no-such", "no branch and no tag"),
        (&repo, "feature", "no branch and no tag"),
        (&repo, "refs/tags/blob", "does not lead to a commit"),
        (&repo, "out", "cannot be read"),
        (&repo, "up", "does not lead to a commit"),
        (&repo, "ring", "does not lead to a commit"),
        (&repo, "odd", "does not lead to a commit"),
        (&linked, "w", "linked worktree"),
        (&world.beside("empty"), "main", "not the top of a git repository"),
    ] {
        let (header, _) = end(&world.up, &world.home, &named(dir, name)).await;
        let said = header.to_string();
        assert_ne!(header["status"], "succeeded", "{name}");
        assert!(said.contains(why) && !said.contains("not for anybody"), "{name}: {said}");
    }
    assert_wiped(&world.home, &world.up.sql().await).await;
}

#[tokio::test]
async fn a_repository_has_either_a_commit_or_a_name() {
    let world = World::new();
    let (path, commit) = (world.repo(), &world.base);
    for repo in [json!({"path": path}), json!({"path": path, "commit": commit, "ref": "main"})] {
        let yaml = recipe(repo, "true");
        let (status, answer) = world.up.post("/api/recipes/import", &json!({"yaml": yaml})).await;
        let why = "exactly one of `commit` and `ref`";
        assert!(status == 400 && answer.to_string().contains(why), "{answer}");
    }
    for (repo, why) in [
        (json!({"path": path, "ref": commit}), "give it as `commit`"),
        (json!({"path": path, "ref": "a..b"}), "repo.ref"),
        (json!({"path": path, "ref": ""}), "repo.ref"),
    ] {
        let yaml = recipe(repo, "true");
        let (status, answer) =
            world.up.start_recipe_as(&world.up.key, &yaml, json!({}), json!({})).await;
        assert!(status == 400 && answer.to_string().contains(why), "{why}: {answer}");
    }
}

fn fetched(url: &str, name: &str) -> Value {
    let repo = json!({"url": url, "ref": name});
    let mut recipe: Value = serde_json::from_str(&recipe(repo, "git rev-parse HEAD")).unwrap();
    recipe["plan"]["tasks"][0]["build"] =
        json!({"run": "true", "egress": ["git.example"], "timeout": "100s"});
    recipe
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_asked_for_a_branch_where_nobody_need_approve_that() {
    let (forge, home) = (Forge::start(), Home::new());
    let up = forge.up(&home);
    let base = git(&forge.repository(), &["rev-parse", "HEAD"]);
    git(
        &forge.repository(),
        &["-c", "user.name=a", "-c", "user.email=a@b", "tag", "-am", "x", "v1"],
    );
    let branch = git(&forge.repository(), &["symbolic-ref", "--short", "HEAD"]);
    for name in ["HEAD", "v1", &branch] {
        let (header, logs) = end(&up, &home, &fetched("https://git.example/open.git", name)).await;
        assert_eq!(header["status"], "succeeded", "{name}: {header} {:?}", forge.heard());
        assert!(logs.contains(&base), "{name}: {logs}");
    }
    for (url, name, why) in [
        ("https://git.example/open.git", "no-such", "no branch and no tag"),
        ("https://git.example/repo.git", "HEAD", "credentials"),
        ("https://git.example/none.git", "HEAD", "credentials"),
        ("https://git.example/page", "HEAD", "smart protocol"),
        ("https://git.example/moved.git", "HEAD", "write the URL that it leads to"),
        ("https://git.example/endless.git", "HEAD", "more than"),
    ] {
        let (header, _) = end(&up, &home, &fetched(url, name)).await;
        assert_ne!(header["status"], "succeeded", "{url}");
        assert!(header.to_string().contains(why), "{url}: {header}");
    }
    // Another tenant's recipe waits for a person, so its names wait, too: nothing of it leaves this host.
    let key = up.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await.1;
    let mut gated = fetched("https://git.example/open.git", &branch);
    gated["plan"]["gate"] = json!("approve-plan");
    let heard = forge.heard().len();
    let (status, header) = up.start_recipe_as(&key, &gated.to_string(), json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let run = text(&header, "runId");
    let path = format!("/api/runs/{run}");
    let ended = async || up.get_as(&key, &path).await.1["status"] == "failed";
    crate::support::until("it is refused", std::time::Duration::from_secs(60), ended).await;
    let said = up.get_as(&key, &path).await.1.to_string();
    assert!(said.contains("egress.build.allowed list git.example"), "{said}");
    assert_eq!(forge.heard().len(), heard);
    let allow = json!({"value": ["git.example"], "expectedVersion": 0, "scope": "tenant"});
    let allow = Some(allow.to_string().into_bytes());
    let put = up.request("PUT", "/api/config/egress.build.allowed", Some(&key), allow).await;
    assert_eq!(put.0, 200, "{}", put.1);
    gated["plan"].as_object_mut().unwrap().remove("gate");
    gated["v"] = json!("2");
    let (status, header) = up.start_recipe_as(&key, &gated.to_string(), json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let path = format!("/api/runs/{}", text(&header, "runId"));
    let ended = async || up.get_as(&key, &path).await.1["status"] == "succeeded";
    crate::support::until("it succeeds", std::time::Duration::from_secs(120), ended).await;
    assert_wiped(&home, &up.sql().await).await;
}
