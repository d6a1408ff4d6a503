//! Layers of paused sandboxes, until they are sealed and have rested: each has one task, which alone decides what becomes of it.
//!
//! ```text
//! pause --> sealing --sealed--> file named, on record --> rests, or is ended (`rest`)
//!            ^   \--lend--> held --begun--> the next life's      \--failed--> again, later each time; in the end never
//!            \-- given back --/    (it did not begin)
//! ```
//! **A layer is lent to one life at a time, and whoever holds the last copy of the files is a process of its own** until they
//! are sealed or that life is on record.

mod begun;
mod retry;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::id::TenantId;
use cofferdam_ledger::failpoint::fail_point;
use cofferdam_ledger::kept_files::KeptTable;
use cofferdam_ledger::snapshots::{PlainEnd, SealedFile};
use cofferdam_sandbox::PlainLayer;
use tokio::sync::{mpsc, oneshot, watch};

use cofferdam_flows::patiently;

use crate::background::blocking;
use crate::layer::layers::Layers;
use crate::layer::left::LeftMemory;
use crate::layer::lend::{Ask, Lending, Lent, Tended};
use crate::layer::rest::LayerRest;
use crate::layer::sealer::{Given, Said, SealStart, Sealer};
use crate::layer::sealer_line::{Line, heard};
use crate::layer::spare::SpareSealer;
use crate::live::Live;
use crate::snapshot::again::Again;
use crate::snapshot::shelf::{KeptFile, Shelf};

/// Between two looks for whoever keeps a layer: each is a walk over all processes.
const AGAIN: Duration = Duration::from_secs(5);

/// A layer that its pause leaves, and its sealer.
#[derive(Debug)]
pub(crate) struct Plain {
    pub layer: Arc<PlainLayer>,
    /// Memory that its sandbox had, until it is given to another.
    pub memory: Arc<LeftMemory>,
    pub kept: KeptFile,
    tenant: TenantId,
    again: Arc<Again>,
    given: Given,
    sealer: Sealer,
}

/// What its task knows of a layer.
struct Tending {
    live: Live,
    shelf: Arc<Shelf>,
    layer: Arc<PlainLayer>,
    memory: Arc<LeftMemory>,
    /// With its lock: whoever removes the file waits for the layer.
    kept: KeptFile,
    tenant: TenantId,
    /// `None`: no other sealer is needed, and none of its descriptors is held.
    given: Option<Arc<Given>>,
    /// `None`: it failed, and another is due.
    line: Option<Line>,
    /// Since when, and in how long another is due.
    due: (Stopwatch, Duration),
    /// Sealers that failed.
    failed: u32,
    /// Why the last one did.
    why: String,
    asks: mpsc::UnboundedReceiver<Ask>,
    own: mpsc::UnboundedSender<Ask>,
    /// Who waits for the layer.
    lending: Option<oneshot::Sender<Lending>>,
    is_lent: bool,
    sealed: Option<SealedFile>,
    /// `None`: it is not on record as sealed.
    rest: Option<LayerRest>,
    /// Whether a life had it that did not begin: it may be other than what is sealed.
    was_lent: bool,
    /// Whoever waits for the seal.
    tells: watch::Sender<bool>,
    /// Who waits for its end, while it is lent.
    ending: Vec<oneshot::Sender<Result<(), String>>>,
}

impl Layers {
    /// Takes care of a layer whose pause is on record, or may be.
    pub(crate) fn tend(&self, shelf: Arc<Shelf>, plain: Plain) {
        let Plain { layer, memory, mut kept, tenant, again, given, sealer } = plain;
        kept.leave();
        let (own, asks) = mpsc::unbounded_channel();
        let (tells, sealed) = watch::channel(false);
        let tells_end = tells.clone();
        let id = kept.id.clone();
        let tended = Tended { again, asks: own.clone(), tenant: tenant.clone(), sealed };
        self.live.0.layers.lock().insert(id.clone(), tended);
        let line = Line::of(sealer).ok();
        let given = Some(Arc::new(given));
        let tending = Tending {
            live: self.live.clone(),
            shelf,
            layer,
            memory,
            kept,
            tenant,
            given,
            line,
            due: (Stopwatch::start(), Duration::ZERO),
            failed: 0,
            why: "it ended".to_owned(),
            asks,
            own,
            lending: None,
            is_lent: false,
            sealed: None,
            rest: None,
            was_lent: false,
            tells,
            ending: Vec::new(),
        };
        let plain = Arc::clone(&self.live.0.layers);
        tokio::spawn(async move {
            tending.run().await;
            plain.lock().remove(&id);
            plain.spare.want();
            drop(tells_end);
        });
    }
}

