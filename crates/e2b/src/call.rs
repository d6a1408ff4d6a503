//! One request of the control plane.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use cofferdam_contracts::sandbox::IsolationClass;
use cofferdam_ledger::keys::Principal;
use hyper::body::Incoming;

use crate::params::Params;
use crate::services::Services;

pub(crate) type Outcome = Result<Response<Body>, Response<Body>>;

/// Header of a creation: E2B's body has no place for it, and every client sends the headers that its user gives.
pub(crate) const CLASS: &str = "x-cofferdam-class";

/// Header of a creation, under which it is made once; and how long its value may be.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
pub(crate) const MAX_IDEMPOTENCY_KEY: usize = 256;

/// One request of the control plane, whose key and role were checked.
pub(crate) struct Call {
    pub services: Arc<Services>,
    pub who: Principal,
    /// `host[:port]` below which sandboxes have names.
    pub domain: String,
    pub headers: HeaderMap,
    pub query: String,
    pub params: Params,
    pub body: Incoming,
}

impl Call {
    /// What stands in the path for this name, as it is written there.
    pub(crate) fn param(&self, name: &str) -> String {
        self.params.get(name).to_owned()
    }
}

/// A header's text, where there is some.
pub(crate) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The class of this name.
pub(crate) fn class(name: &str) -> Result<IsolationClass, String> {
    IsolationClass::parse(name).ok_or_else(|| {
        let known: Vec<&str> = IsolationClass::ALL.iter().map(|class| class.as_str()).collect();
        let name: String = name.chars().take(64).collect();
        format!("{CLASS}: {name:?} is not an isolation class; known: {}", known.join(", "))
    })
}
