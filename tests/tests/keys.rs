//! API keys across tenants: the host's own admin ends what it made; a tenant's admin stays at home.

use crate::support;

use cofferdam_tests::Home;
use serde_json::json;
use support::{count, said};

#[tokio::test(flavor = "multi_thread")]
async fn i1_the_hosts_admin_lists_and_revokes_every_tenants_keys_and_nobody_else_does() {
    let home = Home::new();
    let up = home.up();
    let admin = |tenant: &str| json!({"tenant": tenant, "roles": ["admin"], "label": tenant});
    let (acme_id, acme) = up.new_key(&admin("acme")).await;
    let (bravo_id, bravo) = up.new_key(&admin("bravo")).await;
    for path in ["/api/keys?tenant=bravo", "/api/keys?tenant=*", "/api/keys?tenant=default"] {
        let (status, answer) = up.get_as(&acme, path).await;
        assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{path}: {answer}");
    }
    let (status, own) = up.get_as(&acme, "/api/keys?tenant=acme").await;
    assert_eq!((status, own.as_array().unwrap().len()), (200, 1), "{own}");
    let theirs = format!("/api/keys/{bravo_id}?tenant=bravo");
    assert_eq!(up.request("DELETE", &theirs, Some(&acme), None).await.0, 403);
    assert_eq!(up.get_as(&bravo, "/api/runs").await.0, 200);
    let (status, _) = up.get("/api/keys?tenant=No%20Tenant").await;
    assert_eq!(status, 400);

    let output = home.run(&["key", "ls", "--all"]);
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(all.contains(&acme_id) && all.contains(&bravo_id), "{}", said(&output));
    let output = home.run(&["key", "ls", "--tenant", "bravo"]);
    let one = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!one.contains(&acme_id) && one.contains(&bravo_id), "{}", said(&output));
    assert_eq!(
        home.run(&["key", "revoke", &bravo_id]).status.code(),
        Some(1),
        "not the admin's own"
    );
    let output = home.run(&["key", "revoke", &bravo_id, "--tenant", "bravo"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(up.get_as(&bravo, "/api/runs").await.0, 401);
    let recorded = "SELECT count(*) FROM app.audit WHERE op = 'key.revoke' AND tenant_id = 'bravo'";
    assert_eq!(count(&up.sql().await, recorded).await, 1);
}
