//! One endpoint: what it is for, who may call it, what it takes and answers, and how long that may take.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use cofferdam_contracts::input::MAX_INPUT_BYTES;
use cofferdam_contracts::key::Role;
use cofferdam_contracts::tree_upload::MAX_PIECE_BYTES;
use cofferdam_flows::{Error, disk_reads};
use cofferdam_ledger::LedgerError;
use serde_json::Value;

use crate::answer::AnswerResult;
use crate::call::Call;

pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = AnswerResult> + Send>>;
pub(crate) type Schema = fn() -> Value;

/// An endpoint of the API; the router and the OpenAPI document are made from it.
#[derive(Clone, Copy)]
pub struct Route {
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: &'static str,
    /// With `{name}` for parameters; `{*name}` for a tail.
    pub path: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Roles that may call it; an admin may call everything. Empty: everybody, without a key.
    pub roles: &'static [Role],
    /// Names that the query may have.
    pub query: &'static [&'static str],
    /// Schema of the body; `None` where there is none.
    pub request: Option<Schema>,
    /// Status of a success.
    pub success: u16,
    /// Schema of the answer; `None` where it is bytes or lines.
    pub response: Option<Schema>,
    pub(crate) handler: fn(Call) -> HandlerFuture,
}

/// A request waits for the database for so long, and is told that it is away then.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest that a caller may ask to wait for a change (`timeoutS`).
const ASKED_WAIT: Duration = Duration::from_secs(30);
/// What may take longer than the rest: many rows, or many bytes.
const LONG: [&str; 17] = [
    "/api/sandboxes",
    "/api/sandboxes/{live}",
    "/api/sandboxes/{live}/exec",
    "/api/sandboxes/{live}/fork",
    "/api/sandboxes/{live}/network",
    "/api/sandboxes/{live}/pause",
    "/api/sandboxes/{live}/resume",
    "/api/sandboxes/{live}/snapshots",
    "/api/proofs",
    "/api/runs/{id}/proofs",
    "/api/artifacts/{*uri}",
    "/api/runs/{id}/files",
    "/api/dispatches/import",
    "/api/dispatches/prune",
    "/api/trees/{tree}",
    "/api/trees/{tree}/manifest",
    "/api/trees/{tree}/files",
];

/// Where an equal start is the same run.
const REPLAYS: [&str; 3] = ["/api/runs", "/api/run", DELIVERY];

/// Where deliveries to hooks go.
const DELIVERY: &str = "/api/hooks/{hook}";

impl Route {
    /// Whether it answers 200 where what it would make is there already.
    pub(crate) fn replays(&self) -> bool {
        self.method == "POST" && REPLAYS.contains(&self.path)
    }

    /// Whether its list has pages, each of which leads to the one after it.
    pub(crate) fn has_pages(&self) -> bool {
        self.method == "GET" && self.query.contains(&"after")
    }

    /// Whether it answers the bytes of an artifact.
    pub(crate) fn is_bytes(&self) -> bool {
        self.path == "/api/artifacts/{*uri}"
    }

    /// How many bytes its body has at most, where that is bytes of any kind, and no JSON.
    pub(crate) fn bytes_bound(&self) -> Option<usize> {
        match self.path {
            "/api/runs/{id}/input" => Some(MAX_INPUT_BYTES),
            "/api/trees/{tree}/manifest" | "/api/trees/{tree}/files" => Some(MAX_PIECE_BYTES),
            _ => None,
        }
    }

    /// Whether it takes deliveries of other systems: JSON, whose signature is of its bytes.
    pub(crate) fn takes_delivery(&self) -> bool {
        self.method == "POST" && self.path == DELIVERY
    }

    /// Whether it answers an archive where one is asked for.
    pub(crate) fn is_archive(&self) -> bool {
        self.path == "/api/runs/{id}/files"
    }

    /// Whether a browser gets a page in place of JSON.
    pub(crate) fn has_page(&self) -> bool {
        self.method == "GET" && self.path == "/api/links/{token}"
    }

    /// How long its work may take.
    fn patience(&self) -> Option<Duration> {
        match () {
            () if LONG.contains(&self.path) => None,
            () if self.query.contains(&"timeoutS") => Some(PATIENCE + ASKED_WAIT),
            () => Some(PATIENCE),
        }
    }

    /// Its work, or the word that the database is away where it takes longer than it may: nobody should hang
    /// for as long as a connection takes to be found dead.
    pub(crate) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.patience() {
            None => work.await,
            Some(patience) => {
                let done = disk_reads::within(patience, work).await;
                done.unwrap_or_else(|| Err(LedgerError::silent().into()))
            }
        }
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}
