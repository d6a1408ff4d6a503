//! The database of a state directory: which one it is, and the one place where a command opens it.
//!
//! ```text
//! database.json: kind (private | external), the installation that the database says it is, where it was
//!
//! record    --db   private one  admin.key
//! external  no     -            -          refused: nothing is started in its place
//! private   no     missing      -          refused: it is gone
//! private   no     there        -          the private one, if it is that installation
//! any       given  -            -          the given one, if it is that installation
//! none      no     missing      there      refused: the key is of a database elsewhere
//! none      no     -            -          the private one, made where it is missing; recorded
//! none      given  there        missing    refused: it may be either
//! none      given  -            -          the given one; recorded
//! none, and a key that the opened database did not make: refused, before anything is written there
//! ```
//! A database that is not the recorded one is neither migrated nor written. `adopt` alone changes a record.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use cofferdam_ambient::random;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::cluster::{Cluster, is_made};
use cofferdam_ledger::database_identity::location;
use serde::{Deserialize, Serialize};

use super::exit::Misuse;
use super::locations::Locations;
use super::{local, output, state};

const NAME: &str = "database.json";

/// Which database a state directory belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    pub kind: Kind,
    /// The installation that the database says it is.
    id: String,
    /// Where it was when this was written, for people; without a user or a password.
    #[serde(rename = "where")]
    place: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Kind {
    /// The PostgreSQL that this program runs in the state directory.
    Private,
    /// One that others run, such as a fleet's.
    External,
}

impl Record {
    /// Names the database for people: its kind or place, and eight characters of its id.
    pub(crate) fn words(&self) -> String {
        let id = self.id.get(..8).unwrap_or(&self.id);
        match self.kind {
            Kind::Private => format!("its private database ({id})"),
            Kind::External => format!("the database {} ({id})", self.place),
        }
    }
}

/// Why a command does not go on: the database is not the one of the state directory, or does not answer.
#[derive(Debug)]
pub(crate) struct WrongDatabase {
    /// For a program that reads stderr.
    code: &'static str,
    why: String,
}

impl WrongDatabase {
    pub(crate) fn new(code: &'static str, why: String) -> Self {
        Self { code, why }
    }
}

impl std::fmt::Display for WrongDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.why, self.code)
    }
}

impl std::error::Error for WrongDatabase {}

/// A database that is the state directory's.
#[derive(Debug)]
pub(crate) struct StateDatabase {
    pub ledger: Ledger,
    /// Where this process runs it.
    pub cluster: Option<Cluster>,
    /// As the ledger connects.
    pub url: String,
    kind: Kind,
}

impl StateDatabase {
    /// Itself, or closed where something is wrong with it.
    async fn unless(self, wrong: anyhow::Result<()>) -> anyhow::Result<Self> {
        match wrong {
            Ok(()) => Ok(self),
            Err(error) => {
                self.close().await?;
                Err(error)
            }
        }
    }

    /// Closes what was opened.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.ledger.close().await;
        match self.cluster {
            Some(cluster) => Ok(cluster.stop().await?),
            None => Ok(()),
        }
    }
}

/// What is known without a look at any database. Pure.
#[derive(Debug, Clone, Copy)]
struct DatabaseSigns {
    record: Option<Kind>,
    /// `--db` or `DATABASE_URL`.
    given: bool,
    /// The state directory has a private database.
    private: bool,
    /// It has an admin key.
    key: bool,
}

/// Why nothing is opened. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenRefusal {
    /// The record says a database elsewhere, and none is given.
    NotGiven,
    /// The record says a private one, which is gone.
    Gone,
    /// No record, and a key that a database elsewhere must have made.
    KeyFromElsewhere,
    /// No record, and two that it may be.
    Either,
}

/// Which database to open, or why none. Pure.
fn choose(signs: DatabaseSigns) -> Result<Kind, OpenRefusal> {
    let DatabaseSigns { given, record, private, key } = signs;
    match (given, record, private, key) {
        (true, None, true, false) => Err(OpenRefusal::Either),
        (true, ..) => Ok(Kind::External),
        (false, Some(Kind::External), ..) => Err(OpenRefusal::NotGiven),
        (false, Some(Kind::Private), false, _) => Err(OpenRefusal::Gone),
        (false, None, false, true) => Err(OpenRefusal::KeyFromElsewhere),
        (false, ..) => Ok(Kind::Private),
    }
}

