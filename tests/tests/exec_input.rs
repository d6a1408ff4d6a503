//! What a command of `exec` is given: variables, standard input of any kind and length, a terminal.

use crate::secrets::scan;
use crate::support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Output, Stdio};
use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::pty::{CTRL_C, Interrupt, Terminal};
use support::{ended, exit_code, said, signal};

const LIMIT: Duration = Duration::from_secs(120);
/// What no row may have.
const MARK: &str = "marker-of-an-input-that-is-nowhere";

fn random(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

/// A command whose input is a pipe that these bytes come through, piece by piece.
fn piped(home: &Home, args: &[&str], input: Vec<u8>) -> Output {
    let (read, mut write) = std::io::pipe().unwrap();
    let mut command = home.command(args);
    command.stdin(Stdio::from(read));
    let writer = std::thread::spawn(move || {
        // A command may end before it has read all of it.
        let _ = write.write_all(&input);
    });
    let output = ended(command, LIMIT);
    writer.join().unwrap();
    output
}

#[test]
fn input_of_any_bytes_and_length_reaches_the_command_whole() {
    let home = Home::new();
    let bytes = random(10 * 1024 * 1024);
    let output = piped(&home, &["exec", "-i", "--", "cat"], bytes.clone());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == bytes, "{} bytes of {}", output.stdout.len(), bytes.len());
    // Without -i, too, where it is too much for the plan or no text; and from a file.
    let output = piped(&home, &["exec", "--", "cat"], bytes[..300_000].to_vec());
    assert!(output.stdout == bytes[..300_000], "{} bytes", output.stdout.len());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("input");
    fs::write(&file, &bytes[..1_000_001]).unwrap();
    let mut command = home.command(&["exec", "--json", "-i", "--", "wc", "-c"]);
    command.stdin(File::open(&file).unwrap());
    let output = ended(command, LIMIT);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&object["stdout"], &object["exit"]), (&json!("1000001\n"), &json!(0)), "{object}");
    // No input at all is an end of input.
    let output = piped(&home, &["exec", "-i", "--", "wc", "-c"], Vec::new());
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"0\n"[..]));
}

