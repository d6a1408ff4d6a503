//! An index of pip and a registry of npm of a test's own, with a password, on loopback.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use cofferdam_tests::{Home, Server};

/// What the index demands, and no sandbox may ever see.
pub const PASSWORD: &str = "S3CRET-PASS";
pub const TOKEN: &str = "S3CRET-TOKEN";

/// An index with a password, behind TLS that nothing but this test trusts.
pub struct Index {
    server: Child,
    pub port: u16,
    at: String,
    wire: &'static str,
    certificate: PathBuf,
    /// Method, path, and whether the credentials were the right ones.
    heard: Arc<Mutex<Vec<(String, String, bool)>>>,
    dir: tempfile::TempDir,
}

impl Index {
    /// At a port of its own, over TLS.
    pub fn start() -> Self {
        Self::started("https", "own")
    }

    /// At the usual port of its wire, `https` or `http`.
    pub fn usual(wire: &'static str) -> Self {
        Self::started(wire, "usual")
    }

    fn started(wire: &'static str, port_kind: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certificate = dir.path().join("crt");
        certify(dir.path(), &certificate);
        let mut server = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/index.py"))
            .arg(dir.path())
            .args([PASSWORD, TOKEN, wire, port_kind])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test needs python3");
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port: u16 = lines.next().unwrap().unwrap().parse().unwrap();
        let own_port = if port_kind == "usual" { String::new() } else { format!(":{port}") };
        let heard: Arc<Mutex<Vec<(String, String, bool)>>> = Arc::default();
        let keep = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                keep.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        let at = format!("index.example{own_port}");
        Self { server, port, at, wire, certificate, heard, dir }
    }

    /// Its address inside and outside, without a path.
    pub fn url(&self) -> String {
        format!("{}://{}", self.wire, self.at)
    }

    pub fn heard(&self) -> Vec<(String, String, bool)> {
        self.heard.lock().unwrap().clone()
    }

    /// A server whose environment and files hold the credentials.
    pub fn up(&self, home: &Home) -> Server {
        let (at, wire) = (&self.at, self.wire);
        let table = format!("index.example=127.0.0.1:{}", self.port);
        let npmrc = self.dir.path().join("npmrc");
        std::fs::write(&npmrc, format!("//{at}/npm/:_authToken={TOKEN}\n")).unwrap();
        let index = format!("{wire}://ci-bot:{PASSWORD}@{at}/repo/simple/");
        let (registry, ca) = (format!("{wire}://{at}/npm/"), self.certificate.to_str().unwrap());
        let env = [
            ("PIP_INDEX_URL", index.as_str()),
            ("PIP_EXTRA_INDEX_URL", ""),
            ("PIP_CONFIG_FILE", "/dev/null"),
            ("PIP_CERT", ca),
            ("SSL_CERT_FILE", ca),
            ("npm_config_registry", registry.as_str()),
            ("npm_config_userconfig", npmrc.to_str().unwrap()),
            ("npm_config_cafile", ca),
        ];
        home.up_with(&["--egress-host", &table], &env)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A server's certificate and no authority's: verifiers that are strict take no authority for a server.
fn certify(dir: &Path, certificate: &Path) {
    let config = dir.join("cnf");
    let text = "[req]\ndistinguished_name = dn\nx509_extensions = v3\n[dn]\n[v3]\n\
                subjectAltName = DNS:index.example\nbasicConstraints = CA:FALSE\n";
    std::fs::write(&config, text).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-nodes", "-days", "1", "-subj", "/CN=t", "-config"])
        .args([&config, Path::new("-keyout"), &dir.join("key"), Path::new("-out"), certificate])
        .output()
        .expect("this test needs openssl: apt-get install openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
