//! Directories that clients send to a server elsewhere: what a task sees of them, what is sent again, and what is refused.

use crate::support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::gates::say;
use support::pty::{Interrupt, Terminal};
use support::{assert_proven, assert_wiped, code, count, recipe, said, stdout, texts};

/// Says what is in the directory that its form names.
const SEEN: &str = r#"
id: seen
v: "1"
form: {type: object, properties: {repo: {type: string, format: path}}}
plan:
  tasks:
    - name: t
      files: [{from: "${form.repo}", to: /work/src, access: workspace-write}]
      exec: {run: "cd src; find . -mindepth 1 | sort | tr '\n' ' '; cat name; stat -c %a run; readlink link; echo changed > name", timeout: 60s}
"#;

/// A task for each file that it lists, behind a gate.
const LISTED: &str = r#"
id: listed
v: "1"
form: {type: object, properties: {repo: {type: string}}}
plan:
  gate: approve-plan
  tasks:
    - name: one-${index}
      each: '${glob(form.repo, "sub/*")}'
      files: [{from: "${form.repo}", to: /work/src}]
      exec: {run: "cat src/${item | sh}", timeout: 60s}
"#;

/// A client without a server of its own, and a directory.
struct ClientWorld {
    home: Home,
    dir: tempfile::TempDir,
    files: tempfile::TempDir,
}

