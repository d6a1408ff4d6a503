//! Who drives the daemon of one sandbox: from its first line to a plan, to a patch, or to a typed failure.
//!
//! One file: one daemon from its first line to its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random;
use cofferdam_contracts::agent_plan::{AgentPlan, PATCH_NAME, PLAN_NAME, PROJECT, session_of};
use cofferdam_contracts::artifact::ArtifactKind;
use cofferdam_contracts::canonical::{self, digest};
use cofferdam_contracts::id::{SandboxId, StepId};
use cofferdam_contracts::sandbox::{ErrCode, SandboxResult};
use cofferdam_contracts::schema::unstorable;
use cofferdam_contracts::tree_change::{Tree, TreeChange};
use cofferdam_contracts::work::{AgentRole, OpencodeWork};
use cofferdam_flows::project_patch::{removed, roll_back};
use cofferdam_flows::{BoxFuture, DriverJob, Error, PlannerDriver, Prompts, patiently};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::planner::{
    PlannerPromptEnd, PromptClaim, PromptClaimOutcome, PromptOutcome, PromptUse,
};
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_opencode::{
    Agent as Mode, Client, Error as DaemonError, Ids, Model, Patience, Prompt, SessionId, Settings,
    TOOL_SHELL, environment, tool_shell,
};
use cofferdam_sandbox::{Agent, AgentError, Command, IgnoreRules, model_base_url};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::next::{NextPrompt, next_build, next_plan};
use crate::turn::{TurnEnd, USER, client_of, drive_turn};

/// The daemon's state: no part of the project, and gone with the sandbox.
const STATE: &str = "/home/agent";
/// What the daemon prints once it listens: a request before that is never answered.
const LISTENING: &[u8] = b"http://127.0.0.1:";
/// Bytes of its output that are looked through for that.
const MAX_HEAD: usize = 64 * 1024;
/// From the daemon's start to that line, on a busy machine.
const START: Duration = Duration::from_secs(120);
/// Bytes of an answer in a row and in an artifact.
const MAX_RAW: usize = 64 * 1024;
/// Bytes of a structured answer in a row: four times those that a plan may have.
const MAX_STRUCTURED: usize = 256 * 1024;
/// Tools of a turn's last step that are noted.
const MAX_TOOLS: usize = 100;
/// A tool that is called again with the same input: see `Patience`.
const SAME_CALL: u32 = 20;
/// Patience with a turn that is driven again, ms: its model answers at once, so that silence is a busy machine.
const LEAST_REPLAY_MS: u64 = 120_000;
/// The daemon's name of a turn without the structured answer that it was asked for: an answer that does not fit.
const NOT_STRUCTURED: &str = "StructuredOutputError";
/// The provider's key in the daemon's configuration.
const PROVIDER: &str = "cofferdam";

/// How it ended.
#[derive(Debug)]
enum PlannerEnd {
    /// As asked, with the plan or the patch.
    Done(Box<NewArtifact>),
    /// With a code and words, and the answers that led there.
    Failed(String, Vec<NewArtifact>),
}

/// Why a flight broke off.
enum Fault {
    /// The daemon did not answer: another one may.
    Daemon(DaemonError),
    /// The task ends with this outcome, and no further daemon is started.
    End(PlannerEnd),
    /// Another execution of the task goes on: this one does nothing more.
    Lost,
}

impl From<DaemonError> for Fault {
    fn from(error: DaemonError) -> Self {
        match error {
            DaemonError::Version { .. } => ended("oc_version", &error.to_string()),
            DaemonError::Children(_) => ended("oc_child_session", &error.to_string()),
            other => Self::Daemon(other),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        ended("oc_ledger", &error.to_string())
    }
}

fn ended(code: &str, why: &str) -> Fault {
    Fault::End(PlannerEnd::Failed(format!("{code}: {why}"), Vec::new()))
}

/// The driver of one sandbox.
#[derive(Debug)]
pub(crate) struct OpencodeDriver {
    ledger: Ledger,
    task: TaskContext,
    work: OpencodeWork,
    sandbox: SandboxId,
    agent: Agent,
    prompts: Arc<Prompts>,
    model: Model,
    password: String,
    head: Mutex<Vec<u8>>,
    listens: watch::Sender<bool>,
    /// The project before the first daemon started, and what of it is compared.
    before: Option<(Tree, IgnoreRules)>,
    end: Mutex<Option<PlannerEnd>>,
    last_fault: Mutex<Option<String>>,
}

/// One prompt of a stage.
struct PromptRequest<'a> {
    session: &'a SessionId,
    step: StepId,
    n: u32,
    mode: Mode,
    text: &'a str,
    schema: Option<&'a Value>,
    /// Whether an answer on record is enough: else the daemon has to come to it again, for what it does and is told on
    /// the way.
    is_enough: &'a (dyn Fn(&PlannerPromptEnd) -> bool + Sync),
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock only means that somebody panicked beside it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_RAW)).unwrap_or_default().replace('\0', " ")
}

