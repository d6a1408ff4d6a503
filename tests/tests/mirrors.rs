//! Mirrors: the host fetches in a sandbox's stead, so that its credentials never go inside and nothing can
//! be sent with them. The index is this test's own, with TLS and a password, on loopback.

use crate::support;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use cofferdam_tests::{Home, Server};
use serde_json::{Value, json};
use support::{assert_proven, has_npm, texts};

/// What the index demands, and no sandbox may ever see.
const PASSWORD: &str = "S3CRET-PASS";
const TOKEN: &str = "S3CRET-TOKEN";

/// Its certificate and key beside it; it prints its port, then each request with what it thought of it.
const SERVER: &str = r#"
import base64, hashlib, http.server, io, json, ssl, sys, tarfile, threading, zipfile
where, password, token = sys.argv[1:4]
packed = io.BytesIO()
with zipfile.ZipFile(packed, 'w') as z:
    z.writestr('tiny.py', 'x = 1\n')
    z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n')
    z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr('tiny-1.0.dist-info/RECORD', '')
wheel = packed.getvalue()
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode='w:gz') as t:
    text = b'{"name": "tiny", "version": "1.0.0"}'
    info = tarfile.TarInfo('package/package.json'); info.size = len(text)
    t.addfile(info, io.BytesIO(text))
tarball = packed.getvalue()
basic = 'Basic ' + base64.b64encode(('ci-bot:' + password).encode()).decode()
class Index(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *args): pass
    def tell(self, status, kind, body, **more):
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        for name, value in more.items(): self.send_header(name, value)
        self.end_headers()
        if self.command != 'HEAD': self.wfile.write(body)
    def part(self, kind, body):
        first = int(self.headers['Range'].removeprefix('bytes=').split('-')[0])
        self.tell(206, kind, body[first:], Content_Range='bytes %d-%d/%d' % (first, len(body) - 1, len(body)))
    def do_GET(self):
        said = self.headers.get('Authorization')
        path = self.path
        wanted = 'Bearer ' + token if path.startswith('/npm/') else basic
        sys.stdout.write(json.dumps([self.command, path, said == wanted]) + "\n"); sys.stdout.flush()
        here = 'https://ci-bot:%s@index.example:%d' % (password, port)
        if said != wanted: return self.tell(401, 'text/plain', b'who?', WWW_Authenticate='Basic')
        if path == '/repo/simple/tiny/':
            page = '<a href="../../packages/tiny-1.0-py3-none-any.whl#sha256=%s">tiny-1.0-py3-none-any.whl</a>' % hashlib.sha256(wheel).hexdigest()
            page += '<a href="%s/repo/packages/tiny-0.9-py3-none-any.whl">tiny-0.9-py3-none-any.whl</a>' % here
            page += '<a href="//ci-bot:%s&#64;index.example:%d/repo/packages/tiny-0.8-py3-none-any.whl" ' % (password, port)
            page += 'data-yanked="href=\'/private/file\' <a href=\'/private/file\'>">tiny-0.8-py3-none-any.whl</a><!-- <a href="/private/file"> -->'
            if self.headers['Range']: return self.part('text/html', page.encode())
            return self.tell(200, 'text/html', page.encode(), Set_Cookie='session=%s' % password)
        if path.startswith('/repo/packages/tiny-') and self.headers['Range']: return self.part('application/octet-stream', wheel)
        if path.startswith('/repo/packages/tiny-'): return self.tell(200, 'application/octet-stream', wheel)
        if path == '/repo/simple/away/': return self.tell(302, 'text/html', b'', Location='https://evil.example/x')
        if path == '/npm/tiny':
            dist = {'tarball': 'https://index.example:%d/npm/tiny/-/tiny-1.0.0.tgz' % port, 'shasum': hashlib.sha1(tarball).hexdigest()}
            version = {'name': 'tiny', 'version': '1.0.0', 'dist': dist, 'bugs': {'url': '/private/file'}}
            older = {'name': 'tiny', 'version': '0.9.0', 'dist': {**dist, 'tarball': '/elsewhere/tiny-0.9.0.tgz'}}
            page = {'name': 'tiny', 'dist-tags': {'latest': '1.0.0'}, 'versions': {'1.0.0': version, '0.9.0': older}}
            page['readme'] = 'see "tarball": "/private/file" or <a href="/private/file">'
            page['dist'] = {'tarball': '/private/file', 'url': '//ci-bot:%s@index.example:%d/x' % (password, port)}
            return self.tell(200, 'application/json', json.dumps(page).encode())
        if path == '/npm/tiny/-/tiny-1.0.0.tgz': return self.tell(200, 'application/octet-stream', tarball)
        if path == '/private/file': return self.tell(200, 'text/plain', b'PRIVATE-FILE')
        self.tell(404, 'text/plain', b'no')
    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Index)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(where + '/crt', where + '/key')
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
port = server.server_address[1]
print(port, flush=True)
server.serve_forever()
"#;

