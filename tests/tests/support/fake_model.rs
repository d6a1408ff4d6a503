//! A fake provider of models on loopback, in the three wire formats. It does what a word in the call's body says,
//! and remembers every call: its own list is the judge of what was sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_tests::Server;
use serde_json::{Value, json};

use super::until;

/// One call as it arrived.
#[derive(Debug, Clone)]
pub struct Heard {
    /// Path with the request line's method.
    pub line: String,
    /// Headers in lower case.
    pub head: String,
    /// Body.
    pub body: Value,
}

/// The fake.
#[derive(Debug, Clone)]
pub struct FakeModel {
    /// Where it listens.
    pub address: SocketAddr,
    heard: Arc<Mutex<Vec<Heard>>>,
    released: Arc<AtomicBool>,
}

impl FakeModel {
    /// Listens until the test's process ends.
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Self {
            address: listener.local_addr().unwrap(),
            heard: Arc::default(),
            released: Arc::default(),
        };
        let own = fake.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(stream));
            }
        });
        fake
    }

    /// Every call so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    /// Lets calls that say `hold` end, now and later.
    pub fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let (head, body) = read(&mut stream)?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (line, rest) = head.split_once("\r\n")?;
        let heard =
            Heard { line: line.to_owned(), head: rest.to_ascii_lowercase(), body: body.clone() };
        self.heard.lock().unwrap().push(heard);
        if body.to_string().contains("do:echo") {
            let error = json!({"choices": [], "said": rest, "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
            return whole(&mut stream, "200 OK", "", &error).ok();
        }
        self.answer(&mut stream, line, &body).ok()
    }

    fn answer(&self, stream: &mut TcpStream, line: &str, body: &Value) -> std::io::Result<()> {
        let asked = body.to_string();
        let says = |word: &str| asked.contains(&format!("do:{word}"));
        let usage = if says("lies") { u64::MAX } else { 10 };
        if says("429") {
            let error = json!({"error": {"message": "slow down", "type": "rate_limit_error"}});
            return whole(stream, "429 Too Many Requests", "retry-after: 7\r\n", &error);
        }
        if says("500") {
            return whole(stream, "500 Internal Server Error", "", &json!({"error": "broken"}));
        }
        if says("error-inside") {
            return whole(stream, "200 OK", "", &json!({"error": {"message": "no capacity"}}));
        }
        if says("huge") {
            stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n",
            )?;
            for _ in 0..1_600 {
                stream.write_all(&[b' '; 65_536])?;
            }
            return Ok(());
        }
        if line.contains("/messages/count_tokens") {
            return whole(stream, "200 OK", "", &json!({"input_tokens": 2_095}));
        }
        let events = if line.contains("/messages") {
            messages(usage, says("writes"))
        } else if line.contains("/responses") {
            responses(usage)
        } else {
            chat(usage)
        };
        if body["stream"] == json!(true) {
            return self.stream(stream, &events, &says);
        }
        if says("slow") {
            std::thread::sleep(Duration::from_secs(30));
        }
        let answer = events.last().unwrap().1.clone();
        if says("cut") {
            let text = answer.to_string();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
                text.len(),
                &text[..20]
            )?;
            return Ok(());
        }
        whole(stream, "200 OK", "", &answer)
    }

    fn stream(
        &self,
        stream: &mut TcpStream,
        events: &[(&str, Value)],
        says: &dyn Fn(&str) -> bool,
    ) -> std::io::Result<()> {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
        )?;
        for (index, (name, event)) in events.iter().enumerate() {
            if index == events.len() - 1 {
                // The whole answer, which streams do not have.
                break;
            }
            if !name.is_empty() {
                writeln!(stream, "event: {name}")?;
            }
            write!(stream, "data: {event}\n\n")?;
            stream.flush()?;
            if index == 0 && says("cut") {
                return Ok(());
            }
            while index == 0 && says("hold") && !self.released.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
                // Who is gone is not waited for.
                stream.write_all(b": still here\n\n")?;
            }
        }
        if events[0].0.is_empty() {
            stream.write_all(b"data: [DONE]\n\n")?;
        }
        Ok(())
    }
}

