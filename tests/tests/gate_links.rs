//! Reply links: one answer to one gate by whoever holds it, and nothing else.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, row_counts, tamper, text};
use serde_json::{Value, json};
use sqlx::{Executor, PgPool};
use support::{assert_proven, count, said, texts, until};

const GATED: &str = "id: linked\nv: \"1\"\nform: {type: object, additionalProperties: false, properties: {n: {type: integer}}}\nplan:\n  gate: approve-plan\n  tasks: [{name: t, value: kept}]\n";

async fn gated(up: &Server, n: i64) -> String {
    let header = up.run_recipe(GATED, json!({"n": n}), json!({})).await;
    let run = text(&header, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    run
}

async fn link(up: &Server, run: &str, more: Value) -> String {
    let mut body = json!({"for": "Ada", "expiresS": 600});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, made) = up.post(&format!("/api/runs/{run}/gates/approve-plan/links"), &body).await;
    assert_eq!(status, 201, "{made}");
    text(&made, "path")
}

fn yes() -> Value {
    json!({"payload": {"choice": "yes"}})
}

/// Without any key, as the person has none.
async fn follow(up: &Server, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
    let (status, answer) =
        up.request(method, path, None, body.map(|b| b.to_string().into_bytes())).await;
    (status, answer["code"].as_str().unwrap_or("").to_owned())
}

/// The rows once nothing is written any more: the engine notes that a run waits a moment after the run's row says so.
async fn settled(sql: &PgPool) -> Vec<(String, i64)> {
    let mut seen = row_counts(sql).await;
    until("nothing is written", Duration::from_secs(30), async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = row_counts(sql).await;
        std::mem::replace(&mut seen, now.clone()) == now
    })
    .await;
    seen
}

