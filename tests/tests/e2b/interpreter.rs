//! The code interpreter's own clients, unmodified, in a sandbox of the template that this host builds; and templates that
//! cannot begin.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, Server, binary, repository, text};
use serde_json::{Value, json};

use super::{Caller, answered, gone, install_modules, install_python, run};
use crate::support::{count, has_npm, install, said, texts, until};

/// The versions that this repository is tested with.
pub const PYTHON: &str = "e2b-code-interpreter==2.11.5";
pub const JAVASCRIPT: &str = "@e2b/code-interpreter@2.8.0";
const TEMPLATE: &str = "code-interpreter-v1";
/// What a machine without mirrors or mmdebstrap lacks.
const PART: &str = "the built template code-interpreter-v1";
/// Debian's packages and PyPI's come from mirrors, and every module is compiled.
const BUILD: Duration = Duration::from_secs(1_200);
/// What the images are made of, the base of the first one alone: another text of these is another image.
const SOURCES: [&str; 10] = [
    "bootstrap.rs",
    "build.rs",
    "packages.rs",
    "interpreter/server.py",
    "interpreter/contexts.py",
    "interpreter/forked.py",
    "interpreter/zygote.py",
    "interpreter/startup.py",
    "interpreter/ipython_kernel_config.py",
    "interpreter/kernel-bash.json",
];
/// What a test may add to the store beside what was built.
const BUILT: [&str; 2] = ["base.json", "code-interpreter-v1.json"];

/// The images that were built once, moved to a home for one test at a time: they are a gigabyte, and removing a copy takes
/// longer than the test.
pub(super) struct Lent {
    kept: PathBuf,
    home: PathBuf,
    _lock: File,
}

impl Lent {
    /// With the home: on the file system of the images, or they would be copied after all. Why not, where the template
    /// cannot be built here.
    pub(super) fn home() -> Result<(Home, Self), String> {
        let (kept, lock) = built()?;
        let home = Home::below(&directory());
        let lent = Self { kept, home: home.path().join("images"), _lock: lock };
        moved(&lent.kept, &lent.home);
        Ok((home, lent))
    }
}

fn directory() -> PathBuf {
    let dir = repository().join("target/e2b/templates");
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// The directory of the images, which are built once, and its lock.
pub fn built() -> Result<(PathBuf, File), String> {
    let dir = directory();
    let sources = repository().join("crates/sandbox/src/template");
    let texts = SOURCES.map(|name| fs::read_to_string(sources.join(name)).unwrap());
    let base = digest_bytes(texts[0].as_bytes()).to_string();
    let wanted = format!("{base} {}", digest_bytes(texts.concat().as_bytes()));
    let (state, of) = (dir.join("state"), dir.join("base"));
    let images = state.join("images");
    let lock = install::once(&dir, &wanted, &images, || {
        if fs::read_to_string(&of).is_ok_and(|of| of != base) {
            let _ = fs::remove_dir_all(&state);
        }
        fs::create_dir_all(&state).unwrap();
        // With this machine's own environment: it says how mirrors are reached.
        let mut build = Command::new(binary());
        build.arg("--state").arg(&state).args(["template", "build", TEMPLATE]);
        fs::write(&of, &base).unwrap();
        install::run_within(build, BUILD)
    })?;
    Ok((images, lock))
}

impl Drop for Lent {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.home.join("templates")).into_iter().flatten().flatten() {
            let is_built = BUILT.iter().any(|name| entry.file_name() == *name);
            if !is_built && entry.path().extension().is_some_and(|extension| extension == "json") {
                let _ = fs::remove_file(entry.path());
            }
        }
        moved(&self.home, &self.kept);
    }
}

/// By mv(1), which copies where it is another file system.
fn moved(from: &Path, to: &Path) {
    let moved = Command::new("mv").arg("--no-target-directory").args([from, to]).status();
    assert!(moved.is_ok_and(|status| status.success()), "{}", from.display());
}

