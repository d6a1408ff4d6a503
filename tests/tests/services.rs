//! Services from images: a real registry, PostgreSQL and Redis of Debian, shards that use both, and what is refused.

use crate::support;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, Server, assert_nothing_left, repository, text};
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped, count, said, texts, until};

/// Three shards that write and read their own databases, which have nothing of another shard.
const SHARDED: &str = r#"
id: sharded
v: "1"
plan:
  tasks:
    - name: shard-${item}
      each: [a, b, c]
      services:
        - name: db
          image: REGISTRY/team/postgres:15
          port: 5432
          env: {POSTGRES_PASSWORD: secret}
          health: {probe: postgres, timeout_ms: 120000}
        - name: store
          image: REGISTRY/team/redis:7
          port: 6379
          health: {probe: redis, timeout_ms: 60000}
      exec:
        env: {PGPASSWORD: secret, SHARD: "${item}"}
        run: |
          psql -h "$DB_HOST" -p "$DB_PORT" -U postgres -qAt -v ON_ERROR_STOP=1 \
            -c 'create table seen (shard text)' -c "insert into seen values ('$SHARD')" -c 'table seen'
          redis-cli -h "$STORE_HOST" -p "$STORE_PORT" incr seen
          redis-cli -h "$STORE_HOST" -p "$STORE_PORT" info server | grep -o 'redis_version:7'
          ls /work
        timeout: 120s
      limits: {mem_mb: 768, disk_mb: 512, pids: 128}
"#;

/// A service whose program says something and ends, or which another field makes different.
fn one(image: &str, more: &str) -> String {
    format!(
        "id: one\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      services: [{{name: s, image: '{image}', port: 7000{more}}}]\n      \
         exec: {{run: 'true', timeout: 60s}}\n"
    )
}

/// The entry point of PostgreSQL's image, as the usual one is written: root prepares the directory and becomes another user.
const START: &str = r#"#!/usr/bin/env bash
set -eo pipefail
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    find "$PGDATA" \! -user postgres -exec chown postgres '{}' +
    chmod 700 "$PGDATA"
    echo "root has prepared the directory" >/dev/stdout
    exec gosu postgres "$0" "$@"
fi
initdb --username=postgres --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --auth=scram-sha-256 --no-sync >/dev/null
exec "$@" -c unix_socket_directories=/tmp -c fsync=off
"#;

struct Registry {
    child: Child,
    addr: String,
    dir: tempfile::TempDir,
}

