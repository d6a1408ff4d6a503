//! Templates that tenants build by E2B's API: by its own clients, and by hand where they would not ask so.
//!
//! One file: one server builds for all of them, since a build is what takes time.

use std::fs;
use std::time::Duration;

use base64::Engine as _;
use cofferdam_tests::e2b::{Caller, answered};
use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

use super::interpreter::Lent;
use super::{JAVASCRIPT, PYTHON, by_javascript, by_python_as, gone, older};
use crate::support::has_class;
use crate::support::{count, texts, until};

pub(super) const SOON: Duration = Duration::from_secs(60);
pub(super) const HASH: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

#[tokio::test]
async fn templates_are_built_by_the_python_client() {
    by_python_as("templates.py", "sync", PYTHON[0], Some("sync-templates")).await;
}

#[tokio::test]
async fn templates_are_built_by_the_asynchronous_python_client() {
    by_python_as("templates.py", "async", PYTHON[0], Some("async-templates")).await;
}

#[tokio::test]
async fn templates_are_built_by_the_javascript_client() {
    by_javascript("templates.mjs", JAVASCRIPT[0], Some("javascript-templates")).await;
}

#[tokio::test]
async fn templates_are_built_by_older_clients() {
    for version in older(&PYTHON) {
        by_python_as("templates.py", "sync", version, None).await;
    }
    for version in older(&JAVASCRIPT) {
        by_javascript("templates.mjs", version, None).await;
    }
}

/// A build that waits for its steps: its template and its path.
pub(super) async fn opened(ann: &Caller, name: &str) -> (String, String) {
    let (template, build) = ann.open_build(name).await;
    let path = format!("/v2/templates/{template}/builds/{build}");
    (template, path)
}

/// A build from `base` with these steps, followed to its end: its template and what is said of it.
pub(super) async fn built(ann: &Caller, name: &str, steps: Value) -> (String, Value) {
    let (template, path) = opened(ann, name).await;
    let (status, why) =
        ann.api("POST", &path, Some(json!({"fromTemplate": "base", "steps": steps}))).await;
    assert_eq!(status, 202, "{why}");
    let end = ended(ann, &path).await;
    (template, end)
}

