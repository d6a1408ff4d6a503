//! Egress by phase: a proxy that is met inside the sandbox and dials outside.
//!
//! ```text
//!  sandbox (only lo)                     | worker
//!   CONNECT, plain HTTP  127.0.0.53:3128 |
//!   TLS by its name                 :443 | policy -> dial -> the listed name
//!   HTTP by its host                 :80 |    \-> violation
//!   names                            :53 |
//! ```
//! In the class `container` its sockets lie in the sandbox's network namespace; where the network stack is not
//! the host's, the agent keeps the same ports and is their pipe ([`doors`]).
//!
//! There is no route, so what does not come to the proxy reaches nobody: addresses, UDP, IPv6, ICMP.
//! **The sockets of a phase without names are closed, and a sandbox without any name has none. When
//! the phase changes, every flow of the one before is ended first. While the worker is in doubt whether its
//! tasks are still its own, the exec phase has no flow (decision 0018). No name outside the list is ever
//! resolved.** TLS is not opened, so a listed server that fronts for another stays a way out: list
//! names accordingly. Two kinds of names are the exception, whose TLS is ended here by an authority of this sandbox
//! alone ([`termination`]): to requests for hosts that get a secret it is added ([`inject`]); mirrors of pip and npm, which answer
//! under their own names, are fetched by the host in the sandbox's stead ([`forward`]): their credentials stay outside, and
//! nothing can be sent to them.
//!
//! One file: the door of egress, which says what leads where.

mod asks;
mod authority;
mod body_screen;
mod change;
mod context;
mod dial;
mod dns;
mod doors;
mod error;
mod forward;
#[cfg(test)]
mod fuzz;
mod hello;
mod http;
mod inject;
mod java;
mod keyring;
mod listen;
mod mirror;
mod model;
mod model_gateway;
pub(crate) mod no_route;
mod outside;
mod phase_rules;
mod policy;
mod ports;
mod proxy_listener;
mod serve;
mod termination;
mod trust;
mod tunnel;
mod upstream;
mod variables;
mod violation;

pub use asks::NameRequest;
pub use change::ActiveNetwork;
pub(crate) use error::EgressError;
pub use keyring::{SecretFuture, SecretSource, SecretVersionCount};
pub use model::model_base_url;
pub use model_gateway::{ModelCall, ModelCut, ModelGateway, ModelReply};
pub(crate) use no_route::NoRouteAttempts;
pub use outside::{OutsideError, OutsideNames};
pub(crate) use proxy_listener::ProxyLocation;
pub(crate) use violation::in_words;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cofferdam_contracts::egress::Entry as EgressEntry;
use cofferdam_contracts::sandbox::{Phase, SandboxRequest, Violation};
use cofferdam_contracts::secret::SecretUse;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use asks::AskQueue;
use authority::CertificateAuthority;
use context::Context;
use dial::Dialer;
use keyring::Keyring;
use mirror::MirrorEntry;
use model_gateway::ModelEndpoint;
use phase_rules::{FlowAdmissions, PhaseRules};
use policy::{MirrorName, Name, Rules};
use ports::{ADDRESS, PROXY_PORT};
use proxy_listener::ProxyListener;
use serve::{Change, Orders};
use variables::Variables;
use violation::Log;

/// Where programs find the name server.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where a sandbox finds the certificates that this host trusts: beside the agent, where no image
/// has anything of its own.
pub(crate) const CA_PATH: &str = "/.cofferdam/ca.crt";
/// wget's configuration: it looks at no variable for certificates.
pub(crate) const WGETRC_PATH: &str = "/.cofferdam/wgetrc";
pub(crate) const WGETRC: &str = "ca_certificate = /.cofferdam/ca.crt\n";
/// Where distributions keep what Java trusts: Debian, Ubuntu and Alpine; Fedora; openSUSE; the image `eclipse-temurin`.
pub(crate) const JAVA_STORES: [&str; 4] = [
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
    "/var/lib/ca-certificates/java-cacerts",
    "/opt/java/openjdk/lib/security/cacerts",
];
/// Variables by which clients are told of certificates.
const CA_VARIABLES: [&str; 8] = [
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];
/// What a sandbox reaches without its proxy: its own names, as curl, Python and Go read such a list. Not all know networks,
/// and Python compares the text of a URL, brackets included.
const OWN_NAMES: &str = "localhost,cofferdam,127.0.0.1,127.0.0.0/8,::1,[::1],0.0.0.0";

