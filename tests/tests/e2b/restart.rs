//! The server's restart, as the unmodified Python client sees it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_tests::{Home, Server, assert_nothing_left, repository};
use serde_json::json;

use super::{PYTHON, gone, installed};
use crate::support::{texts, until};

/// How the server ends.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum How {
    Stopped,
    Killed,
}

pub(super) async fn by(how: How, class: &str) {
    let Some(python) = installed(PYTHON[0]) else { return };
    let home = Home::new();
    // A client keeps its address.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let up = || Server::start(&home, &["up", "--listen", &free], &[]);
    let mut server = up();
    let body = json!({"tenant": "clients", "roles": ["submitter"], "format": "e2b"});
    let (_, key) = server.new_key(&body).await;
    let mut client = Command::new(python)
        .arg(repository().join("tests/tests/e2b/restart.py"))
        .env("SANDBOX_CLASS", class)
        .env("E2B_API_KEY", key)
        .env("E2B_API_URL", &server.url)
        .env("E2B_SANDBOX_URL", &server.url)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("created "), "{line}");
    match how {
        How::Stopped => {
            assert!(server.stop().success());
            assert_nothing_left(home.path());
        }
        How::Killed => server.kill(),
    }
    let server = up();
    client.stdin.take().unwrap().write_all(b"again\n").unwrap();
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        (client.wait().unwrap(), rest)
    });
    let (status, rest) =
        tokio::time::timeout(Duration::from_secs(180), rest).await.unwrap().unwrap();
    assert!(status.success() && rest.ends_with("done\n"), "{rest}");
    let sql = server.sql().await;
    // Two were made and no third; each ended with its reason and evidence.
    let is_told = |row: &str| match how {
        How::Stopped => row == "the server that held it was stopped, stopped, verified",
        // Its client's own kill may come first, and is the reason then.
        How::Killed => row.ends_with(", orphan, verified"),
    };
    until("both ended with evidence", Duration::from_secs(30), async || {
        let rows = texts(
            &sql,
            "SELECT l.end_reason || ', ' || w.reason || ', ' || w.wipe_status FROM app.live_sandboxes l
               JOIN app.secure_wipe_evidence w ON w.sandbox_id = l.sandbox_id
              WHERE l.ended_at IS NOT NULL ORDER BY l.created_at",
        )
        .await;
        rows.len() == 2 && is_told(&rows[0]) && rows[1] == "killed, killed, verified"
    })
    .await;
    sql.close().await;
    gone(home, server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_that_its_sandbox_ended_with_a_server_that_was_stopped() {
    by(How::Stopped, "container").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_that_its_sandbox_ended_with_a_server_that_was_killed() {
    by(How::Killed, "container").await;
}
