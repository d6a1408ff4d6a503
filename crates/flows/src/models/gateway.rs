//! Who decides about the calls of one sandbox.
//!
//! One file: a call from its admission to its settlement.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contracts::canonical::{self, digest_bytes};
use cofferdam_contracts::id::{Digest, SandboxId};
use cofferdam_contracts::model::{
    BudgetAsk, BudgetMetric, CallBound, CallScope, MAX_CALLS, ModelLimit, ModelPrice,
    ModelProtocol, ModelRequest, ModelsSpec, bound, least_output, previews, refusal_body,
    with_less_output, with_output,
};
use cofferdam_ledger::models::{
    BudgetRefusal, CallCost, CallDecision, CallEnd, CallLimits, NewCall, ProviderRecord,
};
use cofferdam_ledger::planner::AnswerKey;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::{ModelCall, ModelGateway, ModelReply};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, mpsc, watch};

use super::Models;
use super::answer_budget::AnswerBudget;
use super::ask::ask_for_more;
use super::prompt_position::{PromptPosition, Prompts, reply_kept};
use super::send::{AllowedCall, CallGuard, send};
use crate::error::Result;
use crate::patience::patiently;

/// How long the end of a sandbox waits for its calls to be on record.
const CLOSE: Duration = Duration::from_secs(10);

/// The model gateway of one sandbox.
#[derive(Debug)]
pub(crate) struct CallGateway {
    models: Models,
    task: TaskContext,
    sandbox: SandboxId,
    spec: ModelsSpec,
    agent: Option<&'static str>,
    /// Turns after which the next call is refused, where a dispatch ends at them.
    max_turns: Option<u64>,
    /// Calls that are counted against it take turns.
    counting: Mutex<()>,
    /// Whether one was refused for it.
    over: watch::Sender<bool>,
    /// Calls so far.
    made: AtomicU64,
    /// Calls on their way.
    going: watch::Sender<usize>,
    /// The prompts that its calls belong to, where a driver of ours sends them.
    prompts: Option<Arc<Prompts>>,
    room: AnswerBudget,
}

/// A refusal as a client reads it.
struct CallRefusal {
    status: u16,
    code: &'static str,
    words: String,
    /// The bound of the sandbox that a person may raise.
    over: Option<Box<BudgetAsk>>,
}

impl CallRefusal {
    const fn new(code: &'static str, words: String) -> Self {
        Self { status: 403, code, words, over: None }
    }

    /// It may be another time, so that a client may try again.
    fn away() -> Self {
        let words = "the ledger does not answer; the call was not sent".to_owned();
        Self { status: 503, code: "unavailable", words, over: None }
    }
}

/// A call as far as it is known.
struct CallContext<'a> {
    op_key: Digest,
    n: u64,
    call: &'a ModelCall,
    hash: Digest,
}

/// Whom a call goes to.
struct CallRoute {
    known: ProviderRecord,
    price: ModelPrice,
    asked: ModelRequest,
    /// What it may use beside the bytes of its body; nothing where no budget bounds what it costs.
    bound: CallBound,
    /// The body with less output, where the budgets have no room for what it asks for.
    cut: Option<Bytes>,
}

impl ModelGateway for CallGateway {
    fn call(self: Arc<Self>, call: ModelCall) -> Pin<Box<dyn Future<Output = ModelReply> + Send>> {
        Box::pin(async move {
            let protocol = call.protocol;
            match self.answer(call).await {
                Ok(reply) => reply,
                Err(refused) => reply_of(protocol, &refused),
            }
        })
    }

    fn models(self: Arc<Self>) -> Pin<Box<dyn Future<Output = Vec<String>> + Send>> {
        Box::pin(async move {
            let models = self.models.ledger.models();
            let known = models.providers(&self.task.tenant, &self.spec.providers).await;
            let known = known.unwrap_or_else(|error| {
                tracing::warn!(%error, "providers of models were not read");
                Vec::new()
            });
            let offered = known.iter().flat_map(|known| &known.provider.models);
            let mut names: Vec<String> = Vec::new();
            for price in offered.filter(|price| self.spec.allows(&price.model)) {
                if !names.iter().any(|name| name == price.model.as_str()) {
                    names.push(price.model.to_string());
                }
            }
            names
        })
    }
}