/// A registry; `None`: it is not installed, or nothing makes images here.
fn registry_here() -> Option<Registry> {
    let has = |program: &&str| Command::new(program).arg("--version").output().is_ok();
    let needed = ["docker-registry", "mmdebstrap", "psql", "redis-cli", "curl"];
    if !needed.iter().all(has) {
        let remedy =
            "apt-get install docker-registry mmdebstrap postgresql-client redis-tools curl";
        not_run("services from images", remedy);
        return None;
    }
    Some(Registry::start())
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// Debian's registry on a free port.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port =
            std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let addr = format!("127.0.0.1:{port}");
        let config = dir.path().join("config.yml");
        let root = dir.path().join("storage");
        let text = json!({"version": 0.1, "http": {"addr": addr},
                          "storage": {"filesystem": {"rootdirectory": root}}});
        fs::write(&config, text.to_string()).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        for _ in 0..200 {
            if std::net::TcpStream::connect(&addr).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { child, addr, dir }
    }

    /// Pushes an image of these layers and gives its digest.
    fn push(&self, name: &str, tag: &str, config: &Value, layers: &[PathBuf]) -> String {
        let output = Command::new(repository().join("tests/tests/support/push_image.sh"))
            .args([&self.addr, name, tag, &config.to_string()])
            .args(layers)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A layer with one file.
    fn layer(&self, name: &str, path: &str, text: &str, mode: u32) -> PathBuf {
        let file = self.dir.path().join(name);
        let mut tar = tar::Builder::new(fs::File::create(&file).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(text.len()).unwrap());
        header.set_mode(mode);
        tar.append_data(&mut header, path, text.as_bytes()).unwrap();
        tar.into_inner().unwrap().flush().unwrap();
        file
    }

    /// Loses the layers of an image, whose manifest stays.
    fn lose(&self, name: &str) {
        let layers = format!("storage/docker/registry/v2/repositories/{name}/_layers");
        fs::remove_dir_all(self.dir.path().join(layers)).unwrap();
    }

    /// Debian with packages, without `/dev`.
    fn debian(&self, package: &str, more: &[&str]) -> PathBuf {
        let tar = self.dir.path().join(format!("{package}.tar"));
        let script = "say() { echo \"$*\" >&2; }; die() { say \"$@\"; exit 1; }; . scripts/debian.sh; \
            tar=$1 package=$2; shift 2; bootstrap bookworm \"$tar\" --include=\"$package\" \"$@\" --skip=output/dev --dpkgopt='path-exclude=/usr/share/doc/*' \
            --dpkgopt='path-exclude=/usr/share/locale/*'";
        let output = Command::new("bash")
            .args(["-c", script, "-"])
            .arg(&tar)
            .arg(package)
            .args(more)
            .current_dir(repository())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        tar
    }

    /// The images of both databases: their digests.
    fn databases(&self) -> [String; 2] {
        let postgres = self.debian("postgresql-15,gosu", &[]);
        let start = self.layer("start", "usr/local/bin/docker-entrypoint.sh", START, 0o755);
        let path = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/bin:/usr/lib/postgresql/15/bin";
        let config = json!({"Entrypoint": ["docker-entrypoint.sh"], "Cmd": ["postgres"],
                            "Env": [path, "PGDATA=/var/lib/postgresql/data"]});
        let postgres = self.push("team/postgres", "15", &config, &[postgres, start]);
        let config = json!({"Entrypoint": ["redis-server"], "Cmd": ["--bind", "127.0.0.1", "--save", ""],
                            "User": "redis", "WorkingDir": "/var/lib/redis"});
        [postgres, self.push("team/redis", "7", &config, &[self.debian("redis-server", &[])])]
    }
}

fn allow(home: &Home, registries: &Value) {
    let value = registries.to_string();
    let output = home.run(&["config", "set", "services.registries", &value, "--global"]);
    assert!(output.status.success(), "{}", said(&output));
}

async fn run(up: &Server, recipe: &str, key: &str) -> Value {
    let header = up.run_recipe(recipe, json!({}), json!({"runKey": key})).await;
    ended(up, &text(&header, "runId")).await
}

/// A run's end: images of some 100 MB are unpacked and databases made, beside other tests.
async fn ended(up: &Server, id: &str) -> Value {
    let ends = ["succeeded", "failed", "canceled", "retries_exceeded"];
    let is_over = async || {
        let (_, header) = up.get(&format!("/api/runs/{id}")).await;
        ends.iter().any(|status| header["status"] == **status)
    };
    until("the run is over", Duration::from_secs(400), is_over).await;
    up.wait_terminal(id).await
}

async fn cause(up: &Server, recipe: &str, key: &str) -> String {
    let end = run(up, recipe, key).await;
    assert_ne!(end["status"], "succeeded", "{end}");
    end.to_string()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_use_a_real_postgres_and_redis_of_images_that_are_pulled_once_and_pinned() {
    let Some(registry) = registry_here() else { return };
    let [postgres, redis] = registry.databases();
    let home = Home::new();
    let up = home.up();
    allow(&home, &json!({"*": [registry.addr]}));
    let recipe = SHARDED.replace("REGISTRY", &registry.addr);
    let end = run(&up, &recipe, "one").await;
    let sql = up.sql().await;
    let id = text(&end, "runId");
    assert_eq!(end["status"], "succeeded", "{end} {}", said(&home.run(&["show", &id])));
    let outputs = "SELECT inline FROM app.artifacts WHERE kind = 'stdout' ORDER BY step_id";
    let expected = |shard: &str| format!("{shard}\n1\nredis_version:7\n");
    assert_eq!(texts(&sql, outputs).await, ["a", "b", "c"].map(expected));
    // On record: what the tags stood for, and what each shard ran from. One of them fetched each image.
    let pinned = format!("{}/team/postgres:15@sha256:{postgres}", registry.addr);
    let bound = texts(&sql, "SELECT pinned FROM app.intent_images ORDER BY pinned").await;
    assert_eq!(bound[0], pinned);
    assert!(bound[1].ends_with(&redis) && bound.len() == 2, "{bound:?}");
    let of = "FROM app.sbx_runs s, jsonb_array_elements(s.response->'services') v";
    let named =
        format!("SELECT count(*) {of} WHERE v->'image'->>'digest' IN ('{postgres}', '{redis}')");
    assert_eq!(count(&sql, &named).await, 6);
    let fetched = format!("SELECT count(*) {of} WHERE (v->'image'->>'fetched_bytes')::bigint > 0");
    assert_eq!(count(&sql, &fetched).await, 2);
    let shown = said(&home.run(&["show", &id]));
    assert!(shown.contains(&format!("bound           {pinned}")), "{shown}");
    assert!(shown.contains(&format!("db: {pinned}, manifest {postgres}")), "{shown}");
    // The tag moves to something that cannot be a service: a fork of the run keeps what it was bound to.
    registry.push("team/redis", "7", &json!({}), &[registry.layer("x", "x", "x", 0o644)]);
    let (_, header) = up.get(&format!("/api/runs/{id}")).await;
    let path = format!("/api/ops/wf/{}/fork", text(&header, "workflowID"));
    let forked = up.post(&path, &json!({"actor": "ada", "reason": "again", "stepN": 0})).await;
    assert_eq!(forked.0, 202, "{}", forked.1);
    let fork = ended(&up, &text(&forked.1, "newRunId")).await;
    assert_eq!(fork["status"], "succeeded", "{fork}");
    assert_eq!(count(&sql, &fetched).await, 2, "all of it was here");
    assert!(cause(&up, &recipe, "two").await.contains("neither an entry point nor a command"));
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
    assert!(is_empty(&cofferdam_tests::live_dir(home.path()).join("sandboxes")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_granted_or_not_there_or_does_not_become_healthy_is_said() {
    let Some(registry) = registry_here() else { return };
    let addr = &registry.addr;
    let home = Home::new();
    let up = home.up();
    let refused = async |recipe: &str| {
        let recipe = json!({"yaml": recipe, "form": {}});
        up.start_recipe_as(&up.key, recipe["yaml"].as_str().unwrap(), json!({}), json!({})).await
    };
    let (status, body) = refused(&one(&format!("{addr}/a:1"), "")).await;
    assert_eq!((status, &body["code"]), (400, &json!("policy_violation")), "{body}");
    assert!(body.to_string().contains("services.registries"), "{body}");
    allow(&home, &json!({"default": [addr]}));
    let (status, body) = refused(&one("a:1", "")).await;
    assert_eq!((status, &body["code"]), (400, &json!("recipe_invalid")), "{body}");
    let strong = one(&format!("{addr}/a:1"), "")
        .replace("      exec:", "      isolation: {class_min: gvisor}\n      exec:");
    let (status, body) = refused(&strong).await;
    assert_eq!((status, &body["code"]), (400, &json!("policy_violation")), "{body}");
    let why = cause(&up, &one(&format!("{addr}/a:1"), ""), "absent").await;
    assert!(why.contains("could not be bound"), "{why}");
    // A device, a link out and a digest that the registry does not have make no root.
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Char);
    header.set_size(0);
    header.set_mode(0o666);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    tar.append_data(&mut header, "null", std::io::empty()).unwrap();
    let device = registry.dir.path().join("device");
    fs::write(&device, tar.into_inner().unwrap()).unwrap();
    registry.push("bad", "1", &json!({"Cmd": ["x"]}), &[device]);
    let why = cause(&up, &one(&format!("{addr}/bad:1"), ""), "device").await;
    assert!(why.contains("is a device"), "{why}");
    let none = format!("{addr}/bad@sha256:{}", "0".repeat(64));
    let why = cause(&up, &one(&none, ""), "digest").await;
    assert!(why.contains("the registry did not give"), "{why}");
    let gone = registry.layer("gone", "a", "a layer that the registry loses", 0o644);
    registry.push("gone", "1", &json!({"Cmd": ["x"]}), &[gone]);
    registry.lose("gone");
    let why = cause(&up, &one(&format!("{addr}/gone:1"), ""), "gone").await;
    assert!(why.contains("the registry did not give"), "{why}");
    // A program that ends is named with its last words, and one that does not listen with its time.
    let busybox = registry.debian("busybox-static", &["--variant=extract"]);
    registry.push("sh", "1", &json!({"Entrypoint": ["/bin/busybox", "sh", "-c"]}), &[busybox]);
    let image = format!("{addr}/sh:1");
    let why =
        cause(&up, &one(&image, ", cmd: ['echo no config; busybox ls /; exit 3']"), "ends").await;
    assert!(why.contains("`s` ended with status 3") && why.contains("no config"), "{why}");
    // Lines of the listing, within JSON.
    let is_listed = |name: &str| why.contains(&format!(r"\n{name}\n"));
    assert!(is_listed("etc") && !is_listed("work"), "its root is its own: {why}");
    let late = ", cmd: ['echo up; exec busybox sleep 99'], health: {timeout_ms: 700}";
    let why = cause(&up, &one(&image, late), "late").await;
    assert!(why.contains("not healthy within 700 ms") && why.contains("up"), "{why}");
    let sql = up.sql().await;
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_while_a_service_runs_leaves_nothing_of_it() {
    let Some(registry) = registry_here() else { return };
    let home = Home::new();
    let mut up = home.up();
    allow(&home, &json!({"default": [registry.addr]}));
    let busybox = registry.debian("busybox-static", &["--variant=extract"]);
    let config = json!({"Entrypoint": ["/bin/busybox"], "Cmd": ["httpd", "-f", "-p", "127.0.0.1:7000", "-h", "/srv"]});
    let page = registry.layer("page", "srv/page", "a page\n", 0o644);
    registry.push("web", "1", &config, &[busybox, page]);
    let get = "sleep 3; curl -fsS http://$S_HOST:$S_PORT/page";
    let recipe = one(&format!("{}/web:1", registry.addr), "")
        .replace("run: 'true'", &format!("run: '{get}'"));
    let header = up.run_recipe(&recipe, json!({}), json!({})).await;
    let run = text(&header, "runId");
    let running = || {
        let argv =
            |pid: &String| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let all = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name().into_string().unwrap());
        all.filter(|pid| argv(pid).contains("httpd\0-f\0-p\x00127.0.0.1:7000")).count()
    };
    until("the service runs", Duration::from_secs(120), async || running() > 0).await;
    up.kill();
    until("it has ended with its worker", Duration::from_secs(20), async || running() == 0).await;
    up = home.up();
    let end = ended(&up, &run).await;
    assert_eq!(end["status"], "succeeded", "{end}");
    let sql = up.sql().await;
    let kept = "SELECT inline FROM app.artifacts WHERE kind = 'stdout'";
    assert_eq!(texts(&sql, kept).await, ["a page\n"]);
    assert_proven(&home);
    assert_wiped(&home, &sql).await;
    up.stop();
    assert_nothing_left(home.path());
}