impl OpencodeDriver {
    /// Before the daemon starts: what the project is, so that everything after it is the agent's.
    pub(crate) async fn begin(ledger: &Ledger, job: DriverJob<'_>) -> Self {
        let DriverJob { task, work, sandbox, prompts } = job;
        let agent = sandbox.agent().clone();
        let model = Model { provider: PROVIDER.to_owned(), model: work.model.to_string() };
        let driver = Self {
            ledger: ledger.clone(),
            task: task.clone(),
            work: work.clone(),
            sandbox: sandbox.id().clone(),
            agent,
            prompts: Arc::clone(prompts),
            model,
            password: random::secret_hex(24),
            head: Mutex::default(),
            listens: watch::Sender::new(false),
            before: None,
            end: Mutex::default(),
            last_fault: Mutex::default(),
        };
        let rules = driver.agent.files().ignore_rules(PROJECT).await;
        let before = match driver.agent.files().snapshot(PROJECT, &rules).await {
            Ok(tree) => Some((tree, rules)),
            Err(error) => {
                let why = format!("oc_project: {error}");
                *held(&driver.end) = Some(PlannerEnd::Failed(why, Vec::new()));
                None
            }
        };
        if let (true, Err(error)) = (before.is_some(), driver.give_shell().await) {
            let why = format!("oc_start: the shell of its tools: {error}");
            *held(&driver.end) = Some(PlannerEnd::Failed(why, Vec::new()));
        }
        Self { before, ..driver }
    }

    /// Puts the shell of the daemon's tools where the daemon looks for it.
    async fn give_shell(&self) -> Result<(), AgentError> {
        self.agent.files().mkdir(STATE, 0o755, None).await?;
        self.agent.files().put(&tool_shell(STATE), 0o755, TOOL_SHELL.into()).await
    }

    async fn fly(&self) -> Result<PlannerEnd, Fault> {
        let mut listens = self.listens.subscribe();
        let heard = tokio::time::timeout(START, listens.wait_for(|listens| *listens)).await;
        if !heard.is_ok_and(|heard| heard.is_ok()) {
            return Err(ended("oc_start", "the daemon did not say that it listens"));
        }
        let client = client_of(&self.agent, &self.password, self.work.request.timeout_ms)?;
        client.check_version().await?;
        match &self.work.role {
            AgentRole::Plan { tests } => {
                let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
                Box::pin(self.plan(&client, &names)).await
            }
            AgentRole::Build { plan, session, tests } => {
                let names: Vec<&str> = tests.iter().map(String::as_str).collect();
                Box::pin(self.build(&client, plan, session, &names)).await
            }
        }
    }

    async fn session(&self, client: &Client, of: &str) -> Result<SessionId, Fault> {
        let session = SessionId::derive(of).map_err(Error::from)?;
        client.create(&session, Mode::Plan, PROJECT).await?;
        Ok(session)
    }

    /// The step of this attempt's prompts.
    fn step(&self) -> Result<StepId, Fault> {
        let step = format!("{}.{}", self.task.step_id, self.task.attempt);
        StepId::parse(&step).map_err(|error| ended("oc_step", &error.to_string()))
    }