fn reply_of(protocol: ModelProtocol, refused: &CallRefusal) -> ModelReply {
    let (pipe, body) = mpsc::channel(1);
    let text = refusal_body(protocol, refused.code, &refused.words).to_string();
    // It holds one, and this is the first.
    let _ = pipe.try_send(Ok(Bytes::from(text)));
    let mut headers = vec![("content-type", "application/json".to_owned())];
    if refused.status < 500 {
        headers.push(("x-should-retry", "false".to_owned()));
    }
    ModelReply { status: refused.status, headers, body }
}

impl CallGateway {
    pub(crate) fn new(
        models: &Models,
        task: &TaskContext,
        sandbox: &SandboxId,
        spec: &ModelsSpec,
        agent: Option<&'static str>,
        prompts: Option<Arc<Prompts>>,
        max_turns: Option<u64>,
    ) -> Self {
        Self {
            models: models.clone(),
            task: task.clone(),
            sandbox: sandbox.clone(),
            spec: spec.clone(),
            agent,
            max_turns,
            counting: Mutex::default(),
            over: watch::Sender::new(false),
            made: AtomicU64::new(0),
            going: watch::Sender::new(0),
            prompts,
            room: AnswerBudget::default(),
        }
    }

    /// The position of a call within a prompt, or the answer that is on record for it.
    async fn placed(
        &self,
        call: &ModelCall,
    ) -> Result<Result<Option<PromptPosition>, ModelReply>, CallRefusal> {
        let Some(prompts) = &self.prompts else { return Ok(Ok(None)) };
        let place = prompts.place(&call.body);
        let place = place.map_err(|why| CallRefusal::new("no_prompt", why.to_owned()))?;
        let turn = prompts.reading().await;
        let planner = || self.models.ledger.planner();
        for shape in place.shapes() {
            let key = AnswerKey { op_key: &place.op_key, shape: &shape };
            let kept = patiently(|| planner().answer_read(key)).await;
            let kept = kept.map_err(|error| {
                tracing::warn!(%error, prompt = %place.op_key, "answers on record were not read");
                CallRefusal::away()
            })?;
            if let Some(kept) = kept {
                return Ok(Err(reply_kept(kept, place, turn)));
            }
        }
        if place.is_replayed {
            let words = "the prompt was answered before, and this call is not on its record";
            return Err(CallRefusal::new("not_on_record", words.to_owned()));
        }
        Ok(Ok(Some(place)))
    }

    /// Ends when a call was refused because its agent has had its turns.
    pub(crate) async fn has_had_its_turns(&self) {
        let mut over = self.over.subscribe();
        if over.wait_for(|over| *over).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// A turn for one more call, held until its row is written; refused where the agent has had all.
    /// A count of tokens takes none.
    async fn turn(&self, counts: bool) -> Result<Option<MutexGuard<'_, ()>>, CallRefusal> {
        let Some(most) = self.max_turns.filter(|_| !counts) else { return Ok(None) };
        let counting = self.counting.lock().await;
        let turns = patiently(|| self.models.ledger.models().turns(&self.sandbox)).await;
        let turns = turns.map_err(|error| {
            tracing::warn!(%error, "the turns of a dispatch were not counted");
            CallRefusal::away()
        })?;
        if turns.turns < most {
            return Ok(Some(counting));
        }
        let words = format!("max_turns is {most}, and the agent has had them");
        Err(CallRefusal::new("turns_exceeded", words))
    }

    async fn asked_for_more(&self, over: &BudgetAsk) -> bool {
        let _asking = self.prompts.as_deref().map(Prompts::asking);
        ask_for_more(&self.models.ledger, &self.models.wakes, &self.task, over).await
    }

