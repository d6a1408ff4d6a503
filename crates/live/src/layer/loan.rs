//! The loan of a layer to the next life of its sandbox, and what else the layer's task is asked.

use std::sync::Arc;

use cofferdam_sandbox::DetachedLayer;
use tokio::sync::{mpsc, oneshot};

/// Where the answer to [`Ask::Lend`] goes.
pub(crate) type LoanReply = oneshot::Sender<LoanAnswer>;
/// Where the answer to [`Ask::End`] goes: an error says which process keeps the layer.
pub(crate) type EndReply = oneshot::Sender<Result<(), String>>;

/// What the task of a layer is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A life is to begin with the layer.
    Lend(LoanReply),
    /// That life did not begin.
    Back,
    /// That life is on record as running.
    Begun,
    /// The snapshot is erased.
    End(EndReply),
}

/// The answer to a life that asks for a layer.
#[derive(Debug)]
pub(crate) enum LoanAnswer {
    /// The layer is this life's, if it begins.
    Lent(Loan, Arc<DetachedLayer>),
    /// Another life has the layer.
    Busy,
    /// This process does not lend the layer any more: the life begins with the sealed file.
    File,
}

/// A layer that a life is to begin with. A dropped loan gives the layer back.
#[derive(Debug)]
pub(crate) struct Loan(Option<mpsc::UnboundedSender<Ask>>);

impl Loan {
    /// A loan that ends with a message to the layer's task.
    pub(crate) fn of(asks: &mpsc::UnboundedSender<Ask>) -> Self {
        Self(Some(asks.clone()))
    }

    /// The life is on record as running.
    pub(crate) fn begun(mut self) {
        if let Some(asks) = self.0.take() {
            let _ = asks.send(Ask::Begun);
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(asks) = self.0.take() {
            let _ = asks.send(Ask::Back);
        }
    }
}