impl OpenRefusal {
    fn says(self, dir: &Path, record: Option<&Record>) -> WrongDatabase {
        let dir = dir.display();
        let recorded = record.map(Record::words).unwrap_or_default();
        match self {
            Self::NotGiven => WrongDatabase::new(
                "database_not_given",
                format!(
                    "the state directory {dir} belongs to {recorded}, and this command names no database: nothing was \
                     started in its place; set DATABASE_URL or --db as its server has it, or pass --server URL"
                ),
            ),
            Self::Gone => WrongDatabase::new(
                "database_missing",
                format!(
                    "the state directory {dir} belongs to {recorded}, and the files of that are missing in it: restore \
                     {dir}/database; if that is lost and a new one takes its place: cofferdam adopt"
                ),
            ),
            Self::KeyFromElsewhere => WrongDatabase::new(
                "database_unknown",
                format!(
                    "the state directory {dir} has an admin key and no private database, so it belongs to a database \
                     elsewhere: set DATABASE_URL or --db as its server has it; to begin anew give another --state"
                ),
            ),
            Self::Either => WrongDatabase::new(
                "database_unknown",
                format!(
                    "the state directory {dir} has a private database and no record of which database it belongs to: \
                     if it is the one that --db or DATABASE_URL names: cofferdam adopt; if not, unset that"
                ),
            ),
        }
    }
}

fn signs(at: &Locations, dir: &Path, record: Option<&Record>) -> anyhow::Result<DatabaseSigns> {
    Ok(DatabaseSigns {
        record: record.map(|record| record.kind),
        given: at.db.is_some(),
        private: is_made(dir),
        key: state::key_read(dir)?.is_some(),
    })
}

/// Opens the database of a state directory, up to date; a directory without a record gets one.
///
/// # Errors
/// Another database, one that does not answer, or a directory that may belong to several: nothing was written.
pub(crate) async fn open(at: &Locations, dir: &Path) -> anyhow::Result<StateDatabase> {
    let record = read(dir)?;
    let opened = connect(at, dir, record.as_ref()).await?;
    let settled = settle(dir, record.as_ref(), &opened).await;
    opened.unless(settled).await
}

/// Opens it for a command that only says where it is: nothing is written, and no record.
pub(crate) async fn look(at: &Locations, dir: &Path) -> anyhow::Result<StateDatabase> {
    let record = read(dir)?;
    let opened = connect(at, dir, record.as_ref()).await?;
    let compared = compare(dir, record.as_ref(), &opened).await;
    opened.unless(compared).await
}

/// Whether the database that a command names, if it names one, is that of the server that it is about to ask.
pub(crate) async fn agrees(at: &Locations, dir: &Path) -> anyhow::Result<()> {
    let Some(url) = &at.db else { return Ok(()) };
    match read(dir)? {
        Some(record) if record.kind == Kind::External && record.place == location(url) => Ok(()),
        _ => look(at, dir).await?.close().await,
    }
}

async fn connect(
    at: &Locations,
    dir: &Path,
    record: Option<&Record>,
) -> anyhow::Result<StateDatabase> {
    match (choose(signs(at, dir, record)?), &at.db) {
        (Err(doubt), _) => Err(doubt.says(dir, record).into()),
        (Ok(_), Some(url)) => given(url, dir, record).await,
        (Ok(_), None) => private(dir).await,
    }
}

async fn given(url: &str, dir: &Path, record: Option<&Record>) -> anyhow::Result<StateDatabase> {
    let belongs = record.map(|record| format!("; {} belongs to {}", dir.display(), record.words()));
    let ledger = Ledger::connect(url).await.with_context(|| {
        WrongDatabase::new(
            "database_unreachable",
            format!(
                "cannot connect to the database {}: nothing was done{}",
                location(url),
                belongs.unwrap_or_default()
            ),
        )
    })?;
    Ok(StateDatabase { ledger, cluster: None, url: url.to_owned(), kind: Kind::External })
}