    /// Waits until no call is on its way. Its sandbox's network has ended, so that each ends at once.
    pub(crate) async fn close(&self) {
        let mut going = self.going.subscribe();
        let idle = going.wait_for(|going| *going == 0);
        if !matches!(tokio::time::timeout(CLOSE, idle).await, Ok(Ok(_))) {
            tracing::warn!(sandbox = %self.sandbox, "calls of models did not end in time");
        }
    }

    async fn answer(&self, call: ModelCall) -> Result<ModelReply, CallRefusal> {
        let going = CallGuard::new(&self.going);
        let within = match call.counts {
            // What is counted is no part of a prompt's record: a replay may count anew.
            true => None,
            false => match self.placed(&call).await? {
                Ok(within) => within,
                Err(kept) => return Ok(kept),
            },
        };
        let mut asking = self.asking(&call, digest_bytes(&call.body))?;
        let mut chosen = match self.choose(&call).await {
            Ok(chosen) => chosen,
            Err(refused) => {
                if refused.status < 500 {
                    self.refuse(&asking, None, &refused.words).await;
                }
                return Err(refused);
            }
        };
        let key = match self.models.key(&self.task.tenant, &chosen.known.provider).await {
            Ok(key) => key,
            Err(error) => {
                tracing::warn!(%error, provider = %chosen.known.provider.name, "a provider's key was not opened");
                let words = "the provider's key cannot be opened".to_owned();
                self.refuse(&asking, Some(&chosen), &words).await;
                return Err(CallRefusal::new("no_key", words));
            }
        };
        let turn = match self.turn(call.counts).await {
            Ok(turn) => turn,
            Err(refused) => {
                if refused.status < 500 {
                    self.refuse(&asking, Some(&chosen), &refused.words).await;
                    self.over.send_replace(true);
                }
                return Err(refused);
            }
        };
        self.fit(&call, &mut chosen).await;
        let left_ms = loop {
            match self.decide(&asking, Some(&chosen), None).await {
                // What was refused stays refused: after a grant, it is another call.
                Err(CallRefusal { over: Some(over), .. })
                    if self.spec.budget.ask && self.asked_for_more(&over).await =>
                {
                    asking = self.asking(&call, asking.hash)?;
                    self.fit(&call, &mut chosen).await;
                }
                decided => break decided?,
            }
        };
        drop(turn);
        let CallRoute { known, price, bound, cut, .. } = chosen;
        let body = match (cut, bound.output_member) {
            (Some(cut), _) => cut,
            // The provider ends the answer where what was set aside for it ends.
            (None, Some(member)) => Bytes::from(with_output(&call.body, member, price.max_output)),
            (None, None) => call.body.clone(),
        };
        let client = self.models.clients.get(known.private).ok_or_else(CallRefusal::away)?;
        let allowed = AllowedCall {
            op_key: asking.op_key,
            protocol: call.protocol,
            price,
            url: url_of(&known.provider.url, &call),
            counts: call.counts,
            key,
            headers: call.headers.clone(),
            body,
            left_ms,
            keep: self.spec.keep,
            within: within.map(|within| (within, self.sandbox.clone())),
        };
        let sent = send(&self.models.ledger, client, allowed, going, self.room.enter()).await;
        sent.map_err(|why| CallRefusal {
            status: 502,
            code: "provider_unreachable",
            words: format!("the provider did not answer: {why}"),
            over: None,
        })
    }

    /// Writes the row of a call that no budget refused.
    async fn refuse(&self, asking: &CallContext<'_>, chosen: Option<&CallRoute>, why: &str) {
        if !matches!(
            self.decide(asking, chosen, Some(why)).await,
            Err(CallRefusal { status: 403, .. })
        ) {
            tracing::warn!(call = %asking.op_key, "a refused call may have no row");
        }
    }