/// It answers neither reading nor replying, and nothing was written.
async fn refused(up: &Server, sql: &PgPool, path: &str, want: (u16, &str), why: &str) {
    let before = settled(sql).await;
    let want = (want.0, want.1.to_owned());
    assert_eq!(follow(up, "GET", path, None).await, want, "{why}");
    assert_eq!(follow(up, "POST", path, Some(&yes())).await, want, "{why}");
    assert_eq!(row_counts(sql).await, before, "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_answers_once_as_its_person_and_reading_it_changes_nothing() {
    let home = Home::new();
    let up = home.up();
    let run = gated(&up, 1).await;
    let output = home.run(&[
        "gate",
        "link",
        &run,
        "approve-plan",
        "--for",
        "Ada Lovelace",
        "--expires",
        "1h",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let url = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert!(url.starts_with(&format!("{}/api/links/", up.url)), "{url}");
    let path = url.strip_prefix(&up.url).unwrap();
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for _ in 0..3 {
        let (status, view) = up.request("GET", path, None, None).await;
        assert_eq!(
            (status, &view["for"], &view["gateKey"]),
            (200, &json!("Ada Lovelace"), &json!("approve-plan"))
        );
        let page = client.get(&url).header("accept", "text/html").send().await.unwrap();
        assert_eq!(page.headers()["referrer-policy"], "no-referrer");
        assert_eq!(page.headers()["cache-control"], "no-store");
        assert!(
            page.headers()["content-security-policy"]
                .to_str()
                .unwrap()
                .contains("default-src 'none'")
        );
        let text = page.text().await.unwrap();
        assert!(text.contains("Ada Lovelace") && text.contains(&run), "{text}");
        assert!(client.head(&url).send().await.unwrap().status().as_u16() < 500);
    }
    assert_eq!(row_counts(&sql).await, before, "mail scanners read links");
    assert_eq!(follow(&up, "POST", path, Some(&yes())).await.0, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let who = "SELECT key_id || ' ' || origin || ' ' || outcome FROM app.human_interactions";
    assert_eq!(texts(&sql, who).await, ["link:Ada Lovelace external accepted"]);
    assert_eq!(
        texts(&sql, "SELECT approved_by FROM app.plan_approvals").await,
        ["link:Ada Lovelace"]
    );
    assert_eq!(count(&sql, "SELECT count(*) FROM app.audit WHERE op = 'gate.link'").await, 1);
    refused(&up, &sql, path, (410, "link_spent"), "it was used").await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_follow_one_link_at_once_exactly_one_answers() {
    let home = Home::new();
    let up = home.up();
    let run = gated(&up, 1).await;
    let path = link(&up, &run, json!({})).await;
    let mut asked = Vec::new();
    for n in 0..20 {
        let body = json!({"payload": {"choice": if n % 2 == 0 { "yes" } else { "no" }}});
        let (up, path) = (&up, &path);
        asked.push(async move { follow(up, "POST", path, Some(&body)).await });
    }
    let answers = futures_util::future::join_all(asked).await;
    assert_eq!(answers.iter().filter(|(status, _)| *status == 200).count(), 1, "{answers:?}");
    assert!(
        answers.iter().all(|(s, code)| *s == 200 || (*s == 410 && code == "link_spent")),
        "{answers:?}"
    );
    let sql = up.sql().await;
    up.wait_terminal(&run).await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.human_interactions").await, 1);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn altered_foreign_expired_and_drifted_links_answer_nothing() {
    let (home, other) = (Home::new(), Home::empty());
    let (up, elsewhere) = (home.up(), other.up());
    let run = gated(&up, 1).await;
    let path = link(&up, &run, json!({})).await;
    let sql = up.sql().await;
    let invalid = (403, "link_invalid");
    let token = path.rsplit('/').next().unwrap();
    for at in [0, 10, token.find('.').unwrap() + 1, token.len() - 1] {
        let mut altered = token.to_owned().into_bytes();
        altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
        let altered = format!("/api/links/{}", String::from_utf8(altered).unwrap());
        refused(&up, &sql, &altered, invalid, "altered").await;
    }
    let theirs = link(&elsewhere, &gated(&elsewhere, 1).await, json!({})).await;
    refused(&up, &sql, &theirs, invalid, "another installation's").await;
    // A claim with the signature of another one.
    let second = link(&up, &gated(&up, 2).await, json!({})).await;
    let swapped = format!(
        "/api/links/{}.{}",
        token.split('.').next().unwrap(),
        second.rsplit('.').next().unwrap()
    );
    refused(&up, &sql, &swapped, invalid, "another link's signature").await;
    let spent = (410, "link_spent");
    let drift = format!("UPDATE app.runs SET plan_digest = repeat('0', 64) WHERE id = '{run}'");
    let digest = texts(&sql, &format!("SELECT plan_digest FROM app.runs WHERE id = '{run}'"))
        .await
        .remove(0);
    tamper(&sql, &drift).await;
    refused(&up, &sql, &path, spent, "the run has another plan now").await;
    tamper(&sql, &format!("UPDATE app.runs SET plan_digest = '{digest}' WHERE id = '{run}'")).await;
    tamper(
        &sql,
        &format!("UPDATE app.human_gates SET plan_digest = repeat('0', 64) WHERE run_id = '{run}'"),
    )
    .await;
    refused(&up, &sql, &path, spent, "the gate asks for another plan now").await;
    tamper(
        &sql,
        &format!("UPDATE app.human_gates SET plan_digest = '{digest}' WHERE run_id = '{run}'"),
    )
    .await;
    assert_eq!(follow(&up, "GET", &path, None).await.0, 200, "as it was");
    tamper(&sql, "UPDATE app.reply_links SET created_at = created_at - interval '2 hours', expires_at = expires_at - interval '1 hour'").await;
    refused(&up, &sql, &path, spent, "expired").await;
    tamper(&sql, &format!("DELETE FROM app.reply_links WHERE run_id = '{run}'")).await;
    refused(&up, &sql, &path, invalid, "no row of it").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_makes_its_own_choice_only_and_ends_with_its_makers_key_and_its_gate() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let run = gated(&up, 1).await;
    let path = link(&up, &run, json!({"choice": "no"})).await;
    let before = row_counts(&sql).await;
    for body in [
        yes(),
        json!({"payload": {"choice": "maybe"}}),
        json!({"payload": {"choice": "no", "surprise": 1}}),
        json!({"payload": {"choice": "no", "rationale": "x".repeat(20_000)}}),
        json!({"payload": "no"}),
        json!({"payload": {"choice": "no"}, "dedupeKey": "mine"}),
        json!({}),
    ] {
        let (status, code) = follow(&up, "POST", &path, Some(&body)).await;
        assert_eq!((status, code.as_str()), (400, "schema_violation"), "{body}");
    }
    let large = json!({"payload": {"choice": "no", "rationale": "x".repeat(2_000_000)}});
    assert_eq!(follow(&up, "POST", &path, Some(&large)).await, (413, "body_too_large".to_owned()));
    assert_eq!(row_counts(&sql).await, before);
    let (id, secret) = up.new_key(&json!({"roles": ["approver"]})).await;
    let links = format!("/api/runs/{run}/gates/approve-plan/links");
    let body = json!({"for": "Bo", "expiresS": 60});
    let (status, of_key) = up.post_as(&secret, &links, &body).await;
    assert_eq!(status, 201, "{of_key}");
    let of_key = text(&of_key, "path");
    let output = home.run(&["key", "revoke", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    refused(&up, &sql, &of_key, (410, "link_spent"), "its maker's key was revoked").await;
    let third = link(&up, &run, json!({})).await;
    let no = json!({"payload": {"choice": "no", "rationale": "not today"}});
    assert_eq!(follow(&up, "POST", &path, Some(&no)).await.0, 200);
    up.wait_terminal(&run).await;
    refused(&up, &sql, &third, (410, "link_spent"), "the gate is decided").await;
    let (status, answer) = up.post(&links, &json!({"for": "Cy", "expiresS": 60})).await;
    assert_eq!((status, &answer["code"]), (409, &json!("state_conflict")));
    for bad in [
        json!({"for": "", "expiresS": 60}),
        json!({"for": "a\u{7}b", "expiresS": 60}),
        json!({"for": "A", "expiresS": 9}),
        json!({"for": "A", "expiresS": 86_401}),
        json!({"for": "<b>", "expiresS": 60}),
    ] {
        assert_eq!(up.post(&links, &bad).await.0, 400, "{bad}");
    }
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_are_bounded_and_never_stand_in_a_links_way() {
    let home = Home::new();
    let up = home.up();
    let run = gated(&up, 1).await;
    let path = link(&up, &run, json!({})).await;
    let mut seen = Vec::new();
    for n in 0..70 {
        seen.push(follow(&up, "GET", &format!("/api/links/guess{n}.x"), None).await);
    }
    assert_eq!(
        seen.iter().filter(|(s, c)| *s == 403 && c == "link_invalid").count(),
        60,
        "{seen:?}"
    );
    assert_eq!(seen[69], (429, "too_many_guesses".to_owned()));
    assert_eq!(follow(&up, "GET", &path, None).await.0, 200);
    assert_eq!(follow(&up, "POST", &path, Some(&yes())).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_reply_in_a_links_name_is_recorded_without_its_link() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let run = gated(&up, 1).await;
    link(&up, &run, json!({})).await;
    let id = texts(&sql, "SELECT id FROM app.reply_links").await.remove(0);
    let insert = |name: &str, dedupe: &str| {
        format!("INSERT INTO app.human_interactions (workflow_id, run_id, gate_key, topic, dedupe_key, payload_hash, payload, origin, outcome, key_id)
                 SELECT workflow_id, run_id, gate_key, topic, '{dedupe}', repeat('0', 64), '{{}}', 'external', 'accepted', 'link:{name}' FROM app.human_gates")
    };
    for (name, dedupe) in [
        ("Ada", "another".to_owned()),
        ("Eve", format!("link:{id}")),
        ("Ada", format!("link:{}", "0".repeat(32))),
    ] {
        assert!(
            sql.execute(sqlx::AssertSqlSafe(insert(name, &dedupe))).await.is_err(),
            "{name} {dedupe}"
        );
    }
    for change in [
        "DELETE FROM app.reply_links",
        "UPDATE app.reply_links SET expires_at = expires_at + interval '1 day'",
        "UPDATE app.reply_links SET name = 'Eve'",
    ] {
        assert!(sql.execute(change).await.is_err(), "{change}");
    }
    assert_eq!(count(&sql, "SELECT count(*) FROM app.human_interactions").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_signs_nothing_until_it_has_the_installations_key() {
    let (home, second) = (Home::new(), Home::empty());
    let up = home.up();
    let run = gated(&up, 1).await;
    let path = link(&up, &run, json!({})).await;
    let url = home.database_url();
    let shim = ["--db", &url, "shim", "--listen", "127.0.0.1:0"];
    let mut other = Server::start(&second, &shim, &[]);
    assert!(!second.path().join("signing.key").exists(), "a key of its own would be worth nothing");
    assert_eq!(follow(&other, "GET", &path, None).await, (503, "unavailable".to_owned()));
    let (status, _) = other.post("/api/webhooks", &json!({"url": "https://example.com/"})).await;
    assert_eq!(status, 503);
    assert_eq!(second.run(&["--db", &url, "key", "signing"]).status.code(), Some(1));
    other.stop();
    std::fs::copy(home.path().join("signing.key"), second.path().join("signing.key")).unwrap();
    assert_eq!(second.run(&["--db", &url, "key", "signing"]).status.code(), Some(0));
    let mut other = Server::start(&second, &shim, &[]);
    assert_eq!(follow(&other, "GET", &path, None).await.0, 200);
    assert_eq!(follow(&other, "POST", &path, Some(&yes())).await.0, 200);
    up.wait_terminal(&run).await;
    // A key that leaked: whatever it signed is void.
    let run = gated(&up, 2).await;
    let path = link(&up, &run, json!({})).await;
    other.stop();
    let replaced = second.run(&["--db", &url, "key", "signing", "--replace"]);
    assert_eq!(replaced.status.code(), Some(0), "{}", said(&replaced));
    let mut other = Server::start(&second, &shim, &[]);
    assert_eq!(follow(&other, "GET", &path, None).await, (403, "link_invalid".to_owned()));
    other.stop();
}

const LAW: &str = "id: lawful\nv: \"1\"\nplan:\n  gate: {key: approve-plan, quorum: 2, self_approval: deny}\n  tasks: [{name: t, value: kept}]\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_its_makers_voice_and_never_one_more() {
    let home = Home::new();
    let up = home.up();
    let header = up.run_recipe(LAW, json!({}), json!({})).await;
    let run = text(&header, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    let body = json!({"for": "Ada", "expiresS": 600});
    let (status, said) = up.post(&format!("/api/runs/{run}/gates/approve-plan/links"), &body).await;
    assert_eq!((status, &said["code"]), (403, &json!("forbidden")), "its maker started the run");
    assert!(text(&said, "error").contains("the key that makes it"), "{said}");
    assert_eq!(row_counts(&sql).await, before, "e6: a link that could never answer is not made");
    let mut votes = Vec::new();
    for role in ["approver", "approver", "operator"] {
        let body = json!({"tenant": "default", "roles": [role], "label": role});
        let (_, secret) = up.new_key(&body).await;
        let links = format!("/api/runs/{run}/gates/approve-plan/links");
        for name in ["Ada", "Bea"] {
            let body = json!({"for": format!("{name} {}", votes.len()), "expiresS": 600});
            let (status, made) = up.post_as(&secret, &links, &body).await;
            match role {
                "approver" => votes.push(text(&made, "path")),
                _ => assert_eq!(status, 403, "an operator approves nothing: {made}"),
            }
        }
    }
    assert_eq!(follow(&up, "POST", &votes[0], Some(&yes())).await.0, 200);
    let (status, code) = follow(&up, "POST", &votes[1], Some(&yes())).await;
    assert_eq!((status, code.as_str()), (409, "state_conflict"), "the same maker's second link");
    assert_eq!(up.get(&format!("/api/runs/{run}")).await.1["status"], "waiting_input");
    assert_eq!(follow(&up, "POST", &votes[2], Some(&yes())).await.0, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    assert_proven(&home);
}

const REACH: &str = "
id: reach
v: '1'
form: {type: object, additionalProperties: false, properties: {repo: {type: string}}}
plan:
  gate: {key: approve-plan, edit: [repo]}
  tasks:
    - name: t
      files: [{from: '${form.repo}', to: /data, access: read-only}]
      exec: {run: cat /data/word, timeout: 30s}
";

/// The host's admin may be given any directory of the host. Whoever edits the plan puts in a name of its
/// own, and must not get with it what only the admin may have.
#[tokio::test(flavor = "multi_thread")]
async fn h10_an_edited_plan_has_no_more_reach_than_its_editor() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (asked, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(asked.path().join("word"), "harmless").unwrap();
    std::fs::write(theirs.path().join("word"), "SECRET-OF-THE-HOST").unwrap();
    let form = json!({"repo": asked.path()});
    let edit = json!({"choice": "yes", "edits": {"repo": theirs.path()}});
    let (_, approver) = up.new_key(&json!({"roles": ["approver"]})).await;
    let leaked =
        "SELECT count(DISTINCT run_id) FROM app.artifacts WHERE inline LIKE '%SECRET-OF-THE-HOST%'";
    for by in ["link", "approver", "admin"] {
        let header = up.run_recipe(REACH, form.clone(), json!({"runKey": by})).await;
        let run = text(&header, "runId");
        up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
        let (path, key, body) = match by {
            "link" => (link(&up, &run, json!({})).await, None, json!({"payload": edit})),
            who => {
                let key = if who == "admin" { &up.key } else { &approver };
                let path = format!("/api/runs/{run}/gates/approve-plan/reply");
                (path, Some(key.as_str()), json!({"payload": edit, "dedupeKey": "d"}))
            }
        };
        let body = Some(body.to_string().into_bytes());
        let (status, answer) = up.request("POST", &path, key, body).await;
        assert_eq!(status, 200, "{by}: {answer}");
        if by == "admin" {
            let end = up.wait_terminal(&run).await;
            assert_eq!(end["status"], "succeeded", "{end}");
            assert_eq!(count(&sql, leaked).await, 1, "the host's admin reads any directory");
            continue;
        }
        // The plan of such an edit is refused, so the run asks once more.
        let again = format!(
            "SELECT count(*) FROM app.human_gates WHERE run_id = '{run}' AND gate_key = 'approve-plan-r2' AND state = 'open'"
        );
        until("it asks once more", Duration::from_secs(60), async || {
            count(&sql, &again).await == 1
        })
        .await;
        let no = json!({"payload": {"choice": "no"}, "dedupeKey": "d"});
        let path = format!("/api/runs/{run}/gates/approve-plan-r2/reply");
        assert_eq!(up.post(&path, &no).await.0, 200);
        assert_ne!(up.wait_terminal(&run).await["status"], "succeeded", "{by}");
        assert_eq!(count(&sql, leaked).await, 0, "{by} read what only the host's admin may");
    }
    // Nobody edited this one: what the host's admin asked for is what runs.
    let header = up.run_recipe(REACH, form, json!({"runKey": "plain"})).await;
    let run = text(&header, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    let path = link(&up, &run, json!({})).await;
    assert_eq!(follow(&up, "POST", &path, Some(&yes())).await.0, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    assert_proven(&home);
}

/// What a task of it stores would be markup, would reorder, and would look like a line of the page's own.
const SHOWN: &str = "id: shown\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks:\n    - {name: t, exec: {run: \"echo '<script>alert(1)</script>' \\u202e && rm -rf /work\\n  task forged\", env: {MODE: \"<b>bold</b>\"}}}\n";

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_link_says_the_public_address_and_its_page_shows_the_plan() {
    let home = Home::new();
    let up = home.up_with(&["--public-url", "https://approve.example/dam/"], &[]);
    let header = up.run_recipe(SHOWN, json!({}), json!({})).await;
    let run = text(&header, "runId");
    up.wait_for(&run, "waiting", |h| h["status"] == "waiting_input").await;
    let made = home.run_json(&["gate", "link", &run, "approve-plan", "--for", "Ada", "--json"]);
    let (url, path) = (text(&made, "url"), text(&made, "path"));
    assert_eq!(url, format!("https://approve.example/dam{path}"));
    let other =
        ["gate", "link", &run, "approve-plan", "--for", "Ada", "--base", "http://a.example"];
    let output = home.run(&other);
    assert!(said(&output).contains("http://a.example/api/links/"), "{}", said(&output));
    // Whoever follows it names the public host, through a proxy that takes its prefix away.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let asked = client.get(format!("{}{path}", up.url)).header("host", "approve.example");
    let page = asked.header("accept", "text/html").send().await.unwrap();
    assert_eq!(page.status().as_u16(), 200);
    let page = page.text().await.unwrap();
    let (_, view) = up.request("GET", &path, None, None).await;
    let lines = view["plan"].as_array().unwrap();
    assert_eq!(view["planLeftOut"], 0);
    for (line, shown) in [
        ("  task t", "<div>  task t</div>"),
        (
            "      | echo '<script>alert(1)</script>' \\u{202e} && rm -rf /work",
            "      | echo &#39;&lt;script&gt;alert(1)&lt;/script&gt;&#39; \\u{202e} &amp;&amp; rm -rf /work</div>",
        ),
        ("      |   task forged", "<div>      |   task forged</div>"),
        ("      MODE=<b>bold</b>", "      MODE=&lt;b&gt;bold&lt;/b&gt;</div>"),
    ] {
        assert!(lines.contains(&json!(line)), "{line}: {lines:#?}");
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("alert(1)</script>") && !page.contains('\u{202e}'), "{page}");
    assert_eq!(follow(&up, "POST", &path, Some(&yes())).await.0, 200);
}

#[test]
fn e6_a_public_address_is_checked_before_anything_starts() {
    let home = Home::empty();
    for bad in ["ftp://a.example", "https://u:p@a.example", "a.example", "https://a.example?x"] {
        let output = home.run(&["up", "--public-url", bad]);
        assert_eq!(output.status.code(), Some(3), "{bad}: {}", said(&output));
        assert!(said(&output).contains("https://approve.example"), "{}", said(&output));
    }
    assert!(!home.path().join("database").exists());
}