/// The lists of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PlannedLists {
    build: Vec<EgressEntry>,
    exec: Vec<EgressEntry>,
    build_asks: bool,
    exec_asks: bool,
    /// Whether the task may call models.
    models: bool,
    build_secrets: Vec<SecretUse>,
    exec_secrets: Vec<SecretUse>,
}

impl PlannedLists {
    /// The hosts that get a secret in any phase.
    fn secret_hosts(&self) -> impl Iterator<Item = &Name> {
        self.build_secrets.iter().chain(&self.exec_secrets).map(|used| &used.host)
    }
}

/// The lists of a request.
pub(crate) fn lists_of(request: &SandboxRequest) -> PlannedLists {
    let build = request.build.as_ref();
    PlannedLists {
        build: build.map_or_else(Vec::new, |build| build.egress.entries().to_vec()),
        exec: request.egress.entries().to_vec(),
        build_asks: build.is_some_and(|build| build.ask),
        exec_asks: request.egress_ask,
        models: request.models().is_some(),
        build_secrets: build.map_or_else(Vec::new, |build| build.secrets.clone()),
        exec_secrets: request.secrets.clone(),
    }
}

/// What a host brings to every sandbox's proxy.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    hosts: BTreeMap<String, SocketAddr>,
    /// As their clients answered, for as long as this process runs.
    mirrors: Mutex<BTreeMap<MirrorName, Arc<MirrorEntry>>>,
    /// Whether this host's tasks may be another worker's by now.
    doubt: watch::Sender<bool>,
}

impl Resources {
    pub(crate) fn new(hosts: BTreeMap<String, SocketAddr>) -> Self {
        Self { hosts, mirrors: Mutex::default(), doubt: watch::Sender::new(false) }
    }

    /// In doubt, what runs under names of the exec phase is cut off, and nothing new gets out.
    pub(crate) fn doubt(&self, is_in_doubt: bool) {
        self.doubt.send_if_modified(|was| std::mem::replace(was, is_in_doubt) != is_in_doubt);
    }

    async fn mirror(&self, name: MirrorName) -> Result<Arc<MirrorEntry>, EgressError> {
        // Held while a client is asked, so that a hundred sandboxes ask it once.
        let mut known = self.mirrors.lock().await;
        if let Some(found) = known.get(&name) {
            return Ok(Arc::clone(found));
        }
        let fault = |words| EgressError::Mirror { mirror: name.as_str(), words };
        let found = Arc::new(MirrorEntry::resolve(name).await.map_err(fault)?);
        known.insert(name, Arc::clone(&found));
        Ok(found)
    }

    /// Resolves a plan's lists; `None` where no phase has any.
    pub(crate) async fn prepare(
        &self,
        planned: &PlannedLists,
    ) -> Result<Option<EgressSetup>, EgressError> {
        let asks = planned.build_asks || planned.exec_asks;
        if planned.build.is_empty() && planned.exec.is_empty() && !asks && !planned.models {
            return Ok(None);
        }
        let dialer = Dialer::new(&self.hosts).map_err(EgressError::Host)?;
        let mut ca = None;
        let build = PhaseRequest {
            phase: Phase::Build,
            asks: planned.build_asks,
            names: &planned.build,
            secrets: &planned.build_secrets,
        };
        let exec = PhaseRequest {
            phase: Phase::Exec,
            asks: planned.exec_asks,
            names: &planned.exec,
            secrets: &planned.exec_secrets,
        };
        let build = self.phase(build, &mut ca, |_| true).await?;
        let exec = self.phase(exec, &mut ca, |_| true).await?;
        let ca = trust::own_ca().or(ca).or_else(|| Some(PathBuf::from(trust::USUAL_CA)));
        let ca = ca.filter(|path| path.is_file());
        let keys = keyring(planned, [&build.rules, &exec.rules], ca.as_deref())?;
        let (doubt, models) = (self.doubt.subscribe(), planned.models);
        Ok(Some(EgressSetup { build, exec, ca, keys, dialer, doubt, models }))
    }

