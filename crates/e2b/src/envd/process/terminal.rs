//! Terminals of commands.

use cofferdam_live::ResizeTerminal;
use cofferdam_live::inside::Size;
use serde::Deserialize;
use serde_json::json;

use crate::connect::fault::{Fault, ReplyResult};
use crate::connect::message;
use crate::envd::call::Rpc;
use crate::envd::state::processes::{Selector, running};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PtySize {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pty {
    size: Option<PtySize>,
}

impl Pty {
    /// The terminal's size; 80 by 24 where it says none.
    pub(crate) fn size(&self) -> Size {
        let cell = |wanted: u32, usual: u16| match u16::try_from(wanted) {
            Ok(0) | Err(_) => usual,
            Ok(wanted) => wanted,
        };
        let size = self.size.as_ref();
        Size {
            rows: cell(size.map_or(0, |size| size.rows), 24),
            cols: cell(size.map_or(0, |size| size.cols), 80),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    process: Selector,
    pty: Option<Pty>,
}

/// Gives a command's terminal a new size.
pub(crate) async fn resize(call: Rpc) -> ReplyResult {
    let Update { process, pty } = message::parse(call.message)?;
    let process = running(&call.envd, &process)?;
    let Some(pty) = pty else { return Ok(json!({})) };
    let size = ResizeTerminal { number: process.known.number, size: pty.size() };
    let resized = process.guest.ask(size).await;
    let no_pty = |_| Fault::new("failed_precondition", "the process has no terminal");
    resized.map(|()| json!({})).map_err(no_pty)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_terminal_has_a_size() {
        let size = |value: Value| serde_json::from_value::<Pty>(value).unwrap().size();
        assert_eq!(size(json!({"size": {"cols": 100, "rows": 30}})), Size { rows: 30, cols: 100 });
        assert_eq!(size(json!({})), Size { rows: 24, cols: 80 });
        assert_eq!(size(json!({"size": {"cols": 70_000}})), Size { rows: 24, cols: 80 });
    }
}
