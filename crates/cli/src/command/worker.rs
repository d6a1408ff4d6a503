//! The flags of what executes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::flag;
use super::remote::RemoteArgs;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WorkerArgs {
    /// Host directory that tasks of every tenant may mount (repeatable)
    #[arg(long = "allow-dir", value_name = "DIR")]
    pub allow_dirs: Vec<PathBuf>,
    /// crun, runc, an absolute path, docker or remote; firecracker or cloud-hypervisor replace QEMU; default: the
    /// best installed runtime
    #[arg(long)]
    pub runtime: Option<String>,
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Resolve an allowed name to this address; allows no further name (repeatable)
    #[arg(long = "egress-host", value_name = "NAME=IP:PORT", value_parser = flag::egress_host)]
    pub egress_hosts: Vec<(String, SocketAddr)>,
    /// Memory of all sandboxes of this worker in MiB; tasks wait in order [default: 9/10 of the host's]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory_mb: Option<u64>,
    /// Allow webhooks to private addresses, this host included
    #[arg(long)]
    pub webhook_private: bool,
}
