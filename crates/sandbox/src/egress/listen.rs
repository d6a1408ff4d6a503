//! Sockets inside the sandbox's network namespace, held by this process.
//!
//! A socket stays in the namespace that it was made in, whichever thread uses it. So one short-lived
//! thread enters, binds, hands the sockets over and ends: no thread of the worker's ever moves.

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

use super::dns;
use super::ports::{ADDRESS, DNS_PORT, Door, HTTP_PORT, MODEL_PORT, PROXY_PORT, TLS_PORT};
use super::proxy_listener::ProxyEvent;
use crate::host::process::Netns;

/// Bound, in the sandbox's namespace.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub proxy: tokio::net::TcpListener,
    pub tls: tokio::net::TcpListener,
    pub http: tokio::net::TcpListener,
    pub dns_tcp: tokio::net::TcpListener,
    pub model: tokio::net::TcpListener,
    pub dns: tokio::net::UdpSocket,
}

impl Sockets {
    /// What comes next, at any of them.
    pub(crate) async fn next(&mut self) -> io::Result<ProxyEvent> {
        let mut packet = [0; dns::MAX_QUESTION_BYTES];
        let (door, accepted) = tokio::select! {
            biased;
            got = self.dns.recv_from(&mut packet) => {
                let (length, from) = got?;
                let asked = packet.get(..length).unwrap_or_default().to_vec();
                return Ok(ProxyEvent::Question { asked, from });
            }
            got = self.proxy.accept() => (Door::Proxy, got),
            got = self.tls.accept() => (Door::Tls, got),
            got = self.http.accept() => (Door::Http, got),
            got = self.dns_tcp.accept() => (Door::Dns, got),
            got = self.model.accept() => (Door::Model, got),
        };
        let (stream, _) = accepted?;
        // Small messages go at once; a socket that refuses the option works all the same.
        let _ = stream.set_nodelay(true);
        Ok(ProxyEvent::Socket(door, stream))
    }
}

struct ListenSockets {
    tcp: [TcpListener; 5],
    dns: UdpSocket,
}

/// Binds them all, or none.
pub(crate) async fn listen(netns: Netns) -> io::Result<Sockets> {
    let (send, bound) = oneshot::channel();
    thread::Builder::new().name("egress-listen".into()).spawn(move || {
        // Nobody waits any more: the sockets close as they are dropped.
        let _ = send.send(bind(&netns));
    })?;
    let ListenSockets { tcp: [proxy, tls, http, dns_tcp, model], dns } =
        bound.await.map_err(io::Error::other)??;
    Ok(Sockets {
        proxy: tokio::net::TcpListener::from_std(proxy)?,
        tls: tokio::net::TcpListener::from_std(tls)?,
        http: tokio::net::TcpListener::from_std(http)?,
        dns_tcp: tokio::net::TcpListener::from_std(dns_tcp)?,
        model: tokio::net::TcpListener::from_std(model)?,
        dns: tokio::net::UdpSocket::from_std(dns)?,
    })
}

/// Moves the calling thread, which must end afterwards.
fn bind(netns: &Netns) -> io::Result<ListenSockets> {
    move_into_link_name_space(netns.held().as_fd(), Some(LinkNameSpaceType::Network))?;
    let tcp = |port| {
        let listener = TcpListener::bind((ADDRESS, port))?;
        listener.set_nonblocking(true)?;
        io::Result::Ok(listener)
    };
    let dns = UdpSocket::bind((ADDRESS, DNS_PORT))?;
    dns.set_nonblocking(true)?;
    let tcp = [tcp(PROXY_PORT)?, tcp(TLS_PORT)?, tcp(HTTP_PORT)?, tcp(DNS_PORT)?, tcp(MODEL_PORT)?];
    Ok(ListenSockets { tcp, dns })
}
