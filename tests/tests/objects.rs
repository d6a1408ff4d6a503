//! Large artifacts: out of a sandbox into the store, to who asks, into later tasks; and what is said of a store that fails.

use crate::retention::{erase, gone, over};
use crate::support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use cofferdam_tests::{Home, Server, text};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use support::{assert_proven, code, count, recipe, said, stdout, until};

/// Larger than what one task left before there was a store.
const LARGE: u64 = 300 * 1024 * 1024;
/// What the server may grow by while such a file goes through it, in KiB: less than half of the file.
const GROWTH_KB: u64 = 128 * 1024;
const SOON: std::time::Duration = std::time::Duration::from_secs(60);

fn yaml(id: &str, run: &str, artifacts: &Value) -> String {
    let run = json!(run);
    format!(
        "id: {id}\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {{run: {run}, timeout: 120s}}\n      limits: {{disk_mb: 1024, mem_mb: 1024}}\n      artifacts: {artifacts}\n"
    )
}

async fn ended(up: &Server, yaml: &str) -> Value {
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    up.wait_terminal(&text(&header, "runId")).await
}

/// Sets a bound of the host's tenant, which has none of its own yet.
async fn set(up: &Server, key: &str, value: u64) -> (u16, Value) {
    let body = json!({"value": value, "expectedVersion": 0}).to_string().into_bytes();
    up.request("PUT", &format!("/api/config/{key}"), Some(&up.key), Some(body)).await
}

/// The files below a part of a home's store.
pub fn stored(home: &Home, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![home.path().join("objects").join(part)];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found
}

fn peak_kb(up: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", up.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn bytes(up: &Server, path: &str, range: Option<&str>) -> (u16, Vec<u8>) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = http.get(format!("{}{path}", up.url)).bearer_auth(&up.key);
    if let Some(range) = range {
        request = request.header("range", range);
    }
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
}

