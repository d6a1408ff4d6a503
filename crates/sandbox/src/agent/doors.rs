//! Ports of the sandbox that the agent keeps for us: see [`cofferdam_guest::door`].

use cofferdam_guest::door::Doors;
use cofferdam_guest::wire;
use hyper::Method;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::body::RequestBody;
use super::run::{QUEUED, join};
use super::{Agent, Result, encode};

/// The stream of the inner connection, on which we are the server.
#[derive(Debug)]
pub(crate) struct DoorConnection {
    pub stream: DuplexStream,
    /// Ends when the agent says that nothing listens any more, or is gone.
    pub ended: JoinHandle<()>,
}

impl Agent {
    /// Has it listen; all do when this returns. They close with the stream.
    pub(crate) async fn doors(&self, doors: &Doors) -> Result<DoorConnection> {
        self.needs(4)?;
        let (pieces, body) = mpsc::channel(QUEUED);
        let wanted = String::from_utf8_lossy(&encode(doors)?).into_owned();
        let route = format!("{}?with={}", wire::DOORS, wire::encode_path(&wanted));
        let response = self.request(Method::POST, &route, RequestBody::Stream(body)).await?;
        let (stream, ended) = join(response, pieces);
        Ok(DoorConnection { stream, ended })
    }
}
