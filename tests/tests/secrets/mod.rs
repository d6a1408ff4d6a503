//! Secrets: real clients use them, and no sandbox, row, log or file of the host ever holds one.

mod classes;
pub mod forge;
mod push;
pub mod scan;

use std::fs::{self, File};
use std::time::Duration;

use cofferdam_tests::{Home, Server, processes_mentioning, tamper, text};
use serde_json::{Value, json};

use crate::support::{assert_proven, count, has_npm, said, texts, until};
use forge::{Forge, NEXT, VALUE, piped};

/// As long as a loaded host may need for a few clients.
const PATIENT: Duration = Duration::from_secs(180);

/// A task that may send the secret `forge` to these hosts, as these clients do.
fn recipe(script: &str, uses: Value) -> String {
    let egress: Vec<&Value> = uses.as_array().unwrap().iter().map(|used| &used["for"]).collect();
    json!({"id": "secret", "v": "1", "plan": {"tasks": [{
        "name": "t",
        "exec": {"run": format!("cd /work; {script}"), "timeout": "150s", "egress": egress, "secrets": uses},
        "limits": {"mem_mb": 768, "disk_mb": 256, "pids": 128},
    }]}})
    .to_string()
}

fn basic(host: &str) -> Value {
    json!({"name": "forge", "for": host, "as": "basic ci"})
}

fn bearer(host: &str) -> Value {
    json!({"name": "forge", "for": host, "as": "header Authorization \"Bearer {}\""})
}

fn set(home: &Home, args: &[&str], value: &str) {
    let done = piped(home, &[&["secret", "set", "forge"], args].concat(), value);
    assert!(done.status.success(), "{}", said(&done));
}

/// The run's end, its output and its violations.
async fn ended(up: &Server, run: &str) -> (Value, String, Value) {
    let path = format!("/api/runs/{run}");
    until("the run has ended", PATIENT, async || {
        let status = up.get(&path).await.1["status"].clone();
        ["succeeded", "failed", "retries_exceeded"].contains(&status.as_str().unwrap_or(""))
    })
    .await;
    let sql = up.sql().await;
    let of = |column: &str| {
        format!(
            "SELECT coalesce(response->>'{column}', '') FROM app.sbx_runs WHERE run_id = '{run}'"
        )
    };
    let out = texts(&sql, &of("stdout")).await.concat();
    let violations = texts(&sql, &of("violations")).await.concat();
    (up.get(&path).await.1, out, serde_json::from_str(&violations).unwrap_or(json!([])))
}

fn counted(violations: &Value, why: &str) -> u64 {
    let all = violations.as_array().unwrap().iter().filter(|v| v["why"] == why);
    all.map(|v| v["count"].as_u64().unwrap()).sum()
}

/// The client that a machine may lack.
const NPM: &str = "npm pack --silent --registry https://npm.example/npm/ tiny;";

/// What the clients of the first test do, one after the other, with [`NPM`] where that stands; then a process of Python stays that has used a
/// secret.
const CLIENTS: &str = "export HOME=/tmp PYTHONDONTWRITEBYTECODE=1; \
    git clone -q https://git.example/repo.git && cat repo/README; \
    curl -sS https://git.example/hello; \
    curl -sS -H 'Authorization: Bearer mine' --noproxy '*' https://git.example/again; \
    /usr/bin/python3 -m pip download -q --no-deps --no-cache-dir --disable-pip-version-check \
      -i https://pip.example/simple/ -d got tiny && ls got; \
    NPM \
    cat > hold.py <<'PY'\nimport http.client, os, ssl, time\n\
c = http.client.HTTPSConnection('git.example', context=ssl.create_default_context())\n\
for path in ('/one', '/two'):\n    c.request('GET', path)\n    print(c.getresponse().read().decode(), end='')\n\
while not os.path.exists('/work/go'): time.sleep(0.05)\nPY\n\
    /usr/bin/python3 hold.py a-held-process-of-this-test";

