//! What a pause sealed, resting in memory: used as it is, given up for whoever needs the memory, and never needed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::kept::{erased, files, rest, sealed};
use super::kept_faults::Next;
use super::kept_plain::fatal;
use super::{Caller, answered, gone};
use crate::support::{count, said, until};

const SOON: Duration = Duration::from_secs(30);
const FILE: &str = "/home/user/kept";
/// Sealed pieces have 256 KiB: a byte in the middle of the file is within one of them.
const BYTES: usize = 4 * 1024 * 1024;
const RESTING: &str = "SELECT count(*) FROM app.snapshots WHERE sealed_at IS NOT NULL AND plain_ended_at IS NULL AND erased_at IS NULL";

async fn made(server: &Server) -> (Caller, String) {
    let ann = Caller::of(server, "ann").await;
    let (id, token) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    let upload = ann.upload((&id, &token), FILE).body(vec![7_u8; BYTES]);
    assert_eq!(answered(upload).await.0, 200);
    (ann, id)
}

/// A paused sandbox whose files are sealed.
async fn paused(server: &Server, sql: &PgPool) -> (Caller, String) {
    let (ann, id) = made(server).await;
    ann.pause(&id).await;
    sealed(sql).await;
    (ann, id)
}

async fn resumed(ann: &Caller, id: &str) -> (u16, Value) {
    let (status, made) = ann.resume(id, json!({"timeout": 600})).await;
    if status == 201 {
        let read = ann.download((id, &text(&made, "envdAccessToken")), FILE).send().await.unwrap();
        assert_eq!(read.bytes().await.unwrap(), vec![7_u8; BYTES], "its file is as it was");
    }
    (status, made)
}

/// Alters the sealed file: who reads it cannot use it.
fn damage(home: &Home) {
    let [file] = &files(home)[..] else { panic!("one file") };
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(b"altered", file.metadata().unwrap().len() / 2).unwrap();
}

async fn rests(sql: &PgPool, wanted: i64) {
    until("the layer rests, or has ended", SOON, async || count(sql, RESTING).await == wanted)
        .await;
}

#[tokio::test]
async fn a_sealed_layer_that_rests_is_its_next_lifes_as_it_is() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (ann, id) = paused(&server, &sql).await;
    assert_eq!(count(&sql, RESTING).await, 1);
    let listed = home.run(&["sandbox", "snapshot", "ls"]);
    assert!(!said(&listed).contains("plain"), "another tenant's");
    let (_, listed) = server.get_as(&ann.key, "/api/snapshots").await;
    assert!(listed[0]["sealedAt"].is_i64() && listed[0]["plain"] == true, "{listed}");
    // Only the sealed file is damaged.
    damage(&home);
    let (status, answer) = resumed(&ann, &id).await;
    assert_eq!(status, 201, "{answer}");
    erased(&home).await;
    let layers = "SELECT count(DISTINCT plain) FROM app.snapshots";
    ann.pause(&id).await;
    sealed(&sql).await;
    assert_eq!(count(&sql, layers).await, 1, "one layer went through both lives");
    let next =
        "SELECT count(*) FROM app.snapshots WHERE gone_at IS NOT NULL AND plain_end = 'next-life'";
    assert_eq!(count(&sql, next).await, 1);
    // Forks are filled from the file, which is whole.
    let forks = ann.api("POST", &format!("/sandboxes/{id}/fork"), Some(json!({"count": 2}))).await;
    assert_eq!(forks.0, 201, "{}", forks.1);
    assert_eq!(count(&sql, RESTING).await, 1);
    ann.kill(&id).await;
    let ended = "SELECT count(*) FROM app.snapshots WHERE plain_end = 'ended' AND sealed_at < plain_ended_at AND plain_ended_at < gone_at";
    assert_eq!(count(&sql, ended).await, 1, "what rested ended before its file was gone");
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_rest_ends_with_its_time_and_leaves_the_sealed_file() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    rest(&home, "1");
    let (ann, id) = paused(&server, &sql).await;
    rests(&sql, 0).await;
    let (_, listed) = server.get_as(&ann.key, "/api/snapshots").await;
    assert!(listed[0]["sealedAt"].is_i64() && listed[0]["plain"].is_null(), "{listed}");
    assert_eq!(resumed(&ann, &id).await.0, 201);
    erased(&home).await;
    rest(&home, "3600");
    ann.pause(&id).await;
    sealed(&sql).await;
    assert_eq!(count(&sql, RESTING).await, 1);
    rest(&home, "0");
    rests(&sql, 0).await;
    assert_eq!(resumed(&ann, &id).await.0, 201);
    erased(&home).await;
    ann.pause(&id).await;
    sealed(&sql).await;
    assert_eq!(count(&sql, RESTING).await, 0, "none begins");
    damage(&home);
    let (status, answer) = resumed(&ann, &id).await;
    assert_eq!(status, 409, "only the damaged file is left: {answer}");
    ann.kill(&id).await;
    let bad = home.run(&["config", "set", "pause.rest_s", "3601", "--global"]);
    assert!(!bad.status.success() && said(&bad).contains("3600"), "{}", said(&bad));
    sql.close().await;
    gone(home, server).await;
}

