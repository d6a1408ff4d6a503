//! What gVisor tells of the connects in a sandbox: a trace of this one system call.
//!
//! ```text
//! runsc run --pod-init-config FILE -> connects to our socket, both say their version
//!                                     hands it to the task's kernel
//! a task's connect ends -> one message, before the task goes on -> taken by whoever looks, or as it comes
//!
//! message: its header's size, kind, how many were lost; then a `Connect` of gVisor's syscall.proto
//! ```
//! It is the kernel that tells, not the agent and not the task. Where the kernel itself was taken over it says
//! what it likes: a message is parsed within its bytes, gives an address or nothing, and what is kept is
//! bounded. The kernel never waits for us: what finds our socket full is lost, and the next message says how
//! much was, whatever it was.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with,
};
use serde_json::json;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::egress::no_route::{AttemptReporter, NoRouteAttempts, NoRouteConnect, ReadStatus};
use crate::host::task::Driver;
use crate::host::traces::Traces;

const POINT: &str = "syscall/connect/exit";
/// A `Handshake` with the one version that there is.
const HELLO: [u8; 2] = [0x08, 0x01];
/// The kind of a message that is a `Connect`.
const CONNECT: u16 = 10;
/// Where the header says how many were lost.
const LOST_AT: std::ops::Range<usize> = 4..8;
/// The longest has an address of 128 bytes.
const MESSAGE_BYTES: usize = 1024;
/// Taken at a time: four times what a socket's buffer holds.
const MOST: usize = 1024;
/// Fields of a `Connect`: how the call ended, and the address as the task gave it.
const EXIT: u64 = 2;
const ADDRESS: u64 = 6;
/// The field of how it ended that has the error's number.
const ERROR: u64 = 2;

/// The configuration that runsc is started with.
pub(crate) fn config(traces: &Traces) -> PathBuf {
    traces.dir.join("connects.json")
}

/// The connects of one sandbox that no route led anywhere.
#[derive(Debug, Default)]
pub(crate) struct Connects {
    stream: OnceLock<AsyncFd<OwnedFd>>,
    /// How many the kernel said at last.
    lost: AtomicU32,
}

impl AttemptReporter for Connects {
    fn take(&self, give: &mut dyn FnMut(NoRouteConnect)) -> ReadStatus {
        let Some(stream) = self.stream.get() else { return ReadStatus::Nothing };
        let mut buffer = [0; MESSAGE_BYTES];
        for _ in 0..MOST {
            match recv(stream, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((count @ 1.., _)) => {
                    let message = buffer.get(..count).unwrap_or_default();
                    let lost = lost(message);
                    let before = self.lost.fetch_max(lost, Ordering::AcqRel);
                    if lost > before {
                        give(NoRouteConnect::Lost(lost.saturating_sub(before)));
                    }
                    if let Some((address, port)) = attempt(message) {
                        give(NoRouteConnect::To(address, port));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return ReadStatus::Nothing,
                Ok(_) | Err(_) => return ReadStatus::Ended,
            }
        }
        ReadStatus::More
    }
}

/// Listens for the kernel of a sandbox that is about to start. What was told is heard for as long as the
/// second is not dropped.
pub(crate) fn hear(traces: &Traces) -> io::Result<(Arc<NoRouteAttempts>, Driver)> {
    let endpoint = traces.dir.join("connects");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new(&endpoint)?)?;
    listen(&listener, 1)?;
    fs::write(config(traces), session(&endpoint))?;
    let listener = readable(listener)?;
    let connects = Arc::new(Connects::default());
    let attempts = Arc::new(NoRouteAttempts::by_reporter(Arc::<Connects>::clone(&connects)));
    let heard = Arc::clone(&attempts);
    let hearing = tokio::spawn(async move {
        if let Err(error) = follow(listener, &connects, &heard).await {
            tracing::warn!(%error, "a sandbox's connects are not heard");
        }
    });
    Ok((attempts, Driver(hearing)))
}

/// A descriptor that tells when it can be read.
#[expect(
    deprecated,
    reason = "its successor is unsafe; what is handed over here owns its descriptor"
)]
fn readable(owned: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(owned, Interest::READABLE)
}

fn session(endpoint: &Path) -> String {
    let sink = json!({"name": "remote", "config": {"endpoint": endpoint}});
    let session = json!({"name": "Default", "points": [{"name": POINT}], "sinks": [sink]});
    json!({"trace_session": session}).to_string()
}

