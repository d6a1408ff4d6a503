//! What holds a sandbox while it lives, as far as this process sees it.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use cofferdam_contracts::sandbox::Limits;
use cofferdam_guest::wire::{ExecEnd, ExecRequest};

use crate::agent::{Agent, AgentError, Stream};
use crate::spec::provider::RemoteLocation;

/// What an operation that waits returns.
pub(crate) type RuntimeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A program that we started, a container that an engine did, or a line to a provider.
pub(crate) trait RuntimeHandle: Debug + Send + Sync {
    /// Waits for its end and says how it was; `None` if that cannot be known.
    fn wait(&mut self) -> RuntimeFuture<'_, Option<String>>;

    /// Ends a process of ours, and says whether it is gone. A container, or what is elsewhere, is the wipe's
    /// to remove.
    fn kill(&mut self) -> RuntimeFuture<'_, bool>;

    /// Whether it is a program of this host, in whose place the sandbox's first process could hold it.
    fn is_program(&self) -> bool {
        false
    }

    /// The line to a sandbox elsewhere.
    fn line(&self) -> Option<Arc<dyn RemoteLine>> {
        None
    }
}

/// Takes a piece of a command's output.
pub(crate) type TakeOutput<'a> = dyn FnMut(Stream, &[u8]) + Send + 'a;

/// The line to a sandbox that a provider holds.
pub(crate) trait RemoteLine: Debug + Send + Sync {
    /// What is enforced of these limits, as the provider says.
    fn limits(&self, asked: Limits) -> Limits;

    /// Who holds the sandbox, and its name there.
    fn place(&self) -> RemoteLocation;

    /// Whether the agent's stream has not ended.
    fn is_up(&self) -> bool;

    /// Ends the sandbox, and with it the stream.
    fn cut(&self);

    /// Runs a command that goes on without this worker, and follows it to its end. `name` is what its agent knows it by.
    fn run<'a>(
        &'a self,
        agent: &'a Agent,
        name: String,
        exec: ExecRequest,
        output: &'a mut TakeOutput<'_>,
    ) -> RuntimeFuture<'a, Result<ExecEnd, AgentError>>;
}