impl Tending {
    async fn run(mut self) {
        loop {
            if !self.is_lent
                && let Some(file) = self.sealed.take()
            {
                match self.settle(&file).await {
                    Settled::Ended => return self.close(),
                    Settled::GivesUp => return self.give_up().await,
                    Settled::Rests if self.lending.is_some() => self.lend().await,
                    Settled::Rests => {}
                }
            }
            let is_given_up = self.is_given_up();
            let left = self.due.1.saturating_sub(self.due.0.elapsed());
            let mut closed = self.live.0.layers.closed();
            let next = {
                let Self { asks, line, sealed, rest, is_lent, .. } = &mut self;
                let is_due = line.is_none() && sealed.is_none() && rest.is_none() && !is_given_up;
                tokio::select! {
                    biased;
                    ask = asks.recv() => ask.map(LayerNews::Ask),
                    said = heard(line), if line.is_some() => Some(LayerNews::Said(said)),
                    () = clock::sleep(left), if is_due => Some(LayerNews::Due),
                    () = rested(rest), if rest.is_some() && !*is_lent => Some(LayerNews::Rested),
                    _ = closed.wait_for(|closed| *closed), if is_given_up && !*is_lent => {
                        Some(LayerNews::Rested)
                    }
                }
            };
            match next {
                Some(LayerNews::Rested) => return self.give_up().await,
                Some(LayerNews::Due) => self.start_anew().await,
                Some(LayerNews::Ask(Ask::Begun)) => return self.begun().await,
                Some(LayerNews::Ask(Ask::End(reply))) if !self.is_lent => {
                    self.ending.push(reply);
                    return self.give_up().await;
                }
                Some(LayerNews::Ask(ask)) => self.asked(ask).await,
                Some(LayerNews::Said(said)) => self.told(said).await,
                None => return,
            }
        }
    }