async fn private(dir: &Path) -> anyhow::Result<StateDatabase> {
    let cluster = Cluster::start(dir).await.context("the private database did not start")?;
    let url = cluster.url();
    match Ledger::connect(&url).await.context("cannot connect to the private database") {
        Ok(ledger) => {
            Ok(StateDatabase { ledger, cluster: Some(cluster), url, kind: Kind::Private })
        }
        Err(error) => {
            cluster.stop().await?;
            Err(error)
        }
    }
}

/// Whether it is the recorded one; without a record, whether it made the key that is here.
async fn compare(
    dir: &Path,
    record: Option<&Record>,
    opened: &StateDatabase,
) -> anyhow::Result<()> {
    let Some(record) = record else {
        return match state::key_read(dir)? {
            Some(key) if !opened.ledger.place().has_key(&key).await? => {
                Err(stranger(dir, opened).into())
            }
            _ => Ok(()),
        };
    };
    let found = opened.ledger.place().installation().await?;
    match found.as_ref() == Some(&record.id) {
        true => Ok(()),
        false => Err(differs(dir, record, opened, found.as_deref()).into()),
    }
}

async fn settle(dir: &Path, record: Option<&Record>, opened: &StateDatabase) -> anyhow::Result<()> {
    compare(dir, record, opened).await?;
    opened.ledger.migrate().await?;
    if record.is_some() {
        return Ok(());
    }
    let fresh = recorded(opened).await?;
    // Of two that begin at once one writes it, and the other one compares.
    let kept = keep(dir, &fresh)?;
    match kept.id == fresh.id {
        true => Ok(()),
        false => Err(differs(dir, &kept, opened, Some(&fresh.id)).into()),
    }
}

async fn recorded(opened: &StateDatabase) -> anyhow::Result<Record> {
    let id = opened.ledger.place().installation().await?;
    let id = id.context("the database does not say which installation it is")?;
    Ok(Record { kind: opened.kind, id, place: location(&opened.url) })
}

fn differs(
    dir: &Path,
    record: &Record,
    opened: &StateDatabase,
    found: Option<&str>,
) -> WrongDatabase {
    let found = match found {
        Some(id) => id.get(..8).unwrap_or(id).to_owned(),
        None => "empty, or without a record of its own".to_owned(),
    };
    WrongDatabase::new(
        "database_differs",
        format!(
            "the state directory {dir} belongs to {recorded}, and this command reached {place} ({found}), where nothing \
             was written: correct --db or DATABASE_URL, or unset it for a private database; if the recorded one is gone \
             and this one takes its place: cofferdam adopt; to begin anew give another --state",
            dir = dir.display(),
            recorded = record.words(),
            place = location(&opened.url),
        ),
    )
}

fn stranger(dir: &Path, opened: &StateDatabase) -> WrongDatabase {
    WrongDatabase::new(
        "database_unknown",
        format!(
            "the state directory {dir} has no record of which database it belongs to, and {place} did not make its \
             admin.key: nothing was written; name the database of its server by --db or DATABASE_URL, or if it is this \
             one: cofferdam adopt",
            dir = dir.display(),
            place = location(&opened.url),
        ),
    )
}

/// `adopt`, for the database: the one that the command names is the state directory's from now on.
///
/// # Errors
/// A server that runs here, or a command that names no database where one elsewhere is meant.
pub(crate) async fn adopt(at: &Locations, dir: &Path) -> anyhow::Result<()> {
    // What cannot be read names no database: the command must.
    let record = read(dir).unwrap_or_default();
    let opened = match choose(signs(at, dir, record.as_ref())?) {
        Ok(Kind::Private) | Err(OpenRefusal::Gone) if at.db.is_none() => private(dir).await?,
        Err(doubt @ (OpenRefusal::NotGiven | OpenRefusal::KeyFromElsewhere)) => {
            return Err(doubt.says(dir, record.as_ref()).into());
        }
        _ => given(at.db.as_deref().unwrap_or_default(), dir, record.as_ref()).await?,
    };
    let outcome = replaces(dir, record.as_ref(), &opened).await;
    opened.close().await?;
    outcome
}