/// A sandbox of a template says this.
async fn assert_says(ann: &Caller, template: &str, command: &str, wanted: &str) {
    let (id, token) = ann.create(json!({"templateID": template, "timeout": 60})).await;
    let said = ann.started((&id, &token), "/bin/bash", &["-c", command]).await;
    let wanted = base64::engine::general_purpose::STANDARD.encode(wanted);
    assert!(said.contains(&wanted), "{said}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
}

#[tokio::test]
async fn a_build_begins_with_an_image_or_a_template_of_the_host() {
    let (home, lent) = match Lent::home() {
        Ok(lent) => lent,
        Err(why) => return not_run("builds from images of this host", &why),
    };
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let wanted = "echo \"$(head -c 12 /etc/os-release)$(cat ~/made)\"";
    for (name, from) in [
        ("image", json!({"fromImage": "docker.io/library/template/base:latest"})),
        ("stand-in", json!({"fromImage": "e2bdev/base"})),
        ("host", json!({"fromTemplate": "base"})),
        // Its own program, which a build on top of it keeps, in as much memory as it needs.
        ("kernel", json!({"fromImage": "e2bdev/code-interpreter:latest"})),
    ] {
        let (_, path) = opened(&ann, name).await;
        let mut body = json!({"steps": [run("echo made > ~/made; pip --version > /dev/null")]});
        body.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
        assert_eq!(ann.api("POST", &path, Some(body)).await.0, 202);
        let end = ended(&ann, &path).await;
        assert_eq!(end["status"], "ready", "{end}");
        assert_says(&ann, name, wanted, "PRETTY_NAME=made\n").await;
    }
    let health = "curl -sf --noproxy '*' -o /dev/null http://127.0.0.1:49999/health && echo up";
    assert_says(&ann, "kernel", health, "up\n").await;
    let (_, path) = opened(&ann, "nothing").await;
    assert_eq!(ann.api("POST", &path, Some(json!({"fromImage": "none:1"}))).await.0, 202);
    let end = ended(&ann, &path).await;
    assert!(end["reason"]["message"].as_str().unwrap().contains("template/base"), "{end}");
    assert_eq!(end["reason"]["step"], "base", "{end}");
    drop(lent);
    gone(home, server).await;
}

#[tokio::test]
async fn a_template_is_built_in_the_class_gvisor() {
    if !has_class("gvisor") {
        return;
    }
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await.in_class("gvisor");
    let (_, end) = built(&ann, "web", json!([run("echo made > ~/made")])).await;
    assert_eq!(end["status"], "ready", "{end}");
    let sql = server.sql().await;
    let classes = "SELECT DISTINCT effective->>'isolationClass' FROM app.sbx_runs WHERE effective IS NOT NULL";
    assert_eq!(texts(&sql, classes).await, ["gvisor"]);
    sql.close().await;
    assert_says(&ann, "web", "cat ~/made", "made\n").await;
    // Its files are those of a layer, so another class takes them too.
    let plain = Caller { class: None, ..ann };
    assert_says(&plain, "web", "cat ~/made", "made\n").await;
    gone(home, server).await;
}

/// What is said of a build once it is over.
pub(super) async fn ended(ann: &Caller, path: &str) -> Value {
    let path = format!("{}/status", path.trim_start_matches("/v2"));
    let end = std::sync::Mutex::new(Value::Null);
    until("the build is over", SOON, async || {
        let (status, said) = ann.api("GET", &path, None).await;
        assert_eq!(status, 200, "{said}");
        let is_over = ["ready", "error"].contains(&said["status"].as_str().unwrap());
        *end.lock().unwrap() = said;
        is_over
    })
    .await;
    end.into_inner().unwrap()
}

pub(super) fn run(command: &str) -> Value {
    json!({"type": "RUN", "args": [command], "force": false})
}

pub(super) fn copy(from: &str, to: &str) -> Value {
    json!({"type": "COPY", "args": [from, to, "", ""], "filesHash": HASH, "force": false})
}

/// Sends an archive to the link that the server gives for it, without a key; its status.
pub(super) async fn sent(ann: &Caller, template: &str, bytes: Vec<u8>) -> (u16, Value) {
    ann.send_files(template, HASH, bytes).await
}

/// A tar of entries: kind, name, and what a link leads to or a file has.
pub(super) fn tar(entries: &[(tar::EntryType, &str, &str)]) -> Vec<u8> {
    let mut all = tar::Builder::new(Vec::new());
    for (kind, name, what) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        // Names as they are, also those that a builder refuses.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        let body = match kind {
            tar::EntryType::Regular => what.as_bytes(),
            _ => {
                header.set_link_name_literal(what).unwrap();
                b""
            }
        };
        header.set_size(u64::try_from(body.len()).unwrap());
        header.set_cksum();
        all.append(&header, body).unwrap();
    }
    all.into_inner().unwrap()
}

pub(super) async fn assert_refused(asked: (u16, Value), status: u16, why: &str) {
    assert_eq!(asked.0, status, "{}", asked.1);
    let message = asked.1["message"].as_str().unwrap();
    assert!(message.contains(why), "{message}");
    assert_eq!(asked.1["code"], status, "{}", asked.1);
}

