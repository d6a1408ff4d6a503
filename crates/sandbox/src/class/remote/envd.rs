//! The daemon of one sandbox: it takes our agent as a file and runs it as a process.

use std::time::Duration;

use cofferdam_ambient::random;
use cofferdam_guest::job::ATTACH;
use cofferdam_guest::wire::SUBREAPER;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use url::Url;

use super::api::{CreateResponse, RemoteError, Result, client, encoded, good, sent};
use super::frames::{base64, enveloped};
use crate::host::guest::AGENT;
use crate::spec::provider::Provider;

/// Where a sandbox's daemon listens.
const PORT: u16 = 49_983;
/// Our agent, 2 MB, over a slow line.
const UPLOAD: Duration = Duration::from_secs(60);
/// One piece of input. What takes longer is a line that is dead.
const INPUT: Duration = Duration::from_secs(30);
/// The daemon is asked to say something this often (seconds), as its own clients do; unasked it does every 90.
/// Twice that without a byte is a dead line.
const KEEPALIVE_S: &str = "50";
const SILENCE: Duration = Duration::from_secs(180);
/// Our agent there. Not where it is in the other classes: a provider that is a Cofferdam has its own there.
const PLACE: &str = "/.cofferdam/lodger";
/// The file arrives without the right to be run, and the task's directory is not in every template.
const LAUNCH: &str = "mkdir -p -- \"$1\" && chmod 0500 \"$0\" && exec \"$0\" \"$2\"";

/// A client of envd, the provider's daemon in one sandbox.
#[derive(Debug, Clone)]
pub(super) struct Envd {
    http: Client,
    url: Url,
}

impl Envd {
    pub(super) fn of(provider: &Provider, made: &CreateResponse) -> Result<Self> {
        let url = provider.daemon(&made.id, made.domain.as_deref(), PORT)?;
        let what = "a sandbox's token";
        let header = |text: &str, is_secret: bool| {
            let mut value =
                HeaderValue::from_str(text).map_err(|_| RemoteError::Forged { what })?;
            value.set_sensitive(is_secret);
            Ok::<_, RemoteError>(value)
        };
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("e2b-sandbox-id"), header(&made.id, false)?);
        headers.insert(HeaderName::from_static("e2b-sandbox-port"), PORT.into());
        // As root: the agent opens ports below 1024, and gives each command its user.
        let user = format!("Basic {}", base64(b"root:"));
        headers.insert(AUTHORIZATION, header(&user, false)?);
        if let Some(token) = &made.envd_access_token {
            headers.insert(HeaderName::from_static("x-access-token"), header(token, true)?);
        }
        let http = client(headers).read_timeout(SILENCE).build();
        Ok(Self { http: http.map_err(|source| RemoteError::Lost { what, source })?, url })
    }

    /// Writes the agent.
    pub(super) async fn upload(&self) -> Result<()> {
        let what = "uploading the agent";
        let boundary = random::secret_hex(16);
        let mut body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"agent\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
        .into_bytes();
        body.extend_from_slice(AGENT);
        body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let path = format!("files?path={}&username=root", encoded(PLACE));
        let request = self.request(&path, what)?.timeout(UPLOAD).body(body);
        let kind = format!("multipart/form-data; boundary={boundary}");
        good(request.header(CONTENT_TYPE, kind), what).await.map(|_| ())
    }

    /// Starts it, in a sandbox that has this directory then. The answer is the stream of what it says.
    pub(super) async fn launch(&self, workdir: &str) -> Result<Response> {
        self.start("/bin/sh", &["-c", LAUNCH, PLACE, workdir, SUBREAPER]).await
    }

    /// Starts what carries another stream to the agent that runs there.
    pub(super) async fn attach(&self) -> Result<Response> {
        self.start(PLACE, &[ATTACH]).await
    }

    async fn start(&self, cmd: &str, args: &[&str]) -> Result<Response> {
        let what = "starting the agent";
        let process = json!({"cmd": cmd, "args": args, "envs": {}, "cwd": "/"});
        let wanted = enveloped(&json!({"process": process, "stdin": true}));
        let request = self.request("process.Process/Start", what)?;
        let request = request
            .header(CONTENT_TYPE, "application/connect+json")
            .header("connect-protocol-version", "1")
            .header("keepalive-ping-interval", KEEPALIVE_S)
            .body(wanted);
        sent(request, what).await
    }

    /// Gives it input; the next piece must wait until this one is taken, or their order would be lost.
    pub(super) async fn input(&self, pid: u32, bytes: &[u8]) -> Result<()> {
        let input = json!({"process": {"pid": pid}, "input": {"stdin": base64(bytes)}});
        self.call("process.Process/SendInput", &input, "giving the agent input").await
    }

    /// The end of input.
    pub(super) async fn close(&self, pid: u32) -> Result<()> {
        let wanted = json!({"process": {"pid": pid}});
        self.call("process.Process/CloseStdin", &wanted, "ending a stream").await
    }

    async fn call(&self, path: &str, message: &Value, what: &'static str) -> Result<()> {
        let request = self.request(path, what)?.timeout(INPUT);
        let request = request.header("connect-protocol-version", "1").json(message);
        good(request, what).await.map(|_| ())
    }

    fn request(&self, path: &str, what: &'static str) -> Result<RequestBuilder> {
        let url = self.url.join(path).map_err(|_| RemoteError::Forged { what })?;
        Ok(self.http.post(url))
    }
}
