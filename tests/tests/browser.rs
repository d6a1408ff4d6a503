//! A real browser on the server's own host, in which a page of strangers runs (C2).
//!
//! ```text
//! chromium -- page of http://evil.test -----------------> API    (another site)
//!          -- page of http://rebind.test -- front --------> API    (its own site, by a name that moved)
//!                     \--------- what it saw ---> listener       (takes everything, from everywhere)
//! ```
//! The names are the browser's alone (`--host-resolver-rules`), and every address is on loopback. Skips where no
//! Chromium is installed, and says so.

use crate::support;

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, row_counts};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use support::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A browser starts in two seconds; a loaded machine takes several times that.
const LIMIT: Duration = Duration::from_secs(120);
/// Of a request's head and body: what the pages send is a few hundred bytes.
const MAX_REQUEST: usize = 64 * 1024;
/// The recipe that a page wants to have, and with it the host.
const RECIPE: &str =
    r#"{"yaml":"id: csrf\nv: \"1\"\nplan:\n  tasks:\n    - {name: a, exec: {run: \"true\"}}\n"}"#;

fn chromium() -> Option<PathBuf> {
    let found = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].map(Path::new);
    let found = found.into_iter().find(|path| path.is_file()).map(Path::to_owned);
    if found.is_none() {
        not_run("Chromium", "no browser is installed: apt-get install chromium");
    }
    found
}

/// A browser that has one page open.
struct Browser {
    child: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open(program: &Path, rules: &str, url: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let child = Command::new(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            // What is not mapped is nowhere: the browser asks nobody else.
            .arg(format!("--host-resolver-rules={rules}, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
            .arg(url)
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path())
            .env_remove("DISPLAY")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Self { child, _profile: profile }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // With its group: it has a dozen processes.
        let _ = killpg(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// A listener that answers each connection with what `answer` makes of its one request.
struct Listening {
    at: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A whole request, as text: head and body.
async fn request(stream: &mut TcpStream) -> String {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while bytes.len() < MAX_REQUEST {
        let count = stream.read(&mut piece).await.unwrap_or(0);
        bytes.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if count == 0 {
                return text;
            }
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
        });
        if count == 0 || body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
    panic!("a request without end");
}

async fn say(stream: &mut TcpStream, kind: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // The browser may have gone.
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
}

/// Hears whatever any page sends: it shows that the browser does send it.
async fn listener() -> (Listening, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, heard) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let into = Arc::clone(&heard);
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let said = request(&mut stream).await;
            into.lock().unwrap().push(said);
            say(&mut stream, "text/plain", "").await;
        }
    });
    (Listening { at, task }, heard)
}

/// A server of one page, and, for a front, of another server for every other path: what a browser sees when a
/// name that it has a page of comes to lie at another address.
async fn page(html: String, behind: Option<String>) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (html, behind) = (html.clone(), behind.clone());
            tokio::spawn(async move {
                let said = request(&mut stream).await;
                match behind.filter(|_| !said.starts_with("GET / ")) {
                    None => say(&mut stream, "text/html", &html).await,
                    Some(behind) => {
                        let mut server = TcpStream::connect(behind).await.unwrap();
                        server.write_all(said.as_bytes()).await.unwrap();
                        let _ = copy_bidirectional(&mut stream, &mut server).await;
                    }
                }
            });
        }
    });
    Listening { at, task }
}

/// What the page reported, once it did.
async fn report(heard: &Mutex<Vec<String>>) -> Vec<Value> {
    let find = || {
        let heard = heard.lock().unwrap();
        let found = heard.iter().find(|said| said.starts_with("POST /report "))?;
        serde_json::from_str(found.split_once("\r\n\r\n")?.1).ok()
    };
    until("the page has tried everything", LIMIT, async || find().is_some()).await;
    find().unwrap()
}

