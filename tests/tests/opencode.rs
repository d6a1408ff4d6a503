//! The contract of OpenCode's daemon: one list of cases and of answers, for the real one and for a fake one; and what
//! the client says of a daemon that misbehaves. `OC_STRICT_MODE=1`: the real daemon, or a failure.
//!
//! One file: one list of cases for the real daemon and for the fake one.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cofferdam_ambient::{clock, env};
use cofferdam_opencode::{
    Address, Agent, Answer, Bounds, Client, Detector, Error, Event, Ids, Model, Patience, Prompt,
    ReadbackAction, SessionId, Settings, Verdict, configuration, environment,
};
use cofferdam_tests::repository;
use serde_json::{Value, json};

use crate::support::agents::{self, Programs};
use crate::support::found;

/// Each case's name and answer, of both daemons.
const CASES: &[(&str, &str)] = &[
    ("version", "1.18.33"),
    ("wrong password", "unauthorized"),
    ("session twice", "created, created"),
    ("children of an unknown session", "not found"),
    ("prompt in an unknown session", "not found"),
    ("read back before the send", "not admitted"),
    ("text", "answer hello, tokens 900 14"),
    ("read back after the answer", "finished hello"),
    ("same ids again", "the same message"),
    ("ids may fall", "answer hello"),
    ("structured after a command", "answer {\"a\":\"x\"}"),
    ("structured is not validated", "answer {\"b\":1}"),
    ("no structured answer", "turn StructuredOutputError"),
    ("provider refuses", "turn APIError"),
    ("read back of a refusal", "failed APIError"),
    ("command then text", "answer fin, file true"),
    ("busy", "running"),
    ("aborted", "failed MessageAbortedError"),
    ("abort of an idle session", "ok"),
    ("permission rejected", "turn Rejected, failed Rejected, again not found, file false"),
    ("permission once", "answer fin, file true"),
    ("question is denied", "answer fin, 0 asked"),
    ("task is denied", "answer fin, no children"),
    ("plan runs no command", "answer fin, file false"),
    ("unknown model", "refused 500 UnknownError"),
    ("events", "words, end"),
    ("child of another client", "children 1"),
    ("session of another client", "made, not alone, gone"),
];

/// How long an event is waited for: the daemon sends a sign of life every ten seconds, which would count as one.
const HEARD: Duration = Duration::from_secs(8);

