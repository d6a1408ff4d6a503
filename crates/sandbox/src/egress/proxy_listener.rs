//! The ways into the proxy: sockets in a namespace of the host's, or the agent's doors. What is behind them
//! does not know which.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::doors::{Arrival, Doors};
use super::error::EgressError;
use super::listen::{self, Sockets};
use super::ports::Door;
use crate::agent::Agent;
use crate::host::process::Netns;

/// Where a sandbox's connections can be met.
#[derive(Debug)]
pub(crate) enum ProxyLocation {
    /// In its network namespace.
    Netns(Netns),
    /// Its network stack is not the host's: at its agent.
    Agent(Agent),
}

/// The open listeners of a proxy: sockets, or doors at the agent.
#[derive(Debug)]
pub(crate) enum ProxyListener {
    Sockets(Box<Sockets>),
    Doors(Doors),
}

/// What arrives at a listener.
pub(crate) enum ProxyEvent {
    /// A datagram, answered where it came from.
    Question { asked: Vec<u8>, from: SocketAddr },
    /// A connection, already a socket.
    Socket(Door, TcpStream),
    /// A connection through the agent.
    Carried(Arrival),
}

impl ProxyLocation {
    /// Opens every way in, or none.
    pub(crate) async fn open(&self) -> Result<ProxyListener, EgressError> {
        Ok(match self {
            Self::Netns(netns) => {
                ProxyListener::Sockets(Box::new(listen::listen(netns.clone()).await?))
            }
            Self::Agent(agent) => ProxyListener::Doors(Doors::open(agent).await?),
        })
    }
}

impl ProxyListener {
    /// Whether it can serve another phase.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Sockets(_) => true,
            Self::Doors(doors) => doors.is_open(),
        }
    }

    /// Who is next. Nothing is lost where the future is dropped.
    pub(crate) async fn next(&mut self) -> io::Result<ProxyEvent> {
        match self {
            Self::Sockets(sockets) => sockets.next().await,
            Self::Doors(doors) => Ok(ProxyEvent::Carried(doors.next().await)),
        }
    }

    /// Answers a datagram.
    pub(crate) fn tell(&self, told: &[u8], to: SocketAddr) {
        if let Self::Sockets(sockets) = self {
            // A client that is gone needs no answer.
            let _ = sockets.dns.try_send_to(told, to);
        }
    }

    /// Nothing listens when it returns.
    pub(crate) async fn close(self) {
        if let Self::Doors(doors) = self {
            doors.close().await;
        }
    }
}