/// An index with a password, behind TLS that nothing but this test trusts.
struct Index {
    server: Child,
    port: u16,
    certificate: PathBuf,
    /// Method, path, and whether the credentials were the right ones.
    heard: Arc<Mutex<Vec<(String, String, bool)>>>,
    dir: tempfile::TempDir,
}

impl Index {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certificate = dir.path().join("crt");
        certify(dir.path(), &certificate);
        let mut server = Command::new("python3")
            .args(["-c", SERVER])
            .arg(dir.path())
            .args([PASSWORD, TOKEN])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test needs python3");
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        let heard: Arc<Mutex<Vec<(String, String, bool)>>> = Arc::default();
        let keep = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                keep.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { server, port, certificate, heard, dir }
    }

    fn heard(&self) -> Vec<(String, String, bool)> {
        self.heard.lock().unwrap().clone()
    }

    /// A server whose environment and files hold the credentials.
    fn up(&self, home: &Home) -> Server {
        let at = format!("index.example:{}", self.port);
        let table = format!("index.example=127.0.0.1:{}", self.port);
        let npmrc = self.dir.path().join("npmrc");
        std::fs::write(&npmrc, format!("//{at}/npm/:_authToken={TOKEN}\n")).unwrap();
        let index = format!("https://ci-bot:{PASSWORD}@{at}/repo/simple/");
        let (registry, ca) = (format!("https://{at}/npm/"), self.certificate.to_str().unwrap());
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

/// Runs a build as a tenant that the operator granted the mirrors to; the task's output.
async fn built(up: &Server, script: &str, mirror: &str) -> (Value, String) {
    let grants = json!({"acme": ["@npm", "@pip"]});
    let body = json!({"value": grants, "expectedVersion": 0, "scope": "global"}).to_string();
    let path = "/api/config/egress.mirrors";
    let (status, said) = up.request("PUT", path, Some(&up.key), Some(body.into_bytes())).await;
    assert_eq!(status, 200, "{said}");
    let acme = up.new_key(&json!({"tenant": "acme", "roles": ["submitter"]})).await.1;
    let recipe = json!({"id": "m", "v": "1", "plan": {"tasks": [{
        "name": "t",
        "build": {"run": script, "egress": [mirror], "timeout": "120s"},
        "exec": {"run": "cat /work/said; env", "timeout": "30s"},
        "limits": {"mem_mb": 768, "disk_mb": 256, "pids": 128},
    }]}});
    let (status, header) =
        up.start_recipe_as(&acme, &recipe.to_string(), json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let run = header["runId"].as_str().unwrap();
    let path = format!("/api/runs/{run}");
    support::until("the run has ended", std::time::Duration::from_secs(180), async || {
        let status = up.get_as(&acme, &path).await.1["status"].clone();
        ["succeeded", "failed", "retries_exceeded"].contains(&status.as_str().unwrap_or(""))
    })
    .await;
    let header = up.get_as(&acme, &path).await.1;
    let sql = up.sql().await;
    let out = texts(&sql, "SELECT coalesce(response->>'stdout', '') FROM app.sbx_runs").await;
    let violations =
        texts(&sql, "SELECT coalesce(response->>'violations', '[]') FROM app.sbx_runs").await;
    assert_eq!(header["status"], "succeeded", "{header} {out:?} {violations:?}");
    (serde_json::from_str(&violations[0]).unwrap(), out[0].clone())
}

/// Everything that a sandbox could find a secret in: environment, configuration, files.
const LOOK: &str = "env; tr '\\0' '\\n' < /proc/1/environ; \
    grep -rls 'S3CRE[T]' /etc /root /home /work /tmp /run /var /.cofferdam && echo FOUND-IN-A-FILE; ";

#[tokio::test(flavor = "multi_thread")]
async fn h4_pip_fetches_by_the_hosts_credentials_which_never_go_inside() {
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    let at = "http://pip-0.mirrors.cofferdam.internal";
    let code = |what: &str| format!("curl -s -o got.txt -w '%{{http_code}} {what}\\n' ");
    let script = format!(
        "exec > /work/said 2>&1; {LOOK} /usr/bin/python3 -m pip config list; \
         /usr/bin/python3 -m pip download --no-deps --no-cache-dir -d got tiny && ls got; {LOOK} \
         {} {at}/repo/simple/tiny/; cat got.txt; echo; {} -D - {at}/repo/simple/tiny/; \
         {} -I {at}/repo/packages/tiny-0.9-py3-none-any.whl; \
         {} -X POST -d x=y {at}/repo/simple/; {} -X PUT {at}/repo/packages/tiny-1.0-py3-none-any.whl; \
         {} {at}/private/file; cat got.txt; \
         {} --path-as-is {at}/repo/simple/../../private/file; \
         {} --path-as-is {at}/repo/simple/%2e%2e/%2e%2e/private/file; \
         {} {at}/repo/simple/away/; {} {at}/repo/packages/other.whl; \
         {} https://index.example:{}/repo/simple/tiny/; echo done",
        code("page"),
        code("headers"),
        code("linked"),
        code("post"),
        code("put"),
        code("beside"),
        code("climb"),
        code("encoded"),
        code("away"),
        code("unlinked"),
        code("direct"),
        index.port,
    );
    let (violations, out) = built(&up, &script, "@pip").await;
    for line in [
        "tiny-1.0-py3-none-any.whl",
        "200 page",
        "200 linked",
        "405 post",
        "405 put",
        "403 beside",
        "403 climb",
        "403 encoded",
        "502 away",
        "403 unlinked",
        "000 direct",
        "done",
    ] {
        assert!(out.lines().any(|said| said == line), "{line}: {out}");
    }
    for secret in ["S3CRET", "ci-bot", "Y2ktYm90", "PRIVATE-FILE", "FOUND-IN-A-FILE"] {
        assert!(!out.contains(secret), "{secret}: {out}");
    }
    assert!(!out.to_lowercase().contains("set-cookie"), "{out}");
    let count = |why: &str| {
        let all = violations.as_array().unwrap().iter().filter(|v| v["why"] == why);
        all.map(|v| v["count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((count("method"), count("path"), count("name")), (2, 4, 1), "{violations}");
    let heard = index.heard();
    assert!(heard.iter().all(|(_, _, knew)| *knew), "{heard:?}");
    assert!(heard.iter().all(|(method, _, _)| method == "GET" || method == "HEAD"), "{heard:?}");
    assert!(heard.iter().all(|(_, path, _)| path.starts_with("/repo/")), "{heard:?}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_npm_fetches_by_the_hosts_token_which_never_goes_inside() {
    if !has_npm("the mirror is asked by this machine's own npm") {
        return;
    }
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    let script = format!(
        "exec > /work/said 2>&1; export HOME=/tmp; {LOOK} npm config ls -l | grep -v scripts; \
         npm pack tiny; {LOOK} ls *.tgz; \
         curl -s -o /dev/null -w '%{{http_code}} put\\n' -X PUT -d '{{}}' $npm_config_registry'tiny'; \
         for at in -/whoami %2d/npm/v1/tokens; do curl -s -o /dev/null -w '%{{http_code}} account\n' $npm_config_registry$at; done; echo done"
    );
    let (violations, out) = built(&up, &script, "@npm").await;
    for line in ["tiny-1.0.0.tgz", "405 put", "403 account", "done"] {
        assert!(out.lines().any(|said| said == line), "{line}: {out}");
    }
    for secret in ["S3CRET", "FOUND-IN-A-FILE"] {
        assert!(!out.contains(secret), "{secret}: {out}");
    }
    assert!(!out.contains("200 account") && !out.contains("404 account"), "{out}");
    assert!(violations.to_string().contains("\"method\""), "{violations}");
    let heard = index.heard();
    assert!(heard.iter().any(|(_, path, knew)| path.ends_with(".tgz") && *knew), "{heard:?}");
    assert!(heard.iter().all(|(method, _, knew)| method == "GET" && *knew), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s9_s10_npm_sends_its_token_below_its_own_path_and_to_no_account() {
    if !has_npm("the mirror is asked by this machine's own npm") {
        return;
    }
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    let script = "exec > /work/said 2>&1; export HOME=/tmp; npm pack tiny; at=$${npm_config_registry%npm/}; \
        curl -s $${npm_config_registry}tiny; echo; \
        for path in private/file elsewhere/tiny-0.9.0.tgz elsewhere/other.tgz; do \
        curl -s -o /dev/null -w \"%{http_code} $path\n\" $at$path; done; \
        for path in -/whoami '-;a=b/whoami' '%5c-/whoami' '-%2fwhoami' '%20-/whoami' _session tiny/1.0.0; do \
        curl -s -o /dev/null --path-as-is -w '%{http_code} account\n' \"$npm_config_registry$path\"; done; echo done";
    let (_, out) = built(&up, script, "@npm").await;
    for line in [
        "tiny-1.0.0.tgz",
        "403 private/file",
        // Linked, but not the registry's own: asked without the token, which this server wants.
        "401 elsewhere/tiny-0.9.0.tgz",
        "403 elsewhere/other.tgz",
        "done",
    ] {
        assert!(out.lines().any(|said| said == line), "{line}: {out}");
    }
    assert_eq!(out.lines().filter(|said| *said == "403 account").count(), 7, "{out}");
    assert!(!out.contains("S3CRET") && !out.contains("ci-bot"), "{out}");
    let heard = index.heard();
    for (_, path, knew) in &heard {
        // npm asks for its own newest version beside.
        assert_eq!(*knew, path.starts_with("/npm/"), "{heard:?}");
    }
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn s70_a_part_of_a_page_that_begins_in_an_address_is_not_told() {
    let index = Index::start();
    let home = Home::new();
    let up = index.up(&home);
    // Every beginning within the second link: one of them is right behind what tells an address.
    let script = "exec > /work/said 2>&1; at=http://pip-0.mirrors.cofferdam.internal/repo; \
        curl -s -o /dev/null $at/simple/tiny/; \
        for from in $(seq 120 10 400); do curl -s -w '%{http_code} part\n' -H \"Range: bytes=$from-\" $at/simple/tiny/; done; \
        curl -s -o /dev/null -w '%{http_code} file\n' -H 'Range: bytes=5-' $at/packages/tiny-1.0-py3-none-any.whl; echo done";
    let (_, out) = built(&up, script, "@pip").await;
    assert!(!out.contains("S3CRET"), "{out}");
    assert!(out.contains("502 part") && !out.contains("206 part"), "{out}");
    assert!(out.lines().any(|said| said == "206 file"), "{out}");
    assert_proven(&home);
}