#[test]
fn input_comes_as_it_is_written_and_a_command_that_reads_no_more_goes_on() {
    let home = Home::new();
    let script = "while read line; do echo \"got $line\"; done; echo over; exit 5";
    let mut command = home.command(&["exec", "-i", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    for word in ["one", "two"] {
        writeln!(input, "{word}").unwrap();
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, format!("got {word}\n"), "before the end of input");
    }
    drop(input);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), exit_code(&mut child, LIMIT)), ("over\n", Some(5)));
    for (script, want) in [("head -c 3 | wc -c", "3\n"), ("exec <&-; sleep 1; echo done", "done\n")]
    {
        let mut command = home.command(&["exec", "-i", "--", "sh", "-c", script]);
        command.stdin(File::open("/dev/zero").unwrap());
        let output = ended(command, LIMIT);
        assert_eq!(output.stdout, want.as_bytes(), "{script}: {}", said(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_row_has_streamed_input() {
    let home = Home::new();
    let up = home.up();
    let input = format!("{MARK}\n").repeat(1_000).into_bytes();
    let size = format!("{}\n", input.len());
    let output = piped(&home, &["exec", "-i", "--", "wc", "-c"], input);
    assert_eq!(output.stdout, size.as_bytes(), "{}", said(&output));
    let sql = up.sql().await;
    let found = scan::in_rows(&sql, &scan::forms(MARK)).await;
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn variables_are_the_commands_and_a_bad_one_is_refused_before_anything_starts() {
    let empty = Home::empty();
    for (args, word) in [
        (&["-e", "=x"][..], "NAME=VALUE"),
        (&["-e", "A B=secret-value"][..], "space"),
        (&["-e", "COFFERDAM_TEST_UNSET"][..], "not set here"),
        (&["--env-file", "/no/such/file"][..], "/no/such/file"),
        (&["-t"][..], "-t needs a terminal"),
    ] {
        let all = [&["exec"][..], args, &["--", "true"]].concat();
        let mut command = empty.command(&all);
        command.stdin(Stdio::null());
        let output = ended(command, LIMIT);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{args:?}: {words}");
        assert!(words.contains(word) && !words.contains("secret-value"), "{args:?}: {words}");
    }
    assert!(support::names(empty.path()).is_empty(), "nothing was started");

    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("env");
    fs::write(&file, "# of a file\nA=file\nB=two words ${x}\n").unwrap();
    let args = ["exec", "--no-stdin", "-e", "A=mine", "-e", "FROM_HERE", "--env-file"];
    let script = "printf '%s|%s|%s' \"$A\" \"$B\" \"$FROM_HERE\"";
    let all = [&args[..], &[file.to_str().unwrap(), "--", "sh", "-c", script]].concat();
    let mut command = home.command(&all);
    command.env("FROM_HERE", "here");
    let output = ended(command, LIMIT);
    assert_eq!(output.stdout, b"mine|two words ${x}|here", "{}", said(&output));
}

#[test]
fn a_terminal_has_the_size_of_ours_takes_every_key_and_is_given_back() {
    let home = Home::new();
    let sized = |rows: u16, cols: u16| {
        format!("until [ \"$(stty size)\" = '{rows} {cols}' ]; do sleep 0.1; done; ")
    };
    let script = format!(
        "tty -s && test -t 1 && echo ready; {}echo first $((1+1)); {}echo second $((1+2)); read line; \
         echo \"got $line\"; exit 7",
        sized(30, 90),
        sized(41, 101)
    );
    let args = ["exec", "-it", "--", "sh", "-c", &script];
    let mut terminal = Terminal::start(&home.command(&args), Interrupt::Usual);
    let modes = terminal.modes();
    terminal.wait_for("ready");
    assert!(!terminal.shown().contains("first 2"), "{}", terminal.shown());
    terminal.resize(30, 90);
    terminal.wait_for("first 2");
    terminal.resize(41, 101);
    terminal.wait_for("second 3");
    assert!(!modes.is_canonical_again(), "every key is passed on");
    terminal.types("words\r");
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(7), "{shown}");
    assert!(shown.contains("got words"), "{shown}");
    assert!(modes.is_canonical_again(), "{shown}");
}

#[test]
fn ctrl_c_goes_into_the_terminal_and_a_hangup_ends_the_sandbox() {
    let home = Home::new();
    let _up = home.up();
    let script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done";
    let args = ["exec", "-it", "--", "sh", "-c", script];
    let mut terminal = Terminal::start(&home.command(&args), Interrupt::Usual);
    let modes = terminal.modes();
    terminal.wait_for("ready");
    terminal.types(CTRL_C);
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(9), "{shown}");
    assert!(shown.contains("caught") && modes.is_canonical_again(), "{shown}");
    for (what, want) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut terminal = Terminal::start(&home.command(&args), Interrupt::Usual);
        let modes = terminal.modes();
        terminal.wait_for("ready");
        signal(terminal.pid(), what);
        let (status, shown) = terminal.ended(LIMIT);
        assert_eq!(status.code(), Some(want), "{what}: {shown}");
        assert!(modes.is_canonical_again(), "{what}: {shown}");
        let runs = home.run_json(&["ps", "--json"]);
        assert_eq!(runs["runs"][0]["status"], "canceled", "{what}: {runs}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_before_the_end_of_its_input_ends_the_command() {
    let home = Home::new();
    let up = home.up();
    let script = "echo ready; cat >/dev/null; echo whole; sleep 600";
    let mut command = home.command(&["exec", "-i", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"a part of it").unwrap();
    // Kept: a reader that goes would end the command, too.
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let runs = home.run_json(&["ps", "--json"]);
    let run = text(&runs["runs"][0], "runId");
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGKILL);
    child.wait().unwrap();
    let over = up.wait_terminal(&run).await;
    assert_eq!(over["status"], "failed", "{over}");
    let (_, steps) = up.get(&format!("/api/runs/{run}/steps")).await;
    assert!(steps.to_string().contains("its client was gone before the end"), "{steps}");
    let logs = home.run(&["logs", &run]);
    assert_eq!(logs.stdout, b"ready\n", "it never took the part for the whole: {}", said(&logs));
}

/// A start that a client attends, by the API.
async fn started(up: &Server, mode: &str, run: &str) -> String {
    let recipe = json!({"id": "fed", "v": "1", "plan": {"tasks": [
        {"name": "t", "exec": {"run": run, "input": mode, "timeout": "2m"}}]}});
    let body = json!({"recipe": recipe, "origin": "test"});
    let (status, imported) = up.post("/api/recipes/import", &body).await;
    assert_eq!(status, 201, "{imported}");
    let body = json!({"recipeRef": imported["recipeRef"], "recipeHash": imported["hash"], "formData": {},
        "opts": {"runKey": format!("{mode}:{run}")}});
    let (status, refused) = up.post("/api/run", &body).await;
    assert_eq!((status, &refused["code"]), (400, &json!("policy_violation")), "{refused}");
    let (status, header) = up.post("/api/run?output=true", &body).await;
    assert_eq!(status, 201, "{header}");
    text(&header, "runId")
}

async fn put(up: &Server, key: &str, path: &str, kind: &str, bytes: &[u8]) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.put(format!("{}{path}", up.url)).bearer_auth(key);
    let request = request.header("content-type", kind).body(bytes.to_vec());
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_that_started_a_run_alone_sends_its_input_and_may_send_a_part_again() {
    const BYTES: &str = "application/octet-stream";
    let home = Home::new();
    let up = home.up();
    let (_, other) = up.new_key(&json!({"roles": ["submitter"]})).await;
    let run = started(&up, "stream", "cat").await;
    let path = |rest: &str| format!("/api/runs/{run}/input?{rest}");
    let own = up.key.clone();
    for (key, rest, bytes, want) in [
        (&other, "at=0", &b"stolen"[..], (403, json!("forbidden"))),
        (&own, "at=0", &b"hello "[..], (200, json!(6))),
        (&own, "at=0", &b"hello "[..], (200, json!(6))),
        (&own, "at=4", &b"o wor"[..], (200, json!(9))),
        (&own, "at=99", &b"x"[..], (409, json!("conflict"))),
        (&own, "at=9&end=true", &b"ld\xff"[..], (200, json!(12))),
        (&own, "at=9&end=true", &b"ld\xff"[..], (200, json!(12))),
    ] {
        let (status, answer) = put(&up, key, &path(rest), BYTES, bytes).await;
        let said = if status == 200 { &answer["next"] } else { &answer["code"] };
        // A run that has all of its input may be over already.
        let is_late = rest.contains("end") && status == 409 && said == "state_conflict";
        assert!(is_late || (status, said.clone()) == want, "{rest}: {status} {answer}");
    }
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let logs = home.run(&["logs", &run]);
    assert_eq!(logs.stdout, b"hello world\xff", "{}", said(&logs));

    let run = started(&up, "stream", "wc -c").await;
    let path = format!("/api/runs/{run}/input?at=0");
    let much = vec![0; 256 * 1024 + 1];
    for (kind, bytes, want) in [
        (BYTES, much.as_slice(), (413, "body_too_large")),
        ("application/json", &b"{}"[..], (415, "unsupported_media_type")),
        ("text/plain", &b"x"[..], (415, "unsupported_media_type")),
    ] {
        let (status, answer) = put(&up, &own, &path, kind, bytes).await;
        assert_eq!((status, answer["code"].as_str().unwrap()), want, "{answer}");
    }
    let size = json!({"rows": 10, "cols": 20});
    let resized = up.post(&format!("/api/runs/{run}/terminal"), &size).await;
    assert_eq!((resized.0, &resized.1["code"]), (409, &json!("state_conflict")), "a pipe");
    let (status, _) = put(&up, &own, &format!("{path}&end=true"), BYTES, b"123").await;
    assert_eq!(status, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");

    // A run that takes none, and one of which no client is here.
    let yaml = r#"{"id": "slow", "v": "1", "plan": {"tasks": [
        {"name": "t", "exec": {"run": "sleep 600", "timeout": "15m"}}]}}"#;
    let plain = text(&up.run_recipe(yaml, json!({}), json!({})).await, "runId");
    let path = format!("/api/runs/{plain}/input?at=0");
    let (status, answer) = put(&up, &own, &path, BYTES, b"x").await;
    assert_eq!((status, &answer["code"]), (421, &json!("wrong_server")), "{answer}");
    assert_eq!(home.run(&["cancel", &plain]).status.code(), Some(0));
    up.wait_terminal(&plain).await;

    let run = started(&up, "terminal", "stty size; cat").await;
    let resized = up.post(&format!("/api/runs/{run}/terminal"), &size).await;
    assert_eq!(resized, (200, size.clone()));
    let path = format!("/api/runs/{run}/input?at=0&end=true");
    assert_eq!(put(&up, &own, &path, BYTES, b"").await.0, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let logs = home.run(&["logs", &run]);
    assert!(String::from_utf8_lossy(&logs.stdout).contains("10 20"), "{}", said(&logs));
}
