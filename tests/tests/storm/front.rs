//! The API as its clients see it in a storm: they ask again until they are answered.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cofferdam_tests::Server;
use serde_json::Value;

/// A request that takes longer is asked again.
const PATIENCE: Duration = Duration::from_secs(15);
/// A client that is not answered for so long gives up, and the test with it.
const STUBBORN: Duration = Duration::from_secs(300);

pub struct Front {
    url: Mutex<String>,
    key: String,
    http: reqwest::Client,
    statuses: Mutex<BTreeMap<u16, u64>>,
    wrong: Mutex<Vec<String>>,
}

impl Front {
    pub fn to(shim: &Server) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self {
            url: Mutex::new(shim.url.clone()),
            key: shim.key.clone(),
            http,
            statuses: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    /// It was started again, at another port.
    pub fn moved(&self, shim: &Server) {
        self.url.lock().unwrap().clone_from(&shim.url);
    }

    /// One try; nothing where nobody answered.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let url = format!("{}{path}", self.url.lock().unwrap());
        let mut request = self.http.request(method, url).bearer_auth(&self.key);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        let value = serde_json::from_slice(&answer.bytes().await.ok()?).unwrap_or(Value::Null);
        *self.statuses.lock().unwrap().entry(status).or_default() += 1;
        if status >= 500 && status != 503 {
            self.wrong.lock().unwrap().push(format!("{path}: {status} {value}"));
        }
        Some((status, value))
    }

    /// Asks until there is an answer that is not the storm's.
    pub async fn insist(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let begun = Instant::now();
        loop {
            match self.ask(method, path, body).await {
                Some((status, value)) if status < 500 => return (status, value),
                other => assert!(begun.elapsed() < STUBBORN, "{method} {path}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.insist("POST", path, Some(body)).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.insist("GET", path, None).await
    }

    /// How often each status was answered, and every answer that no storm excuses.
    pub fn answers(&self) -> (BTreeMap<u16, u64>, Vec<String>) {
        (self.statuses.lock().unwrap().clone(), self.wrong.lock().unwrap().clone())
    }
}
