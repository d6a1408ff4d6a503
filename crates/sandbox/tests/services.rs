//! Services inside a sandbox: they answer a task, outlive its commands and end with the sandbox.

use crate::support;

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::{ErrCode, WipeStatus};
use cofferdam_sandbox::{ProvisionError, provision};
use serde_json::{Value, json};
use support::not_run::not_run;
use support::{Bench, in_classes, sh, verified, with_bench};

fn with(services: Value) -> Value {
    json!({
        "limits": {"memMB": 256, "diskMB": 128, "pids": 64},
        "spec": {"services": services},
    })
}

/// A service in perl: `body` runs with `$l`, a listener on port 7000.
fn perl(body: &str, health: Value) -> Value {
    let listen = "$l = IO::Socket::INET->new(Listen => 5, LocalAddr => \"127.0.0.1\", LocalPort => \
                  7000, ReuseAddr => 1) or die \"taken: $!\"; $| = 1; print \"listening\\n\";";
    let cmd = ["perl", "-MIO::Socket::INET", "-e", &format!("{listen} {body}")];
    json!({"name": "fake", "cmd": cmd, "port": 7000, "health": health})
}

async fn failed(bench: &Bench, services: Value) -> ProvisionError {
    let plan = bench.plan(with(services));
    let error = provision(&bench.host, &plan, &[]).await.unwrap_err();
    assert_eq!(error.code, ErrCode::BootFail, "{error}");
    assert_eq!(error.evidence.status, WipeStatus::Verified, "{error:?}");
    error
}

