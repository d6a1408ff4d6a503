//! Every byte between this process and a database on a network passes here, so that silence is noticed
//! wherever it is: neither the driver nor the engine's own pool sets a timer on a connection (decision 0052).
//!
//! ```text
//! pools, listener, the engine --unix socket--> wire --TCP with keepalive--> PostgreSQL
//!   before the server's first byte: dialed again and again, the client just waits
//!   afterwards: closed once nothing moved for SILENCE; who used it finds a broken connection
//! ```
//! A database that is reached by a unix socket is on this host and has no wire.

mod carry;
mod directory;

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use carry::{Kind, Target};
use directory::WireDir;

use crate::cluster::percent_encoded;
use crate::error::Result;

/// What the server's end of each connection is told, so that a host that is lost holds no transaction and no
/// lock for longer than a worker may be silent. Ignored where a server has its own, stricter ones. No statement of ours
/// runs for so long that compiling its plan would pay, and that takes seconds where rows are many.
const SERVER: &str = "-c tcp_keepalives_idle=3 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=4 \
                      -c tcp_user_timeout=7000 -c jit=off";
/// A statement on a connection that is closed when it is silent ends a little later at the server as well.
const BOUNDED: &str = "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=10000";

/// A process's wires to one database.
#[derive(Debug)]
pub(crate) struct Wires {
    /// Closed when it is silent.
    quick: String,
    /// For statements that may say nothing for minutes: proofs, migrations.
    patient: String,
    tasks: [JoinHandle<()>; 2],
    /// Removed with the wires.
    place: WireDir,
}

impl Wires {
    /// `None` where the database is on this host's own sockets.
    pub(crate) async fn open(url: &str) -> Result<Option<Self>> {
        let options = PgConnectOptions::from_str(url)?;
        if options.get_socket().is_some() || options.get_host().starts_with('/') {
            return Ok(None);
        }
        let place = WireDir::make().map_err(sqlx::Error::Io)?;
        let target = |kind| Target::new(options.get_host(), options.get_port(), kind);
        let quick = accept(&place, "quick", target(Kind::Quick))?;
        let patient = accept(&place, "patient", target(Kind::Patient))?;
        Ok(Some(Self {
            quick: through(url, &place, "quick", &format!("{SERVER} {BOUNDED}")),
            patient: through(url, &place, "patient", SERVER),
            tasks: [quick, patient],
            place,
        }))
    }

    pub(crate) fn quick(&self) -> &str {
        &self.quick
    }

    /// Makes the directory and its sockets another user's, as [`WireDir::give`] does.
    pub(crate) fn give(&self, uid: u32, gid: u32) -> std::io::Result<()> {
        self.place.give(uid, gid)
    }

    pub(crate) fn patient(&self) -> &str {
        &self.patient
    }

    /// Removes its place at the end of the process, whatever still holds the wires.
    pub(crate) fn remove(&self) {
        self.place.remove();
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn accept(place: &WireDir, name: &str, target: Target) -> Result<JoinHandle<()>> {
    let path = place.path().join(name).join(format!(".s.PGSQL.{}", target.port()));
    let listener = UnixListener::bind(path).map_err(sqlx::Error::Io)?;
    Ok(tokio::spawn(carry::serve(listener, target)))
}

/// The same database by way of a socket of ours. The host stays in the address: a certificate is checked
/// against it.
fn through(url: &str, place: &WireDir, name: &str, options: &str) -> String {
    use std::os::unix::ffi::OsStrExt;
    let dir = percent_encoded(place.path().join(name).as_os_str().as_bytes());
    let options = percent_encoded(options.as_bytes());
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}host={dir}&options={options}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_url_leads_through_the_wire_and_keeps_its_host() {
        let url = "postgres://me:secret@db.example:6432/d?sslmode=verify-full";
        let wires = Wires::open(url).await.unwrap().unwrap();
        for (url, is_bounded) in [(wires.quick(), true), (wires.patient(), false)] {
            let options = PgConnectOptions::from_str(url).unwrap();
            assert_eq!((options.get_host(), options.get_port()), ("db.example", 6432));
            let socket = options.get_socket().unwrap().join(".s.PGSQL.6432");
            assert!(socket.exists(), "{}", socket.display());
            let told = options.get_options().unwrap();
            assert!(told.contains("tcp_user_timeout"), "{told}");
            assert_eq!(told.contains("statement_timeout"), is_bounded, "{told}");
        }
        let place = wires.place.path().to_path_buf();
        drop(wires);
        assert!(!place.exists());
        let wires = Wires::open(url).await.unwrap().unwrap();
        wires.remove();
        assert!(!wires.place.path().exists(), "though something holds it");
    }

    #[tokio::test]
    async fn a_database_of_this_host_has_no_wire() {
        for url in ["postgres://me@localhost/d?host=%2Frun%2Fpg", "postgres://%2Frun%2Fpg/d"] {
            assert!(Wires::open(url).await.unwrap().is_none(), "{url}");
        }
    }
}
