//! Programs of this host that a build runs: their output as lines, their time bounded.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use crate::images::error::ImageError;

/// Seconds that one program has: a slow mirror, some hundred MiB.
const PATIENCE_S: &str = "1800";
/// Seconds between the signal that ends it and the one that kills it: it unmounts what it mounted.
const GRACE_S: &str = "30";
/// Lines of its output that a failure repeats.
const LAST_LINES: usize = 20;

/// Runs a program with this input and hands on each line that it says; its standard output, where it succeeds.
///
/// # Errors
/// It is not installed, fails, or takes longer than [`PATIENCE_S`].
pub(super) async fn run(
    program: &str,
    args: &[&OsStr],
    input: &str,
    note: &mut (dyn FnMut(&str) + Send),
) -> Result<String, ImageError> {
    run_within(PATIENCE_S, GRACE_S, program, args, input, note).await
}

async fn run_within(
    patience_s: &str,
    grace_s: &str,
    program: &str,
    args: &[&OsStr],
    input: &str,
    note: &mut (dyn FnMut(&str) + Send),
) -> Result<String, ImageError> {
    let failed = |why: String| ImageError::malformed(program, why);
    // `timeout` is of coreutils; the program is asked to end, so that it can clean up.
    let mut command = Command::new("timeout");
    command.args(["--kill-after", grace_s, patience_s, program]).args(args).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let patience = Duration::from_secs(patience_s.parse().unwrap_or(u64::MAX));
    let took_longer = || failed(format!("took longer than {patience_s} s"));
    let since = Stopwatch::start();
    let mut child = command.spawn().map_err(|error| failed(format!("cannot be run: {error}")))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // Where it reads nothing, its own words say why.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let read = async {
        let mut text = String::new();
        if let Some(mut stdout) = stdout {
            let read = tokio::io::AsyncReadExt::read_to_string(&mut stdout, &mut text).await;
            read.map_err(|error| failed(format!("its output: {error}")))?;
        }
        Ok::<_, ImageError>(text)
    };
    let follow = async {
        let mut last = std::collections::VecDeque::new();
        if let Some(stderr) = stderr {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                note(&line);
                last.push_back(line);
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
            }
        }
        last
    };
    let ((), text, last) = tokio::join!(write, read, follow);
    let status = child.wait().await.map_err(|error| failed(error.to_string()))?;
    match status.code() {
        Some(0) => text,
        // Of `timeout`, which found no such program.
        Some(127) => Err(failed(format!("is not installed; run `apt-get install {program}`"))),
        Some(124) => Err(took_longer()),
        // `timeout` kills itself with what did not end when asked. What the kernel killed before has another reason.
        _ if since.elapsed() >= patience => Err(took_longer()),
        _ => {
            let last: Vec<String> = last.into_iter().collect();
            Err(failed(format!("failed ({status}): {}", last.join("; "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_takes_too_long_is_asked_to_end_and_then_killed() {
        let took = Stopwatch::start();
        for script in ["sleep 600", "trap '' TERM; sleep 600 & wait; sleep 600"] {
            let args = ["-c", script].map(OsStr::new);
            let ended = run_within("1", "1", "sh", &args, "", &mut |_| {}).await;
            let error = ended.unwrap_err().to_string();
            assert!(error.ends_with("took longer than 1 s"), "{script}: {error}");
        }
        assert!(took.elapsed().as_secs() < 30);
    }

    #[tokio::test]
    async fn a_programs_lines_are_handed_on_and_its_failure_repeats_them() {
        let mut said = Vec::new();
        let script = ["-c", "cat; echo one >&2; echo two >&2"].map(OsStr::new);
        let mut note = |line: &str| said.push(line.to_owned());
        assert_eq!(run("sh", &script, "given", &mut note).await.unwrap(), "given");
        assert_eq!(said, ["one", "two"]);
        let script = ["-c", "echo broken >&2; exit 3"].map(OsStr::new);
        let error = run("sh", &script, "", &mut |_| {}).await.unwrap_err().to_string();
        assert!(error.starts_with("sh: failed") && error.ends_with("broken"), "{error}");
        let error = run("no-such-program", &[], "", &mut |_| {}).await.unwrap_err().to_string();
        assert!(error.ends_with("run `apt-get install no-such-program`"), "{error}");
    }
}
