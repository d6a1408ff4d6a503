//! Which servers the host's `/usr` has, and so a sandbox with `envRef: host`.

use std::fs;
use std::path::{Path, PathBuf};

/// Where Debian keeps one directory for each major version of PostgreSQL.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";
const PLACES: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Programs {
    /// The directory of `initdb` and `postgres`, the newest version's.
    pub postgres: Option<PathBuf>,
    /// Path of `redis-server`, if installed.
    pub redis: Option<PathBuf>,
}

impl Programs {
    /// Looks, once, at start.
    pub(crate) fn find() -> Self {
        let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(POSTGRES_VERSIONS)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.parse().ok()?;
                Some((version, entry.path().join("bin")))
            })
            .filter(|(_, dir)| has_postgres(dir))
            .collect();
        versions.sort_unstable();
        let plain = || PLACES.iter().map(PathBuf::from).find(|dir| has_postgres(dir));
        Self {
            postgres: versions.pop().map(|(_, dir)| dir).or_else(plain),
            redis: PLACES
                .iter()
                .map(|dir| Path::new(dir).join("redis-server"))
                .find(|path| path.is_file()),
        }
    }
}

fn has_postgres(dir: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|name| dir.join(name).is_file())
}