#[tokio::test]
async fn what_a_build_is_not_given_rightly_is_refused_by_name() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    for (body, why) in [
        (json!({}), "name"),
        (json!({"name": "We b"}), "name"),
        (json!({"name": "x", "cpuCount": 0}), "cpuCount"),
        (json!({"name": "x", "tags": ["a b"]}), "tags"),
        (json!({"name": "x", "surprise": 1}), "surprise"),
    ] {
        assert_refused(ann.api("POST", "/v3/templates", Some(body)).await, 400, why).await;
    }
    assert_refused(
        ann.api("POST", "/v3/templates", Some(json!({"name": "base"}))).await,
        409,
        "host",
    )
    .await;
    let (template, path) = opened(&ann, "web").await;
    let many: Vec<Value> = (0..300).map(|_| run("true")).collect();
    for (steps, why) in [
        (json!([{"type": "SLEEP", "args": ["1"]}]), "step 1 (SLEEP)"),
        (json!([run("true"), {"type": "RUN"}]), "step 2 (RUN)"),
        (json!([{"type": "RUN", "args": "true"}]), "the body"),
        (json!([{"type": "COPY", "args": ["a", "b"]}]), "filesHash"),
        (json!([{"type": "COPY", "args": ["../a", "b"], "filesHash": HASH}]), "leads out"),
        (json!([{"type": "ENV", "args": ["A"]}]), "step 1 (ENV)"),
        (json!([{"type": "USER", "args": ["daemon"]}]), "daemon"),
        (json!(many), "steps: 300"),
        (json!([copy("a", "b")]), "not uploaded"),
    ] {
        let body = json!({"fromTemplate": "base", "steps": steps});
        assert_refused(ann.api("POST", &path, Some(body)).await, 400, why).await;
    }
    for (body, why) in [
        (json!({"steps": []}), "fromImage"),
        (json!({"fromImage": "a", "fromTemplate": "b"}), "fromImage"),
        (json!({"fromImage": "a", "fromImageRegistry": {"type": "registry"}}), "fromImageRegistry"),
        (json!({"fromTemplate": "base", "startCmd": "x\u{0}"}), "startCmd"),
    ] {
        assert_refused(ann.api("POST", &path, Some(body)).await, 400, why).await;
    }
    let none = "/v2/templates/aaaaaaaaaaaaaaaaaaaa/builds/00000000-0000-0000-0000-000000000000";
    let body = || Some(json!({"fromTemplate": "base"}));
    assert_refused(ann.api("POST", none, body()).await, 404, "not found").await;
    assert_refused(ann.api("POST", "/v2/templates/x/builds/y", body()).await, 404, "not found")
        .await;
    let link = |hash: &str| format!("/templates/{template}/files/{hash}");
    assert_refused(ann.api("GET", &link("x"), None).await, 400, "SHA-256").await;
    routes(&ann, &template).await;
    // What only reads is given nothing that writes (F9), and a link ends with the key that asked for it.
    let named = |role: &str| json!({"tenant": "ann", "roles": [role], "format": "e2b"});
    let with =
        |key: String| Caller { key, http: ann.http.clone(), url: ann.url.clone(), class: None };
    for role in ["auditor", "approver", "operator"] {
        let (_, key) = server.new_key(&named(role)).await;
        assert_refused(with(key).api("GET", &link(HASH), None).await, 403, "submitter").await;
    }
    let (id, key) = server.new_key(&named("submitter")).await;
    let (status, given) = with(key).api("GET", &link(HASH), None).await;
    assert_eq!(status, 201, "{given}");
    let path_of = format!("/api/keys/{id}?tenant=ann");
    let (status, said) = server.request("DELETE", &path_of, Some(&server.key), None).await;
    assert_eq!(status, 200, "{said}");
    let late = answered(ann.http.put(text(&given, "url")).body("x"));
    assert_refused(late.await, 403, "revoked").await;
    // A link is for its archive alone, and is no key.
    let put = |url: String| answered(ann.http.put(url).body("x"));
    assert_refused(put(format!("{}{}", ann.url, link(HASH))).await, 403, "link").await;
    assert_refused(put(format!("{}{}?signature=x", ann.url, link(HASH))).await, 403, "link").await;
    assert_refused(sent(&ann, &template, Vec::new()).await, 400, "empty").await;
    // All that was refused left the build as it was.
    assert_eq!(ann.api("POST", &path, body()).await.0, 202);
    assert_eq!(ended(&ann, &path).await["status"], "ready");
    assert_refused(ann.api("POST", &path, body()).await, 409, "ready already").await;
    gone(home, server).await;
}

