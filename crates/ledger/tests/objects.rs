//! The record of stored objects: an artifact is of an object with its bytes, of its tenant, whose key is there.

use cofferdam_contracts::id::{Digest, ObjectId, TenantId};

use crate::begin::{OneRun, one_run};

const RUN: &str = "rn_00000000000000000000000000000001";

fn object(digit: char) -> String {
    digit.to_string().repeat(32)
}

/// An object of this tenant's, with 9 bytes of the digest `11..`.
async fn store(one: &OneRun, digit: char, tenant: &str) -> Result<u64, String> {
    let query = "INSERT INTO app.stored_objects (id, tenant_id, store, sha256, size, sealed_key, sealed_by)
                 VALUES ($1, $2, repeat('f', 32), repeat('1', 64), 9, decode(repeat('00', 60), 'hex'), repeat('2', 64))";
    let done = sqlx::query(query).bind(object(digit)).bind(tenant).execute(&one.sql).await;
    done.map(|done| done.rows_affected()).map_err(|error| error.to_string())
}

async fn artifact(one: &OneRun, idx: i32, digit: char, size: i64) -> Result<u64, String> {
    let query = "INSERT INTO app.artifacts (run_id, step_id, task_key, attempt, idx, kind, name, uri, sha256, size, object_id, origin)
                 VALUES ($1, 'ExecuteST:000', repeat('a', 64), 1, $2, 'file', 'files/x', 'artifact://' || $2, repeat('1', 64), $3, $4,
                         'engine-dbos')";
    let done = sqlx::query(query).bind(RUN).bind(idx).bind(size).bind(object(digit));
    let done = done.execute(&one.sql).await;
    done.map(|done| done.rows_affected()).map_err(|error| error.to_string())
}

