//! What E2B's API answers, endpoint by endpoint, as a table that a running server writes and every later one is held against:
//! a handler may move to another file, and its route to another table, and no client notices.
//!
//! Of a refusal the table keeps every word; of a success the fields and their types. No request here changes a sandbox, a
//! template or a file but the one that is sent first.

mod rows;
mod table;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use cofferdam_tests::e2b::{Caller, content_type, sent};
use cofferdam_tests::{Home, Server};
use reqwest::RequestBuilder;
use serde_json::json;

use rows::{ABSENT, CONTROL, ENVD, MESSAGES, METHODS, NEAR, OURS, SERVICES};
use table::{Table, frames, shown};

use super::gone;

const JSON: [&str; 2] = ["application/json", "application/connect+json"];
const PROTOBUF: [&str; 2] = ["application/proto", "application/connect+proto"];
/// A message in protobuf with field 31, which no message has.
const FIELD_31: &[u8] = b"\xfa\x01\x00";
/// A request that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Headers of an answer that clients go by.
const SHOWN: [&str; 8] = [
    "content-type",
    "content-range",
    "content-disposition",
    "accept-ranges",
    "retry-after",
    "should-retry",
    "www-authenticate",
    "x-total-running",
];

/// Names and values that a case adds to its request.
type Headers<'a> = &'a [(&'a str, &'a str)];

/// Which ids a path has.
#[derive(Clone, Copy)]
enum Ids {
    /// Of what Ann has.
    Known,
    Unknown,
    Malformed,
}

/// A server with a sandbox and a template of Ann's.
struct World {
    ann: Caller,
    auditor: String,
    bob: Caller,
    live: String,
    token: String,
    template: String,
    build: String,
}

impl World {
    async fn on(server: &Server) -> Self {
        let (ann, bob) = (Caller::of(server, "ann").await, Caller::of(server, "bob").await);
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let ann = Caller { http, ..ann };
        let body = json!({"tenant": "ann", "roles": ["auditor"], "format": "e2b"});
        let (_, auditor) = server.new_key(&body).await;
        let (template, build) = ann.open_build("web").await;
        let (live, token) = ann.create(json!({"templateID": "base", "timeout": 300})).await;
        Self { ann, auditor, bob, live, token, template, build }
    }

    fn path(&self, path: &str, ids: Ids) -> String {
        let (live, template, build) = match ids {
            Ids::Known => (self.live.as_str(), self.template.as_str(), self.build.as_str()),
            Ids::Unknown => (
                "zzzzzzzzzzzzzzzzzzzz",
                "zzzzzzzzzzzzzzzzzzzz",
                "00000000-0000-4000-8000-000000000000",
            ),
            Ids::Malformed => ("x", "x", "x"),
        };
        path.replace("{live}", live)
            .replace("{template}", template)
            .replace("{build}", build)
            .replace("{hash}", &"a".repeat(64))
    }

    fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.ann.http.request(method.parse().unwrap(), format!("{}{path}", self.ann.url))
    }

    /// A request to envd with the sandbox's token.
    fn envd(&self, method: &str, path: &str) -> RequestBuilder {
        self.strange(method, path).header("x-access-token", &self.token)
    }

    /// The same without it.
    fn strange(&self, method: &str, path: &str) -> RequestBuilder {
        self.request(method, path).header("e2b-sandbox-id", &self.live)
    }

    /// What a request is answered, as the table has it.
    async fn answer(&self, request: RequestBuilder) -> String {
        let (status, headers, body) = sent(request).await;
        let mut line = status.to_string();
        for name in SHOWN {
            if let Some(value) = headers.get(name) {
                let value = value.to_str().unwrap();
                // Most answers are JSON, so the others are noted.
                match (name, value) {
                    ("content-type", "application/json") => {}
                    ("content-type", value) => write!(line, " {value}").unwrap(),
                    _ => write!(line, " [{name}: {value}]").unwrap(),
                }
            }
        }
        let shown = match content_type(&headers).starts_with("application/connect+") {
            true => frames(&body),
            false => shown(&body, (200..300).contains(&status)),
        };
        if !shown.is_empty() {
            write!(line, " {shown}").unwrap();
        }
        for (what, id) in
            [("{live}", &self.live), ("{template}", &self.template), ("{build}", &self.build)]
        {
            line = line.replace(id.as_str(), what);
        }
        line
    }
}

