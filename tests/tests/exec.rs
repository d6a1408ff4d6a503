//! `exec` behaves like the command that it runs: its input, its output while it runs, its end.

use crate::support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cofferdam_tests::Home;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::{ended, exit_code, said, signal};

const LIMIT: Duration = Duration::from_secs(120);

fn with_input(home: &Home, args: &[&str], input: &[u8]) -> Output {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input).unwrap();
    file.rewind().unwrap();
    let mut command = home.command(args);
    command.stdin(Stdio::from(file));
    ended(command, LIMIT)
}

#[test]
fn e2_output_comes_while_the_command_runs_and_ctrl_c_keeps_it_and_exits_130() {
    let home = Home::new();
    let mut command =
        home.command(&["exec", "--", "sh", "-c", "echo one; echo two >&2; sleep 600"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let (mut one, mut two) = (String::new(), String::new());
    // Both lines are read before anything ends the command.
    out.read_line(&mut one).unwrap();
    err.read_line(&mut two).unwrap();
    assert_eq!((one.as_str(), two.as_str()), ("one\n", "two\n"));
    assert!(child.try_wait().unwrap().is_none(), "it still runs");
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let code = exit_code(&mut child, LIMIT);
    let (mut rest, mut words) = (String::new(), String::new());
    out.read_to_string(&mut rest).unwrap();
    err.read_to_string(&mut words).unwrap();
    assert_eq!((code, rest.as_str()), (Some(130), ""), "{words}");
    assert!(words.contains("canceled"), "{words}");
    assert!(!words.lines().any(|line| line.trim() == ":"), "{words}");
    let runs = home.run_json(&["ps", "--json"]);
    assert_eq!(runs["runs"][0]["status"], "canceled", "{runs}");
}

/// As in a container whose session began outside it: the kernel says 0 for what has no number in here.
#[test]
fn the_first_process_of_a_namespace_and_its_child_run_a_command() {
    let home = Home::new();
    let _up = home.up();
    for shell in ["exec \"$@\"", "\"$@\"; exit $?"] {
        let client = home.command(&["exec", "--", "sh", "-c", "echo hi; exit 7"]);
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", shell, "sh"]);
        command.arg(client.get_program()).args(client.get_args());
        for (name, value) in client.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = ended(command, LIMIT);
        assert_eq!(output.status.code(), Some(7), "{shell}: {}", said(&output));
        assert_eq!(output.stdout, b"hi\n", "{shell}: {}", said(&output));
    }
}

#[test]
fn a_sandbox_that_cannot_be_made_as_asked_is_an_error_that_names_the_flag() {
    let home = Home::new();
    for (flags, word) in
        [(&["--mem", "1"][..], "--mem"), (&["--mem", "1", "--json"][..], "BOOT_FAIL")]
    {
        let args = [&["exec", "--no-stdin"][..], flags, &["--", "true"]].concat();
        let output = ended(home.command(&args), LIMIT);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(word), "{args:?}: {}", said(&output));
    }
    let own = ended(home.command(&["exec", "--no-stdin", "--", "sh", "-c", "exit 1"]), LIMIT);
    assert_eq!(own.status.code(), Some(1), "a command's own status: {}", said(&own));
}

#[test]
fn e2_a_reader_that_goes_ends_the_command() {
    let home = Home::new();
    let script = "while :; do echo y; sleep 0.05; done";
    let mut command = home.command(&["exec", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    drop(out);
    assert_eq!(exit_code(&mut child, LIMIT), Some(141));
    let runs = home.run_json(&["ps", "--json"]);
    assert_eq!(runs["runs"][0]["status"], "canceled", "{runs}");
}

#[test]
fn e2_a_pipe_or_a_file_is_the_commands_input() {
    let home = Home::new();
    let text = "one ${item}\n$${two}\n\u{20ac}";
    let output = with_input(&home, &["exec", "--", "cat"], text.as_bytes());
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), text.as_bytes()),
        "{}",
        said(&output)
    );
    let (read, mut write) = std::io::pipe().unwrap();
    write.write_all(b"piped").unwrap();
    drop(write);
    let mut command = home.command(&["exec", "--", "cat"]);
    command.stdin(Stdio::from(read));
    let output = ended(command, LIMIT);
    assert_eq!(output.stdout, b"piped", "{}", said(&output));
    // As much as is passed.
    let output = with_input(&home, &["exec", "--", "wc", "-c"], &vec![b'"'; 128 * 1024]);
    assert_eq!(output.stdout, b"131072\n", "{}", said(&output));
    // A pipe that never ends is left alone where that is said.
    let (read, write) = std::io::pipe().unwrap();
    let mut command = home.command(&["exec", "--no-stdin", "--", "cat"]);
    command.stdin(Stdio::from(read));
    let output = ended(command, LIMIT);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{}", said(&output));
    drop(write);
}

