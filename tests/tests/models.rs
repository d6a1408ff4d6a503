//! A sandbox calls models: its call is on record before it is sent, within every budget, and no key is inside.
//!
//! One file: one provider that notes what it is asked, and every way to ask it.

mod fitted;

use crate::support;

use std::time::Duration;

use cofferdam_tests::programs::write_program;
use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};
use support::dispatches::{Project, ended, script, spawn, violation};
use support::fake_model::FakeModel;
use support::{assert_proven, assert_wiped, count, texts, until};

const LIMIT: Duration = Duration::from_secs(90);

/// A function that calls in one of the three formats and prints the status: `ask FORMAT WORD [FIELDS]`.
const ASK: &str = r#"ask() { case $1 in
chat) p=$OPENAI_BASE_URL/chat/completions ;; responses) p=$OPENAI_BASE_URL/responses ;; *) p=$ANTHROPIC_BASE_URL/v1/messages ;; esac;
printf "%s\n" "$(curl -s -o /tmp/a$$.$4 -w "%{http_code}" -H "content-type: application/json" -H "authorization: Bearer $OPENAI_API_KEY" -d "{\"model\":\"m\",\"max_tokens\":8,\"max_output_tokens\":8,\"input\":\"do:$2\",\"messages\":[{\"role\":\"user\",\"content\":\"do:$2\"}]$3}" $p)"; };"#;

