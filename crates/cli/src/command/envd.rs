//! The agent of a long-lived sandbox, over the API that E2B's clients use: its files and its commands.

use anyhow::Context;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;

use super::client::{Client, segment};
use super::exit::Negative;

/// Where E2B's API has its agent in every sandbox.
const PORT: &str = "49983";

/// One sandbox, and the token of its agent.
#[derive(Debug)]
pub(crate) struct Envd<'a> {
    client: &'a Client,
    id: &'a str,
    token: String,
}

impl<'a> Envd<'a> {
    /// Asks the server for the token, which it gives to keys that may run commands.
    pub(crate) async fn of(client: &'a Client, id: &'a str) -> anyhow::Result<Self> {
        let path = format!("/sandboxes/{}", segment(id));
        let detail: Value = answered(client.keyed(Method::GET, &path)).await?.json().await?;
        let token = detail.get("envdAccessToken").and_then(Value::as_str).with_context(|| {
            format!(
                "the server gave no token of {id}: another process holds it, or the key only reads"
            )
        })?;
        Ok(Self { client, id, token: token.to_owned() })
    }

    /// A request to it.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .keyless(method, path)
            .header("e2b-sandbox-id", self.id)
            .header("e2b-sandbox-port", PORT)
            .header("x-access-token", &self.token)
    }
}

/// The answer, or why there is none in the server's words.
pub(crate) async fn answered(request: RequestBuilder) -> anyhow::Result<Response> {
    let answer = request.send().await.context("the server does not answer")?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = answer.json::<Value>().await.unwrap_or_default();
    let Some(words) = body.get("message").and_then(Value::as_str) else {
        anyhow::bail!("the server answered {status}");
    };
    match status.as_u16() {
        400 | 404 | 502 => Err(Negative(words.to_owned()).into()),
        _ => anyhow::bail!("{words} ({status})"),
    }
}