async fn replaces(
    dir: &Path,
    record: Option<&Record>,
    opened: &StateDatabase,
) -> anyhow::Result<()> {
    let ledger = &opened.ledger;
    ledger.migrate().await?;
    let is_copy = !ledger.place().is_same().await?;
    let is_other = record.map(|record| &record.id) != ledger.place().installation().await?.as_ref();
    if (is_copy || is_other) && local::find(dir).await?.is_some() {
        let why = "the state directory was not adopted: its server runs; stop that first";
        return Err(Misuse(why.to_owned()).into());
    }
    if is_copy {
        // Workers are refused on a copy: whoever beats here beat in the original a moment ago, or is older.
        if ledger.executors().live_count().await? > 0 {
            let why = "the database was not adopted: one of its workers is alive; stop the original's workers first";
            return Err(Misuse(why.to_owned()).into());
        }
        ledger.place().adopt().await?;
        output::line("the database replaces its original");
    }
    let fresh = recorded(opened).await?;
    if record == Some(&fresh) {
        return Ok(());
    }
    let _turn = state::turn(dir).await?;
    // A key of another database is kept: that one may come back.
    if let Some(key) = state::key_read(dir)?
        && !ledger.place().has_key(&key).await?
    {
        let kept = state::key_set_aside(dir, &key)?;
        output::line(&format!("the admin key of another database is kept in {kept}"));
    }
    fs::rename(draft(dir, &fresh)?, dir.join(NAME))
        .with_context(|| format!("cannot write {NAME} in {}", dir.display()))?;
    output::line(&format!("{} belongs to {}", dir.display(), fresh.words()));
    Ok(())
}

/// Which database a directory belongs to, as far as it says so.
///
/// # Errors
/// A record that cannot be read.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Option<Record>> {
    let path = dir.join(NAME);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).with_context(|| {
            WrongDatabase::new(
                "database_unknown",
                format!(
                    "{} cannot be read, so no database was opened: restore it, or name the database of this directory: \
                     cofferdam adopt --db URL",
                    path.display()
                ),
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes the first record; of two that begin at once both read the same one.
fn keep(dir: &Path, record: &Record) -> anyhow::Result<Record> {
    let draft = draft(dir, record)?;
    let linked = fs::hard_link(&draft, dir.join(NAME));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot write {NAME} in {}", dir.display()))
        }
        _ => Ok(read(dir)?.unwrap_or_else(|| record.clone())),
    }
}

fn draft(dir: &Path, record: &Record) -> anyhow::Result<std::path::PathBuf> {
    let draft = dir.join(format!("{NAME}.{}-{}", std::process::id(), random::secret_hex(4)));
    let write = || -> io::Result<()> {
        let mut file = File::create_new(&draft)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {NAME} in {}", dir.display()))?;
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_private_is_opened_where_a_database_elsewhere_may_be_meant() {
        let bits = [false, true];
        for record in [None, Some(Kind::Private), Some(Kind::External)] {
            for (given, private, key) in
                bits.iter().flat_map(|g| bits.iter().flat_map(move |p| bits.map(|k| (*g, *p, k))))
            {
                let chosen = choose(DatabaseSigns { record, given, private, key });
                let wanted = match (given, record) {
                    (true, None) if private && !key => Err(OpenRefusal::Either),
                    (true, _) => Ok(Kind::External),
                    (false, Some(Kind::External)) => Err(OpenRefusal::NotGiven),
                    (false, Some(Kind::Private)) if !private => Err(OpenRefusal::Gone),
                    (false, None) if key && !private => Err(OpenRefusal::KeyFromElsewhere),
                    (false, _) => Ok(Kind::Private),
                };
                assert_eq!(chosen, wanted, "{record:?} {given} {private} {key}");
            }
        }
    }

    #[test]
    fn of_two_first_records_one_is_kept_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        let record = |id: &str| Record {
            kind: Kind::External,
            id: id.to_owned(),
            place: "fleet at db:5432".into(),
        };
        assert_eq!(keep(dir.path(), &record("one")).unwrap(), record("one"));
        assert_eq!(keep(dir.path(), &record("two")).unwrap(), record("one"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
        fs::write(dir.path().join(NAME), "{").unwrap();
        let refused = format!("{:#}", read(dir.path()).unwrap_err());
        assert!(refused.contains("cofferdam adopt"), "{refused}");
    }
}