#[tokio::test]
async fn every_endpoint_of_e2b_answers_as_the_table_says() {
    let home = Home::new();
    let server = home.up();
    let world = World::on(&server).await;
    let mut table = Table::default();
    control(&world, &mut table).await;
    other_methods(&world, &mut table).await;
    absent(&world, &mut table).await;
    near(&world, &mut table).await;
    table.hold("control.txt");
    let mut table = Table::default();
    destinations(&world, &mut table).await;
    plain(&world, &mut table).await;
    files(&world, &mut table).await;
    services(&world, &mut table).await;
    messages(&world, &mut table).await;
    table.hold("envd.txt");
    world.ann.kill(&world.live).await;
    gone(home, server).await;
}

async fn control(world: &World, table: &mut Table) {
    let unknown = format!("e2b_{}", "0".repeat(40));
    let (ann, auditor, bob) = (&world.ann.key, &world.auditor, &world.bob.key);
    for (method, path, body) in CONTROL {
        table.begin(&format!("{method} {path}"));
        let to = |ids| world.path(path, ids);
        // What a request of Ann's with an id of hers would change is asked of one that is not there.
        let safe = if method == "GET" { Ids::Known } else { Ids::Unknown };
        let with = |path: &str, query: &str| {
            let mark = if path.contains('?') { '&' } else { '?' };
            format!("{path}{mark}{query}")
        };
        let mut cases: Vec<(&str, Option<&String>, String, &str)> = vec![
            ("no key", None, to(Ids::Known), body),
            ("unknown key", Some(&unknown), to(Ids::Known), body),
            ("auditor", Some(auditor), to(Ids::Known), body),
            ("another tenant", Some(bob), to(Ids::Known), body),
            ("submitter", Some(ann), to(safe), body),
            ("unknown query", Some(ann), with(&to(safe), "nothing=1"), body),
        ];
        if path.contains('{') {
            let malformed = to(Ids::Malformed);
            let query = with(&malformed, "nothing=1");
            cases.push(("unknown id", Some(ann), to(Ids::Unknown), body));
            cases.push(("malformed id", Some(ann), malformed, body));
            cases.push(("malformed id and unknown query", Some(ann), query, body));
        }
        if method != "GET" {
            cases.push(("not JSON", Some(ann), to(safe), "{"));
            cases.push(("unknown field", Some(ann), to(safe), r#"{"nothing":1}"#));
        }
        for (case, key, path, body) in cases {
            let mut request = world.request(method, &path);
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            if !body.is_empty() {
                request = request.header("content-type", "application/json").body(body);
            }
            table.add(case, world.answer(request).await);
        }
        let text = world.request(method, &to(safe)).header("x-api-key", ann).body("{}");
        table.add("not as JSON", world.answer(text.header("content-type", "text/plain")).await);
    }
}

/// What the paths of endpoints say to methods that they do not have.
async fn other_methods(world: &World, table: &mut Table) {
    let mut paths: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (method, path, _) in CONTROL {
        let path = path.split('?').next().unwrap();
        paths.entry(path).or_default().push(method);
    }
    for (path, served) in paths {
        table.begin(&format!("{path} by other methods"));
        for method in METHODS.into_iter().filter(|method| !served.contains(method)) {
            let request = world.request(method, &world.path(path, Ids::Unknown));
            let request = request.header("x-api-key", &world.ann.key);
            table.add(method, world.answer(request).await);
        }
    }
}

async fn absent(world: &World, table: &mut Table) {
    for path in ABSENT {
        table.begin(path);
        for method in METHODS {
            let request = || world.request(method, path);
            let keys = [("auditor", &world.auditor), ("submitter", &world.ann.key)];
            table.add(&format!("{method} without a key"), world.answer(request()).await);
            for (who, key) in keys {
                let case = format!("{method} of the {who}");
                table.add(&case, world.answer(request().header("x-api-key", key)).await);
            }
        }
    }
}

async fn near(world: &World, table: &mut Table) {
    for (method, path) in NEAR.into_iter().chain(OURS) {
        table.begin(&format!("{method} {path}"));
        let request = || world.request(method, &world.path(path, Ids::Known));
        table.add("no key", world.answer(request()).await);
        let key = &world.ann.key;
        table.add("X-API-Key", world.answer(request().header("x-api-key", key)).await);
        table.add("bearer", world.answer(request().bearer_auth(key)).await);
    }
    table.begin("GET /sandboxes of other names and pages");
    for (name, value) in [
        ("host", "evil.example"),
        ("host", "49983-zzzzzzzzzzzzzzzzzzzz.evil.example"),
        ("host", "x.localhost"),
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let request = world.request("GET", "/sandboxes").header("x-api-key", &world.ann.key);
        table.add(&format!("{name}: {value}"), world.answer(request.header(name, value)).await);
    }
}

/// Which sandbox, and which of its ports, a request names.
async fn destinations(world: &World, table: &mut Table) {
    table.begin("GET by its headers");
    let (live, token) = (world.live.as_str(), world.token.as_str());
    let cases: [(&str, Headers<'_>); 17] = [
        ("/health", &[("e2b-sandbox-id", live)]),
        ("/health", &[("e2b-sandbox-id", live), ("e2b-sandbox-port", "49983")]),
        ("/health", &[("e2b-sandbox-id", "zzzzzzzzzzzzzzzzzzzz")]),
        ("/health", &[("e2b-sandbox-id", "x")]),
        ("/health", &[("e2b-sandbox-id", "")]),
        ("/", &[("e2b-sandbox-id", live), ("e2b-sandbox-port", "9")]),
        ("/", &[("e2b-sandbox-id", live), ("e2b-sandbox-port", "0")]),
        ("/", &[("e2b-sandbox-id", live), ("e2b-sandbox-port", "x")]),
        ("/sandboxes", &[("e2b-sandbox-id", live), ("e2b-sandbox-port", "9")]),
        ("/sandboxes", &[("e2b-sandbox-id", live)]),
        ("/health", &[("x-access-token", "x")]),
        ("/health", &[("x-access-token", token)]),
        ("/envs", &[("x-access-token", token)]),
        ("/nothing", &[("x-access-token", token)]),
        ("/files?path=a&signature=v1_x", &[]),
        ("/health", &[("host", "49983-zzzzzzzzzzzzzzzzzzzz.localhost")]),
        ("/sandboxes", &[("host", "9-zzzzzzzzzzzzzzzzzzzz.localhost")]),
    ];
    for (path, headers) in cases {
        let mut request = world.request("GET", path);
        let mut case = path.to_owned();
        for (name, value) in headers {
            request = request.header(*name, *value);
            let value = if *value == token { "{token}" } else { *value };
            write!(case, " {name}={}", value.replace(live, "{live}")).unwrap();
        }
        table.add(&case, world.answer(request).await);
    }
    for port in [9, 49_983] {
        let host = format!("{port}-{live}.localhost");
        let request = world.request("GET", "/health").header("host", &host);
        table.add(&format!("/health of port {port} by name"), world.answer(request).await);
    }
}

async fn plain(world: &World, table: &mut Table) {
    for path in ENVD {
        table.begin(&format!("envd {path}"));
        for method in METHODS {
            let wrong = world.strange(method, path).header("x-access-token", "x");
            let none = world.answer(world.strange(method, path)).await;
            table.add(&format!("{method} without a token"), none);
            table.add(&format!("{method} with another token"), world.answer(wrong).await);
            table.add(method, world.answer(world.envd(method, path)).await);
        }
    }
}

async fn files(world: &World, table: &mut Table) {
    const PATH: &str = "/files?path=/home/user/kept";
    // What begins to write and breaks off leaves no bytes.
    const CUT: &str = "/files?path=/home/user/cut";
    const OCTETS: (&str, &str) = ("content-type", "application/octet-stream");
    table.begin("envd POST /files");
    let form = ("content-type", "multipart/form-data; boundary=b");
    let cases: [(&str, &str, Headers<'_>, &str); 9] = [
        ("bytes", PATH, &[OCTETS], "kept"),
        ("no path", "/files", &[OCTETS], "kept"),
        ("a directory", "/files?path=/home/user", &[OCTETS], "kept"),
        ("another user", "/files?path=/home/user/kept&username=none", &[OCTETS], "kept"),
        ("text", PATH, &[("content-type", "text/plain")], "kept"),
        ("brotli", PATH, &[OCTETS, ("content-encoding", "br")], "kept"),
        ("no gzip", CUT, &[OCTETS, ("content-encoding", "gzip")], "kept"),
        ("metadata", PATH, &[OCTETS, ("x-metadata-a", "b")], "kept"),
        ("a form without its end", CUT, &[form], "--b\r\n"),
    ];
    for (case, path, headers, body) in cases {
        let mut request = world.envd("POST", path).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        table.add(case, world.answer(request).await);
    }
    table.begin("envd GET /files");
    for (case, path, range) in [
        ("bytes", PATH, ""),
        ("a range", PATH, "bytes=1-2"),
        ("the last bytes", PATH, "bytes=-3"),
        ("a range beyond the end", PATH, "bytes=9-"),
        ("two ranges", PATH, "bytes=0-1,3-3"),
        ("another user", "/files?path=/home/user/kept&username=none", ""),
        ("root", "/files?path=/home/user/kept&username=root", ""),
        ("unknown query", "/files?path=/home/user/kept&nothing=1", ""),
        ("nothing there", "/files?path=/none", ""),
        ("a directory", "/files?path=/home/user", ""),
    ] {
        let request = world.envd("GET", path);
        let request = if range.is_empty() { request } else { request.header("range", range) };
        table.add(case, world.answer(request).await);
    }
    for query in ["signature=v1_x", "signature=", "signature=v1_x&signature_expiration=1"] {
        let path = format!("{PATH}&{query}");
        table.add(query, world.answer(world.strange("GET", &path)).await);
    }
}

/// One message of a method's form.
fn message(is_stream: bool, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head: Vec<u8> = std::iter::once(0).chain(length).collect();
    [if is_stream { head.as_slice() } else { &[] }, payload].concat()
}

async fn services(world: &World, table: &mut Table) {
    // `none:`, who is not a user.
    let other = ("authorization", "Basic bm9uZTo=");
    let unnamed = ("authorization", "Bearer none");
    for (path, is_stream) in SERVICES {
        table.begin(&format!("envd {path}"));
        let (own, others) = if is_stream { (1, 0) } else { (0, 1) };
        let wrong = br#"{"nothing":1}"#;
        let cases: [(&str, &str, Headers<'_>, Vec<u8>); 11] = [
            ("unknown field", JSON[own], &[], message(is_stream, wrong)),
            ("unknown field in protobuf", PROTOBUF[own], &[], message(is_stream, FIELD_31)),
            ("not JSON", JSON[own], &[], message(is_stream, b"{")),
            ("not protobuf", PROTOBUF[own], &[], message(is_stream, b"\xff")),
            ("half a frame", JSON[1], &[], b"\x00\x00\x00\x00\x09x".to_vec()),
            ("the other form", JSON[others], &[], message(!is_stream, wrong)),
            ("the other form in protobuf", PROTOBUF[others], &[], message(!is_stream, FIELD_31)),
            ("another user", JSON[own], &[other], message(is_stream, wrong)),
            ("no user", JSON[own], &[unnamed], message(is_stream, wrong)),
            ("gzip", JSON[own], &[("content-encoding", "gzip")], message(is_stream, wrong)),
            ("text", "text/plain", &[], message(is_stream, wrong)),
        ];
        for (case, kind, headers, body) in cases {
            let mut request = world.envd("POST", path).header("content-type", kind).body(body);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            table.add(case, world.answer(request).await);
        }
        let strange = world.strange("POST", path).header("content-type", JSON[own]);
        table.add("no token", world.answer(strange.body(message(is_stream, wrong))).await);
        let get = world.envd("GET", path).header("content-type", JSON[own]);
        table.add("GET", world.answer(get).await);
    }
}

async fn messages(world: &World, table: &mut Table) {
    for (path, is_stream, text) in MESSAGES {
        table.begin(&format!("envd {path} {text}"));
        let request = world.envd("POST", path).header("content-type", JSON[usize::from(is_stream)]);
        let request = request.body(message(is_stream, text.as_bytes()));
        table.add("JSON", world.answer(request).await);
    }
    table.begin("envd /filesystem.Filesystem/Stat in protobuf");
    for (case, payload) in [("/home/user", &b"\x0a\x0a/home/user"[..]), ("/none", b"\x0a\x05/none")]
    {
        let request = world.envd("POST", "/filesystem.Filesystem/Stat");
        let request = request.header("content-type", PROTOBUF[0]).body(payload);
        table.add(case, world.answer(request).await);
    }
}