impl ClientWorld {
    fn new() -> Self {
        let world = Self {
            home: Home::empty(),
            dir: tempfile::tempdir().unwrap(),
            files: tempfile::tempdir().unwrap(),
        };
        for (name, text) in [
            (".gitignore", "target/\n"),
            ("name", "one\n"),
            ("sub/more", "more\n"),
            ("sub/two\nlines", "lines\n"),
            ("target/built", "no\n"),
            (".git/config", "no\n"),
            ("run", "#!/bin/sh\n"),
        ] {
            world.write(name, text);
        }
        fs::create_dir(world.at("empty")).unwrap();
        fs::set_permissions(world.at("run"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("sub/more", world.at("link")).unwrap();
        fs::set_permissions(world.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        fs::write(self.at(name), text).unwrap();
    }

    /// `run` of a recipe with the directory, on a server that this home knows by its address alone.
    fn run(&self, up: &Server, key: &str, yaml: &str, more: &[&str]) -> Output {
        self.command(up, key, yaml, more).output().unwrap()
    }

    fn command(&self, up: &Server, key: &str, yaml: &str, more: &[&str]) -> Command {
        let recipe = recipe(self.files.path(), "r.yaml", yaml);
        let repo = format!("repo=@{}", self.dir.path().display());
        let mut args = vec!["run", recipe.as_str(), "-i", repo.as_str()];
        args.extend(more);
        let mut command = self.home.command(&args);
        command.env("COFFERDAM_SERVER", &up.url).env("COFFERDAM_KEY", key);
        command
    }
}

async fn put(up: &Server, key: &str, path: &str, body: &[u8]) -> (u16, Value) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = http.put(format!("{}{path}", up.url)).bearer_auth(key);
    let answer = request.header("content-type", "application/octet-stream").body(body.to_vec());
    let answer = answer.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// A manifest of these lines: its digest, and its text.
fn manifest(lines: &str) -> (String, Vec<u8>) {
    let text = format!("cofferdam-tree 1\nd 755 0 - 0 \n{lines}").into_bytes();
    (digest_bytes(&text).to_string(), text)
}

async fn tenant_key(up: &Server, tenant: &str) -> String {
    up.new_key(&json!({"tenant": tenant, "roles": ["submitter", "operator"]})).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_reaches_a_server_elsewhere_and_only_what_changed_is_sent_again() {
    let (home, client) = (Home::new(), ClientWorld::new());
    let up = home.up();
    let key = tenant_key(&up, "acme").await;
    let first = client.run(&up, &key, SEEN, &[]);
    assert_eq!(code(&first), 0, "{}", said(&first));
    let seen = stdout(&first);
    // A newline in a name makes two lines for `sort`.
    for part in ["./empty", "./.gitignore", "./sub/more", "./sub/two", "one\n755\nsub/more\n"] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    assert!(!seen.contains("target") && !seen.contains(".git/"), "{seen}");
    assert_eq!(fs::read_to_string(client.at("name")).unwrap(), "one\n", "nothing was written back");
    // Again: the server has everything; then it lacks what changed.
    let again = client.run(&up, &key, SEEN, &[]);
    assert!(said(&again).contains("nothing was sent"), "{}", said(&again));
    client.write("name", "three\n");
    let changed = client.run(&up, &key, SEEN, &[]);
    assert!(said(&changed).contains("lacked 6 bytes"), "{}", said(&changed));
    assert!(stdout(&changed).contains("three\n755"), "{}", stdout(&changed));
    // Another tenant sends all of it, which tells it nothing.
    let other = tenant_key(&up, "bravo").await;
    let others = client.run(&up, &other, SEEN, &[]);
    assert!(said(&others).contains("lacked 35 bytes"), "{}", said(&others));
    let sql = up.sql().await;
    let bound = "SELECT count(*) FROM app.intent_trees WHERE source = 'tree:' || sha256";
    assert_eq!(count(&sql, bound).await, 4);
    assert_eq!(count(&sql, "SELECT count(DISTINCT sha256) FROM app.intent_trees").await, 2);
    let given = "SELECT count(*) FROM app.task_trees g JOIN app.intent_trees i USING (source, sha256, copy)";
    assert!(count(&sql, given).await >= 4);
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_was_cut_off_goes_on_after_a_restart_and_its_files_are_listed() {
    let (home, client) = (Home::new(), ClientWorld::new());
    let mut up = home.up();
    let (lines, size) = ("x".repeat(3_000_000), 3_000_000);
    client.write("sub/more", &lines);
    // Its manifest, as the command line writes it, and a part of the large file.
    let sums: Vec<String> =
        [&b"target/\n"[..], b"one\n", b"#!/bin/sh\n", b"lines\n", lines.as_bytes()]
            .iter()
            .map(|bytes| digest_bytes(bytes).to_string())
            .collect();
    let (tree, listed) = manifest(&format!(
        "f 644 8 {} 10 .gitignore\nd 755 0 - 5 empty\nl 777 0 - 4 link 8 sub/more\nf 644 4 {} 4 name\nf 755 10 {} 3 run\n\
         d 755 0 - 3 sub\nf 644 {size} {} 8 sub/more\nf 644 6 {} 13 sub/two\nlines\n",
        sums[0], sums[1], sums[2], sums[4], sums[3]
    ));
    let path = format!("/api/trees/{tree}");
    let (status, seen) = put(&up, &up.key, &format!("{path}/manifest?end=true"), &listed).await;
    assert_eq!(
        (status, &seen["state"], &seen["lackingFiles"]),
        (200, &json!("files"), &json!(5)),
        "{seen}"
    );
    let part =
        [format!("{} 0 1000000\n", sums[4]).as_bytes(), &lines.as_bytes()[..1_000_000]].concat();
    assert_eq!(put(&up, &up.key, &format!("{path}/files"), &part).await.0, 200);
    let start = json!({"repo": format!("tree:{tree}")});
    let (status, early) = up.start_recipe_as(&up.key, LISTED, start, json!({})).await;
    assert_eq!((status, &early["code"]), (409, &json!("state_conflict")), "{early}");
    up.kill();
    up = home.up();
    let (_, seen) = up.get(&path).await;
    assert_eq!(seen["lackingBytes"], 2_000_028, "{seen}");
    let run = client.run(&up, &up.key, LISTED, &["--detach", "--json"]);
    let ids: Value = serde_json::from_str(&stdout(&run)).unwrap();
    assert_eq!(ids["sent"][0]["sentBytes"], 2_000_028, "{}", said(&run));
    assert_eq!((&ids["sent"][0]["input"], &ids["sent"][0]["tree"]), (&json!("repo"), &json!(tree)));
    assert_eq!(up.get(&path).await.1["state"], "whole");
    let waits =
        up.wait_for(&text(&ids, "runId"), "its gate", |h| h["status"] == "waiting_input").await;
    // The client's directory is its own again.
    fs::remove_dir_all(client.at("sub")).unwrap();
    assert_eq!(say(&up, &up.key, &waits, "k", "yes").await.0, 200);
    let end = up.wait_terminal(&text(&ids, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let sql = up.sql().await;
    let query = format!(
        "SELECT left(coalesce(inline, 'large'), 6) FROM app.artifacts WHERE run_id = '{}' AND kind = 'stdout' ORDER BY step_id",
        text(&ids, "runId")
    );
    assert_eq!(texts(&sql, &query).await.len(), 2);
    assert!(texts(&sql, &query).await.contains(&"lines\n".to_owned()));
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_hostile_or_too_much_is_refused_with_its_code_and_leaves_nothing() {
    let home = Home::new();
    let up = home.up();
    let key = tenant_key(&up, "acme").await;
    let sum = digest_bytes(b"x").to_string();
    for lines in [
        "l 777 0 - 1 a 4 /etc\n".to_owned(),
        "l 777 0 - 1 a 5 ../up\n".to_owned(),
        format!("f 644 1 {sum} 4 /etc\n"),
        format!("f 644 1 {sum} 2 ..\n"),
        "c 644 0 - 1 a\n".to_owned(),
        format!("f 644 1 {sum} 1 a\nf 644 1 {sum} 1 a\n"),
        format!("f 644 1 {sum} 1 a\nf 644 1 {sum} 3 a/b\n"),
        format!("f 644 1 {sum} 9 a\n"),
        format!("f 644 5368709120 {sum} 1 a\n"),
        (0..100_001).map(|n| format!("f 644 1 {sum} 7 f{n:06}\n")).collect(),
    ] {
        let (tree, text) = manifest(&lines);
        let path = format!("/api/trees/{tree}/manifest");
        let mut answer = (0, Value::Null);
        for (index, piece) in text.chunks(2_000_000).enumerate() {
            let at = index * 2_000_000;
            let end = at + piece.len() == text.len();
            answer = put(&up, &key, &format!("{path}?at={at}&end={end}"), piece).await;
        }
        let shown: String = lines.chars().take(60).collect();
        assert_eq!(
            (answer.0, &answer.1["code"]),
            (400, &json!("tree_invalid")),
            "{shown}: {}",
            answer.1
        );
        assert_eq!(up.get_as(&key, &format!("/api/trees/{tree}")).await.0, 404, "{shown}");
    }
    let (tree, text) = manifest(&format!("f 644 1 {sum} 5 a\nb c\n"));
    let path = format!("/api/trees/{tree}");
    assert_eq!(
        put(&up, &key, &format!("{path}/manifest?end=true"), &text).await.0,
        200,
        "a newline is a character"
    );
    let other = digest_bytes(b"y").to_string();
    for body in [
        "nonsense".to_owned(),
        format!("{other} 0 1\ny"),
        format!("{sum} 0 1\ny"),
        format!("{sum} 0 9\nx"),
    ] {
        let (status, said) = put(&up, &key, &format!("{path}/files"), body.as_bytes()).await;
        assert_eq!((status, &said["code"]), (400, &json!("tree_invalid")), "{body}: {said}");
    }
    let wrong =
        put(&up, &key, &format!("{path}/files"), format!("{sum} 0 5\n01234").as_bytes()).await;
    assert_eq!((wrong.0, &wrong.1["details"]["sha256"]), (400, &json!(sum)), "{}", wrong.1);
    let gap = put(&up, &key, &format!("{path}/manifest?at=9&end=false"), b"x").await;
    assert_eq!(gap.0, 200, "it is whole already");
    let large = vec![b'x'; 2 * 1024 * 1024 + 1];
    assert_eq!(put(&up, &key, &format!("{path}/files"), &large).await.0, 413);
    // Another tenant finds nothing, whatever it has.
    let stranger = tenant_key(&up, "bravo").await;
    assert_eq!(up.get_as(&stranger, &path).await.0, 404);
    let form = json!({"repo": format!("tree:{tree}")});
    let (status, refused) = up.start_recipe_as(&stranger, SEEN, form, json!({})).await;
    assert_eq!((status, &refused["code"]), (404, &json!("not_found")), "{refused}");
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.runs").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_of_the_tenant_are_said_before_a_byte_is_sent() {
    let (home, client) = (Home::new(), ClientWorld::new());
    let up = home.up();
    let set = async |name: &str, value: u64, version: u64| {
        let body = json!({"value": value, "expectedVersion": version}).to_string().into_bytes();
        let (status, said) =
            up.request("PUT", &format!("/api/config/{name}"), Some(&up.key), Some(body)).await;
        assert_eq!(status, 200, "{said}");
    };
    set("trees.max_entries", 5, 0).await;
    let refused = client.run(&up, &up.key, SEEN, &[]);
    assert_eq!(code(&refused), 3, "{}", said(&refused));
    assert!(said(&refused).contains("trees.max_entries"), "{}", said(&refused));
    set("trees.max_entries", 50, 1).await;
    set("quota.trees_mb", 1, 0).await;
    client.write("large", &"y".repeat(1_500_000));
    let refused = client.run(&up, &up.key, SEEN, &[]);
    assert!(code(&refused) != 0 && said(&refused).contains("quota.trees_mb"), "{}", said(&refused));
    let uploads = home.path().join("trees/uploads");
    let tenants = names(&uploads).into_iter().filter(|name| name.len() == 64);
    let left: Vec<String> = tenants.flat_map(|tenant| names(&uploads.join(tenant))).collect();
    assert!(left.is_empty(), "a manifest that is refused goes: {left:?}");
    set("quota.trees_mb", 64, 1).await;
    symlink("/etc/passwd", client.at("out")).unwrap();
    let refused = client.run(&up, &up.key, SEEN, &[]);
    assert_eq!(code(&refused), 3, "{}", said(&refused));
    assert!(said(&refused).contains("/out"), "{}", said(&refused));
    fs::remove_file(client.at("out")).unwrap();
    let run = client.run(&up, &up.key, SEEN, &[]);
    assert_eq!(code(&run), 0, "{}", said(&run));
    let used = home.run_json(&["df", "--json"]);
    let tenants = used["tenants"].as_array().unwrap();
    let sent: Vec<&Value> = tenants.iter().map(|of| &of["sent"]).collect();
    assert_eq!(sent.len(), 1, "a tenant with a key alone is left out: {used}");
    assert_eq!(sent[0]["count"], 1, "{used}");
    assert!(sent[0]["bytes"].as_u64().unwrap() > 1_500_000, "{used}");
    assert_eq!(tenants[0]["trees"]["count"], 0, "sent directories are counted apart: {used}");
    let shown = stdout(&home.run(&["df"]));
    assert!(shown.contains("SENT MIB") && shown.contains("a day after"), "{shown}");
    let missing =
        client.home.command(&["run", "seen", "-i", "repo=@./not-there"]).output().unwrap();
    assert_eq!(code(&missing), 3, "{}", said(&missing));
}

/// A server that only accepts, and a worker with another state directory of the same host.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_another_state_directory_gives_what_the_server_was_sent() {
    let postgres = Postgres::start().await;
    let (front, back) = (Home::on(&postgres.url()), Home::on(&postgres.url()));
    let api = Server::start(&front, &["api", "--listen", "127.0.0.1:0"], &[]);
    let (one, run) = (digest_bytes(b"one\n"), digest_bytes(b"r\n"));
    let lines = format!("l 777 0 - 4 link 4 name\nf 644 4 {one} 4 name\nf 755 2 {run} 3 run\n");
    let (tree, text_of) = manifest(&lines);
    let path = format!("/api/trees/{tree}");
    assert_eq!(put(&api, &api.key, &format!("{path}/manifest?end=true"), &text_of).await.0, 200);
    let body = format!("{one} 0 4\none\n{run} 0 2\nr\n");
    assert_eq!(put(&api, &api.key, &format!("{path}/files"), body.as_bytes()).await.0, 200);
    let worker = Server::start(&back, &["worker"], &[]);
    let form = json!({"repo": format!("tree:{tree}")});
    let (status, header) = api.start_recipe_as(&api.key, SEEN, form, json!({})).await;
    assert_eq!(status, 201, "{header}");
    let end = api.wait_terminal(&text(&header, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    drop(worker);
    assert_proven(&front);
    // What no run needs goes from the server's own directory, too, a day after it was used.
    let trees = front.path().join("trees");
    let copies = || names(&trees).into_iter().filter(|name| name.len() == 64).count();
    let sent = |begin: &str| {
        let tenants = names(&trees.join("uploads")).into_iter().filter(|name| name.len() == 64);
        let files = tenants.flat_map(|tenant| names(&trees.join("uploads").join(tenant)));
        files.filter(|name| name.starts_with(begin)).count()
    };
    assert_eq!((copies(), sent("whole-")), (1, 1));
    drop(api);
    let tenant = names(&trees.join("uploads")).into_iter().find(|name| name.len() == 64).unwrap();
    let copy = names(&trees).into_iter().find(|name| name.len() == 64).unwrap();
    for path in [trees.join(copy), trees.join("uploads").join(tenant).join(format!("whole-{tree}"))]
    {
        let day_ago = SystemTime::now() - Duration::from_secs(25 * 3_600);
        fs::File::open(path).unwrap().set_modified(day_ago).unwrap();
    }
    let api = Server::start(&front, &["api", "--listen", "127.0.0.1:0"], &[]);
    support::until("copy and files are gone", Duration::from_secs(60), async || {
        copies() == 0 && sent("") == 0
    })
    .await;
    assert_eq!(api.get(&path).await.0, 404, "it is sent again");
}

fn names(dir: &Path) -> Vec<String> {
    let found = fs::read_dir(dir).unwrap();
    found.map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
}

/// A command that sends a directory of some megabytes.
fn sends(client: &ClientWorld, up: &Server) -> Child {
    let mut command = client.command(up, &up.key, SEEN, &["--detach", "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

async fn sent_and_done(up: &Server, client: Child) {
    let ended = client.wait_with_output().unwrap();
    assert_eq!(code(&ended), 0, "{}", said(&ended));
    let ids: Value = serde_json::from_str(&stdout(&ended)).unwrap();
    let end = up.wait_terminal(&text(&ids, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_at_once_and_a_server_that_dies_meanwhile_lose_nothing() {
    let (home, client) = (Home::new(), ClientWorld::new());
    let mut up = home.up();
    for n in 10..30 {
        client.write(&format!("large/{n}"), &n.to_string().repeat(1_000_000));
    }
    for one in [sends(&client, &up), sends(&client, &up)] {
        sent_and_done(&up, one).await;
    }
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(DISTINCT copy) FROM app.intent_trees").await, 1);
    let uploads = home.path().join("trees/uploads");
    let arrived = || {
        let tenants = names(&uploads).into_iter().filter(|name| name.len() == 64);
        let files = tenants.flat_map(|tenant| names(&uploads.join(tenant)));
        files.filter(|name| name.len() == 64).count()
    };
    let before = arrived();
    for n in 30..50 {
        client.write(&format!("large/{n}"), &n.to_string().repeat(1_000_000));
    }
    let one = sends(&client, &up);
    support::until("files arrive", Duration::from_secs(60), async || arrived() > before).await;
    up.kill();
    let listen = up.url.trim_start_matches("http://").to_owned();
    up = Server::start(&home, &["up", "--listen", &listen], &[]);
    sent_and_done(&up, one).await;
    assert_eq!(arrived(), before + 20);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_how_far_a_directory_is_within_the_width() {
    let (home, client) = (Home::new(), ClientWorld::new());
    let up = home.up();
    for columns in [80, 40] {
        for n in 0..24 {
            client.write(&format!("large/{n}"), &format!("{columns}{n:02}").repeat(500_000));
        }
        let mut command = client.command(&up, &up.key, SEEN, &[]);
        command.env("TERM", "xterm").env_remove("CI");
        let terminal = Terminal::sized(&command, Interrupt::Usual, 24, columns);
        let (status, shown) = terminal.ended(Duration::from_secs(120));
        assert!(status.success() && shown.contains("the server lacked 48.0 MB"), "{shown}");
        // Pieces between the sequences that move a cursor.
        let pieces = shown.split(['\r', '\n', '\u{1b}']);
        let live: Vec<&str> = pieces.filter(|piece| piece.contains(": sending ")).collect();
        assert!(!live.is_empty(), "{shown}");
        let width = usize::from(columns);
        let bare = |line: &&str| line.trim_start_matches("[2K").trim_end().chars().count();
        assert!(live.iter().map(bare).all(|taken| taken < width), "{live:?}");
    }
    let again = client.run(&up, &up.key, SEEN, &["--json"]);
    assert_eq!(String::from_utf8_lossy(&again.stderr), "");
    let object: Value = serde_json::from_str(&stdout(&again)).unwrap();
    assert_eq!(
        (&object["status"], &object["sent"][0]["sentBytes"]),
        (&json!("succeeded"), &json!(0))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_binds_the_directory_that_was_sent_whatever_is_sent_since() {
    let (home, client) = (Home::new(), ClientWorld::new());
    let up = home.up();
    let gated = SEEN.replace("plan:\n", "plan:\n  gate: approve-plan\n");
    let first = client.run(&up, &up.key, &gated, &["--detach", "--json"]);
    let ids: Value = serde_json::from_str(&stdout(&first)).unwrap();
    let run =
        up.wait_for(&text(&ids, "runId"), "its gate", |h| h["status"] == "waiting_input").await;
    client.write("name", "two\n");
    let done = client.run(&up, &up.key, SEEN, &[]);
    assert!(stdout(&done).contains("two\n755"), "{}", said(&done));
    assert_eq!(say(&up, &up.key, &run, "k", "yes").await.0, 200);
    let end = up.wait_terminal(&text(&ids, "runId")).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let sql = up.sql().await;
    let query = format!(
        "SELECT inline FROM app.artifacts WHERE run_id = '{}' AND kind = 'stdout'",
        text(&ids, "runId")
    );
    assert!(texts(&sql, &query).await[0].contains("one\n755"));
    let shown = home.run(&["show", &text(&ids, "runId")]);
    assert!(said(&shown).contains("tree:"), "{}", said(&shown));
    assert_proven(&home);
}
