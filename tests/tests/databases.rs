//! A state directory and its database: what is asked is answered by that one, or not at all.

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Output;
use std::time::Duration;

use cofferdam_tests::postgres::Postgres;
use cofferdam_tests::{Home, Server};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sqlx::PgPool;
use support::{count, ended, names, said, signal, until};

const SOON: Duration = Duration::from_secs(60);
const ADMINS: &str =
    "SELECT count(*) FROM app.api_keys WHERE 'admin' = ANY (roles) AND revoked_at IS NULL";

/// Without the variable that names the fleet's database, as a person's shell has it.
fn bare(home: &Home, args: &[&str]) -> Output {
    let mut command = home.command(args);
    command.env_remove("DATABASE_URL");
    ended(command, SOON)
}

fn with(home: &Home, url: &str, args: &[&str]) -> Output {
    let mut command = home.command(args);
    command.env("DATABASE_URL", url);
    ended(command, SOON)
}

/// Exit 2, the code, nothing on stdout.
#[track_caller]
fn refused(output: &Output, code: &str) -> String {
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{}", said(output));
    assert!(words.contains(&format!("({code})")), "{code}: {words}");
    assert!(output.stdout.is_empty(), "{}", said(output));
    words
}

#[track_caller]
fn fine(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
}

fn key(home: &Home) -> String {
    fs::read_to_string(home.path().join("admin.key")).unwrap()
}

fn no_private(home: &Home) {
    assert!(!home.path().join("database").exists(), "{:?}", names(home.path()));
}

/// What asks, what executes, and what reads the database itself.
const ASKED: [&[&str]; 8] = [
    &["ps"],
    &["prove"],
    &["run", "examples/value.yaml"],
    &["exec", "--", "true"],
    &["gate", "ls"],
    &["key", "ls"],
    &["key", "signing"],
    &["db"],
];