    /// A call with a key of its own.
    fn asking<'a>(
        &self,
        call: &'a ModelCall,
        hash: Digest,
    ) -> Result<CallContext<'a>, CallRefusal> {
        let n = self.made.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if n > MAX_CALLS {
            let words = format!("a sandbox makes at most {MAX_CALLS} calls");
            return Err(CallRefusal::new("too_many_calls", words));
        }
        let op_key = canonical::digest(&json!([self.sandbox.as_str(), n]))
            .map_err(|_| CallRefusal::new("internal", "the call has no key".to_owned()))?;
        Ok(CallContext { op_key, n, hash, call })
    }

    /// The provider of a call: the first of the task's that speaks its protocol and has its model.
    async fn choose(&self, call: &ModelCall) -> Result<CallRoute, CallRefusal> {
        let asked = ModelRequest::parse(call.protocol, &call.body).map_err(|error| {
            CallRefusal { status: 400, ..CallRefusal::new("malformed", error.to_string()) }
        })?;
        let model = asked.model.as_str();
        let none =
            |why: &str| CallRefusal::new("model_not_allowed", format!("the model {model:?} {why}"));
        if !self.spec.allows(&asked.model) {
            return Err(none("is not one of the task's models"));
        }
        let models = self.models.ledger.models();
        let known = models.providers(&self.task.tenant, &self.spec.providers).await;
        let known = known.map_err(|error| {
            tracing::warn!(%error, "providers of models were not read");
            CallRefusal::away()
        })?;
        let found = known.into_iter().find_map(|known| {
            let price = known.provider.price(call.protocol, model)?.clone();
            Some((known, price))
        });
        let Some((known, price)) = found else {
            return Err(none("is offered by none of the task's providers in this protocol"));
        };
        let bound = match self.limits(Some(&known)).bounds_cost() && !call.counts {
            true => {
                let headers = call.headers.iter().map(|(name, value)| (*name, value.as_str()));
                let bound = previews(headers).and_then(|()| bound(call.protocol, &call.body));
                bound.map_err(|unbounded| CallRefusal {
                    status: 400,
                    ..CallRefusal::new("unbounded_call", unbounded.to_string())
                })?
            }
            false => CallBound::default(),
        };
        Ok(CallRoute { known, price, asked, bound, cut: None })
    }

    /// Cuts the output that a call asks for to what its budgets have room for. Where they cannot be read, or have room for too
    /// little, it stays as it is, and its decision refuses it.
    async fn fit(&self, call: &ModelCall, chosen: &mut CallRoute) {
        let limits = self.limits(Some(&chosen.known));
        if call.counts || !limits.bounds_cost() {
            return;
        }
        let provider = &chosen.known.provider.name;
        let room = match self.models.ledger.models().room(&self.sandbox, provider, &limits).await {
            Ok(room) => room,
            Err(error) => {
                tracing::warn!(%error, "what budgets leave to a call was not read");
                return;
            }
        };
        let price = &chosen.price;
        let input = chosen.bound.input(u64::try_from(call.body.len()).unwrap_or(u64::MAX));
        let asked = chosen.asked.max_output.unwrap_or(price.max_output);
        let least = || least_output(&call.body);
        let choices = chosen.asked.choices;
        let Some(output) = room.output(price, input, asked, choices, least) else { return };
        if let Some(body) = with_less_output(call.protocol, &call.body, output) {
            chosen.asked.max_output = Some(output);
            chosen.cut = Some(Bytes::from(body));
        }
    }

    /// The bounds of a call by scope.
    fn limits(&self, known: Option<&ProviderRecord>) -> CallLimits {
        CallLimits {
            sandbox: self.spec.budget.limit(),
            run: self.spec.run_budget,
            day: known.map_or(ModelLimit::default(), |known| known.provider.day_budget),
            tenant: known.map_or(ModelLimit::default(), |known| known.provider.budget),
        }
    }

    /// Writes the call's row: allowed, with the time that is left to it, or refused.
    async fn decide(
        &self,
        asking: &CallContext<'_>,
        chosen: Option<&CallRoute>,
        refused: Option<&str>,
    ) -> Result<Option<u64>, CallRefusal> {
        let bytes = u64::try_from(asking.call.body.len()).unwrap_or(u64::MAX);
        let most = chosen.filter(|_| !asking.call.counts).map(|chosen| {
            let asked = &chosen.asked;
            let input = chosen.bound.input(bytes);
            let most = chosen.price.most(input, asked.max_output, asked.choices);
            CallCost { tokens: most.tokens(), micros: chosen.price.most_micros(most) }
        });
        let wanted = most.unwrap_or_default();
        let provider = chosen.map(|chosen| &chosen.known);
        let new = NewCall {
            op_key: &asking.op_key,
            sandbox: &self.sandbox,
            n: asking.n,
            agent: self.agent,
            provider: provider.map(|known| (&known.provider.name, known.version)),
            model: chosen.map(|chosen| chosen.asked.model.as_str()),
            protocol: asking.call.protocol,
            request_hash: &asking.hash,
            request_bytes: bytes,
            limits: self.limits(provider),
            tokens: wanted.tokens,
            micros: wanted.micros,
            refused,
        };
        match self.models.ledger.models().call_admit(&new).await {
            Ok(CallDecision::Allowed { left_ms }) => {
                Ok(left_ms.map(|left| u64::try_from(left).unwrap_or(0)))
            }
            Ok(CallDecision::Refused(over)) => Err(over_budget(over, wanted)),
            Ok(CallDecision::Known) => Err(CallRefusal::away()),
            Err(error) => {
                tracing::warn!(%error, "a call of a model was not decided");
                self.unsent(&asking.op_key).await;
                Err(CallRefusal::away())
            }
        }
    }

    /// A decision may be on record although its answer was lost: nothing was sent.
    async fn unsent(&self, op_key: &Digest) {
        let end = CallEnd {
            outcome: cofferdam_contracts::model::ModelOutcome::Unreachable,
            status: None,
            usage: None,
            counted: Some(CallCost::default()),
            answer: None,
            first_ms: None,
            wall_ms: 0,
            why: Some("the ledger's answer was lost; the call was not sent"),
        };
        if let Err(error) = self.models.ledger.models().call_settle(op_key, &end).await {
            tracing::warn!(%error, call = %op_key, "a call that was not sent may stand as unknown");
        }
    }
}