async fn routes(ann: &Caller, template: &str) {
    for (method, path, why) in [
        ("POST", "/templates".to_owned(), "older API"),
        ("POST", "/v2/templates".to_owned(), "older API"),
        ("POST", format!("/templates/{template}"), "older API"),
        ("POST", format!("/templates/{template}/builds/{HASH}"), "older API"),
        ("PUT", format!("/templates/{template}"), "not supported"),
        ("GET", "/v2/templates?limit=101".to_owned(), "limit"),
        ("GET", "/v2/templates?nextPage=1".to_owned(), "nextPage"),
        ("GET", format!("/templates/{template}?nextToken=x"), "nextToken"),
        ("GET", format!("/templates/{template}/tags/exists"), "tag is missing"),
        ("GET", format!("/templates/{template}/tags/groups?sort=x"), "sort"),
        ("GET", format!("/templates/{template}/tags/default/assignments?cursor=x"), "cursor"),
    ] {
        assert_refused(ann.api(method, &path, None).await, 400, why).await;
    }
}

#[tokio::test]
async fn an_archive_reaches_nothing_beyond_its_place() {
    use tar::EntryType::{Link, Regular, Symlink};
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (template, _) = opened(&ann, "hostile").await;
    for (entries, why) in [
        (&[(Regular, "../up", "x")][..], "up"),
        (&[(Regular, "/etc/over", "x")], "over"),
        (&[(Symlink, "a", "/etc"), (Regular, "a/over", "x")], "a"),
        (&[(Link, "a", "/etc/passwd")], "a"),
    ] {
        assert_eq!(sent(&ann, &template, tar(entries)).await.0, 200);
        let (_, end) = built(&ann, "hostile", json!([copy(".", "/opt/x")])).await;
        assert_eq!(
            (&end["status"], &end["reason"]["step"]),
            (&json!("error"), &json!("1")),
            "{end}"
        );
        assert!(end["reason"]["message"].as_str().unwrap().contains(why), "{end}");
    }
    for bytes in [
        b"no tar at all".to_vec(),
        tar(&[(Regular, "a", "x")])[..700].to_vec(),
        vec![0x1f, 0x8b, 0, 0],
    ] {
        assert_eq!(sent(&ann, &template, bytes).await.0, 200);
        let (_, end) = built(&ann, "hostile", json!([copy(".", "/opt/x")])).await;
        assert_eq!(end["status"], "error", "{end}");
    }
    // Each upload is on record with the key for which its link was made.
    let sql = server.sql().await;
    let uploads = "SELECT count(*) FROM app.audit a JOIN app.api_keys k USING (key_id)
                    WHERE a.op = 'template.upload' AND a.tenant_id = 'ann' AND (a.detail->>'bytes')::bigint > 0";
    assert_eq!(count(&sql, uploads).await, 7);
    sql.close().await;
    // A link within an archive is copied as one.
    assert_eq!(
        sent(&ann, &template, tar(&[(Regular, "f", "x"), (Symlink, "l", "/etc/passwd")])).await.0,
        200
    );
    let steps =
        json!([copy(".", "/opt/x"), run("test -L /opt/x/l && test \"$(cat /opt/x/f)\" = x")]);
    assert_eq!(built(&ann, "hostile", steps).await.1["status"], "ready");
    let (_, end) = built(&ann, "hostile", json!([copy("none*", "/opt/x")])).await;
    assert_eq!(end["reason"]["step"], "1", "{end}");
    // What is small when packed and large when not meets the layer's bound.
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut header = tar::Header::new_gnu();
    header.set_path("big").unwrap();
    header.set_size(1 << 30);
    header.set_cksum();
    std::io::Write::write_all(&mut packer, header.as_bytes()).unwrap();
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), 1 << 30), &mut packer).unwrap();
    assert_eq!(sent(&ann, &template, packer.finish().unwrap()).await.0, 200);
    let (_, end) = built(&ann, "hostile", json!([copy(".", "/opt/x")])).await;
    assert_eq!(end["status"], "error", "{end}");
    gone(home, server).await;
}

