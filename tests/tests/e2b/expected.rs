//! What clients of E2B expect, found by E2B's own tests and by programs that use them.

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};

use base64::Engine as _;
use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::{Home, text};
use serde_json::{Value, json};

use super::built::{built, run};
use super::{PYTHON, by_python, gone};
use crate::support::said;

#[tokio::test]
async fn c3_c9_one_object_goes_on_after_a_pause_and_hears_what_happened() {
    by_python("again.py", PYTHON[0], None).await;
}

#[tokio::test]
async fn r53_r55_r57_r58_r60_r62_r63_what_people_reported_holds_by_the_python_client() {
    by_python("reported.py", PYTHON[0], None).await;
}

#[tokio::test]
async fn c4_a_build_is_named_by_its_id_as_by_a_tag() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let bob = Caller::of(&server, "bob").await;
    let (template, end) = built(&ann, "web", json!([run("echo 1 > ~/made")])).await;
    assert_eq!(end["status"], "ready", "{end}");
    let first = text(&end, "buildID");
    let asked = |name: String| json!({"templateID": name, "timeout": 60});
    for name in ["web", template.as_str()] {
        let (id, _) = ann.create(asked(format!("{name}:{first}"))).await;
        ann.kill(&id).await;
    }
    // The id of a build is a source of tags too; by it the build stays while another one is the default.
    let tag = json!({"target": format!("web:{first}"), "tags": ["one"]});
    let (status, tagged) = ann.api("POST", "/templates/tags", Some(tag)).await;
    assert_eq!((status, text(&tagged, "buildID")), (201, first.clone()));
    let (_, end) = built(&ann, "web", json!([run("echo 2 > ~/made")])).await;
    let second = text(&end, "buildID");
    for (build, wanted) in [(&first, "MQo="), (&second, "Mgo=")] {
        let (id, token) = ann.create(asked(format!("web:{build}"))).await;
        let said = ann.started((&id, &token), "/bin/cat", &["/home/user/made"]).await;
        assert!(said.contains(wanted), "{build}: {said}");
        ann.kill(&id).await;
    }
    // A build whose files are erased with its last tag, one that never was, and another tenant's.
    let untagged = json!({"name": "web", "tags": ["one"]});
    assert_eq!(ann.api("DELETE", "/templates/tags", Some(untagged)).await.0, 204);
    let never = "00000000-0000-4000-8000-000000000000".to_owned();
    for (who, build) in [(&ann, &first), (&ann, &never), (&bob, &second)] {
        let refused = who.api("POST", "/v2/sandboxes", Some(asked(format!("web:{build}")))).await;
        assert_eq!((refused.0, &refused.1["code"]), (404, &json!(404)), "{build} {refused:?}");
    }
    gone(home, server).await;
}

#[tokio::test]
async fn c9_routes_of_e2b_that_are_not_here_answer_in_its_shape() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    for path in
        ["/events", "/access-tokens", "/api-keys", "/nodes", "/nodes/n", "/admin/teams/t/api-keys"]
    {
        let (status, said) = ann.api("GET", path, None).await;
        assert_eq!((status, &said["code"]), (400, &json!(400)), "{path} {said}");
        assert!(text(&said, "message").starts_with("not supported: "), "{path} {said}");
        assert_eq!(answered(ann.http.get(format!("{}{path}", ann.url))).await.0, 401, "{path}");
    }
    let (status, said) = ann.api("GET", "/v2/nothing", None).await;
    assert_eq!((status, &said["code"]), (404, &json!(404)), "{said}");
    gone(home, server).await;
}

#[tokio::test]
async fn c9_links_and_domains_follow_what_the_operator_said() {
    let home = Home::new();
    let said = ["--public-url", "https://ci.example/coffer", "--allow-host", "api.own.example"];
    let server = home.up_with(&[&said[..], &["--allow-host", "own.example"]].concat(), &[]);
    let ann = Caller::of(&server, "ann").await;
    let (template, _) = ann.open_build("web").await;
    let path = format!("/templates/{template}/files/{}", "a".repeat(64));
    let (status, link) = ann.api("GET", &path, None).await;
    let begins = format!("https://ci.example/coffer{path}?signature=");
    assert!(status == 201 && text(&link, "url").starts_with(&begins), "{link}");
    let made = async |host: &str| {
        let request = ann.http.post(format!("{}/v2/sandboxes", ann.url)).header("host", host);
        let request = request.header("x-api-key", &ann.key);
        answered(request.json(&json!({"templateID": "base", "timeout": 60}))).await
    };
    for (host, domain) in
        [("api.own.example:7443", "own.example:7443"), ("ci.example", "ci.example")]
    {
        let (status, made) = made(host).await;
        assert_eq!((status, text(&made, "domain")), (201, domain.to_owned()), "{made}");
        // The name that clients make of it is one of this server's.
        let id = text(&made, "sandboxID");
        let health = ann.http.get(format!("{}/health", ann.url));
        let health = health.header("host", format!("49983-{id}.{domain}"));
        assert_eq!(answered(health).await.0, 204, "{domain}");
        ann.kill(&id).await;
    }
    gone(home, server).await;
}