/// A daemon's process, its model, and the client.
struct Daemon {
    child: Child,
    address: String,
    client: Client,
    dir: tempfile::TempDir,
    model: Option<agents::Model>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn model() -> Model {
    Model { provider: "proxy".to_owned(), model: "scripted".to_owned() }
}

fn client(address: &str, password: &str, bounds: Bounds) -> Client {
    Client::new(Address::Tcp(address.parse().unwrap()), "u", password, bounds).unwrap()
}

/// Starts a daemon; its process and its address.
fn started(command: &mut Command, dir: &Path) -> (Child, String) {
    let errors = File::create(dir.join("errors")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut addresses = lines
        .filter_map(|line| line.unwrap().split_once("http://").map(|(_, at)| at.trim().to_owned()));
    let address = addresses.next().expect("the daemon listens");
    // It may print more, and a full pipe would stop it.
    std::thread::spawn(move || addresses.count());
    (child, address)
}

/// The real daemon with our own configuration; the test adds only a command that asks for permission.
fn real(programs: &Programs, dir: &Path, scripted: &str) -> Command {
    let (state, named) = (dir.join("state").display().to_string(), model());
    let settings = Settings {
        base_url: &format!("http://{scripted}/v1"),
        api_key: "k",
        model: &named,
        state: &state,
        username: "u",
        password: "p",
    };
    let mut config = configuration(&settings);
    config["permission"]["bash"] = json!({"*": "allow", "touch asked*": "ask"});
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(programs.path("opencode"));
    command.args(["serve", "--hostname", "127.0.0.1", "--port", "0"]).current_dir(dir);
    command.env_clear().env("PATH", env::var("PATH").unwrap()).envs(environment(&settings));
    command.env("OPENCODE_CONFIG_CONTENT", config.to_string());
    command
}

impl Daemon {
    /// Waits for the line that names its address: a request before it is never answered.
    fn listening(
        mut command: Command,
        dir: tempfile::TempDir,
        model: Option<agents::Model>,
    ) -> Self {
        let (child, address) = started(&mut command, dir.path());
        let client = client(&address, "p", Bounds::default());
        Self { child, address, client, dir, model }
    }

    /// The fake daemon, which misbehaves as its mode says.
    fn fake(mode: &str) -> Self {
        let mut command = Command::new("setpriv");
        let program = repository().join("tests/tests/support/fake_daemon.py");
        command.args(["--pdeathsig", "KILL", "python3"]).arg(program).arg(mode);
        Self::listening(command, tempfile::tempdir().unwrap(), None)
    }

    fn real(programs: &Programs) -> Self {
        let (dir, scripted) = (tempfile::tempdir().unwrap(), agents::Model::start());
        let command = real(programs, dir.path(), &scripted.address);
        Self::listening(command, dir, Some(scripted))
    }

    /// Kills it and starts it again on what it left on disk.
    fn killed_and_started(&mut self, programs: &Programs) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let model = &self.model.as_ref().unwrap().address;
        (self.child, self.address) =
            started(&mut real(programs, self.dir.path(), model), self.dir.path());
        self.client = client(&self.address, "p", Bounds::default());
    }

    /// How often the model was asked by a prompt that says so.
    fn asked(&self, mark: &str) -> usize {
        self.model.as_ref().unwrap().asked(mark).len()
    }

    /// A session of its own for a case, so that scripts do not mix; with the ids of its first prompt.
    async fn session(&self, case: &str, agent: Agent) -> Ids {
        let session = SessionId::derive(case).unwrap();
        self.client.create(&session, agent, self.dir.path().to_str().unwrap()).await.unwrap();
        Ids::derive(&session, case, 1).unwrap()
    }

    async fn prompt(
        &self,
        ids: &Ids,
        agent: Agent,
        steps: &Value,
        schema: bool,
    ) -> Result<Answer, Error> {
        let (text, model) = (format!("[[steps: {steps}]]"), model());
        let asked =
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        let schema = schema.then_some(&asked);
        self.client.prompt(&Prompt { ids, agent, model: &model, text: &text, schema }).await
    }

    async fn begin(&self, ids: &Ids, steps: &Value) {
        let (text, model) = (format!("[[steps: {steps}]]"), model());
        let prompt = Prompt { ids, agent: Agent::Build, model: &model, text: &text, schema: None };
        self.client.prompt_async(&prompt).await.unwrap();
    }

    fn made(&self, file: &str) -> bool {
        self.dir.path().join(file).exists()
    }

    /// What a prompt in a session of its own comes to.
    async fn case(&self, name: &str, agent: Agent, steps: Value, schema: bool) -> String {
        let ids = self.session(name, agent).await;
        said(self.prompt(&ids, agent, &steps, schema).await)
    }
}

fn said(result: Result<Answer, Error>) -> String {
    match result {
        Ok(Answer { structured: Some(value), .. }) => format!("answer {value}"),
        Ok(answer) => format!("answer {}", answer.text),
        Err(error) => wrong(&error),
    }
}

fn wrong(error: &Error) -> String {
    match error {
        Error::Turn(error) => format!("turn {}", error.name),
        Error::Unauthorized { .. } => "unauthorized".to_owned(),
        Error::NotFound { .. } => "not found".to_owned(),
        Error::Refused { status, name, .. } => format!("refused {status} {name}"),
        Error::Children(ids) => format!("children {}", ids.len()),
        Error::Cut { .. } => "cut".to_owned(),
        Error::TimedOut { .. } => "timed out".to_owned(),
        Error::TooLarge { .. } => "too large".to_owned(),
        Error::Garbled { .. } => "garbled".to_owned(),
        other => format!("{other:?}"),
    }
}

fn became(read: ReadbackAction) -> String {
    match read {
        ReadbackAction::NotAdmitted => "not admitted".to_owned(),
        ReadbackAction::Finished(answer) => format!("finished {}", answer.text),
        ReadbackAction::Failed(error) => format!("failed {}", error.name),
        ReadbackAction::Running => "running".to_owned(),
        ReadbackAction::Unknown => "unknown".to_owned(),
    }
}

/// Every case's answer, in order.
async fn answers(daemon: &Daemon) -> Vec<String> {
    let (client, mut all) = (&daemon.client, Vec::new());
    let unknown = SessionId::derive("unknown").unwrap();
    all.push(client.version().await.unwrap());
    client.check_version().await.unwrap();
    let stranger = self::client(&daemon.address, "wrong", Bounds::default());
    all.push(wrong(&stranger.version().await.unwrap_err()));
    let ids = daemon.session("text", Agent::Build).await;
    daemon.session("text", Agent::Build).await;
    all.push("created, created".to_owned());
    all.push(wrong(&client.check_children(&unknown).await.unwrap_err()));
    let hello = json!([{"text": "hello"}]);
    let nowhere = Ids::derive(&unknown, "s", 1).unwrap();
    all.push(said(daemon.prompt(&nowhere, Agent::Build, &hello, false).await));

    all.push(became(client.read_back(&ids).await.unwrap()));
    let first = daemon.prompt(&ids, Agent::Build, &hello, false).await.unwrap();
    all.push(format!("answer {}, tokens {} {}", first.text, first.tokens.0, first.tokens.1));
    all.push(became(client.read_back(&ids).await.unwrap()));
    let again = daemon.prompt(&ids, Agent::Build, &hello, false).await.unwrap();
    all.push(if again == first { "the same message" } else { "another message" }.to_owned());
    let mut falling = (1..).map(|n| Ids::derive(&ids.session, "later", n).unwrap());
    let lower = falling.find(|later| later.message() < ids.message()).unwrap();
    all.push(said(daemon.prompt(&lower, Agent::Build, &hello, false).await));
    structured(daemon, &mut all).await;
    aborted(daemon, &mut all).await;
    permitted(daemon, &mut all).await;
    refused(daemon, &mut all).await;
    watched(daemon, &mut all).await;
    all.push(beside(daemon).await);
    all
}

/// Answers under a schema, a provider that refuses, and a command.
async fn structured(daemon: &Daemon, all: &mut Vec<String>) {
    let client = &daemon.client;
    let hello = json!([{"text": "hello"}]);
    let steps = json!([{"sh": "echo hi"}, {"tool": ["StructuredOutput", {"a": "x"}]}]);
    all.push(daemon.case("structured", Agent::Build, steps, true).await);
    let steps = json!([{"tool": ["StructuredOutput", {"b": 1}]}]);
    all.push(daemon.case("not validated", Agent::Build, steps, true).await);
    all.push(daemon.case("no structured", Agent::Build, hello, true).await);
    let ids = daemon.session("refused", Agent::Build).await;
    all.push(said(daemon.prompt(&ids, Agent::Build, &json!([{"fail": 401}]), false).await));
    all.push(became(client.read_back(&ids).await.unwrap()));
    let steps = json!([{"sh": "touch made"}, {"text": "fin"}]);
    let answer = daemon.case("command", Agent::Build, steps, false).await;
    all.push(format!("{answer}, file {}", daemon.made("made")));
}

/// A turn that is aborted while its command runs, and once more after its end.
async fn aborted(daemon: &Daemon, all: &mut Vec<String>) {
    let client = &daemon.client;
    let ids = daemon.session("busy", Agent::Build).await;
    daemon.begin(&ids, &json!([{"sh": "sleep 30"}, {"text": "fin"}])).await;
    let running = async || {
        Some(client.read_back(&ids).await.unwrap()).filter(|r| *r == ReadbackAction::Running)
    };
    all.push(became(found("a status", running).await));
    // Its command runs: an abort before that is one of a turn that has not begun.
    clock::sleep(Duration::from_secs(1)).await;
    client.abort(&ids.session).await.unwrap();
    let over = async || {
        Some(client.read_back(&ids).await.unwrap()).filter(|r| *r != ReadbackAction::Running)
    };
    all.push(became(found("its end", over).await));
    client.abort(&ids.session).await.unwrap();
    all.push("ok".to_owned());
}

async fn permitted(daemon: &Daemon, all: &mut Vec<String>) {
    let client = &daemon.client;
    for (case, once) in [("rejected", false), ("once", true)] {
        let (ids, file) = (daemon.session(case, Agent::Build).await, format!("asked-{case}"));
        let steps = json!([{"sh": format!("touch {file}")}, {"text": "fin"}]);
        let answering = async {
            let pending = found("a permission", async || {
                client.permissions(&ids.session).await.unwrap().pop()
            })
            .await;
            client.answer_permission(&pending, once).await.unwrap();
            wrong(&client.answer_permission(&pending, once).await.unwrap_err())
        };
        let prompting = daemon.prompt(&ids, Agent::Build, &steps, false);
        let (answer, again) = tokio::join!(prompting, answering);
        let (answer, made) = (said(answer), daemon.made(&file));
        let read = became(client.read_back(&ids).await.unwrap());
        all.push(match once {
            true => format!("{answer}, file {made}"),
            false => format!("{answer}, {read}, again {again}, file {made}"),
        });
    }
}

/// What no turn may do: ask a question, begin a task, write while it plans, take an unknown model.
async fn refused(daemon: &Daemon, all: &mut Vec<String>) {
    let client = &daemon.client;
    let ids = daemon.session("question", Agent::Build).await;
    let question = json!({"questions": [{"question": "q", "header": "h", "options": []}]});
    let steps = json!([{"tool": ["question", question]}, {"text": "fin"}]);
    let answer = said(daemon.prompt(&ids, Agent::Build, &steps, false).await);
    all.push(format!("{answer}, {} asked", client.questions(&ids.session).await.unwrap().len()));
    let ids = daemon.session("task", Agent::Build).await;
    let task = json!({"description": "d", "prompt": "p", "subagent_type": "general"});
    let steps = json!([{"tool": ["task", task]}, {"text": "fin"}]);
    let answer = said(daemon.prompt(&ids, Agent::Build, &steps, false).await);
    client.check_children(&ids.session).await.unwrap();
    all.push(format!("{answer}, no children"));
    let steps = json!([{"sh": "touch planned"}, {"text": "fin"}]);
    let answer = daemon.case("plan", Agent::Plan, steps, false).await;
    all.push(format!("{answer}, file {}", daemon.made("planned")));
    let ids = daemon.session("no model", Agent::Build).await;
    let none = Model { model: "none".to_owned(), ..model() };
    let prompt = Prompt { ids: &ids, agent: Agent::Build, model: &none, text: "x", schema: None };
    all.push(wrong(&client.prompt(&prompt).await.unwrap_err()));
}

/// A turn by its events, and a child that somebody made.
async fn watched(daemon: &Daemon, all: &mut Vec<String>) {
    let client = &daemon.client;
    let first = daemon.session("events", Agent::Build).await;
    let mut events = client.events(&first.session).await.unwrap();
    let mut has_words = false;
    // A busy daemon may say that it listens before it does: what it then does unheard, it does once more.
    'heard: for attempt in 1.. {
        let ids = Ids::derive(&first.session, "events", attempt).unwrap();
        daemon.begin(&ids, &json!([{"text": "hello"}])).await;
        while let Ok(event) = tokio::time::timeout(HEARD, events.next()).await {
            match event.unwrap() {
                Event::Idle => break 'heard,
                event => has_words |= event == Event::Text,
            }
        }
        assert!(attempt < 5, "no event of five turns was heard");
    }
    all.push(if has_words { "words, end" } else { "end" }.to_owned());

