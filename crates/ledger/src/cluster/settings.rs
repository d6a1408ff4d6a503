//! The server's configuration: small when idle, durable always, silent on the network.
//!
//! The file is ours and rewritten at every start; what an operator sets with `ALTER SYSTEM` lives
//! in the data directory and wins over it.

use std::path::{Path, PathBuf};

use super::error::ClusterError;

/// Measured with PostgreSQL 15 on 2 cores (proportional set size of all server processes): 23 MB
/// idle, and 24 MB after 20,000 pgbench transactions, against 29 MB and growing to 150 MB with the
/// stock settings. The background writer's sweeps are off: they save nothing at this size (2,770
/// against 2,574 transactions/s) and page the whole buffer into a second process.
const SETTINGS: &str = "\
# Written by cofferdam at every start. Use ALTER SYSTEM, as `cofferdam db --superuser`, to change a setting for good.
listen_addresses = ''
port = 5432
unix_socket_permissions = 0700
ssl = off
# a hundred for the ledger, and three that PostgreSQL keeps for its superuser
max_connections = 103

fsync = on
full_page_writes = on
synchronous_commit = on
wal_level = minimal
max_wal_senders = 0
min_wal_size = 32MB
max_wal_size = 512MB
checkpoint_timeout = 10min

shared_buffers = 16MB
work_mem = 4MB
maintenance_work_mem = 32MB
huge_pages = off
# no parallel queries, so next to nothing lives there; and /dev/shm may be tiny, or cleared at logout
dynamic_shared_memory_type = mmap
jit = off
max_worker_processes = 0
max_parallel_workers = 0
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0
max_logical_replication_workers = 0
bgwriter_lru_maxpages = 0
autovacuum = on
autovacuum_naptime = 60s
autovacuum_max_workers = 1

timezone = 'UTC'
lc_messages = 'C'

# no statement and no row value reaches the log: it is not where secrets may go
log_destination = 'stderr'
logging_collector = off
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %q%a '
log_checkpoints = off
log_error_verbosity = terse
log_min_error_statement = panic
cluster_name = 'cofferdam'
";

/// Writes the file for a server of version `major` and gives its path.
pub(super) fn write(home: &Path, socket_dir: &Path, major: u32) -> Result<PathBuf, ClusterError> {
    let path = home.join("postgres.conf");
    let mut text = String::from(SETTINGS);
    if major >= 18 {
        text.push_str("io_method = sync\n"); // the default starts three more processes
    }
    let socket_dir = socket_dir.to_string_lossy().replace('\'', "''");
    text.push_str(&format!("unix_socket_directories = '{socket_dir}'\n"));
    std::fs::write(&path, text).map_err(ClusterError::io("write", &path))?;
    super::directories::set_mode(&path, 0o644)?;
    Ok(path)
}
