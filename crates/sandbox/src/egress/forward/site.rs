//! A site that the host fetches from: which of its paths are for packages, and which of them the host's
//! credentials are for. Pure.

use hyper::header::HeaderValue;

use super::super::policy::{Name, Wire};
use super::path;

/// One site of a mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MirrorOrigin {
    pub name: Name,
    pub port: u16,
    pub wire: Wire,
}

/// A header's value that says who asks. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials(pub(super) HeaderValue);

impl Credentials {
    pub(crate) fn new(text: &str) -> Option<Self> {
        let mut value = HeaderValue::from_str(text).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

/// Whose pages a site has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexKind {
    Pip,
    Npm,
}

/// One site that the host fetches from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MirrorBase {
    /// What it is called inside.
    pub alias: Name,
    /// Where it really is.
    pub place: MirrorOrigin,
    /// What is below this path, which ends with a slash, may be fetched.
    pub prefix: String,
    /// Whose pages link to files; a site of files alone is never rewritten, and asks for no credentials.
    pub index: Option<IndexKind>,
    pub credentials: Option<Credentials>,
}

/// One of a mirror's sites.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MirrorSite<'a> {
    /// Its number among them.
    pub index: usize,
    pub base: &'a MirrorBase,
}

/// Last steps of pip's indexes, beside which the files of their packages lie.
const SIMPLE: [&str; 2] = ["/simple/", "/+simple/"];
/// Where those files lie if the index is at its server's root.
const FILES_OF_A_ROOT: &str = "/packages/";
/// Where one kind of npm's servers gives away the credentials that it is asked with: the step below a
/// registry whose path holds the first part.
const GIVES_AWAY: (&str, &str) = ("/api/npm/", "auth");

impl MirrorBase {
    /// Whether a path lies below the site's own one.
    pub(super) fn holds(&self, path: &str) -> bool {
        path::plain(path).is_some_and(|plain| self.below(&plain).is_some())
    }

    /// What of a plain path is below the site's own one.
    fn below<'p>(&self, plain: &'p str) -> Option<&'p str> {
        let prefix = path::plain(&self.prefix)?;
        plain.strip_prefix(&*prefix).or_else(|| (prefix.strip_suffix('/')? == plain).then_some(""))
    }

    /// Whether a request for this path is one for packages, of this site.
    pub(super) fn may_fetch(&self, path: &str, is_linked: bool) -> bool {
        let Some(plain) = path::plain(path) else { return false };
        let Some(below) = self.below(&plain) else { return is_linked };
        match self.index {
            None => true,
            // The list of all projects has no name.
            Some(IndexKind::Pip) => below.is_empty() || begins_as_a_name(below),
            Some(IndexKind::Npm) => {
                begins_as_a_name(below) && !self.gives_away(below) && (is_linked || is_npms(below))
            }
        }
    }

    fn gives_away(&self, below: &str) -> bool {
        self.prefix.contains(GIVES_AWAY.0) && below.split('/').next() == Some(GIVES_AWAY.1)
    }

    /// Whether the credentials are for this path: below the site's own one or, for pip, where an index
    /// keeps the files of its packages.
    pub(super) fn knows_us(&self, path: &str) -> bool {
        let Some(plain) = path::plain(path) else { return false };
        if self.below(&plain).is_some() {
            return true;
        }
        let Some(prefix) = path::plain(&self.prefix) else { return false };
        let parent = SIMPLE.iter().find_map(|last| prefix.strip_suffix(last));
        match parent.filter(|_| self.index == Some(IndexKind::Pip)) {
            Some("") => plain.starts_with(FILES_OF_A_ROOT),
            Some(parent) => plain
                .strip_prefix(parent)
                .and_then(|rest| rest.strip_prefix('/'))
                .is_some_and(begins_as_a_name),
            None => false,
        }
    }

    /// The site as a `Host` header says it.
    pub(crate) fn host(&self) -> String {
        let MirrorOrigin { name, port, wire } = &self.place;
        match (wire, port) {
            (Wire::Tls, 443) | (Wire::Plain, 80) => name.to_string(),
            _ => format!("{name}:{port}"),
        }
    }

    /// The real address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.place.wire == Wire::Tls { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.host())
    }
}

