//! What a follower of a command is told.

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_ambient::clock;
use cofferdam_live::inside::{CommandExit, ExecEnd};
use serde_json::{Value, json};

use crate::connect::content_type::Codec;
use crate::connect::fault::Fault;
use crate::connect::reply::{self, ping};
use crate::envd::state::process::{Event, Follower};

impl Follower {
    /// As a streamed answer: the pid first.
    pub(crate) fn told(self, headers: &HeaderMap, codec: Codec) -> Response<Body> {
        let Self { pid, mut events } = self;
        let (replies, response) = reply::stream(codec);
        let silence = ping(headers.get("keepalive-ping-interval"));
        tokio::spawn(async move {
            let mut next = json!({"event": {"start": {"pid": pid}}});
            while replies.send(&next).await {
                next = tokio::select! {
                    event = events.recv() => match event {
                        Some(Event::Data(name, bytes)) => {
                            json!({"event": {"data": {name: STANDARD.encode(&bytes)}}})
                        }
                        Some(Event::End(end)) => {
                            replies.send(&json!({"event": {"end": ended(&end)}})).await;
                            let late = Fault::new("deadline_exceeded", "the command ran longer than the timeout of the request");
                            return replies.end(end.timed_out.then_some(&late)).await;
                        }
                        Some(Event::Lost) | None => {
                            // Clients call this a sandbox's time-out, and their tests read these words.
                            let why = "the sandbox was killed or reached its end of life while the command ran";
                            return replies.end(Some(&Fault::new("unavailable", why))).await;
                        }
                    },
                    () = clock::sleep(silence) => json!({"event": {"keepalive": {}}}),
                    () = replies.closed() => return,
                };
            }
        });
        response
    }
}

/// The message of an end. Pure.
fn ended(end: &ExecEnd) -> Value {
    match &end.ended {
        CommandExit::Exit(code) => {
            let mut value =
                json!({"exitCode": code, "exited": true, "status": format!("exit status {code}")});
            if let Some(fields) = value.as_object_mut().filter(|_| *code != 0) {
                fields.insert("error".into(), format!("exit status {code}").into());
            }
            value
        }
        CommandExit::Signal(signal) => {
            let status = format!("signal: {}", signal_name(*signal));
            json!({"exitCode": -1, "exited": false, "status": status, "error": status})
        }
        CommandExit::Unstarted(why) => {
            json!({"exitCode": -1, "exited": false, "status": why, "error": why})
        }
    }
}

/// A signal as Go names it.
fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 8] = [
        (1, "hangup"),
        (2, "interrupt"),
        (3, "quit"),
        (6, "aborted"),
        (9, "killed"),
        (11, "segmentation fault"),
        (13, "broken pipe"),
        (15, "terminated"),
    ];
    let found = NAMES.into_iter().find(|(number, _)| *number == signal);
    found.map_or_else(|| format!("signal {signal}"), |(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn an_end_is_told_as_clients_read_it() {
        let good = ended(&ExecEnd::of(CommandExit::Exit(0)));
        assert_eq!(good, json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        assert_eq!(ended(&ExecEnd::of(CommandExit::Exit(3)))["error"], "exit status 3");
        let killed = ended(&ExecEnd::of(CommandExit::Signal(9)));
        assert_eq!(killed["error"], "signal: killed");
        assert_eq!(
            (killed["exitCode"].as_i64(), killed["exited"].as_bool()),
            (Some(-1), Some(false))
        );
    }
}