    async fn plan(&self, client: &Client, tests: &[&str]) -> Result<PlannerEnd, Fault> {
        let session = session_of(&self.task.run, self.task.attempt);
        let session = self.session(client, &session).await?;
        let schema = AgentPlan::schema(tests);
        // Behind an answer that is no plan, the same conversation goes on.
        let is_enough = |ended: &PlannerPromptEnd| {
            ended.structured.as_ref().is_some_and(|answer| AgentPlan::read(answer, tests).is_ok())
        };
        let mut history: Vec<PlannerPromptEnd> = Vec::new();
        for n in 1.. {
            let text = match next_plan(&self.work.goal, tests, &history) {
                NextPrompt::Ask(text) => text,
                NextPrompt::Planned(plan) => {
                    let bytes = canonical::canonical(&plan).map_err(Error::from)?;
                    let name = PLAN_NAME.to_owned();
                    let kind = ArtifactKind::File;
                    return Ok(PlannerEnd::Done(Box::new(NewArtifact::plain(kind, name, bytes))));
                }
                NextPrompt::Built => return Err(ended("oc_failed", "planning came to a build")),
                NextPrompt::Fail(code, why) => return Ok(failed(code, &why, &history)),
            };
            if n > 1 {
                fail_point("planner.again");
            }
            let asked = PromptRequest {
                session: &session,
                step: self.step()?,
                n,
                mode: Mode::Plan,
                text: &text,
                schema: Some(&schema),
                is_enough: &is_enough,
            };
            history.push(Box::pin(self.turn(client, asked)).await?);
        }
        Err(ended("oc_failed", "prompts without end"))
    }

    async fn build(
        &self,
        client: &Client,
        plan: &AgentPlan,
        session: &str,
        tests: &[&str],
    ) -> Result<PlannerEnd, Fault> {
        let session = self.session(client, session).await?;
        self.remember(client, &session, tests).await?;
        let mut history: Vec<PlannerPromptEnd> = Vec::new();
        for n in 1.. {
            let text = match next_build(&self.work.goal, plan, &history) {
                NextPrompt::Ask(text) => text,
                NextPrompt::Built => return self.patch(plan).await,
                NextPrompt::Planned(_) => {
                    return Err(ended("oc_failed", "building came to a plan"));
                }
                NextPrompt::Fail(code, why) => return Ok(failed(code, &why, &history)),
            };
            if let (true, Some((tree, rules))) = (n > 1, &self.before) {
                let back = roll_back(&self.agent, rules, tree).await;
                back.map_err(|error| ended("oc_rollback", &error.to_string()))?;
            }
            let asked = PromptRequest {
                session: &session,
                step: self.step()?,
                n,
                mode: Mode::Build,
                text: &text,
                schema: None,
                is_enough: &|_| false,
            };
            history.push(Box::pin(self.turn(client, asked)).await?);
        }
        Err(ended("oc_failed", "prompts without end"))
    }

    /// The daemon comes to the plan again, from what is on record: its conversation is that of the plan.
    async fn remember(
        &self,
        client: &Client,
        session: &SessionId,
        tests: &[&str],
    ) -> Result<(), Fault> {
        let schema = AgentPlan::schema(tests);
        let planner = || self.ledger.planner();
        let known = patiently(|| planner().prompts_answered(session.as_str(), "plan")).await?;
        for (step, n, text) in known {
            let asked = PromptRequest {
                session,
                step,
                n,
                mode: Mode::Plan,
                text: &text,
                schema: Some(&schema),
                is_enough: &|_| false,
            };
            Box::pin(self.turn(client, asked)).await?;
        }
        Ok(())
    }

    /// What the build changed, if all of it is in the plan.
    async fn patch(&self, plan: &AgentPlan) -> Result<PlannerEnd, Fault> {
        let Some((before, rules)) = &self.before else {
            return Err(ended("oc_project", "the project was not looked at"));
        };
        let refused = |why: &str| ended("oc_patch", why);
        let after = self.agent.files().snapshot(PROJECT, rules).await;
        let after = after.map_err(|error| refused(&error.to_string()))?;
        let patch =
            TreeChange::between(before, &after).map_err(|error| refused(&error.to_string()))?;
        if patch.entries.is_empty() {
            return Err(refused("the build changed nothing"));
        }
        if let Some((path, why)) = patch.refused() {
            return Err(refused(&format!("no patch may hold {path:?} ({})", why.as_str())));
        }
        if let Some(one) = patch.entries.iter().find(|one| !plan.covers(one)) {
            let what = match (&one.pre, &one.post) {
                (None, _) => "made",
                (_, None) => "removed",
                _ => "changed",
            };
            let why = format!("{:?} was {what}, which is not in the approved plan", one.path);
            return Err(refused(&why));
        }
        let bytes = canonical::canonical(&patch).map_err(Error::from)?;
        let name = PATCH_NAME.to_owned();
        Ok(PlannerEnd::Done(Box::new(NewArtifact::plain(ArtifactKind::Patch, name, bytes))))
    }

