//! What the one table of E2B's endpoints says of each.

use std::fmt;
use std::pin::Pin;

use axum::body::Body;
use axum::http::{Method, Response};
use serde_json::Value;

use crate::call::{Call, Outcome};
use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::schema::Method as Codec;
use crate::envd::call::{FilesCall, Rpc, StreamRpc};
use crate::template::upload::UploadCall;

pub(crate) type Schema = fn() -> Value;

/// One row of the table of endpoints, whether served or refused with a reason.
pub struct Route {
    /// The control plane, or port 49983 of a sandbox.
    pub surface: Surface,
    /// `GET`, ..; `*`: every method.
    pub method: &'static str,
    /// `{name}` is one segment as it stands in the path, `{*rest}` none or more.
    pub path: &'static str,
    /// Who may call it.
    pub access: Access,
    /// What it does, in a line; empty where it is not served.
    pub summary: &'static str,
    /// Names that the query may have.
    pub query: &'static [&'static str],
    /// Schema of a JSON body; `None`: it has none, or bytes, or a message of Connect.
    pub request: Option<Schema>,
    /// Statuses of a success.
    pub success: &'static [u16],
    /// Schema of a JSON answer, likewise.
    pub response: Option<Schema>,
    pub(crate) endpoint: Endpoint,
    /// What a caller must know besides, in sentences.
    pub notes: &'static str,
}

impl Route {
    /// The method that documents have it by: what takes every method is there to be read.
    #[must_use]
    pub fn shown_method(&self) -> &'static str {
        if self.method == "*" { "GET" } else { self.method }
    }

    /// The status and the words of one that is not served.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match self.endpoint {
            Endpoint::Absent(status, why) => Some(format!("{status}: {why}")),
            _ => None,
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// The control plane.
    Control,
    /// Port 49983 of a sandbox.
    Envd,
}

/// Which key, token or link a caller of the endpoint needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Without a key or a token.
    Open,
    /// A key of any role.
    Reads,
    /// A submitter's key.
    Writes,
    /// A key of any role for `GET`, a submitter's for other methods.
    ByMethod,
    /// The secret of an upload link, in the query.
    Link,
    /// The sandbox's token.
    Token,
    /// That, or a signature in the query.
    TokenOrSignature,
}

impl Access {
    /// Whether it is a submitter's alone, called by this method.
    pub(crate) fn writes(self, method: &Method) -> bool {
        match self {
            Self::Writes => true,
            Self::ByMethod => *method != Method::GET,
            Self::Open | Self::Reads | Self::Link | Self::Token | Self::TokenOrSignature => false,
        }
    }
}

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What answers it.
pub(crate) enum Endpoint {
    /// Nothing but a status of success.
    Empty,
    /// The control plane, once key and role were checked.
    Control(fn(Call) -> Later<Outcome>),
    /// What an upload link opens.
    Upload(fn(UploadCall) -> Later<Response<Body>>),
    /// `/files` of envd, once it is known who asks.
    Files(fn(FilesCall) -> Later<Result<Response<Body>, Fault>>),
    /// What envd tells of a sandbox.
    Told(fn(Rpc) -> Later<ReplyResult>),
    /// A call with one message and one answer.
    Unary { codec: &'static Codec, handler: fn(Rpc) -> Later<ReplyResult> },
    /// A call with a stream of answers, or of messages.
    Stream { codec: &'static Codec, handler: fn(StreamRpc) -> Later<Response<Body>> },
    /// Not served: a status, and why.
    Absent(u16, &'static str),
}

impl Endpoint {
    /// The messages of a call of Connect.
    pub(crate) fn codec(&self) -> Option<&'static Codec> {
        match self {
            Self::Unary { codec, .. } | Self::Stream { codec, .. } => Some(codec),
            _ => None,
        }
    }
}