async fn uri(up: &Server, run: &str, path: &str) -> (String, Value) {
    let (_, found) = up.get(&format!("/api/runs/{run}/files")).await;
    let file = found["files"].as_array().unwrap().iter().find(|file| file["path"] == path);
    let file = file.unwrap_or_else(|| panic!("{path}: {found}")).clone();
    (format!("/api/artifacts/{}", text(&file, "uri").trim_start_matches("artifact://")), file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_300_mb_goes_out_and_into_a_task_in_little_memory() {
    let home = Home::new();
    let up = home.up();
    let run = "head -c 314572800 /dev/zero | tr '\\0' 'z' > big; printf end >> big; sha256sum big > sum; chmod 755 big";
    let pipe = format!(
        "{}    - name: reads\n      files: [{{from: \"task://t/*\", to: /work/in}}]\n      limits: {{disk_mb: 1024, mem_mb: 1024}}\n      exec: {{run: \"cd in && sha256sum -c sum && test -x big && tail -c 3 big\", timeout: 120s}}\n",
        yaml("large", run, &json!(["big", "sum"]))
    );
    // What the first runs leave behind is not the file's.
    assert_eq!(
        ended(&up, &yaml("small", "echo a > a", &json!(["a"]))).await["status"],
        "succeeded"
    );
    let before = peak_kb(&up);
    let header = ended(&up, &pipe).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let run = text(&header, "runId");
    let (path, file) = uri(&up, &run, "big").await;
    assert_eq!(file["size"], LARGE + 3);
    let out = home.path().join("out");
    let got =
        home.run(&["artifacts", "get", &run, "big", "--task", "t", "-o", out.to_str().unwrap()]);
    assert_eq!(code(&got), 0, "{}", said(&got));
    let sum = Command::new("sha256sum").arg(out.join("t/big")).output().unwrap();
    assert!(stdout(&sum).starts_with(file["sha256"].as_str().unwrap()), "{}", stdout(&sum));
    let after = peak_kb(&up);
    assert!(after < before + GROWTH_KB, "{before} KiB became {after}");
    for (range, want) in [
        ("bytes=-5", &b"zzend"[..]),
        ("bytes=262143-262145", b"zzz"),
        ("bytes=314572799-314572801", b"zen"),
    ] {
        assert_eq!(bytes(&up, &path, Some(range)).await, (206, want.to_vec()), "{range}");
    }
    assert_eq!(bytes(&up, &path, Some("bytes=314572803-")).await.0, 416);
    // It is in the store once, and its bytes are nowhere in the database.
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.stored_objects").await, 1);
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.blobs WHERE octet_length(bytes) > 1000000").await,
        0
    );
    assert_eq!((stored(&home, "kept").len(), stored(&home, "parts").len()), (1, 0));
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_again_is_stored_once_and_archives_have_it() {
    let home = Home::new();
    let up = home.up();
    let make = "seq 1 100000 > numbers; cp numbers again; echo small > small; : > nothing";
    let all = yaml("twice", make, &json!(["*"]));
    let first = ended(&up, &all).await;
    assert_eq!(first["status"], "succeeded", "{first}");
    let second = ended(&up, &all.replace("id: twice", "id: anew")).await;
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.stored_objects").await, 1, "one content");
    assert_eq!(
        count(&sql, "SELECT count(*) FROM app.artifacts WHERE object_id IS NOT NULL").await,
        4
    );
    // What it wrote itself goes once its end is on record.
    until("nothing is left of it", SOON, async || stored(&home, "parts").is_empty()).await;
    assert_eq!(stored(&home, "kept").len(), 1);
    let run = text(&second, "runId");
    let tar = home.path().join("all.tar");
    let got = home.run(&["artifacts", "get", &run, "--tar", tar.to_str().unwrap()]);
    assert_eq!(code(&got), 0, "{}", said(&got));
    let script = "cd \"$(mktemp -d)\" && tar -xf \"$1\" && seq 1 100000 | cmp - numbers && cmp numbers again && cat small";
    let read =
        Command::new("sh").args(["-ec", script, "sh", tar.to_str().unwrap()]).output().unwrap();
    assert_eq!((code(&read), stdout(&read).as_str()), (0, "small\n"), "{}", said(&read));
    // Another tenant's bytes are its own, though they are the same.
    let (path, _) = uri(&up, &run, "numbers").await;
    let (_, stranger) = up.new_key(&json!({"tenant": "bravo", "roles": ["auditor"]})).await;
    assert_eq!(up.get_as(&stranger, &path).await.0, 404);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bound_that_was_reached_is_named_and_what_fits_is_kept() {
    let home = Home::new();
    let up = home.up();
    assert_eq!(set(&up, "artifacts.max_mb", 2).await.0, 200);
    let header = ended(
        &up,
        &yaml(
            "bytes",
            "head -c 1500000 /dev/zero > a; head -c 700000 /dev/zero > b; echo c > c",
            &json!(["*"]),
        ),
    )
    .await;
    let why = text(&header, "error");
    for words in ["1 file with 700000 bytes", "the first \"b\"", "at most 2097152 bytes"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    let (_, found) = up.get(&format!("/api/runs/{}/files", text(&header, "runId"))).await;
    let paths: Vec<&str> =
        found["files"].as_array().unwrap().iter().filter_map(|f| f["path"].as_str()).collect();
    assert_eq!(paths, ["a", "c"]);
    assert_eq!(set(&up, "artifacts.max_files", 1_500).await.0, 200);
    let header = ended(&up, &yaml("files", "seq -f f%05g 1502 | xargs touch", &json!(["*"]))).await;
    let why = text(&header, "error");
    assert!(why.contains("2 files") && why.contains("at most 1500 files"), "{why}");
    // No tenant has more than its host.
    let (status, said) = set(&up, "artifacts.max_mb", 2_000_000).await;
    assert_eq!(status, 400, "{said}");
    assert_proven(&home);
}

/// What `prove` says: its exit status, its objects, and the faults of these.
fn proved(home: &Home, args: &[&str]) -> (i32, Value) {
    let output = home.run(&[&["prove", "--json"], args].concat());
    let report =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)));
    (code(&output), report)
}

#[tokio::test(flavor = "multi_thread")]
async fn prove_reads_every_object_and_names_what_was_tampered_with() {
    let home = Home::new();
    let up = home.up();
    let header =
        ended(&up, &yaml("proven", "seq 1 100000 > numbers; seq 7 90000 > others", &json!(["*"])))
            .await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let (status, report) = proved(&home, &[]);
    assert_eq!(
        (status, &report["objects"]["lookedAt"], &report["objects"]["faulty"]),
        (0, &json!(2), &json!(0))
    );
    assert_eq!(report["objects"]["bytes"], 588_895 + 528_894 - 12, "every byte was read");
    let file = stored(&home, "kept").pop().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    let (sha256, object) = name.split_once('.').unwrap();
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let tampered: [(&str, Option<&[u8]>); 3] =
        [("missing", None), ("cut", Some(&whole[..whole.len() - 1])), ("changed", Some(&flipped))];
    let (path, _) = uri(&up, &text(&header, "runId"), "numbers").await;
    let (other, _) = uri(&up, &text(&header, "runId"), "others").await;
    for (fault, left) in tampered {
        match left {
            None => fs::remove_file(&file).unwrap(),
            Some(bytes) => fs::write(&file, bytes).unwrap(),
        }
        let (status, report) = proved(&home, &[]);
        assert_eq!((status, &report["verdict"]), (1, &json!("NO_GO")), "{fault}");
        let found = &report["objects"]["faults"][0];
        assert_eq!(
            (&found["fault"], &found["object"], &found["sha256"]),
            (&json!(fault), &json!(object), &json!(sha256))
        );
        assert_eq!(found["runId"], header["runId"], "{found}");
        assert_eq!(report["objects"]["lookedAt"], 2, "the others are read all the same");
        let plain = home.run(&["prove"]);
        assert!(
            stdout(&plain).contains(&format!("{fault}: object {name} of artifact://")),
            "{}",
            said(&plain)
        );
        let (status, report) = proved(&home, &["--no-objects"]);
        assert_eq!((status, report.get("objects")), (0, None), "left out, and not said to be read");
        assert!(stdout(&home.run(&["prove", "--no-objects"])).contains("stored objects: not read"));
        // Who asks for it has an error with a code, or a body that breaks off.
        if fault != "changed" {
            let mut failed = 0;
            for path in [&path, &other] {
                let (status, body) = up.get(path).await;
                if status == 503 {
                    assert_eq!(
                        (&body["code"], &body["details"]["fault"]),
                        (&json!("store_failed"), &json!(fault))
                    );
                    failed += 1;
                }
            }
            assert_eq!(failed, 1, "{fault}");
        }
        fs::write(&file, &whole).unwrap();
    }
    assert_proven(&home);
}

/// Whether a process has a file of the store open at this moment.
fn reads(pid: i32) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut open = open.filter_map(|file| fs::read_link(file.path()).ok());
    open.any(|path| path.to_string_lossy().contains("/objects/kept/"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_erased_while_a_proof_reads_is_not_a_fault() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    ended(&up, &yaml("large", "head -c 500000000 /dev/zero > big", &json!(["*"]))).await;
    let other = ended(&up, &yaml("other", "seq 1 100000 > numbers", &json!(["*"]))).await;
    until("both are kept", SOON, async || stored(&home, "kept").len() == 2).await;
    until("all is at rest", SOON, async || {
        count(&sql, "SELECT count(*) FROM app.runs WHERE NOT app.is_at_rest(id)").await == 0
    })
    .await;
    let small = |file: &PathBuf| fs::metadata(file).unwrap().len() < 1_000_000;
    let file = stored(&home, "kept").into_iter().find(small).unwrap();
    let pid = up.pid();
    let erasing = async {
        let begun = tokio::task::spawn_blocking(move || (0..1_000_000).any(|_| reads(pid)));
        assert!(begun.await.unwrap(), "the first object is read");
        let erase =
            "SELECT runs FROM app.erase_runs('{}', ARRAY[$1], 'asked', 'k', 'why', 'manual')";
        let run = text(&other, "runId");
        let runs: i64 = sqlx::query_scalar(erase).bind(&run).fetch_one(&sql).await.unwrap();
        fs::remove_file(&file).unwrap();
        runs
    };
    let ((status, report), runs) = tokio::join!(up.get("/api/proofs"), erasing);
    assert_eq!((status, runs), (200, 1));
    let objects = &report["objects"];
    assert_eq!((&report["verdict"], &objects["faulty"]), (&json!("GO"), &json!(0)), "{report}");
    assert_eq!(objects["lookedAt"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_is_an_error_and_leaves_nothing() {
    let home = Home::new();
    let place = tempfile::tempdir().unwrap();
    mount(Some("tmpfs"), place.path(), Some("tmpfs"), MsFlags::empty(), Some("size=3m,mode=0700"))
        .unwrap();
    let at = place.path().to_str().unwrap();
    let mut up = home.up_with(&["--objects", at], &[]);
    let fits = ended(&up, &yaml("fits", "seq 1 100000 > numbers", &json!(["*"]))).await;
    assert_eq!(fits["status"], "succeeded", "{fits}");
    let header =
        ended(&up, &yaml("full", "seq 1 100 > small; seq 1 1000000 > numbers", &json!(["*"])))
            .await;
    let why = text(&header, "error");
    assert!(why.contains("could not be stored (full)") && why.contains("free space"), "{why}");
    let parts = || fs::read_dir(place.path().join("parts")).unwrap().count();
    until("what was half-written is removed", SOON, async || parts() == 0).await;
    let sql = up.sql().await;
    let files = "SELECT count(*) FROM app.artifacts a JOIN app.runs r ON r.id = a.run_id WHERE a.kind = 'file' AND r.status <> 'succeeded'";
    assert_eq!(count(&sql, files).await, 0);
    // There is room again.
    let (run, smaller) =
        (text(&fits, "runId"), ended(&up, &yaml("after", "seq 3 90000 > n", &json!(["*"]))).await);
    assert_eq!(smaller["status"], "succeeded", "{smaller}");
    assert_eq!(home.run(&["artifacts", "cat", &run, "numbers"]).stdout.len(), 588_895);
    up.stop();
    umount2(place.path(), MntFlags::MNT_DETACH).unwrap();
    // The store is gone: what lies there is said to be elsewhere, and the rest works.
    let up = home.up();
    let (path, _) = uri(&up, &run, "numbers").await;
    let (status, body) = up.get(&path).await;
    assert_eq!((status, &body["details"]["fault"]), (503, &json!("elsewhere")), "{body}");
    assert_eq!(proved(&home, &[]).1["objects"]["faults"][0]["fault"], "elsewhere");
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_in_the_middle_of_a_collection_leaves_nothing() {
    let home = Home::new();
    let mut up = home.up();
    let run = "head -c 600000000 /dev/zero > big; head -c 900000 /dev/urandom > other";
    let file = recipe(home.path(), "killed", &yaml("killed", run, &json!(["*"])));
    let (status, _) =
        up.post("/api/recipes/import", &json!({"yaml": fs::read_to_string(&file).unwrap()})).await;
    assert_eq!(status, 201);
    let request = json!({"recipeRef": {"id": "killed", "v": "1"}, "formData": {}, "opts": {}});
    let (_, header) = up.post("/api/run", &request).await;
    let run = text(&header, "runId");
    until("the store is written to", SOON, async || !stored(&home, "parts").is_empty()).await;
    up.kill();
    assert!(!stored(&home, "parts").is_empty(), "half of a file is there");
    let up = home.up();
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "another worker did it again: {header}");
    until("nothing is left of it", SOON, async || stored(&home, "parts").is_empty()).await;
    let sql = up.sql().await;
    let rows =
        usize::try_from(count(&sql, "SELECT count(*) FROM app.stored_objects").await).unwrap();
    assert_eq!((rows, stored(&home, "kept").len()), (2, 2), "each file has its row");
    assert_eq!(count(&sql, "SELECT count(*) FROM (SELECT task_key, count(*) FROM app.sbx_runs GROUP BY 1 HAVING count(*) > 1) x").await, 0);
    assert_proven(&home);
}

/// What was just written well is not thrown away for a twin that is faulty.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_whose_stored_twin_is_faulty_are_stored_again() {
    let home = Home::new();
    let up = home.up();
    let make = yaml("first", "seq 1 100000 > numbers", &json!(["*"]));
    assert_eq!(ended(&up, &make).await["status"], "succeeded");
    let kept = || stored(&home, "kept");
    until("it is kept", SOON, async || kept().len() == 1).await;
    let file = kept().pop().unwrap();
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[300_000] ^= 1;
    fs::write(&file, &flipped).unwrap();
    let second = ended(&up, &make.replace("id: first", "id: again")).await;
    assert_eq!(second["status"], "succeeded", "{second}");
    until("another is kept", SOON, async || kept().len() == 2).await;
    let read = home.run(&["artifacts", "cat", &text(&second, "runId"), "numbers"]);
    assert_eq!((code(&read), read.stdout.len()), (0, 588_895), "{}", said(&read));
    let (status, report) = proved(&home, &[]);
    let objects = &report["objects"];
    assert_eq!((status, &objects["lookedAt"], &objects["faulty"]), (1, &json!(2), &json!(1)));
    fs::write(&file, &whole).unwrap();
    assert_proven(&home);
}

/// What a task shares with an earlier one is erased between its collection and its end.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_goes_before_the_end_is_stored_again() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let yaml = yaml("shared", "seq 1 200000 > big; sleep ${form.s | sh}", &json!(["big"]))
        .replace("plan:", "form: {type: object, properties: {s: {type: string}}}\nplan:");
    let first = over(&up, &yaml, json!({"s": "0"}), "a").await;
    let header = up.run_recipe(&yaml, json!({"s": "4"}), json!({"runKey": "b"})).await;
    let second = text(&header, "runId");
    let executing = "SELECT count(*) FROM app.remote_execution_sessions WHERE state = 'EXECUTING'";
    until("it executes", SOON, async || count(&sql, executing).await == 1).await;
    let mut hold = sql.begin().await.unwrap();
    let held = "SELECT 1 FROM app.sbx_runs WHERE run_id = $1 FOR NO KEY UPDATE";
    assert_eq!(sqlx::query(held).bind(&second).fetch_all(&mut *hold).await.unwrap().len(), 1);
    until("its end waits", SOON, async || {
        let wanted = "SELECT count(*) FROM app.stored_objects WHERE wanted_at IS NOT NULL";
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        count(&sql, wanted).await == 1 && count(&sql, waiting).await > 0
    })
    .await;
    let old = "UPDATE app.stored_objects SET wanted_at = now() - interval '11 minutes'";
    sqlx::query(old).execute(&sql).await.unwrap();
    erase(&up, &first, "output").await;
    let keys = "SELECT count(*) FROM app.stored_objects WHERE sealed_key IS NOT NULL";
    assert_eq!(count(&sql, keys).await, 0);
    hold.commit().await.unwrap();
    let header = up.wait_terminal(&second).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_runs").await, 2, "no second attempt");
    let kept = || (stored(&home, "kept").len(), stored(&home, "parts").len());
    until("its own is kept", SOON, async || kept() == (1, 0)).await;
    let read = home.run(&["artifacts", "cat", &second, "big"]);
    assert_eq!((code(&read), read.stdout.len()), (0, 1_288_895), "{}", said(&read));
    assert_proven(&home);
}

/// Two runs leave the same large file, which the store has once.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_goes_with_its_last_artifact_and_its_file_after_it() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let yaml = "id: large\nv: \"1\"\nform: {type: object, properties: {n: {type: string}}}\nplan:\n  tasks:\n    - name: t\n      exec: {run: \"seq 1 200000 > big; echo ${form.n | sh}\", timeout: 60s}\n      artifacts: [big]\n";
    let first = over(&up, yaml, json!({"n": "a"}), "a").await;
    let second = over(&up, yaml, json!({"n": "b"}), "b").await;
    let keys = "SELECT count(*) FROM app.stored_objects WHERE sealed_key IS NOT NULL";
    assert_eq!((count(&sql, keys).await, stored(&home, "kept").len()), (1, 1));
    let uri = async |run: &str| -> String {
        let query = "SELECT uri FROM app.artifacts WHERE run_id = $1 AND name = 'files/big'";
        sqlx::query_scalar(query).bind(run).fetch_one(&sql).await.unwrap()
    };
    let (mine, theirs) = (uri(&first).await, uri(&second).await);
    erase(&up, &first, "output").await;
    assert_eq!((count(&sql, keys).await, stored(&home, "kept").len()), (1, 1));
    gone(&up, &format!("/api/artifacts/{mine}")).await;
    let read = home.run(&["artifacts", "cat", &second, "big"]);
    assert_eq!(read.stdout.len(), 1_288_895, "{}", said(&read));
    erase(&up, &second, "output").await;
    assert_eq!((count(&sql, keys).await, stored(&home, "kept").len()), (0, 0));
    gone(&up, &format!("/api/artifacts/{theirs}")).await;
    assert_proven(&home);
    // Committed by a process that was killed before it came to the file: the next collection does.
    let third = over(&up, yaml, json!({"n": "c"}), "c").await;
    assert_eq!((count(&sql, keys).await, stored(&home, "kept").len()), (1, 1));
    let alone = "SELECT runs FROM app.erase_runs('{}', ARRAY[$1], 'asked', 'k', 'why', 'manual')";
    until("it is erased", SOON, async || {
        let runs: i64 = sqlx::query_scalar(alone).bind(&third).fetch_one(&sql).await.unwrap();
        runs == 1
    })
    .await;
    assert_eq!((count(&sql, keys).await, stored(&home, "kept").len()), (0, 1));
    assert_eq!(code(&home.run(&["gc"])), 0);
    assert_eq!(stored(&home, "kept").len(), 0);
    let left = "SELECT count(*) FROM app.stored_objects WHERE file_gone_at IS NULL";
    assert_eq!(count(&sql, left).await, 0);
    assert_proven(&home);
}
