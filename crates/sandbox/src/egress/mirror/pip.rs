//! `@pip`: the indexes of pip's merged configuration, or pip's own. uv is told of the same.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::client::{Mirror, ask};
use crate::egress::forward::{IndexKind, MirrorBase};
use crate::egress::policy::Wire;

/// How its sites' names begin inside.
const KIND: &str = "pip";
/// pip's configuration (files and environment, later ones win) and the index that it has built in.
const SCRIPT: &str = "\
import json
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
found = Configuration(isolated=False)
found.load()
print(json.dumps({
    'configured': {key: str(value) for key, value in found.items() if isinstance(value, str)},
    'index': PyPI.simple_url,
    'files': 'https://' + PyPI.file_storage_domain + '/',
}))
";

#[derive(Deserialize)]
struct PipAnswer {
    configured: BTreeMap<String, String>,
    index: String,
    files: String,
}

impl PipAnswer {
    /// A setting: of the environment, of the command, of all commands.
    fn setting(&self, name: &str) -> Option<&str> {
        [":env:", "install", "global"]
            .iter()
            .find_map(|section| self.configured.get(&format!("{section}.{name}")))
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }
}

pub(super) async fn mirror() -> Result<Mirror, String> {
    let said = ask("python3", &["-c", SCRIPT]).await?;
    let said = serde_json::from_str(&said).map_err(|_| "pip's answer was not understood")?;
    read(&said)
}

fn read(said: &PipAnswer) -> Result<Mirror, String> {
    let mut mirror = Mirror::default();
    let index = match said.setting("index-url") {
        Some(index) => mirror.base(KIND, index, Some(IndexKind::Pip))?,
        None => {
            let index = mirror.base(KIND, &said.index, Some(IndexKind::Pip))?;
            mirror.base(KIND, &said.files, None)?;
            index
        }
    };
    for name in ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"] {
        mirror.tell(name, std::slice::from_ref(&index));
    }
    if let Some(extra) = said.setting("extra-index-url") {
        let all: Result<Vec<_>, _> = extra
            .split_whitespace()
            .map(|index| mirror.base(KIND, index, Some(IndexKind::Pip)))
            .collect();
        let all = all?;
        for name in ["PIP_EXTRA_INDEX_URL", "UV_INDEX"] {
            mirror.tell(name, &all);
        }
    }
    // By its alias it is plain HTTP to the host, which verifies the index's certificate.
    let aliases = mirror.bases.iter().map(|base| base.alias.to_string());
    let plain = mirror.bases.iter().filter(|base| base.place.wire == Wire::Plain);
    let trusted: Vec<_> = aliases.chain(plain.map(MirrorBase::host)).collect();
    mirror.set("PIP_TRUSTED_HOST", &trusted.join(" "));
    if let Some(value) = said.setting("default-timeout") {
        mirror.set("PIP_DEFAULT_TIMEOUT", value);
    }
    if let Some(proxy) = said.setting("proxy") {
        mirror.proxy(proxy)?;
    }
    mirror.ca = said.setting("cert").map(Into::into);
    Ok(mirror)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::forward::Credentials;

    fn said(configured: &[(&str, &str)]) -> PipAnswer {
        PipAnswer {
            configured: configured.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            index: "https://index.example/simple/".into(),
            files: "https://files.example/".into(),
        }
    }

    #[test]
    fn the_built_in_index_is_fetched_from_with_its_files() {
        let mirror = read(&said(&[])).unwrap();
        let names: Vec<_> =
            mirror.bases.iter().map(|b| (b.place.name.as_str(), b.index.is_some())).collect();
        assert_eq!(names, [("index.example", true), ("files.example", false)]);
        assert_eq!(mirror.own.0["PIP_INDEX_URL"], "https://index.example/simple/");
        let env = &mirror.aliases.0;
        assert_eq!(env["PIP_INDEX_URL"], "http://pip-0.mirrors.cofferdam.internal/simple/");
        assert!(mirror.via.is_none() && mirror.origins.is_empty());
        assert!(mirror.bases.iter().all(|base| base.credentials.is_none()));
    }

    #[test]
    fn h4_a_configured_index_keeps_its_credentials_on_the_host() {
        let mirror = read(&said(&[
            ("global.index-url", "https://old.example/simple"),
            (":env:.index-url", "https://us%65r:s3cret@own.example:8443/simple"),
            ("global.extra-index-url", "http://x.example/a\nhttps://t0ken@y.example/b/"),
            ("global.proxy", "http://proxy.example:3128"),
            ("global.cert", "/etc/own.pem"),
        ]))
        .unwrap();
        let all: Vec<_> = mirror
            .bases
            .iter()
            .map(|b| (b.place.name.as_str(), b.place.port, b.place.wire, b.prefix.as_str()))
            .collect();
        assert_eq!(
            all,
            [
                ("own.example", 8443, Wire::Tls, "/simple/"),
                ("x.example", 80, Wire::Plain, "/a/"),
                ("y.example", 443, Wire::Tls, "/b/"),
            ]
        );
        let basic = |text: &str| Credentials::new(text);
        assert_eq!(mirror.bases[0].credentials, basic("Basic dXNlcjpzM2NyZXQ="));
        assert_eq!(mirror.bases[1].credentials, None);
        assert_eq!(mirror.bases[2].credentials, basic("Basic dDBrZW46"));
        let (own, env) = (&mirror.own.0, &mirror.aliases.0);
        assert_eq!(env["PIP_INDEX_URL"], "http://pip-0.mirrors.cofferdam.internal/simple");
        assert_eq!(
            env["PIP_EXTRA_INDEX_URL"],
            "http://pip-1.mirrors.cofferdam.internal/a http://pip-2.mirrors.cofferdam.internal/b/"
        );
        assert_eq!(own["UV_DEFAULT_INDEX"], "https://own.example:8443/simple");
        assert_eq!(own["UV_INDEX"], "http://x.example/a https://y.example/b/");
        // Only what is plain HTTP needs no certificate.
        let trusted: Vec<&str> = own["PIP_TRUSTED_HOST"].split(' ').collect();
        assert!(trusted.contains(&"x.example") && !own["PIP_TRUSTED_HOST"].contains("y.example"));
        for (name, value) in own.iter().chain(env) {
            assert!(!value.contains("s3cret") && !value.contains("t0ken"), "{name}={value}");
        }
        assert!(!format!("{mirror:?}").contains("s3cret"));
        assert!(mirror.via.is_some());
        assert_eq!(mirror.ca.unwrap().to_str(), Some("/etc/own.pem"));
    }
}
