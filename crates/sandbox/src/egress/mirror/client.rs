//! A mirror as this machine's client is configured, and how a client is asked.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use tokio::process::Command;
use url::Url;

use crate::egress::forward::{Credentials, IndexKind, MirrorBase, MirrorOrigin};
use crate::egress::policy::{Name, Wire};
use crate::egress::upstream::Upstream;
use crate::egress::variables::Variables;

/// A client that starts an interpreter on a busy host.
const ASK_MS: u64 = 30_000;
/// Below which mirrors have their names inside: a domain that is nobody's on the internet.
const ALIASES: &str = "mirrors.cofferdam.internal";

/// A mirror as this machine's client is configured.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// Reached by name: without credentials.
    pub origins: Vec<MirrorOrigin>,
    /// Fetched from by the host.
    pub bases: Vec<MirrorBase>,
    /// The proxy that this client is told to use.
    pub via: Option<Upstream>,
    /// What makes the same client in a sandbox use it, by its own names. No credentials.
    pub own: Variables,
    /// The same by its names below [`ALIASES`], which no lock file should have.
    pub aliases: Variables,
    /// The certificates that this client trusts.
    pub ca: Option<PathBuf>,
}

/// A site's URL inside, without credentials.
#[derive(Debug, Clone)]
pub(super) struct MirrorUrls {
    own: String,
    by_alias: String,
}

/// A client's URL, and the site that it names.
fn read(text: &str) -> Result<(Url, MirrorOrigin), String> {
    let text = text.strip_prefix("sparse+").unwrap_or(text);
    // The URL itself may hold a password: it is not repeated.
    let url = Url::parse(text).map_err(|_| "an address that is not a URL".to_owned())?;
    let wire = match url.scheme() {
        "https" => Wire::Tls,
        "http" => Wire::Plain,
        other => return Err(format!("the scheme {other:?} is not carried")),
    };
    let name = url.host_str().and_then(Name::parse);
    let name = name.ok_or("it is not at a domain name: use the operator's table of hosts")?;
    let port = url.port_or_known_default().ok_or("it has no port")?;
    Ok((url, MirrorOrigin { name, port, wire }))
}

/// User and password of a URL, as a header says them.
fn credentials(url: &Url) -> Option<Credentials> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (user, password) = (decode(url.username()), decode(url.password().unwrap_or("")));
    let is_set = !user.is_empty() || !password.is_empty();
    let value = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    is_set.then(|| Credentials::new(&value)).flatten()
}

impl Mirror {
    /// Adds a site that the host fetches from, and gives its URLs inside. `kind` begins its alias.
    pub(super) fn base(
        &mut self,
        kind: &str,
        text: &str,
        index: Option<IndexKind>,
    ) -> Result<MirrorUrls, String> {
        let (url, place) = read(text)?;
        let alias = Name::parse(&format!("{kind}-{}.{ALIASES}", self.bases.len()));
        let alias = alias.ok_or("it has too many places")?;
        let by_alias = format!("http://{alias}{}", url.path());
        let prefix = format!("{}/", url.path().trim_end_matches('/'));
        let credentials = credentials(&url);
        let base = MirrorBase { alias, place, prefix, index, credentials };
        let urls = MirrorUrls { own: base.url(url.path()), by_alias };
        self.bases.push(base);
        Ok(urls)
    }

    /// Sets a variable of the client's, whose value is made of addresses.
    pub(super) fn tell(&mut self, name: &str, urls: &[MirrorUrls]) {
        let join = |of: fn(&MirrorUrls) -> &str| urls.iter().map(of).collect::<Vec<_>>().join(" ");
        self.own.0.insert(name.to_owned(), join(|urls| &urls.own));
        self.aliases.0.insert(name.to_owned(), join(|urls| &urls.by_alias));
    }

    /// Sets a variable of the client's.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        for variables in [&mut self.own, &mut self.aliases] {
            variables.0.insert(name.to_owned(), value.to_owned());
        }
    }

    /// Adds the site that a client's URL names.
    pub(super) fn origin(&mut self, text: &str) -> Result<(), String> {
        let (_, origin) = read(text)?;
        if !self.origins.contains(&origin) {
            self.origins.push(origin);
        }
        Ok(())
    }

    pub(super) fn proxy(&mut self, text: &str) -> Result<(), String> {
        let upstream = Upstream::parse(text).ok_or("its proxy is not an http:// proxy")?;
        self.via = Some(upstream);
        Ok(())
    }
}

/// What a client says about itself, on standard output.
pub(super) async fn ask(program: &str, args: &[&str]) -> Result<String, String> {
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
