//! Signals for commands.

use cofferdam_live::SignalCommand;
use serde::Deserialize;
use serde_json::json;

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message;
use crate::envd::call::Rpc;
use crate::envd::state::processes::{Selector, running};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signal {
    process: Selector,
    signal: String,
}

/// Sends a signal to a command.
pub(crate) async fn send(call: Rpc) -> ReplyResult {
    let Signal { process, signal } = message::parse(call.message)?;
    let signal = match signal.as_str() {
        "SIGNAL_SIGKILL" => SIGKILL,
        "SIGNAL_SIGTERM" => SIGTERM,
        other => {
            return Err(Fault::argument(format!(
                "signal {other:?} is neither SIGKILL nor SIGTERM"
            )));
        }
    };
    let process = running(&call.envd, &process)?;
    let sent = process.guest.ask(SignalCommand { number: process.known.number, signal }).await;
    sent.map(|()| json!({})).map_err(|_| Fault::missing("the process has ended"))
}
