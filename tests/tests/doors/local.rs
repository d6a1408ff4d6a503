//! Callers on the server's own host: whom they send a key to.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_tests::port_reservation::PortReservation;
use cofferdam_tests::{Home, Server, binary};
use serde_json::json;

use crate::support::{ended, said, until};

/// Debian's `nobody`.
const NOBODY: u32 = 65_534;

/// Answers well to whatever it is asked, and keeps what it was sent.
fn impostor(listener: TcpListener) -> Arc<Mutex<Vec<u8>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut bytes = [0; 4096];
            let Ok(count) = stream.read(&mut bytes) else { continue };
            kept.lock().unwrap().extend_from_slice(&bytes[..count]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
            );
        }
    });
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn h5_a_key_does_not_go_to_who_took_a_dead_servers_port() {
    let home = Home::new();
    let port = PortReservation::new();
    let address = port.address();
    let mut up = Server::start(&home, &["up", "--listen", &address.to_string()], &[]);
    let endpoint = home.path().join("endpoint.json");
    until("it is announced", Duration::from_secs(60), async || endpoint.exists()).await;
    up.kill();
    assert!(endpoint.exists(), "it could not take it back");
    let heard = impostor(TcpListener::bind(address).unwrap());
    for args in [&["ps"][..], &["gate", "ls"], &["key", "ls"]] {
        let output = ended(home.command(args), Duration::from_secs(120));
        assert_eq!(output.status.code(), Some(0), "as without a server: {}", said(&output));
    }
    let heard = heard.lock().unwrap().clone();
    assert!(heard.is_empty(), "it was asked: {}", String::from_utf8_lossy(&heard));
}

#[tokio::test(flavor = "multi_thread")]
async fn h5_a_socket_of_somebody_elses_is_sent_nothing() {
    let home = Home::new();
    let up = home.up();
    let socket = home.path().join("api.sock");
    // Somebody else's file, as where the directory was once open to all.
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    chown(&socket, Some(NOBODY), None).unwrap();
    refuses(&home, "no key was sent");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "nobody even connected");
    drop(listener);
    // The directory's owner's file, and somebody else who listens on it.
    fs::remove_file(&socket).unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\nprint('up', flush=True)\nwhile True:\n    c, _ = s.accept()\n    print(c.recv(4096), flush=True)\n";
    let mut child = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig", "KILL"])
        .args(["python3", "-c", program])
        .arg(&socket)
        // Where somebody else finds programs, too.
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("it listens", Duration::from_secs(60), async || socket.exists()).await;
    let mut said = child.stdout.take().unwrap();
    let mut first = [0; 3];
    said.read_exact(&mut first).unwrap();
    chown(&socket, Some(0), None).unwrap();
    refuses(&home, "no key was sent");
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.lines().all(|line| line == "b''"), "it was sent {rest}");
    fs::remove_file(&socket).unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711)).unwrap();
    drop(up);
}

fn refuses(home: &Home, why: &str) {
    let output = ended(home.command(&["ps"]), Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn h5_the_socket_is_its_owners_alone_and_other_users_name_a_server() {
    let home = Home::new();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let mut up = home.up();
    let socket = home.path().join("api.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let (_, key) = up.new_key(&json!({"roles": ["auditor"]})).await;
    // A copy that everybody may run, wherever this tree lies.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("cofferdam");
    fs::copy(binary(), &program).unwrap();
    let output = as_nobody(&program, home.path(), &[("COFFERDAM_KEY", &key)]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("--server"), "it says what to do: {words}");
    let named = [("COFFERDAM_KEY", key.as_str()), ("COFFERDAM_SERVER", up.url.as_str())];
    let output = as_nobody(&program, home.path(), &named);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // Stopped, it leaves neither address nor socket.
    up.stop();
    assert!(!socket.exists() && !home.path().join("endpoint.json").exists());
}

fn as_nobody(program: &Path, state: &Path, env: &[(&str, &str)]) -> std::process::Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).arg("ps");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("COFFERDAM_STATE", state);
    command.envs(env.iter().copied()).current_dir("/").stdin(Stdio::null());
    ended(command, Duration::from_secs(120))
}

#[tokio::test(flavor = "multi_thread")]
async fn h5_a_server_that_is_named_gets_a_key_only_if_one_is_given() {
    let home = Home::new();
    let up = home.up();
    let mut command = home.command(&["ps"]);
    command.env("COFFERDAM_SERVER", &up.url);
    let output = ended(command, Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(3), "the admin key is not it: {}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--key-file"), "{}", said(&output));
    let file = home.path().join("admin.key");
    let output = home.run(&["ps", "--server", &up.url, "--key-file", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn h5_a_second_server_that_fails_to_start_leaves_the_first_ones_socket() {
    let home = Home::new();
    let up = home.up();
    let address = up.url.strip_prefix("http://").unwrap();
    let output = ended(home.command(&["shim", "--listen", address]), Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let names = crate::support::names(home.path());
    let sockets: Vec<&String> = names.iter().filter(|n| n.starts_with("api.sock")).collect();
    assert_eq!(sockets, ["api.sock"], "no draft is left");
    assert!(std::os::unix::net::UnixStream::connect(home.path().join("api.sock")).is_ok());
    assert_eq!(home.run(&["ps"]).status.code(), Some(0));
}