fn read(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 65_536]);
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length:").map(str::to_owned)
                })
                .and_then(|text| text.trim().parse::<usize>().ok())
                .unwrap_or(0);
            let mut body = bytes.split_off(at + 4);
            while body.len() < length {
                let count = stream.read(&mut chunk).ok().filter(|count| *count > 0)?;
                body.extend_from_slice(&chunk[..count]);
            }
            return Some((head, body));
        }
        let count = stream.read(&mut chunk).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&chunk[..count]);
    }
}

fn whole(stream: &mut TcpStream, status: &str, more: &str, body: &Value) -> std::io::Result<()> {
    let text = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}content-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )
}

/// Events by name; the last is the whole answer.
fn chat(input: u64) -> Vec<(&'static str, Value)> {
    let usage = json!({"prompt_tokens": input, "completion_tokens": 5, "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 2}});
    let chunk = |choices: Value, usage: Value| {
        json!({"id": "c", "object": "chat.completion.chunk",
        "created": 1, "model": "m", "choices": choices, "usage": usage})
    };
    let delta = json!([{"index": 0, "delta": {"role": "assistant", "content": "hello"}, "finish_reason": null}]);
    let message = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices":
        [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}], "usage": usage});
    vec![("", chunk(delta, Value::Null)), ("", chunk(json!([]), usage)), ("", message)]
}

fn responses(input: u64) -> Vec<(&'static str, Value)> {
    let usage = json!({"input_tokens": input, "output_tokens": 5, "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 0}});
    let text = json!({"type": "output_text", "text": "hello", "annotations": []});
    let output = json!([{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}]);
    let response = json!({"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "output": output, "usage": usage, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []});
    let delta = json!({"type": "response.output_text.delta", "delta": "hello", "item_id": "m", "output_index": 0,
        "content_index": 0, "sequence_number": 1, "logprobs": []});
    let done =
        json!({"type": "response.completed", "sequence_number": 2, "response": response.clone()});
    vec![("response.output_text.delta", delta), ("response.completed", done), ("", response)]
}

fn messages(input: u64, writes: bool) -> Vec<(&'static str, Value)> {
    // Its input counts what was read from the cache apart.
    let mut usage = json!({"input_tokens": input.saturating_sub(2), "cache_read_input_tokens": 2, "output_tokens": 5});
    if writes {
        usage["cache_creation_input_tokens"] = json!(1_000);
        usage["cache_creation"] =
            json!({"ephemeral_5m_input_tokens": 600, "ephemeral_1h_input_tokens": 400});
    }
    let message = |content: Value, usage: &Value| {
        json!({"id": "m", "type": "message", "role": "assistant",
        "model": "m", "content": content, "stop_reason": "end_turn", "stop_sequence": null, "usage": usage})
    };
    let text = json!([{"type": "text", "text": "hello"}]);
    vec![
        ("message_start", json!({"type": "message_start", "message": message(json!([]), &usage)})),
        (
            "content_block_start",
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ),
        (
            "content_block_delta",
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}}),
        ),
        ("content_block_stop", json!({"type": "content_block_stop", "index": 0})),
        (
            "message_delta",
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}),
        ),
        ("message_stop", json!({"type": "message_stop"})),
        ("", message(text, &usage)),
    ]
}

/// A task that calls a model, uses up its budget, and is granted one more call.
pub async fn make_calls(up: &Server) {
    let fake = FakeModel::new();
    let body = json!({"name": "fake", "url": format!("http://{}/v1", fake.address),
        "protocols": ["openai-chat"], "models": [{"model": "m"}]});
    let (status, made) = up.post("/api/models", &body).await;
    assert_eq!(status, 201, "{made}");
    let yaml = "id: calls\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n      models: {providers: [fake], budget: {calls: 1, tokens: 100000, ask: true}}\n      exec: {timeout: 60s, run: 'for i in 1 2; do curl -sf -d \"{\\\"model\\\":\\\"m\\\"}\" $OPENAI_BASE_URL/chat/completions; done'}\n";
    let header = up.run_recipe(yaml, json!({}), json!({})).await;
    let run = header["runId"].as_str().unwrap();
    let gate = format!("/api/runs/{run}/gates/models-1");
    until("it asks", Duration::from_secs(30), async || up.get(&gate).await.0 == 200).await;
    let reply = json!({"payload": {"choice": "yes", "grant": {"calls": 1}}, "dedupeKey": "k"});
    let (status, body) = up.post(&format!("{gate}/reply"), &reply).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(up.wait_terminal(run).await["status"], "succeeded");
}
