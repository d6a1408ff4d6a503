//! What tasks leave comes back as it was: by the command line into a directory, and as archives that Python reads.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::{assert_proven, recipe, said};

/// What the task leaves: a name with a newline, one that is not UTF-8, one that a terminal would act on, a long one, a file
/// larger than a part, links in and out, an empty directory.
const LEAVE: &str = r#"mkdir -p out/empty out/deep; cd out
printf one > 'a
b'; printf two > "$(printf 'x\377')"; printf esc > "$(printf '\033[2J')"
printf '#!/bin/sh\necho ran\n' > run.sh; chmod 755 run.sh
printf far > "deep/$(printf 'n%.0s' $(seq 200))"
head -c 3000000 /dev/zero > large; : > nothing
ln -s run.sh deep/../link; ln -s ../run.sh deep/up; ln -s /etc/passwd absolute; ln -s ../../../etc outward; mkfifo fifo"#;

const PATHS: [&str; 12] = [
    "out/\u{1b}[2J",
    "out/a\nb",
    "out/absolute",
    "out/deep/up",
    "out/empty",
    "out/large",
    "out/link",
    "out/nothing",
    "out/outward",
    "out/run.sh",
    "out/x%FF",
    "LONG",
];

/// What Python reads of an archive: names as hexadecimal digits, kinds, modes, sizes and link targets.
const READ: &str = r#"
import io, json, stat, sys, tarfile, zipfile
data = io.BytesIO(sys.stdin.buffer.read())
rows = []
if sys.argv[1] == "tar":
    with tarfile.open(fileobj=data) as archive:
        for one in archive:
            name = one.name.encode("utf-8", "surrogateescape")
            kind = "dir" if one.isdir() else "link" if one.issym() else "file"
            content = archive.extractfile(one).read() if one.isfile() else one.linkname.encode("utf-8", "surrogateescape")
            rows.append([name.hex(), kind, one.mode & 0o777, len(content), content[:40].hex()])
else:
    with zipfile.ZipFile(data) as archive:
        assert archive.testzip() is None
        for one in archive.infolist():
            # Without the flag of UTF-8 Python reads a name as code page 437.
            name = one.filename.encode("utf-8" if one.flag_bits & 0x800 else "cp437")
            mode = one.external_attr >> 16
            kind = "dir" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"
            content = archive.read(one)
            rows.append([name.rstrip(b"/").hex(), kind, mode & 0o777, len(content), content[:40].hex()])
print(json.dumps(sorted(rows)))
"#;

fn yaml(id: &str, tasks: &str) -> String {
    format!("id: {id}\nv: \"1\"\nplan:\n  tasks:\n{tasks}")
}

fn task(name: &str, run: &str, artifacts: &Value) -> String {
    let run = json!(run);
    format!(
        "    - name: {name}\n      exec: {{run: {run}, timeout: 60s}}\n      limits: {{disk_mb: 128}}\n      artifacts: {artifacts}\n"
    )
}

async fn ended(up: &Server, yaml: &str) -> Value {
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    up.wait_terminal(&text(&header, "runId")).await
}

/// The bytes of an archive of a run's files.
async fn archive(up: &Server, path: &str) -> Vec<u8> {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = http.get(format!("{}{path}", up.url));
    let answer = request.bearer_auth(&up.key).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    answer.bytes().await.unwrap().to_vec()
}

fn read_by_python(kind: &str, bytes: &[u8]) -> Value {
    let mut python = Command::new("python3");
    python.args(["-c", READ, kind]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let sending = std::thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    sending.join().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn named(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(std::ffi::OsString::from_vec(name.to_vec()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_leaves_files_links_and_directories_that_come_back_as_they_were() {
    let home = Home::new();
    let up = home.up();
    let recipe = yaml("leaves", &task("t", LEAVE, &json!(["out/**"])));
    let header = ended(&up, &recipe).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let run = text(&header, "runId");

    let (status, found) = up.get(&format!("/api/runs/{run}/files")).await;
    assert_eq!((status, &found["tasks"], &found["more"]), (200, &json!(1), &json!(false)));
    let files = found["files"].as_array().unwrap();
    let long = format!("out/deep/{}", "n".repeat(200));
    let mut want: Vec<&str> = PATHS.to_vec();
    *want.last_mut().unwrap() = &long;
    want.sort_unstable();
    let paths: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, want, "no FIFO, and each path once");
    let of = |path: &str| files.iter().find(|file| file["path"] == path).unwrap();
    assert_eq!(of("out/run.sh")["mode"], "100755");
    assert_eq!(of("out/empty")["mode"], "040000");
    assert_eq!(
        (&of("out/absolute")["mode"], &of("out/absolute")["target"]),
        (&json!("120000"), &json!("/etc/passwd"))
    );
    assert!(of("out/large").get("mode").is_none());

    // By the command line into a directory: what leads out is not made.
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("got");
    let at = out.to_str().unwrap();
    let got = home.run(&["artifacts", "get", &run, "-o", at]);
    assert!(got.status.success(), "{}", said(&got));
    let words = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(
        words.contains("10 files, 3.0 MB") && words.contains("2 links were left out"),
        "{words}"
    );
    assert_eq!(fs::read(named(&out, b"out/a\nb")).unwrap(), b"one");
    assert_eq!(fs::read(named(&out, b"out/x\xff")).unwrap(), b"two");
    assert_eq!(fs::read(named(&out, b"out/\x1b[2J")).unwrap(), b"esc");
    assert_eq!(fs::read(out.join(&long)).unwrap(), b"far");
    assert_eq!(fs::read(out.join("out/large")).unwrap(), vec![0; 3_000_000]);
    assert_eq!(fs::read_dir(out.join("out/empty")).unwrap().count(), 0);
    assert_eq!(fs::read_link(out.join("out/deep/up")).unwrap(), Path::new("../run.sh"));
    assert_ne!(fs::metadata(out.join("out/run.sh")).unwrap().permissions().mode() & 0o100, 0);
    assert_eq!(fs::metadata(out.join("out/nothing")).unwrap().permissions().mode() & 0o111, 0);
    for gone in ["out/absolute", "out/outward", "out/fifo"] {
        assert!(fs::symlink_metadata(out.join(gone)).is_err(), "{gone}");
    }

    a_second_time_takes_force_and_follows_no_link(&home, &run, &out);

    // Globs, directories, and none.
    let cat = home.run(&["artifacts", "cat", &run, "out/run.sh"]);
    assert_eq!(cat.stdout, b"#!/bin/sh\necho ran\n", "{}", said(&cat));
    let listed = home.run_json(&["artifacts", "ls", &run, "out/deep", "--json"]);
    assert_eq!(listed["files"].as_array().unwrap().len(), 2, "{listed}");
    let none = home.run(&["artifacts", "get", &run, "none/*", "-o", at]);
    assert_eq!(none.status.code(), Some(1), "{}", said(&none));
    assert_eq!(up.get(&format!("/api/runs/{run}/files?glob=../x")).await.0, 400);
    // The table escapes what a terminal would act on.
    let table = home.run(&["artifacts", "ls", &run]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(!table.contains('\u{1b}') && table.contains("out/absolute -> /etc/passwd"), "{table}");

    archives_hold_the_same(&home, &up, &run).await;
    // Another tenant's key reads nothing of it.
    let (_, other) = up.new_key(&json!({"tenant": "other", "roles": ["auditor"]})).await;
    for format in ["list", "tar", "zip"] {
        let path = format!("/api/runs/{run}/files?format={format}");
        assert_eq!(up.get_as(&other, &path).await.0, 404);
    }
    assert_proven(&home);
}

/// A second time only by force, and then never through a link.
fn a_second_time_takes_force_and_follows_no_link(home: &Home, run: &str, out: &Path) {
    let at = out.to_str().unwrap();
    let again = home.run(&["artifacts", "get", run, "-o", at]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    let other = out.with_file_name("other");
    fs::create_dir(&other).unwrap();
    fs::remove_dir_all(out.join("out/deep")).unwrap();
    symlink(&other, out.join("out/deep")).unwrap();
    let forced = home.run(&["artifacts", "get", run, "-o", at, "--force"]);
    assert_eq!(forced.status.code(), Some(2), "{}", said(&forced));
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0, "nothing was written through a link");
}

/// As archives, which Python reads alike.
async fn archives_hold_the_same(home: &Home, up: &Server, run: &str) {
    let dir = tempfile::tempdir().unwrap();
    let tar = archive(up, &format!("/api/runs/{run}/files?format=tar")).await;
    let zip = archive(up, &format!("/api/runs/{run}/files?format=zip")).await;
    let (tar, zip) = (read_by_python("tar", &tar), read_by_python("zip", &zip));
    assert_eq!(tar, zip);
    assert_eq!(tar.as_array().unwrap().len(), 12);
    let one = |name: &[u8]| {
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        tar.as_array().unwrap().iter().find(|row| row[0] == name.as_str()).unwrap().clone()
    };
    assert_eq!(one(b"out/run.sh")[2], 0o755);
    assert_eq!((&one(b"out/x\xff")[1], &one(b"out/x\xff")[3]), (&json!("file"), &json!(3)));
    assert_eq!(one(b"out/absolute")[1], "link");
    assert_eq!(one(b"out/large")[3], 3_000_000);
    let file = dir.path().join("all.zip");
    let kept = home.run(&["artifacts", "get", run, "out/run.sh", "--zip", file.to_str().unwrap()]);
    assert!(kept.status.success(), "{}", said(&kept));
    assert_eq!(read_by_python("zip", &fs::read(&file).unwrap()).as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_several_pages_come_once_each() {
    let home = Home::new();
    let up = home.up();
    let make = "mkdir out; i=0; while [ $i -lt 300 ]; do echo $i > out/$i; i=$((i+1)); done";
    let tasks =
        format!("{}{}", task("a", make, &json!(["out/**"])), task("b", make, &json!(["out/**"])));
    let header = ended(&up, &yaml("pages", &tasks)).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let run = text(&header, "runId");
    let (_, found) = up.get(&format!("/api/runs/{run}/files")).await;
    let names = found["files"].as_array().unwrap().iter().map(|file| {
        (file["task"].as_str().unwrap().to_owned(), file["path"].as_str().unwrap().to_owned())
    });
    assert_eq!(found["files"].as_array().unwrap().len(), 600, "more than two pages");
    assert_eq!(names.collect::<BTreeSet<_>>().len(), 600, "each once");
    let tar = archive(&up, &format!("/api/runs/{run}/files?format=tar")).await;
    assert_eq!(read_by_python("tar", &tar).as_array().unwrap().len(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_tasks_have_a_directory_each_and_one_can_be_chosen() {
    let home = Home::new();
    let up = home.up();
    let tasks = [
        task("build", "mkdir dist; echo b > dist/a", &json!(["dist/*"])),
        task("test", "mkdir dist; echo t > dist/a", &json!(["dist/*"])),
    ];
    let header = ended(&up, &yaml("two", &tasks.concat())).await;
    let run = text(&header, "runId");
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let got = home.run(&["artifacts", "get", &run, "-o", at]);
    assert!(got.status.success(), "{}", said(&got));
    assert_eq!(fs::read(dir.path().join("build/dist/a")).unwrap(), b"b\n");
    assert_eq!(fs::read(dir.path().join("test/dist/a")).unwrap(), b"t\n");
    let cat = home.run(&["artifacts", "cat", &run, "dist/a", "--task", "te"]);
    assert_eq!(cat.stdout, b"t\n", "{}", said(&cat));
    let none = home.run(&["artifacts", "ls", &run, "--task", "deploy"]);
    assert_eq!(none.status.code(), Some(1), "{}", said(&none));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_glob_without_a_match_is_said_and_fails_the_task_where_it_is_required() {
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let text = yaml("lacks", &task("t", "echo x > a", &json!(["a", "dist/*"])));
    let file = recipe(dir.path(), "lacks.yaml", &text);
    let kept = dir.path().join("kept");
    let output = home.run(&["run", &file, "--keep", kept.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.contains("artifacts: `dist/*` matched nothing"), "{words}");
    assert_eq!(fs::read(kept.join("a")).unwrap(), b"x\n");
    // The directory has something now: that is said before anything runs.
    let again = home.run(&["run", &file, "--keep", kept.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(3), "{}", said(&again));

    let required = json!(["a", {"path": "dist/*", "required": true}]);
    let text = yaml("requires", &task("t", "echo x > a", &required));
    let file = recipe(dir.path(), "requires.yaml", &text);
    let kept = dir.path().join("kept-of-failed");
    let output = home.run(&["run", &file, "--keep", kept.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.contains("required artifacts are absent: `dist/*`"), "{words}");
    assert_eq!(fs::read(kept.join("a")).unwrap(), b"x\n", "what is there is kept all the same");
    assert_proven(&home);
}
