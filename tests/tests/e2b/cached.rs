//! Steps of builds that ran before: what is not run again, what is, and what is kept for it.

use std::fs;

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::built::{HASH, SOON, copy, ended, opened, run, sent, tar};
use super::gone;
use crate::support::has_class;
use crate::support::{count, texts, until};

/// Takes long enough to be worth a layer, and leaves what tells one run from another.
const SLOW: &str = "sleep 1.2; od -An -tx1 -N16 /dev/urandom | tr -d ' \\n' > ~/slow";
const QUICK: &str = "od -An -tx1 -N16 /dev/urandom > ~/quick; cat /opt/x/* >> ~/quick";
const LAYERS: &str =
    "SELECT count(*) FROM app.snapshots WHERE kind = 'layer' AND erased_at IS NULL";

/// A file of this content, as an archive.
fn archive(content: &str) -> Vec<u8> {
    tar(&[(tar::EntryType::Regular, "f", content)])
}

/// A build with this body, followed to its end; what is said of it, and the steps that it did not run.
async fn built(ann: &Caller, name: &str, body: Value) -> (Value, Vec<String>) {
    let (_, path) = opened(ann, name).await;
    let (status, why) = ann.api("POST", &path, Some(body)).await;
    assert_eq!(status, 202, "{why}");
    let end = ended(ann, &path).await;
    let said = end["logEntries"].as_array().unwrap().iter();
    let lines = said.map(|entry| text(entry, "message"));
    let cached = lines.filter_map(|line| line.strip_prefix("CACHED ").map(str::to_owned));
    (end.clone(), cached.collect())
}

async fn ready(ann: &Caller, name: &str, body: Value) -> Vec<String> {
    let (end, cached) = built(ann, name, body).await;
    assert_eq!(end["status"], "ready", "{end}");
    cached
}

fn steps(steps: &Value) -> Value {
    json!({"fromTemplate": "base", "steps": steps})
}

/// What a sandbox of a template says.
async fn says(ann: &Caller, template: &str, command: &str) -> String {
    let at = ann.create(json!({"templateID": template, "timeout": 60})).await;
    let command = format!("({command}) > /tmp/said");
    ann.started((&at.0, &at.1), "/bin/bash", &["-c", &command]).await;
    let said = ann.download((&at.0, &at.1), "/tmp/said").send().await.unwrap();
    let said = said.text().await.unwrap();
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{}", at.0), None).await.0, 204);
    said
}

async fn with_files(home: &Home) -> (Server, PgPool, Caller, String) {
    let server = home.up();
    let (sql, ann) = (server.sql().await, Caller::of(&server, "ann").await);
    let (template, _) = opened(&ann, "web").await;
    assert_eq!(sent(&ann, &template, archive("one")).await.0, 200);
    (server, sql, ann, template)
}

