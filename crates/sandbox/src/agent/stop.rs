//! A command that is ended from outside, while its sandbox stays: for what it did and left is still to be read.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_guest::wire::{ExecEnd, ExecRequest};
use tokio::sync::Notify;

use crate::agent::{Agent, AgentError, CommandInput, ExecOptions, OutputSink};

/// How long a command that was killed may take to be gone and to say so: the agent's own bounds for a process
/// that does not die and for pipes that do not drain, and a little.
const GONE: Duration = Duration::from_secs(20);
const SIGKILL: i32 = 9;

/// Ends a command, once; its last word comes as ever.
#[derive(Debug, Clone, Default)]
pub struct CommandStopper(Arc<Notify>);

impl CommandStopper {
    /// Ends the command that runs with this, or the next one.
    pub fn end(&self) {
        self.0.notify_one();
    }
}

/// Follows a command to its end, which `end` may bring about, and gives it its input. `None`: it was to end and did not.
pub(crate) async fn follow(
    agent: &Agent,
    request: ExecRequest,
    end: &CommandStopper,
    mut input: Option<CommandInput>,
    heard: impl OutputSink,
) -> Result<Option<ExecEnd>, AgentError> {
    let options = input.as_mut().map_or_else(ExecOptions::default, CommandInput::options);
    let running = agent.start(request, options).await?;
    let remote = running.remote();
    let mut followed = pin!(running.follow_into(heard));
    // Kept to the end of this: dropped, it would end the command's input before the command.
    let mut given = pin!(async {
        if let Some(input) = input {
            input.give(&remote).await;
        }
        std::future::pending::<Infallible>().await
    });
    tokio::select! {
        biased;
        ended = &mut followed => return ended.map(Some),
        () = end.0.notified() => {}
        never = &mut given => match never {},
    }
    tokio::select! {
        biased;
        ended = &mut followed => ended.map(Some),
        () = killed(&remote) => Ok(None),
    }
}

/// Returns only where the command outlives its kill. That it has ended already is no fault.
async fn killed(remote: &crate::agent::CommandControl) {
    let _ = tokio::time::timeout(GONE, remote.signal(SIGKILL)).await;
    clock::sleep(GONE).await;
}
