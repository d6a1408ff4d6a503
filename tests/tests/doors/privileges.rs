//! TLS, the user of a shim, and keys that are not arguments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::{Home, Server};
use serde_json::json;
use tokio::net::{TcpListener, UnixStream};

use crate::doors::raw::ask;
use crate::support::{ended, names, said};

/// A certificate for this host that nothing but this test trusts, with its key.
fn certificate(dir: &Path) -> (PathBuf, PathBuf) {
    let (cert, key, config) = (dir.join("cert.pem"), dir.join("key.pem"), dir.join("config"));
    let text = "[req]\ndistinguished_name=name\nprompt=no\nx509_extensions=here\n[name]\nCN=localhost\n\
                [here]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n";
    fs::write(&config, text).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-config"])
        .arg(&config)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("this test needs openssl: apt-get install openssl");
    assert!(made.status.success(), "{}", said(&made));
    (cert, key)
}

#[tokio::test(flavor = "multi_thread")]
async fn l8_the_address_speaks_tls_and_nothing_in_clear() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path());
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let up = home.up_with(&["--tls-cert", cert, "--tls-key", key], &[]);
    let port = up.url.strip_prefix("https://127.0.0.1:").expect(&up.url);
    let clear = ask(&up, "GET", "/healthz", &[("Host", "localhost")], "").await;
    assert_eq!(clear.status, 0, "{}", clear.text);
    // Over TLS, on the caller's word about server, key and certificate.
    let server = format!("https://localhost:{port}");
    let mut command = home.command(&["ps", "--json"]);
    command.env("COFFERDAM_SERVER", &server).env("COFFERDAM_KEY", &up.key);
    command.env("SSL_CERT_FILE", cert);
    let output = ended(command, Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let mut command = home.command(&["ps"]);
    command.env("COFFERDAM_SERVER", &server).env("COFFERDAM_KEY", &up.key);
    let output = ended(command, Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(2), "it is not trusted: {}", said(&output));
    // On this host, by the socket.
    let output = home.run(&["ps"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    drop(up);
    for args in [&["--tls-cert", key, "--tls-key", key], &["--tls-cert", cert, "--tls-key", cert]] {
        let mut all = vec!["up", "--listen", "127.0.0.1:0"];
        all.extend(args);
        let output = ended(home.command(&all), Duration::from_secs(120));
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(".pem"), "{}", said(&output));
    }
    let output = home.run(&["up", "--tls-cert", cert]);
    assert_eq!(output.status.code(), Some(3), "a certificate without its key: {}", said(&output));
}

/// A database by TCP: what is sent to the address goes to the socket of this home's own.
async fn by_tcp(home: &Home) -> String {
    let url = home.database_url();
    let parsed = reqwest::Url::parse(&url).unwrap();
    let socket = parsed.query_pairs().find(|(name, _)| name == "host").unwrap().1;
    let socket = PathBuf::from(socket.into_owned());
    let socket = names(&socket)
        .into_iter()
        .find(|name| name.starts_with(".s.PGSQL.") && !name.ends_with(".lock"))
        .map(|name| socket.join(name))
        .expect("its socket");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                if let Ok(mut far) = UnixStream::connect(socket).await {
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    let name = url.split('?').next().unwrap().replace("localhost", &address.to_string());
    format!("{name}?sslmode=disable")
}

#[tokio::test(flavor = "multi_thread")]
async fn l8_a_shim_becomes_another_user_before_it_serves() {
    let home = Home::new();
    let up = home.up();
    let db = by_tcp(&home).await;
    let other = Home::empty();
    let args = ["shim", "--listen", "127.0.0.1:0", "--user", "nobody"];
    let mut shim = Server::start(&other, &args, &[("DATABASE_URL", &db)]);
    let threads = names(format!("/proc/{}/task", shim.pid()).as_ref());
    assert!(threads.len() > 1, "{threads:?}");
    for thread in threads {
        let path = format!("/proc/{}/task/{thread}/status", shim.pid());
        let status = fs::read_to_string(path).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(field("Uid:"), ["65534"; 4], "{thread}");
        assert_eq!(field("Gid:"), ["65534"; 4], "{thread}");
        assert!(!field("Groups:").contains(&"0".to_owned()), "{thread}");
        for set in ["CapEff:", "CapPrm:", "CapAmb:"] {
            assert_eq!(field(set), ["0000000000000000"], "{thread} {set}");
        }
    }
    // It serves: over its address, and for root by the socket, whose file it can no longer take away.
    let (status, made) =
        shim.post("/api/intents", &json!({"goal": "g", "inputs": {}, "constraints": {}})).await;
    assert_eq!(status, 201, "{made}");
    let run = shim
        .run_recipe(
            "id: u\nv: \"1\"\nplan:\n  tasks: [{name: t, value: kept}]\n",
            json!({}),
            json!({}),
        )
        .await;
    assert_eq!(up.wait_terminal(run["runId"].as_str().unwrap()).await["status"], "succeeded");
    let mut command = other.command(&["ps"]);
    command.env("DATABASE_URL", &db);
    let output = ended(command, Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(shim.stop().code(), Some(0));
    let mut command = other.command(&["ps"]);
    command.env("DATABASE_URL", &db);
    let output = ended(command, Duration::from_secs(120));
    assert_eq!(
        output.status.code(),
        Some(0),
        "what is left of it is found dead: {}",
        said(&output)
    );
}

#[test]
fn l8_a_user_that_a_shim_cannot_become_is_refused_before_anything_starts() {
    let home = Home::empty();
    for (args, why) in [
        (&["shim", "--user", "nobody"][..], "--db"),
        (&["shim", "--user", "root", "--db", "postgres://127.0.0.1:1/x"], "other than root"),
        (&["shim", "--user", "no-such-user", "--db", "postgres://127.0.0.1:1/x"], "no user"),
        (&["up", "--user", "nobody"], "--user"),
        (&["shim", "--allow-host", "https://ci.example"], "a name or address alone"),
    ] {
        let output = ended(home.command(args), Duration::from_secs(120));
        assert_eq!(output.status.code(), Some(3), "{args:?} {}", said(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{}", said(&output));
    }
    // Every command notes first where its state directory is.
    assert_eq!(names(home.path()), ["place.json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn l8_a_key_as_an_argument_is_taken_with_a_warning_and_a_file_without() {
    let home = Home::new();
    let up = home.up();
    let words = |args: &[&str]| {
        let output = home.run(args);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(words(&["ps", "--key", &up.key]).contains("--key-file"));
    assert_eq!(words(&["ps", "--key-file", home.path().join("admin.key").to_str().unwrap()]), "");
    let mut command = home.command(&["ps"]);
    command.env("COFFERDAM_KEY", "cfd_wrong");
    let output = ended(command, Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(2), "a key that is given is the one: {}", said(&output));
    let output = home.run(&["ps", "--key-file", "/nonexistent/key"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}
