//! `@pip`: the indexes of pip's merged configuration, or pip's own.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Mirror, ask};

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
struct Said {
    configured: BTreeMap<String, String>,
    index: String,
    files: String,
}

impl Said {
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

fn read(said: &Said) -> Result<Mirror, String> {
    let mut mirror = Mirror::default();
    match said.setting("index-url") {
        Some(index) => {
            mirror.origin(index)?;
            mirror.env.0.insert("PIP_INDEX_URL".into(), index.to_owned());
        }
        None => {
            mirror.origin(&said.index)?;
            mirror.origin(&said.files)?;
        }
    }
    if let Some(extra) = said.setting("extra-index-url") {
        for index in extra.split_whitespace() {
            mirror.origin(index)?;
        }
        mirror.env.0.insert("PIP_EXTRA_INDEX_URL".into(), extra.to_owned());
    }
    for (name, variable) in
        [("trusted-host", "PIP_TRUSTED_HOST"), ("default-timeout", "PIP_DEFAULT_TIMEOUT")]
    {
        if let Some(value) = said.setting(name) {
            mirror.env.0.insert(variable.into(), value.to_owned());
        }
    }
    if let Some(proxy) = said.setting("proxy") {
        mirror.proxy(proxy)?;
    }
    mirror.ca = said.setting("cert").map(Into::into);
    Ok(mirror)
}

#[cfg(test)]
mod tests {
    use super::super::super::policy::Wire;
    use super::*;

    fn said(configured: &[(&str, &str)]) -> Said {
        Said {
            configured: configured.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            index: "https://index.example/simple/".into(),
            files: "https://files.example/".into(),
        }
    }

    #[test]
    fn the_built_in_index_needs_no_environment() {
        let mirror = read(&said(&[])).unwrap();
        let names: Vec<_> = mirror.origins.iter().map(|o| o.name.as_str()).collect();
        assert_eq!(names, ["index.example", "files.example"]);
        assert!(mirror.env.0.is_empty() && mirror.via.is_none());
    }

    #[test]
    fn a_configured_index_replaces_it_with_its_port_credentials_and_proxy() {
        let mirror = read(&said(&[
            ("global.index-url", "https://old.example/simple"),
            (":env:.index-url", "https://u:p@own.example:8443/simple"),
            ("global.extra-index-url", "http://x.example/a\nhttps://y.example/b"),
            ("global.proxy", "http://proxy.example:3128"),
            ("global.cert", "/etc/own.pem"),
        ]))
        .unwrap();
        let all: Vec<_> =
            mirror.origins.iter().map(|o| (o.name.as_str(), o.port, o.wire)).collect();
        assert_eq!(
            all,
            [
                ("own.example", 8443, Wire::Tls),
                ("x.example", 80, Wire::Plain),
                ("y.example", 443, Wire::Tls),
            ]
        );
        assert_eq!(mirror.env.0["PIP_INDEX_URL"], "https://u:p@own.example:8443/simple");
        assert!(mirror.via.is_some());
        assert_eq!(mirror.ca.unwrap().to_str(), Some("/etc/own.pem"));
    }
}