    async fn phase(
        &self,
        wanted: PhaseRequest<'_>,
        ca: &mut Option<PathBuf>,
        serves: impl Fn(&Name) -> bool,
    ) -> Result<PhaseNet, EgressError> {
        let (mut rules, mut env) = (Rules::new(wanted.phase), Variables::default());
        rules.ask = wanted.asks;
        let mut mirrors = Vec::new();
        for entry in wanted.names {
            match entry {
                EgressEntry::Name(name) => rules.allow(name.clone()),
                EgressEntry::Mirror(name) => mirrors.push(self.mirror(*name).await?),
            }
        }
        mirrors.iter().for_each(|found| found.list_origins(&mut rules));
        for found in &mirrors {
            let is_secret = |name: &Name| wanted.secrets.iter().any(|used| used.host == *name);
            let own = |name: &Name| serves(name) && !is_secret(name);
            env.0.extend(found.list_places(&mut rules, own).0.clone());
            *ca = ca.take().or_else(|| found.ca().cloned());
        }
        // Last: what gets a secret is reached in no other way.
        rules.carry(wanted.secrets);
        Ok(PhaseNet { rules: Arc::new(rules), env })
    }
}

/// How TLS is ended in a sandbox; `None` where it never is.
fn keyring(
    planned: &PlannedLists,
    phases: [&Arc<Rules>; 2],
    ca: Option<&Path>,
) -> Result<Option<Arc<Keyring>>, EgressError> {
    let secret: Vec<&Name> = planned.secret_hosts().collect();
    let mirrored = phases.into_iter().flat_map(|rules| rules.ended());
    let ended: Vec<&Name> = mirrored.chain(secret.iter().copied()).collect();
    if ended.is_empty() {
        return Ok(None);
    }
    // Only hosts that get a secret are reached by it.
    let tls = trust::client_config(ca.filter(|_| !secret.is_empty()));
    let tls = tls.map_err(EgressError::Host)?;
    Ok(Some(Arc::new(Keyring::new(CertificateAuthority::new(ended)?, tls))))
}

/// What a phase is to reach.
struct PhaseRequest<'a> {
    phase: Phase,
    asks: bool,
    names: &'a [EgressEntry],
    secrets: &'a [SecretUse],
}

#[derive(Debug)]
pub(crate) struct PhaseNet {
    rules: Arc<Rules>,
    env: Variables,
}

/// Resolved, before the sandbox exists.
#[derive(Debug)]
pub(crate) struct EgressSetup {
    build: PhaseNet,
    exec: PhaseNet,
    ca: Option<PathBuf>,
    keys: Option<Arc<Keyring>>,
    dialer: Dialer,
    doubt: watch::Receiver<bool>,
    models: bool,
}

impl EgressSetup {
    /// The host's file of certificates, where the sandbox is shown it as it is.
    pub(crate) fn ca(&self) -> Option<&Path> {
        self.ca.as_deref().filter(|_| self.keys.is_none())
    }

