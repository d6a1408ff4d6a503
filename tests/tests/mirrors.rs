//! Mirrors: the host fetches in a sandbox's stead, so that its credentials never go inside and nothing can
//! be sent with them. The index is this test's own, with TLS and a password, on loopback.

use crate::support;

use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};
use support::index::Index;
use support::{assert_proven, has_npm, texts};

/// Runs a build as a tenant that the operator granted the mirrors to; the task's output.
async fn built(up: &Server, script: &str, mirror: &str) -> (Value, String) {
    let grants = json!({"acme": ["@npm", "@pip"]});
    let body = json!({"value": grants, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/egress.mirrors";
    let (status, said) = up.request("PUT", path, Some(&up.key), Some(body.into_bytes())).await;
    assert_eq!(status, 200, "{said}");
    let acme = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await.1;
    let recipe = json!({"id": "m", "v": "1", "plan": {"tasks": [{
        "name": "t",
        "build": {"run": script, "egress": [mirror], "timeout": "120s"},
        "exec": {"run": "cat /work/said; env", "timeout": "30s"},
        "limits": {"mem_mb": 768, "disk_mb": 256, "pids": 128},
    }]}});
    let (status, header) =
        up.start_recipe_as(&acme, &recipe.to_string(), json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let run = header["runId"].as_str().unwrap();
    let path = format!("/api/runs/{run}");
    support::until("the run has ended", std::time::Duration::from_secs(180), async || {
        let status = up.get_as(&acme, &path).await.1["status"].clone();
        ["succeeded", "failed", "retries_exceeded"].contains(&status.as_str().unwrap_or(""))
    })
    .await;
    let header = up.get_as(&acme, &path).await.1;
    let sql = up.sql().await;
    let out = texts(&sql, "SELECT coalesce(response->>'stdout', '') FROM app.sbx_runs").await;
    let violations =
        texts(&sql, "SELECT coalesce(response->>'violations', '[]') FROM app.sbx_runs").await;
    assert_eq!(header["status"], "succeeded", "{header} {out:?} {violations:?}");
    (serde_json::from_str(&violations[0]).unwrap(), out[0].clone())
}

/// Everything that a sandbox could find a secret in: environment, configuration, files.
const LOOK: &str = "env; tr '\\0' '\\n' < /proc/1/environ; \
    grep -rls 'S3CRE[T]' /etc /root /home /work /tmp /run /var /.cofferdam && echo FOUND-IN-A-FILE; ";

#[tokio::test(flavor = "multi_thread")]
async fn h4_pip_fetches_by_the_hosts_credentials_which_never_go_inside() {
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    let at = "http://pip-0.mirrors.cofferdam.internal";
    let code = |what: &str| format!("curl -s -o got.txt -w '%{{http_code}} {what}\\n' ");
    let script = format!(
        "exec > /work/said 2>&1; {LOOK} /usr/bin/python3 -m pip config list; \
         /usr/bin/python3 -m pip download --no-deps --no-cache-dir -d got tiny && ls got; {LOOK} \
         {} {at}/repo/simple/tiny/; cat got.txt; echo; {} -D - {at}/repo/simple/tiny/; \
         {} -I {at}/repo/packages/tiny-0.9-py3-none-any.whl; \
         {} -X POST -d x=y {at}/repo/simple/; {} -X PUT {at}/repo/packages/tiny-1.0-py3-none-any.whl; \
         {} {at}/private/file; cat got.txt; \
         {} --path-as-is {at}/repo/simple/../../private/file; \
         {} --path-as-is {at}/repo/simple/%2e%2e/%2e%2e/private/file; \
         {} {at}/repo/simple/away/; {} {at}/repo/packages/other.whl; \
         {} https://index.example:{}/repo/simple/tiny/; cat got.txt; echo; {} https://other.example/; echo done",
        code("page"),
        code("headers"),
        code("linked"),
        code("post"),
        code("put"),
        code("beside"),
        code("climb"),
        code("encoded"),
        code("away"),
        code("unlinked"),
        code("own"),
        index.port,
        code("direct"),
    );
    let (violations, out) = built(&up, &script, "@pip").await;
    for line in [
        "tiny-1.0-py3-none-any.whl",
        "200 page",
        "200 linked",
        "405 post",
        "405 put",
        "403 beside",
        "403 climb",
        "403 encoded",
        "502 away",
        "403 unlinked",
        "200 own",
        "000 direct",
        "done",
    ] {
        assert!(out.lines().any(|said| said == line), "{line}: {out}");
    }
    for secret in ["S3CRET", "ci-bot", "Y2ktYm90", "PRIVATE-FILE", "FOUND-IN-A-FILE"] {
        assert!(!out.contains(secret), "{secret}: {out}");
    }
    assert!(!out.to_lowercase().contains("set-cookie"), "{out}");
    let count = |why: &str| {
        let all = violations.as_array().unwrap().iter().filter(|v| v["why"] == why);
        all.map(|v| v["count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((count("method"), count("path"), count("name")), (2, 4, 1), "{violations}");
    let heard = index.heard();
    assert!(heard.iter().all(|(_, _, knew)| *knew), "{heard:?}");
    assert!(heard.iter().all(|(method, _, _)| method == "GET" || method == "HEAD"), "{heard:?}");
    assert!(heard.iter().all(|(_, path, _)| path.starts_with("/repo/")), "{heard:?}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_npm_fetches_by_the_hosts_token_which_never_goes_inside() {
    if !has_npm("the mirror is asked by this machine's own npm") {
        return;
    }
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    let script = format!(
        "exec > /work/said 2>&1; export HOME=/tmp; {LOOK} npm config ls -l | grep -v scripts; \
         npm pack tiny; {LOOK} ls *.tgz; \
         curl -s -o /dev/null -w '%{{http_code}} put\\n' -X PUT -d '{{}}' $npm_config_registry'tiny'; \
         for at in -/whoami %2d/npm/v1/tokens; do curl -s -o /dev/null -w '%{{http_code}} account\n' $npm_config_registry$at; done; echo done"
    );
    let (violations, out) = built(&up, &script, "@npm").await;
    for line in ["tiny-1.0.0.tgz", "405 put", "403 account", "done"] {
        assert!(out.lines().any(|said| said == line), "{line}: {out}");
    }
    for secret in ["S3CRET", "FOUND-IN-A-FILE"] {
        assert!(!out.contains(secret), "{secret}: {out}");
    }
    assert!(!out.contains("200 account") && !out.contains("404 account"), "{out}");
    assert!(violations.to_string().contains("\"method\""), "{violations}");
    let heard = index.heard();
    assert!(heard.iter().any(|(_, path, knew)| path.ends_with(".tgz") && *knew), "{heard:?}");
    assert!(heard.iter().all(|(method, _, knew)| method == "GET" && *knew), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s9_s10_npm_sends_its_token_below_its_own_path_and_to_no_account() {
    if !has_npm("the mirror is asked by this machine's own npm") {
        return;
    }
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    let script = "exec > /work/said 2>&1; export HOME=/tmp; npm pack tiny; at=$${npm_config_registry%npm/}; \
        curl -s $${npm_config_registry}tiny; echo; \
        for path in private/file elsewhere/tiny-0.9.0.tgz elsewhere/other.tgz; do \
        curl -s -o /dev/null -w \"%{http_code} $path\n\" $at$path; done; \
        for path in -/whoami '-;a=b/whoami' '%5c-/whoami' '-%2fwhoami' '%20-/whoami' _session tiny/1.0.0; do \
        curl -s -o /dev/null --path-as-is -w '%{http_code} account\n' \"$npm_config_registry$path\"; done; echo done";
    let (_, out) = built(&up, script, "@npm").await;
    for line in [
        "tiny-1.0.0.tgz",
        "403 private/file",
        // Linked, but not the registry's own: asked without the token, which this server wants.
        "401 elsewhere/tiny-0.9.0.tgz",
        "403 elsewhere/other.tgz",
        "done",
    ] {
        assert!(out.lines().any(|said| said == line), "{line}: {out}");
    }
    assert_eq!(out.lines().filter(|said| *said == "403 account").count(), 7, "{out}");
    assert!(!out.contains("S3CRET") && !out.contains("ci-bot"), "{out}");
    let heard = index.heard();
    for (_, path, knew) in &heard {
        // npm asks for its own newest version beside.
        assert_eq!(*knew, path.starts_with("/npm/"), "{heard:?}");
    }
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn s70_a_part_of_a_page_that_begins_in_an_address_is_not_told() {
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    // Every beginning within the second link: one of them is right behind what tells an address.
    let script = "exec > /work/said 2>&1; at=http://pip-0.mirrors.cofferdam.internal/repo; \
        curl -s -o /dev/null $at/simple/tiny/; \
        for from in $(seq 120 10 400); do curl -s -w '%{http_code} part\n' -H \"Range: bytes=$from-\" $at/simple/tiny/; done; \
        curl -s -o /dev/null -w '%{http_code} file\n' -H 'Range: bytes=5-' $at/packages/tiny-1.0-py3-none-any.whl; echo done";
    let (_, out) = built(&up, script, "@pip").await;
    assert!(!out.contains("S3CRET"), "{out}");
    assert!(out.contains("502 part") && !out.contains("206 part"), "{out}");
    assert!(out.lines().any(|said| said == "206 file"), "{out}");
    assert_proven(&home);
}
