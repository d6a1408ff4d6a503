//! The task of a layer: it waits for what is asked and for what the layer's state waits for, and does what `transitions` says.
//!
//! **One task decides about a layer.** It ends when the layer has ended, or is the next life's.

mod settlement;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::id::TenantId;
use cofferdam_flows::BoxFuture;
use cofferdam_ledger::failpoint::{fail_point, shortened};
use cofferdam_ledger::snapshots::LayerRelease;
use cofferdam_sandbox::DetachedLayer;
use tokio::sync::{mpsc, watch};

use crate::background::blocking;
use crate::layer::layer_memory::LayerMemory;
use crate::layer::layers::Layers;
use crate::layer::loan::{Ask, Loan, LoanAnswer, LoanReply};
use crate::layer::local_layers::LayerAddress;
use crate::layer::paused_layer::PausedLayer;
use crate::layer::retry::Tries;
use crate::layer::sealer::line::Line;
use crate::layer::sealer::{SealInput, SealStart, Sealer, SealerMessage};
use crate::layer::transitions::{Action, Event, LoanState, State, next};
use crate::live::Live;
use crate::snapshot::store::{SnapshotFile, SnapshotStore};

/// Between two looks for the process that keeps a layer: each is a walk over all processes.
const AGAIN: Duration = Duration::from_secs(5);

/// A layer, as its task has it.
struct LayerTask {
    live: Live,
    store: Arc<SnapshotStore>,
    layer: Arc<DetachedLayer>,
    memory: Arc<LayerMemory>,
    /// With its lock: what removes the file waits for the layer.
    kept: SnapshotFile,
    tenant: TenantId,
    /// Whether a life had the layer that did not begin: it may differ from what is sealed.
    was_lent: bool,
    /// Whether the files are on record as sealed.
    sealed: watch::Sender<bool>,
    state: State,
    loan: LoanState,
    /// What `Waiting`, `Ending` and `Kept` wait for.
    pending: Option<BoxFuture<'static, Event>>,
    asks: mpsc::UnboundedReceiver<Ask>,
    own: mpsc::UnboundedSender<Ask>,
}

impl Layers {
    /// Takes care of a layer whose pause is on record, or may be.
    pub(crate) fn keep(&self, store: Arc<SnapshotStore>, plain: PausedLayer) {
        let PausedLayer { layer, memory, mut kept, tenant, resume_spec, given, sealer } = plain;
        kept.leave();
        let (own, asks) = mpsc::unbounded_channel();
        let (sealed, is_sealed) = watch::channel(false);
        // Until this process does not hold the layer.
        let sealed_open = sealed.clone();
        let (id, layers) = (kept.id.clone(), Arc::clone(&self.live.0.layers));
        let held = LayerAddress {
            resume_spec,
            asks: own.clone(),
            tenant: tenant.clone(),
            sealed: is_sealed,
        };
        layers.put(id.clone(), held);
        let tries = Tries::of(Arc::new(given));
        let (state, pending) = match Line::of(sealer) {
            Ok(line) => (State::Sealing(line, tries), None),
            Err(_) => (State::Waiting(tries), Some(due_in(Duration::ZERO))),
        };
        let task = LayerTask {
            live: self.live.clone(),
            store,
            layer,
            memory,
            kept,
            tenant,
            was_lent: false,
            sealed,
            state,
            loan: LoanState::Free,
            pending,
            asks,
            own,
        };
        tokio::spawn(async move {
            task.run().await;
            layers.remove(&id);
            layers.spare.want();
            drop(sealed_open);
        });
    }
}

impl LayerTask {
    async fn run(mut self) {
        while !matches!(self.state, State::Over(_)) {
            let event = self.next_event().await;
            self.follow(event).await;
        }
        self.close().await;
    }

    /// Answers what was asked meanwhile, then the callers that wait for the layer's end: nothing of it is held here by then.
    async fn close(mut self) {
        self.asks.close();
        while let Ok(ask) = self.asks.try_recv() {
            let event = self.event_of(ask);
            self.follow(event).await;
        }
        let State::Over(replies) = std::mem::replace(&mut self.state, State::Settling) else {
            return;
        };
        drop(self);
        for reply in replies {
            let _ = reply.send(Ok(()));
        }
    }

    /// What happens next. What is asked comes first.
    async fn next_event(&mut self) -> Event {
        let closed = self.live.0.layers.closed();
        let is_free = matches!(self.loan, LoanState::Free);
        tokio::select! {
            biased;
            Some(ask) = self.asks.recv() => self.event_of(ask),
            event = own_event(&mut self.state, is_free, &mut self.pending, closed) => event,
        }
    }

    fn event_of(&self, ask: Ask) -> Event {
        match ask {
            Ask::Lend(reply) => Event::Lend { reply, has_ids: self.layer.has_ids() },
            Ask::Back => Event::Back,
            Ask::Begun => Event::Begun,
            Ask::End(reply) => Event::End(reply),
        }
    }