async fn change(one: &OneRun, text: &'static str) -> Result<u64, String> {
    let done = sqlx::query(text).execute(&one.sql).await;
    done.map(|done| done.rows_affected()).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_of_an_object_with_its_bytes_and_of_its_tenant() {
    let one = one_run().await;
    store(&one, '1', "acme").await.unwrap();
    store(&one, '2', "bravo").await.unwrap();
    store(&one, '3', "acme").await.unwrap();
    assert_eq!(artifact(&one, 1, '1', 9).await, Ok(1));
    for (digit, size, why) in [('1', 8, "another size"), ('2', 9, "another tenant's")] {
        let refused = artifact(&one, 2, digit, size).await.unwrap_err();
        assert!(refused.contains("is not of object"), "{why}: {refused}");
    }
    assert!(artifact(&one, 2, '4', 9).await.is_err(), "no such object");
    let both = "UPDATE app.artifacts SET inline = 'x' WHERE object_id IS NOT NULL";
    assert!(change(&one, both).await.is_err(), "one place");
    for text in [
        "UPDATE app.stored_objects SET size = 10",
        "UPDATE app.stored_objects SET sealed_key = decode(repeat('01', 60), 'hex')",
        "DELETE FROM app.stored_objects",
    ] {
        assert!(change(&one, text).await.unwrap_err().contains("append-only"), "{text}");
    }
    let erase = "UPDATE app.stored_objects SET sealed_key = NULL, erased_at = now() WHERE id = repeat('3', 32)";
    assert_eq!(change(&one, erase).await, Ok(1));
    assert!(change(&one, erase).await.is_err(), "once");
    assert!(artifact(&one, 3, '3', 9).await.unwrap_err().contains("is not of object"));
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_found_by_digest_by_id_and_in_pages() {
    let one = one_run().await;
    let objects = || one.ledger.objects();
    assert!(!objects().has_sealed().await.unwrap());
    for (digit, tenant) in [('1', "acme"), ('2', "bravo"), ('3', "acme")] {
        store(&one, digit, tenant).await.unwrap();
    }
    artifact(&one, 1, '1', 9).await.unwrap();
    assert!(objects().has_sealed().await.unwrap());
    let (acme, store) = (TenantId::parse("acme").unwrap(), "f".repeat(32));
    let digest = "1".repeat(64);
    let known = objects().known(&acme, &store, &[&digest]).await.unwrap();
    assert_eq!((known.len(), known[0].id.as_str()), (1, object('3').as_str()), "the newest");
    assert!(objects().known(&acme, &"e".repeat(32), &[&digest]).await.unwrap().is_empty());
    let id = |digit| ObjectId::parse(&object(digit)).unwrap();
    let recorded = objects().recorded(&[id('2'), id('9')]).await.unwrap();
    assert_eq!(recorded, [(id('2'), Digest::parse(&digest).unwrap())]);
    let ids = |page: Vec<cofferdam_ledger::objects::ArtifactObject>| -> Vec<ObjectId> {
        page.into_iter().map(|object| object.row.id).collect()
    };
    let all = objects().page(None, None, None, 2).await.unwrap();
    assert_eq!((all[0].uri.as_deref(), all[1].uri.as_deref()), (Some("artifact://1"), None));
    assert_eq!(ids(all), [id('1'), id('2')]);
    let rest = objects().page(None, None, Some(&id('2')), 2).await.unwrap();
    assert_eq!(ids(rest), [id('3')]);
    assert_eq!(ids(objects().page(None, Some("bravo"), None, 9).await.unwrap()), [id('2')]);
    assert_eq!(ids(objects().page(Some(RUN), None, None, 9).await.unwrap()), [id('1')]);
    // Each once, with its first artifact, in pages, of the tenant alone.
    for (idx, digit) in [(2, '3'), (3, '1'), (4, '3')] {
        artifact(&one, idx, digit, 9).await.unwrap();
    }
    let first = objects().page(Some(RUN), Some("acme"), None, 1).await.unwrap();
    assert_eq!(first[0].uri.as_deref(), Some("artifact://1"));
    assert_eq!(first[0].run.as_ref().map(AsRef::as_ref), Some(RUN));
    assert_eq!(ids(first), [id('1')]);
    let second = objects().page(Some(RUN), Some("acme"), Some(&id('1')), 9).await.unwrap();
    assert_eq!(second[0].uri.as_deref(), Some("artifact://2"));
    assert_eq!(ids(second), [id('3')]);
    assert!(objects().page(Some(RUN), Some("bravo"), None, 9).await.unwrap().is_empty());
    assert!(objects().page(Some("rn_other"), None, None, 9).await.unwrap().is_empty());
    one.stop().await;
}

/// An object that a task was promised stays until its artifact is there, or the promise is old; its file goes once, behind its key.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_destroyed_with_the_last_artifact_and_not_under_a_promise() {
    let one = one_run().await;
    store(&one, '1', "acme").await.unwrap();
    artifact(&one, 1, '1', 9).await.unwrap();
    store(&one, '3', "acme").await.unwrap();
    let erase = async |digit| -> i64 {
        let query = sqlx::query_scalar("SELECT app.objects_erase(ARRAY[$1])").bind(object(digit));
        query.fetch_one(&one.sql).await.unwrap()
    };
    assert_eq!(erase('1').await, 0, "an artifact has it");
    let (acme, name) = (TenantId::parse("acme").unwrap(), "f".repeat(32));
    let digest = "1".repeat(64);
    let known = one.ledger.objects().known(&acme, &name, &[&digest]).await.unwrap();
    assert_eq!(known[0].id.as_str(), object('3'));
    assert_eq!(erase('3').await, 0, "a task was promised it");
    let old = "UPDATE app.stored_objects SET wanted_at = now() - interval '11 minutes' WHERE id = repeat('3', 32)";
    assert_eq!(change(&one, old).await, Ok(1));
    let early = "UPDATE app.stored_objects SET file_gone_at = now() WHERE id = repeat('3', 32)";
    assert!(change(&one, early).await.unwrap_err().contains("append-only"));
    let id = ObjectId::parse(&object('3')).unwrap();
    assert!(!one.ledger.objects().is_erased(&id).await.unwrap());
    assert_eq!(erase('3').await, 1);
    assert!(one.ledger.objects().is_erased(&id).await.unwrap());
    let unknown = ObjectId::parse(&object('9')).unwrap();
    assert!(!one.ledger.objects().is_erased(&unknown).await.unwrap(), "lost is not erased");
    assert!(change(&one, old).await.unwrap_err().contains("append-only"));
    let leaving = one.ledger.objects().leaving(&name, None, 9).await.unwrap();
    assert_eq!(leaving, [(id.clone(), Digest::parse(&digest).unwrap())]);
    let behind = one.ledger.objects().leaving(&name, Some(&id), 9).await.unwrap();
    assert!(behind.is_empty(), "one that cannot be removed is not looked at twice");
    assert!(one.ledger.objects().leaving(&"e".repeat(32), None, 9).await.unwrap().is_empty());
    one.ledger.objects().files_gone(&[id]).await.unwrap();
    assert!(one.ledger.objects().leaving(&name, None, 9).await.unwrap().is_empty());
    assert!(change(&one, early).await.unwrap_err().contains("append-only"), "once");
    one.stop().await;
}
