//! Mirrors: what `@pip` and the like mean is asked of this machine's own clients, when it is needed.
//!
//! Nothing is written down here: neither a registry's name nor where it keeps its files. A client
//! that is not installed, or does not know, fails the sandbox by the mirror's name.

mod apt;
mod cargo;
mod npm;
mod pip;

use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Command;
use url::Url;

use super::Variables;
use super::dial::Upstream;
use super::policy::{MirrorName, Name, Wire};

/// A client that starts an interpreter on a busy host.
const ASK_MS: u64 = 30_000;

/// One place of a mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub name: Name,
    pub port: u16,
    pub wire: Wire,
}

/// A mirror as this machine's client is configured.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    pub origins: Vec<Origin>,
    /// The proxy that this client is told to use.
    pub via: Option<Upstream>,
    /// What makes the same client in a sandbox use it, credentials included.
    pub env: Variables,
    /// The certificates that this client trusts.
    pub ca: Option<PathBuf>,
}

impl Mirror {
    /// Adds the place that a client's URL names.
    fn origin(&mut self, text: &str) -> Result<(), String> {
        let text = text.strip_prefix("sparse+").unwrap_or(text);
        // The URL itself may hold a password: it is not repeated.
        let url = Url::parse(text).map_err(|_| "an address that is no URL".to_owned())?;
        let wire = match url.scheme() {
            "https" => Wire::Tls,
            "http" => Wire::Plain,
            other => return Err(format!("the scheme {other:?} is not carried")),
        };
        let name = url.host_str().and_then(Name::parse);
        let name = name.ok_or("it is not at a domain name: use the operator's table of hosts")?;
        let port = url.port_or_known_default().ok_or("it has no port")?;
        let origin = Origin { name, port, wire };
        if !self.origins.contains(&origin) {
            self.origins.push(origin);
        }
        Ok(())
    }

    fn proxy(&mut self, text: &str) -> Result<(), String> {
        let upstream = Upstream::parse(text).ok_or("its proxy is not an http:// proxy")?;
        self.via = Some(upstream);
        Ok(())
    }
}

/// Asks the client.
pub(crate) async fn resolve(name: MirrorName) -> Result<Mirror, String> {
    let mirror = match name {
        MirrorName::Pip => pip::mirror().await,
        MirrorName::Npm => npm::mirror().await,
        MirrorName::Cargo => cargo::mirror(),
        MirrorName::Apt => apt::mirror().await,
    }?;
    if mirror.origins.is_empty() {
        return Err("this machine's client names no server".into());
    }
    Ok(mirror)
}

/// What a client says about itself, on standard output.
async fn ask(program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    // Not from a directory whose own configuration would speak for the machine.
    command.args(args).current_dir("/").kill_on_drop(true);
    let limit = Duration::from_millis(ASK_MS);
    let said = tokio::time::timeout(limit, command.output())
        .await
        .map_err(|_| format!("{program} did not answer within {ASK_MS} ms"))?
        .map_err(|error| format!("{program} cannot be asked: {error}"))?;
    if !said.status.success() {
        return Err(format!("{program} did not say ({})", said.status));
    }
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_name_a_port_and_what_is_spoken() {
        let mut mirror = Mirror::default();
        for text in [
            "https://user:secret@a.example/simple",
            "https://a.example:443/files",
            "http://b.example:8081/",
            "sparse+https://c.example:8443/index/",
        ] {
            mirror.origin(text).unwrap();
        }
        let all: Vec<_> =
            mirror.origins.iter().map(|o| (o.name.as_str(), o.port, o.wire)).collect();
        assert_eq!(
            all,
            [
                ("a.example", 443, Wire::Tls),
                ("b.example", 8081, Wire::Plain),
                ("c.example", 8443, Wire::Tls),
            ]
        );
        for text in ["https://u:secret@10.0.0.1/", "file:///srv/x", "secret", "ftp://a.example"] {
            let error = mirror.origin(text).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