fn script(name: &str) -> PathBuf {
    repository().join("tests/tests/e2b").join(name)
}

#[tokio::test]
async fn the_interpreters_python_client_works_unmodified() {
    let Some(python) = install_python(PYTHON) else {
        return not_run("the Python client of the code interpreter", "pip could not install it");
    };
    let (home, lent) = match Lent::home() {
        Ok(lent) => lent,
        Err(why) => return not_run(PART, &why),
    };
    let server = home.up();
    let mut command = Command::new(python);
    command.arg(script("interpreter.py"));
    run(&server, command, None).await;
    drop(lent);
    gone(home, server).await;
}

#[tokio::test]
#[ignore = "a minute: `make clients` runs it"]
async fn the_interpreters_javascript_client_works_unmodified() {
    if !has_npm("the JavaScript client of the code interpreter") {
        return;
    }
    let Some(modules) = install_modules(JAVASCRIPT) else {
        return not_run(
            "the JavaScript client of the code interpreter",
            "npm could not install it",
        );
    };
    let (home, lent) = match Lent::home() {
        Ok(lent) => lent,
        Err(why) => return not_run(PART, &why),
    };
    let server = home.up();
    let copy = modules.join("interpreter.mjs");
    fs::copy(script("interpreter.mjs"), &copy).unwrap();
    let mut command = Command::new("node");
    command.arg(copy);
    run(&server, command, None).await;
    drop(lent);
    gone(home, server).await;
}

/// A request to the interpreter of a sandbox, by hand.
async fn asked(ann: &Caller, id: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    answered(ann.port(method, (id, 49_999), path).body(body.to_owned())).await
}