    let ids = daemon.session("child", Agent::Build).await;
    let url = format!("http://{}/session", daemon.address);
    let child = json!({"parentID": ids.session.as_str()});
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made =
        reqwest::Client::new().post(url).basic_auth("u", Some("p")).json(&child).send().await;
    assert!(made.unwrap().status().is_success());
    all.push(wrong(&client.check_children(&ids.session).await.unwrap_err()));
}

/// A session that somebody makes beside ours, and removes before anybody looks.
async fn beside(daemon: &Daemon) -> String {
    let Daemon { client, .. } = daemon;
    let ids = daemon.session("beside", Agent::Build).await;
    let mut events = client.events(&ids.session).await.unwrap();
    let http = reqwest::Client::new();
    let url = format!("http://{}/session", daemon.address);
    let mut made = Vec::new();
    let id = 'heard: loop {
        assert!(made.len() < 5, "no event of five sessions was heard");
        let new = http.post(&url).basic_auth("u", Some("p")).json(&json!({})).send().await.unwrap();
        let new: Value = serde_json::from_slice(&new.bytes().await.unwrap()).unwrap();
        made.push(new["id"].as_str().unwrap().to_owned());
        while let Ok(event) = tokio::time::timeout(HEARD, events.next()).await {
            match event.unwrap() {
                Event::Session(id) if made.contains(&id) => break 'heard id,
                _ => {}
            }
        }
    };
    let others = client.check_alone(&ids.session).await.unwrap_err();
    assert!(matches!(others, Error::Children(_)), "{others}");
    let gone = http.delete(format!("{url}/{id}")).basic_auth("u", Some("p")).send().await.unwrap();
    let gone = if gone.status().is_success() { "gone" } else { "stays" };
    format!("made, not alone, {gone}")
}