#[tokio::test]
async fn a_step_that_ran_before_is_not_run_again() {
    let home = Home::new();
    let (server, sql, ann, template) = with_files(&home).await;
    let all = || json!([run(SLOW), copy(".", "/opt/x"), run(QUICK)]);
    assert_eq!(ready(&ann, "web", steps(&all())).await, Vec::<String>::new());
    let first = says(&ann, "web", "cat ~/slow ~/quick").await;
    assert!(first.ends_with("one"), "{first}");
    // All of it, from the files that the template has.
    let cached = ready(&ann, "web", steps(&all())).await;
    assert_eq!(cached, [format!("RUN {SLOW}"), "COPY . /opt/x".into(), format!("RUN {QUICK}")]);
    assert_eq!(says(&ann, "web", "cat ~/slow ~/quick").await, first);
    let on_record = "SELECT array_agg(coalesce(cached, 0) ORDER BY created_at)::text FROM app.template_builds WHERE live_id IS NOT NULL";
    assert_eq!(texts(&sql, on_record).await, ["{0,3}"]);
    // Sent again under its name with the same content, and then with another one.
    assert_eq!(sent(&ann, &template, archive("one")).await.0, 200);
    assert_eq!(ready(&ann, "web", steps(&all())).await.len(), 3);
    assert_eq!(sent(&ann, &template, archive("two")).await.0, 200);
    assert_eq!(ready(&ann, "web", steps(&all())).await, [format!("RUN {SLOW}")]);
    let second = says(&ann, "web", "cat ~/slow ~/quick").await;
    assert!(second.starts_with(&first[..32]) && second.ends_with("two"), "{second}");
    // What comes before a step is part of it.
    let env = json!({"type": "ENV", "args": ["A", "1"]});
    let user = json!({"type": "USER", "args": ["root"]});
    for before in [env, user] {
        assert!(ready(&ann, "web", steps(&json!([before, run(SLOW)]))).await.is_empty());
    }
    // Another template of the tenant begins with it, too; another tenant's never.
    let both = || json!([run(SLOW), run("true")]);
    assert_eq!(ready(&ann, "other", steps(&both())).await, [format!("RUN {SLOW}")]);
    let bob = Caller::of(&server, "bob").await;
    assert!(ready(&bob, "web", steps(&both())).await.is_empty());
    // Other limits are another build.
    let (_, path) = {
        let body = json!({"name": "larger", "memoryMB": 640});
        let (_, opened) = ann.api("POST", "/v3/templates", Some(body)).await;
        let (template, build) = (text(&opened, "templateID"), text(&opened, "buildID"));
        (template.clone(), format!("/v2/templates/{template}/builds/{build}"))
    };
    assert_eq!(ann.api("POST", &path, Some(steps(&both()))).await.0, 202);
    assert!(!ended(&ann, &path).await.to_string().contains("CACHED"));
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_step_runs_again_where_it_is_to() {
    let home = Home::new();
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let all = || json!([run(SLOW), run("echo a > ~/a"), run("echo b > ~/b")]);
    ready(&ann, "web", steps(&all())).await;
    let first = says(&ann, "web", "cat ~/slow").await;
    // From a step on; then from the beginning.
    let mut some = all();
    some[1]["force"] = true.into();
    assert_eq!(ready(&ann, "web", steps(&some)).await, [format!("RUN {SLOW}")]);
    let mut body = steps(&all());
    body["force"] = true.into();
    assert!(ready(&ann, "web", body).await.is_empty());
    let second = says(&ann, "web", "cat ~/slow").await;
    assert_ne!(first, second);
    // What ran last is what the next build goes on from.
    assert_eq!(ready(&ann, "web", steps(&all())).await.len(), 3);
    assert_eq!(says(&ann, "web", "cat ~/slow").await, second);
    // On a template that was built anew everything runs anew.
    let on = |steps: Value| json!({"fromTemplate": "web", "steps": steps});
    ready(&ann, "child", on(json!([run(SLOW)]))).await;
    assert_eq!(ready(&ann, "child", on(json!([run(SLOW)]))).await.len(), 1);
    let mut body = steps(&all());
    body["force"] = true.into();
    ready(&ann, "web", body).await;
    assert!(ready(&ann, "child", on(json!([run(SLOW)]))).await.is_empty());
    // Neither is a layer of one class used in another.
    if has_class("gvisor") {
        let strong = Caller::of(&server, "ann").await.in_class("gvisor");
        assert!(ready(&strong, "web", steps(&all())).await.is_empty());
        assert_eq!(ready(&strong, "web", steps(&all())).await.len(), 3);
        assert_eq!(ready(&ann, "web", steps(&all())).await, [format!("RUN {SLOW}")]);
    }
    gone(home, server).await;
}

#[tokio::test]
async fn a_layer_has_the_variables_user_and_directory_of_its_steps() {
    let home = Home::new();
    let server = home.up();
    let (sql, ann) = (server.sql().await, Caller::of(&server, "ann").await);
    let set = |last: &str| {
        json!([
            {"type": "ENV", "args": ["SECRET", "hunter2-hunter2", "BOTH", "$SECRET!"]},
            {"type": "WORKDIR", "args": ["/opt/w"]}, {"type": "USER", "args": ["root"]},
            run("sleep 1.1"), run(last),
        ])
    };
    ready(&ann, "web", steps(&set("true"))).await;
    let cached = ready(&ann, "web", steps(&set("echo $BOTH $(id -u) $(pwd) > /opt/said"))).await;
    assert_eq!(cached, ["ENV SECRET BOTH", "WORKDIR /opt/w", "USER root", "RUN sleep 1.1"]);
    assert_eq!(says(&ann, "web", "cat /opt/said").await, "hunter2-hunter2! 0 /opt/w\n");
    // Neither file nor row has a value, and its mark is not a digest of what everybody can write.
    for one in fs::read_dir(home.path().join("snapshots")).unwrap() {
        let bytes = fs::read(one.unwrap().path()).unwrap();
        assert!(!bytes.windows(7).any(|part| part == b"hunter2"));
    }
    let rows = "SELECT string_agg(l::text, ' ') FROM app.template_layers l";
    assert!(!texts(&sql, rows).await.concat().contains("hunter2"));
    sql.close().await;
    gone(home, server).await;
}

const USED: &str =
    "SELECT coalesce(sum(bytes), 0)::bigint FROM app.blob_usage_parts WHERE tenant_id = 'ann'";

/// Sets the quota of every tenant's files.
async fn quota(server: &Server, mb: u64, version: u32) {
    let body = json!({"value": mb, "expectedVersion": version, "scope": "global"}).to_string();
    let path = "/api/config/quota.blobs_mb";
    let (status, answer) =
        server.request("PUT", path, Some(&server.key), Some(body.into_bytes())).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn layers_are_counted_bounded_and_erased() {
    let home = Home::new();
    let (server, sql, ann, _) = with_files(&home).await;
    let noise = "head -c 3000000 /dev/urandom > ~/noise; sleep 1.1";
    let all = json!([run(noise), copy(".", "/opt/x"), run("true")]);
    ready(&ann, "web", steps(&all)).await;
    assert_eq!(count(&sql, LAYERS).await, 1);
    assert!(count(&sql, USED).await > 6_000_000);
    let files = || fs::read_dir(home.path().join("snapshots")).map_or(0, Iterator::count);
    assert_eq!(files(), 2);
    // A quota that they fill is not full for anything else: they go first.
    quota(&server, 4, 0).await;
    let over = "SELECT coalesce(app.blobs_over_quota('ann', 4096)::text, 'room')";
    assert_eq!(texts(&sql, over).await, ["room"]);
    assert_eq!(says(&ann, "base", "echo hi").await, "hi\n");
    assert_eq!(count(&sql, LAYERS).await, 0);
    until("its file is removed", SOON, async || files() == 1).await;
    // A layer that leaves no room for its template makes room for it.
    quota(&server, 8, 1).await;
    assert_eq!(ready(&ann, "web", steps(&all)).await.len(), 3);
    quota(&server, 400, 2).await;
    // Used by nothing for a week; too many of them; another in its place.
    let forced = |first: &str| json!({"fromTemplate": "base", "force": true, "steps": [run(first), run("true")]});
    ready(&ann, "web", forced(SLOW)).await;
    ready(&ann, "web", forced(SLOW)).await;
    until("one is in the place of the other", SOON, async || count(&sql, LAYERS).await == 1).await;
    let aged = "UPDATE app.template_layers SET used_at = used_at - interval '8 days'";
    sqlx::query(aged).execute(&sql).await.unwrap();
    ready(&ann, "quick", steps(&json!([run("true")]))).await;
    until("what is old is erased", SOON, async || count(&sql, LAYERS).await == 0).await;
    ready(&ann, "web", forced(SLOW)).await;
    let many = "WITH n AS (SELECT g, md5(g::text) AS m FROM generate_series(1, 70) g),
        s AS (INSERT INTO app.snapshots (id, tenant_id, live_id, run_id, kind, name, template, place, bytes, sha256, sealed_key, sealed_by, key_id, origin, sealed_at)
              SELECT left(n.m, 20), o.tenant_id, o.live_id, o.run_id, o.kind, o.name, o.template, o.place, 1, o.sha256, o.sealed_key, o.sealed_by, o.key_id, o.origin, now()
                FROM app.snapshots o, n WHERE o.kind = 'layer' AND o.erased_at IS NULL RETURNING id, live_id, tenant_id)
        INSERT INTO app.template_layers (snapshot_id, tenant_id, build_id, key, steps)
        SELECT s.id, s.tenant_id, b.id, s.id || repeat('0', 44), 1 FROM s JOIN app.template_builds b ON b.live_id = s.live_id";
    // The build before may still be tidying up, so they are not counted a moment later.
    let added = sqlx::query(many).execute(&sql).await.unwrap();
    assert_eq!(added.rows_affected(), 70);
    ready(&ann, "quick", steps(&json!([run("true")]))).await;
    until("no more than the bound", SOON, async || count(&sql, LAYERS).await == 64).await;
    // With the template all of it goes; a layer is nobody's snapshot.
    assert_eq!(ann.api("GET", "/snapshots", None).await.1, json!([]));
    assert_eq!(ann.api("DELETE", "/templates/web", None).await.0, 204);
    assert_eq!(count(&sql, LAYERS).await, 0);
    assert!(ready(&ann, "quick", steps(&json!([run(SLOW)]))).await.is_empty());
    assert_eq!(ann.api("DELETE", "/templates/quick", None).await.0, 204);
    assert_eq!(files(), 0);
    // What sandboxes were asked for with stays, and the rows that each of them left.
    let asked = "SELECT coalesce(sum(octet_length(inputs::text) + octet_length(goal)), 0)::bigint
                      + (SELECT coalesce(sum(16384 + coalesce(octet_length(metadata::text), 0)
                           + coalesce(octet_length(egress::text), 0)), 0)::bigint FROM app.live_sandboxes WHERE tenant_id = 'ann')
                   FROM app.intents WHERE tenant_id = 'ann'";
    assert_eq!(count(&sql, USED).await, count(&sql, asked).await);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_build_that_fails_or_is_killed_leaves_whole_layers_or_none() {
    let home = Home::new();
    let mut server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (end, _) = built(&ann, "web", steps(&json!([run(SLOW), run("exit 3")]))).await;
    assert_eq!((&end["status"], &end["reason"]["step"]), (&json!("error"), &json!("2")), "{end}");
    // What ran well before it failed counts.
    let (end, cached) = built(&ann, "web", steps(&json!([run(SLOW), run("exit 4")]))).await;
    assert_eq!((&end["status"], cached.len()), (&json!("error"), 1), "{end}");
    // Its own step is never taken for done.
    let (end, cached) = built(&ann, "web", steps(&json!([run(SLOW), run("exit 4")]))).await;
    assert_eq!((&end["status"], cached.len()), (&json!("error"), 1), "{end}");
    // Killed after a layer, and around the moment at which one is kept.
    for (n, wait_ms) in [(1, 2_000), (2, 1_150), (3, 1_200), (4, 1_250)] {
        let (_, path) = opened(&ann_of(&server).await, "web").await;
        let first = format!("sleep 1; head -c 20000000 /dev/urandom > ~/noise; echo {n} > ~/n");
        let body = steps(&json!([run(&first), run("sleep 60")]));
        let ann = ann_of(&server).await;
        assert_eq!(ann.api("POST", &path, Some(body)).await.0, 202);
        tokio::time::sleep(std::time::Duration::from_millis(wait_ms)).await;
        server.kill();
        server = home.up();
        let (ann, sql) = (ann_of(&server).await, server.sql().await);
        until("no build is under way", SOON, async || {
            count(&sql, "SELECT count(*) FROM app.template_builds WHERE status = 'building'").await
                == 0
        })
        .await;
        let kept = "SELECT count(*) FROM app.snapshots WHERE erased_at IS NULL";
        until("each file has its row", SOON, async || {
            let files = fs::read_dir(home.path().join("snapshots")).map_or(0, Iterator::count);
            i64::try_from(files).unwrap() == count(&sql, kept).await
        })
        .await;
        let cached = ready(&ann, "web", steps(&json!([run(&first), run("true")]))).await;
        assert!(cached.len() <= 1 && (n > 1 || cached.len() == 1), "{n} {cached:?}");
        assert_eq!(
            says(&ann, "web", "cat ~/n; stat -c %s ~/noise").await,
            format!("{n}\n20000000\n")
        );
        sql.close().await;
    }
    gone(home, server).await;
}

async fn ann_of(server: &Server) -> Caller {
    Caller::of(server, "ann").await
}

#[tokio::test]
async fn a_layer_that_is_damaged_is_not_used_again() {
    let home = Home::new();
    let server = home.up();
    let (sql, ann) = (server.sql().await, Caller::of(&server, "ann").await);
    let noise = "head -c 3000000 /dev/urandom > ~/noise; sleep 1.1";
    let all = |last: &str| steps(&json!([run(noise), run(last)]));
    ready(&ann, "web", all("true")).await;
    let layer = "SELECT id FROM app.snapshots WHERE kind = 'layer' AND erased_at IS NULL";
    for (at, is_seen) in [(100, true), (2_000_000, false)] {
        let id = texts(&sql, layer).await.concat();
        let file = home.path().join("snapshots").join(format!("{id}.snap"));
        let mut bytes = fs::read(&file).unwrap();
        bytes[at] ^= 1;
        fs::write(&file, bytes).unwrap();
        let (end, cached) = built(&ann, "web", all(&format!("echo {at}"))).await;
        match is_seen {
            // Its head does not open: the build begins at the beginning.
            true => assert_eq!((&end["status"], cached.len()), (&json!("ready"), 0), "{end}"),
            // A piece is wrong, which the new sandbox finds: the build says so, and the next one runs everything.
            false => {
                assert!(
                    end["reason"]["message"].as_str().unwrap().contains("cannot be used"),
                    "{end}"
                );
                assert!(ready(&ann, "web", all(&format!("echo {at}"))).await.is_empty());
            }
        }
        assert_eq!(texts(&sql, layer).await.len(), 1);
        assert_ne!(texts(&sql, layer).await.concat(), id);
    }
    // So are the files of a template, which stay what they are.
    let of = "SELECT snapshot_id FROM app.template_builds WHERE status = 'ready' ORDER BY created_at DESC LIMIT 1";
    let id = texts(&sql, of).await.concat();
    let file = home.path().join("snapshots").join(format!("{id}.snap"));
    let mut bytes = fs::read(&file).unwrap();
    bytes[2_000_000] ^= 1;
    fs::write(&file, bytes).unwrap();
    let (end, _) = built(&ann, "web", all("echo 2000000")).await;
    assert_eq!(end["status"], "error", "{end}");
    assert_eq!(ready(&ann, "web", all("echo 2000000")).await.len(), 1);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn files_are_the_same_by_what_is_in_them_and_not_by_their_name() {
    let home = Home::new();
    let (server, sql, ann, _) = with_files(&home).await;
    let all = |name: &str| {
        let mut copy = copy(".", "/opt/x");
        copy["filesHash"] = name.into();
        steps(&json!([copy, run("true")]))
    };
    ready(&ann, "web", all(HASH)).await;
    // Of another template of the tenant, under another name, packed.
    let (other, path) = opened(&ann, "other").await;
    let name = "b".repeat(64);
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, &archive("one")).unwrap();
    assert_eq!(ann.send_files(&other, &name, packer.finish().unwrap()).await.0, 200);
    assert_eq!(ann.api("POST", &path, Some(all(&name))).await.0, 202);
    assert_eq!(ended(&ann, &path).await.to_string().matches("CACHED").count(), 2);
    // What is no archive has no content, so no step from there on is remembered: it is looked at, and refused.
    assert_eq!(ann.send_files(&other, &name, vec![0x1f, 0x8b, 0, 0]).await.0, 200);
    let contents =
        "SELECT coalesce(content, '-') FROM app.template_files WHERE erased_at IS NULL ORDER BY 1";
    let found = texts(&sql, contents).await;
    assert_eq!((found.len(), found[0].as_str(), found[1].len()), (2, "-", 64));
    let (end, cached) = built(&ann, "other", all(&name)).await;
    assert_eq!((&end["status"], cached.len()), (&json!("error"), 0), "{end}");
    sql.close().await;
    gone(home, server).await;
}

/// What is on record as made of some files is made of them: a name that gets others meanwhile ends the build that wants it.
#[tokio::test]
async fn files_that_are_replaced_while_their_build_runs_end_it() {
    let home = Home::new();
    let (server, sql, ann, template) = with_files(&home).await;
    let (_, path) = opened(&ann, "web").await;
    let all = steps(&json!([run("sleep 3"), copy("f", "/opt/f"), run("true")]));
    assert_eq!(ann.api("POST", &path, Some(all.clone())).await.0, 202);
    assert_eq!(sent(&ann, &template, archive("two")).await.0, 200);
    let end = ended(&ann, &path).await;
    assert_eq!(end["status"], "error", "{end}");
    assert!(end["reason"].to_string().contains("replaced while the build ran"), "{end}");
    ready(&ann, "web", all).await;
    assert_eq!(says(&ann, "web", "cat /opt/f").await, "two");
    sql.close().await;
    gone(home, server).await;
}
