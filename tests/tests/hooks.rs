//! Runs by signed deliveries, and by pushes of git.

use crate::support;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_tests::{Home, Server, row_counts, tamper, text};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use support::git::git_in;
use support::{assert_proven, code, count, recipe, said, until};

const SECRET: &str = "a-secret-of-the-sender-0123456789";
const RECIPE: &str = "id: built\nv: \"1\"\nform: {type: object, required: [sha], additionalProperties: false, properties: {sha: {type: string, maxLength: 40}}}\nplan:\n  tasks: [{name: t, value: \"built ${form.sha}\"}]\n";

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

pub fn github(body: &str, event: &str) -> Vec<(&'static str, String)> {
    let signed = mac(SECRET.as_bytes(), body.as_bytes());
    let hex: String = signed.iter().map(|byte| format!("{byte:02x}")).collect();
    let signed = format!("sha256={hex}");
    vec![("x-hub-signature-256", signed), ("x-github-event", event.into())]
}

fn standard(id: &str, at_s: i64, body: &str) -> Vec<(&'static str, String)> {
    let signed = mac(SECRET.as_bytes(), format!("{id}.{at_s}.{body}").as_bytes());
    vec![
        ("webhook-id", id.into()),
        ("webhook-timestamp", at_s.to_string()),
        ("webhook-signature", format!("v1,{}", STANDARD.encode(signed))),
    ]
}

/// Sends a delivery, as its sender does: without a key.
pub async fn send(
    up: &Server,
    hook: &str,
    headers: &[(&'static str, String)],
    body: &str,
) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.post(format!("{}/api/hooks/{hook}", up.url));
    request = request.header("content-type", "application/json").body(body.to_owned());
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap_or(Value::Null))
}

/// A hook of the recipe above, with its secret.
pub async fn hook(up: &Server, name: &str, scheme: &str, events: Value) {
    let body = json!({"value": SECRET, "for": ["hooks.example"]});
    let (status, set) = up
        .request("PUT", "/api/secrets/sender", Some(&up.key), Some(body.to_string().into_bytes()))
        .await;
    assert_eq!(status, 200, "{set}");
    let (status, imported) = up.post("/api/recipes/import", &json!({"yaml": RECIPE})).await;
    assert_eq!(status, 201, "{imported}");
    let hook = json!({"scheme": scheme, "secret": "sender", "events": events, "inputs": {"sha": "/after"}});
    let body = json!({"name": name, "recipeRef": imported["recipeRef"], "hook": hook});
    let (status, made) = up.post("/api/hooks", &body).await;
    assert_eq!((status, &made["path"]), (201, &json!(format!("/api/hooks/{name}"))), "{made}");
}

