//! Bounds of templates and their builds, each exceeded.

use cofferdam_tests::e2b::Caller;
use cofferdam_tests::{Home, text};
use serde_json::json;

use super::built::{assert_refused, built, ended, opened, run};
use super::gone;
use crate::support::count;

#[tokio::test]
async fn a_build_has_an_hour_and_ends_with_its_time() {
    let home = Home::new();
    let server = home.up();
    let (sql, ann) = (server.sql().await, Caller::of(&server, "ann").await);
    let (_, path) = opened(&ann, "web").await;
    let steps = json!({"fromTemplate": "base", "steps": [run("sleep 600")]});
    assert_eq!(ann.api("POST", &path, Some(steps)).await.0, 202);
    let hour =
        "SELECT (extract(epoch FROM ends_at - started_at) * 1000)::bigint FROM app.live_sandboxes";
    assert_eq!(count(&sql, hour).await, 3_600_000);
    // What it has less of, it ends with.
    let (_, all) = ann.api("GET", "/v2/sandboxes", None).await;
    let timeout = format!("/sandboxes/{}/timeout", text(&all[0], "sandboxID"));
    assert_eq!(ann.api("POST", &timeout, Some(json!({"timeout": 1}))).await.0, 204);
    let end = ended(&ann, &path).await;
    assert_eq!(end["status"], "error", "{end}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.snapshots").await, 0);
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn templates_their_waiting_builds_and_their_tags_have_bounds() {
    let home = Home::new();
    let server = home.up();
    let (sql, ann) = (server.sql().await, Caller::of(&server, "ann").await);
    let open =
        async |name: &str| ann.api("POST", "/v3/templates", Some(json!({"name": name}))).await;
    // Builds that wait for their steps.
    for _ in 0..64 {
        assert_eq!(open("web").await.0, 202);
    }
    assert_refused(open("web").await, 409, "64 builds of this template wait").await;
    // Tags: the one that the build gave, and 255 more.
    assert_eq!(built(&ann, "tagged", json!([])).await.1["status"], "ready");
    let assign = async |from: usize, to: usize| {
        let tags: Vec<String> = (from..to).map(|n| format!("t{n}")).collect();
        let body = json!({"target": "tagged", "tags": tags});
        ann.api("POST", "/templates/tags", Some(body)).await
    };
    for from in (0..224).step_by(32) {
        assert_eq!(assign(from, from + 32).await.0, 201);
    }
    assert_eq!(assign(224, 255).await.0, 201);
    assert_refused(assign(255, 256).await, 400, "at most 256 tags").await;
    let tags = "SELECT count(*) FROM app.template_tags";
    assert_eq!(count(&sql, tags).await, 256);
    // One that is there may name another build.
    assert_eq!(assign(0, 32).await.0, 201);
    // Templates: those two, and 998 more.
    let many = "INSERT INTO app.templates (id, tenant_id, name, key_id)
                SELECT left(md5(g::text), 20), 'ann', 'n' || g, 'k' FROM generate_series(1, 998) g";
    sqlx::query(many).execute(&sql).await.unwrap();
    assert_refused(open("more").await, 400, "1000 templates").await;
    assert_eq!(open("tagged").await.0, 202);
    let bob = Caller::of(&server, "bob").await;
    assert_eq!(bob.api("POST", "/v3/templates", Some(json!({"name": "more"}))).await.0, 202);
    sql.close().await;
    gone(home, server).await;
}