#[tokio::test(flavor = "multi_thread")]
async fn git_pip_npm_and_curl_use_a_secret_that_nothing_of_the_sandbox_or_the_host_holds() {
    let forge = Forge::start();
    let home = Home::new();
    let log = home.path().join("server.log");
    let up = forge.up_with(&home, "trace", File::create(&log).unwrap().into());
    set(&home, &[], &format!("{VALUE}\n"));
    let mut uses = vec![basic("git.example"), basic("pip.example")];
    let mut lines = vec!["a private file", "tiny-1.0-py3-none-any.whl"];
    let npm = if has_npm("the client of a registry that needs a secret is this machine's own npm") {
        uses.push(bearer("npm.example"));
        lines.push("tiny-1.0.0.tgz");
        NPM
    } else {
        ""
    };
    let hosts = uses.len();
    let script = CLIENTS.replace("NPM", npm);
    let header = up.run_recipe(&recipe(&script, json!(uses)), json!({}), json!({})).await;
    let run = text(&header, "runId");
    let needles = scan::forms(VALUE);
    let mut held = None;
    until("the process is there", PATIENT, async || {
        let found = processes_mentioning("a-held-process-of-this-test");
        held = found.into_iter().find(|(_, line)| line.starts_with("/usr/bin/python3"));
        let heard = forge.heard();
        held.is_some() && heard.iter().any(|one| one.path == "/two")
    })
    .await;
    let held = held.unwrap().0;
    let all = scan::of_sandbox(held);
    assert!(all.len() >= 2, "{all:?}");
    // The scan sees what is there: a text that the process does hold.
    assert!(!scan::in_process(held, &[b"a-held-process-of-this-test".to_vec()]).is_empty());
    for pid in all {
        assert_eq!(scan::in_process(pid, &needles), Vec::<String>::new());
    }
    let root = std::path::PathBuf::from(format!("/proc/{held}/root"));
    for dir in ["work", "tmp", "etc", "root", "home", "run", "var", ".cofferdam"] {
        assert_eq!(scan::in_files(&root.join(dir), &needles), Vec::<std::path::PathBuf>::new());
    }
    assert_eq!(scan::in_files(&root.join("work"), &[b"a private file".to_vec()]).len(), 1);
    fs::write(root.join("work/go"), "").unwrap();
    let (header, out, violations) = ended(&up, &run).await;
    for line in lines {
        assert!(out.lines().any(|said| said == line), "{line}: {out} {violations}");
    }
    assert_eq!(out.lines().filter(|line| *line == "welcome").count(), 4, "{out}");
    assert_eq!((&header["status"], &violations), (&json!("succeeded"), &json!([])), "{out}");
    let heard = forge.heard();
    assert!(heard.iter().all(|one| one.value == 0), "every request carried it: {heard:?}");
    let sql = up.sql().await;
    let uses = up.get(&format!("/api/runs/{run}/secrets")).await.1;
    let sent: u64 =
        uses.as_array().unwrap().iter().map(|used| used["count"].as_u64().unwrap()).sum();
    assert_eq!(sent, u64::try_from(heard.len()).unwrap(), "{uses}");
    assert_eq!(uses.as_array().unwrap().len(), hosts, "{uses}");
    let consent = "SELECT count(*) FROM app.secret_uses u JOIN app.egress_policy_snapshots s USING (run_id, phase) \
                   WHERE s.source = 'host-admin'";
    assert_eq!(count(&sql, consent).await, i64::try_from(hosts).unwrap());
    assert!(scan::in_rows(&sql, &needles).await.is_empty(), "rows hold it");
    drop(sql);
    drop(up);
    assert_proven(&home);
    assert!(fs::read_to_string(&log).unwrap().contains("secret"), "the log is the server's");
    assert_eq!(scan::in_files(home.path(), &needles), Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_plain_https_to_the_secrets_own_host_is_refused_and_never_sent() {
    let forge = Forge::start();
    let home = Home::new();
    let up = forge.up(&home);
    set(&home, &["--for", "git.example"], VALUE);
    let script = "exec 2>/dev/null; cat > t.sh <<'X'\n\
code() { what=$1; shift; curl -s -o got -w \"%{http_code} $what\\n\" \"$@\"; }\n\
code plain http://git.example/plain\n\
code direct --noproxy '*' http://git.example/plain\n\
code host -H 'Host: other.example' https://git.example/host\n\
code path 'https://git.example/%7B%7Bsecret:forge%7D%7D'\n\
code header -H 'X-Token: {{secret:forge}}' https://git.example/header\n\
code body -d 'token={{secret:forge}}' https://git.example/body\n\
(head -c 200000 /dev/zero; echo 'x{{secret:forge}}'; head -c 200000 /dev/zero) > large\n\
code large -T large https://git.example/large\n\
code trace -X TRACE https://git.example/trace\n\
code trust --cacert /etc/ssl/certs/ca-certificates.crt https://git.example/trust\n\
code other https://other.example/other\n\
code echo https://git.example/echo; cat got\n\
curl -s -D - -o /dev/null https://git.example/echo-header | grep -i x-echo\n\
head -c 3000000 /dev/urandom > upload; sha256sum upload | cut -d' ' -f1 > sum\n\
code upload -T upload https://git.example/upload; cat sum\n\
code chunked -H 'Transfer-Encoding: chunked' -T upload https://git.example/chunked\n\
code h2 --http2 https://git.example/h2\nX\n\
        bash t.sh; echo done";
    let header =
        up.run_recipe(&recipe(script, json!([bearer("git.example")])), json!({}), json!({})).await;
    let (_, out, violations) = ended(&up, &text(&header, "runId")).await;
    for line in [
        "403 plain",
        "403 direct",
        "403 host",
        "403 path",
        "403 header",
        "403 body",
        "403 trace",
        "000 trust",
        "000 other",
        "200 upload",
        "200 chunked",
        "200 h2",
        "done",
    ] {
        assert!(out.lines().any(|said| said == line), "{line}: {out} {violations}");
    }
    assert!(out.contains("x-echo: redacted") && !out.contains("S3CRET"), "{out}");
    assert!(!out.contains("you said"), "{out}");
    for (why, times) in
        [("plain", 2), ("host", 1), ("placeholder", 4), ("unended", 1), ("echo", 2), ("name", 1)]
    {
        assert_eq!(counted(&violations, why), times, "{why}: {violations} {out}");
    }
    let heard = forge.heard();
    for never in ["/plain", "/host", "/header", "/body", "/trace", "/trust", "/other"] {
        assert!(heard.iter().all(|one| one.path != never), "{never}: {heard:?}");
    }
    assert!(heard.iter().all(|one| !one.path.contains("secret")), "{heard:?}");
    assert!(heard.iter().all(|one| one.method != "TRACE"), "{heard:?}");
    let whole =
        |path: &str| heard.iter().find(|one| one.path == path).and_then(|one| one.body.clone());
    assert_eq!(whole("/large"), None, "the body broke off: {heard:?}");
    let sum = whole("/upload").unwrap();
    assert!(
        out.lines().any(|line| line == sum) && whole("/chunked") == Some(sum),
        "{heard:?} {out}"
    );
    assert!(heard.iter().all(|one| one.host.as_deref() == Some("git.example")), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a3l_a_part_of_an_answer_and_the_words_beside_its_status_carry_no_secret() {
    let forge = Forge::start();
    let home = Home::new();
    let up = forge.up(&home);
    set(&home, &["--for", "git.example"], VALUE);
    let script = "exec 2>/dev/null; for at in 16 20 24 28 32 36 40 44; do \
        curl -s -w \"%{http_code} part\\n\" -r $at-$((at + 3)) https://git.example/echo-part; done; \
        curl -s -w \"%{http_code} since\\n\" -r 16-19 -H 'If-Range: x' https://git.example/echo-part; \
        curl -s -D - -o /dev/null https://git.example/echo-reason | head -1; echo done";
    let header =
        up.run_recipe(&recipe(script, json!([bearer("git.example")])), json!({}), json!({})).await;
    let (_, out, violations) = ended(&up, &text(&header, "runId")).await;
    assert!(out.lines().any(|line| line.trim() == "HTTP/1.1 200 OK"), "{out}");
    assert!(!out.contains("206 ") && out.ends_with("done\n"), "{out}");
    for piece in VALUE.as_bytes().windows(4) {
        let piece = std::str::from_utf8(piece).unwrap();
        assert!(piece.contains("the") || !out.contains(piece), "{piece}: {out}");
    }
    // Each was asked for whole, and cut off where the secret begins.
    assert_eq!(counted(&violations, "echo"), 9, "{violations} {out}");
    assert_eq!(forge.heard().iter().filter(|one| one.path == "/echo-part").count(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_secret_reaches_a_running_sandbox_and_a_removed_one_is_refused_to_it() {
    let forge = Forge::start();
    let home = Home::new();
    let up = forge.up(&home);
    set(&home, &[], VALUE);
    let script = "for i in $(seq 600); do curl -s -o /dev/null -w '%{http_code}\\n' https://git.example/turn | tee last; \
        grep -q 403 last && break; sleep 0.1; done; \
        echo over";
    let asked = recipe(script, json!([bearer("git.example")]));
    let header = up.run_recipe(&asked, json!({}), json!({})).await;
    let turns = |which: i64| {
        forge.heard().iter().filter(|one| one.path == "/turn" && one.value == which).count()
    };
    until("the first value was sent", PATIENT, async || turns(0) > 0).await;
    forge.takes(&[VALUE, NEXT]);
    let done = piped(&home, &["secret", "rotate", "forge"], NEXT);
    assert!(done.status.success() && said(&done).contains("forge version 2"), "{}", said(&done));
    until("the next value was sent", PATIENT, async || turns(1) > 0).await;
    let removed = home.run(&["secret", "rm", "forge"]);
    assert!(removed.status.success(), "{}", said(&removed));
    let (_, out, violations) = ended(&up, &text(&header, "runId")).await;
    assert!(out.lines().any(|line| line == "403"), "{out}");
    assert_eq!(counted(&violations, "secret"), 1, "{violations}");
    let sql = up.sql().await;
    let versions = "SELECT version::text FROM app.secret_uses ORDER BY version";
    assert_eq!(texts(&sql, versions).await, ["1", "2"]);
    let left = "SELECT count(*) FROM app.secrets WHERE sealed IS NOT NULL";
    assert_eq!(count(&sql, left).await, 0, "a version that is over has no bytes");
    let ops = "SELECT op FROM app.audit WHERE target = 'forge' ORDER BY id";
    assert_eq!(texts(&sql, ops).await, ["secret.set", "secret.rotate", "secret.remove"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_secret_is_not_there_and_a_copied_row_does_not_open() {
    let forge = Forge::start();
    let home = Home::new();
    let up = forge.up(&home);
    set(&home, &["--for", "git.example"], VALUE);
    let roles = json!(["submitter", "operator", "admin"]);
    let bravo = up.new_key(&json!({"tenant": "bravo", "roles": roles})).await.1;
    assert_eq!(up.get_as(&bravo, "/api/secrets").await, (200, json!([])));
    let value = json!({"value": NEXT});
    assert_eq!(up.post_as(&bravo, "/api/secrets/forge/rotate", &value).await.0, 404);
    let gone = up.request("DELETE", "/api/secrets/forge", Some(&bravo), None).await;
    assert_eq!(gone.0, 404, "{}", gone.1);
    let listed = json!({"value": ["git.example"], "expectedVersion": 0}).to_string().into_bytes();
    let put =
        up.request("PUT", "/api/config/egress.exec.allowed", Some(&bravo), Some(listed)).await;
    assert_eq!(put.0, 200, "{}", put.1);
    let asked = recipe(
        "curl -s -o /dev/null -w '%{http_code}\\n' https://git.example/x",
        json!([bearer("git.example")]),
    );
    let (status, refused) = up.start_recipe_as(&bravo, &asked, json!({}), json!({})).await;
    assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
    assert!(
        text(&refused, "error").contains("plan.tasks[0].exec.secrets[0]: the tenant has no secret")
    );
    let sql = up.sql().await;
    tamper(
        &sql,
        "INSERT INTO app.secrets (tenant_id, name, version, hosts, sealed, sealed_by, key_id)
         SELECT 'bravo', name, version, hosts, sealed, sealed_by, key_id FROM app.secrets",
    )
    .await;
    let (status, header) = up.start_recipe_as(&bravo, &asked, json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let run = text(&header, "runId");
    until("the run has ended", PATIENT, async || {
        up.get_as(&bravo, &format!("/api/runs/{run}")).await.1["status"] == "succeeded"
    })
    .await;
    let (_, out, violations) = ended_of(&sql, &run).await;
    assert_eq!((out.trim(), counted(&violations, "secret")), ("403", 1), "{violations}");
    assert!(forge.heard().is_empty(), "{:?}", forge.heard());
    // A secret without hosts goes where a person lets it: an unattended run is refused it.
    let open = json!({"value": VALUE}).to_string().into_bytes();
    let put = up.request("PUT", "/api/secrets/open", Some(&bravo), Some(open)).await;
    assert_eq!(put.0, 200, "{}", put.1);
    let asked = asked.replace("\"forge\"", "\"open\"");
    let (status, refused) = up.start_recipe_as(&bravo, &asked, json!({}), json!({})).await;
    assert_eq!(status, 400, "{refused}");
    assert!(text(&refused, "error").contains("no person approves"), "{refused}");
}

async fn ended_of(sql: &sqlx::PgPool, run: &str) -> ((), String, Value) {
    let of = |column: &str| {
        format!(
            "SELECT coalesce(response->>'{column}', '') FROM app.sbx_runs WHERE run_id = '{run}'"
        )
    };
    let violations = texts(sql, &of("violations")).await.concat();
    (
        (),
        texts(sql, &of("stdout")).await.concat(),
        serde_json::from_str(&violations).unwrap_or(json!([])),
    )
}

/// Writes a key as its owner keeps it: one that others can read is refused.
fn private(key: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(key, text).unwrap();
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_the_key_says_so_and_sends_nothing() {
    let forge = Forge::start();
    let home = Home::new();
    drop(forge.up(&home));
    set(&home, &[], VALUE);
    let key = home.path().join("secrets.key");
    let other = "1".repeat(64);
    // A private database's only host: without the key it would seal under another one, and open nothing.
    let kept = fs::read_to_string(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let refused = home.run(&["up", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("secrets.key is missing"), "{}", said(&refused));
    assert!(!key.exists(), "no key is made over sealed rows");
    private(&key, &kept);
    // Another host of the same database may do without it, and says so.
    let mut api = Server::start(&home, &["api", "--listen", "127.0.0.1:0"], &[]);
    let second = Home::on(&home.database_url());
    for (home, now) in [(&second, None), (&home, Some(other.as_str()))] {
        if let Some(text) = now {
            assert!(api.stop().success());
            private(&key, text);
        }
        let up = forge.up(home);
        let refused = piped(home, &["secret", "rotate", "forge"], NEXT);
        assert!(
            !refused.status.success() && said(&refused).contains("secrets.key"),
            "{}",
            said(&refused)
        );
        let script = "curl -s -o /dev/null -w '%{http_code}' https://git.example/x";
        let asked = recipe(script, json!([bearer("git.example")]));
        let header = up.run_recipe(&asked, json!({}), json!({"runKey": now})).await;
        let (_, out, violations) = ended(&up, &text(&header, "runId")).await;
        assert_eq!((out.as_str(), counted(&violations, "secret")), ("403", 1), "{violations}");
    }
    assert!(forge.heard().is_empty(), "{:?}", forge.heard());
    fs::write(&key, "not a key").unwrap();
    let failed = home.run(&["secret", "ls"]);
    assert!(said(&failed).contains("is not a secrets key"), "{}", said(&failed));
    fs::write(&key, other).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_leaves_the_use_on_record_and_the_next_one_goes_on() {
    let forge = Forge::start();
    let home = Home::new();
    let mut up = forge.up(&home);
    set(&home, &[], VALUE);
    let script = "for i in $(seq 1200); do curl -s -o last https://git.example/turn; \
        curl -s https://git.example/end | grep -q over && break; sleep 0.1; done; cat last";
    let header =
        up.run_recipe(&recipe(script, json!([bearer("git.example")])), json!({}), json!({})).await;
    until("the value was sent", PATIENT, async || !forge.heard().is_empty()).await;
    up.kill();
    let before = forge.heard().len();
    let up = forge.up(&home);
    until("the next worker sends it", PATIENT, async || forge.heard().len() > before + 3).await;
    forge.go();
    let (header, out, _) = ended(&up, &text(&header, "runId")).await;
    assert_eq!((&header["status"], out.trim()), (&json!("succeeded"), "welcome"), "{header}");
    let sql = up.sql().await;
    let sandboxes = "SELECT count(DISTINCT sandbox_id) FROM app.secret_uses WHERE count >= 1";
    assert_eq!(count(&sql, sandboxes).await, 2);
    drop(up);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_at_the_gate_where_a_secret_goes_and_the_use_is_bound_to_the_yes() {
    let forge = Forge::start();
    let home = Home::new();
    let up = forge.up(&home);
    let acme = |roles: &[&str]| json!({"tenant": "acme", "roles": roles});
    let operator = up.new_key(&acme(&["operator"])).await.1;
    let submitter = up.new_key(&acme(&["submitter"])).await.1;
    let approver = up.new_key(&acme(&["approver"])).await.1;
    let value = json!({"value": VALUE}).to_string().into_bytes();
    let path = "/api/secrets/forge";
    assert_eq!(up.request("PUT", path, Some(&submitter), Some(value.clone())).await.0, 403);
    assert_eq!(up.request("PUT", path, Some(&operator), Some(value)).await.0, 200);
    let script = "curl -s https://git.example/x";
    let mut asked: Value =
        serde_json::from_str(&recipe(script, json!([bearer("git.example")]))).unwrap();
    asked["plan"]["gate"] = json!("approve-plan");
    let (status, header) =
        up.start_recipe_as(&submitter, &asked.to_string(), json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let run = text(&header, "runId");
    let gate = format!("/api/runs/{run}/gates/approve-plan");
    until("the gate asks", PATIENT, async || {
        !up.get_as(&approver, &gate).await.1["prompt"].is_null()
    })
    .await;
    // The plan card is what `gate show` and the page of a reply link print.
    let all = up.get_as(&approver, &format!("/api/runs/{run}/artifacts")).await.1;
    let card = all.as_array().unwrap().iter().find(|one| one["kind"] == "plan_card").unwrap();
    let card = text(card, "uri").replace("artifact://", "/api/artifacts/");
    let plan = up.get_as(&approver, &card).await.1.to_string();
    let used = "\"secrets\":[{\"as\":\"header authorization \\\"Bearer {}\\\"\",\"for\":\"git.example\",\"name\":\"forge\"}]";
    assert!(plan.contains(used), "{plan}");
    assert!(forge.heard().is_empty());
    let yes = json!({"payload": {"choice": "yes"}, "dedupeKey": "d1"});
    let said = up.post_as(&approver, &format!("{gate}/reply"), &yes).await;
    assert_eq!(said.0, 200, "{}", said.1);
    until("the run has ended", PATIENT, async || {
        up.get_as(&submitter, &format!("/api/runs/{run}")).await.1["status"] == "succeeded"
    })
    .await;
    let sql = up.sql().await;
    let (_, out, _) = ended_of(&sql, &run).await;
    assert_eq!(out.trim(), "welcome");
    let bound = "SELECT count(*) FROM app.secret_uses u JOIN app.egress_policy_snapshots s USING (run_id, phase) \
                 WHERE s.source = 'gate' AND s.approver IS NOT NULL AND u.count = 1 AND u.tenant_id = 'acme'";
    assert_eq!(count(&sql, bound).await, 1);
}
