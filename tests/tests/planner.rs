//! OpenCode as a planner and builder: the real daemon, a scripted model, whose log is the judge of what was asked.
//!
//! One file: one plan, build and review; each test differs in what the model says.

mod behind;
mod golden;
mod put_back;
mod world;

use std::fs;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::tree_change::{TreeChange, TreeStep};
use cofferdam_tests::{Server, text};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::secrets::scan;
use crate::support::agents::Programs;
use crate::support::gates::{EXECUTIONS, TASKS, number, say};
use crate::support::{assert_proven, assert_wiped, is_long, texts, until};
use world::{
    END, KEY, MEND, World, answers, approved, at_gate, ended, plan, script, started, trace, unit,
};

const PROMPTS: &str = "SELECT count(*) FROM app.opencode_calls WHERE run_id = $1";
const PATCHES: &str = "SELECT count(*) FROM app.patch_history WHERE run_id = $1";
const BUILDS: &str =
    "SELECT count(*) FROM app.sbx_runs WHERE run_id = $1 AND step_id LIKE 'ExecuteST:%'";

#[track_caller]
fn failed_with(header: &Value, code: &str) {
    assert_eq!(header["status"], "failed", "{header}");
    assert!(header["error"].to_string().contains(code), "{code}: {header}");
}

/// Changed files, each side by mode and hash.
async fn history(sql: &PgPool, run: &Value) -> Vec<String> {
    let run = text(run, "runId");
    texts(
        sql,
        &format!(
            "SELECT path || ' ' || coalesce(to_char(pre_mode, 'FM999'), '-') || ' ' || coalesce(to_char(post_mode, 'FM999'), '-')
               FROM app.patch_history WHERE run_id = '{run}' ORDER BY n"
        ),
    )
    .await
}