    /// One prompt: its row, its turn, its end.
    async fn turn(
        &self,
        client: &Client,
        asked: PromptRequest<'_>,
    ) -> Result<PlannerPromptEnd, Fault> {
        let PromptRequest { session, step, n, mode, text, schema, is_enough } = asked;
        let ids = Ids::derive(session, step.as_str(), n).map_err(Error::from)?;
        let schema_hash = schema.map(digest).transpose().map_err(Error::from)?;
        let new = PromptClaim {
            op_key: &ids.op_key,
            run: &self.task.run,
            step: &step,
            attempt: n,
            session: session.as_str(),
            agent: if mode == Mode::Plan { "plan" } else { "build" },
            prompt: text,
            schema_hash: schema_hash.as_ref(),
            request: json!({"message": ids.message(), "part": ids.part()}),
            sandbox: &self.sandbox,
        };
        let planner = || self.ledger.planner();
        let before = match patiently(|| planner().prompt_take(&new)).await? {
            PromptClaimOutcome::Open => None,
            PromptClaimOutcome::Ended(ended) => Some(ended),
            PromptClaimOutcome::Lost => return Err(Fault::Lost),
            PromptClaimOutcome::Other => {
                return Err(ended("oc_key", "the key of the prompt stands for another one"));
            }
        };
        fail_point("planner.taken");
        if let Some(ended) = &before
            && (ended.outcome != PromptOutcome::Answered || is_enough(ended))
        {
            return Ok(ended.clone());
        }
        self.prompts.begin(&ids.op_key, before.is_some());
        let clock = Stopwatch::start();
        let prompt = Prompt { ids: &ids, agent: mode, model: &self.model, text, schema };
        let least_ms = if before.is_some() { LEAST_REPLAY_MS } else { 0 };
        let silent_ms = self.work.patience_ms.max(least_ms);
        let patience = Patience { silent_ms, same_call: SAME_CALL };
        let turned = Box::pin(drive_turn(client, &prompt, &self.prompts, patience)).await;
        self.prompts.end();
        let turned = turned?;
        client.check_children(session).await?;
        client.check_alone(session).await?;
        if let Some(known) = before {
            return match is_again(&turned, &known) {
                true => Ok(known),
                false => Err(ended("oc_replay", "the daemon did not come to its recorded answer")),
            };
        }
        fail_point(if mode == Mode::Plan { "planner.planned" } else { "planner.built" });
        let (done, used) = as_row(turned);
        let used = PromptUse { tools: &used.0, tokens: used.1, wall_ms: clock.elapsed_ms() };
        match patiently(|| planner().prompt_close(&ids.op_key, &self.sandbox, &done, used)).await? {
            true => Ok(done),
            false => Err(Fault::Lost),
        }
    }
}

impl PlannerDriver for OpencodeDriver {
    /// Its password is nowhere but in the daemon's own environment, which its tools do not inherit.
    fn command(&self, task: &Command) -> Command {
        let base_url = model_base_url();
        let settings = Settings {
            base_url: &base_url,
            api_key: "placeholder",
            model: &self.model,
            state: STATE,
            username: USER,
            password: &self.password,
        };
        let mut env: BTreeMap<String, String> = task.env.clone();
        env.extend(environment(&settings));
        Command { env, ..task.clone() }
    }

    fn push(&self, chunk: &[u8]) {
        let mut head = held(&self.head);
        if head.len() < MAX_HEAD && !*self.listens.borrow() {
            let begun = head.len().saturating_sub(LISTENING.len());
            head.extend_from_slice(chunk);
            let new = head.get(begun..).unwrap_or_default();
            if new.windows(LISTENING.len()).any(|at| at == LISTENING) {
                self.listens.send_replace(true);
            }
        }
    }

    fn is_over(&self) -> bool {
        held(&self.end).is_some()
    }

