//! A command that goes on while the stream to its agent is cut, and how it is met again.
//!
//! ```text
//! job --output--> heard      stream lost -> prolong -> attach -> the same job, from the next byte on
//!  '--end--> over                             '- gone, killed or too long silent -> lost
//! ```

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_guest::job::JobRequest;
use cofferdam_guest::wire::{ExecEnd, ExecRequest};

use super::api::{RemoteError, Result};
use super::start::begun;
use super::stream::RemoteHandle;
use crate::agent::{Agent, AgentError, Stream};
use crate::class::isolation::TakeOutput;

/// A provider that does not answer for so long while a command runs is lost. What merely cuts streams, as
/// proxies do after a while, lets the next one through at once.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

impl RemoteHandle {
    /// Runs a command that goes on without this worker, and follows it to its end.
    pub(super) async fn followed(
        &self,
        agent: &Agent,
        name: String,
        exec: ExecRequest,
        output: &mut TakeOutput<'_>,
    ) -> std::result::Result<ExecEnd, AgentError> {
        let mut wanted = JobRequest { name, exec, stdout: 0, stderr: 0 };
        loop {
            let (mut out, mut err) = (wanted.stdout, wanted.stderr);
            let followed = agent.job(&wanted, |stream, bytes| {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                match stream {
                    Stream::Stdout => out += length,
                    Stream::Stderr => err += length,
                }
                output(stream, bytes);
            });
            let ended = followed.await;
            (wanted.stdout, wanted.stderr) = (out, err);
            match ended {
                Err(error) if error.is_lost() => {
                    let met = tokio::time::timeout(PATIENCE, self.met_again(agent)).await;
                    if !matches!(met, Ok(true)) {
                        return Err(error);
                    }
                    tracing::info!(id = self.held.id, "a remote agent was met again");
                }
                other => return other,
            }
        }
    }

    /// Whether there is another stream to the same agent.
    async fn met_again(&self, agent: &Agent) -> bool {
        while !self.is_cut() {
            match self.meet_again(agent).await {
                Ok(is_met) => return is_met,
                Err(RemoteError::Gone) => return false,
                Err(error) => tracing::debug!(%error, "a remote agent was not met again yet"),
            }
            clock::sleep(PAUSE).await;
        }
        false
    }

    async fn meet_again(&self, agent: &Agent) -> Result<bool> {
        if !self.held.api.prolong(&self.held.id).await? {
            return Err(RemoteError::Gone);
        }
        let (events, pid) = begun(self.held.envd.attach()).await?;
        let (carried, stream) = self.carried(pid, events)?;
        match agent.rejoin(stream).await {
            Ok(driver) => {
                self.is_carried_by(carried, driver);
                Ok(true)
            }
            // There is a sandbox, and nothing of ours in it.
            Err(_) => Err(RemoteError::Forged { what: "an agent that does not answer" }),
        }
    }
}