/// A page that tries these, one after the other, and reports what came of each: a status, or why none.
fn trying(api: &str, listener: SocketAddr, tries: &str) -> String {
    format!(
        r#"<!doctype html><title>x</title><body><script>
const api = {api:?}, listener = "http://{listener}", recipe = {RECIPE:?}, seen = [];
const send = async (to, options) => {{
  try {{ const a = await fetch(to, options); seen.push(a.type === "opaque" ? "opaque" : a.status); }}
  catch (e) {{ seen.push(String(e.name)); }}
}};
// Into a frame, so that the page stays.
const form = (to, kind, name, value) => new Promise(done => {{
  const frame = document.createElement("iframe"); frame.name = "f" + Math.random();
  document.body.append(frame);
  const form = document.createElement("form");
  form.method = "POST"; form.action = to; form.enctype = kind; form.target = frame.name;
  const field = document.createElement("input"); field.name = name; field.value = value;
  form.append(field); document.body.append(form);
  frame.onload = () => {{ seen.push("loaded"); done(); }};
  form.submit();
}});
(async () => {{ {tries}
  await fetch(listener + "/report", {{method: "POST", mode: "no-cors", body: JSON.stringify(seen)}});
}})();
</script>"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_page_of_another_site_in_chromium_creates_nothing() {
    let Some(program) = chromium() else { return };
    let home = Home::new();
    let up = home.up_with(&["--no-auth"], &[]);
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    let (listener, heard) = listener().await;
    let tries = r#"
  const plain = {method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body: recipe};
  await send(listener + "/control", plain);
  await send(api + "/api/recipes/import", plain);
  await send(api + "/api/recipes/import", {...plain, credentials: "include", keepalive: true});
  await send(api + "/api/recipes/import", {method: "POST", headers: {"Content-Type": "application/json"}, body: recipe});
  await send(api + "/api/run", {method: "POST", mode: "no-cors", body: '{"recipeRef":{"id":"csrf","v":"1"}}'});
  await send(api + "/api/runs", {});
  navigator.sendBeacon(api + "/api/recipes/import", recipe);
  await form(api + "/api/recipes/import", "text/plain", '{"yaml":"id: csrf\\nv: \\"1\\"\\nplan: {tasks: [{name: a, value: x}]}', '"}');
  await form(api + "/api/recipes/import", "application/x-www-form-urlencoded", "yaml", recipe);"#;
    let html = trying(&up.url, listener.at, tries);
    let page = page(html, None).await;
    let rules = format!("MAP evil.test:80 {}", page.at);
    let _browser = Browser::open(&program, &rules, "http://evil.test/");
    let seen = report(&heard).await;
    assert_eq!(seen.len(), 8, "{seen:?}");
    // The browser sends such requests, with that body: what refuses them is the server.
    let control = heard.lock().unwrap().iter().any(|said| {
        said.starts_with("POST /control ") && said.contains("csrf") && said.contains("evil.test")
    });
    assert!(control, "the browser did not send what it was to send");
    // Nothing was readable: not a status, let alone an answer.
    assert!(seen.iter().all(Value::is_string), "{seen:?}");
    assert_eq!(row_counts(&sql).await, before, "a page of another site wrote something");
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_name_that_was_moved_to_loopback_in_chromium_reads_and_creates_nothing() {
    let Some(program) = chromium() else { return };
    let home = Home::new();
    let up = home.up_with(&["--no-auth"], &[]);
    let sql = up.sql().await;
    let before = row_counts(&sql).await;
    let (listener, heard) = listener().await;
    let tries = r#"
  const json = {method: "POST", headers: {"Content-Type": "application/json"}, body: recipe};
  await send("/healthz", {});
  await send("/api/runs", {});
  await send("/api/recipes/import", json);
  await send("/api/recipes/import", {...json, headers: {"Content-Type": "text/plain"}});
  await send("/api/run", {...json, body: '{"recipeRef":{"id":"csrf","v":"1"}}'});"#;
    let html = trying(&up.url, listener.at, tries);
    let address = up.url.strip_prefix("http://").unwrap().to_owned();
    let front = page(html, Some(address)).await;
    let rules = format!("MAP rebind.test:80 {}", front.at);
    let _browser = Browser::open(&program, &rules, "http://rebind.test/");
    // To the browser they are the page's own, so it shows it the answers: every one is a refusal.
    assert_eq!(report(&heard).await, vec![Value::from(421); 5]);
    assert_eq!(row_counts(&sql).await, before, "a name that was moved wrote something");
}
