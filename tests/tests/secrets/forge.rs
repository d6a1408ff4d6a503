//! A private host of a test's own, on loopback: git, pip, npm and what a test asks for, behind TLS and a token.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use cofferdam_tests::{Home, Server};

/// What the host demands at first, and no sandbox may ever hold.
pub const VALUE: &str = "S3CRET-first-value-of-the-forge";
/// What it is rotated to.
pub const NEXT: &str = "S3CRET-other-value-of-the-forge";
/// Names that lead to the host.
pub const NAMES: [&str; 4] = ["git.example", "pip.example", "npm.example", "other.example"];

/// A request that the host heard.
#[derive(Debug, Clone)]
pub struct Heard {
    pub method: String,
    pub path: String,
    pub host: Option<String>,
    /// Which of the valid values it carried, from 0; -1: none.
    pub value: i64,
    /// sha256 of its body; none where the body broke off.
    pub body: Option<String>,
}

pub struct Forge {
    server: Child,
    pub port: u16,
    heard: Arc<Mutex<Vec<Heard>>>,
    dir: tempfile::TempDir,
}

impl Forge {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        certify(dir.path());
        repository(&dir.path().join("repos"));
        fs::write(dir.path().join("valid"), VALUE).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/secrets/forge.py");
        let mut server = Command::new("/usr/bin/python3")
            .arg(script)
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test needs python3");
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
        let keep = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let (method, path, host, value, body) = serde_json::from_str(&line).unwrap();
                keep.lock().unwrap().push(Heard { method, path, host, value, body });
            }
        });
        Self { server, port, heard, dir }
    }

    /// The bare repository behind `https://git.example/repo.git`.
    pub fn repository(&self) -> std::path::PathBuf {
        self.dir.path().join("repos/repo.git")
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    /// Which values it takes from now on.
    pub fn takes(&self, values: &[&str]) {
        let draft = self.dir.path().join("valid.new");
        fs::write(&draft, values.join("\n")).unwrap();
        fs::rename(draft, self.dir.path().join("valid")).unwrap();
    }

    /// `/end` says that it is over.
    pub fn go(&self) {
        fs::write(self.dir.path().join("go"), "").unwrap();
    }

    /// Where the names are, for whatever executes.
    pub fn hosts(&self) -> Vec<String> {
        NAMES.iter().map(|name| format!("--egress-host={name}=127.0.0.1:{}", self.port)).collect()
    }

    pub fn ca(&self) -> String {
        self.dir.path().join("crt").to_str().unwrap().to_owned()
    }

    /// A server that reaches the host.
    pub fn up(&self, home: &Home) -> Server {
        self.up_with(home, "warn", Stdio::inherit())
    }

    /// The same with what it logs elsewhere.
    pub fn up_with(&self, home: &Home, level: &str, log: Stdio) -> Server {
        self.up_as(home, &[], level, log)
    }

    /// The same with more arguments.
    pub fn up_as(&self, home: &Home, more: &[&str], level: &str, log: Stdio) -> Server {
        let hosts = self.hosts();
        let mut args = vec!["up", "--listen", "127.0.0.1:0"];
        args.extend(more);
        args.extend(hosts.iter().map(String::as_str));
        let env = [("SSL_CERT_FILE", self.ca()), ("COFFERDAM_LOG", level.to_owned())];
        let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Server::logged(home, &args, &env, log)
    }
}

impl Drop for Forge {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A server's certificate and no authority's: verifiers that are strict take no authority for a server.
fn certify(dir: &Path) {
    let config = dir.join("cnf");
    let names: Vec<String> = NAMES.iter().map(|name| format!("DNS:{name}")).collect();
    let text = format!(
        "[req]\ndistinguished_name = dn\nx509_extensions = v3\n[dn]\n[v3]\nsubjectAltName = {}\n\
         basicConstraints = CA:FALSE\n",
        names.join(",")
    );
    fs::write(&config, text).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-nodes", "-days", "1", "-subj", "/CN=t", "-config"])
        .args([
            &config,
            Path::new("-keyout"),
            &dir.join("key"),
            Path::new("-out"),
            &dir.join("crt"),
        ])
        .output()
        .expect("this test needs openssl: apt-get install openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A bare repository with one commit.
fn repository(repos: &Path) {
    let work = repos.join("work");
    fs::create_dir_all(&work).unwrap();
    fs::write(work.join("README"), "a private file\n").unwrap();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@t.example"];
        let mut command = Command::new("git");
        command.args(identity).args(args).current_dir(&work);
        let done =
            command.env("GIT_CONFIG_GLOBAL", "/dev/null").output().expect("this test needs git");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    git(&["init", "-q"]);
    git(&["add", "README"]);
    git(&["commit", "-q", "-m", "one"]);
    git(&["clone", "-q", "--bare", ".", "../repo.git"]);
}

/// A command of the home with a value on its standard input.
pub fn piped(home: &Home, args: &[&str], value: &str) -> Output {
    let mut command = home.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}
