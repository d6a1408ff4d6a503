//! The machine's PostgreSQL server binaries.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use cofferdam_ambient::env;
use tokio::process::Command;

use super::error::{ClusterError, tail};

/// Where server binaries are looked for.
#[derive(Debug, Clone)]
pub struct Search {
    /// Directories that may hold `postgres` and `initdb`.
    pub dirs: Vec<PathBuf>,
    /// Whether `pg_config --bindir` is asked when the directories hold none.
    pub pg_config: bool,
}

/// One installed server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) bin: PathBuf,
    pub(super) major: u32,
}

impl Search {
    /// The places where distributions and the PostgreSQL project install, then `PATH`.
    #[must_use]
    pub fn machine() -> Self {
        let mut dirs = versioned("/usr/lib/postgresql", "bin");
        dirs.extend(versioned("/usr", "bin").into_iter().filter(|dir| {
            dir.parent().and_then(Path::file_name).is_some_and(|name| {
                name.to_string_lossy().starts_with("pgsql-") // the RPM packages: /usr/pgsql-17/bin
            })
        }));
        dirs.push("/usr/local/pgsql/bin".into());
        if let Some(path) = env::var_os("PATH") {
            dirs.extend(std::env::split_paths(&path).filter(|dir| dir.is_absolute()));
        }
        Self { dirs, pg_config: true }
    }

    /// Directory and major version of the newest server; `None` where there is none that runs.
    pub async fn newest(&self) -> Option<(PathBuf, u32)> {
        let servers = self.servers().await.ok()?;
        let newest = servers.into_iter().max_by_key(|server| server.major)?;
        Some((newest.bin, newest.major))
    }

    /// The newest server, or the one of version `need`, which wrote the files in `data`.
    pub(super) async fn server(&self, data: &Path) -> Result<Server, ClusterError> {
        let servers = self.servers().await?;
        let Some(newest) = servers.iter().max_by_key(|server| server.major) else {
            return Err(ClusterError::NoServer { searched: self.dirs.clone(), fetch: None });
        };
        let Some(need) = written_by(data)? else { return Ok(newest.clone()) };
        let same = servers.iter().find(|server| server.major == need).cloned();
        same.ok_or_else(|| ClusterError::Version {
            data: data.to_owned(),
            need,
            have: servers.iter().map(|server| server.major).collect(),
        })
    }

    async fn servers(&self) -> Result<Vec<Server>, ClusterError> {
        let mut bins: Vec<PathBuf> = Vec::new();
        for bin in self.dirs.iter().filter_map(|dir| holds_server(dir)) {
            if !bins.contains(&bin) {
                bins.push(bin);
            }
        }
        if bins.is_empty() && self.pg_config {
            bins.extend(pg_config_bindir().await.and_then(|dir| holds_server(&dir)));
        }
        let mut servers = Vec::with_capacity(bins.len());
        for bin in bins {
            let major = major(&bin.join("postgres")).await?;
            servers.push(Server { bin, major });
        }
        Ok(servers)
    }
}

/// The major version that wrote a data directory; `None` where there is none yet.
fn written_by(data: &Path) -> Result<Option<u32>, ClusterError> {
    let file = data.join("PG_VERSION");
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(number(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ClusterError::io("read", &file)(error)),
    }
}

pub(super) fn versioned(base: impl AsRef<Path>, below: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join(below)).filter(|dir| dir.is_dir()).collect()
}

/// The real directory of `dir/postgres`, if `initdb` is there too: `PATH` may hold a link to one
/// of them alone, and the server finds its own files beside its real place.
fn holds_server(dir: &Path) -> Option<PathBuf> {
    let bin = dir.join("postgres").canonicalize().ok()?.parent()?.to_owned();
    bin.join("initdb").is_file().then_some(bin)
}

async fn pg_config_bindir() -> Option<PathBuf> {
    let asked = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).output().await;
    let said = asked.ok().filter(|output| output.status.success())?;
    Some(PathBuf::from(String::from_utf8(said.stdout).ok()?.trim()))
}

async fn major(postgres: &Path) -> Result<u32, ClusterError> {
    let broken =
        |detail: String| ClusterError::BrokenServer { program: postgres.to_owned(), detail };
    let asked = Command::new(postgres).arg("-V").stdin(Stdio::null()).output().await;
    let said = asked.map_err(|error| broken(error.to_string()))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let version = text.split_once(") ").and_then(|(_, rest)| number(rest));
    version.ok_or_else(|| broken(format!("{} {}", text.trim(), tail(&said.stderr))))
}

/// The leading number: `15.18 (Debian ..)`, `18beta1` and `17\n` are 15, 18 and 17.
fn number(text: &str) -> Option<u32> {
    let digits = text.trim().split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_leading_number() {
        let texts = ["15.18 (Debian 15.18-0+deb12u1)", "18beta1", "17\n", "devel", ""];
        assert_eq!(texts.map(number), [Some(15), Some(18), Some(17), None, None]);
    }
}