    async fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Lend(reply) if self.is_lent || self.lending.is_some() => {
                let _ = reply.send(Lending::Busy);
            }
            // The file is to be used.
            Ask::Lend(reply) if !self.layer.has_ids() => drop(reply),
            Ask::Lend(reply) => {
                self.lending = Some(reply);
                // Without one, the next one is to hold it, at once.
                self.due.1 = Duration::ZERO;
                let may_have_it = match &mut self.line {
                    Some(line) => line.order(true).await,
                    None => self.rest.is_some() || self.is_given_up(),
                };
                if may_have_it {
                    self.lend().await;
                }
            }
            Ask::Back => {
                self.is_lent = false;
                if let Some(rest) = &mut self.rest {
                    // What did not begin may have changed it, and its files are sealed.
                    rest.cut();
                }
                if let Some(reply) = self.ending.pop() {
                    // Erased meanwhile.
                    let _ = self.own.send(Ask::End(reply));
                } else if let Some(line) = &mut self.line {
                    line.order(false).await;
                }
            }
            Ask::End(reply) => self.ending.push(reply),
            Ask::Begun => {}
        }
    }

    async fn told(&mut self, said: Option<Said>) {
        match said {
            Some(Said::Held) => self.lend().await,
            Some(Said::Sealed(file)) => self.sealed = Some(file),
            Some(Said::Failed(why)) => self.not_yet(why),
            Some(Said::Full) => self.not_yet("its file exceeds the quota or the disk".to_owned()),
            Some(Said::Measured(_)) => {}
            // After what it sealed nothing more is asked of it.
            None if self.sealed.is_some() => {
                if let Some(line) = self.line.take() {
                    line.end().await;
                }
            }
            None => self.failed().await,
        }
    }

    async fn lend(&mut self) {
        let Some(reply) = self.lending.take() else {
            // Started anew while its layer is lent; or who asked has gone.
            if let (false, Some(line)) = (self.is_lent, &mut self.line) {
                line.order(false).await;
            }
            return;
        };
        fail_point("layer.held");
        (self.is_lent, self.was_lent) = (true, true);
        // Its next life is admitted as every sandbox is.
        self.memory.give_up();
        if let Some(rest) = &mut self.rest {
            rest.lend();
        }
        let lent = Lent(Some(self.own.clone()));
        // Who is not there any more gives it back so.
        let _ = reply.send(Lending::Lent(lent, Arc::clone(&self.layer)));
    }

    /// The next life has the layer. Its pause's snapshot is erased as one that is not needed.
    async fn begun(mut self) {
        if let Some(line) = self.line.take() {
            line.end().await;
        }
        self.given = None;
        self.layer.let_go();
        // Before the lock of its file is another's: who has that says that its process has ended.
        self.record_end(PlainEnd::NextLife).await;
        self.over(&Ok(()));
    }

    /// It ends as soon as nobody keeps it, which is then on record. Whoever asks for anything meanwhile is answered at once.
    async fn give_up(mut self) {
        // Who waits for it uses the file.
        self.lending = None;
        if let Some(line) = self.line.take() {
            line.end().await;
        }
        let mut kept = None;
        loop {
            let mut looks = pin!(self.look());
            let ended = loop {
                tokio::select! {
                    biased;
                    ended = &mut looks => break ended,
                    ask = self.asks.recv() => self.answer(ask, kept.as_ref()),
                }
            };
            let Err(why) = ended else { break };
            for reply in self.ending.drain(..) {
                let _ = reply.send(Err(why.clone()));
            }
            if kept.is_none() {
                tracing::error!(snapshot = %self.kept.id, why, "the layer of a paused sandbox is still in use");
            }
            kept = Some(why);
            let mut rests = pin!(clock::sleep(AGAIN));
            loop {
                tokio::select! {
                    biased;
                    ask = self.asks.recv() => self.answer(ask, kept.as_ref()),
                    () = &mut rests => break,
                }
            }
        }
        self.record_end(PlainEnd::Ended).await;
        self.memory.give_up();
        self.close();
    }

    /// Of one that is to end, and is kept by somebody.
    fn answer(&mut self, ask: Option<Ask>, kept: Option<&String>) {
        match (ask, kept) {
            (Some(Ask::End(reply)), Some(why)) => {
                let _ = reply.send(Err(why.clone()));
            }
            (Some(Ask::End(reply)), None) => self.ending.push(reply),
            // Who asked for it uses the file.
            _ => {}
        }
    }

    async fn record_end(&self, why: PlainEnd) {
        let snapshot = &self.kept.id;
        let ledger = &self.live.0.ledger;
        if let Err(error) = patiently(|| ledger.snapshots().plain_ended(snapshot, why)).await {
            tracing::error!(%snapshot, %error, "a layer that has ended is held by the record until the next start");
        }
    }

    /// Looks whether it has ended, once no descriptor of it is left here.
    fn look(&mut self) -> impl Future<Output = Result<(), String>> + use<> {
        self.given = None;
        let layer = Arc::clone(&self.layer);
        async move {
            let ended = blocking(move || Ok(layer.end())).await;
            ended.unwrap_or_else(|error| Err(error.to_string()))
        }
    }

    /// Tells whoever waits for its end, once nothing of it is held.
    fn over(mut self, ended: &Result<(), String>) {
        let waiting = std::mem::take(&mut self.ending);
        drop(self);
        for reply in waiting {
            let _ = reply.send(ended.clone());
        }
    }

    /// It was erased before it was sealed, and is removed as what is erased; or its pause was never on record.
    async fn unrecorded(&self) {
        let ledger = &self.live.0.ledger;
        let recorded =
            patiently(|| ledger.kept_files(KeptTable::Snapshots).is_recorded(&self.kept.id)).await;
        if matches!(recorded, Ok(false)) {
            let (shelf, id) = (Arc::clone(&self.shelf), self.kept.id.clone());
            if let Err(why) = blocking(move || shelf.remove(&id)).await {
                tracing::warn!(snapshot = %self.kept.id, %why, "a file that is not on record is still there");
            }
        }
    }

    /// The file is whole: it gets its name, the layer rests or ends, and both are on record.
    async fn settle(&mut self, file: &SealedFile) -> Settled {
        let (shelf, id) = (Arc::clone(&self.shelf), self.kept.id.clone());
        fail_point("layer.written");
        let named = blocking(move || shelf.rename(&id)).await;
        if let Err(why) = named {
            // It is whole and is found all the same.
            tracing::warn!(snapshot = %self.kept.id, %why, "a snapshot's file keeps the name of a part until the next start");
        }
        if let Some(line) = self.line.take() {
            line.end().await;
        }
        self.given = None;
        // Its sandbox had more, of which the rest takes a part: on a host whose memory that was, there is none before.
        self.memory.had().await;
        self.memory.give_up();
        if let (false, Ok(sizes)) = (self.was_lent, self.layer.sizes()) {
            self.rest = Layers::of(&self.live).rest(&self.tenant, sizes.about).await;
        }
        let settled = match self.rest.is_some() {
            true => Settled::Rests,
            false => {
                let ended = self.look().await;
                fail_point("layer.ended");
                if ended.is_ok() { Settled::Ended } else { Settled::GivesUp }
            }
        };
        let ledger = &self.live.0.ledger;
        let end = (settled == Settled::Ended).then_some(PlainEnd::Ended);
        match patiently(|| ledger.snapshots().sealed(&self.kept.id, file, end)).await {
            Ok(true) => {
                if end.is_none() {
                    fail_point("layer.rests");
                    self.tells.send_replace(true);
                }
                return settled;
            }
            Ok(false) => self.unrecorded().await,
            Err(error) => {
                tracing::error!(snapshot = %self.kept.id, %error, "a sealed snapshot is on record as unsealed until the next start");
            }
        }
        Settled::GivesUp
    }

    /// It has ended, and so has whatever was asked of it.
    fn close(mut self) {
        self.asks.close();
        while let Ok(ask) = self.asks.try_recv() {
            if let Ask::End(reply) = ask {
                self.ending.push(reply);
            }
        }
        self.over(&Ok(()));
    }
}

/// What its task hears next.
enum LayerNews {
    Ask(Ask),
    Said(Option<Said>),
    /// Another sealer.
    Due,
    /// It is to end.
    Rested,
}

/// What becomes of a layer that is sealed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    Rests,
    Ended,
    /// It is to end, and has not.
    GivesUp,
}

async fn rested(rest: &mut Option<LayerRest>) {
    if let Some(rest) = rest {
        rest.over().await;
    }
}
