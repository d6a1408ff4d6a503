//! An error as the Connect protocol knows it.

use axum::body::Body;
use axum::http::Response;
use cofferdam_ambient::own;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::answer;

/// An error of the Connect protocol: of calls of envd, and of what it tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Fault {
    /// A code of the protocol, such as `not_found`.
    pub code: &'static str,
    pub message: String,
}

impl Fault {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: own::hidden(&message.into()).into_owned() }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }

    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self::new("not_found", message)
    }

    fn status(&self) -> u16 {
        match self.code {
            "invalid_argument" | "failed_precondition" | "out_of_range" => 400,
            "unauthenticated" => 401,
            "permission_denied" => 403,
            "not_found" => 404,
            "already_exists" | "aborted" => 409,
            "resource_exhausted" => 429,
            "unimplemented" => 501,
            "unavailable" => 503,
            "deadline_exceeded" => 504,
            _ => 500,
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!(self)
    }

    pub(crate) fn response(&self) -> Response<Body> {
        answer::json(self.status(), &self.json())
    }
}

pub(crate) type ReplyResult = Result<Value, Fault>;
