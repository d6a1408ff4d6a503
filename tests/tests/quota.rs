//! What a tenant may have stored, and what is refused once that is full.

use crate::support;

use cofferdam_tests::{Home, text};
use serde_json::json;
use support::{assert_proven, count};

const KEEP: &str = "
id: keep
v: '1'
form: {type: object, properties: {s: {type: string}, n: {type: integer}}}
caps: {concurrency: 1, steps: 8}
plan: {tasks: [{name: 'k-${item}', each: '${range(form.n)}', value: '${index} ${form.s}'}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn h6_a_tenants_stored_artifacts_have_a_quota_that_another_does_not_feel() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let put = |scope: &str, mb: u64, version: u32| {
        json!({"value": mb, "expectedVersion": version, "scope": scope}).to_string().into_bytes()
    };
    let path = "/api/config/quota.blobs_mb";
    let (status, answer) = up.request("PUT", path, Some(&up.key), Some(put("global", 6, 0))).await;
    assert_eq!(status, 200, "{answer}");
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["admin"]})).await;
    let (_, bravo) = up.new_key(&json!({"tenant": "bravo", "roles": ["submitter"]})).await;
    let (status, answer) = up.request("PUT", path, Some(&acme), Some(put("tenant", 7, 0))).await;
    assert_eq!((status, &answer["code"]), (400, &json!("policy_violation")), "{answer}");
    let form = |n: u64| json!({"s": "y".repeat(900_000), "n": n});
    // The form has 0.86 MiB, the plan's card 4.3 and each text 0.86: the first one fills the quota, the second is not stored.
    let (status, header) = up.start_recipe_as(&acme, KEEP, form(5), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let run = text(&header, "runId");
    let of_run =
        format!("SELECT count(*) FROM app.artifacts WHERE run_id = '{run}' AND inline IS NULL");
    let ended = format!("SELECT count(*) FROM app.runs WHERE id = '{run}' AND status = 'failed'");
    support::until("it ends", std::time::Duration::from_secs(60), async || {
        count(&sql, &ended).await == 1
    })
    .await;
    let stored = count(&sql, &of_run).await;
    assert_eq!(stored, 2, "the card and one text");
    let error = "SELECT count(*) FROM app.runs WHERE error LIKE '%quota.blobs_mb is 6%'";
    assert_eq!(count(&sql, error).await, 1);
    let (status, answer) = up.start_recipe_as(&acme, KEEP, form(1), json!({"runKey": "2"})).await;
    assert_eq!((status, &answer["code"]), (400, &json!("queue_policy_violation")), "{answer}");
    assert_eq!(
        (&answer["details"]["metric"], &answer["details"]["limit"]),
        (&json!("blobs_mb"), &json!(6))
    );
    let (status, header) = up.start_recipe_as(&bravo, KEEP, form(1), json!({})).await;
    assert_eq!(status, 201, "another tenant: {header}");
    let sum = "SELECT count(*) FROM app.blob_usage u WHERE tenant_id = 'acme' AND bytes = (
        SELECT sum(a.size) FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id
         WHERE r.tenant_id = 'acme' AND a.inline IS NULL) + (
        SELECT sum(octet_length(inputs::text) + octet_length(goal)) FROM app.intents WHERE tenant_id = 'acme') + (
        SELECT sum(octet_length(json::text)) FROM app.recipe_versions WHERE tenant_id = 'acme')";
    assert_eq!(count(&sql, sum).await, 1, "the sum is the rows'");
    let (status, answer) = up.request("PUT", path, Some(&up.key), Some(put("global", 64, 1))).await;
    assert_eq!(status, 200, "{answer}");
    let (status, header) = up.start_recipe_as(&acme, KEEP, form(1), json!({"runKey": "3"})).await;
    assert_eq!(status, 201, "{header}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn s22_intents_recipes_and_answers_use_the_quota_like_artifacts() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let body = json!({"value": 6, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/quota.blobs_mb";
    let (status, answer) = up.request("PUT", path, Some(&up.key), Some(body.into_bytes())).await;
    assert_eq!(status, 200, "{answer}");
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await;
    let (_, bravo) = up.new_key(&json!({"tenant": "bravo", "roles": ["submitter"]})).await;
    let intent = json!({"goal": "g", "inputs": {"s": "y".repeat(900_000)}});
    let mut taken = 0;
    let refused = loop {
        let (status, answer) = up.post_as(&acme, "/api/intents", &intent).await;
        if status != 201 {
            break (status, answer);
        }
        taken += 1;
        assert!(taken < 25, "25 intents of 0.9 MB in a quota of 6 MiB");
    };
    assert_eq!((refused.0, &refused.1["code"]), (400, &json!("queue_policy_violation")));
    let details = json!({"metric": "blobs_mb", "limit": 6, "observed": 6});
    assert_eq!(refused.1["details"], details, "{taken}: {}", refused.1);
    let (status, answer) = up.post_as(&acme, "/api/recipes/import", &json!({"yaml": KEEP})).await;
    assert_eq!((status, &answer["code"]), (400, &json!("queue_policy_violation")), "{answer}");
    let (status, answer) = up.post_as(&bravo, "/api/intents", &intent).await;
    assert_eq!(status, 201, "another tenant: {answer}");
    // A large recipe counts by its text, a small one does not.
    for (title, grows) in [("z".repeat(100_000), true), ("small".to_owned(), false)] {
        let used = "SELECT bytes FROM app.blob_usage WHERE tenant_id = 'bravo'";
        let before = count(&sql, used).await;
        let recipe = json!({"id": "big", "v": &title[..5], "title": title, "plan": {"tasks": [{"name": "t", "value": "v"}]}});
        let (status, answer) =
            up.post_as(&bravo, "/api/recipes/import", &json!({"recipe": recipe})).await;
        assert_eq!(status, 201, "{answer}");
        assert_eq!(count(&sql, used).await > before + 90_000, grows);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s73_small_intents_count_towards_the_quota_exactly() {
    const MANY: usize = 100;
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let body = json!({"value": 1, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/quota.blobs_mb";
    let (status, answer) = up.request("PUT", path, Some(&up.key), Some(body.into_bytes())).await;
    assert_eq!(status, 200, "{answer}");
    let (_, acme) = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await;
    let intent = |n: usize| json!({"goal": "g", "inputs": {"n": n, "s": "y".repeat(8_000)}});
    let mut taken = 0;
    let refused = loop {
        // Side by side, so that they count on several connections.
        let (even, odd) = (intent(2 * taken), intent(2 * taken + 1));
        let (one, other) = tokio::join!(
            up.post_as(&acme, "/api/intents", &even),
            up.post_as(&acme, "/api/intents", &odd)
        );
        match [one, other].into_iter().find(|(status, _)| *status != 201) {
            Some(refused) => break refused,
            None => taken += 1,
        }
        assert!(taken < MANY, "{} intents of 8 kB in a quota of 1 MiB", 2 * taken);
    };
    assert_eq!((refused.0, &refused.1["code"]), (400, &json!("queue_policy_violation")));
    let sum = "SELECT count(*) FROM app.blob_usage WHERE tenant_id = 'acme' AND bytes = (
        SELECT sum(octet_length(inputs::text) + octet_length(goal)) FROM app.intents WHERE tenant_id = 'acme')";
    assert_eq!(count(&sql, sum).await, 1, "the sum is the rows'");
    let answers =
        "SELECT count(*) FROM pg_trigger WHERE tgname = 'answers_use_quota' AND tgqual IS NULL";
    assert_eq!(count(&sql, answers).await, 1, "every answer counts");
}
