//! Mirrors: what `@pip` and the like mean is asked of this machine's own clients, when it is needed.
//!
//! What those clients authenticate with stays on the host: a place with credentials, and every place of pip
//! and npm, is a [`Base`] that the host fetches from. Archives and crates are reached by name, without any.
//!
//! Nothing is written down here: neither a registry's name nor where it keeps its files. A client
//! that is not installed, or does not know, fails the sandbox by the mirror's name.

mod apt;
mod cargo;
mod client;
mod npm;
mod pip;

pub(crate) use client::Mirror;

use super::policy::MirrorName;

/// Asks the client.
pub(crate) async fn resolve(name: MirrorName) -> Result<Mirror, String> {
    let mirror = match name {
        MirrorName::Pip => pip::mirror().await,
        MirrorName::Npm => npm::mirror().await,
        MirrorName::Cargo => cargo::mirror(),
        MirrorName::Apt => apt::mirror().await,
    }?;
    if mirror.origins.is_empty() && mirror.bases.is_empty() {
        return Err("this machine's client names no server".into());
    }
    Ok(mirror)
}