    /// The certificates of a sandbox that has an authority of its own: the host's and that one.
    pub(crate) fn own_ca(&self) -> Result<Option<Bytes>, EgressError> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let mut whole = match &self.ca {
            Some(path) => std::fs::read(path).map_err(EgressError::Certificates)?,
            None => Vec::new(),
        };
        whole.push(b'\n');
        whole.extend_from_slice(keys.authority.certificate_pem().as_bytes());
        Ok(Some(whole.into()))
    }

    /// The same for programs of Java, where there is such an authority.
    pub(crate) fn java_store(certificates: &[u8]) -> Bytes {
        java::store(certificates).into()
    }

    /// The sandbox's resolver configuration.
    pub(crate) fn resolv_conf() -> String {
        format!("nameserver {ADDRESS}\noptions timeout:5 attempts:1\n")
    }

    /// The proxy of a sandbox that lives. It listens once a phase with names begins.
    pub(crate) fn open(self, way: Option<ProxyLocation>) -> Result<Egress, EgressError> {
        let way = way.ok_or(EgressError::NoNetns)?;
        let mut common: BTreeMap<String, String> = BTreeMap::new();
        let proxy = format!("http://{ADDRESS}:{PROXY_PORT}");
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            common.insert(name.into(), proxy.clone());
        }
        for name in ["NO_PROXY", "no_proxy"] {
            common.insert(name.into(), format!("{OWN_NAMES},{ADDRESS}"));
        }
        if self.ca.is_some() || self.keys.is_some() {
            common.extend(CA_VARIABLES.map(|name| (name.to_owned(), CA_PATH.to_owned())));
        }
        if self.keys.is_some() {
            // npm with a file of its own configuration looks at no other variable.
            common.insert("npm_config_cafile".into(), CA_PATH.into());
            common.insert("SYSTEM_WGETRC".into(), WGETRC_PATH.into());
        }
        Ok(Egress {
            common: Variables(common),
            models: self.models,
            model_gateway: OnceLock::new(),
            build: self.build,
            way,
            dialer: Arc::new(self.dialer),
            log: Arc::default(),
            doubt: self.doubt,
            gateway: Arc::default(),
            keys: self.keys,
            state: Mutex::new(PhaseState {
                exec: self.exec,
                phase: None,
                serving: None,
                is_over: false,
            }),
        })
    }
}

/// What serves now.
#[derive(Debug)]
struct PhaseState {
    /// What the task may reach.
    exec: PhaseNet,
    phase: Option<Phase>,
    serving: Option<PhaseServer>,
    /// Its sandbox ends: nothing is opened any more.
    is_over: bool,
}

#[derive(Debug)]
struct PhaseServer {
    stop: oneshot::Sender<()>,
    changes: mpsc::Sender<Change>,
    task: Abort,
}

