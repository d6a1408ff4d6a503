//! A wire between a process and its database, or another server, that a test can silence, cut, or end after so many bytes.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cofferdam_tests::Home;
use cofferdam_tests::postgres::Postgres;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// What the wire does with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Carries.
    Open,
    /// Carries nothing and closes nothing: a host that is lost, a network that is silent.
    Silent,
    /// Lets go of the server and tells the client nothing: a connection that is open at one end.
    Half,
    /// Closes.
    Cut,
}

/// Where a proxy leads.
#[derive(Debug, Clone)]
enum Upstream {
    Socket(PathBuf),
    Address(SocketAddr),
}

/// Either kind of stream.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Upstream {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
            Self::Address(address) => Box::new(TcpStream::connect(address).await?),
        })
    }
}

/// What all connections of a proxy share.
#[derive(Debug)]
struct Shared {
    /// What a new connection begins with.
    fresh: watch::Sender<Wire>,
    live: Mutex<Vec<Arc<Carried>>>,
    /// New connections are cut once the server has said so many bytes on them.
    cut_after: Mutex<Option<usize>>,
}

/// One connection.
#[derive(Debug)]
struct Carried {
    wire: watch::Sender<Wire>,
    /// What the client said at first: tells listeners from others.
    said: Mutex<Vec<u8>>,
}

impl Carried {
    fn remember(&self, words: &[u8]) {
        let mut said = self.said.lock().unwrap();
        let room = REMEMBERED.saturating_sub(said.len()).min(words.len());
        said.extend_from_slice(&words[..room]);
    }
}

/// How much of what a client says is remembered.
const REMEMBERED: usize = 4_096;

/// A TCP address that leads to a database.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    url: String,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// To the database of a home, which must run.
    pub async fn to(home: &Home) -> Self {
        let private = home.database_url();
        let (user, rest) = private.strip_prefix("postgres://").unwrap().split_once('@').unwrap();
        let (_, rest) = rest.split_once('/').unwrap();
        let (name, query) = rest.split_once('?').unwrap();
        let dir = query.split('&').find_map(|pair| pair.strip_prefix("host=")).unwrap();
        let socket = PathBuf::from(dir.replace("%2F", "/")).join(".s.PGSQL.5432");
        drop(StdUnixStream::connect(&socket).expect("the private database answers"));
        let url = |address| format!("postgres://{user}@{address}/{name}?sslmode=prefer");
        Self::before(Upstream::Socket(socket), url).await
    }

    /// To a database elsewhere.
    pub async fn to_server(server: &Postgres) -> Self {
        let direct = server.address();
        let url =
            |address: SocketAddr| server.url().replace(&direct.to_string(), &address.to_string());
        Self::before(Upstream::Address(direct), url).await
    }

    /// To an HTTP server on loopback.
    pub async fn to_http(server: &str) -> Self {
        let address = server.strip_prefix("http://").unwrap().parse().unwrap();
        Self::before(Upstream::Address(address), |address| format!("http://{address}")).await
    }

    async fn before(upstream: Upstream, url: impl Fn(SocketAddr) -> String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            fresh: watch::Sender::new(Wire::Open),
            live: Mutex::default(),
            cut_after: Mutex::default(),
        });
        let task = tokio::spawn(accept(listener, upstream, Arc::clone(&shared)));
        Self { shared, url: url(address), task }
    }

    /// The address, as `--db` or a client takes it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All connections, those to come included.
    pub fn all(&self, wire: Wire) {
        self.fresh(wire);
        self.those(wire, |_| true);
    }

    /// The connections to come.
    pub fn fresh(&self, wire: Wire) {
        self.shared.fresh.send_replace(wire);
    }

    /// The connections that there are, none to come.
    pub fn present(&self, wire: Wire) {
        self.those(wire, |_| true);
    }

    /// The connections that there are, of clients that said this.
    pub fn saying(&self, text: &str, wire: Wire) -> usize {
        self.those(wire, |said| said.windows(text.len()).any(|w| w == text.as_bytes()))
    }

    /// How many connections are there.
    pub fn connections(&self) -> usize {
        self.shared.live.lock().unwrap().len()
    }

    /// From now on each new connection is cut after so many bytes of the server; `None`: no longer.
    pub fn cut_after(&self, bytes: Option<usize>) {
        *self.shared.cut_after.lock().unwrap() = bytes;
    }

    fn those(&self, wire: Wire, which: impl Fn(&[u8]) -> bool) -> usize {
        let live = self.shared.live.lock().unwrap();
        let chosen: Vec<_> = live.iter().filter(|one| which(&one.said.lock().unwrap())).collect();
        for one in &chosen {
            one.wire.send_replace(wire);
        }
        chosen.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.all(Wire::Cut);
    }
}

async fn accept(listener: TcpListener, upstream: Upstream, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let begins = *shared.fresh.borrow();
        let carried =
            Arc::new(Carried { wire: watch::Sender::new(begins), said: Mutex::default() });
        shared.live.lock().unwrap().push(Arc::clone(&carried));
        let (upstream, shared) = (upstream.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            carry(client, &upstream, &carried, &shared).await;
            shared.live.lock().unwrap().retain(|one| !Arc::ptr_eq(one, &carried));
        });
    }
}

async fn carry(mut client: TcpStream, upstream: &Upstream, carried: &Carried, shared: &Shared) {
    let mut wire = carried.wire.subscribe();
    if wire.wait_for(|wire| *wire != Wire::Silent).await.is_ok_and(|wire| *wire == Wire::Cut) {
        return;
    }
    // A database that is away is a connection that is refused.
    let Ok(mut server) = upstream.connect().await else { return };
    let mut left = *shared.cut_after.lock().unwrap();
    let (mut up, mut down) = (vec![0; 16_384], vec![0; 16_384]);
    loop {
        let now = *wire.borrow_and_update();
        match now {
            Wire::Cut => return,
            Wire::Half => {
                drop(server);
                // Until it is cut.
                let _ = wire.wait_for(|wire| *wire == Wire::Cut).await;
                return;
            }
            Wire::Silent => {
                if wire.changed().await.is_err() {
                    return;
                }
                continue;
            }
            Wire::Open => {}
        }
        tokio::select! {
            biased;
            _ = wire.changed() => {}
            read = client.read(&mut up) => {
                let Ok(n @ 1..) = read else { return };
                carried.remember(&up[..n]);
                if server.write_all(&up[..n]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(n @ 1..) = read else { return };
                let n = left.map_or(n, |left| left.min(n));
                if client.write_all(&down[..n]).await.is_err() {
                    return;
                }
                if let Some(left) = &mut left {
                    *left -= n;
                    if *left == 0 {
                        return;
                    }
                }
            }
        }
    }
}