    /// Does what an event leads to, and what comes of that.
    async fn follow(&mut self, event: Event) {
        let mut event = Some(event);
        while let Some(next_event) = event.take() {
            let state = std::mem::replace(&mut self.state, State::Settling);
            let loan = std::mem::replace(&mut self.loan, LoanState::Free);
            let step = next(state, loan, next_event);
            (self.state, self.loan) = (step.state, step.loan);
            for action in step.actions {
                event = self.act(action).await;
            }
        }
    }

    /// Does one action; what comes of it, where that is an event.
    async fn act(&mut self, action: Action) -> Option<Event> {
        let snapshot = &self.kept.id;
        match action {
            Action::Hold => return self.order(true).await.then_some(Event::Held),
            Action::GoOn => {
                self.order(false).await;
            }
            Action::Lend(reply) => self.lend(reply),
            Action::Busy(reply) => drop(reply.send(LoanAnswer::Busy)),
            Action::File(reply) => drop(reply.send(LoanAnswer::File)),
            Action::NotYet(why) => {
                tracing::error!(%snapshot, why, "the files of a paused sandbox are not sealed yet");
            }
            Action::EndSealer(line) => line.end().await,
            Action::Start { given, is_held } => return Some(self.start(given, is_held).await),
            Action::Retry(pause) => {
                self.pending = Some(due_in(shortened("sealer.retry", pause)));
            }
            Action::Unsealable(why) => self.unsealable(&why).await,
            Action::Settle(file, line) => return Some(self.settle(&file, line).await),
            Action::Look => {
                let look = self.look();
                self.pending = Some(Box::pin(async move { Event::Looked(look.await) }));
            }
            Action::LookLater => self.pending = Some(due_in(AGAIN)),
            Action::InUse(why) => {
                tracing::error!(%snapshot, why, "the layer of a paused sandbox is still in use");
            }
            Action::Fail(reply, why) => drop(reply.send(Err(why))),
            Action::NextLife => {
                self.layer.let_go();
                // Before the lock of its file is another's: who has that says that its process has ended.
                self.ended(LayerRelease::NextLife).await;
            }
            Action::Ended(rest) => {
                self.ended(LayerRelease::Ended).await;
                self.memory.give_up();
                drop(rest);
            }
        }
        None
    }

    /// Whether the sealer has the order: it counts from this moment.
    async fn order(&mut self, hold: bool) -> bool {
        match &mut self.state {
            State::Sealing(line, _) => line.order(hold).await,
            _ => false,
        }
    }

    fn lend(&mut self, reply: LoanReply) {
        fail_point("layer.held");
        self.was_lent = true;
        // The next life is admitted as every life is.
        self.memory.give_up();
        if let State::Resting(rest) = &mut self.state {
            rest.lend();
        }
        // A life that does not wait any more gives the layer back by this.
        let _ = reply.send(LoanAnswer::Lent(Loan::of(&self.own), Arc::clone(&self.layer)));
    }

    async fn start(&mut self, given: Arc<SealInput>, is_held: bool) -> Event {
        let start = if is_held { SealStart::Held } else { SealStart::Soon };
        let started = blocking(move || Sealer::start(&given, start)).await;
        match started.and_then(Line::of) {
            Ok(line) => Event::Started(line),
            Err(error) => {
                let snapshot = &self.kept.id;
                tracing::error!(%snapshot, %error, "the files of a paused sandbox have no sealer");
                Event::Unstarted(error.to_string())
            }
        }
    }

    /// Gives the layer up and looks which process keeps it.
    fn look(&self) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let layer = Arc::clone(&self.layer);
        async move {
            let ended = blocking(move || Ok(layer.end())).await;
            ended.unwrap_or_else(|error| Err(error.to_string()))
        }
    }
}

fn due_in(pause: Duration) -> BoxFuture<'static, Event> {
    Box::pin(async move {
        clock::sleep(pause).await;
        Event::Due
    })
}

/// What a state waits for beside what is asked. A retention, and the stop of this process, end no layer that a life has.
async fn own_event(
    state: &mut State,
    is_free: bool,
    pending: &mut Option<BoxFuture<'static, Event>>,
    mut closed: watch::Receiver<bool>,
) -> Event {
    match state {
        State::Sealing(line, _) => sealer_event(line).await,
        State::Resting(rest) if is_free => {
            rest.over().await;
            Event::Expired
        }
        State::Unsealable if is_free => {
            let _ = closed.wait_for(|closed| *closed).await;
            Event::Expired
        }
        State::Waiting(_) | State::Ending(..) | State::Kept(..) => {
            let event = match pending {
                Some(due) => due.await,
                None => std::future::pending().await,
            };
            *pending = None;
            event
        }
        _ => std::future::pending().await,
    }
}

/// What a sealer says next.
async fn sealer_event(line: &mut Line) -> Event {
    loop {
        return match line.said().await {
            Some(SealerMessage::Held) => Event::Held,
            Some(SealerMessage::Sealed(file)) => Event::Sealed(file),
            Some(SealerMessage::Measured(_)) => continue,
            Some(SealerMessage::Full) => {
                Event::Excused("its file exceeds the quota or the disk".to_owned())
            }
            Some(SealerMessage::Failed(why)) => Event::Excused(why),
            None => Event::Silent,
        };
    }
}