#[tokio::test]
async fn tenants_have_templates_of_their_own() {
    let home = Home::new();
    let server = home.up();
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let (template, end) = built(&ann, "web", json!([run("echo anns > ~/whose")])).await;
    assert_eq!(end["status"], "ready", "{end}");
    let build = text(&end, "buildID");
    let sandbox = |name: &str| Some(json!({"templateID": name, "timeout": 60}));
    for name in [template.clone(), "web".to_owned(), "web:default".to_owned()] {
        assert_eq!(bob.api("POST", "/v2/sandboxes", sandbox(&name)).await.0, 404, "{name}");
        ann.create(json!({"templateID": name, "timeout": 60})).await;
    }
    for (method, path, body) in [
        ("GET", format!("/templates/{template}/builds/{build}/status"), None),
        (
            "POST",
            format!("/v2/templates/{template}/builds/{build}"),
            Some(json!({"fromTemplate": "base"})),
        ),
        ("GET", format!("/templates/{template}/files/{HASH}"), None),
        ("GET", format!("/templates/{template}/tags"), None),
        ("GET", format!("/templates/{template}"), None),
        ("GET", "/templates/web".to_owned(), None),
        ("GET", format!("/templates/{template}/builds/{build}/logs"), None),
        ("GET", format!("/templates/{template}/tags/count"), None),
        ("GET", format!("/templates/{template}/tags/exists?tag=default"), None),
        ("GET", format!("/templates/{template}/tags/groups"), None),
        ("GET", format!("/templates/{template}/tags/default/assignments"), None),
        ("GET", "/templates/aliases/web".to_owned(), None),
        ("DELETE", format!("/templates/{template}"), None),
        ("POST", "/templates/tags".to_owned(), Some(json!({"target": "web", "tags": ["x"]}))),
        ("DELETE", "/templates/tags".to_owned(), Some(json!({"name": "web", "tags": ["x"]}))),
    ] {
        let (status, answer) = bob.api(method, &path, body).await;
        assert_eq!((status, &answer["code"]), (404, &json!(404)), "{method} {path} {answer}");
    }
    // By our own API, too.
    let asked = ann.http.post(format!("{}/api/sandboxes", ann.url)).bearer_auth(&ann.key);
    let (status, made) = answered(asked.json(&json!({"template": "web", "timeoutS": 60}))).await;
    assert_eq!((status, &made["template"]), (201, &json!(template)), "{made}");
    // The same name is another template.
    let (other, end) = built(&bob, "web", json!([])).await;
    assert!(end["status"] == "ready" && other != template, "{end}");
    let names = |all: &Value| -> Vec<String> {
        all.as_array().unwrap().iter().map(|one| text(one, "templateID")).collect()
    };
    let (_, all) = bob.api("GET", "/templates", None).await;
    assert_eq!(names(&all), ["base".to_owned(), other.clone()], "{all}");
    let (_, all) = bob.api("GET", "/v2/templates", None).await;
    assert_eq!(names(&all), ["base".to_owned(), other], "{all}");
    // A key that only reads builds nothing.
    let body = json!({"tenant": "ann", "roles": ["auditor"], "format": "e2b"});
    let reader = Caller { key: server.new_key(&body).await.1, ..Caller::of(&server, "ann").await };
    assert_eq!(reader.api("POST", "/v3/templates", Some(json!({"name": "x"}))).await.0, 403);
    assert_eq!(reader.api("GET", "/templates/aliases/web", None).await.0, 200);
    gone_with_sandboxes(home, server, &[&ann]).await;
}

#[tokio::test]
async fn a_build_that_finds_no_room_says_so() {
    let home = Home::new();
    // Room for one sandbox, and no second one.
    let server = home.up_with(&["--memory-mb", "900"], &[]);
    let ann = Caller::of(&server, "ann").await;
    let (id, _) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
    let (_, path) = opened(&ann, "web").await;
    let (status, said) = ann.api("POST", &path, Some(json!({"fromTemplate": "base"}))).await;
    assert_eq!(status, 202, "{said}");
    let end = ended(&ann, &path).await;
    assert_eq!(
        (&end["status"], &end["reason"]["step"]),
        (&json!("error"), &json!("base")),
        "{end}"
    );
    assert!(end["reason"]["message"].as_str().unwrap().contains("no room"), "{end}");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    assert_eq!(built(&ann, "web", json!([])).await.1["status"], "ready");
    gone(home, server).await;
}