/// Ends what it drives when it is dropped: a sandbox that nobody wipes keeps no socket open.
#[derive(Debug)]
struct Abort(JoinHandle<ProxyListener>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The proxy of one sandbox.
#[derive(Debug)]
pub(crate) struct Egress {
    build: PhaseNet,
    /// Variables of every phase that has a network.
    common: Variables,
    way: ProxyLocation,
    dialer: Arc<Dialer>,
    log: Arc<Log>,
    doubt: watch::Receiver<bool>,
    gateway: Arc<AskQueue>,
    /// Whether the task may call models, and who decides about its calls.
    models: bool,
    model_gateway: OnceLock<Arc<dyn ModelGateway>>,
    keys: Option<Arc<Keyring>>,
    state: Mutex<PhaseState>,
}

impl Egress {
    /// Makes the phase's policy the one in force, and gives the variables that its programs need.
    /// Everything of the phase before is ended when it returns. There is no way back.
    pub(crate) async fn enter(
        &self,
        phase: Phase,
    ) -> Result<BTreeMap<String, String>, EgressError> {
        let mut state = self.state.lock().await;
        let net = match phase {
            Phase::Build => &self.build,
            Phase::Exec => &state.exec,
        };
        let (rules, env) = (Arc::clone(&net.rules), self.variables(phase, net));
        if state.phase == Some(phase) {
            return Ok(env);
        }
        if state.phase > Some(phase) {
            return Err(EgressError::Over);
        }
        let mut open = stop(&mut state).await;
        let has_network = self.has_network(phase, &rules);
        let is_kept = has_network && open.as_ref().is_some_and(ProxyListener::is_open);
        if let Some(ended) = open.take_if(|_| !is_kept) {
            ended.close().await;
        }
        if has_network {
            let entry = match open {
                Some(entry) => entry,
                None => self.way.open().await?,
            };
            state.serving = Some(self.served(entry, phase, rules));
        }
        state.phase = Some(phase);
        Ok(env)
    }

    fn calls_models(&self, phase: Phase) -> bool {
        self.models && phase == Phase::Exec
    }

    fn has_network(&self, phase: Phase, rules: &Rules) -> bool {
        !rules.is_empty() || self.calls_models(phase)
    }

    /// By which programs of the phase find its network.
    fn variables(&self, phase: Phase, net: &PhaseNet) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        if !net.rules.is_empty() {
            env.extend(self.common.0.clone());
            env.extend(net.env.0.clone());
        }
        if self.calls_models(phase) {
            let told = model::variables();
            env.extend(told.map(|(name, value)| (name.to_owned(), value)));
        }
        env
    }

    fn served(&self, entry: ProxyListener, phase: Phase, rules: Arc<Rules>) -> PhaseServer {
        let gateway = self.model_gateway.get().filter(|_| self.calls_models(phase));
        let context = Context {
            phase,
            listed: PhaseRules::new(rules),
            admitted: FlowAdmissions::default(),
            dialer: Arc::clone(&self.dialer),
            log: Arc::clone(&self.log),
            gateway: Arc::clone(&self.gateway),
            keys: self.keys.clone(),
            links: Arc::default(),
            models: ModelEndpoint::new(gateway.cloned()),
        };
        let (stop, stopped) = oneshot::channel();
        let (changes, changed) = mpsc::channel(1);
        let orders = Orders { stop: stopped, changes: changed };
        // Whatever a build fetches twice is fetched twice; a task may write to where it talks.
        let doubt = (phase == Phase::Exec).then(|| self.doubt.clone());
        let task = Abort(tokio::spawn(serve::serve(entry, context, orders, doubt)));
        PhaseServer { stop, changes, task }
    }

    /// Ends it: no socket and no flow is left when it returns.
    pub(crate) async fn close(&self) {
        let mut state = self.state.lock().await;
        drop(stop(&mut state).await);
        state.phase = Some(Phase::Exec);
        state.is_over = true;
        if let Some(keys) = &self.keys {
            keys.settle().await;
        }
    }

    /// From whom the secrets of its requests come.
    pub(crate) fn keep_secrets(&self, source: Arc<dyn SecretSource>) {
        if let Some(keys) = &self.keys {
            keys.set_source(source);
        }
    }

    /// What was refused that a person may grant, since the last call.
    pub(crate) fn asked(&self) -> Vec<NameRequest> {
        self.gateway.fetch()
    }

    /// Sets who decides about calls of models; the first one counts. Before the task's phase begins.
    pub(crate) fn serve_models(&self, gateway: Arc<dyn ModelGateway>) {
        if self.model_gateway.set(gateway).is_err() {
            tracing::warn!("a gateway decides about calls of models already");
        }
    }

    /// Lists a name that was asked for, for its phase and until a time.
    pub(crate) fn grant(&self, asked: &NameRequest, until_ms: i64) -> bool {
        self.gateway.grant(asked, until_ms)
    }

    /// What it refused, and how many attempts are not listed.
    pub(crate) fn violations(&self) -> (Vec<Violation>, u64) {
        self.log.all()
    }

    /// How many attempts it refused.
    pub(crate) fn refused(&self) -> u64 {
        self.log.total()
    }
}

async fn stop(state: &mut PhaseState) -> Option<ProxyListener> {
    let PhaseServer { stop, changes: _, mut task } = state.serving.take()?;
    // A server that has ended by itself hears nothing, and has closed its sockets.
    let _ = stop.send(());
    (&mut task.0).await.ok()
}
