//! One phase of the proxy: accepts until it is stopped, and then ends every flow before it returns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::ViolationReason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, Id, JoinSet};

use super::context::{Client, Context, FIRST_WORD_MS};
use super::dns;
use super::http::{self, Entrance};
use super::model;
use super::phase_rules::FlowAdmissions;
use super::policy::{EgressRefusal, Rules};
use super::ports::{ADDRESS, Door};
use super::proxy_listener::{ProxyEvent, ProxyListener};
use super::termination;
use super::tunnel;

/// Connections of one sandbox at once: several package managers at full tilt.
const MAX_FLOWS: usize = 256;
/// After a failed accept, so that a host without file descriptors is not also without CPU.
const ACCEPT_PAUSE_MS: u64 = 10;

/// Another policy for the phase that is served.
pub(crate) struct Change {
    pub rules: Arc<Rules>,
    /// How many flows were ended, once none of them moves a byte.
    pub done: oneshot::Sender<usize>,
}

/// What a server is told.
pub(crate) struct Orders {
    pub stop: oneshot::Receiver<()>,
    pub changes: mpsc::Receiver<Change>,
}

/// Flows of one phase, with what each was admitted to.
#[derive(Default)]
struct Flows {
    tasks: JoinSet<()>,
    admitted: HashMap<Id, (AbortHandle, FlowAdmissions)>,
}

impl Flows {
    fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    fn len(&self) -> usize {
        self.tasks.len()
    }

    fn spawn(&mut self, admitted: FlowAdmissions, flow: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(flow);
        self.admitted.insert(handle.id(), (handle, admitted));
    }

    /// The next flow that has ended.
    async fn next(&mut self) -> Option<Id> {
        let ended = match self.tasks.join_next_with_id().await? {
            Ok((id, ())) => id,
            Err(error) => error.id(),
        };
        self.admitted.remove(&ended);
        Some(ended)
    }

    /// Ends what these rules do not admit, and waits until it has ended.
    async fn keep_within(&mut self, rules: &Rules) -> usize {
        let outside = self.admitted.iter().filter(|(_, (_, admitted))| !admitted.is_within(rules));
        let mut ending: Vec<Id> = outside.map(|(id, _)| *id).collect();
        let count = ending.len();
        for id in &ending {
            if let Some((handle, _)) = self.admitted.get(id) {
                handle.abort();
            }
        }
        while !ending.is_empty() {
            let Some(ended) = self.next().await else { break };
            ending.retain(|id| *id != ended);
        }
        count
    }

    async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
        self.admitted.clear();
    }
}

/// Serves one phase. When it returns, no byte of the phase's flows moves any more.
pub(crate) async fn serve(
    mut entry: ProxyListener,
    context: Context,
    Orders { mut stop, mut changes }: Orders,
    mut doubt: Option<watch::Receiver<bool>>,
) -> ProxyListener {
    let mut flows = Flows::default();
    loop {
        let guest = tokio::select! {
            biased;
            _ = &mut stop => break,
            true = in_doubt(&mut doubt), if !flows.is_empty() => {
                flows.shutdown().await;
                continue;
            }
            Some(Change { rules, done }) = changes.recv() => {
                // First, so that no flow is admitted by what was listed before.
                context.listed.set(Arc::clone(&rules));
                let ended = flows.keep_within(&rules).await;
                let _ = done.send(ended);
                continue;
            }
            Some(_) = flows.next(), if !flows.is_empty() => continue,
            guest = entry.next() => guest,
        };
        let is_doubtful = doubt.as_ref().is_some_and(|doubt| *doubt.borrow());
        match guest {
            Ok(ProxyEvent::Question { asked, from }) => {
                if let Some(told) = told(&asked, &context) {
                    entry.tell(&told, from);
                }
            }
            Ok(_) if is_doubtful => {
                context.refuse(&EgressRefusal::nameless(ViolationReason::Lease, None));
            }
            Ok(_) if flows.len() >= MAX_FLOWS => {
                context.refuse(&EgressRefusal::nameless(ViolationReason::Flood, None));
            }
            Ok(ProxyEvent::Socket(door, stream)) => {
                let context = context.of_flow();
                flows.spawn(context.admitted.clone(), flow(door, stream, context));
            }
            Ok(ProxyEvent::Carried(arrival)) => {
                let context = context.of_flow();
                flows.spawn(context.admitted.clone(), async move {
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
        termination::serve(unended, context).await;
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
