//! Commands that outlive the stream that asked for them: see [`cofferdam_guest::job`].

use cofferdam_guest::job::JobRequest;
use cofferdam_guest::wire::{self, ExecEnd};
use hyper::Method;
use tokio::net::UnixStream;

use super::{Agent, Frames, Result, Stream, encode, follow, handshake};
use crate::host::task::Driver;

impl Agent {
    /// Follows a job from the bytes on that the request names, and starts it where its name is not known.
    pub(crate) async fn job(
        &self,
        request: &JobRequest,
        sink: impl FnMut(Stream, &[u8]) + Send,
    ) -> Result<ExecEnd> {
        self.needs(7)?;
        let response = self.send(Method::POST, wire::JOB, encode(request)?).await?;
        // Of each stream at most what the limit leaves: the agent sends nothing twice.
        let left = |known: u64| request.exec.stream_limit_bytes.saturating_sub(known);
        let (stdout, stderr) = (left(request.stdout), left(request.stderr));
        follow(&mut Frames::of(response), stdout, stderr, sink).await
    }

    /// Goes on over another stream to the same agent. Whatever still went over the one before is lost.
    pub(crate) async fn rejoin(&self, stream: UnixStream) -> Result<Driver> {
        let (requests, driver) = handshake(stream, &self.sleep).await?;
        *self.lock() = requests;
        self.health().await?;
        Ok(driver)
    }
}