#[tokio::test(flavor = "multi_thread")]
async fn a_fleets_state_directory_is_answered_by_the_fleets_database_or_not_at_all() {
    let mut database = Postgres::start().await;
    let home = Home::on(&database.url());
    let mut up = home.up();
    let before = key(&home);
    let header = up.run_recipe(
        "{id: v, v: \"1\", plan: {tasks: [{name: t, value: kept}]}}",
        json!({}),
        json!({}),
    );
    let run = cofferdam_tests::text(&header.await, "runId");
    up.wait_terminal(&run).await;
    let listed = bare(&home, &["ps"]);
    fine(&listed);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(&run), "its server answers it");

    database.end(Signal::SIGKILL);
    until("the server says so", SOON, async || up.get("/healthz").await.0 == 503).await;
    for args in ASKED {
        let code = match args {
            ["key", "signing"] | ["db"] => "database_not_given",
            _ => "database_unreachable",
        };
        refused(&bare(&home, args), code);
        refused(&with(&home, &database.url(), args), "database_unreachable");
    }
    let report = home.run_json(&["doctor", "--json"]);
    let problem = report["serverProblem"].as_str().unwrap_or_default();
    assert!(problem.contains("does not reach its database"), "{report}");
    no_private(&home);
    assert_eq!(key(&home), before, "the key is the one that its server knows");

    database.resume().await;
    until("the server is well", SOON, async || up.get("/healthz").await.0 == 200).await;
    assert_eq!(up.get("/api/runs").await.0, 200, "with the key of its start");
    fine(&bare(&home, &["ps"]));
    assert_eq!(count(&database.sql().await, ADMINS).await, 1);

    assert!(up.stop().success());
    for args in ASKED {
        let words = refused(&bare(&home, args), "database_not_given");
        assert!(words.contains("fleet at 127.0.0.1") && !words.contains("owner"), "{words}");
    }
    let mut doctor = home.command(&["doctor", "--json"]);
    doctor.env_remove("DATABASE_URL");
    let report: Value = serde_json::from_slice(&ended(doctor, SOON).stdout).unwrap();
    assert!(report["database"].as_str().unwrap().contains("the database fleet at"), "{report}");
    no_private(&home);
    assert_eq!(key(&home), before);
    fine(&with(&home, &database.url(), &["prove"]));
    assert_eq!(count(&database.sql().await, ADMINS).await, 1, "nor did these make keys");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_workers_host_no_go_is_said_of_another_database() {
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    let _worker = Server::start(&home, &["worker"], &[]);
    for args in
        [&["prove"][..], &["ps"], &["up", "--listen", "127.0.0.1:0"], &["worker"], &["adopt"]]
    {
        refused(&bare(&home, args), "database_not_given");
    }
    no_private(&home);
    let sql = database.sql().await;
    sqlx::query("CREATE DATABASE other").execute(&sql).await.unwrap();
    let other = database.url().replace("/fleet?", "/other?");
    for args in ASKED.into_iter().chain([&["worker"][..]]) {
        let words = refused(&with(&home, &other, args), "database_differs");
        assert!(words.contains("fleet at") && words.contains("other at"), "{words}");
    }
    let beside = PgPool::connect(&other).await.unwrap();
    let tables = "SELECT count(*) FROM pg_namespace WHERE nspname IN ('app', 'dbos')";
    assert_eq!(count(&beside, tables).await, 0, "the other one is as it was");
    // However its address is written, it is the same database.
    let port = database.address().port();
    for spelled in [
        format!("postgresql://owner@localhost:{port}/fleet"),
        format!(
            "postgres://owner:unused@127.0.0.1:{port}/fleet?sslmode=disable&application_name=x"
        ),
    ] {
        fine(&with(&home, &spelled, &["prove"]));
    }
    assert_eq!(count(&sql, ADMINS).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_silent_or_not_understood_is_replaced_by_no_other() {
    let home = Home::empty();
    let mut up = home.up();
    let before = key(&home);
    signal(up.pid(), Signal::SIGSTOP);
    let output = bare(&home, &["ps"]);
    signal(up.pid(), Signal::SIGCONT);
    refused(&output, "server_silent");
    fine(&bare(&home, &["ps"]));
    let endpoint = home.path().join("endpoint.json");
    let announced = fs::read(&endpoint).unwrap();
    fs::remove_file(&endpoint).unwrap();
    refused(&bare(&home, &["ps"]), "server_unannounced");
    fs::write(&endpoint, &announced).unwrap();
    fine(&bare(&home, &["ps"]));
    assert!(up.stop().success());

    let listener = UnixListener::bind(home.path().join("api.sock")).unwrap();
    fs::write(&endpoint, &announced).unwrap();
    let answering = std::thread::spawn(move || {
        // The first connection only looks at who listens.
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 4096];
            if stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK");
            }
        }
    });
    refused(&bare(&home, &["ps"]), "server_unreadable");
    answering.join().unwrap();
    // What is left of it refuses, so that a command does its work itself.
    fine(&bare(&home, &["ps"]));
    assert_eq!(key(&home), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_database_is_exchanged_for_another_by_adopt_alone() {
    let database = Postgres::start().await;
    let home = Home::empty();
    fine(&bare(&home, &["run", "examples/value.yaml"]));
    let before = key(&home);
    let words = refused(&with(&home, &database.url(), &["ps"]), "database_differs");
    assert!(words.contains("its private database") && words.contains("cofferdam adopt"), "{words}");
    let away = home.path().join("away");
    fs::rename(home.path().join("database"), &away).unwrap();
    for args in ASKED {
        refused(&bare(&home, args), "database_missing");
    }
    no_private(&home);
    fs::rename(&away, home.path().join("database")).unwrap();
    fine(&bare(&home, &["ps"]));
    assert_eq!(key(&home), before);
    // Its own address, given, is itself.
    let up = home.up();
    fine(&with(&home, &home.database_url(), &["key", "signing"]));
    fine(&with(&home, &home.database_url(), &["ps"]));
    // Its server would answer of the recorded one, which is not what was asked for.
    for args in [&["prove"][..], &["ps"], &["run", "examples/value.yaml"]] {
        refused(&with(&home, &database.url(), args), "database_differs");
    }
    let output = with(&home, &database.url(), &["adopt"]);
    assert_eq!(output.status.code(), Some(3), "a server runs on it: {}", said(&output));
    drop(up);
    fine(&with(&home, &database.url(), &["adopt"]));
    fine(&with(&home, &database.url(), &["ps"]));
    assert_ne!(key(&home), before);
    let kept = names(home.path()).into_iter().find(|name| name.starts_with("admin.key."));
    assert_eq!(fs::read_to_string(home.path().join(kept.unwrap())).unwrap(), before);
    refused(&bare(&home, &["ps"]), "database_not_given");
    assert_eq!(count(&database.sql().await, ADMINS).await, 1);
}

/// As versions before the record left them.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_from_before_the_record_is_taken_on_where_its_key_says_whose_it_is() {
    let database = Postgres::start().await;
    let fleet = Home::on(&database.url());
    fine(&fleet.run(&["ps"]));
    let record = |home: &Home| home.path().join("database.json");
    fs::remove_file(record(&fleet)).unwrap();
    let sql = database.sql().await;
    let unclaimed = "UPDATE app.api_keys SET state_dir = NULL";
    sqlx::query(unclaimed).execute(&sql).await.unwrap();
    refused(&bare(&fleet, &["ps"]), "database_unknown");
    no_private(&fleet);
    fine(&fleet.run(&["ps"]));
    refused(&bare(&fleet, &["ps"]), "database_not_given");
    // Its key is known as its own now: losing the file leaves no second one.
    let lost = key(&fleet);
    fs::remove_file(fleet.path().join("admin.key")).unwrap();
    fine(&fleet.run(&["ps"]));
    assert_ne!(key(&fleet), lost);
    assert_eq!(count(&sql, ADMINS).await, 1);

    let alone = Home::empty();
    fine(&alone.run(&["ps"]));
    let before = key(&alone);
    fs::remove_file(record(&alone)).unwrap();
    refused(&with(&alone, &database.url(), &["ps"]), "database_unknown");
    fine(&alone.run(&["ps"]));
    assert_eq!(key(&alone), before);
    // The fleet's key beside a private database that was made by mistake.
    fs::remove_file(record(&alone)).unwrap();
    fs::copy(fleet.path().join("admin.key"), alone.path().join("admin.key")).unwrap();
    refused(&bare(&alone, &["ps"]), "database_unknown");
    fine(&with(&alone, &database.url(), &["ps"]));
    refused(&bare(&alone, &["ps"]), "database_not_given");
    // A damaged record names no database.
    fs::write(record(&alone), "{").unwrap();
    refused(&with(&alone, &database.url(), &["ps"]), "database_unknown");
    fine(&with(&alone, &database.url(), &["adopt"]));
    fine(&with(&alone, &database.url(), &["ps"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_has_one_admin_key_that_works() {
    let database = Postgres::start().await;
    let home = Home::on(&database.url());
    // Several at once, on a directory and a database that are new.
    let many: Vec<_> = (0..4)
        .map(|_| home.command(&["ps"]))
        .map(|command| tokio::task::spawn_blocking(move || ended(command, SOON)))
        .collect();
    for one in many {
        fine(&one.await.unwrap());
    }
    let sql = database.sql().await;
    assert_eq!(count(&sql, ADMINS).await, 1);
    let first = key(&home);
    fs::remove_file(home.path().join("admin.key")).unwrap();
    fine(&home.run(&["ps"]));
    assert_ne!(key(&home), first);
    assert_eq!(count(&sql, ADMINS).await, 1, "the lost one is revoked");
    let recorded = "SELECT count(*) FROM app.audit WHERE op = 'key.revoke'";
    assert_eq!(count(&sql, recorded).await, 1);
    // Another host of the fleet has its own, and each keeps it.
    let other = Home::on(&database.url());
    fine(&other.run(&["ps"]));
    fine(&home.run(&["ps"]));
    assert_eq!(count(&sql, ADMINS).await, 2);
    let revoke = "UPDATE app.api_keys SET revoked_at = now() WHERE revoked_at IS NULL";
    sqlx::query(revoke).execute(&sql).await.unwrap();
    let second = key(&home);
    fine(&home.run(&["ps"]));
    let kept = names(home.path()).into_iter().find(|name| name.starts_with("admin.key."));
    assert_eq!(fs::read_to_string(home.path().join(kept.unwrap())).unwrap(), second);
    assert_eq!(count(&sql, ADMINS).await, 1);
}
