//! Who holds the sandboxes: what the operator says, checked once.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::random;
use cofferdam_contracts::error::error_chain;
use url::{Host, Url};

use super::api::{Api, RemoteError};
use crate::class::docker;
use crate::host::live;
use crate::host::runtime::Runtime;
use crate::host::task::ask;
use crate::host::traces::markers;
use crate::spec::provider::{Provider, RemoteConfig};

/// The name of the runtime, for the operator who wants it and in every record.
pub(crate) const NAME: &str = "remote";
/// Names of templates and keys are short; what is longer is a mistake, such as a whole file.
const MAX_WORD_BYTES: usize = 512;
const REMEDY: &str = "--runtime remote --remote-url URL --remote-template NAME, and the key in \
                      --remote-key-file or E2B_API_KEY";

/// The provider as a runtime, once it has answered to the key.
pub(crate) fn detect(
    config: Option<&RemoteConfig>,
    state: &Path,
) -> Result<(Runtime, Arc<Provider>), docker::EngineAbsent> {
    let absent = |why: String| (why, REMEDY.to_owned());
    let config = config.ok_or_else(|| absent("no provider was named".to_owned()))?;
    let tag = || tag(state).map_err(|error| absent(format!("its tag cannot be kept: {error}")));
    let provider = Arc::new(Provider::of(config, tag()?).map_err(absent)?);
    let asked = Arc::clone(&provider);
    let answered = ask(async move { Api::of(asked)?.listed(None).await });
    match answered {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(absent(error_chain(&error))),
        Err(error) => return Err(absent(error.to_string())),
    }
    let version = format!("E2B API at {}, template {}", provider.place(), provider.template);
    let runtime =
        Runtime { name: NAME.to_owned(), path: provider.place().into(), version, sealed: None };
    Ok((runtime, provider))
}

impl Provider {
    /// A provider of this configuration, or what is wrong with it. Pure.
    pub(super) fn of(config: &RemoteConfig, tag: String) -> Result<Self, String> {
        let url = base("--remote-url", &config.url)?;
        let sandboxes = config.sandbox_url.as_deref();
        let sandboxes = sandboxes.map(|text| base("--remote-sandbox-url", text)).transpose()?;
        let is_word = |text: &str| {
            !text.is_empty()
                && text.len() <= MAX_WORD_BYTES
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !is_word(&config.template) {
            return Err("--remote-template names no template".to_owned());
        }
        if !is_word(config.key.expose()) {
            return Err("there is no key, or it is not one word".to_owned());
        }
        let (template, key) = (config.template.clone(), config.key.clone());
        Ok(Self { url, sandboxes, template, key, term_s: config.term_s.max(1), tag })
    }

    /// How often a term is prolonged: three chances before it would end.
    pub(super) fn beat(&self) -> Duration {
        Duration::from_millis(self.term_s.saturating_mul(250))
    }

    /// How long a sandbox lives that nobody prolongs.
    pub(crate) fn term(&self) -> Duration {
        Duration::from_secs(self.term_s)
    }

    /// Its URL: it holds no credentials.
    pub(crate) fn place(&self) -> String {
        self.url.as_str().trim_end_matches('/').to_owned()
    }

    /// Where a sandbox's own daemon answers. `domain` is what the provider said of it, with a port or without.
    ///
    /// A provider on this host's loopback speaks plain HTTP, and no name below its domain has a certificate: there
    /// the sandbox answers at the API's own address, and is told apart by headers.
    pub(super) fn daemon(
        &self,
        id: &str,
        domain: Option<&str>,
        port: u16,
    ) -> Result<Url, RemoteError> {
        const WRONG: RemoteError = RemoteError::Forged { what: "where the sandbox answers" };
        if let Some(url) = &self.sandboxes {
            return Ok(url.clone());
        }
        if self.url.scheme() == "http" {
            return Ok(self.url.clone());
        }
        let own = self.url.host_str().map(|host| host.strip_prefix("api.").unwrap_or(host));
        let domain = domain.filter(|text| !text.is_empty()).or(own).ok_or(WRONG)?;
        let (name, at) = domain.split_once(':').map_or((domain, None), |(n, p)| (n, Some(p)));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        let is_port = |at: &str| at.parse::<u16>().is_ok_and(|at| at > 0);
        if !name.bytes().all(is_name) || !at.is_none_or(is_port) {
            return Err(WRONG);
        }
        Url::parse(&format!("https://{port}-{id}.{domain}/")).map_err(|_| WRONG)
    }
}

/// The key and the task's bytes go there, so it is TLS, except to this host's own loopback.
fn base(flag: &str, text: &str) -> Result<Url, String> {
    let wrong =
        || format!("{flag} must be https://HOST or, for this host's loopback, http://HOST:PORT");
    let mut url = Url::parse(text).map_err(|_| wrong())?;
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_loopback);
    let is_bare = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !is_safe || !is_bare || url.host().is_none() {
        return Err(wrong());
    }
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok(url)
}

/// Random, and kept with the state: paths and names of hosts are the same on many machines.
fn tag(state: &Path) -> io::Result<String> {
    let dir = markers(state);
    live::private_dir(&dir)?;
    let path = dir.join("tag");
    match fs::OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(mut file) => io::Write::write_all(&mut file, random::secret_hex(16).as_bytes())?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let tag = fs::read_to_string(&path)?;
    match tag.len() == 32 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(tag),
        false => Err(io::Error::other(format!("{} holds none", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::provider::Key;

    fn at(url: &str, sandbox_url: Option<&str>, domain: Option<&str>) -> Option<String> {
        let config = RemoteConfig {
            url: url.to_owned(),
            sandbox_url: sandbox_url.map(str::to_owned),
            template: "base".to_owned(),
            key: Key::new("k"),
            term_s: 1,
        };
        let provider = Provider::of(&config, "t".to_owned()).unwrap();
        provider.daemon("i1", domain, 49_983).ok().map(Url::into)
    }

    #[test]
    fn a_sandbox_answers_at_a_name_of_its_own_but_on_loopback_where_its_provider_does() {
        let api = "https://api.provider.example";
        for (domain, want) in [
            (None, "https://49983-i1.provider.example/"),
            (Some(""), "https://49983-i1.provider.example/"),
            (Some("other.example"), "https://49983-i1.other.example/"),
            // As our own server says it where it listens on another port than 443.
            (Some("other.example:7070"), "https://49983-i1.other.example:7070/"),
        ] {
            assert_eq!(at(api, None, domain).as_deref(), Some(want), "{domain:?}");
        }
        for domain in ["a/b", "a@b", "a:b", "a:0", "a:1:2", "a b", "[::1]:1"] {
            assert_eq!(at(api, None, Some(domain)), None, "{domain}");
        }
        let own = "http://127.0.0.1:7070";
        assert_eq!(at(own, None, Some("localhost:7070")).unwrap(), format!("{own}/"));
        let said = at(own, Some("https://sandboxes.example"), Some("localhost:7070"));
        assert_eq!(said.as_deref(), Some("https://sandboxes.example/"));
    }
}
