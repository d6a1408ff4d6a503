//! A sandbox's ports.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::io::DuplexStream;
use tokio::sync::oneshot;

use crate::guest::STREAM_PATIENCE;
use crate::guest::error::GuestError;
use crate::guest::message::GuestMessage;
use crate::handle::LiveHandle;

/// Connects to a port of a sandbox's loopback; refused where nobody listens.
#[derive(Debug, Serialize, Deserialize)]
pub struct DialPort {
    /// TCP port on the loopback of the sandbox.
    pub port: u16,
}

/// A connection to a port.
#[derive(Debug)]
pub struct PortConnection {
    /// Bytes both ways.
    pub stream: DuplexStream,
    /// While this is there, the connection counts among its sandbox's.
    pub lease: PortLease,
}

/// What counts a connection to a port.
#[derive(Debug)]
pub struct PortLease {
    /// Its receiver learns of its end.
    _open: oneshot::Sender<()>,
}

impl GuestMessage for DialPort {
    type Reply = PortConnection;

    async fn answer(self, held: &Arc<LiveHandle>) -> Result<PortConnection, GuestError> {
        let share = held.visit(STREAM_PATIENCE).await.ok_or(GuestError::Busy)?;
        let stream = held.agent.dial(self.port).await?;
        let (open, ended) = oneshot::channel();
        tokio::spawn(async move {
            let _ = ended.await;
            drop(share);
        });
        Ok(PortConnection { stream, lease: PortLease { _open: open } })
    }
}
