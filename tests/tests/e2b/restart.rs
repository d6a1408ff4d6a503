//! The server's restart, as the unmodified Python client sees it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_tests::port_reservation::PortReservation;
use cofferdam_tests::{Home, Server, assert_nothing_left, repository};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::kept::sealed;
use super::{Caller, PYTHON, answered, gone, installed};
use crate::support::{count, texts, until};

const SOON: Duration = Duration::from_secs(30);

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
    let port = PortReservation::new();
    let address = port.address().to_string();
    let up = || Server::start(&home, &["up", "--listen", &address], &[]);
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

/// A process that is stopped, until this is dropped.
struct Hanging(Pid);

impl Hanging {
    fn of(server: &Server) -> Self {
        let pid = Pid::from_raw(server.pid());
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

#[tokio::test]
async fn what_a_hanging_server_held_is_wiped_by_another_one_and_gone_once_that_is_true() {
    let home = Home::new();
    let mut hung = home.up();
    let other = home.up();
    let sql = other.sql().await;
    let ann = Caller::of(&hung, "ann").await;
    let body = || json!({"templateID": "base", "timeout": 600});
    let ((up, token), (rests, _)) = (ann.create(body()).await, ann.create(body()).await);
    let upload = ann.upload((&up, &token), "/home/user/file").body(vec![7_u8; 1 << 20]);
    assert_eq!(answered(upload).await.0, 200);
    ann.pause(&rests).await;
    sealed(&sql).await;
    let hanging = Hanging::of(&hung);
    let wiped = format!(
        "SELECT count(*) FROM app.live_sandboxes l JOIN app.secure_wipe_evidence w ON w.sandbox_id = l.sandbox_id
          WHERE l.id = '{up}' AND w.wipe_status = 'verified' AND w.reason = 'orphan'"
    );
    until("another server has wiped it", SOON, async || count(&sql, &wiped).await == 1).await;
    // The process that hangs has what rests, and nothing says that it is gone before that is so.
    let there = Caller::of(&other, "ann").await;
    assert_eq!(there.api("DELETE", &format!("/sandboxes/{rests}"), None).await.0, 204);
    tokio::time::sleep(Duration::from_secs(7)).await;
    let gone_at =
        "SELECT count(*) FROM app.snapshots WHERE erased_at IS NOT NULL AND gone_at IS NOT NULL";
    assert_eq!(count(&sql, gone_at).await, 0);
    drop(hanging);
    until("it ends: another one has its work", SOON, async || hung.has_ended()).await;
    until("what rested is gone", SOON, async || count(&sql, gone_at).await == 1).await;
    sql.close().await;
    gone(home, other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_that_its_sandbox_ended_with_a_server_that_was_stopped() {
    by(How::Stopped, "container").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_that_its_sandbox_ended_with_a_server_that_was_killed() {
    by(How::Killed, "container").await;
}
