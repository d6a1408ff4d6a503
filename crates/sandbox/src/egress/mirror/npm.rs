//! `@npm`: the registry of npm's merged configuration, and the tokens of its user, which stay on the host.

use std::collections::BTreeMap;
use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_ambient::env;

use super::client::{Mirror, ask};
use crate::egress::forward::{Credentials, IndexKind};

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
    let urls = [mirror.base("npm", registry, Some(IndexKind::Npm))?];
    // npm, yarn and pnpm read the first, Deno and Bun the other.
    for name in ["npm_config_registry", "NPM_CONFIG_REGISTRY"] {
        mirror.tell(name, &urls);
    }
    // A lock file names the registry that it was made with.
    mirror.set("npm_config_replace_registry_host", "always");
    // An audit sends the list of packages, and nothing can be sent.
    mirror.set("npm_config_audit", "false");
    if let Some(proxy) = settings.get("https-proxy").or_else(|| settings.get("proxy")) {
        mirror.proxy(proxy)?;
    }
    mirror.ca = settings.get("cafile").map(Into::into);
    let place = registry.split_once(':').map_or("", |(_, place)| place);
    let found = who_asks(place, user, variable)?;
    if let Some(base) = mirror.bases.first_mut() {
        base.credentials = found.or(base.credentials.take());
    }
    Ok(mirror)
}

/// The user's credentials for a registry, of the nearest path that has any.
fn who_asks(
    place: &str,
    user: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Credentials>, String> {
    let mut found: BTreeMap<(usize, &str), String> = BTreeMap::new();
    for (name, value) in user.lines().filter_map(|line| line.split_once('=')) {
        let (name, value) = (name.trim(), value.trim().trim_matches('"'));
        let ours = CREDENTIALS.iter().find_map(|kind| Some((name.strip_suffix(kind)?, *kind)));
        let Some((of, kind)) = ours.filter(|(of, _)| is_at(place, of)) else { continue };
        let named = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let value = named.map_or_else(|| Some(value.to_owned()), &variable);
        let value = value.ok_or("npm's credentials are in a variable that is not set")?;
        found.insert((of.len(), kind), value);
    }
    let Some(nearest) = found.keys().map(|(length, _)| *length).max() else { return Ok(None) };
    let setting = |kind| found.get(&(nearest, kind)).map(String::as_str);
    let value = match (setting(":_authToken"), setting(":_auth")) {
        (Some(token), _) => format!("Bearer {token}"),
        (None, Some(pair)) => format!("Basic {pair}"),
        (None, None) => {
            let password = STANDARD.decode(setting(":_password").unwrap_or("")).unwrap_or_default();
            let user = setting(":username").unwrap_or("");
            let pair = [user.as_bytes(), b":", &password].concat();
            format!("Basic {}", STANDARD.encode(pair))
        }
    };
    let unfit = || "npm's credentials cannot be sent in a header".to_owned();
    Credentials::new(&value).map(Some).ok_or_else(unfit)
}

/// Whether credentials for a site are for the registry: whole steps of its path.
fn is_at(registry: &str, of: &str) -> bool {
    let of = of.trim_end_matches('/');
    let rest = registry.strip_prefix(of).filter(|_| !of.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(user: &str) -> Result<Mirror, String> {
        let settings = BTreeMap::from([
            ("registry", "https://npm.example:8443/api/"),
            ("proxy", "http://proxy.example:3128"),
        ]);
        read(&settings, user, |name| (name == "TOKEN").then(|| "s3cret".to_owned()))
    }

    #[test]
    fn h4_a_registrys_credentials_stay_on_the_host_and_no_others_are_read() {
        for (user, expected) in [
            ("audit=false\n//npm.example:8443/api/:_authToken=${TOKEN}\n", Some("Bearer s3cret")),
            ("//npm.example:8443/:_auth=\"dTpw\"\n", Some("Basic dTpw")),
            (
                "//npm.example:8443/api/:username=u\n//npm.example:8443/api/:_password=cA==\n",
                Some("Basic dTpw"),
            ),
            (
                "//npm.example:8443/:_authToken=far\n//npm.example:8443/api/:_authToken=near\n",
                Some("Bearer near"),
            ),
            ("//other.example/:_authToken=theirs\n//npm.example:844/:_authToken=theirs\n", None),
            ("//npm.example:8443/apiary/:_authToken=theirs\n:_authToken=theirs\n", None),
        ] {
            let mirror = with(user).unwrap();
            let base = &mirror.bases[0];
            assert_eq!((base.place.name.as_str(), base.place.port), ("npm.example", 8443));
            assert_eq!(base.credentials, expected.and_then(Credentials::new), "{user}");
            for (env, registry) in [
                (&mirror.own.0, "https://npm.example:8443/api/"),
                (&mirror.aliases.0, "http://npm-0.mirrors.cofferdam.internal/api/"),
            ] {
                assert_eq!(env["npm_config_registry"], registry);
                assert!(env.keys().all(|name| !name.contains("_auth")), "{env:?}");
                assert!(mirror.via.is_some() && !format!("{mirror:?} {env:?}").contains("s3cret"));
            }
        }
        assert!(with("//npm.example:8443/api/:_authToken=${UNSET}\n").is_err());
    }
}