    fn drive(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.is_over() {
                return;
            }
            let end = match Box::pin(self.fly()).await {
                Ok(end) | Err(Fault::End(end)) => end,
                Err(Fault::Daemon(error)) => {
                    tracing::warn!(%error, task = %self.task.key, "OpenCode's daemon broke off");
                    *held(&self.last_fault) = Some(error.to_string());
                    return;
                }
                Err(Fault::Lost) => return std::future::pending().await,
            };
            *held(&self.end) = Some(end);
        })
    }

    fn reset(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.prompts.end();
            held(&self.head).clear();
            self.listens.send_replace(false);
            let wiped = match removed(&self.agent, STATE).await {
                Ok(()) => self.give_shell().await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let back = match &self.before {
                Some((tree, rules)) => {
                    roll_back(&self.agent, rules, tree).await.map_err(|error| error.to_string())
                }
                None => Ok(()),
            };
            if let Err(why) = wiped.and(back) {
                let why = format!("oc_rollback: {why}");
                *held(&self.end) = Some(PlannerEnd::Failed(why, Vec::new()));
            }
        })
    }

    fn judge(&self, result: &mut SandboxResult) -> Vec<NewArtifact> {
        match held(&self.end).take() {
            Some(PlannerEnd::Done(left)) => {
                (result.exit, result.err_code, result.cause) = (0, ErrCode::None, None);
                vec![*left]
            }
            Some(PlannerEnd::Failed(why, left)) => {
                (result.err_code, result.cause) = (ErrCode::CmdNonzero, Some(why));
                left
            }
            None => {
                let fault = held(&self.last_fault).clone();
                let cause = [fault, result.cause.take()].into_iter().flatten();
                let words: Vec<String> = cause.collect();
                result.cause = Some(format!("oc_daemon: {}", words.join("; ")));
                if result.err_code == ErrCode::None {
                    result.err_code = ErrCode::CmdNonzero;
                }
                Vec::new()
            }
        }
    }
}

/// Whether a turn that was driven again ended as its record says.
fn is_again(turned: &TurnEnd, known: &PlannerPromptEnd) -> bool {
    match turned {
        TurnEnd::Answered(_) => true,
        TurnEnd::Failed(error) => error.name == NOT_STRUCTURED && known.structured.is_none(),
        TurnEnd::Stalled(_) => false,
    }
}

/// Why an answer cannot be kept as it is: then it counts as one that does not fit.
fn unkept(answer: &Value) -> Option<String> {
    if let Some(why) = unstorable(answer) {
        return Some(format!("the answer holds what no row can, such as U+0000: {why}"));
    }
    let bytes = answer.to_string().len();
    let why = || format!("the answer has {bytes} bytes; the limit is {MAX_STRUCTURED}");
    (bytes > MAX_STRUCTURED).then(why)
}

type TurnUsage = (Vec<String>, Option<(u64, u64)>);

fn as_row(turned: TurnEnd) -> (PlannerPromptEnd, TurnUsage) {
    let none = |outcome, error| PlannerPromptEnd { outcome, structured: None, raw: None, error };
    match turned {
        TurnEnd::Answered(answer) => {
            let raw = Some(cut(&answer.text));
            let error = answer.structured.as_ref().and_then(unkept);
            let structured = answer.structured.filter(|_| error.is_none());
            let row = PlannerPromptEnd { outcome: PromptOutcome::Answered, structured, raw, error };
            let tools = answer.tools.iter().take(MAX_TOOLS).map(|tool| cut(tool)).collect();
            (row, (tools, Some(answer.tokens)))
        }
        TurnEnd::Failed(error) => {
            let outcome = match error.name.as_str() {
                NOT_STRUCTURED => PromptOutcome::Answered,
                _ => PromptOutcome::Failed,
            };
            let words = cut(&format!("{}: {}", error.name, error.message));
            (none(outcome, Some(words)), (Vec::new(), None))
        }
        TurnEnd::Stalled(why) => {
            (none(PromptOutcome::Stalled, Some(cut(&why))), (Vec::new(), None))
        }
    }
}

/// The failure of a stage, with each answer as it came.
fn failed(code: &str, why: &str, history: &[PlannerPromptEnd]) -> PlannerEnd {
    let raw = |(n, ended): (usize, &PlannerPromptEnd)| {
        let bytes = serde_json::to_vec(ended).unwrap_or_default();
        let name = format!("answer-{}.json", n + 1);
        NewArtifact::plain(ArtifactKind::JsonDiagnostic, name, bytes)
    };
    PlannerEnd::Failed(format!("{code}: {why}"), history.iter().enumerate().map(raw).collect())
}