/// Meets the kernel, then takes what comes while nobody looks, before the socket is full.
async fn follow(
    listener: AsyncFd<OwnedFd>,
    connects: &Connects,
    attempts: &NoRouteAttempts,
) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream =
        listener.async_io(Interest::READABLE, |listener| Ok(accept_with(listener, flags)?));
    let stream = readable(stream.await?)?;
    // There is one kernel.
    drop(listener);
    let mut hello = [0; MESSAGE_BYTES];
    let heard = stream.async_io(Interest::READABLE, |stream| {
        Ok(recv(stream, &mut hello[..], RecvFlags::DONTWAIT)?.0)
    });
    let count = heard.await?;
    if hello.get(..count) != Some(&HELLO) {
        return Err(io::Error::other("runsc says another version of its trace"));
    }
    send(&stream, &HELLO, SendFlags::NOSIGNAL)?;
    let stream = connects.stream.get_or_init(|| stream);
    loop {
        let mut ready = stream.readable().await?;
        match attempts.drain() {
            ReadStatus::Nothing => ready.clear_ready(),
            ReadStatus::More => tokio::task::yield_now().await,
            ReadStatus::Ended => return Ok(()),
        }
    }
}

/// How many messages before this one found no room.
fn lost(message: &[u8]) -> u32 {
    message
        .get(LOST_AT)
        .and_then(|lost| lost.first_chunk())
        .map_or(0, |lost| u32::from_le_bytes(*lost))
}

/// Where a connect leads that ended because no route does.
fn attempt(message: &[u8]) -> Option<(IpAddr, Option<u16>)> {
    let (size, rest) = message.split_first_chunk()?;
    let kind = rest.first_chunk()?;
    if u16::from_le_bytes(*kind) != CONNECT {
        return None;
    }
    let body = message.get(usize::from(u16::from_le_bytes(*size))..)?;
    let (mut error, mut address) = (None, None);
    for field in Fields(body) {
        match field {
            (EXIT, FieldValue::Bytes(exit)) => {
                error = Fields(exit).find_map(|field| match field {
                    (ERROR, FieldValue::Number(number)) => i32::try_from(number).ok(),
                    _ => None,
                });
            }
            (ADDRESS, FieldValue::Bytes(bytes)) => address = Some(bytes),
            _ => {}
        }
    }
    matches!(error, Some(libc::ENETUNREACH | libc::EHOSTUNREACH)).then_some(())?;
    let (family, rest) = address?.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let address = match i32::from(u16::from_le_bytes(*family)) {
        libc::AF_INET => IpAddr::from(Ipv4Addr::from(*rest.first_chunk::<4>()?)),
        // Behind the label of the flow.
        libc::AF_INET6 => {
            IpAddr::from(Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?)).to_canonical()
        }
        _ => return None,
    };
    Some((address, Some(u16::from_be_bytes(*port)).filter(|port| *port != 0)))
}

enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message in the wire format of Protocol Buffers, up to the first that is none.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, FieldValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => FieldValue::Number(self.number()?),
            1 => FieldValue::Bytes(self.bytes(8)?),
            2 => {
                let length = self.number()?;
                FieldValue::Bytes(self.bytes(usize::try_from(length).ok()?)?)
            }
            5 => FieldValue::Bytes(self.bytes(4)?),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Seven bits in each byte, the lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = *self.bytes(1)?.first_chunk()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// As runsc of 2022 says them.
    const HEAD: &str = "0800 0a00 00000000";
    const FOUR: &str = "1202 1071 182a 2003 3210 0200 01bb c0000201 0000000000000000";
    const SIX: &str =
        "1202 1065 182a 2003 321c 0a00 0000 00000000 20010db8000000000000000000000001 00000000";

    #[test]
    fn a_connect_without_a_route_gives_its_address_and_port() {
        let of = |body: &str| attempt(&bytes(&format!("{HEAD}{body}")));
        assert_eq!(of(FOUR), Some(("192.0.2.1".parse().unwrap(), Some(443))));
        assert_eq!(of(SIX), Some(("2001:db8::1".parse().unwrap(), None)));
        // Refused by a port of its own, and one that went well.
        assert_eq!(of(&FOUR.replace("1071", "106f")), None);
        assert_eq!(of(&FOUR.replace("1202 1071", "1200")), None);
        // To a name of the file system.
        assert_eq!(of("1202 1071 3204 0100 2f61"), None);
        assert_eq!(lost(&bytes(HEAD)), 0);
        assert_eq!(lost(&bytes("0800 0a00 07010000 00")), 263);
        let other = attempt(&bytes(&format!("0800 0b00 00000000 {FOUR}")));
        assert_eq!(other, None);
    }

    #[test]
    fn whatever_is_cut_or_turned_in_a_message_is_an_address_or_nothing() {
        let whole = bytes(&format!("{HEAD}{SIX}"));
        for end in 0..whole.len() {
            let _ = attempt(&whole[..end]);
            for bit in 0..8 {
                let mut turned = whole.clone();
                turned[end] ^= 1 << bit;
                let _ = attempt(&turned);
            }
        }
        assert_eq!(attempt(&[0xff; MESSAGE_BYTES]), None);
        let endless = bytes(&format!("{HEAD} ffffffffffffffffffffff"));
        assert_eq!(attempt(&endless), None);
    }
}