/// `changes` lists the patch, and `revert` writes the way back of what is named, with the directories that it needs.
fn put_back_file_by_file(world: &World, run: &str) {
    let listed = world.home.run(&["changes", run]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let paths: Vec<&str> = listed.lines().map(|line| line.rsplit_once('\t').unwrap().1).collect();
    let all = ["calc.py", "empty", "old", "old/deep", "old/deep/unused.py", "run.sh"];
    assert_eq!(paths, all, "{listed}");
    assert!(listed.contains("removed\t755 directory\t-\told/deep"), "{listed}");
    let to = world.home.path().join("back.json");
    let file = to.to_str().unwrap();
    let unknown = world.home.run(&["revert", run, "calc", "--output", file]);
    assert!(!unknown.status.success() && !to.exists(), "{unknown:?}");
    let args = ["revert", run, "old/deep/unused.py", "calc.py", "--output", file];
    assert!(world.home.run(&args).status.success());
    let back: TreeChange = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
    let named: Vec<&str> = back.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(named, ["calc.py", "old", "old/deep", "old/deep/unused.py"]);
    let written = back.steps().unwrap().into_iter().filter_map(|step| match step {
        TreeStep::Write(path, _, bytes) => Some((path, bytes)),
        _ => None,
    });
    for (path, bytes) in written {
        assert_eq!(bytes, fs::read(world.project.path().join(&path)).unwrap(), "{path}");
    }
    assert!(!world.home.run(&args).status.success(), "no file is written over");
    as_text_and_as_a_branch(world, run);
}

/// `patch` is a diff that a person reads, and `apply` writes it upon a repository that has what the build found.
fn as_text_and_as_a_branch(world: &World, run: &str) {
    let said = world.home.run(&["patch", run]);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let diff = String::from_utf8(said.stdout).unwrap();
    assert!(diff.starts_with("diff --git a/calc.py b/calc.py\n"), "{diff}");
    assert!(diff.contains("-    return a - b\n+    return a + b\n"), "{diff}");
    let project = world.project.path();
    let git = |args: &[&str]| {
        let mut command = std::process::Command::new("git");
        let all = ["-c", "user.name=a", "-c", "user.email=a@b", "-C"];
        let output = command.args(all).arg(project).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "-q", "-b", "main"]);
    let repo = project.to_str().unwrap();
    let apply = ["apply", run, "--repo", repo, "--branch", "built", "--yes"];
    let empty = world.home.run(&apply);
    assert!(String::from_utf8_lossy(&empty.stderr).contains("no commit"), "{empty:?}");
    git(&["add", "calc.py", "old", "run.sh", "test_calc.py", ".gitignore"]);
    git(&["commit", "-q", "-m", "before"]);
    for _ in 0..2 {
        let written = world.home.run(&apply);
        assert_eq!(written.status.code(), Some(0), "{written:?}");
    }
    assert!(git(&["show", "built:calc.py"]).contains("a + b"));
    assert!(git(&["ls-tree", "-r", "built"]).contains("100755 blob"), "run.sh may be executed");
    assert!(!git(&["ls-tree", "-r", "--name-only", "built"]).contains("old/"), "it was removed");
    assert!(
        git(&["show", "HEAD:calc.py"]).contains("a - b"),
        "the branch that is checked out stays"
    );
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_planned_approved_built_tested_and_proven() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    let files = ["calc.py", "old/", "run.sh", "empty/"];
    let command = format!("{MEND} && rm -r old && chmod 755 run.sh && mkdir empty");
    let steps =
        json!([answers(&plan(&files, &["unit"])), {"wait": 4, "sh": command}, {"text": "done"}]);
    let recipe = world.recipe(&steps, json!({}), unit());
    let run = started(&up, &recipe).await;
    at_gate(&up, &run).await;
    let (sql, id) = (up.sql().await, text(&run, "runId"));
    assert_eq!(number(&sql, BUILDS, &run).await, 0, "nothing is built before the yes");
    let shown = String::from_utf8(world.home.run(&["gate", "show", &id]).stdout);
    let shown = shown.unwrap();
    assert!(shown.contains("Add instead of subtracting.") && shown.contains("calc.py"), "{shown}");
    approved(&up, &run).await;
    until("the build waits for the model", END, async || world.steps_asked().contains(&1)).await;
    let needles = scan::forms(KEY);
    // Its memory is a JavaScript engine's reservation of 64 GiB: its environment is looked at, and its files.
    let daemons = cofferdam_tests::processes_mentioning("serve --hostname 127.0.0.1 --port 4096");
    assert!(!daemons.is_empty());
    for (pid, _) in daemons {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!needles.iter().any(|needle| environ.windows(needle.len()).any(|at| at == needle)));
        let home = format!("/proc/{pid}/root/home/agent");
        assert!(scan::in_files(std::path::Path::new(&home), &needles).is_empty());
    }
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    // A removed directory, an empty one and a mode are changes as a file's content is.
    let octal = |text: &str| i64::from_str_radix(text, 8).unwrap().to_string();
    let (file, dir, program) = (octal("644"), octal("755"), octal("755"));
    let wanted = [
        format!("calc.py {file} {file}"),
        format!("empty - {dir}"),
        format!("old {dir} -"),
        format!("old/deep {dir} -"),
        format!("old/deep/unused.py {file} -"),
        format!("run.sh {file} {program}"),
    ];
    assert_eq!(history(&sql, &run).await, wanted);
    assert!(world.project.path().join("old/deep/unused.py").is_file(), "the host's project stays");
    assert_eq!(world.steps_asked(), [0, 1, 2], "each answer was asked for once");
    assert_eq!(number(&sql, PROMPTS, &run).await, 2);
    let steps = trace(&up, &run).await;
    for step in [
        "CompileST:plan",
        "CompileST",
        "ExecuteST:build",
        "ApplyPatchST",
        "DecideST",
        "ExecuteST:unit",
    ] {
        let all = steps["steps"].as_array().unwrap();
        assert!(all.iter().any(|row| row["stepId"] == step), "{step}: {steps:#}");
    }
    assert_proven(&world.home);
    assert_wiped(&world.home, &sql).await;
    assert!(scan::in_rows(&sql, &needles).await.is_empty(), "the key is in a row");
    put_back_file_by_file(&world, &id);
    // Its plan is of its own conversation: a fork plans anew, or is refused.
    let fork = format!("/api/ops/wf/{}/fork", text(&run, "workflowID"));
    let action = |step: u32| json!({"actor": "ada", "reason": "again", "stepN": step});
    let (status, refused) = up.post(&fork, &action(1)).await;
    assert!(status == 409 && refused["error"].to_string().contains("step 0"), "{refused}");
    drop(up);
    // No daemon runs now, and nothing of a finished run starts one.
    let up = world.up(&[]).await;
    let sql = up.sql().await;
    let executed = number(&sql, EXECUTIONS, &run).await;
    let again = up.run_recipe(&recipe, json!({}), json!({})).await;
    assert_eq!((&again["runId"], &again["isReplay"]), (&run["runId"], &json!(true)), "{again}");
    assert_eq!(trace(&up, &run).await, steps, "a replay changes no row");
    assert_eq!(number(&sql, EXECUTIONS, &run).await, executed, "a replay executes nothing");
    assert_eq!(world.steps_asked().len(), 3, "a replay asks nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_does_not_fit_is_asked_again_with_its_errors_and_then_fails_typed() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    let bad = answers(&plan(&["../outside"], &["unit"]));
    let good = answers(&plan(&["calc.py"], &["unit"]));
    let never = started(&up, &world.recipe(&json!([bad, bad, bad, bad]), json!({}), unit())).await;
    let header = ended(&up, &never).await;
    failed_with(&header, "oc_invalid_plan");
    let left = trace(&up, &never).await["artifacts"].to_string();
    assert!(left.contains("answer-1.json") && left.contains("answer-3.json"), "{left}");
    let sql = up.sql().await;
    assert_eq!(number(&sql, PROMPTS, &never).await, 3, "three plans are asked for, and no more");
    // A second plan that fits, and a no at the gate: nothing is built.
    let run = started(&up, &world.recipe(&json!([bad, good]), json!({}), unit())).await;
    at_gate(&up, &run).await;
    let prompts = "SELECT prompt FROM app.opencode_calls WHERE attempt = 2 AND outcome = 'answered' ORDER BY created_at DESC LIMIT 1";
    let told = texts(&sql, prompts).await.remove(0);
    assert!(told.contains("/files/0/path"), "the agent is told what was wrong: {told}");
    let (status, _) = say(&up, &up.key, &run, "k", "no").await;
    assert_eq!(status, 200);
    assert_eq!(ended(&up, &run).await["status"], "failed");
    assert_eq!((number(&sql, TASKS, &run).await, number(&sql, PATCHES, &run).await), (1, 0));
    assert_wiped(&world.home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_that_fail_time_out_or_do_both_never_end_in_success() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    let tests = json!([
        {"name": "fails", "exec": {"run": "exit 3", "timeout": "60s"}},
        {"name": "hangs", "exec": {"run": "sleep 300", "timeout": "2s"}},
        {"name": "passes", "exec": {"run": "python3 -m unittest -q", "timeout": "60s"}}
    ]);
    for named in [vec!["fails"], vec!["hangs"], vec!["fails", "hangs", "passes"]] {
        let steps = script(&plan(&["calc.py"], &named), MEND);
        let run = started(&up, &world.recipe(&steps, json!({}), tests.clone())).await;
        approved(&up, &run).await;
        let header = ended(&up, &run).await;
        assert_eq!(header["status"], "failed", "{named:?}: {header}");
        let sql = up.sql().await;
        let ran = 1 + 1 + i64::try_from(named.len()).unwrap();
        assert_eq!(
            number(&sql, TASKS, &run).await,
            ran,
            "plan, build and the tests that the plan names"
        );
        assert_eq!(number(&sql, PATCHES, &run).await, 1, "the patch is on record all the same");
    }
    assert_proven(&world.home);
}

/// As if the seconds had passed after which a silent worker is dead.
async fn bury(sql: &PgPool) {
    crate::support::lose_lead(sql).await;
    sqlx::query("UPDATE app.executors SET heartbeat_at = heartbeat_at - interval '1 minute' WHERE state = 'live'")
        .execute(sql)
        .await
        .unwrap();
}

async fn gone(server: &mut Server) {
    until("the worker is gone", END, async || server.has_ended()).await;
    server.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_at_any_step_asks_for_no_answer_twice() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let steps = script(&plan(&["calc.py"], &["unit"]), MEND);
    let mut run = Value::Null;
    // After a prompt was taken, after it was answered and before its row says so, of the plan and of the build.
    for place in ["planner.taken", "planner.planned", "planner.built"] {
        let mut doomed = world.up(&[("COFFERDAM_FAILPOINT", place)]).await;
        let sql = doomed.sql().await;
        match place {
            "planner.taken" => {
                run = started(&doomed, &world.recipe(&steps, json!({}), unit())).await;
            }
            "planner.built" => approved(&doomed, &run).await,
            _ => {}
        }
        gone(&mut doomed).await;
        bury(&sql).await;
    }
    let up = world.up(&[]).await;
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let sql = up.sql().await;
    assert_eq!(world.steps_asked(), [0, 1, 2], "the model's log is the judge");
    assert_eq!(number(&sql, PROMPTS, &run).await, 2, "each prompt has one row");
    assert_eq!(number(&sql, EXECUTIONS, &run).await, 3 + 3, "each kill cost one execution");
    // The sandbox that was lost may neither take its prompt again nor end it.
    let late = "SELECT app.prompt_take(c.op_key, c.run_id, c.step_id, c.attempt, c.session_id, c.agent, c.prompt,
                       c.schema_hash, c.request, p.sandbox_id)::text || ' ' || app.prompt_is_held(c.op_key, p.sandbox_id)
                  FROM app.opencode_calls c JOIN app.prompt_sends p USING (op_key) WHERE p.n = 1";
    assert_eq!(texts(&sql, late).await, ["{\"lost\": true} false"; 2]);
    assert_proven(&world.home);
    assert_wiped(&world.home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: `make contract` runs it"]
async fn a_worker_that_is_killed_while_the_build_works_asks_for_no_answer_twice() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let steps = json!([answers(&plan(&["calc.py"], &["unit"])), {"sh": MEND},
        {"wait": 6, "sh": "true"}, {"text": "done"}]);
    let mut doomed = world.up(&[]).await;
    let run = started(&doomed, &world.recipe(&steps, json!({}), unit())).await;
    approved(&doomed, &run).await;
    until("the build waits for the model", END, async || world.steps_asked().contains(&2)).await;
    let sql = doomed.sql().await;
    doomed.kill();
    bury(&sql).await;
    let up = world.up(&[]).await;
    assert_eq!(ended(&up, &run).await["status"], "succeeded");
    let asked = world.steps_asked();
    let times = |step| asked.iter().filter(|one| **one == step).count();
    assert_eq!((times(0), times(1), times(3)), (1, 1, 1), "{asked:?}");
    assert!(times(2) <= 2, "the answer that was on its way may double: {asked:?}");
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_dies_is_driven_again_from_the_record() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    // In a directory that git ignores: what is there is not the project's, and is not put back. Once is enough.
    let die = format!(
        "{MEND}; mkdir -p __pycache__; test -e __pycache__/died || {{ touch __pycache__/died half-done; kill -9 $PPID; }}"
    );
    let steps = script(&plan(&["calc.py"], &["unit"]), &die);
    let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
    approved(&up, &run).await;
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert_eq!(world.steps_asked(), [0, 1, 2]);
    let sql = up.sql().await;
    assert_eq!(history(&sql, &run).await.len(), 1, "what the dead daemon left was taken back");
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: `make contract` runs it"]
async fn a_turn_that_does_not_move_is_asked_smaller_and_ends_as_oc_timeout_without_a_patch() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    let steps = json!([answers(&plan(&["calc.py"], &["unit"])), {"sh": MEND},
        {"wait": 600, "text": "never"}]);
    let more = json!({"patience": "15s"});
    let run = started(&up, &world.recipe(&steps, more, unit())).await;
    approved(&up, &run).await;
    let header = ended(&up, &run).await;
    failed_with(&header, "oc_timeout");
    let sql = up.sql().await;
    let stalled = "SELECT error FROM app.opencode_calls WHERE outcome = 'stalled' ORDER BY attempt";
    let why = texts(&sql, stalled).await;
    assert_eq!(why.len(), 2, "{why:?}");
    assert!(why[0].contains("no progress for"), "{why:?}");
    assert_eq!(number(&sql, PATCHES, &run).await, 0, "nothing half applied");
    assert_wiped(&world.home, &sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_asks_and_the_wait_is_no_stall() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    let look = json!({"tool": ["read", {"filePath": "/work/calc.py"}]});
    let steps = json!([look, answers(&plan(&["calc.py"], &["unit"]))]);
    let more = json!({"patience": "15s",
        "models": {"providers": ["main"], "budget": {"calls": 1, "ask": true}}});
    let run = started(&up, &world.recipe(&steps, more, unit())).await;
    let id = text(&run, "runId");
    let gate = format!("/api/runs/{id}/gates/models-1");
    until("the budget's gate asks", END, async || up.get(&gate).await.0 == 200).await;
    // Longer than the patience of a turn.
    clock::sleep(Duration::from_secs(20)).await;
    let yes = json!({"payload": {"choice": "yes", "grant": {"calls": 5, "tokens": 0, "micros": 0}}, "dedupeKey": "b"});
    let (status, answer) = up.post(&format!("{gate}/reply"), &yes).await;
    assert_eq!(status, 200, "{answer}");
    at_gate(&up, &run).await;
    assert_eq!(world.steps_asked(), [0, 1]);
    let sql = up.sql().await;
    assert_eq!(number(&sql, PROMPTS, &run).await, 1, "one prompt, which waited");
    let (status, _) = say(&up, &up.key, &run, "k", "no").await;
    assert_eq!(status, 200);
    ended(&up, &run).await;
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_leaves_its_plan_is_refused() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    let builds = [
        (format!("{MEND}; echo x > other.py"), "other.py"),
        // What another file system takes for git's directory.
        (format!("{MEND}; mkdir -p .GIT/hooks; echo x > .GIT/hooks/post-commit"), "git-directory"),
        (format!("{MEND}; ln -s /etc/passwd calc.link"), "calc.link"),
        // The gate showed an edit of it.
        ("rm calc.py".to_owned(), "was removed"),
        ("true".to_owned(), "changed nothing"),
    ];
    // Each takes half a minute of the real daemon; `make contract` has all of them.
    let most = if is_long() { builds.len() } else { 2 };
    for (command, why) in builds.into_iter().take(most) {
        let steps = script(&plan(&["calc.py"], &["unit"]), &command);
        let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
        approved(&up, &run).await;
        let header = ended(&up, &run).await;
        failed_with(&header, "oc_patch");
        assert!(header["error"].to_string().contains(why), "{why}: {header}");
    }
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: `make contract` runs it"]
async fn answers_that_are_no_plan_are_asked_again_and_the_build_follows_them() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    // First words instead of a plan, then a plan that no row can hold.
    let mut bad = plan(&["calc.py"], &["unit"]);
    bad["design"] = json!("nothing\0at all");
    let mut late = answers(&bad);
    late["until"] = json!(["does not fit ", "its schema"]);
    let steps =
        json!([late, answers(&plan(&["calc.py"], &["unit"])), {"sh": MEND}, {"text": "done"}]);
    let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
    approved(&up, &run).await;
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let sql = up.sql().await;
    let errors = "SELECT coalesce(error, 'a plan') FROM app.opencode_calls WHERE agent = 'plan' ORDER BY attempt";
    let errors = texts(&sql, errors).await;
    assert!(errors[0].contains("StructuredOutput") && errors[1].contains("U+0000"), "{errors:?}");
    assert_eq!(errors[2..], ["a plan"]);
    assert_eq!(world.steps_asked(), [0, 0, 1, 2, 3], "the build asks for none of them again");
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: `make contract` runs it"]
async fn a_worker_that_is_killed_between_two_plans_goes_on_in_the_same_conversation() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let bad = answers(&plan(&["../outside"], &["unit"]));
    let steps = json!([bad, answers(&plan(&["calc.py"], &["unit"]))]);
    let mut doomed = world.up(&[("COFFERDAM_FAILPOINT", "planner.again")]).await;
    let run = started(&doomed, &world.recipe(&steps, json!({}), unit())).await;
    let sql = doomed.sql().await;
    gone(&mut doomed).await;
    bury(&sql).await;
    let up = world.up(&[]).await;
    // Without the goal in front of it, the second prompt would have no script.
    at_gate(&up, &run).await;
    assert_eq!(world.steps_asked(), [0, 1], "the first answer is not asked for again");
    let (status, _) = say(&up, &up.key, &run, "k", "no").await;
    assert_eq!(status, 200);
    ended(&up, &run).await;
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_asks_the_model_answers_nothing_for_the_daemon() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    // At the place of the daemon's next call, with another script for it.
    let script = json!([{"sh": "true"}, {"sh": "echo stolen > other.py"}]);
    let messages = json!([{"role": "user", "content": format!("[[steps: {script}]]")},
        {"role": "assistant", "content": "x"}, {"role": "tool", "content": "x", "tool_call_id": "x"}]);
    let tools = json!([{"type": "function", "function": {"name": "bash", "parameters": {}}}]);
    let body = json!({"model": "coder", "stream": true, "messages": messages, "tools": tools});
    // In hexadecimal digits, since one script holds no other.
    let hex: String = body.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
    let ask = format!(
        "python3 - <<'E'\nimport urllib.request as u\nr = u.Request('http://127.0.0.53:3129/v1/chat/completions', \
         data=bytes.fromhex('{hex}'), headers={{'content-type': 'application/json'}})\nprint(len(u.urlopen(r).read()))\nE"
    );
    let steps = self::script(&plan(&["calc.py"], &["unit"]), &format!("{MEND}\n{ask}"));
    let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
    approved(&up, &run).await;
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    assert_eq!(world.steps_asked(), [0, 1, 1, 2], "the command's question is one of them");
    let sql = up.sql().await;
    let kept = "SELECT count(*) FROM app.prompt_answers a JOIN app.opencode_calls c USING (op_key) WHERE c.run_id = $1";
    assert_eq!(number(&sql, kept, &run).await, 4, "each answer has a place of its own");
    let used = "SELECT coalesce(sum(bytes), 0)::bigint FROM app.blob_usage WHERE $1 <> ''";
    let before = number(&sql, used, &run).await;
    // A tenant's answers fill its quota, as its artifacts do.
    for insert in [
        "INSERT INTO app.model_calls SELECT (jsonb_populate_record(c, jsonb_build_object('op_key', repeat('a', 64), 'n', 9999))).* FROM app.model_calls c ORDER BY n LIMIT 1",
        "INSERT INTO app.prompt_answers SELECT op_key, repeat('b', 64), repeat('a', 64), 200, 'x', convert_to(repeat('x', 5000), 'UTF8') FROM app.opencode_calls LIMIT 1",
        "INSERT INTO app.model_bodies VALUES (repeat('a', 64), 'answer', repeat('x', 700))",
    ] {
        assert_eq!(sqlx::query(insert).execute(&sql).await.unwrap().rows_affected(), 1);
    }
    assert_eq!(number(&sql, used, &run).await - before, 5_700);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_that_changed_since_its_build_is_not_tested() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    let steps = json!([answers(&plan(&["calc.py"], &["unit"])), {"sh": MEND},
        {"wait": 8, "text": "done"}]);
    let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
    approved(&up, &run).await;
    until("the build waits for its end", END, async || world.steps_asked().contains(&2)).await;
    fs::write(world.project.path().join("calc.py"), "def add(a, b):\n    return 5\n").unwrap();
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "retries_exceeded", "{header}");
    assert!(header["error"].to_string().contains("the project changed meanwhile"), "{header}");
    let sql = up.sql().await;
    assert_eq!(number(&sql, PATCHES, &run).await, 1, "the patch is on record all the same");
    assert_proven(&world.home);
}