async fn provider(up: &Server, fake: &FakeModel, more: Value) {
    let mut body = json!({"name": "fake", "url": format!("http://{}/v1", fake.address),
        "protocols": ["openai-chat", "openai-responses", "anthropic-messages"],
        "models": [{"model": "m", "input_micros": 1_000_000, "output_micros": 10_000_000, "cached_micros": 500_000}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, made) = up.post("/api/models", &body).await;
    assert_eq!(status, 201, "{made}");
}

async fn started(up: &Server, models: &str, script: &str) -> String {
    let script = format!("{ASK}\n{script}").replace('\n', "\n          ");
    let yaml = format!(
        "id: calls\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      models: {models}\n      exec:\n        timeout: 80s\n        run: |\n          {script}\n"
    );
    text(&up.run_recipe(&yaml, json!({}), json!({})).await, "runId")
}

fn printed(home: &Home, run: &str) -> String {
    printed_by(home, &["logs", run])
}

fn printed_by(home: &Home, args: &[&str]) -> String {
    String::from_utf8(home.run(args).stdout).unwrap()
}

/// Runs a script, and gives what it printed.
async fn ran(home: &Home, up: &Server, models: &str, script: &str) -> (String, Vec<String>) {
    let run = started(up, models, script).await;
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let lines = printed(home, &run).lines().map(str::to_owned).collect();
    (run, lines)
}

async fn calls(up: &Server, run: &str) -> Vec<Value> {
    let (status, calls) = up.get(&format!("/api/runs/{run}/models/calls")).await;
    assert_eq!(status, 200, "{calls}");
    calls.as_array().unwrap().clone()
}

fn outcomes(calls: &[Value]) -> Vec<&str> {
    calls.iter().map(|call| call["outcome"].as_str().unwrap_or("sent")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_on_record_and_the_next_one_beyond_the_budget_is_refused_in_the_providers_shape()
{
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let script = "ask chat ok; ask messages ok; ask responses ok; ask chat ok; cat /tmp/a*";
    let (run, out) = ran(&home, &up, "{providers: [fake], budget: {calls: 3}}", script).await;
    assert_eq!(&out[..4], ["200", "200", "200", "403"], "{out:?}");
    let shape: Value =
        serde_json::from_str(out[4].trim()).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!(shape["error"]["code"], "budget_exceeded", "{shape}");
    let calls = calls(&up, &run).await;
    assert_eq!(outcomes(&calls), ["ok", "ok", "ok", "refused"]);
    for call in &calls[..3] {
        // 8 fresh at 1, 2 cached at a half, 5 out at 10.
        let usage = json!({"input": 10, "output": 5, "cached": 2, "written": 0, "written_hour": 0});
        assert_eq!(call["usage"], usage, "{call}");
        assert_eq!((&call["tokens"], &call["micros"]), (&json!(15), &json!(59)), "{call}");
        assert!(call["answerHash"].is_string() && call["status"] == 200, "{call}");
    }
    let heard = fake.heard();
    assert_eq!(heard.len(), 3, "what is refused is not sent");
    for (one, path) in heard.iter().zip(["chat/completions", "messages", "responses"]) {
        assert_eq!(one.line, format!("POST /v1/{path} HTTP/1.1"));
        assert_eq!(one.body["model"], "m");
        assert!(
            !one.head.contains("placeholder") && one.head.contains("accept-encoding: identity")
        );
    }
    let usage = home.run_json(&["model", "usage", &run, "--json"]);
    assert_eq!(usage["models"][0]["calls"], 3);
    assert_eq!(usage["models"][0]["micros"], 177);
    let table = printed_by(&home, &["model", "usage", &run, "--calls"]);
    assert!(table.contains("refused") && table.contains("sandbox budget: calls 3 of 3"), "{table}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_allowed_is_refused_and_never_sent() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let other = |path: &str, body: &str| {
        format!("curl -s -o /dev/null -w '%{{http_code}}\\n' -d '{body}' $OPENAI_BASE_URL{path};")
    };
    let script = [
        other("/chat/completions", r#"{"model":"other"}"#),
        other("/chat/completions", "no json"),
        other("/embeddings", "{}"),
        other("/responses", r#"{"model":"m","background":true}"#),
        "curl -s -o /dev/null -w '%{http_code}\\n' $OPENAI_BASE_URL/models".to_owned(),
    ]
    .concat();
    let (run, out) = ran(&home, &up, "{providers: [fake, absent]}", &script).await;
    assert_eq!(out, ["403", "400", "404", "400", "200"], "{out:?}");
    let rows = calls(&up, &run).await;
    assert_eq!(outcomes(&rows), ["refused"; 3], "a path that is no call has no row");
    let (narrow, out) = ran(&home, &up, "{providers: [fake], models: [x]}", "ask chat ok").await;
    assert_eq!((out[0].as_str(), outcomes(&calls(&up, &narrow).await)), ("403", vec!["refused"]));
    // A removed provider is asked no more.
    assert_eq!(home.run(&["model", "rm", "fake"]).status.code(), Some(0));
    let (gone, out) = ran(&home, &up, "{providers: [fake]}", "ask chat ok").await;
    assert_eq!((out[0].as_str(), outcomes(&calls(&up, &gone).await)), ("403", vec!["refused"]));
    // Without `models:` nothing listens.
    let yaml = "id: none\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      exec: {run: 'curl -s http://127.0.0.53:3129/v1/models; echo $? $OPENAI_BASE_URL'}\n";
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    let none = text(&header, "runId");
    up.wait_terminal(&none).await;
    assert_eq!(printed(&home, &none).trim(), "7", "no variable, and nobody listens");
    assert!(fake.heard().is_empty(), "{:?}", fake.heard());
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_fails_cuts_lies_or_floods_leaves_a_typed_row() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let script = "ask chat 429; ask chat 500; ask chat error-inside; ask chat cut; ask messages cut ',\"stream\":true'; \
                  ask chat lies; ask responses ok ',\"stream\":true'; ask chat ok ',\"stream\":true'; ask chat huge; true";
    let (run, out) = ran(&home, &up, "{providers: [fake], budget: {wall_ms: 60000}}", script).await;
    assert_eq!(out, ["429", "500", "200", "200", "200", "200", "200", "200", "200"], "{out:?}");
    let rows = calls(&up, &run).await;
    assert_eq!(
        outcomes(&rows),
        [
            "provider_error",
            "provider_error",
            "provider_error",
            "cut",
            "cut",
            "ok",
            "ok",
            "ok",
            "cut"
        ]
    );
    let reserved = "SELECT n::text FROM app.model_calls WHERE tokens = reserved_tokens AND tokens > 0 ORDER BY n";
    let sql = up.sql().await;
    // What is not known counts as what was set aside: an error without a claim, cuts, a lie, a flood.
    assert_eq!(texts(&sql, reserved).await, ["3", "4", "5", "6", "9"]);
    assert_eq!((&rows[0]["tokens"], &rows[6]["tokens"]), (&json!(0), &json!(15)));
    assert!(rows[5]["usage"].is_null() && rows[5]["why"].is_string(), "{}", rows[5]);
    assert_eq!(fake.heard().len(), 9, "nothing is sent twice");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_calls_at_once_never_pass_a_budget() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({"day_budget": {"calls": 12}})).await;
    let all = "for i in $(seq 20); do ask chat ok '' $i & done; wait";
    let oks = |out: &[String]| out.iter().filter(|line| *line == "200").count();
    let (_, out) = ran(&home, &up, "{providers: [fake], budget: {calls: 5}}", all).await;
    assert_eq!((out.len(), oks(&out), fake.heard().len()), (20, 5, 5), "{out:?}");
    let (run, out) = ran(&home, &up, "{providers: [fake], budget: {tokens: 400}}", all).await;
    let sent = oks(&out);
    assert!((1..=7).contains(&sent), "{out:?}");
    assert_eq!(fake.heard().len(), 5 + sent);
    let sql = up.sql().await;
    let held = format!("SELECT sum(tokens)::bigint FROM app.model_calls WHERE run_id = '{run}'");
    assert!(count(&sql, &held).await <= 400);
    // The day's bound holds across runs.
    let (_, out) = ran(&home, &up, "{providers: [fake]}", all).await;
    assert_eq!((oks(&out), fake.heard().len()), (12 - 5 - sent, 12), "{out:?}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_model_is_cut_at_the_wall_budget_and_a_client_that_goes_ends_its_call() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let script = "curl -s -m 2 -o /dev/null -d '{\"model\":\"m\",\"stream\":true,\"input\":\"do:hold\"}' $OPENAI_BASE_URL/responses; \
                  echo $?; ask chat slow; ask chat ok";
    let (run, out) = ran(&home, &up, "{providers: [fake], budget: {wall_ms: 5000}}", script).await;
    assert_eq!(out, ["28", "502", "403"], "{out:?}");
    assert_eq!(outcomes(&calls(&up, &run).await), ["cut", "cut", "refused"]);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_worker_is_killed_is_unknown_and_says_so() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let mut up = home.up();
    provider(&up, &fake, json!({})).await;
    let run =
        started(&up, "{providers: [fake], budget: {calls: 1}}", "ask chat hold ',\"stream\":true'")
            .await;
    until("the model is called", LIMIT, async || !fake.heard().is_empty()).await;
    up.kill();
    fake.release();
    let up = home.up();
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let rows = calls(&up, &run).await;
    assert_eq!(outcomes(&rows), ["unknown", "ok"], "the second execution makes a call of its own");
    assert_ne!(rows[0]["opKey"], rows[1]["opKey"]);
    assert_eq!(fake.heard().len(), 2);
    let table = printed_by(&home, &["model", "usage", &run]);
    assert!(table.lines().any(|line| line.trim_end().ends_with(" 1")), "{table}");
    let sql = up.sql().await;
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_used_up_opens_a_gate_and_the_agent_goes_on_with_what_a_person_grants() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let models = "{providers: [fake], budget: {calls: 1, ask: true}}";
    let run = started(&up, models, "ask chat ok; ask chat ok; ask chat ok; ask chat ok").await;
    let gate = |n: u32| format!("/api/runs/{run}/gates/models-{n}");
    let answer = async |n: u32, payload: Value| {
        until("the task asks", LIMIT, async || up.get(&gate(n)).await.0 == 200).await;
        up.post(&format!("{}/reply", gate(n)), &json!({"payload": payload, "dedupeKey": "k"})).await
    };
    for bad in [
        json!({"choice": "yes"}),
        json!({"choice": "yes", "grant": {}}),
        json!({"choice": "yes", "grant": {"calls": -1}}),
        json!({"choice": "no", "grant": {"calls": 1}}),
    ] {
        assert_eq!(answer(1, bad.clone()).await.0, 400, "{bad}");
    }
    assert_eq!(up.get(&gate(1)).await.1["prompt"]["uiHints"]["over"]["limit"], 1);
    assert_eq!(fake.heard().len(), 1, "the call waits");
    let (status, body) = answer(1, json!({"choice": "yes", "grant": {"calls": 2}})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(answer(2, json!({"choice": "no"})).await.0, 200);
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let out = printed(&home, &run);
    assert_eq!(out.lines().collect::<Vec<_>>(), ["200", "200", "200", "403"]);
    let rows = calls(&up, &run).await;
    assert_eq!(outcomes(&rows), ["ok", "refused", "ok", "ok", "refused"]);
    assert_eq!(fake.heard().len(), 3);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_a1_a_budgets_gate_says_what_was_reached_and_is_answered_by_command_and_by_page() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let models = "{providers: [fake], budget: {calls: 1, ask: true}}";
    let run = started(&up, models, "ask chat ok; ask chat ok; ask chat ok; ask chat ok").await;
    let opened = async |n: u32| {
        let gate = format!("/api/runs/{run}/gates/models-{n}");
        until("the task asks", LIMIT, async || up.get(&gate).await.0 == 200).await;
    };
    opened(1).await;
    for list in [vec!["gate", "ls"], vec!["gate", "show", &run]] {
        let shown = printed_by(&home, &list);
        assert!(shown.contains("calls: 1 of 1 used"), "{list:?}: {shown}");
    }
    let reply = |more: &[&str]| {
        let args = ["gate", "reply", &run, "models-1", "--choice", "yes"];
        let output = home.run(&[&args[..], more].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, words) = reply(&[]);
    assert_eq!(code, Some(3), "{words}");
    assert!(words.contains("calls: 1 of 1 used") && words.contains("--grant calls=N"), "{words}");
    for bad in [&["--grant", "calls=x"][..], &["--grant", "calls=1", "--until", "5m"]] {
        assert_eq!(reply(bad).0, Some(3), "{bad:?}");
    }
    let (code, words) = reply(&["--grant", "calls=1", "--grant", "money=0.5"]);
    assert_eq!(code, Some(0), "{words}");
    opened(2).await;
    // By a link, as the page's script sends it.
    let link = home.run_json(&["gate", "link", &run, "models-2", "--for", "Ada", "--json"]);
    let path = text(&link, "path");
    let page = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .get(format!("{}{path}", up.url))
        .header("accept", "text/html")
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains("calls: 2 of 2 used") && page.contains("name=\"calls\""), "{page}");
    assert!(!page.contains("POST its payload"), "{page}");
    let (status, view) = up.request("GET", &path, None, None).await;
    assert_eq!((status, &view["budget"]["observed"]), (200, &json!(2)), "{view}");
    let yes = json!({"payload": {"choice": "yes", "grant": {"calls": 1}}});
    let body = Some(yes.to_string().into_bytes());
    let (status, said) = up.request("POST", &path, None, body).await;
    assert_eq!(status, 200, "{said}");
    opened(3).await;
    assert_eq!(
        home.run(&["gate", "reply", &run, "models-3", "--choice", "no"]).status.code(),
        Some(0)
    );
    assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    let out = printed(&home, &run);
    assert_eq!(out.lines().collect::<Vec<_>>(), ["200", "200", "200", "403"]);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_kept_only_where_a_recipe_says_so() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let (_, out) = ran(&home, &up, "{providers: [fake]}", "ask chat one").await;
    assert_eq!(out, ["200"]);
    let sql = up.sql().await;
    assert_eq!(count(&sql, "SELECT count(*) FROM app.model_bodies").await, 0);
    let (_, out) = ran(&home, &up, "{providers: [fake], keep: true}", "ask chat two").await;
    assert_eq!(out, ["200"]);
    let kept =
        texts(&sql, "SELECT side || ' ' || body FROM app.model_bodies ORDER BY side DESC").await;
    assert!(kept[0].starts_with("request ") && kept[0].contains("do:two"), "{kept:?}");
    assert!(kept[1].starts_with("answer ") && kept[1].contains("hello"), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_providers_key_is_a_secret_that_is_added_outside_and_never_kept() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    const KEY: &str = "sk-test-0123456789abcdef";
    let put = async |name: &str, body: Value| {
        let body = Some(body.to_string().into_bytes());
        let path = format!("/api/secrets/{name}");
        let (status, made) = up.request("PUT", &path, Some(&up.key), body).await;
        assert_eq!(status, 200, "{made}");
    };
    put("model-key", json!({"value": KEY})).await;
    put("other-key", json!({"value": KEY, "for": ["api.example"]})).await;
    provider(&up, &fake, json!({"secret": "model-key"})).await;
    let script = "ask chat echo; ask messages ok; env; cat /proc/self/environ /tmp/a*";
    let (run, out) = ran(&home, &up, "{providers: [fake], keep: true}", script).await;
    assert_eq!(
        outcomes(&calls(&up, &run).await),
        ["cut", "ok"],
        "an answer that repeats the key is cut"
    );
    let repeats = format!("ask chat 'ok {KEY}'");
    ran(&home, &up, "{providers: [fake], keep: true}", &repeats).await;
    // The first is cut: on a busy machine before its head was read.
    assert!(["200", "000"].contains(&out[0].as_str()) && out[1] == "200", "{out:?}");
    let heard = fake.heard();
    assert!(heard[0].head.contains(&format!("authorization: bearer {KEY}")), "{:?}", heard[0]);
    assert!(heard[1].head.contains(&format!("x-api-key: {KEY}")), "{:?}", heard[1]);
    assert!(!out.iter().any(|line| line.contains(KEY)), "{out:?}");
    let sql = up.sql().await;
    let kept = texts(&sql, "SELECT body FROM app.model_bodies WHERE side = 'request'").await;
    assert!(kept.iter().any(|body| body.contains("[redacted]")), "{kept:?}");
    let rows = texts(&sql, "SELECT c::text FROM app.model_calls c UNION ALL SELECT b::text FROM app.model_bodies b UNION ALL SELECT m::text FROM app.models m UNION ALL SELECT a::text FROM app.audit a").await;
    assert!(!rows.iter().any(|row| row.contains(KEY)), "{run}");
    // A secret for other hosts, and one that is gone: refused, and never sent.
    provider(&up, &fake, json!({"secret": "other-key"})).await;
    let (other, out) = ran(&home, &up, "{providers: [fake]}", "ask chat ok").await;
    assert_eq!((out[0].as_str(), outcomes(&calls(&up, &other).await)), ("403", vec!["refused"]));
    provider(&up, &fake, json!({"secret": "absent"})).await;
    let (gone, out) = ran(&home, &up, "{providers: [fake]}", "ask chat ok").await;
    assert_eq!((out[0].as_str(), outcomes(&calls(&up, &gone).await)), ("403", vec!["refused"]));
    assert_eq!(fake.heard().len(), 3);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_calls_models_by_its_spec_and_its_prompt_is_on_record_once() {
    let (home, fake, project) = (Home::new(), FakeModel::new(), Project::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let spec = json!({"models": {"providers": ["fake"], "budget": {"calls": 1}}});
    let prompt = format!("{ASK}\nask chat ok; ask chat ok\n");
    let id = spawn(&up, &script(&prompt, Some(spec), &project)).await;
    let view = ended(&up, &id).await;
    assert_eq!(view["status"], "completed", "{view}");
    let run = text(&view, "run_id");
    let rows = calls(&up, &run).await;
    assert_eq!(outcomes(&rows), ["ok", "refused"]);
    assert_eq!(rows[0]["agent"], "command");
    let sql = up.sql().await;
    let prompts = texts(&sql, "SELECT agent || ' ' || attempt || ' ' || (session_id LIKE 'sb%') || ' ' || (raw = E'200\n403\n') || ' ' || (ended_at IS NOT NULL AND error IS NULL) FROM app.opencode_calls").await;
    assert_eq!(prompts, ["command 1 true true true"]);
    assert_eq!(texts(&sql, "SELECT prompt FROM app.opencode_calls").await, [prompt]);
    assert_proven(&home);
}

/// What the providers' own clients do, each call in turn; then a refusal as each client reads it.
const CLIENTS: &str = r"
import anthropic, openai
o, a = openai.OpenAI(), anthropic.Anthropic()
said = [{'role': 'user', 'content': 'do:ok'}]
print(o.chat.completions.create(model='m', messages=said).usage.total_tokens)
chunks = o.chat.completions.create(model='m', messages=said, stream=True)
print(''.join(c.choices[0].delta.content or '' for c in chunks if c.choices))
print(o.responses.create(model='m', input='do:ok').output_text)
print(a.messages.create(model='m', max_tokens=8, messages=said).content[0].text)
with a.messages.stream(model='m', max_tokens=8, messages=said) as stream:
    print(''.join(stream.text_stream))
try:
    o.chat.completions.create(model='m', messages=said)
except openai.PermissionDeniedError as e:
    print('refused', e.code)
try:
    a.messages.create(model='m', max_tokens=8, messages=said)
except anthropic.PermissionDeniedError as e:
    print('refused', e.body['error']['type'])
";

#[tokio::test(flavor = "multi_thread")]
async fn the_providers_own_clients_work_by_their_variables_alone() {
    let (home, fake, dir) = (Home::new(), FakeModel::new(), tempfile::tempdir().unwrap());
    let mut pip = std::process::Command::new("/usr/bin/python3");
    pip.args(["-m", "pip", "install", "-q", "--no-cache-dir", "--root-user-action=ignore"])
        .args(["--target", dir.path().to_str().unwrap(), "openai", "anthropic"])
        .current_dir("/");
    crate::support::install::run(pip).expect("this test needs pip: apt-get install python3-pip");
    std::fs::write(dir.path().join("clients.py"), CLIENTS).unwrap();
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let yaml = format!(
        "id: clients\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      files: [{{from: {}, to: /opt/py}}]\n      limits: {{memMB: 1024}}\n      models: {{providers: [fake], budget: {{calls: 5}}}}\n      exec:\n        timeout: 80s\n        env: {{PYTHONPATH: /opt/py}}\n        run: /usr/bin/python3 /opt/py/clients.py\n",
        dir.path().display()
    );
    let run = text(&up.run_recipe(&yaml, json!({}), json!({})).await, "runId");
    let header = up.wait_terminal(&run).await;
    let out = printed(&home, &run);
    assert_eq!(header["status"], "succeeded", "{header} {out}");
    let want =
        "15\nhello\nhello\nhello\nhello\nrefused budget_exceeded\nrefused permission_error\n";
    assert_eq!(out, want);
    let rows = calls(&up, &run).await;
    assert_eq!(outcomes(&rows), ["ok", "ok", "ok", "ok", "ok", "refused", "refused"]);
    assert_eq!(fake.heard().len(), 5, "no client tries again what was refused");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_what_a_budget_cannot_bound_is_refused_and_what_it_can_is_sent_with_a_most() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    // Twenty at once with a document that lies elsewhere: each would be paid with far more than its bytes.
    let document =
        r#"',"system":[{"type":"document","source":{"type":"url","url":"http://h/d"}}]'"#;
    let tool = r#"',"tools":[{"type":"web_search"}]'"#;
    let script = format!(
        "for i in $(seq 20); do ask messages ok {document} $i & done; wait; ask responses ok {tool}; cat /tmp/a$$.; echo; \
         curl -s -o /dev/null -d '{{\"model\":\"m\",\"input\":\"x\"}}' $OPENAI_BASE_URL/responses; true"
    );
    let (run, out) = ran(&home, &up, "{providers: [fake], budget: {tokens: 60000}}", &script).await;
    assert!(out[..21].iter().all(|line| line == "400"), "{out:?}");
    assert!(out[21].contains("unbounded_call") && out[21].contains("leave it out"), "{out:?}");
    let heard = fake.heard();
    assert_eq!((heard.len(), &heard[0].body["max_output_tokens"]), (1, &json!(32_768)));
    let rows = calls(&up, &run).await;
    assert_eq!(outcomes(&rows).iter().filter(|one| **one == "refused").count(), 21);
    // Where calls alone are bound, it is the caller's matter.
    let (_, out) = ran(
        &home,
        &up,
        "{providers: [fake], budget: {calls: 5}}",
        &format!("ask messages ok {document}; ask responses ok {tool}"),
    )
    .await;
    assert_eq!(out, ["200", "200"]);
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a4_what_is_written_to_a_cache_is_on_record_at_its_price() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    let prices = json!({"model": "m", "input_micros": 3_000_000, "output_micros": 15_000_000, "cached_micros": 300_000,
        "cache_write_micros": 3_750_000, "cache_write_hour_micros": 6_000_000});
    provider(&up, &fake, json!({"models": [prices]})).await;
    let (run, out) = ran(
        &home,
        &up,
        "{providers: [fake]}",
        "ask messages writes; ask messages writes ',\"stream\":true'",
    )
    .await;
    assert_eq!(out, ["200", "200"]);
    for row in calls(&up, &run).await {
        let usage =
            json!({"input": 1_010, "output": 5, "cached": 2, "written": 1_000, "writtenHour": 400});
        let said = json!({"input": row["usage"]["input"], "output": row["usage"]["output"], "cached": row["usage"]["cached"],
            "written": row["usage"]["written"], "writtenHour": row["usage"]["written_hour"]});
        assert_eq!(said, usage, "{row}");
        // 8 * 3 + 2 * 0.3 + 600 * 3.75 + 400 * 6 + 5 * 15
        assert_eq!((&row["tokens"], &row["micros"]), (&json!(1_015), &json!(4_750)), "{row}");
    }
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_a_turn_is_a_call_of_a_model_and_the_one_beyond_max_turns_is_not_sent() {
    let (home, fake, project) = (Home::new(), FakeModel::new(), Project::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    // An agent that says one turn, and calls as often as it likes.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("codex");
    let lines = format!(
        "#!/bin/bash\necho '{{\"type\":\"turn.started\"}}'\n{ASK}\nfor i in $(seq 25); do ask responses ok; done >/dev/null\nsleep 300\n"
    );
    write_program(&program, &lines);
    let body = json!({"agent_type": "codex", "prompt": "p", "project_dir": project.path(), "enforce": true,
        "sandbox_spec": {"max_turns": 3, "models": {"providers": ["fake"], "budget": {"tokens": 900_000}},
            "mounts": [{"source": program, "target": "/opt/agents/bin/codex"}]}});
    let view = ended(&up, &spawn(&up, &body).await).await;
    assert_eq!(view["status"], "failed", "{view:#}");
    assert!(view["error_message"].as_str().unwrap().contains("max_turns is 3"), "{view:#}");
    assert_eq!(fake.heard().len(), 3, "{view:#}");
    // What is on record is what the ledger of calls says, and no word of the agent.
    assert_eq!((&view["turns"], &view["in_tokens"]), (&json!(3), &json!(30)), "{view:#}");
    assert_eq!((&view["out_tokens"], &view["cache_hits"]), (&json!(15), &json!(6)), "{view:#}");
    let record = &view["sandbox_effective"];
    assert_eq!(record["turns_used"], 3, "{view:#}");
    assert_eq!(violation(&view, "turns_exceeded")["count"], 1, "{view:#}");
    assert_eq!(record["models"]["spec"]["providers"], json!(["fake"]), "{view:#}");
    let called = &record["models"]["called"][0];
    assert_eq!((&called["model"], &called["calls"]), (&json!("m"), &json!(3)), "{view:#}");
    let rows = calls(&up, &text(&view, "run_id")).await;
    assert_eq!(outcomes(&rows)[..3], ["ok", "ok", "ok"]);
    assert!(rows[3..].iter().all(|row| row["outcome"] == "refused"), "{rows:?}");
    assert_proven(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a6_a_record_has_the_calls_of_the_ledger_whatever_the_agent_says() {
    let (home, fake, project) = (Home::new(), FakeModel::new(), Project::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let spec = json!({"max_turns": 1, "models": {"providers": ["fake"]}});
    let prompt = format!(
        "{ASK}\nask chat ok; ask messages cut ',\"stream\":true'; ask chat 429; ask chat ok\n"
    );
    let view = ended(&up, &spawn(&up, &script(&prompt, Some(spec), &project)).await).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    // Two were answered and one broke off; what was paid for that one is not known.
    assert_eq!((&view["turns"], &view["in_tokens"]), (&json!(3), &json!(20)), "{view:#}");
    assert_eq!(violation(&view, "turns_exceeded")["count"], 2, "{view:#}");
    let called = &view["sandbox_effective"]["models"]["called"][0];
    assert_eq!((&called["calls"], &called["unknown"]), (&json!(4), &json!(1)), "{view:#}");
    assert_proven(&home);
}