/// Kills every sandbox of these first.
async fn gone_with_sandboxes(home: Home, server: Server, callers: &[&Caller]) {
    for caller in callers {
        let (_, all) = caller.api("GET", "/v2/sandboxes", None).await;
        for one in all.as_array().unwrap() {
            let path = format!("/sandboxes/{}", text(one, "sandboxID"));
            assert_eq!(caller.api("DELETE", &path, None).await.0, 204);
        }
    }
    gone(home, server).await;
}

#[tokio::test]
async fn one_build_of_a_template_runs_at_a_time_and_its_end_frees_the_next() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (template, first) = opened(&ann, "web").await;
    let (same, second) = opened(&ann, "web").await;
    assert_eq!(template, same);
    let steps = |text: &str| Some(json!({"fromTemplate": "base", "steps": [run(text)]}));
    // Asked for twice at once, it begins once.
    let (one, two) = tokio::join!(
        ann.api("POST", &first, steps("sleep 60")),
        ann.api("POST", &first, steps("sleep 60"))
    );
    let mut both = [one.0, two.0];
    both.sort_unstable();
    assert_eq!(both, [202, 409], "{} {}", one.1, two.1);
    assert_refused(ann.api("POST", &second, steps("true")).await, 409, "another build").await;
    assert_refused(
        ann.api("DELETE", &format!("/templates/{template}"), None).await,
        409,
        "running",
    )
    .await;
    // Whoever kills its sandbox ends it.
    let (_, all) = ann.api("GET", "/v2/sandboxes", None).await;
    assert!(all[0]["metadata"]["templateBuild"].is_string(), "{all}");
    let sandbox = text(&all[0], "sandboxID");
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{sandbox}"), None).await.0, 204);
    let end = ended(&ann, &first).await;
    assert_eq!(end["status"], "error", "{end}");
    assert_eq!(ann.api("POST", &second, steps("true")).await.0, 202);
    assert_eq!(ended(&ann, &second).await["status"], "ready");
    gone(home, server).await;
}

#[tokio::test]
async fn a_server_that_is_killed_during_a_build_leaves_an_error_and_nothing_else() {
    let home = Home::new();
    // While steps run, and around the moment at which files are kept; and once where it is stopped in good order.
    let moments = [
        (true, true, 0),
        (true, false, 0),
        (false, false, 50),
        (false, false, 100),
        (false, false, 200),
        (false, false, 350),
    ];
    for (is_long, is_stopped, wait_ms) in moments {
        let mut server = home.up();
        let ann = Caller::of(&server, "ann").await;
        let (_, path) = opened(&ann, "web").await;
        let steps = [run(if is_long { "echo begun; sleep 60" } else { "true" })];
        let body = json!({"fromTemplate": "base", "steps": steps, "readyCmd": "sleep 0.1"});
        let status_path = format!("{}/status", path.trim_start_matches("/v2"));
        let asking = {
            let (ann, path) = (Caller::of(&server, "ann").await, path.clone());
            tokio::spawn(async move {
                let request = ann.http.post(format!("{}{path}", ann.url));
                request.header("x-api-key", &ann.key).json(&body).send().await.is_ok()
            })
        };
        if is_long {
            until("its step runs", SOON, async || {
                ann.api("GET", &status_path, None).await.1.to_string().contains("begun")
            })
            .await;
        }
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        match is_stopped {
            true => assert!(server.stop().success()),
            false => server.kill(),
        }
        let _ = asking.await;
        let mut server = home.up();
        let ann = Caller::of(&server, "ann").await;
        let sql = server.sql().await;
        until("no build is under way", SOON, async || {
            count(&sql, "SELECT count(*) FROM app.template_builds WHERE status = 'building'").await
                == 0
        })
        .await;
        let (status, said) = ann.api("GET", &status_path, None).await;
        assert_eq!(status, 200, "{said}");
        match (said["status"].as_str().unwrap(), said["reason"]["message"].as_str()) {
            // Of one that was stopped in good order, the step may say it first.
            ("error", Some(why)) => {
                assert!(why.contains("sandbox of the build ended") || is_stopped, "{why}");
            }
            // It was not on record as begun, or was done.
            ("waiting" | "ready", None) => assert!(!is_long, "{said}"),
            other => panic!("{other:?}"),
        }
        let left = "SELECT count(*) FROM app.snapshots s WHERE erased_at IS NULL AND NOT EXISTS
                      (SELECT 1 FROM app.template_builds b WHERE b.snapshot_id = s.id)";
        assert_eq!(count(&sql, left).await, 0);
        let kept = "SELECT count(*) FROM app.snapshots WHERE erased_at IS NULL";
        until("no part of a file stays", SOON, async || {
            let files = fs::read_dir(home.path().join("snapshots")).map_or(0, Iterator::count);
            i64::try_from(files).unwrap() == count(&sql, kept).await
        })
        .await;
        sql.close().await;
        assert!(server.stop().success());
    }
    let server = home.up();
    gone(home, server).await;
}

