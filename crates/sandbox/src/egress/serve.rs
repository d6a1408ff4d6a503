//! One phase of the proxy: accepts until it is stopped, and then ends every flow before it returns.

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::ViolationWhy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::context::{Client, Context, FIRST_WORD_MS};
use super::dns;
use super::entry::{Entry, Guest};
use super::http::{self, Entrance};
use super::inject;
use super::model;
use super::policy::Refused;
use super::ports::{ADDRESS, Door};
use super::tunnel;

/// Connections of one sandbox at once: several package managers at full tilt.
const MAX_FLOWS: usize = 256;
/// After a failed accept, so that a host without file descriptors is not also without CPU.
const ACCEPT_PAUSE_MS: u64 = 10;

/// Serves one phase. When it returns, no byte of the phase's flows moves any more.
pub(crate) async fn serve(
    mut entry: Entry,
    context: Context,
    mut stop: oneshot::Receiver<()>,
    mut doubt: Option<watch::Receiver<bool>>,
) -> Entry {
    let mut flows = JoinSet::new();
    loop {
        let guest = tokio::select! {
            biased;
            _ = &mut stop => break,
            true = in_doubt(&mut doubt), if !flows.is_empty() => {
                flows.shutdown().await;
                continue;
            }
            Some(_) = flows.join_next(), if !flows.is_empty() => continue,
            guest = entry.next() => guest,
        };
        let is_doubtful = doubt.as_ref().is_some_and(|doubt| *doubt.borrow());
        match guest {
            Ok(Guest::Question { asked, from }) => {
                if let Some(told) = told(&asked, &context) {
                    entry.tell(&told, from);
                }
            }
            Ok(_) if is_doubtful => {
                context.refuse(&Refused::nameless(ViolationWhy::Lease, None));
            }
            Ok(_) if flows.len() >= MAX_FLOWS => {
                context.refuse(&Refused::nameless(ViolationWhy::Flood, None));
            }
            Ok(Guest::Socket(door, stream)) => {
                flows.spawn(flow(door, stream, context.clone()));
            }
            Ok(Guest::Carried(arrival)) => {
                let context = context.clone();
                flows.spawn(async move {
                    let door = arrival.door;
                    if let Some(stream) = arrival.admit().await {
                        flow(door, stream, context).await;
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the egress proxy cannot accept");
                clock::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
            }
        }
    }
    flows.shutdown().await;
    entry
}

/// Resolves to true once the worker is in doubt; else it stays pending, or says false where nobody will tell.
async fn in_doubt(doubt: &mut Option<watch::Receiver<bool>>) -> bool {
    let Some(doubt) = doubt else { return std::future::pending().await };
    let told = doubt.wait_for(|is| *is).await.is_ok();
    match told {
        true => true,
        // The host is gone, and its worker with it.
        false => std::future::pending().await,
    }
}

async fn flow(door: Door, stream: impl Client, context: Context) {
    let unended = match door {
        Door::Proxy => http::serve(stream, context.clone(), Entrance::Proxy).await,
        Door::Http => http::serve(stream, context.clone(), Entrance::Transparent).await,
        Door::Tls => tunnel::transparent(stream, context.clone()).await,
        Door::Dns => return questions(stream, context).await,
        Door::Model => return model::serve(stream, context.models).await,
    };
    if let Some(unended) = unended {
        inject::serve(unended, context).await;
    }
}

fn told(asked: &[u8], context: &Context) -> Option<Vec<u8>> {
    let (told, refused) = dns::answer(asked, &context.rules(), ADDRESS);
    if let Some(refused) = refused {
        context.refuse(&refused);
    }
    told
}

/// Questions over TCP, one after the other.
async fn questions(mut stream: impl Client, context: Context) {
    let limit = Duration::from_millis(FIRST_WORD_MS);
    while let Ok(Some(asked)) = tokio::time::timeout(limit, question(&mut stream)).await {
        let Some(told) = told(&asked, &context) else { return };
        let Ok(length) = u16::try_from(told.len()) else { return };
        let framed = [&length.to_be_bytes()[..], &told].concat();
        if stream.write_all(&framed).await.is_err() {
            return;
        }
    }
}

async fn question(stream: &mut impl Client) -> Option<Vec<u8>> {
    let length = usize::from(stream.read_u16().await.ok()?);
    let mut asked = vec![0; length.min(dns::MAX_QUESTION_BYTES)];
    stream.read_exact(&mut asked).await.ok()?;
    Some(asked)
}