async fn holds(daemon: &Daemon) {
    let wanted: Vec<String> =
        CASES.iter().map(|(name, answer)| format!("{name}: {answer}")).collect();
    let answers = answers(daemon).await;
    let given: Vec<String> =
        CASES.iter().zip(&answers).map(|((name, _), answer)| format!("{name}: {answer}")).collect();
    assert_eq!(given, wanted);
    assert_eq!(answers.len(), CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_daemon_holds_the_contract() {
    let Some(programs) = Programs::installed() else { return };
    holds(&Daemon::real(&programs)).await;
}

/// A worker that is killed between an answer and its row asks the daemon first: the model's own log is the judge.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_remembers_an_answer_and_a_turn_that_it_lost_is_unknown() {
    let Some(programs) = Programs::installed() else { return };
    let mut daemon = Daemon::real(&programs);
    let answered = daemon.session("answered", Agent::Build).await;
    let steps = json!([{"text": "once-only"}]);
    daemon.prompt(&answered, Agent::Build, &steps, false).await.unwrap();
    let lost = daemon.session("lost", Agent::Build).await;
    daemon.begin(&lost, &json!([{"wait": 5, "text": "lost-once"}])).await;
    found("what was asked", async || (daemon.asked("lost-once") == 1).then_some(())).await;

    daemon.killed_and_started(&programs);
    let read = daemon.client.read_back(&answered).await.unwrap();
    assert_eq!(became(read), "finished once-only");
    let again = daemon.prompt(&answered, Agent::Build, &steps, false).await.unwrap();
    assert_eq!(again.text, "once-only");
    assert_eq!(daemon.asked("once-only"), 1, "even a second send pays nothing");

    assert_eq!(became(daemon.client.read_back(&lost).await.unwrap()), "unknown");
    let steps = json!([{"wait": 5, "text": "lost-once"}]);
    assert_eq!(said(daemon.prompt(&lost, Agent::Build, &steps, false).await), "answer lost-once");
    assert_eq!(daemon.asked("lost-once"), 2, "at most one step doubles");
    assert_eq!(became(daemon.client.read_back(&lost).await.unwrap()), "finished lost-once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_the_file_system_carries_the_calls_and_the_events() {
    let daemon = Daemon::fake("well");
    let (path, address) = (daemon.dir.path().join("socket"), daemon.address.clone());
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let relay = tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = tokio::net::TcpStream::connect(&address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let client = Client::new(Address::Unix(path), "u", "p", Bounds::default()).unwrap();
    client.check_version().await.unwrap();
    let ids = daemon.session("socket", Agent::Build).await;
    let mut events = client.events(&ids.session).await.unwrap();
    daemon.begin(&ids, &json!([{"text": "hello"}])).await;
    while events.next().await.unwrap() != Event::Idle {}
    assert!(became(client.read_back(&ids).await.unwrap()).starts_with("finished"));
    relay.abort();
    let gone = Address::Unix(daemon.dir.path().join("nothing"));
    let gone = Client::new(gone, "u", "p", Bounds::default()).unwrap();
    assert!(matches!(gone.version().await, Err(Error::Unreachable { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_daemon_holds_the_contract() {
    holds(&Daemon::fake("well")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_of_the_daemon_is_named() {
    let error = Daemon::fake("version").client.check_version().await.unwrap_err();
    assert_eq!(error.to_string(), "OpenCode's daemon is version 1.99.0; install 1.18.33");
}

/// Small bounds, so that a silent daemon is noticed within the test's patience.
fn small() -> Bounds {
    let short = Duration::from_secs(3);
    Bounds { call: short, turn: short, silence: short, ..Bounds::default() }
}

/// The bounds on bytes are what ends an endless answer here: small ones, so that a loaded machine reaches them
/// long before those on time.
fn narrow() -> Bounds {
    Bounds { answer_bytes: 1 << 20, history_bytes: 2 << 20, ..Bounds::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_misbehaves_is_a_typed_error() {
    let session = SessionId::derive("s").unwrap();
    let ids = Ids::derive(&session, "step", 1).unwrap();
    for (mode, call, event) in [
        ("hang", "timed out", "timed out"),
        ("garbage", "garbled", "garbled"),
        ("half", "cut", "cut"),
        ("large", "too large", "too large"),
        ("endless", "too large", "too large"),
        ("die", "cut", ""),
    ] {
        let mut daemon = Daemon::fake(mode);
        let bounds = if mode == "hang" { small() } else { narrow() };
        let client = client(&daemon.address, "p", bounds);
        if !event.is_empty() {
            let error = match client.events(&session).await {
                Err(error) => error,
                Ok(mut events) => loop {
                    if let Err(error) = events.next().await {
                        break error;
                    }
                },
            };
            assert_eq!(wrong(&error), event, "{mode}: events");
        }
        assert_eq!(wrong(&client.read_back(&ids).await.unwrap_err()), call, "{mode}");
        if mode == "die" {
            // While it dies, its kernel still takes connections, and cuts them.
            daemon.child.wait().unwrap();
            let error = client.version().await.unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_calls_one_tool_500_times_is_a_stall_and_is_aborted() {
    let daemon = Daemon::fake("loop");
    let ids = daemon.session("loop", Agent::Build).await;
    let mut events = daemon.client.events(&ids.session).await.unwrap();
    daemon.begin(&ids, &json!([])).await;
    let (mut turn, mut now) = (Detector::new(Patience { silent_ms: 400, same_call: 20 }, 0), 0);
    let why = loop {
        turn.event(&events.next().await.unwrap(), now);
        now += 1;
        if let Verdict::Stalled(why) = turn.verdict(now) {
            break why;
        }
    };
    let (tool, times) = why.looped.clone().unwrap();
    assert!(tool == "bash" && times > 20, "{why}");
    daemon.client.abort(&ids.session).await.unwrap();
    assert_eq!(became(daemon.client.read_back(&ids).await.unwrap()), "running", "until it obeys");
}

#[test]
fn a_daemon_beyond_this_host_is_refused() {
    let far = Client::new(Address::Tcp("192.0.2.1:1".parse().unwrap()), "u", "p", small());
    assert!(matches!(far, Err(Error::NotLoopback(_))));
    let bad = Client::new(Address::Tcp("127.0.0.1:1".parse().unwrap()), "u", "p\n", small());
    assert!(bad.is_ok(), "base64 carries any password");
}