#[tokio::test]
async fn a_templates_files_are_counted_and_erased_with_its_last_tag() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let ann = Caller::of(&server, "ann").await;
    let used =
        "SELECT coalesce(sum(bytes), 0)::bigint FROM app.blob_usage_parts WHERE tenant_id = 'ann'";
    let files = |what: &str| fs::read_dir(home.path().join(what)).map_or(0, Iterator::count);
    let (template, _) = opened(&ann, "web").await;
    let archive = tar(&[(tar::EntryType::Regular, "secret-file", "a secret of ann's")]);
    assert_eq!(sent(&ann, &template, archive).await.0, 200);
    assert!(count(&sql, used).await > 0 && files("uploads") == 1);
    // Sent again, several times at once, it takes the place of what was there.
    let again = || {
        sent(&ann, &template, tar(&[(tar::EntryType::Regular, "secret-file", "a secret of ann's")]))
    };
    let again = tokio::join!(again(), again(), again(), again(), again(), again());
    assert_eq!([again.0.0, again.1.0, again.2.0, again.3.0, again.4.0, again.5.0], [200; 6]);
    until("one is left", SOON, async || files("uploads") == 1).await;
    let steps = || json!([copy(".", "/opt/x"), run("head -c 100000 /dev/urandom > ~/noise")]);
    assert_eq!(built(&ann, "web", steps()).await.1["status"], "ready");
    assert!(count(&sql, used).await > 100_000 && files("snapshots") == 1);
    // Neither file can be read as it lies there.
    for what in ["uploads", "snapshots"] {
        for one in fs::read_dir(home.path().join(what)).unwrap() {
            let bytes = fs::read(one.unwrap().path()).unwrap();
            assert!(!bytes.windows(8).any(|part| part == b"a secret"), "{what}");
        }
    }
    // The next build takes the tag; nothing else names the first one's files.
    assert_eq!(built(&ann, "web", steps()).await.1["status"], "ready");
    until("the first build's files are erased", SOON, async || files("snapshots") == 1).await;
    // Its files are not to be deleted as a snapshot's, nor listed as one.
    assert_eq!(ann.api("GET", "/snapshots", None).await.1, json!([]));
    let (id, _) = ann.create(json!({"templateID": "web", "timeout": 60})).await;
    assert_eq!(ann.api("DELETE", "/templates/web", None).await.0, 204);
    assert_eq!((files("uploads"), files("snapshots")), (0, 0));
    // What was made from it has its own copy.
    assert_eq!(ann.api("GET", &format!("/sandboxes/{id}"), None).await.0, 200);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    let body = json!({"templateID": "web", "timeout": 60});
    assert_eq!(ann.api("POST", "/v2/sandboxes", Some(body)).await.0, 404);
    let kept = "SELECT count(*) FROM app.snapshots WHERE erased_at IS NULL OR gone_at IS NULL";
    assert_eq!(count(&sql, kept).await, 0);
    let kept = "SELECT count(*) FROM app.template_files WHERE erased_at IS NULL OR gone_at IS NULL";
    assert_eq!(count(&sql, kept).await, 0);
    sql.close().await;
    gone(home, server).await;
}