/// What is about the account begins with a dash or a line, at every server that is known: `-/whoami`,
/// `_session`. No package's name does, and devpi's files begin with a plus.
fn begins_as_a_name(below: &str) -> bool {
    below.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '@' | '+'))
}

/// A package's page, `name` or `@scope/name`, or what it keeps below `-/`.
fn is_npms(below: &str) -> bool {
    let name = usize::from(below.starts_with('@')) + 1;
    let steps: Vec<&str> = below.strip_suffix('/').unwrap_or(below).split('/').collect();
    steps.len() == name || (steps.len() > name + 1 && steps.get(name) == Some(&"-"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn base(
        (alias, host, port): (&str, &str, u16),
        prefix: &str,
        index: Option<IndexKind>,
    ) -> MirrorBase {
        let name = |text: &str| Name::parse(text).unwrap();
        let place = MirrorOrigin { name: name(host), port, wire: Wire::Tls };
        let credentials = index.and_then(|_| Credentials::new("Basic dTpw"));
        MirrorBase { alias: name(alias), place, prefix: prefix.into(), index, credentials }
    }

    #[test]
    fn s10_what_is_about_the_account_is_refused_however_it_is_written() {
        let place = ("npm-0.m.internal", "n.example", 443);
        let npm = base(place, "/api/npm/own/", Some(IndexKind::Npm));
        let of = |rest: &str| npm.may_fetch(&format!("/api/npm/own/{rest}"), false);
        for good in [
            "tiny",
            "tiny/",
            "@a/tiny",
            "@a%2ftiny",
            "tiny/-/tiny-1.0.0.tgz",
            "@a/b/-/@a/b-1.tgz?x",
        ] {
            assert!(of(good), "{good}");
        }
        for bad in [
            "",
            "-",
            "-/",
            "-/whoami",
            "-/npm/v1/tokens",
            "%2d/whoami",
            "-;a/whoami",
            "%5c-/whoami",
            "\\-/whoami",
            "%20-/whoami",
            "-%2fwhoami",
            "%252d/whoami",
            "-x",
            "_session",
            "tiny/1.0.0",
            "tiny/x/y",
            "@a",
            "tiny/-",
            "%e2%80%90/whoami",
        ] {
            assert!(!of(bad), "{bad}");
        }
        let linked = |path: &str| npm.may_fetch(path, true);
        assert!(linked("/elsewhere/x.tgz") && !npm.may_fetch("/elsewhere/x.tgz", false));
        assert!(!linked("/api/npm/own/-/whoami"));
    }

    #[test]
    fn s60_a_registry_that_gives_credentials_away_is_not_asked_for_them() {
        let place = ("npm-0.m.internal", "n.example", 443);
        let npm = base(place, "/api/npm/own/", Some(IndexKind::Npm));
        for bad in ["auth", "auth/scope", "%61uth/scope", "auth/-/x"] {
            assert!(!npm.may_fetch(&format!("/api/npm/own/{bad}"), true), "{bad}");
        }
        // Elsewhere it is a package.
        assert!(base(place, "/npm/", Some(IndexKind::Npm)).may_fetch("/npm/auth", false));
    }

    #[test]
    fn s9_credentials_are_for_the_places_own_path_alone() {
        let place = ("npm-0.m.internal", "n.example", 443);
        let npm = base(place, "/npm/", Some(IndexKind::Npm));
        assert!(npm.knows_us("/npm/x/-/x.tgz") && !npm.knows_us("/files/x.tgz"));
        for (prefix, knows, not) in [
            ("/repo/simple/", "/repo/packages/a.whl", "/private/file"),
            ("/u/pypi/+simple/", "/u/pypi/+f/1/a.whl", "/u/other/a.whl"),
            ("/simple/", "/packages/a.whl", "/private/file"),
            ("/own/", "/own/a/a.whl", "/packages/a.whl"),
            ("/notsimple/", "/notsimple/a", "/packages/a.whl"),
            ("/repo/simple/", "/repo/simple", "/repo/-/whoami"),
        ] {
            let pip = base(place, prefix, Some(IndexKind::Pip));
            assert!(pip.knows_us(knows) && !pip.knows_us(not), "{prefix}");
        }
    }
}