#[tokio::test]
async fn c10_a_creation_that_only_the_end_of_others_makes_room_for_is_refused_early() {
    let home = Home::new();
    let server = home.up_with(&["--memory-mb", "900"], &[]);
    let ann = Caller::of(&server, "ann").await;
    let body = json!({"templateID": "base", "timeout": 120});
    let (id, _) = ann.create(body.clone()).await;
    let create = || {
        let request = ann.http.post(format!("{}/v2/sandboxes", ann.url));
        request.header("x-api-key", &ann.key).json(&body).send()
    };
    let since = Stopwatch::start();
    for refused in futures_util::future::join_all((0..40).map(|_| create())).await {
        let refused = refused.unwrap();
        assert_eq!(refused.status().as_u16(), 503);
        let after = refused.headers().get("retry-after").unwrap().to_str().unwrap().to_owned();
        let said: Value = refused.json().await.unwrap();
        assert!(after.parse::<u64>().is_ok() && text(&said, "message").contains("kill"), "{said}");
    }
    assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
    // One that ends meanwhile makes room for the one that waits.
    let (made, ()) = tokio::join!(create(), async {
        clock::sleep(Duration::from_secs(2)).await;
        ann.kill(&id).await;
    });
    let made = made.unwrap();
    assert_eq!(made.status().as_u16(), 201);
    ann.kill(&text(&made.json().await.unwrap(), "sandboxID")).await;
    gone(home, server).await;
}

#[tokio::test]
async fn r62_a_project_of_a_thousand_files_is_sent_in_one_request() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 240})).await;
    let mut body = String::new();
    for n in 0..1_000 {
        let head = format!(
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/home/user/p/d{}/f{n}\"\r\n\r\n{n}\r\n",
            n % 50
        );
        body.push_str(&head);
    }
    body.push_str("--x--\r\n");
    let request = ann.http.post(format!("{}/files", ann.url)).header("e2b-sandbox-id", &id);
    let request = request.header("x-access-token", &token);
    let request = request.header("content-type", "multipart/form-data; boundary=x").body(body);
    let (status, written) = answered(request).await;
    assert_eq!((status, written.as_array().map(Vec::len)), (200, Some(1_000)));
    let sum =
        "n=$(find /home/user/p -type f | xargs cat | wc -c); echo $n $(cat /home/user/p/d49/f999)";
    let said = ann.started((&id, &token), "/bin/bash", &["-c", sum]).await;
    let wanted = base64::engine::general_purpose::STANDARD.encode("2890 999\n");
    assert!(said.contains(&wanted), "{said}");
    // The kernel's own files have their bytes, too, though they say that they have none.
    let kernel = ann.download((&id, &token), "/proc/sys/kernel/ostype");
    assert_eq!(answered(kernel).await, (200, json!("Linux\n")));
    // Its agent's own are as closed as they are to root inside.
    for own in ["environ", "maps", "auxv"] {
        let (status, answer) =
            answered(ann.download((&id, &token), &format!("/proc/1/{own}"))).await;
        assert!(status == 500 && text(&answer, "message").contains("denied"), "{own}: {answer}");
    }
    ann.kill(&id).await;
    gone(home, server).await;
}

/// E2B's clients have no network at all here, until the tenant's admin says which names `allow_internet_access` means.
#[tokio::test]
async fn the_network_is_as_with_e2b_where_its_tenant_says_so() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let asked = async |more: Value| {
        let mut body = json!({"templateID": "base", "timeout": 60});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (id, _) = ann.create(body).await;
        let (_, detail) = ann.api("GET", &format!("/sandboxes/{id}"), None).await;
        ann.kill(&id).await;
        detail["network"]["allowOut"].clone()
    };
    let set = |key: &str, value: &str| {
        let done = home.run(&["config", "set", key, value, "--global"]);
        assert!(done.status.success(), "{}", said(&done));
    };
    set("egress.exec.allowed", r#"["a.example", "b.example"]"#);
    assert_eq!(asked(json!({"allow_internet_access": true})).await, json!([]));
    set("e2b.internet", "true");
    let all = json!(["a.example", "b.example"]);
    assert_eq!(asked(json!({"allow_internet_access": true})).await, all);
    assert_eq!(asked(json!({})).await, all);
    for (more, wanted) in [
        (json!({"allow_internet_access": false}), json!([])),
        (json!({"network": {"denyOut": ["0.0.0.0/0"]}}), json!([])),
        (json!({"network": {"allowOut": ["a.example"]}}), json!(["a.example"])),
    ] {
        assert_eq!(asked(more.clone()).await, wanted, "{more}");
    }
    set("e2b.internet", "null");
    assert_eq!(asked(json!({})).await, json!([]));
    gone(home, server).await;
}
