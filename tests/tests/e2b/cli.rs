//! E2B's own command line, unmodified, by environment variables alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cofferdam_tests::Home;
use cofferdam_tests::not_run::not_run;
use serde_json::{Value, json};

use super::{SCRIPT, gone, install_modules, seen};
use crate::support::pty::{Interrupt, Terminal};
use crate::support::{ended, has_npm, said};

pub const PACKAGE: &str = "@e2b/cli@2.19.0";

/// The command line with its environment.
#[derive(Clone)]
struct Cli {
    program: PathBuf,
    home: PathBuf,
    url: String,
    key: String,
}

impl Cli {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("node");
        command.arg(&self.program).args(args).current_dir(&self.home).stdin(Stdio::null());
        command
            .env("HOME", &self.home)
            // It asks a registry for newer versions of itself otherwise.
            .env("NO_UPDATE_NOTIFIER", "1")
            .env("E2B_API_KEY", &self.key)
            .env("E2B_API_URL", &self.url)
            .env("E2B_SANDBOX_URL", &self.url);
        command
    }

    /// Its end, while this thread's runtime goes on: the relay to the server is part of it.
    async fn run(&self, args: &[&str]) -> Output {
        self.end_of(self.command(args)).await
    }

    async fn end_of(&self, command: Command) -> Output {
        tokio::task::spawn_blocking(move || ended(command, SCRIPT)).await.unwrap()
    }

    /// Text that it prints where it succeeds.
    async fn good(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert!(output.status.success(), "{args:?} {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn json(&self, args: &[&str]) -> Value {
        let text = self.good(args).await;
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{args:?} {why}: {text}"))
    }

    /// What it says where it fails with status 1.
    async fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(output.status.code(), Some(1), "{args:?} {}", said(&output));
        said(&output)
    }
}

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["sandboxId"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_e2b_works_unmodified() {
    if !has_npm("the command line of E2B") {
        return;
    }
    let Some(modules) = install_modules(PACKAGE) else {
        return not_run("the command line of E2B", "npm could not install it");
    };
    let program = modules.join("node_modules/@e2b/cli/dist/index.js");
    let home = Home::new();
    let server = home.up();
    let relay = seen::Relay::to(&server).await;
    let body = json!({"tenant": "clients", "roles": ["submitter"], "format": "e2b"});
    let (_, key) = server.new_key(&body).await;
    let own = tempfile::tempdir().unwrap();
    let cli = Cli { program, home: own.path().to_owned(), url: relay.url.clone(), key };
    let one = made(&cli, &["create", "--timeout", "300"]).await;
    let two = made(&cli, &["spawn", "base", "--lifecycle.ontimeout", "pause"]).await;
    lists(&cli, &one, &two).await;
    commands(&cli, &one).await;
    terminals(&cli, &one).await;
    records(&cli, &one).await;
    keeps(&cli, &two).await;
    builds(&cli, own.path()).await;
    refuses(&cli, own.path()).await;
    // The ends.
    assert!(cli.good(&["sandbox", "kill", &one]).await.contains("has been killed"));
    assert!(said(&cli.run(&["sandbox", "kill", &one]).await).contains("wasn't found"));
    assert!(cli.refused(&["sandbox", "info", &one]).await.contains("wasn't found"));
    assert!(
        cli.good(&["sandbox", "logs", "--format", "json", &one]).await.contains("ended: killed")
    );
    assert!(cli.good(&["sandbox", "kill", "--all"]).await.contains("Killed 1 running"));
    assert_eq!(cli.json(&["sandbox", "list", "-f", "json"]).await, json!([]));
    relay.hold("cli");
    gone(home, server).await;
}

/// The id of a sandbox that is made without a terminal.
async fn made(cli: &Cli, args: &[&str]) -> String {
    let id = cli.good(&[&["sandbox"], args, &["--detach"]].concat()).await.trim().to_owned();
    assert_eq!(id.len(), 20, "{id}");
    id
}

async fn lists(cli: &Cli, one: &str, two: &str) {
    let list =
        async |more: &[&str]| cli.json(&[&["sandbox", "list", "-f", "json"], more].concat()).await;
    let all = list(&[]).await;
    assert_eq!(ids(&all), [one, two], "{all}");
    assert_eq!(all[0]["templateId"], "base");
    assert_eq!(ids(&list(&["--order", "desc"]).await), [two, one]);
    assert_eq!(ids(&list(&["--order", "asc", "--limit", "1"]).await), [one]);
    assert_eq!(ids(&list(&["--order", "desc", "--limit", "1"]).await), [two]);
    assert_eq!(ids(&list(&["--started-after", "2020-01-01T00:00:00Z"]).await).len(), 2);
    for none in [
        ["--started-after", "2199-01-01T00:00:00Z"],
        ["--state", "paused"],
        ["--metadata", "a=b"],
        ["--template", "other"],
    ] {
        assert_eq!(list(&none).await, json!([]), "{none:?}");
    }
    let table = cli.good(&["sandbox", "list"]).await;
    assert!(table.contains(one) && table.contains(two), "{table}");
    let info = cli.json(&["sandbox", "info", "-f", "json", one]).await;
    assert_eq!((&info["state"], &info["allowInternetAccess"]), (&json!("running"), &json!(false)));
    assert!(cli.good(&["sandbox", "info", two]).await.contains("\"onTimeout\": \"pause\""));
    let templates = cli.json(&["template", "list", "-f", "json"]).await;
    assert_eq!(templates[0]["templateID"], "base");
    assert!(cli.good(&["template", "list"]).await.contains("base"));
}

async fn commands(cli: &Cli, id: &str) {
    let exec = async |args: &[&str]| cli.run(&[&["sandbox", "exec"], args].concat()).await;
    let failed = exec(&[id, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).await;
    assert_eq!(failed.status.code(), Some(7), "{}", said(&failed));
    assert_eq!(failed.stdout, b"out\n");
    assert!(String::from_utf8_lossy(&failed.stderr).starts_with("err\n"), "{}", said(&failed));
    let options = ["-u", "root", "-c", "/tmp", "-e", "A=b", id, "id -un; pwd; echo $A"];
    assert_eq!(exec(&options).await.stdout, b"root\n/tmp\nb\n");
    // More input than one message, to its end.
    let input = cli.home.join("input");
    std::fs::write(&input, vec![b'x'; 300_000]).unwrap();
    let mut piped = cli.command(&["sandbox", "exec", id, "wc -c"]);
    piped.stdin(std::fs::File::open(&input).unwrap());
    assert_eq!(cli.end_of(piped).await.stdout, b"300000\n");
    let behind = exec(&["--background", id, "echo begun > /tmp/begun; sleep 100"]).await;
    let pid: u32 = String::from_utf8_lossy(&behind.stderr).trim().parse().unwrap();
    assert!(behind.status.success() && pid > 1, "{}", said(&behind));
    assert_eq!(
        exec(&[id, "cat /tmp/begun; pgrep -f '[s]leep 100' | wc -l"]).await.stdout,
        b"begun\n1\n"
    );
    let missing = exec(&[&"z".repeat(20), "true"]).await;
    assert_eq!(missing.status.code(), Some(1), "{}", said(&missing));
}

/// `connect` is a shell in a terminal; `create` without `--detach` is one in a new sandbox.
async fn terminals(cli: &Cli, id: &str) {
    let (connects, creates) =
        (cli.command(&["sandbox", "connect", id]), cli.command(&["sandbox", "create"]));
    let typed = tokio::task::spawn_blocking(move || {
        for command in [connects, creates] {
            let mut shell = Terminal::start(&command, Interrupt::Usual);
            shell.wait_for("$");
            shell.types("echo the-$((40 + 2)); tty\r");
            shell.wait_for("the-42");
            shell.wait_for("/dev/pts/");
            shell.types("exit\r");
            let (status, shown) = shell.ended(Duration::from_secs(30));
            assert!(status.success(), "{shown}");
        }
    });
    typed.await.unwrap();
}

async fn records(cli: &Cli, id: &str) {
    let metrics = cli.json(&["sandbox", "metrics", "--format", "json", id]).await;
    assert_eq!(metrics["cpuCount"], 2, "{metrics}");
    assert!(metrics["memUsed"].as_u64().unwrap() > 0, "{metrics}");
    assert!(cli.good(&["sandbox", "metrics", id]).await.contains("MiB"));
    let logs = cli.good(&["sandbox", "logs", "--format", "json", id]).await;
    let lines = logs.lines().filter(|line| !line.is_empty());
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages: Vec<&str> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["sandbox created", "sandbox started"]);
    assert!(cli.good(&["sandbox", "logs", id]).await.contains("started"));
    assert!(cli.refused(&["sandbox", "logs", &"z".repeat(20)]).await.contains("not found"));
}

async fn keeps(cli: &Cli, id: &str) {
    assert!(cli.run(&["sandbox", "exec", id, "echo kept > a"]).await.status.success());
    cli.good(&["sandbox", "pause", id]).await;
    let paused = cli.json(&["sandbox", "list", "-f", "json", "--state", "paused"]).await;
    assert_eq!(ids(&paused), [id]);
    cli.good(&["sandbox", "resume", id]).await;
    assert_eq!(cli.run(&["sandbox", "exec", id, "cat a"]).await.stdout, b"kept\n");
    let resumes = ["create", "-d", "--lifecycle.ontimeout", "pause", "--lifecycle.autoresume"];
    let waits = cli.good(&[&["sandbox"], &resumes[..]].concat()).await;
    let waits = waits.trim();
    cli.good(&["sandbox", "pause", waits]).await;
    assert_eq!(cli.run(&["sandbox", "exec", waits, "echo woken"]).await.stdout, b"woken\n");
    cli.good(&["sandbox", "kill", waits]).await;
    cli.good(&["sandbox", "snapshot", "create", id]).await;
    let kept = cli.json(&["sandbox", "snapshot", "list", "-f", "json"]).await;
    let snapshot = kept[0]["snapshotId"].as_str().unwrap();
    assert!(cli.good(&["sandbox", "snapshot", "delete", snapshot]).await.contains("deleted"));
}

/// A Dockerfile becomes a template of its tenant.
async fn builds(cli: &Cli, dir: &Path) {
    let text = "FROM e2bdev/base\nENV WHO=me\nCOPY sent /srv/sent\nRUN echo \"$WHO\" > /srv/made\n";
    std::fs::write(dir.join("e2b.Dockerfile"), text).unwrap();
    std::fs::write(dir.join("sent"), "sent\n").unwrap();
    let shown = cli.good(&["template", "create", "mine"]).await;
    assert!(shown.contains("RUN echo"), "{shown}");
    assert!(cli.good(&["template", "list"]).await.contains("mine"));
    let id = cli.good(&["sandbox", "create", "-d", "mine"]).await;
    let id = id.trim();
    assert_eq!(
        cli.run(&["sandbox", "exec", id, "cat /srv/sent /srv/made"]).await.stdout,
        b"sent\nme\n"
    );
    cli.good(&["sandbox", "kill", id]).await;
    // It is its tenant's own, and stays so.
    cli.good(&["template", "unpublish", "mine", "--yes"]).await;
    let refused = cli.refused(&["template", "publish", "mine", "--yes"]).await;
    assert!(refused.contains("not supported: changes of templates"), "{refused}");
    cli.good(&["template", "delete", "mine", "--yes"]).await;
    assert!(!cli.good(&["template", "list"]).await.contains("mine"));
}

/// What there is not here is refused by the server in words, and the command line shows them.
async fn refuses(cli: &Cli, dir: &Path) {
    std::fs::write(dir.join("e2b.Dockerfile"), "FROM debian\nRUN true\n").unwrap();
    for (args, words) in [
        (&["template", "create", "mine"][..], "the image \"debian\" is not on this host"),
        (&["template", "publish", "base", "--yes"], "not supported: changes of templates"),
        (&["template", "unpublish", "base", "--yes"], "not supported: changes of templates"),
        (&["template", "delete", "base", "--yes"], "cofferdam template rm"),
        (&["template", "delete", "none", "--yes"], "not found"),
        (&["sandbox", "create", "-d", "none"], "\"none\" not found"),
    ] {
        let shown = cli.refused(args).await;
        assert!(shown.contains(words), "{args:?} {shown}");
    }
}
