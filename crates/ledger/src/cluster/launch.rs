//! A start of the server, from its files to its process.

use std::fs::File;
use std::path::Path;

use tokio::process::Child;

use super::account::Account;
use super::directories::ClusterDirs;
use super::error::ClusterError;
use super::postmaster::Launch;
use super::server::Search;
use super::{directories, init, postmaster, roles, settings};

/// Starts the server, and makes its files first where there are none.
pub(super) async fn launch(
    place: &ClusterDirs,
    home: &Path,
    hold: File,
    search: &Search,
) -> Result<Child, ClusterError> {
    let data = &home.join("data");
    let server = &search.server(data).await?;
    let account = &Account::of(data)?;
    place.admit(home, account, server).await?;
    init::data(home, account, server).await?;
    let socket_dir = &directories::socket_dir(home);
    directories::make_socket_dir(socket_dir, account)?;
    let config = &settings::write(home, socket_dir, server.major)?;
    roles::write_law(home, place.state())?;
    roles::split(home, data, account, server, config).await?;
    postmaster::launch(Launch { home, data, socket_dir, config, account, server, hold })
}