/// Where a call goes, below its provider's address.
fn url_of(provider: &str, call: &ModelCall) -> String {
    let count = if call.counts { ModelProtocol::COUNT } else { "" };
    format!("{}{}{count}", provider.trim_end_matches('/'), call.protocol.path())
}

/// The refusal of a call that would pass a bound; `cost` is what it may use.
fn over_budget(over: BudgetRefusal, cost: CallCost) -> CallRefusal {
    let BudgetRefusal { scope: Some(scope), metric: Some(name), limit, observed, why: None } = over
    else {
        let words = over.why.unwrap_or_else(|| "the call is refused".to_owned());
        return CallRefusal::new("refused", words);
    };
    let (limit, observed) = (limit.unwrap_or(0), observed.unwrap_or(0));
    let metric = BudgetMetric::parse(&name);
    let wanted = match metric {
        Some(BudgetMetric::Tokens) => Some(cost.tokens),
        Some(BudgetMetric::Micros) => Some(cost.micros),
        Some(BudgetMetric::Calls) | None => None,
    };
    let may_use = wanted.map_or_else(String::new, |n| format!(", and this call may use {n}"));
    let words = format!("the {scope}'s budget is used up: {name} {observed} of {limit}{may_use}");
    // Time is not granted.
    let ask = metric.map(|metric| Box::new(BudgetAsk { metric, limit, observed, wanted }));
    CallRefusal {
        over: ask.filter(|_| scope == CallScope::Sandbox.as_str()),
        ..CallRefusal::new("budget_exceeded", words)
    }
}