#[test]
fn e2_input_that_is_no_small_text_is_passed_all_the_same() {
    let home = Home::new();
    for input in [vec![b'x'; 128 * 1024 + 1], b"a\0b\xff".to_vec()] {
        let output = with_input(&home, &["exec", "--", "cat"], &input);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(output.stdout == input, "{} bytes", output.stdout.len());
    }
}

#[test]
fn e2_output_is_the_commands_own_bytes_whatever_they_are_and_however_many() {
    let home = Home::new();
    let script = r"printf 'text\377\000\200more\n'; sleep 1; printf 'tail\n'";
    let output = home.run(&["exec", "--", "sh", "-c", script]);
    assert_eq!(output.stdout, b"text\xff\0\x80more\ntail\n", "{}", said(&output));
    let script = "head -c 3000000 /dev/zero | tr '\\0' a; printf end >&2";
    let output = home.run(&["exec", "--", "sh", "-c", script]);
    assert_eq!(
        (output.stdout.len(), output.stderr.as_slice()),
        (3_000_000, &b"end"[..]),
        "{:?}",
        output.status
    );
    assert!(output.stdout.iter().all(|byte| *byte == b'a'));
}

#[test]
fn e2_a_command_that_is_not_there_is_said() {
    let home = Home::new();
    let output = home.run(&["exec", "--", "no-such-program"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(127), "{}", said(&output));
    assert!(words.contains("no-such-program: command not found"), "{words}");
    // A disk that takes nothing is no success.
    let mut command = home.command(&["exec", "--", "echo", "lost"]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"));
}

/// One command, with `--json` and without: the status of each, and the object.
fn both_ways(home: &Home, args: &[&str]) -> (Option<i32>, Output, Value) {
    let plain = home.run(&[&["exec", "--no-stdin"][..], args].concat());
    let json = home.run(&[&["exec", "--no-stdin", "--json"][..], args].concat());
    assert_eq!(plain.status.code(), json.status.code(), "{} {}", said(&plain), said(&json));
    let object: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(object["schemaVersion"], 1, "{object}");
    (plain.status.code(), plain, object)
}

#[test]
fn exec_has_one_status_and_its_object_has_the_output() {
    let home = Home::new();
    let (code, _, object) = both_ways(&home, &["--", "sh", "-c", "echo hi; echo oops >&2; exit 4"]);
    assert_eq!(code, Some(4));
    assert_eq!((&object["exit"], &object["errCode"]), (&json!(4), &json!("CMD_NONZERO")));
    assert_eq!((&object["stdout"], &object["stderr"]), (&json!("hi\n"), &json!("oops\n")));
    assert_eq!((&object["dropped"], &object["limitsReached"]), (&json!(0), &json!([])));
    assert!(object.get("stdoutBase64").is_none() && object["wallMs"].is_u64(), "{object}");
    assert!(object["runId"].as_str().unwrap().starts_with("rn_"), "{object}");
    let wipe = object["wipe"].as_array().unwrap();
    assert_eq!((wipe.len(), &wipe[0]["status"]), (1, &json!("verified")), "{object}");
    assert!(object.to_string().len() < 1_024, "short: {object}");

    let (code, _, object) = both_ways(&home, &["--", "true"]);
    assert_eq!((code, &object["exit"], &object["error"]), (Some(0), &json!(0), &Value::Null));
    let (code, _, object) = both_ways(&home, &["--", "no-such-program"]);
    assert_eq!((code, &object["exit"]), (Some(127), &json!(127)), "{object}");
    let (code, _, object) = both_ways(&home, &["--timeout", "1", "--", "sleep", "60"]);
    assert_eq!((code, &object["errCode"]), (Some(137), &json!("TIMEOUT")), "{object}");
    assert_eq!(object["limitsReached"], json!(["wall"]), "{object}");
}

#[test]
fn the_object_of_exec_has_bytes_that_are_not_text_and_says_what_was_dropped() {
    let home = Home::new();
    let (code, plain, object) = both_ways(&home, &["--", "printf", r"a\377\000b"]);
    assert_eq!((code, plain.stdout.as_slice()), (Some(0), &b"a\xff\0b"[..]));
    assert_eq!(
        (&object["stdout"], &object["stdoutBase64"]),
        (&json!("a\u{fffd}\0b"), &json!("Yf8AYg=="))
    );
    let much = "head -c 9437184 /dev/zero | tr '\\0' x; echo END >&2";
    let output = home.run(&["exec", "--no-stdin", "--json", "--", "sh", "-c", much]);
    assert_eq!(output.status.code(), Some(0), "{:?}", output.status);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["stdout"].as_str().unwrap().len(), 8 * 1024 * 1024);
    assert_eq!((&object["dropped"], &object["stderr"]), (&json!(1024 * 1024), &json!("END\n")));
    assert_eq!(object["limitsReached"], json!(["output"]));
}
