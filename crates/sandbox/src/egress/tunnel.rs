//! TLS, carried and not opened, but for names that get a secret and for mirrors: who it asks for is read from its first
//! message.

use std::time::Duration;

use cofferdam_contracts::sandbox::ViolationReason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

use super::context::{Client, Context, FIRST_WORD_MS};
use super::dial::DialError;
use super::hello::{self, Hello, MAX_HELLO_BYTES};
use super::policy::{EgressRefusal, Name, Rule, Wire};
use super::ports::TLS_PORT;

/// Of each direction: enough for hundreds of MB/s at little memory.
const BUFFER_BYTES: usize = 64 * 1024;

/// A connection whose TLS is to be ended here.
pub(crate) struct PendingTermination<C> {
    pub client: C,
    /// What was read of it: its hello.
    pub said: Vec<u8>,
    pub name: Name,
    pub port: u16,
    pub rule: Rule,
}

/// A connection of a client that asked the name server.
pub(crate) async fn transparent<C: Client>(
    mut client: C,
    context: Context,
) -> Option<PendingTermination<C>> {
    let mut said = Vec::new();
    let asked = match first(&mut client, &mut said).await {
        Ok(asked) => asked,
        Err(Some(why)) => {
            context.refuse(&EgressRefusal::nameless(why, Some(TLS_PORT)));
            return None;
        }
        Err(None) => return None,
    };
    let (name, rule) = match context.admit(&asked, TLS_PORT, Wire::Tls) {
        Ok(admitted) => admitted,
        Err(refused) => {
            context.refuse(&refused);
            return None;
        }
    };
    if rule.ends_tls(TLS_PORT) {
        return Some(PendingTermination { client, said, name, port: TLS_PORT, rule });
    }
    match context.dialer.tunnel(&name, TLS_PORT, &rule).await {
        Ok(server) => {
            context.within(&name, carry(client, server, &said)).await;
        }
        Err(error) => note(&context, &name, TLS_PORT, &error),
    }
    None
}

/// A tunnel that a client asked for by name, after it was told that it stands. `said` is what it
/// sent meanwhile.
pub(crate) async fn asked_for(
    mut client: impl Client,
    server: TcpStream,
    mut said: Vec<u8>,
    name: &Name,
    port: u16,
    context: &Context,
) {
    match first(&mut client, &mut said).await {
        Ok(asked) if Name::parse(&asked).is_some_and(|asked| asked == *name) => {
            context.within(name, carry(client, server, &said)).await;
        }
        Ok(asked) => {
            context.refuse(&EgressRefusal::name(ViolationReason::Sni, &asked, Some(port)));
        }
        Err(Some(why)) => {
            context.refuse(&EgressRefusal::name(why, name.as_str(), Some(port)));
        }
        Err(None) => {}
    }
}

/// A tunnel to a name whose TLS is ended here.
pub(crate) async fn ended_here<C: Client>(
    mut client: C,
    mut said: Vec<u8>,
    name: &Name,
    port: u16,
    context: &Context,
) -> Option<PendingTermination<C>> {
    match first(&mut client, &mut said).await {
        Ok(asked) if Name::parse(&asked).is_some_and(|asked| asked == *name) => {
            let rules = context.rules();
            let (name, rule) = rules.find(name.as_str())?;
            return Some(PendingTermination {
                client,
                said,
                name: name.clone(),
                port,
                rule: rule.clone(),
            });
        }
        Ok(asked) => {
            context.refuse(&EgressRefusal::name(ViolationReason::Sni, &asked, Some(port)));
        }
        Err(Some(why)) => {
            context.refuse(&EgressRefusal::name(why, name.as_str(), Some(port)));
        }
        Err(None) => {}
    }
    None
}

/// The name that the first message asks for; `Err(None)` where the client said nothing.
async fn first(
    client: &mut impl Client,
    said: &mut Vec<u8>,
) -> Result<String, Option<ViolationReason>> {
    let limit = Duration::from_millis(FIRST_WORD_MS);
    let read = tokio::time::timeout(limit, hear(client, said)).await;
    match read.unwrap_or(Hello::Partial) {
        Hello::Whole { hidden: true, .. } => Err(Some(ViolationReason::Ech)),
        Hello::Whole { name: Some(name), .. } => Ok(name),
        Hello::Whole { name: None, .. } => Err(Some(ViolationReason::NoSni)),
        Hello::Partial if said.is_empty() => Err(None),
        Hello::Partial | Hello::NotTls => Err(Some(ViolationReason::NotTls)),
    }
}

async fn hear(client: &mut impl Client, said: &mut Vec<u8>) -> Hello {
    loop {
        match hello::look(said) {
            Hello::Partial if said.len() < MAX_HELLO_BYTES => {}
            done => return done,
        }
        match client.read_buf(said).await {
            Ok(0) | Err(_) => return Hello::Partial,
            Ok(_) => {}
        }
    }
}

async fn carry(mut client: impl Client, mut server: TcpStream, said: &[u8]) {
    if server.write_all(said).await.is_ok() {
        // How it ends is the two ends' own business.
        let _ = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER_BYTES, BUFFER_BYTES)
            .await;
    }
}

/// A connection that could not be made: a refusal where the name led astray, otherwise only told.
pub(crate) fn note(context: &Context, name: &Name, port: u16, error: &DialError) {
    if let DialError::Forbidden(address) = error {
        let mut refused = EgressRefusal::name(ViolationReason::Address, name.as_str(), Some(port));
        refused.address = Some(*address);
        context.refuse(&refused);
    }
    tracing::info!(%name, port, %error, "the egress proxy could not connect");
}
