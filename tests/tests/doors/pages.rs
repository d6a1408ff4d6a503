//! What a web page can make a browser send, and what it cannot.

use cofferdam_server::routes::ROUTES;
use cofferdam_tests::{Home, row_counts, text};
use serde_json::json;

use crate::doors::raw::{address, ask};
use crate::support::gates::waiting;
use crate::support::{ended, said, texts};

type Headers<'a> = &'a [(&'a str, &'a str)];

const JSON: (&str, &str) = ("Content-Type", "application/json");
const HELLO: &str = "id: hello\nv: \"1\"\nplan:\n  tasks:\n    - {name: t, exec: {run: \"echo hi\", timeout: 30s}}\n";
const GATED: &str =
    "id: gated\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks: [{name: t, value: kept}]\n";

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_request_in_anothers_name_is_refused_on_every_route() {
    let home = Home::new();
    let up = home.up_with(&["--allow-host", "ci.example"], &[]);
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    let bearer = format!("Bearer {}", up.key);
    let port = address(&up).rsplit(':').next().unwrap();
    let others = [(404, "/nothing", "GET"), (405, "/healthz", "POST")];
    let routes = ROUTES.iter().map(|r| (0, r.path, r.method)).chain(others);
    for (_, path, method) in routes {
        let path = path.replace(['{', '}', '*'], "x");
        for host in ["rebind.evil.example", &format!("rebind.evil.example:{port}"), ""] {
            let headers = [("Host", host), ("Authorization", &bearer), JSON];
            let answer = ask(&up, method, &path, &headers, "{}").await;
            let want = (421, "host_not_allowed".to_owned());
            assert_eq!(answer.code(), want, "{method} {path} {host} {}", answer.text);
        }
    }
    let headers = [("Authorization", bearer.as_str())];
    assert_eq!(ask(&up, "GET", "/api/runs", &headers, "").await.code().0, 421, "no host at all");
    let own = [address(&up), "localhost", "[::1]:1", "ci.example", "CI.EXAMPLE:8443"];
    for host in own {
        let headers = [("Host", host), ("Authorization", bearer.as_str())];
        assert_eq!(ask(&up, "GET", "/api/runs", &headers, "").await.status, 200, "{host}");
    }
    assert_eq!(row_counts(&sql).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_foreign_page_commands_nothing_with_a_key_or_without() {
    let home = Home::new();
    let up = home.up_with(&["--no-auth"], &[]);
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    let yaml = "id: csrf\nv: \"1\"\nplan:\n  tasks:\n    - {name: a, exec: {run: \"true\"}}\n";
    let body = json!({"yaml": yaml}).to_string();
    let host = ("Host", address(&up));
    let bearer = format!("Bearer {}", up.key);
    let own = format!("http://{}", address(&up));
    let foreign = (403, "foreign_origin");
    let pages: &[(Headers<'_>, (u16, &str))] = &[
        // A form, and a fetch without asking first: as an attack did it.
        (&[("Content-Type", "text/plain"), ("Origin", "https://evil.example")], foreign),
        (&[JSON, ("Origin", "https://evil.example")], foreign),
        (&[JSON, ("Origin", "null")], foreign),
        (&[JSON, ("Origin", "http://127.0.0.1:1")], foreign),
        (&[JSON, ("Sec-Fetch-Site", "cross-site")], foreign),
        (&[JSON, ("Sec-Fetch-Site", "same-site")], foreign),
        (&[JSON, ("Origin", &own), ("Sec-Fetch-Site", "cross-site")], foreign),
        // A browser that says nothing of itself.
        (&[("Content-Type", "text/plain")], (415, "unsupported_media_type")),
        (&[("Content-Type", "application/x-www-form-urlencoded")], (415, "unsupported_media_type")),
        (&[("Content-Type", "text/plain; application/json")], (415, "unsupported_media_type")),
        (&[], (415, "unsupported_media_type")),
    ];
    for (headers, want) in pages {
        for key in [None, Some(("Authorization", bearer.as_str()))] {
            let headers: Vec<_> =
                std::iter::once(host).chain(headers.iter().copied()).chain(key).collect();
            let answer = ask(&up, "POST", "/api/recipes/import", &headers, &body).await;
            assert_eq!(answer.code(), (want.0, want.1.to_owned()), "{headers:?} {}", answer.text);
            assert!(!answer.head.contains("access-control"), "{}", answer.head);
        }
    }
    let preflight =
        [host, ("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")];
    let answer = ask(&up, "OPTIONS", "/api/run", &preflight, "").await;
    assert_eq!(answer.code(), (403, "foreign_origin".to_owned()));
    assert_eq!(row_counts(&sql).await, before, "nothing was written");
    // The server's own page, and programs, which send none of these.
    for headers in [
        &[host, JSON, ("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")][..],
        &[host, JSON],
    ] {
        let answer = ask(&up, "POST", "/api/recipes/import", headers, &body).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_without_a_key_one_is_a_submitter_of_one_tenant_and_never_the_hosts_admin() {
    let home = Home::new();
    let allowed = tempfile::tempdir().unwrap();
    std::fs::write(allowed.path().join("in.txt"), "given").unwrap();
    let allowed = allowed.path().to_str().unwrap();
    let up = home.up_with(&["--no-auth", "--allow-dir", allowed], &[]);
    let post = async |path: &str, body: serde_json::Value| {
        up.request("POST", path, None, Some(body.to_string().into_bytes())).await
    };
    let start = async |yaml: String| {
        let (status, made) = post("/api/recipes/import", json!({"yaml": yaml})).await;
        assert_eq!(status, 201, "{made}");
        post("/api/run", json!({"recipeRef": made["recipeRef"], "formData": {}, "opts": {}})).await
    };
    let files = |id: &str, from: &str| {
        format!(
            "id: {id}\nv: \"1\"\nplan:\n  tasks:\n    - {{name: t, files: [{{from: {from}, to: /opt/d}}], exec: {{run: \"ls /opt/d\", timeout: 30s}}}}\n"
        )
    };
    // What it may: runs of its own, with the directories that everybody is given.
    let (status, run) = start(HELLO.to_owned()).await;
    assert_eq!(status, 201, "{run}");
    let header = up.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let (status, run) = start(files("given", allowed)).await;
    assert_eq!(status, 201, "{run}");
    let header = up.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let (status, run) = start(GATED.to_owned()).await;
    assert_eq!(status, 201, "{run}");
    let id = text(&run, "runId");
    up.wait_for(&id, "waiting", |h| h["status"] == "waiting_input").await;
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, said) = post(&format!("/api/runs/{id}/gates/approve-plan/reply"), reply).await;
    assert_eq!(status, 200, "{said}");
    assert_eq!(up.wait_terminal(&id).await["status"], "succeeded");
    let whose = "SELECT DISTINCT tenant_id || ' ' || key_id FROM app.runs";
    assert_eq!(texts(&up.sql().await, whose).await, ["default no-auth"]);
    let is = "SELECT app.is_host_admin('no-auth')::text";
    assert_eq!(texts(&up.sql().await, is).await, ["false"]);
    // What it may not: the host's other directories, keys, configuration, other tenants, cancelling.
    let refused = match start(files("etc", "/etc")).await {
        (201, run) => up.wait_terminal(&text(&run, "runId")).await,
        (_, refusal) => refusal,
    };
    let is_over =
        ["failed", "retries_exceeded"].contains(&refused["status"].as_str().unwrap_or(""));
    assert!(is_over || refused["code"] == "recipe_invalid", "{refused}");
    for (method, path, body) in [
        ("GET", "/api/keys", None),
        ("POST", "/api/keys", Some(json!({"roles": ["admin"]}))),
        ("PUT", "/api/config/limits.ceiling", Some(json!({"value": {}, "scope": "global"}))),
        ("GET", "/api/proofs", None),
        ("POST", "/api/webhooks", Some(json!({"url": "https://evil.example"}))),
    ] {
        let body = body.map(|b| b.to_string().into_bytes());
        let (status, said) = up.request(method, path, None, body).await;
        assert_eq!((status, &said["code"]), (403, &json!("forbidden")), "{method} {path} {said}");
    }
    // A key that is given counts, also a wrong one.
    assert_eq!(up.get("/api/keys").await.0, 200);
    assert_eq!(up.get_as("cfd_0", "/api/runs").await.0, 401);
    crate::support::assert_proven(&home);
}

#[test]
fn c2_no_auth_beyond_loopback_does_not_start() {
    let home = Home::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let output = ended(
            home.command(&["shim", "--no-auth", "--listen", address]),
            std::time::Duration::from_secs(120),
        );
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("127.0.0.1") && text.contains("key create"), "{text}");
        assert!(!home.path().join("endpoint.json").exists());
        let sockets = crate::support::names(home.path());
        assert!(!sockets.iter().any(|name| name.starts_with("api.sock")), "{sockets:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_reply_link_opens_from_a_mail_and_answers_from_its_own_page_alone() {
    let home = Home::new();
    let up = home.up_with(&["--allow-host", "approve.example"], &[]);
    let run = waiting(&up, GATED, json!({}), json!({})).await;
    let links = format!("/api/runs/{}/gates/approve-plan/links", text(&run, "runId"));
    let (status, made) = up.post(&links, &json!({"for": "Ada", "expiresS": 600})).await;
    assert_eq!(status, 201, "{made}");
    let path = text(&made, "path");
    let host = ("Host", "approve.example");
    let click = [
        host,
        ("Accept", "text/html"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
    ];
    let page = ask(&up, "GET", &path, &click, "").await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(page.text.contains("<button value=\"yes\">"), "{}", page.text);
    let yes = json!({"payload": {"choice": "yes"}}).to_string();
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    for headers in [
        &[host, JSON, ("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")][..],
        &[
            host,
            ("Content-Type", "text/plain"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "navigate"),
            ("Sec-Fetch-Dest", "document"),
        ],
    ] {
        let answer = ask(&up, "POST", &path, headers, &yes).await;
        assert_eq!(answer.code(), (403, "foreign_origin".to_owned()), "{headers:?}");
    }
    assert_eq!(row_counts(&sql).await, before);
    // As the page's script sends it; a proxy that speaks TLS stands before the server.
    let own =
        [host, JSON, ("Origin", "https://approve.example"), ("Sec-Fetch-Site", "same-origin")];
    let answer = ask(&up, "POST", &path, &own, &yes).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(up.wait_terminal(&text(&run, "runId")).await["status"], "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_without_a_key_nobody_answers_a_gate_of_the_hosts_admin() {
    let home = Home::new();
    let up = home.up_with(&["--no-auth"], &[]);
    let header = up.run_recipe(GATED, json!({}), json!({})).await;
    let id = text(&header, "runId");
    up.wait_for(&id, "waiting", |h| h["status"] == "waiting_input").await;
    let keyless = async |path: &str, body: serde_json::Value| {
        up.request("POST", path, None, Some(body.to_string().into_bytes())).await
    };
    let gate = format!("/api/runs/{id}/gates/approve-plan");
    for (n, choice) in ["yes", "no"].iter().enumerate() {
        let reply = json!({"payload": {"choice": choice}, "dedupeKey": format!("k{n}")});
        let (status, said) = keyless(&format!("{gate}/reply"), reply).await;
        assert_eq!((status, &said["code"]), (403, &json!("forbidden")), "{said}");
        assert!(said.to_string().contains("--key-file"), "{said}");
    }
    let approve = json!({"approvedBy": "me"});
    let (status, said) = keyless(&format!("/api/runs/{id}/approve-plan"), approve).await;
    assert_eq!(status, 403, "{said}");
    let event = json!({"workflowId": header["workflowID"], "gateKey": "approve-plan", "topic": "human:approve-plan",
        "payload": {"choice": "yes"}, "dedupeKey": "k9", "origin": "external"});
    let (status, said) = keyless("/api/events/hitl", event).await;
    assert_eq!((status, &said["code"]), (403, &json!("forbidden")), "{said}");
    // A link that it makes speaks with its voice.
    let (status, link) =
        keyless(&format!("{gate}/links"), json!({"for": "me", "expiresS": 60})).await;
    if status == 201 {
        let path = text(&link, "path");
        let (status, said) = keyless(&path, json!({"payload": {"choice": "yes"}})).await;
        assert!(status >= 400, "{said}");
    }
    assert_eq!(up.get(&format!("/api/runs/{id}")).await.1["status"], "waiting_input");
    let reply = json!({"payload": {"choice": "yes"}, "dedupeKey": "k"});
    let (status, said) = up.post(&format!("{gate}/reply"), &reply).await;
    assert_eq!(status, 200, "{said}");
    assert_eq!(up.wait_terminal(&id).await["status"], "succeeded");
}
