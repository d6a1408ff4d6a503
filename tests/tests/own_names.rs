//! Mirrors answer under their own names, so that lock files made inside are those of anywhere else; and programs of every
//! kind trust the authority that ends their TLS there.

use crate::support;

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use cofferdam_tests::Home;
use cofferdam_tests::not_run::not_run;
use serde_json::Value;
use support::index::Index;
use support::{assert_proven, ended, has_npm, said, texts};
use tempfile::TempDir;

/// As long as a loaded host may need for a few clients.
const LIMIT: Duration = Duration::from_secs(300);
/// What no lock file may name.
const ALIAS: &str = "cofferdam.internal";

/// A command of the host's own tenant in a project, with both mirrors.
fn exec(home: &Home, project: &Path, script: &str) -> Output {
    let dir = project.to_str().unwrap();
    let args =
        ["exec", "--no-stdin", "--egress", "@npm,@pip", "--mem", "1500", "--timeout", "280s"];
    let all = [&args[..], &["--work", dir, "--", "bash", "-c", script]].concat();
    ended(home.command(&all), LIMIT)
}

/// What npm and pip write into files that are committed, and what is asked of the mirror's name beside.
fn locks(url: &str) -> String {
    format!(
        "cd /work; export HOME=/tmp; echo '{{\"name\":\"x\",\"version\":\"1.0.0\"}}' >package.json; \
         npm install --silent tiny && cat package-lock.json; \
         /usr/bin/python3 -m pip install --quiet --dry-run --no-deps --no-cache-dir --ignore-installed --break-system-packages \
           --disable-pip-version-check --report report.json tiny && cat report.json; echo; \
         ask() {{ curl -s -o /dev/null --path-as-is -w \"%{{http_code}} $1\\n\" \"${{@:2}}\"; }}; \
         ask put -X PUT -d '{{}}' {url}/npm/tiny; ask account {url}/npm/-/whoami; ask beside {url}/private/file; \
         ask climb {url}/npm/../private/file; ask page {url}/repo/simple/tiny/; \
         ask host -H 'Host: other.example' {url}/npm/tiny; curl -s {url}/repo/simple/tiny/ {url}/npm/tiny; echo; env"
    )
}

async fn name_the_registry_itself(wire: &'static str) {
    if !has_npm("the mirror is asked by this machine's own npm") {
        return;
    }
    let index = Index::usual(wire);
    let home = Home::new();
    let up = index.up(&home);
    let project = TempDir::new().unwrap();
    let url = index.url();
    let out = said(&exec(&home, project.path(), &locks(&url)));
    let sql = up.sql().await;
    let refused =
        texts(&sql, "SELECT coalesce(response->>'violations', '[]') FROM app.sbx_runs").await;
    let refused: Value = serde_json::from_str(&refused.concat()).unwrap();
    let resolved = format!("\"resolved\": \"{url}/npm/tiny/-/tiny-1.0.0.tgz\"");
    assert!(out.contains(&resolved), "{out} {refused:?}");
    assert!(out.contains(&format!("{url}/repo/packages/tiny-1.0-py3-none-any.whl\"")), "{out}");
    let is_named = |line: &str| line.contains(ALIAS) && !line.starts_with("PIP_TRUSTED_HOST=");
    assert!(!out.lines().any(is_named), "{out}");
    for line in ["405 put", "403 account", "403 beside", "403 climb", "200 page"] {
        assert!(out.lines().any(|said| said == line), "{line}: {out}");
    }
    // To a proxy the address names the host, and `Host` is written anew.
    assert!(wire == "http" || out.lines().any(|said| said == "403 host"), "{out}");
    for secret in ["S3CRET", "ci-bot", "PRIVATE-FILE"] {
        assert!(!out.contains(secret), "{secret}: {out}");
    }
    let refused = refused.as_array().unwrap();
    let why =
        |why: &str| refused.iter().any(|one| one["why"] == why && one["name"] == "index.example");
    assert!(why("method") && why("path"), "{refused:?}");
    let asked = index.heard();
    assert!(
        asked
            .iter()
            .all(|(method, path, knew)| *knew && method == "GET" && !path.contains("private")),
        "{asked:?}"
    );
    drop(up);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn r70_lock_files_made_inside_name_the_registry_itself() {
    name_the_registry_itself("https").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r70_lock_files_made_inside_name_a_registry_of_plain_http() {
    name_the_registry_itself("http").await;
}

#[test]
fn r70_a_registry_that_is_silent_is_an_error_that_says_so() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let table = format!("index.example=127.0.0.1:{}", silent.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for stream in silent.incoming().flatten() {
            std::thread::spawn(move || (&stream).read_to_end(&mut Vec::new()));
        }
    });
    let home = Home::new();
    let env =
        [("PIP_INDEX_URL", "https://index.example/simple/"), ("PIP_CONFIG_FILE", "/dev/null")];
    let up = home.up_with(&["--egress-host", &table], &env);
    let args = ["exec", "--no-stdin", "--egress", "@pip", "--timeout", "60s", "--"];
    let script = "curl -sS -m 50 -w '%{http_code}\\n' https://index.example/simple/tiny/";
    let output = ended(home.command(&[&args[..], &["bash", "-c", script]].concat()), LIMIT);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        words.contains("index.example") && words.contains("did not answer within"),
        "{}",
        said(&output)
    );
    assert!(words.ends_with("502\n"), "{}", said(&output));
    drop(up);
}

