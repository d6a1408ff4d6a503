//! A caller of E2B's API by hand, as thin as one can be.

use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::declarations::{E2B, ENVD};
use crate::{Server, text};

/// A tenant with a key of E2B's form.
#[derive(Debug)]
pub struct Caller {
    /// Its connections.
    pub http: reqwest::Client,
    /// The server.
    pub url: String,
    /// Its key.
    pub key: String,
    /// The isolation class of its sandboxes; `None`: what the server chooses.
    pub class: Option<&'static str>,
}

impl Caller {
    /// With a fresh key of this tenant.
    pub async fn of(server: &Server, tenant: &str) -> Self {
        let body = json!({"tenant": tenant, "roles": ["submitter"], "format": "e2b"});
        let (_, key) = server.new_key(&body).await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { http, url: server.url.clone(), key, class: None }
    }

    /// The same with sandboxes of this class.
    #[must_use]
    pub fn in_class(self, class: &'static str) -> Self {
        Self { class: Some(class), ..self }
    }

    /// A call of the control plane: its status and answer.
    pub async fn api(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self
            .http
            .request(method.parse().unwrap(), format!("{}{path}", self.url))
            .header("x-api-key", &self.key);
        if let Some(class) = self.class {
            request = request.header("x-cofferdam-class", class);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let (status, headers, body) = sent(request).await;
        E2B.check(method, path, status, content_type(&headers), &body);
        (status, read(&body))
    }

    /// A sandbox: its id, and its agent's token.
    pub async fn create(&self, body: Value) -> (String, String) {
        let (status, made) = self.api("POST", "/v2/sandboxes", Some(body)).await;
        assert_eq!(status, 201, "{made}");
        (text(&made, "sandboxID"), text(&made, "envdAccessToken"))
    }

    /// Pauses one.
    pub async fn pause(&self, id: &str) {
        let (status, said) = self.api("POST", &format!("/sandboxes/{id}/pause"), None).await;
        assert_eq!(status, 204, "{said}");
    }

    /// Resumes one, or not.
    pub async fn resume(&self, id: &str, body: Value) -> (u16, Value) {
        self.api("POST", &format!("/sandboxes/{id}/resume"), Some(body)).await
    }

    /// Ends a sandbox.
    pub async fn kill(&self, id: &str) {
        let (status, answer) = self.api("DELETE", &format!("/sandboxes/{id}"), None).await;
        assert_eq!(status, 204, "{answer}");
    }

    /// A build of a template that waits for its steps: the template's id, and its own.
    pub async fn open_build(&self, name: &str) -> (String, String) {
        let body = json!({"name": name});
        let (status, opened) = self.api("POST", "/v3/templates", Some(body)).await;
        assert_eq!(status, 202, "{opened}");
        (text(&opened, "templateID"), text(&opened, "buildID"))
    }

    /// Sends an archive of a template under this name to the link that the server gives for it, without a key.
    pub async fn send_files(&self, template: &str, name: &str, bytes: Vec<u8>) -> (u16, Value) {
        let path = format!("/templates/{template}/files/{name}");
        let (status, link) = self.api("GET", &path, None).await;
        assert_eq!(status, 201, "{link}");
        answered(self.http.put(text(&link, "url")).body(bytes)).await
    }

    /// A request to a port of a sandbox.
    pub fn port(&self, method: &str, (id, port): (&str, u16), path: &str) -> RequestBuilder {
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.url));
        request.header("e2b-sandbox-id", id).header("e2b-sandbox-port", port.to_string())
    }

    /// Of a file, whose bytes are to be added.
    pub fn upload(&self, at: (&str, &str), path: &str) -> RequestBuilder {
        let request = self.http.post(format!("{}/files?path={path}", self.url));
        of_sandbox(request, at).header("content-type", "application/octet-stream")
    }

    /// Of a file.
    pub fn download(&self, at: (&str, &str), path: &str) -> RequestBuilder {
        of_sandbox(self.http.get(format!("{}/files?path={path}", self.url)), at)
    }

    /// A call of the agent with one message.
    pub fn envd(&self, at: (&str, &str), path: &str, body: &Value) -> RequestBuilder {
        let request = self.http.post(format!("{}{path}", self.url));
        of_sandbox(request, at).header("e2b-sandbox-port", "49983").json(body)
    }

    /// The start of a command, whose answer is a stream.
    pub fn start(&self, at: (&str, &str), message: &Value) -> RequestBuilder {
        let message = message.to_string();
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend_from_slice(message.as_bytes());
        let request = self.http.post(format!("{}/process.Process/Start", self.url));
        of_sandbox(request, at).header("content-type", "application/connect+json").body(body)
    }

    /// A command, followed to its end: all of the stream.
    pub async fn started(&self, at: (&str, &str), cmd: &str, args: &[&str]) -> String {
        let message = json!({"process": {"cmd": cmd, "args": args}, "stdin": false});
        let answer = self.start(at, &message).send().await.unwrap().bytes().await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn of_sandbox(request: RequestBuilder, (id, token): (&str, &str)) -> RequestBuilder {
    request.header("e2b-sandbox-id", id).header("x-access-token", token)
}

/// The status of an answer and its body; one that is no JSON as a text.
pub async fn answered(request: RequestBuilder) -> (u16, Value) {
    let (status, _, body) = sent(request).await;
    (status, read(&body))
}

/// An answer: its status, its headers and its body. That of a sandbox's envd, to a request of a declared type, fits its schema.
pub async fn sent(request: RequestBuilder) -> (u16, HeaderMap, Vec<u8>) {
    let (client, request) = request.build_split();
    let request = request.unwrap();
    let (method, url) = (request.method().clone(), request.url().clone());
    let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or(""));
    let is_envd = header("e2b-sandbox-id").is_some()
        && header("e2b-sandbox-port").is_none_or(|port| port == "49983");
    let is_declared =
        is_envd && ENVD.takes(method.as_str(), url.path(), content_type(request.headers()));
    let answer = client.execute(request).await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let body = Vec::from(answer.bytes().await.unwrap());
    if is_declared {
        ENVD.check(method.as_str(), url.path(), status, content_type(&headers), &body);
    }
    (status, headers, body)
}

/// The type of an answer; empty: it has none.
pub fn content_type(headers: &HeaderMap) -> &str {
    headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

fn read(body: &[u8]) -> Value {
    let shown = || Value::String(String::from_utf8_lossy(body).into_owned());
    serde_json::from_slice(body).unwrap_or_else(|_| shown())
}
