//! `sandbox cp` and `sandbox shell`, as a person uses them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_tests::{Home, Server};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::gone;
use crate::support::pty::{Interrupt, Terminal};
use crate::support::said;

fn made(home: &Home) -> (Server, String) {
    let server = home.up();
    let made = home.run(&["sandbox", "create", "--timeout", "300"]);
    assert!(made.status.success(), "{}", said(&made));
    (server, String::from_utf8(made.stdout).unwrap().trim().to_owned())
}

fn inside(home: &Home, id: &str, script: &str) -> String {
    let done = home.run(&["sandbox", "exec", id, "--user", "root", "--", "sh", "-c", script]);
    assert!(done.status.success(), "{}", said(&done));
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test]
async fn a_file_is_copied_in_and_out_whole_and_no_link_leads_out() {
    let home = Home::new();
    let (server, id) = made(&home);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    fs::write(at("a"), &bytes).unwrap();
    let cp = |from: &str, to: &str, more: &[&str]| {
        let mut args = vec!["sandbox", "cp", from, to];
        args.extend(more);
        home.run(&args)
    };
    let (remote, below) = (format!("{id}:deep/er/a"), format!("{id}:deep/"));
    assert!(cp(&at("a"), &remote, &[]).status.success());
    assert!(cp(&at("a"), &below, &[]).status.success());
    assert_eq!(
        inside(&home, &id, "cd /home/user/deep; stat -c '%s %U' a er/a"),
        "3000000 user\n3000000 user\n"
    );
    let back = cp(&remote, &at("b"), &[]);
    assert!(back.status.success() && back.stdout.is_empty(), "{}", said(&back));
    assert_eq!(fs::read(at("b")).unwrap(), bytes);
    // Into a directory of this host it keeps the name that the caller wrote.
    fs::create_dir(at("into")).unwrap();
    assert!(cp(&remote, &at("into"), &[]).status.success());
    assert_eq!(fs::read(at("into/a")).unwrap(), bytes);
    // Nothing is replaced unasked, nor written through a link.
    symlink(at("a"), at("link")).unwrap();
    for there in ["b", "link"] {
        let refused = cp(&remote, &at(there), &[]);
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    }
    inside(&home, &id, "echo short > /home/user/short");
    let short = format!("{id}:short");
    assert!(cp(&short, &at("link"), &["--force"]).status.success());
    assert_eq!(fs::read(at("a")).unwrap(), bytes);
    assert_eq!(fs::read(at("link")).unwrap(), b"short\n");
    // A link inside leads to the sandbox's own files.
    fs::write(at("outside"), "secret of the host").unwrap();
    inside(
        &home,
        &id,
        &format!("ln -s {} /home/user/out; ln -s /etc/hostname /home/user/name", at("outside")),
    );
    let absent = cp(&format!("{id}:out"), "-", &[]);
    assert_eq!((absent.status.code(), absent.stdout.len()), (Some(1), 0), "{}", said(&absent));
    assert!(cp(&at("a"), &format!("{id}:out"), &[]).status.success());
    assert_eq!(fs::read(at("outside")).unwrap(), b"secret of the host");
    // Streams, both ways.
    let mut command =
        home.command(&["sandbox", "cp", "-", &format!("{id}:/tmp/stream"), "--user", "root"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"streamed").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(inside(&home, &id, "stat -c %U /tmp/stream"), "root\n");
    assert_eq!(cp(&format!("{id}:/tmp/stream"), "-", &[]).stdout, b"streamed");
    for (from, to) in [
        (at("a"), at("c")),
        (remote.clone(), below.clone()),
        (at("into"), remote.clone()),
        ("-".to_owned(), below.clone()),
        (below.clone(), at("into")),
    ] {
        let wrong = cp(&from, &to, &[]);
        assert_eq!(wrong.status.code(), Some(3), "{from} {to} {}", said(&wrong));
    }
    let none = cp(&format!("{}:x", "z".repeat(20)), "-", &[]);
    assert_eq!(none.status.code(), Some(1), "{}", said(&none));
    let readonly = cp(&at("a"), &format!("{id}:/usr/lib/none"), &[]);
    assert_eq!(readonly.status.code(), Some(1), "{}", said(&readonly));
    assert!(home.run(&["sandbox", "rm", &id]).status.success());
    gone(home, server).await;
}

#[tokio::test]
async fn a_shell_is_a_terminal_with_a_size_and_its_status_is_the_commands() {
    let home = Home::new();
    let (server, id) = made(&home);
    let plain = home.run(&["sandbox", "shell", &id]);
    assert_eq!(plain.status.code(), Some(3), "{}", said(&plain));
    assert!(said(&plain).contains("needs a terminal"), "{}", said(&plain));
    let mut shell = Terminal::start(&home.command(&["sandbox", "shell", &id]), Interrupt::Usual);
    shell.types("echo the-$((40 + 2)); tty; id -un\n");
    shell.wait_for("the-42");
    shell.wait_for("/dev/pts/");
    // Keys are passed on, and not meant for this program.
    shell.types("sleep 1000\n");
    tokio::time::sleep(Duration::from_millis(500)).await;
    shell.types("\u{3}");
    shell.types("stty size\n");
    shell.resize(33, 101);
    tokio::time::sleep(Duration::from_millis(500)).await;
    shell.types("stty size\n");
    shell.wait_for("33 101");
    shell.types("exit 7\n");
    let is_cooked = shell.modes();
    let (status, shown) = shell.ended(Duration::from_secs(30));
    assert_eq!(status.code(), Some(7), "{shown}");
    assert!(is_cooked.is_canonical_again(), "the terminal was left raw");
    // Of root, elsewhere; and one whose terminal goes leaves nothing behind.
    let args = ["sandbox", "shell", &id, "--user", "root", "--cwd", "/tmp"];
    let mut shell = Terminal::start(&home.command(&args), Interrupt::Usual);
    shell.types("pwd; id -u; exec -a left sleep 4242\n");
    shell.wait_for("/tmp");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(inside(&home, &id, "pgrep -cf '[l]eft 4242'"), "1\n");
    let is_cooked = shell.modes();
    nix::sys::signal::kill(Pid::from_raw(shell.pid()), Signal::SIGTERM).unwrap();
    let (status, shown) = shell.ended(Duration::from_secs(30));
    assert_eq!(status.code(), Some(130), "{shown}");
    assert!(is_cooked.is_canonical_again(), "the terminal was left raw");
    crate::support::until("it is gone", Duration::from_secs(10), async || {
        inside(&home, &id, "pgrep -cf '[l]eft 4242' || true") == "0\n"
    })
    .await;
    // A sandbox that ends takes its shells along, and the terminal is as it was.
    let mut shell = Terminal::start(&home.command(&["sandbox", "shell", &id]), Interrupt::Usual);
    shell.types("echo ready-$((1 + 1))\n");
    shell.wait_for("ready-2");
    let is_cooked = shell.modes();
    assert!(home.run(&["sandbox", "rm", &id]).status.success());
    let (status, shown) = shell.ended(Duration::from_secs(30));
    assert!(!status.success(), "{shown}");
    assert!(is_cooked.is_canonical_again(), "the terminal was left raw");
    gone(home, server).await;
}