#[test]
fn postgres_answers_sql_in_every_command_and_is_gone_with_the_sandbox() {
    in_classes(&[], |bench| async move {
        if bench.host.facts().services.postgres.is_none() {
            not_run("PostgreSQL as a service", "apt-get install postgresql");
            return;
        }
        let (sandbox, plan) = bench.start(with(json!(["postgres"]))).await;
        let psql = |sql: &str| format!("psql -v ON_ERROR_STOP=1 -Atc \"{sql}\"");
        let sql = "create table t as select 7 as n; select n * 6 from t";
        let said = sh(&sandbox, &plan, &psql(sql)).await;
        assert!(said.stdout.ends_with("42\n"), "{} {}", said.stdout, said.stderr);
        // The sweep after the first command spared it, and took what the command left.
        let said =
            sh(&sandbox, &plan, "setsid sleep 1000 & psql $DATABASE_URL -Atc 'table t'").await;
        assert_eq!(said.stdout, "7\n", "{}", said.stderr);
        let said = sh(&sandbox, &plan, "cat /proc/[0-9]*/comm").await;
        assert!(
            said.stdout.contains("postgres") && !said.stdout.contains("sleep"),
            "{}",
            said.stdout
        );
        // The password is needed, and nobody else listens anywhere but on loopback.
        let said = sh(&sandbox, &plan, "PGPASSWORD=wrong psql -Atc 'select 1'").await;
        assert!(said.stderr.contains("password authentication failed"), "{}", said.stderr);
        // By the variables that images have, in place of the client's own.
        let by_image = "env -u PGHOST -u PGPORT -u PGUSER -u PGPASSWORD -u PGDATABASE -u DATABASE_URL \
            PGPASSWORD=$POSTGRES_PASSWORD psql -h $POSTGRES_HOST -p $POSTGRES_PORT -U $POSTGRES_USER $POSTGRES_DB -Atc 'table t'";
        let said = sh(&sandbox, &plan, by_image).await;
        assert_eq!(said.stdout, "7\n", "{}", said.stderr);
        let ends = sandbox.services();
        assert_eq!((ends[0].report.name.as_str(), ends[0].report.exit), ("postgres", None));
        let log = String::from_utf8_lossy(&ends[0].log);
        assert!(log.contains("ready to accept connections"), "{log}");
        println!("postgres was healthy after {} ms", ends[0].report.ready_ms);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn r42_redis_answers_as_wherever_tests_find_one() {
    in_classes(&[], |bench| async move {
        if bench.host.facts().services.redis.is_none() {
            not_run("Redis as a service", "apt-get install redis-server");
            return;
        }
        let (sandbox, plan) = bench.start(with(json!([{"name": "redis", "port": 6400}]))).await;
        let talk = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(PeerAddr => $ENV{REDIS_HOST}, \
                    PeerPort => $ENV{REDIS_PORT}) or die; for (@ARGV) { print $s \"$_\\r\\n\"; \
                    print scalar <$s> }' --";
        let said = sh(&sandbox, &plan, &format!("{talk} 'SET a 1' 'INCR a'")).await;
        assert_eq!(said.stdout, "+OK\r\n:2\r\n", "{}", said.stderr);
        let said = sh(&sandbox, &plan, "echo $REDIS_URL").await;
        assert_eq!(said.stdout, "redis://127.0.0.1:6400/0\n");
        println!("redis was healthy after {} ms", sandbox.services()[0].report.ready_ms);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_service_that_only_listens_is_not_healthy() {
    in_classes(&[], |bench| async move {
        for probe in ["postgres", "redis", "http"] {
            // On a loaded host, or an emulated processor, the program has not begun when a short
            // time is over: it gets more until it has.
            let mut ms = 700;
            let message = loop {
                let health = json!({"probe": probe, "timeout_ms": ms});
                let error = failed(&bench, json!([perl("sleep 100", health)])).await;
                if error.message.contains("listening") || ms > 20_000 {
                    break error.message;
                }
                ms *= 3;
            };
            for part in ["`fake`", &format!("not healthy within {ms} ms"), "listening"] {
                assert!(message.contains(part), "{message}");
            }
        }
        // With nothing more asked of it than a connection it is healthy.
        let (sandbox, plan) = bench.start(with(json!([perl("sleep 100", json!({}))]))).await;
        assert_eq!(
            sh(&sandbox, &plan, "echo $FAKE_HOST:$FAKE_PORT").await.stdout,
            "127.0.0.1:7000\n"
        );
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_service_that_exits_is_named_with_its_last_words() {
    in_classes(&[], |bench| async move {
        let dies =
            json!({"name": "dies", "cmd": ["sh", "-c", "echo no config >&2; exit 3"], "port": 1});
        let message = failed(&bench, json!([dies])).await.message;
        assert!(message.contains("`dies` ended with status 3"), "{message}");
        assert!(message.contains("no config"), "{message}");
        let absent = json!({"name": "absent", "cmd": ["no-such-server"], "port": 1});
        let message = failed(&bench, json!([absent])).await.message;
        assert!(message.contains("\"no-such-server\" was not found"), "{message}");
        // The port of an earlier one: whoever answers there is not it.
        let second = {
            let mut second = perl("sleep 100", json!({}));
            second["name"] = json!("second");
            second["port"] = json!(7001);
            second
        };
        let message = failed(&bench, json!([perl("sleep 100", json!({})), second])).await.message;
        assert!(message.contains("`second` ended") && message.contains("taken"), "{message}");
    });
}

#[test]
fn a_service_that_ends_during_the_task_is_reported_and_one_that_ignores_term_is_gone() {
    in_classes(&[], |bench| async move {
        let brief = json!({
            "name": "brief", "port": 7002,
            "cmd": ["perl", "-MIO::Socket::INET", "-e",
                    "$l = IO::Socket::INET->new(Listen => 5, LocalPort => 7002); $l->accept; \
                     $l->accept; exit 4"],
        });
        let stubborn =
            perl("$SIG{TERM} = $SIG{INT} = \"IGNORE\"; fork; sleep 100 while 1", json!({}));
        let (sandbox, plan) = bench.start(with(json!([stubborn, brief]))).await;
        let talk = "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(PeerAddr => \
                    \"127.0.0.1:7002\") or exit 9'; sleep 0.3";
        assert_eq!(sh(&sandbox, &plan, talk).await.outcome.exit, 0);
        sh(&sandbox, &plan, "true").await;
        let ends = sandbox.services();
        let reports: Vec<_> =
            ends.iter().map(|end| (end.report.name.as_str(), end.report.exit)).collect();
        assert_eq!(reports, [("fake", None), ("brief", Some(4))]);
        // Both processes of the stubborn one are there, beside the agent and ours.
        let said = sh(&sandbox, &plan, "cat /proc/[0-9]*/comm | grep -c perl").await;
        assert_eq!(said.stdout, "2\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_task_that_kills_its_services_or_floods_them_hurts_only_itself() {
    in_classes(&[], |bench| async move {
        let flood = perl("print \"x\" x 65536 while 1", json!({}));
        let (sandbox, plan) = bench.start(with(json!([flood]))).await;
        assert_eq!(sh(&sandbox, &plan, "sleep 1; echo alive").await.stdout, "alive\n");
        assert!(sandbox.services()[0].log.len() <= 256 * 1024);
        sh(&sandbox, &plan, "kill -9 -1; sleep 0.2").await;
        assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
        let end = sandbox.services().remove(0);
        assert_eq!(end.report.exit, Some(137));
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_fork_bomb_beside_a_service_is_swept_and_the_service_lives() {
    // In gVisor it takes its sandbox along.
    with_bench(|bench| async move {
        let mut fields = with(json!([perl("sleep 100", json!({}))]));
        fields["timeoutMs"] = json!(1_000);
        // The kernel frees the memory of refused forks later, and without room it ends the service.
        fields["limits"]["memMB"] = json!(512);
        let (sandbox, plan) = bench.start(fields).await;
        let outcome = sh(&sandbox, &plan, "perl -e 'while (1) { fork }'").await.outcome;
        assert_eq!(outcome.err_code, ErrCode::Timeout);
        // The agent, the service and the shell, once the kernel has taken apart what was killed.
        let mut left = String::new();
        for _ in 0..50 {
            left = sh(&sandbox, &plan, "echo /proc/[0-9]*").await.stdout;
            if left.split_whitespace().count() == 3 {
                break;
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(left.split_whitespace().count(), 3, "{left}");
        assert_eq!(sandbox.services()[0].report.exit, None);
        verified(&sandbox.wipe("task-end").await);
    });
}
