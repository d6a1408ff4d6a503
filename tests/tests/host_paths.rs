//! A tenant names paths of the host through the API: what it gets is in the allowed directories, and what it
//! is told is the same for everything else.

use crate::support;

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::json;
use support::{assert_wiped, texts, until};

const LIMIT: Duration = Duration::from_secs(120);

/// Shows what it was given to whoever submits it.
const SHOW: &str = r#"
id: show
v: "1"
form:
  type: object
  additionalProperties: false
  properties: {from: {type: string}}
plan:
  tasks:
    - name: show
      files: [{from: "${form.from}", to: /work/given, access: read-only}]
      exec: {run: "cat /work/given /work/given/* 2>/dev/null", timeout: 30s}
      limits: {mem_mb: 128, disk_mb: 64}
"#;

/// The same of names.
const LIST: &str = r#"
id: list
v: "1"
form:
  type: object
  additionalProperties: false
  properties: {dir: {type: string}}
plan:
  tasks:
    - name: one-${index}
      each: '${glob(form.dir, "**")}'
      value: "${item}"
"#;

struct World {
    /// Stopped before its home is looked at.
    up: Server,
    home: Home,
    key: String,
    allowed: tempfile::TempDir,
}

impl World {
    /// A worker that allows one directory, and the key of a tenant's submitter.
    async fn new() -> Self {
        let (home, allowed) = (Home::new(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(allowed.path().join("repo")).unwrap();
        std::fs::write(allowed.path().join("repo/name"), "inside").unwrap();
        let dir = allowed.path().to_str().unwrap();
        let up = Server::start(&home, &["up", "--listen", "127.0.0.1:0", "--allow-dir", dir], &[]);
        let (_, key) = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await;
        Self { up, home, key, allowed }
    }

    fn link(&self, name: &str, target: impl AsRef<std::path::Path>) {
        symlink(target, self.allowed.path().join(name)).unwrap();
    }

    fn inside(&self, name: &str) -> String {
        self.allowed.path().join(name).to_str().unwrap().to_owned()
    }

    /// How a run of this recipe ended: its errors and what its tasks said, in words.
    async fn ended(&self, recipe: &str, form: serde_json::Value) -> String {
        let (status, header) = self.up.start_recipe_as(&self.key, recipe, form, json!({})).await;
        if status != 201 {
            return header.to_string();
        }
        self.words(&text(&header, "runId")).await
    }

    async fn words(&self, run: &str) -> String {
        let sql = self.up.sql().await;
        until("the run has ended", LIMIT, async || {
            let (_, seen) = self.up.get_as(&self.up.key, &format!("/api/runs/{run}")).await;
            let seen = match seen["durableStatus"].is_null() {
                true => self.up.get_as(&self.key, &format!("/api/runs/{run}")).await.1,
                false => seen,
            };
            ["SUCCESS", "ERROR", "CANCELLED"]
                .contains(&seen["durableStatus"].as_str().unwrap_or(""))
        })
        .await;
        let said = texts(
            &sql,
            &format!(
                "SELECT coalesce(response->>'cause', '') || ' ' || coalesce(response->>'stdout', '')
                        || ' ' || coalesce(response->>'errCode', '')
                   FROM app.sbx_runs WHERE run_id = '{run}'
                 UNION ALL SELECT coalesce(error, '') FROM app.runs WHERE id = '{run}'"
            ),
        )
        .await;
        sql.close().await;
        said.join("\n")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_no_link_leads_a_tenant_out_of_the_allowed_directory() {
    let world = World::new().await;
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("name"), "SECRET").unwrap();
    world.link("cfg", secret.path());
    world.link("file", secret.path().join("name"));
    world.link("state", world.home.path());
    let inside = world.ended(SHOW, json!({"from": world.inside("repo")})).await;
    assert!(inside.contains("inside"), "{inside}");
    let images = ["cfg", "state", "state/database/data"].map(|name| world.inside(name));
    for image in &images {
        let recipe =
            SHOW.replace("- name: show", &format!("- name: show\n      image: \"dir:{image}\""));
        let said = world.ended(&recipe, json!({"from": world.inside("repo")})).await;
        assert!(said.contains("recipe_invalid") && said.contains("not within"), "{image}: {said}");
    }
    for name in ["cfg", "file", "cfg/name", "state", "state/admin.key"] {
        let said = world.ended(SHOW, json!({"from": world.inside(name)})).await;
        assert!(said.contains("recipe_invalid") && said.contains("not within"), "{name}: {said}");
        let listed = world.ended(LIST, json!({"dir": world.inside(name)})).await;
        assert!(listed.contains("not a directory that this run may read"), "{name}: {listed}");
    }
    // Through a dispatch, too: by its image, by a mount and by its project.
    for spec in [
        json!({"image": format!("dir:{}", images[0])}),
        json!({"image": format!("dir:{}", images[2])}),
        json!({"mounts": [{"source": images[0], "target": "/opt/x", "access": "read-only"}]}),
        json!({"mounts": [{"source": images[1], "target": "/opt/x", "access": "read-only"}]}),
    ] {
        let sent = json!({"agent_type": "command", "prompt": "cat /opt/x/* /name\n",
            "project_dir": world.inside("repo"), "sandbox_spec": spec});
        let (status, made) = world.up.post_as(&world.key, "/api/dispatches", &sent).await;
        assert_eq!(status, 201, "{made}");
        let path = format!("/api/dispatches/{}", text(&made, "id"));
        until("the dispatch has ended", LIMIT, async || {
            let (_, seen) = world.up.get_as(&world.key, &path).await;
            !["spawned", "running"].contains(&seen["status"].as_str().unwrap())
        })
        .await;
        let (_, seen) = world.up.get_as(&world.key, &path).await;
        assert_eq!(seen["status"], "failed", "{seen:#}");
    }
    for name in ["cfg", "state", "state/database"] {
        let sent = json!({"agent_type": "command", "prompt": "true\n",
            "project_dir": world.inside(name)});
        let (status, answer) = world.up.post_as(&world.key, "/api/dispatches", &sent).await;
        assert_eq!((status, answer["code"].as_str().unwrap()), (400, "policy_violation"));
    }
    let sql = world.up.sql().await;
    let leaked = texts(&sql, "SELECT response::text FROM app.sbx_runs").await;
    assert!(!leaked.iter().any(|text| text.contains("SECRET")), "{leaked:#?}");
    assert_wiped(&world.home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn l2_a_tenant_is_told_the_same_of_what_exists_and_what_does_not() {
    let world = World::new().await;
    world.link("there", "/etc/passwd");
    world.link("missing", "/etc/no-such-file");
    let paths = [
        "/etc/passwd".to_owned(),
        "/etc/no-such-file".to_owned(),
        "/root".to_owned(),
        "/no-such-directory".to_owned(),
        world.home.path().join("admin.key").to_str().unwrap().to_owned(),
        world.home.path().join("no-such-key").to_str().unwrap().to_owned(),
        world.inside("there"),
        world.inside("missing"),
    ];
    let (mut given, mut listed, mut sent) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for path in &paths {
        let said = world.ended(SHOW, json!({"from": path})).await;
        given.insert(said.replace(path.as_str(), "X"));
        let said = world.ended(LIST, json!({"dir": path})).await;
        listed.insert(said.replace(path.as_str(), "X"));
        let body = json!({"agent_type": "command", "prompt": "true\n", "project_dir": path});
        let (status, answer) = world.up.post_as(&world.key, "/api/dispatches", &body).await;
        sent.insert(format!("{status} {}", answer.to_string().replace(path.as_str(), "X")));
    }
    assert_eq!(
        (given.len(), listed.len(), sent.len()),
        (1, 1, 1),
        "{given:#?}{listed:#?}{sent:#?}"
    );
}

/// Prints a file that lies in no allowed directory.
fn reads(secret: &std::path::Path) -> serde_json::Value {
    json!({"id": "shared", "v": "1", "plan": {"tasks": [{
        "name": "t", "exec": {"run": "cat /work/given"},
        "files": [{"from": secret, "to": "/work/given", "access": "read-only"}],
    }]}})
}

/// Found by the second attack: whoever may import brought another text under the admin's name.
#[tokio::test]
async fn s1_a_text_that_another_imported_has_no_reach_of_the_hosts_admin() {
    let world = World::new().await;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "SECRET-OF-THE-HOST").unwrap();
    let up = &world.up;
    let (_, submitter) = up.new_key(&json!({"roles": ["submitter"]})).await;
    let import = async |key: &str, recipe: serde_json::Value| {
        let (status, said) =
            up.post_as(key, "/api/recipes/import", &json!({"recipe": recipe})).await;
        assert_eq!(status, 201, "{said}");
        said
    };
    let run = async |body: serde_json::Value| {
        let (status, header) = up.post("/api/run", &body).await;
        assert!(status == 200 || status == 201, "{status} {header}");
        world.words(&text(&header, "runId")).await
    };
    let mut mine = reads(&secret);
    mine["plan"]["tasks"][0]["exec"]["run"] = json!("echo MINE; cat /work/given");
    let own = import(&up.key, mine).await;
    import(&submitter, reads(&secret)).await;
    // By its name alone it is the other's text, without the admin's reach.
    let said = run(json!({"recipeRef": own["recipeRef"], "opts": {"runKey": "by-name"}})).await;
    assert!(!said.contains("SECRET") && !said.contains("MINE"), "{said}");
    // By its text it is the admin's own, with it.
    let by_text = json!({
        "recipeRef": own["recipeRef"], "recipeHash": own["hash"], "opts": {"runKey": "by-text"},
    });
    let said = run(by_text).await;
    assert!(said.contains("MINE") && said.contains("SECRET-OF-THE-HOST"), "{said}");
    // Brought by the admin too, the same text has the reach.
    import(&up.key, reads(&secret)).await;
    let said = run(json!({"recipeRef": own["recipeRef"], "opts": {"runKey": "brought"}})).await;
    assert!(said.contains("SECRET-OF-THE-HOST"), "{said}");
    // A text that nobody imported is not another one of its name.
    let unknown = json!({"recipeRef": own["recipeRef"], "recipeHash": "0".repeat(64)});
    assert_eq!(up.post("/api/run", &unknown).await.0, 404);
}

/// Prints the file and fails, so that it may be asked for again.
fn fails(id: &str, secret: &std::path::Path, gate: bool) -> serde_json::Value {
    let mut recipe = reads(secret);
    recipe["id"] = json!(id);
    recipe["plan"]["tasks"][0]["exec"]["run"] = json!("cat /work/given; exit 3");
    if gate {
        recipe["plan"]["gate"] = json!("approve-plan");
    }
    recipe
}

/// Found by the second attack: what the admin's run reads is read again for whoever asks for it again.
#[tokio::test(flavor = "multi_thread")]
async fn s4_a_run_that_another_asks_for_again_has_no_reach_of_the_hosts_admin() {
    let world = World::new().await;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "OLD-CONTENT").unwrap();
    let up = &world.up;
    let (_, operator) = up.new_key(&json!({"roles": ["operator"]})).await;
    let start = async |recipe: &serde_json::Value| {
        let header = up.run_recipe(&recipe.to_string(), json!({}), json!({})).await;
        (text(&header, "runId"), text(&header, "workflowID"))
    };
    let (run, workflow) = start(&fails("again", &secret, false)).await;
    assert!(world.words(&run).await.contains("OLD-CONTENT"));
    std::fs::write(&secret, "NEW-CONTENT").unwrap();
    let why = json!({"actor": "host-admin", "reason": "again"});
    let mut fork = why.clone();
    fork["stepN"] = json!(0);
    for (path, body) in [
        (format!("/api/runs/{run}/retry"), json!({})),
        (format!("/api/ops/wf/{workflow}/fork"), fork),
    ] {
        for (key, reads) in [(&operator, false), (&up.key, true)] {
            let read = world.words(&run).await.matches("OLD-CONTENT").count();
            let (status, said) = up.post_as(key, &path, &body).await;
            assert!((200..300).contains(&status), "{path}: {said}");
            let again = text(&said, "newRunId");
            let read = if again == run { read } else { 0 };
            let said = world.words(&again).await;
            // What was bound first stands for the intent, for the admin alone.
            let now = said.matches("OLD-CONTENT").count();
            assert_eq!(now > read, reads, "{path}: {said}");
            assert!(!said.contains("NEW-CONTENT"), "{path}: {said}");
        }
    }
    // Put back after a cancel, it is theirs who put it back.
    let (run, workflow) = start(&fails("put-back", &secret, true)).await;
    up.wait_for(&run, "waiting", |header| header["status"] == "waiting_input").await;
    for (key, what) in [(&up.key, "cancel"), (&operator, "resume")] {
        let (status, said) = up.post_as(key, &format!("/api/ops/wf/{workflow}/{what}"), &why).await;
        assert_eq!(status, 202, "{what}: {said}");
        let ready = if what == "cancel" { "canceled" } else { "waiting_input" };
        up.wait_for(&run, ready, |header| header["status"] == ready).await;
    }
    let yes = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, said) = up.post(&format!("/api/runs/{run}/gates/approve-plan/reply"), &yes).await;
    assert_eq!(status, 200, "{said}");
    let said = world.words(&run).await;
    assert!(!said.contains("CONTENT"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_what_the_admins_run_bound_is_not_given_as_it_is_now_once_its_path_is_allowed() {
    let mut world = World::new().await;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "OLD-CONTENT").unwrap();
    let (_, operator) = world.up.new_key(&json!({"roles": ["operator", "submitter"]})).await;
    let recipe = fails("allowed-since", &secret, false).to_string();
    let header = world.up.run_recipe(&recipe, json!({}), json!({})).await;
    let (run, workflow) = (text(&header, "runId"), text(&header, "workflowID"));
    assert!(world.words(&run).await.contains("OLD-CONTENT"));
    std::fs::write(&secret, "NEW-CONTENT").unwrap();
    world.up.kill();
    world.up = world.home.up_with(&["--allow-dir", outside.path().to_str().unwrap()], &[]);
    // It is compiled again, without what only the admin's run is given.
    let fork = json!({"actor": "operator", "reason": "again", "stepN": 0});
    let path = format!("/api/ops/wf/{workflow}/fork");
    let (status, forked) = world.up.post_as(&operator, &path, &fork).await;
    assert_eq!(status, 202, "{forked}");
    let said = world.words(&text(&forked, "newRunId")).await;
    assert!(said.contains("files[0].from") && !said.contains("CONTENT"), "{said}");
    // A run of the operator's own binds what is there now.
    let (_, header) =
        world.up.start_recipe_as(&operator, &recipe, json!({}), json!({"runKey": "own"})).await;
    assert!(world.words(&text(&header, "runId")).await.contains("NEW-CONTENT"), "{header}");
}