/// Runs a program that fetches a page of the mirror by its own name and prints it.
fn fetches(project: &Path, script: &str, page: &str) {
    let index = Index::usual("https");
    let home = Home::new();
    let up = index.up(&home);
    let out = said(&exec(&home, project, &format!("cd /work; export HOME=/tmp; {script}")));
    assert!(out.contains(page), "{out} {:?}", index.heard());
    drop(up);
}

/// Whether this machine has a program; where not, the test is reported as not run, with what would bring it.
fn has_program(program: &str, args: &[&str], remedy: &str) -> bool {
    let has = Command::new(program).args(args).output().is_ok_and(|said| said.status.success());
    if !has {
        not_run(program, &format!("its trust in a sandbox's authority: {remedy}"));
    }
    has
}

/// In the page of the registry.
const PAGE: &str = "dist-tags";

#[test]
fn agents_b10_wget_trusts_the_sandboxs_authority() {
    if !has_program("wget", &["--version"], "apt-get install wget") {
        return;
    }
    let project = TempDir::new().unwrap();
    fetches(project.path(), "wget -nv -O- https://index.example/npm/tiny", PAGE);
}

#[test]
fn agents_b10_java_and_maven_trust_the_sandboxs_authority_and_say_nothing() {
    if !has_program("java", &["-version"], "apt-get install default-jdk-headless") {
        return;
    }
    let project = TempDir::new().unwrap();
    let program = "import java.io.*; import java.net.*;\n\
        public class Get { public static void main(String[] of) throws Exception {\n\
        try (InputStream in = URI.create(of[0]).toURL().openStream()) { System.out.write(in.readAllBytes()); System.out.flush(); } } }\n";
    fs::write(project.path().join("Get.java"), program).unwrap();
    let pom = "<project><modelVersion>4.0.0</modelVersion><parent><groupId>t</groupId><artifactId>parent</artifactId>\
        <version>1</version><relativePath/></parent><artifactId>child</artifactId><packaging>pom</packaging>\
        <repositories><repository><id>own</id><url>https://index.example/repo/simple/</url></repository></repositories></project>";
    fs::write(project.path().join("pom.xml"), pom).unwrap();
    // The store is one that Java's own tool takes as unchanged, and no line of a variable is on standard error.
    let java = "java Get.java https://index.example/npm/tiny 2>err; echo \"err <$(cat err)>\"; \
        keytool -list -cacerts -storepass changeit 2>/dev/null | grep -c trustedCertEntry";
    fetches(project.path(), java, PAGE);
    fetches(project.path(), java, "err <>\n2\n");
    if has_program("mvn", &["-v"], "apt-get install maven") {
        let maven = "mvn -B -ntp -Dmaven.repo.local=/tmp/m2 validate";
        fetches(project.path(), maven, "BUILD SUCCESS");
    }
}

#[test]
fn agents_b10_ruby_trusts_the_sandboxs_authority() {
    if !has_program("ruby", &["--version"], "apt-get install ruby") {
        return;
    }
    let project = TempDir::new().unwrap();
    let ruby = "ruby -ropen-uri -e 'puts URI.open(\"https://index.example/npm/tiny\").read'";
    fetches(project.path(), ruby, PAGE);
}

#[test]
#[ignore = "190 MB by npm: `make contract` runs it"]
fn agents_b10_deno_and_bun_trust_the_sandboxs_authority() {
    if !has_npm("deno and bun come by it") {
        return;
    }
    let project = TempDir::new().unwrap();
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--prefix"]).arg(project.path());
    npm.args(["deno@2", "bun@1"]).env("DISABLE_OPENCOLLECTIVE", "1");
    let got = ended(npm, LIMIT);
    if !got.status.success() {
        not_run(
            "deno and bun",
            &format!("no registry has them for this machine's npm: {}", said(&got)),
        );
        return;
    }
    let program = "console.log(await (await fetch('https://index.example/npm/tiny')).text());\n";
    fs::write(project.path().join("get.mjs"), program).unwrap();
    let deno = "node_modules/.bin/deno run --allow-net --no-lock get.mjs";
    fetches(project.path(), deno, PAGE);
    fetches(project.path(), "node_modules/.bin/bun run get.mjs", PAGE);
}