/// A file of a layer that a process of the host keeps open.
fn held(server: &Server) -> File {
    let all = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().flatten();
    let found = all.filter_map(|fd| File::open(fd.path().join("upper").join(&FILE[1..])).ok());
    found.last().expect("the worker has the layer")
}

#[tokio::test]
async fn a_layer_that_somebody_keeps_delays_nobody_and_is_on_record_until_it_ends() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    rest(&home, "2");
    let (ann, id) = paused(&server, &sql).await;
    let file = held(&server);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(count(&sql, RESTING).await, 1, "its time is over, and it has not ended");
    let bob = Caller::of(&server, "bob").await;
    let (other, _) = bob.create(json!({"templateID": "base", "timeout": 600})).await;
    bob.pause(&other).await;
    let since = Instant::now();
    bob.kill(&other).await;
    assert_eq!(resumed(&ann, &id).await.0, 201, "from the file");
    ann.kill(&id).await;
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    // Twice as often as what is erased is looked for.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let of = |what: &str| {
        format!("SELECT count(*) FROM app.snapshots WHERE live_id = '{id}' AND {what}")
    };
    assert_eq!(count(&sql, &of("gone_at IS NULL AND plain_end IS NULL")).await, 1);
    drop(file);
    let gone_at = of("gone_at IS NOT NULL AND plain_end = 'ended'");
    until("it has ended, and is gone", SOON, async || count(&sql, &gone_at).await == 1).await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_host_with_few_ranges_of_ids_has_none_for_what_rests() {
    let home = Home::new();
    let server = home.up_with(&[], &[("COFFERDAM_ID_RANGE", "1700000000:393216")]);
    let sql = server.sql().await;
    let (ann, id) = paused(&server, &sql).await;
    assert_eq!(count(&sql, RESTING).await, 0);
    assert_eq!(resumed(&ann, &id).await.0, 201);
    ann.kill(&id).await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn whoever_waits_for_memory_ends_what_rests() {
    let home = Home::new();
    // Of one sandbox, and no more.
    let server = home.up_with(&["--memory-mb", "512"], &[]);
    let sql = server.sql().await;
    let (ann, id) = paused(&server, &sql).await;
    assert_eq!(count(&sql, RESTING).await, 1);
    let (next, _) = ann.create(json!({"templateID": "base", "timeout": 600})).await;
    rests(&sql, 0).await;
    ann.kill(&next).await;
    assert_eq!(resumed(&ann, &id).await.0, 201);
    ann.kill(&id).await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn a_life_that_does_not_begin_gives_up_what_rested_and_loses_nothing() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (ann, id) = paused(&server, &sql).await;
    for (value, answer) in [("0", 429), ("10", 201)] {
        let set = home.run(&["config", "set", "quota.live_sandboxes", value, "--global"]);
        assert!(set.status.success(), "{}", said(&set));
        let (status, said) = resumed(&ann, &id).await;
        assert_eq!(status, answer, "{said}");
        rests(&sql, 0).await;
    }
    ann.kill(&id).await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test]
async fn what_rests_ends_soon_after_another_server_of_the_installation_killed_or_resumed_it() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let mut other = home.up();
    let left = "SELECT count(*) FROM app.snapshots WHERE plain_ended_at IS NULL OR gone_at IS NULL";
    for kills in [true, false] {
        let (ann, id) = paused(&server, &sql).await;
        assert_eq!(count(&sql, RESTING).await, 1);
        let there = Caller::of(&other, "ann").await;
        if !kills {
            assert_eq!(resumed(&there, &id).await.0, 201);
        }
        there.kill(&id).await;
        until("what rested has ended, and is gone", SOON, async || count(&sql, left).await == 0)
            .await;
        assert_eq!(files(&home).len(), 0);
        drop(ann);
    }
    sql.close().await;
    assert!(other.stop().success());
    gone(home, server).await;
}

#[tokio::test]
async fn a_server_that_dies_while_a_layer_rests_or_is_lent_leaves_its_sealed_file() {
    let home = Home::new();
    for (place, wanted) in [
        ("layer.rests", "paused"),
        ("layer.held", "paused"),
        ("resume.recorded", "paused"),
        ("layer.begun", "ended"),
    ] {
        let mut server = home.up_with(&[], &[("COFFERDAM_FAILPOINT", place)]);
        let sql = server.sql().await;
        let (ann, id) = made(&server).await;
        let pause = format!("/sandboxes/{id}/pause");
        if place == "layer.rests" {
            fatal(&mut server, &ann, (&pause, json!({}))).await;
        } else {
            ann.pause(&id).await;
            sealed(&sql).await;
            let connect = format!("/v2/sandboxes/{id}/connect");
            fatal(&mut server, &ann, (&connect, json!({"timeout": 600}))).await;
        }
        sql.close().await;
        let next = Next::of(&home, &id).await;
        assert_eq!(next.state, wanted, "{place}");
        let sql = &next.sql;
        assert_eq!(count(sql, RESTING).await, 0, "{place}: on record as ended");
        if wanted == "paused" {
            assert_eq!(resumed(&next.ann, &id).await.0, 201, "{place}");
            next.ann.kill(&id).await;
        }
        erased(&home).await;
        let left = "SELECT count(*) FROM app.snapshots WHERE gone_at IS NULL";
        until("it is on record as gone", SOON, async || count(sql, left).await == 0).await;
        next.stop().await;
    }
    let server = home.up();
    gone(home, server).await;
}