async fn unsigned(up: &Server) -> Value {
    up.get("/api/hooks").await.1[0]["unsigned"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_of_github_starts_one_run_and_what_is_not_signed_starts_none() {
    let home = Home::new();
    let log = home.path().join("server.log");
    let sink = Stdio::from(fs::File::create(&log).unwrap());
    let up = Server::logged(&home, &["up", "-vv", "--listen", "127.0.0.1:0"], &[], sink);
    hook(&up, "push", "github", json!(["push"])).await;
    let sql = up.sql().await;
    let body = json!({"after": "c0ffee", "ref": "refs/heads/main"}).to_string();
    let (status, receipt) = send(&up, "push", &github(&body, "push"), &body).await;
    assert_eq!((status, &receipt["isReplay"]), (201, &json!(false)), "{receipt}");
    let run = text(&receipt, "runId");
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let filled = "SELECT count(*) FROM app.artifacts WHERE inline LIKE '%built c0ffee%'";
    assert!(count(&sql, filled).await > 0, "its value is of the delivery's body");
    // Sent again it is the same run, under any delivery id that the signature does not cover.
    let mut again = github(&body, "push");
    again.push(("x-github-delivery", "another".into()));
    let (status, replay) = send(&up, "push", &again, &body).await;
    assert_eq!((status, &replay), (200, &json!({"runId": run, "isReplay": true})));

    // What its event left out starts nothing under another event's name either, which GitHub does not sign.
    let ping = json!({"zen": "x", "after": "c0ffee"}).to_string();
    for (event, is_replay) in [("ping", false), ("push", true), ("ping", true)] {
        let sent = send(&up, "push", &github(&ping, event), &ping).await;
        assert_eq!(sent, (200, json!({"isReplay": is_replay})), "{event}");
    }
    let fired = up.get("/api/hooks/push/firings").await.1;
    assert_eq!((&fired[0]["reason"], &fired[1]["state"]), (&json!("filtered"), &json!("started")));
    let before = row_counts(&sql).await;
    let other = json!({"after": "bad"}).to_string();
    for headers in [github(&body, "push"), vec![("x-github-event", "push".into())], vec![]] {
        let (status, refused) = send(&up, "push", &headers, &other).await;
        assert_eq!((status, &refused["code"]), (401, &json!("signature_invalid")), "{refused}");
    }
    assert_eq!(unsigned(&up).await, json!(1), "what has no signature's form is not looked up");
    // Signed, and yet nothing to start: no JSON, an input that does not fit, a body beyond the bound.
    let (status, refused) = send(&up, "push", &github("{", "push"), "{").await;
    assert_eq!((status, &refused["code"]), (400, &json!("invalid_json")));
    for body in [json!({}), json!({"after": 5}), json!({"after": "x".repeat(41)})] {
        let body = body.to_string();
        let (status, refused) = send(&up, "push", &github(&body, "push"), &body).await;
        assert_eq!((status, &refused["code"]), (400, &json!("schema_violation")), "{refused}");
    }
    let large = json!({"after": "x", "pad": "y".repeat(1024 * 1024)}).to_string();
    assert_eq!(send(&up, "push", &github(&large, "push"), &large).await.0, 413);
    assert_eq!(send(&up, "nowhere", &github(&body, "push"), &body).await.0, 401);
    assert_eq!(row_counts(&sql).await, before, "what starts nothing leaves nothing");
    assert_proven(&home);
    let logged = fs::read_to_string(&log).unwrap();
    assert!(
        logged.contains("a delivery is refused")
            && logged.contains("no hook has its address")
            && !logged.contains(SECRET),
        "{logged}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_whose_secret_is_gone_tells_a_stranger_nothing_of_it() {
    let home = Home::new();
    let up = home.up();
    hook(&up, "push", "github", json!([])).await;
    let (status, gone) = up.request("DELETE", "/api/secrets/sender", Some(&up.key), None).await;
    assert!(status < 300, "{gone}");
    let body = json!({"after": "c0ffee"}).to_string();
    let (status, refused) = send(&up, "push", &github(&body, "push"), &body).await;
    assert_eq!((status, &refused["code"]), (401, &json!("signature_invalid")), "{refused}");
    assert!(!refused.to_string().contains("sender"), "{refused}");
    assert_eq!(unsigned(&up).await, json!(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_of_standard_webhooks_count_once_and_for_five_minutes() {
    let home = Home::new();
    let up = home.up();
    hook(&up, "std", "standard", json!([])).await;
    let sql = up.sql().await;
    let now = count(&sql, "SELECT floor(extract(epoch FROM clock_timestamp()))::bigint").await;
    let body = json!({"type": "built", "after": "one"}).to_string();
    // Many at once are one run.
    let headers = standard("msg_1", now, &body);
    let sent = (0..8).map(|_| send(&up, "std", &headers, &body));
    let mut runs = Vec::new();
    let mut made = 0;
    for (status, receipt) in futures(sent).await {
        assert!(status == 201 || status == 200, "{status} {receipt}");
        made += i32::from(status == 201);
        runs.push(text(&receipt, "runId"));
    }
    runs.dedup();
    assert_eq!((runs.len(), made), (1, 1), "{runs:?}");
    // Another id is another delivery; the same id with another body contradicts the record.
    assert_eq!(send(&up, "std", &standard("msg_2", now, &body), &body).await.0, 201);
    let other = json!({"type": "built", "after": "two"}).to_string();
    let (status, refused) = send(&up, "std", &standard("msg_1", now, &other), &other).await;
    assert_eq!((status, &refused["code"]), (409, &json!("conflict")), "{refused}");
    for at in [now - 400, now + 400] {
        let (status, refused) = send(&up, "std", &standard("msg_3", at, &body), &body).await;
        assert_eq!((status, &refused["code"]), (401, &json!("signature_invalid")), "{refused}");
    }
    assert_eq!(count(&sql, "SELECT count(*) FROM app.runs").await, 2);
    // A flood of guesses is answered and counted no more; a good delivery still is.
    let bad = vec![("webhook-id", "x".to_owned())];
    let mut last = 0;
    for _ in 0..70 {
        last = send(&up, "std", &bad, &body).await.0;
    }
    assert_eq!(last, 429);
    assert_eq!(send(&up, "std", &standard("msg_4", now, &other), &other).await.0, 201);
    // Rotated, the old value signs nothing.
    let rotated = json!({"value": "another-secret-of-the-sender"});
    assert_eq!(up.post("/api/secrets/sender/rotate", &rotated).await.0, 200);
    assert!([401, 429].contains(&send(&up, "std", &standard("msg_5", now, &body), &body).await.0));
    assert_eq!(up.request("DELETE", "/api/hooks/std", Some(&up.key), None).await.0, 200);
    assert!([401, 429].contains(&send(&up, "std", &standard("msg_6", now, &body), &body).await.0));
    assert_proven(&home);
}

/// All of them at once.
async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in all.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(cx) {
                *done = Some(value);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_gitlab_opens_its_hook_alone_and_a_hook_needs_a_secret() {
    let home = Home::new();
    let up = home.up();
    hook(&up, "lab", "gitlab", json!(["Push Hook"])).await;
    let body = json!({"after": "abc"}).to_string();
    let sent = |token: &str, id: &str| {
        vec![
            ("x-gitlab-token", token.to_owned()),
            ("x-gitlab-event", "Push Hook".to_owned()),
            ("x-gitlab-event-uuid", id.to_owned()),
        ]
    };
    assert_eq!(send(&up, "lab", &sent(SECRET, "u1"), &body).await.0, 201);
    assert_eq!(send(&up, "lab", &sent(SECRET, "u1"), &body).await.0, 200);
    assert_eq!(send(&up, "lab", &sent("wrong", "u2"), &body).await.0, 401);
    // A name is one hook's of the tenant; a secret that is not there opens nothing.
    let (_, key) =
        up.new_key(&json!({"tenant": "other", "roles": ["submitter", "operator"]})).await;
    up.post_as(&key, "/api/recipes/import", &json!({"yaml": RECIPE})).await;
    let add = |name: &str| json!({"name": name, "recipeRef": {"id": "built", "v": "1"}, "hook": {"scheme": "gitlab", "secret": "sender"}});
    let (status, refused) = up.post_as(&key, "/api/hooks", &add("fine")).await;
    assert_eq!((status, &refused["code"]), (400, &json!("schema_violation")), "{refused}");
    assert_eq!(up.post("/api/hooks", &add("lab")).await.0, 409);
    assert_eq!(up.get_as(&key, "/api/hooks").await.1, json!([]));
    assert_eq!(up.request("DELETE", "/api/hooks/lab", Some(&key), None).await.0, 404);
    let listed = said(&home.run(&["hook", "ls"]));
    assert!(listed.contains("lab") && listed.contains("gitlab"), "{listed}");
    assert_proven(&home);
}

/// What a stranger hears of an address, without what is of each request.
async fn heard(up: &Server, address: &str) -> (u16, Value, Value) {
    let body = json!({"after": "guess"}).to_string();
    let mut wrong = github(&body, "push");
    wrong[0].1 = format!("sha256={}", "0".repeat(64));
    let (status, said) = send(up, address, &wrong, &body).await;
    (status, said["code"].clone(), said["error"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_of_two_tenants_have_one_name_and_neither_finds_the_others() {
    let home = Home::new();
    let up = home.up();
    hook(&up, "push", "github", json!([])).await;
    let theirs = json!({"tenant": "other", "roles": ["submitter", "operator"]});
    let (_, key) = up.new_key(&theirs).await;
    let value = json!({"value": SECRET, "for": ["hooks.example"]}).to_string().into_bytes();
    let (status, set) = up.request("PUT", "/api/secrets/mine", Some(&key), Some(value)).await;
    assert_eq!(status, 200, "{set}");
    up.post_as(&key, "/api/recipes/import", &json!({"yaml": RECIPE})).await;
    let add = |name: &str| json!({"name": name, "recipeRef": {"id": "built", "v": "1"}, "hook": {"scheme": "github", "secret": "mine", "inputs": {"sha": "/after"}}});
    let (status, made) = up.post_as(&key, "/api/hooks", &add("push")).await;
    assert_eq!(status, 201, "{made}");
    let path = text(&made, "path");
    let address = path.strip_prefix("/api/hooks/").unwrap();
    let part = address.strip_prefix("push-").unwrap();
    assert!(part.len() == 16 && text(&made, "hookId").starts_with(&format!("hk_{part}")), "{made}");
    assert_eq!(up.post_as(&key, "/api/hooks", &add("only")).await.0, 201);
    // Each address starts its own tenant's run.
    let body = json!({"after": "c0ffee"}).to_string();
    for (address, own, foreign) in [("push", &up.key, &key), (address, &key, &up.key)] {
        let (status, receipt) = send(&up, address, &github(&body, "push"), &body).await;
        assert_eq!(status, 201, "{address}: {receipt}");
        let run = format!("/api/runs/{}", text(&receipt, "runId"));
        assert_eq!(up.get_as(own, &run).await.0, 200);
        assert_eq!(up.get_as(foreign, &run).await.0, 404);
    }
    // A stranger hears the same of a hook, of another tenant's name, and of none.
    let known = heard(&up, "push").await;
    assert_eq!((known.0, &known.1), (401, &json!("signature_invalid")), "{known:?}");
    let guess = format!("push-{}", "0".repeat(16));
    for address in ["only", "nowhere", guess.as_str(), address] {
        assert_eq!(heard(&up, address).await, known, "{address}");
    }
    // What a reader of hooks sees has no secret's name, and binding one needs both roles.
    let (_, rows) = up.get("/api/hooks").await;
    assert!(!rows.to_string().contains("sender") && rows[0]["scheme"] == "github", "{rows}");
    for (roles, why) in [(json!(["submitter"]), "operator"), (json!(["operator"]), "submitter")] {
        let (_, key) = up.new_key(&json!({"tenant": "other", "roles": roles})).await;
        let (status, refused) = up.post_as(&key, "/api/hooks", &add("more")).await;
        assert!(status == 403 && refused.to_string().contains(why), "{refused}");
    }
    assert_proven(&home);
}

/// Git as a person of this test uses it.
fn git(dir: &Path, args: &[&str]) -> Output {
    git_in(dir, args, b"")
}

fn good(output: Output) -> String {
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// A recipe that runs the tests of a commit: `tests.sh` says how they end.
const TESTS: &str = "id: pushed\nv: \"1\"\nform: {type: object, required: [repo, commit], properties: {repo: {type: string}, commit: {type: string}}}\nplan:\n  tasks:\n    - name: unit\n      repo: {path: \"${form.repo}\", commit: \"${form.commit}\"}\n      exec: {run: sh tests.sh, workdir: /work, timeout: 60s}\n      reports: [r.tap]\n";

fn commit(work: &Path, second: &str, note: &str) {
    let points = format!("1..2\\nok 1 - a\\n{second} 2 - b\\n");
    let test = format!("printf '{points}' > r.tap # {note}\n! grep -q '^not' r.tap\n");
    fs::write(work.join("tests.sh"), test).unwrap();
    good(git(work, &["add", "."]));
    good(git(work, &["commit", "-q", "-m", "x"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_shows_the_tests_of_its_commit_and_a_foreign_hook_stays() {
    let home = Home::new();
    let mut up = home.up();
    let dir = tempfile::tempdir().unwrap();
    let file = recipe(dir.path(), "pushed.yaml", TESTS);
    let (bare, work) = (dir.path().join("bare.git"), dir.path().join("work"));
    good(git(dir.path(), &["init", "-q", "--bare", "-b", "main", "bare.git"]));
    good(git(dir.path(), &["init", "-q", "-b", "main", "work"]));
    good(git(&work, &["remote", "add", "origin", bare.to_str().unwrap()]));
    let install = |repo: &Path, more: &[&str]| {
        let repo = repo.to_str().unwrap();
        home.run(&[&["hook", "git", "install", "--recipe", &file, "--repo", repo], more].concat())
    };
    let hook = bare.join("hooks/post-receive");
    fs::create_dir_all(bare.join("hooks")).unwrap();
    fs::write(&hook, "#!/bin/sh\necho theirs\n").unwrap();
    let refused = install(&bare, &[]);
    assert!(
        code(&refused) == 3 && said(&refused).contains("another program's"),
        "{}",
        said(&refused)
    );
    assert_eq!(fs::read_to_string(&hook).unwrap(), "#!/bin/sh\necho theirs\n");
    assert_eq!(code(&install(&bare, &["--force"])), 0);
    assert_eq!(code(&install(&bare, &[])), 0, "its own hook is its own to write again");

    commit(&work, "ok", "");
    let pushed = good(git(&work, &["push", "origin", "main"]));
    assert!(pushed.contains("tests: 2 passed"), "{pushed}");
    commit(&work, "not ok", "");
    let pushed = good(git(&work, &["push", "origin", "main"]));
    assert!(pushed.contains("remote:") && pushed.contains("1 passed, 1 failed"), "{pushed}");
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.runs WHERE recipe_id = 'pushed'").await, 2);

    // Before a push, the hook of a working tree stops what fails.
    assert_eq!(code(&install(&work, &[])), 0);
    fs::remove_file(&hook).unwrap();
    commit(&work, "not ok", "again");
    let stopped = git(&work, &["push", "origin", "main"]);
    assert!(!stopped.status.success() && said(&stopped).contains("1 failed"), "{}", said(&stopped));
    commit(&work, "ok", "");
    good(git(&work, &["push", "origin", "main"]));
    let removed = home.run(&["hook", "git", "remove", "--repo", work.to_str().unwrap()]);
    assert_eq!(code(&removed), 0, "{}", said(&removed));
    assert!(!work.join(".git/hooks/pre-push").exists());
    let over = "SELECT count(*) FROM app.runs WHERE NOT app.is_over(status)";
    until("all is over", Duration::from_secs(30), async || count(&sql, over).await == 0).await;
    assert_proven(&home);
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hooks_directory_that_repositories_share_and_an_odd_name_are_seen() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let file = recipe(dir.path(), "pushed.yaml", TESTS);
    let install = |repo: &Path, more: &[&str]| {
        let repo = repo.to_str().unwrap();
        home.run(&[&["hook", "git", "install", "--recipe", &file, "--repo", repo], more].concat())
    };
    // A directory whose name ends with a newline.
    let odd = dir.path().join("odd\n");
    good(git(dir.path(), &["init", "-q", "odd\n"]));
    assert_eq!(code(&install(&odd, &[])), 0);
    assert!(odd.join(".git/hooks/pre-push").exists());
    let (shared, work) = (dir.path().join("shared"), dir.path().join("work"));
    fs::create_dir(&shared).unwrap();
    good(git(dir.path(), &["init", "-q", "work"]));
    good(git(&work, &["config", "core.hooksPath", shared.to_str().unwrap()]));
    let refused = install(&work, &[]);
    assert!(code(&refused) == 3 && said(&refused).contains("core.hooksPath"), "{}", said(&refused));
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
    assert_eq!(code(&install(&work, &["--force"])), 0);
    assert!(shared.join("pre-push").exists());
    // One inside the repository is its own.
    good(git(&work, &["config", "core.hooksPath", ".githooks"]));
    assert_eq!(code(&install(&work, &[])), 0);
    assert!(work.join(".githooks/pre-push").exists());
}

/// GitLab Runner itself is in no registry that this machine uses, so this is a fake one: it calls the four stages in the order, with
/// the environment and the arguments that GitLab documents.
struct FakeGitlabRunner<'a> {
    home: &'a Home,
    job: &'static str,
    exit_file: std::path::PathBuf,
}

impl FakeGitlabRunner<'_> {
    fn stage(&self, args: &[&str]) -> Output {
        self.home
            .command(&[&["gitlab-executor"], args].concat())
            .env("CUSTOM_ENV_CI_JOB_ID", self.job)
            .env("CUSTOM_ENV_CI_SERVER_HOST", "gitlab.example")
            .env("CUSTOM_ENV_CI_JOB_TIMEOUT", "600")
            .env("BUILD_FAILURE_EXIT_CODE", "17")
            .env("SYSTEM_FAILURE_EXIT_CODE", "19")
            .env("BUILD_EXIT_CODE_FILE", &self.exit_file)
            .output()
            .unwrap()
    }

    /// One part of the job: its script as the runner writes it.
    fn script(&self, dir: &Path, part: &str, text: &str) -> Output {
        let file = dir.join(format!("script-{part}"));
        fs::write(&file, format!("#!/usr/bin/env bash\nset -eo pipefail\n{text}\n")).unwrap();
        self.stage(&["run", file.to_str().unwrap(), part])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fake_gitlab_runner_drives_the_four_stages_and_the_sandbox_is_wiped() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let dir = tempfile::tempdir().unwrap();
    let exit_file = dir.path().join("exit-code");
    let runner = FakeGitlabRunner { home: &home, job: "42", exit_file: exit_file.clone() };
    let config = runner.stage(&["config"]);
    let said_config: Value = serde_json::from_slice(&config.stdout).unwrap();
    assert_eq!(said_config["builds_dir_is_shared"], json!(false), "{said_config}");
    // A part before its sandbox is the runner's own failure, not the job's.
    let early = runner.script(dir.path(), "build_script", "true");
    assert_eq!(code(&early), 19, "{}", said(&early));
    let prepared = runner.stage(&["prepare"]);
    assert_eq!(code(&prepared), 0, "{}", said(&prepared));
    let first =
        runner.script(dir.path(), "prepare_script", "mkdir -p builds; echo kept > builds/file");
    assert_eq!(code(&first), 0, "{}", said(&first));
    let second =
        runner.script(dir.path(), "build_script", "cat builds/file; echo aside >&2; exit 5");
    assert_eq!(code(&second), 17, "{}", said(&second));
    assert!(
        support::stdout(&second).contains("kept"),
        "one sandbox for all parts: {}",
        said(&second)
    );
    assert!(String::from_utf8_lossy(&second.stderr).contains("aside"), "{}", said(&second));
    assert_eq!(fs::read_to_string(&exit_file).unwrap(), "5");
    // Another job is another sandbox.
    let other = FakeGitlabRunner { home: &home, job: "43", exit_file };
    assert_eq!(code(&other.script(dir.path(), "build_script", "true")), 19);
    let cleaned = runner.stage(&["cleanup"]);
    assert_eq!(code(&cleaned), 0, "{}", said(&cleaned));
    assert!(said(&cleaned).contains("is wiped"), "{}", said(&cleaned));
    assert_eq!(code(&runner.stage(&["cleanup"])), 0, "again it has nothing to do");
    support::assert_wiped(&home, &sql).await;
    assert_proven(&home);
    // One that is over without evidence of its wipe is the runner's failure, too; another label finds nothing.
    tamper(&sql, "DELETE FROM app.secure_wipe_evidence").await;
    let unproven = runner.stage(&["cleanup"]);
    assert_eq!(code(&unproven), 19, "{}", said(&unproven));
    assert_eq!(up.get("/api/sandboxes?label=gitlab-job%3Dother").await.1, json!([]));
    assert_eq!(up.get("/api/sandboxes?label=gitlab-job").await.0, 400);
}
