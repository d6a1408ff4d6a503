//! The environment of a command. Pure.

use std::collections::BTreeMap;

use crate::host::guest::GITCONFIG_PATH;
use crate::images::ImageRoot;

/// `PATH` of a command where neither its image nor its request says another.
pub const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The whole environment of a command that asks for these variables; `home` is its user's, absent where no user is named.
pub(crate) fn environment(
    asked: &BTreeMap<String, String>,
    image: Option<&ImageRoot>,
    home: Option<&str>,
) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = [
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("PATH", USUAL_PATH),
        ("TERM", "dumb"),
        ("GIT_CONFIG_SYSTEM", GITCONFIG_PATH),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if let Some(home) = home {
        env.insert("HOME".to_owned(), home.to_owned());
    }
    env.extend(image.map(|image| image.env.clone()).unwrap_or_default());
    env.extend(asked.iter().map(|(name, value)| (name.clone(), value.clone())));
    env
}