#[tokio::test]
#[ignore = "a minute: `make clients` runs it"]
async fn an_interpreter_refuses_and_survives_what_clients_would_not_send() {
    let (home, lent) = match Lent::home() {
        Ok(lent) => lent,
        Err(why) => return not_run(PART, &why),
    };
    let server = home.up();
    let ann = Caller::of(&server, "ann").await;
    let (id, _) = ann.create(json!({"templateID": TEMPLATE, "timeout": 240})).await;
    let execute = async |body: &str| asked(&ann, &id, "POST", "/execute", body).await;
    for (body, status) in [
        ("nonsense", 400),
        ("[]", 400),
        ("{}", 400),
        (r#"{"code": 1}"#, 400),
        (r#"{"code": "1", "env_vars": {"A": 1}}"#, 400),
        (r#"{"code": "1", "env_vars": {"A;b": "1"}, "language": "bash"}"#, 400),
        (r#"{"code": "1", "context_id": "x", "language": "python"}"#, 400),
        (r#"{"code": "1", "context_id": "x"}"#, 404),
        (r#"{"code": "1", "language": "cobol"}"#, 400),
    ] {
        let (found, answer) = execute(body).await;
        assert_eq!(found, status, "{body}: {answer}");
        assert!(answer["detail"].is_string(), "{body}: {answer}");
    }
    let large = "x".repeat(5 * 1024 * 1024);
    assert_eq!(execute(&large).await.0, 413);
    assert_eq!(asked(&ann, &id, "GET", "/nothing", "").await.0, 404);
    // The memory of the sandbox ends a kernel, and the next one answers.
    let (_, answer) = execute(r#"{"code": "x = b'a' * (4 << 30)"}"#).await;
    let words = answer.to_string();
    assert!(words.contains("KernelDied") || words.contains("MemoryError"), "{words}");
    let (_, answer) = execute(r#"{"code": "40 + 2"}"#).await;
    assert!(answer.to_string().contains("42"), "{answer}");
    // A program that prints without end is cut, and its caller told.
    let (_, answer) = execute(r#"{"code": "for _ in range(72): print('x' * (1 << 20))"}"#).await;
    let words = answer.to_string();
    assert!(words.contains("OutputTooLarge") && words.len() < 72 << 20, "{}", words.len());
    let (_, answer) = execute(r#"{"code": "40 + 3"}"#).await;
    assert!(answer.to_string().contains("43"), "{answer}");
    // A kernel that hears no interrupt is started anew for the next caller.
    let deaf = json!({"code": "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)"});
    let hung = tokio::time::timeout(Duration::from_secs(1), execute(&deaf.to_string())).await;
    assert!(hung.is_err(), "{hung:?}");
    let (_, answer) = execute(r#"{"code": "6 * 7"}"#).await;
    assert!(answer.to_string().contains("42"), "{answer}");
    // Two contexts are there, of python and of bash; ten more fit.
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(asked(&ann, &id, "POST", "/contexts", "{}").await.0);
    }
    assert_eq!(statuses, [&[201; 10][..], &[429; 2]].concat());
    let (_, contexts) = asked(&ann, &id, "GET", "/contexts", "").await;
    let first = text(&contexts[2], "id");
    assert_eq!(asked(&ann, &id, "DELETE", &format!("/contexts/{first}"), "").await.0, 204);
    assert_eq!(asked(&ann, &id, "POST", "/contexts", "{}").await.0, 201);
    assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    drop(lent);
    gone(home, server).await;
}

#[tokio::test]
async fn a_template_that_cannot_begin_makes_no_sandbox() {
    let (home, lent) = match Lent::home() {
        Ok(lent) => lent,
        Err(why) => return not_run(PART, &why),
    };
    add_templates(&home);
    let server = home.up();
    let (ann, bob) = (Caller::of(&server, "ann").await, Caller::of(&server, "bob").await);
    let create = async |caller: &Caller, template: &str| {
        let body = json!({"templateID": template, "timeout": 60, "envVars": {"GREETING": "hello"}});
        caller.api("POST", "/v2/sandboxes", Some(body)).await
    };
    let (broken, slow, web, unknown, wrong) = tokio::join!(
        create(&ann, "broken"),
        create(&ann, "slow"),
        create(&bob, "web"),
        create(&ann, "nothing"),
        create(&ann, "../base"),
    );
    assert_eq!((unknown.0, &unknown.1["code"]), (404, &json!(404)), "{}", unknown.1);
    assert_eq!((wrong.0, broken.0, slow.0), (400, 400, 400), "{} {} {}", wrong.1, broken.1, slow.1);
    let words = |answer: &Value| text(answer, "message");
    assert!(words(&broken.1).contains("exit status 3: the reason"), "{}", broken.1);
    assert!(words(&slow.1).contains("40 s: exit status 1: not yet"), "{}", slow.1);
    let (typo, late, done) =
        tokio::join!(create(&ann, "typo"), create(&ann, "late"), create(&ann, "done"));
    assert_eq!((typo.0, late.0, done.0), (400, 201, 201), "{} {} {}", typo.1, late.1, done.1);
    assert!(words(&typo.1).contains("exit status 127"), "{}", typo.1);
    let late = text(&late.1, "sandboxID");
    assert_told_later(&server, &ann, &late).await;
    for id in [late, text(&done.1, "sandboxID")] {
        assert_eq!(ann.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    }
    // What began answers at once, on a port of its own.
    assert_eq!((web.0, text(&web.1, "templateID")), (201, "web".to_owned()), "{}", web.1);
    let id = text(&web.1, "sandboxID");
    assert_eq!(answered(bob.port("GET", (&id, 8_000), "/")).await, (200, json!("hello\n")));
    // Templates are the host's: both tenants see all of them.
    for caller in [&ann, &bob] {
        assert_all_listed(caller).await;
    }
    assert_base_stays(&home);
    // A removed one makes no other; what runs goes on.
    assert!(home.run(&["template", "rm", "web"]).status.success());
    assert_eq!(home.run(&["template", "rm", "web"]).status.code(), Some(1));
    assert_eq!(create(&bob, "web").await.0, 404);
    assert_eq!(bob.api("GET", &format!("/sandboxes/{id}"), None).await.0, 200);
    assert_eq!(bob.api("DELETE", &format!("/sandboxes/{id}"), None).await.0, 204);
    let sql = server.sql().await;
    let reasons =
        texts(&sql, "SELECT template FROM app.live_sandboxes WHERE started_at IS NULL").await;
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.live_sandboxes").await, 7);
    // A program that ends with its sandbox has not failed.
    let failed = "SELECT template FROM app.live_sandboxes WHERE program_failed IS NOT NULL";
    assert_eq!(texts(&sql, failed).await, ["late"]);
    sql.close().await;
    drop(lent);
    gone(home, server).await;
}

/// Templates that fail at once, later, never or not.
fn add_templates(home: &Home) {
    let add = |args: &[&str]| {
        let base = ["template", "add", "--image", "template/base"];
        let added = home.run(&[&base, args].concat());
        assert!(added.status.success(), "{}", said(&added));
    };
    add(&["broken", "--start", "echo the reason >&2; exit 3", "--ready", "exit 1"]);
    add(&["slow", "--start", "sleep 600", "--ready", "echo not yet; exit 1"]);
    let serve = "echo $GREETING >index.html; exec python3 -m http.server 8000";
    let ready = "curl -sf --noproxy '*' localhost:8000";
    add(&["web", "--start", serve, "--ready", ready, "--port", "8000", "--user", "root"]);
    // Without a ready command: one that fails at once, one that fails later, and one that has done its work.
    add(&["typo", "--start", "no-such-program"]);
    add(&["late", "--start", "sleep 1; echo too late >&2; exit 4"]);
    add(&["done", "--start", "true"]);
}

/// What fails later is on record for its owner, and the sandbox goes on.
async fn assert_told_later(server: &Server, ann: &Caller, late: &str) {
    let logs = format!("/v2/sandboxes/{late}/logs?level=error");
    let how = "the template's start command failed: exit status 4: too late";
    until("its failure is told", Duration::from_secs(20), async || {
        let (_, told) = ann.api("GET", &logs, None).await;
        told["logs"][0]["message"] == how
    })
    .await;
    let (_, view) = server.get_as(&ann.key, &format!("/api/sandboxes/{late}")).await;
    assert_eq!(
        (&view["state"], &view["programFailed"]),
        (&json!("running"), &json!("exit status 4: too late")),
        "{view}"
    );
}

async fn assert_all_listed(caller: &Caller) {
    let (_, listed) = caller.api("GET", "/templates", None).await;
    let names: Vec<String> =
        listed.as_array().unwrap().iter().map(|one| text(one, "templateID")).collect();
    let all = ["base", "broken", TEMPLATE, "done", "late", "slow", "typo", "web"];
    assert_eq!(names, all);
    let (status, alias) = caller.api("GET", "/templates/aliases/web", None).await;
    assert_eq!((status, text(&alias, "templateID")), (200, "web".to_owned()));
    assert_eq!(caller.api("GET", "/templates/aliases/nothing", None).await.0, 404);
}

/// The built base is what `base` is made of now, and stays while templates are made of it.
fn assert_base_stays(home: &Home) {
    // The built base is what `base` is made of now, with its own python.
    let made = home.run(&["sandbox", "create", "--template", "base"]);
    let made = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let looked = home.run(&["sandbox", "exec", &made, "--", "sh", "-c", "id -un; pwd; python -V"]);
    let looked = String::from_utf8(looked.stdout).unwrap();
    assert!(looked.starts_with("user\n/home/user\nPython 3."), "{looked}");
    assert!(home.run(&["sandbox", "rm", &made]).status.success());
    // An image stays while templates are made of it, so that no template is listed that makes no sandbox.
    let refused = home.run(&["image", "rm", "template/base"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("made of: base, broken, done"), "{}", said(&refused));
}
