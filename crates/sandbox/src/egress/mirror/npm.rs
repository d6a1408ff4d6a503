//! `@npm`: the registry of npm's merged configuration, and the tokens of its user.

use std::collections::BTreeMap;
use std::fs;

use cofferdam_ambient::env;

use super::{Mirror, ask};

const SETTINGS: [&str; 5] = ["registry", "userconfig", "cafile", "https-proxy", "proxy"];
/// Settings that say who asks; npm shows them to nobody, so they are read from the user's file.
const CREDENTIALS: [&str; 4] = [":_authToken", ":_auth", ":username", ":_password"];

pub(super) async fn mirror() -> Result<Mirror, String> {
    let mut args = vec!["config", "get"];
    args.extend(SETTINGS);
    let said = ask("npm", &args).await?;
    let settings: BTreeMap<&str, &str> = said
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim()))
        .filter(|(_, value)| !matches!(*value, "" | "null" | "undefined"))
        .collect();
    let user = settings.get("userconfig").map(fs::read_to_string);
    read(&settings, &user.and_then(Result::ok).unwrap_or_default(), env::var)
}

fn read(
    settings: &BTreeMap<&str, &str>,
    user: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Mirror, String> {
    let mut mirror = Mirror::default();
    let registry = settings.get("registry").ok_or("npm names no registry")?;
    mirror.origin(registry)?;
    mirror.env.0.insert("npm_config_registry".into(), (*registry).to_owned());
    if let Some(proxy) = settings.get("https-proxy").or_else(|| settings.get("proxy")) {
        mirror.proxy(proxy)?;
    }
    mirror.ca = settings.get("cafile").map(Into::into);
    let place = registry.split_once(':').map_or("", |(_, place)| place);
    for (name, value) in user.lines().filter_map(|line| line.split_once('=')) {
        let (name, value) = (name.trim(), value.trim().trim_matches('"'));
        let ours = CREDENTIALS.iter().find_map(|kind| name.strip_suffix(kind));
        if ours.is_some_and(|of| !of.is_empty() && place.starts_with(of)) {
            let named = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
            let value = named.map_or_else(|| Some(value.to_owned()), &variable);
            let value = value.ok_or("npm's credentials are in a variable that is not set")?;
            mirror.env.0.insert(format!("npm_config_{name}"), value);
        }
    }
    Ok(mirror)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_comes_with_its_own_credentials_and_no_others() {
        let settings = BTreeMap::from([
            ("registry", "https://npm.example:8443/api/"),
            ("proxy", "http://proxy.example:3128"),
        ]);
        let user = "audit=false\n//npm.example:8443/api/:_authToken=${TOKEN}\n\
                    //other.example/:_authToken=theirs\n";
        let mirror = read(&settings, user, |name| Some(format!("value of {name}"))).unwrap();
        let origin = &mirror.origins[0];
        assert_eq!((origin.name.as_str(), origin.port), ("npm.example", 8443));
        let token = "npm_config_//npm.example:8443/api/:_authToken";
        assert_eq!(mirror.env.0[token], "value of TOKEN");
        assert_eq!(mirror.env.0.len(), 2);
        assert!(mirror.via.is_some());
        assert!(read(&settings, user, |_| None).is_err());
    }
}
