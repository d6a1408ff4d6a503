//! What pages of an index link to beside its own path: the files of a package. Pure, but for the list.
//!
//! A link is what the index itself says about a file: an anchor of pip's HTML, `files[].url` of its JSON,
//! `versions.*.dist.tarball` of npm's. **Text of a package's author teaches nothing, and neither does a page
//! that is no project's**: a file that calls itself a page is none.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use url::Url;

use super::pages::{MAX_LINK_BYTES, Page, asked, of_url};
use super::site::{IndexKind, MirrorBase, MirrorSite};
use super::{anchors, path};
use crate::egress::policy::MirrorName;

/// Links outside their index's own path that one sandbox may follow: more than a large project's page has.
/// A fresh page makes room, because it is fetched before its files.
const MAX_LINKS: usize = 20_000;
/// Beside a file, its metadata: pip derives the address.
const METADATA: &str = ".metadata";

/// What pages linked to, by mirror and site.
#[derive(Debug, Default)]
pub(crate) struct PageLinks(Mutex<HashSet<(MirrorName, PageLink)>>);

/// What a page links to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageLink {
    /// The number of the mirror's site that it is at.
    pub place: usize,
    /// Path and query there.
    pub path: String,
}

impl PageLinks {
    pub(crate) fn learn(&self, mirror: MirrorName, found: Vec<PageLink>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len().saturating_add(found.len()) > MAX_LINKS {
            known.clear();
        }
        known.extend(found.into_iter().map(|link| (mirror, link)));
    }

    pub(crate) fn holds(&self, mirror: MirrorName, place: usize, path: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |path: &str| known.contains(&(mirror, PageLink { place, path: path.to_owned() }));
        has(path) || path.strip_suffix(METADATA).is_some_and(has)
    }
}

/// pip's page of a project in JSON.
#[derive(Deserialize)]
struct Project<'a> {
    #[serde(borrow)]
    files: Vec<File<'a>>,
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    url: Cow<'a, str>,
}

/// npm's page of a package.
#[derive(Deserialize)]
struct Package<'a> {
    #[serde(borrow)]
    versions: HashMap<Cow<'a, str>, Version<'a>>,
}

#[derive(Deserialize)]
struct Version<'a> {
    #[serde(borrow, default)]
    dist: Option<Dist<'a>>,
}

#[derive(Deserialize)]
struct Dist<'a> {
    #[serde(borrow, default)]
    tarball: Option<Cow<'a, str>>,
}

/// What a page links to that is no site's own path, with the site that it is at: the page's own, or one
/// that asks for no credentials.
pub(crate) fn links(
    bases: &[MirrorBase],
    own: MirrorSite<'_>,
    path: &str,
    kind: Page,
    text: &[u8],
) -> Vec<PageLink> {
    let base = own.base;
    let Some(index) = base.index.filter(|index| is_project(*index, base, path)) else {
        return Vec::new();
    };
    let Ok(page) = Url::parse(&base.url(path)) else { return Vec::new() };
    let mut found = Vec::new();
    for link in said(index, kind, text) {
        if found.len() == MAX_LINKS {
            break;
        }
        if link.len() > MAX_LINK_BYTES {
            continue;
        }
        let Ok(url) = page.join(&link) else { continue };
        let Some(place) = of_url(bases, &url) else { continue };
        let asked = asked(&url);
        let is_ours = place.index == own.index || place.base.credentials.is_none();
        if is_ours && asked.len() <= MAX_LINK_BYTES && !place.base.holds(&asked) {
            found.push(PageLink { place: place.index, path: asked });
        }
    }
    found
}

/// Whether a path is a project's page: `simple/name/`, `name` or `@scope/name` below the index's own path.
fn is_project(index: IndexKind, base: &MirrorBase, path: &str) -> bool {
    let prefix = path::plain(&base.prefix);
    let plain = path::plain(path);
    let below = plain.as_deref().zip(prefix.as_deref()).and_then(|(all, of)| all.strip_prefix(of));
    let Some(name) = below.map(|name| name.strip_suffix('/').unwrap_or(name)) else {
        return false;
    };
    let steps = name.split('/').count();
    let most = usize::from(index == IndexKind::Npm && name.starts_with('@')) + 1;
    !name.is_empty() && steps == most
}

fn said(index: IndexKind, kind: Page, text: &[u8]) -> Vec<String> {
    match (index, kind) {
        (IndexKind::Pip, Page::Html) => anchors::hrefs(text, MAX_LINKS),
        (IndexKind::Pip, Page::Json) => serde_json::from_slice::<Project<'_>>(text)
            .map(|page| page.files.into_iter().map(|file| file.url.into_owned()).collect())
            .unwrap_or_default(),
        (IndexKind::Npm, Page::Json) => {
            let page = serde_json::from_slice::<Package<'_>>(text);
            let versions = page.map(|page| page.versions).unwrap_or_default();
            let tarball = |version: Version<'_>| Some(version.dist?.tarball?.into_owned());
            versions.into_values().filter_map(tarball).collect()
        }
        (IndexKind::Npm, Page::Html) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::site::tests::base;
    use super::*;

    fn bases() -> Vec<MirrorBase> {
        let (pip, npm) = (Some(IndexKind::Pip), Some(IndexKind::Npm));
        vec![
            base(("pip-0.m.internal", "index.example", 443), "/api/pypi/simple/", pip),
            base(("pip-1.m.internal", "other.example", 443), "/simple/", pip),
            base(("npm-0.m.internal", "npm.example", 443), "/npm/", npm),
        ]
    }

    fn taught(index: usize, path: &str, kind: Page, text: &str) -> Vec<PageLink> {
        let all = bases();
        let own = MirrorSite { index, base: &all[index] };
        links(&all, own, path, kind, text.as_bytes())
    }

    fn link(place: usize, path: &str) -> PageLink {
        PageLink { place, path: path.to_owned() }
    }

    const A: &str = "/api/pypi/simple/a/";

    #[test]
    fn h4_what_a_page_links_to_may_be_fetched_and_nothing_beside_it() {
        let html = "<a href='../../packages/a-1.whl#sha256=0'>a</a> <a href=\"/b.whl?x=1&amp;y=2\">b</a> \
                    <a href=\"https://index.example/api/pypi/simple/c/\"> <a href = \"https://evil.example/d\">";
        let found = taught(0, A, Page::Html, html);
        assert_eq!(found, [link(0, "/api/pypi/packages/a-1.whl"), link(0, "/b.whl?x=1&y=2")]);
        let links = PageLinks::default();
        let pip = MirrorName::Pip;
        links.learn(pip, taught(0, A, Page::Json, r#"{"files": [{"url": "\/p\/e.whl"}]}"#));
        assert!(links.holds(pip, 0, "/p/e.whl") && links.holds(pip, 0, "/p/e.whl.metadata"));
        assert!(!links.holds(pip, 1, "/p/e.whl") && !links.holds(pip, 0, "/p/g.whl"));
        assert!(!links.holds(MirrorName::Npm, 0, "/p/e.whl"));
    }

    #[test]
    fn s9_a_page_teaches_only_tarballs_of_versions() {
        let page = r#"{"readme": "\"tarball\": \"/p/1\" <a href='/p/2'>", "tarball": "/p/3", "url": "/p/4",
            "dist": {"tarball": "/p/5"}, "bugs": {"url": "/p/6", "dist": {"tarball": "/p/7"}},
            "versions": {"1": {"dist": {"tarball": "/t/1.tgz", "url": "/p/8"}, "url": "/p/9",
            "x": {"dist": {"tarball": "/p/10"}}}, "2": {"dist": {"tarball": "https://npm.example/t/2.tgz"}}, "3": {}}}"#;
        let mut found = taught(2, "/npm/tiny", Page::Json, page);
        found.sort();
        assert_eq!(found, [link(2, "/t/1.tgz"), link(2, "/t/2.tgz")]);
        assert_eq!(taught(2, "/npm/@a%2ftiny", Page::Json, page).len(), 2);
        // A file that calls itself a page is none, and HTML is nothing of npm's.
        for path in ["/npm/tiny/-/tiny-1.0.0.tgz", "/t/1.tgz", "/npm/", "/npm/@a"] {
            assert!(taught(2, path, Page::Json, page).is_empty(), "{path}");
        }
        assert!(taught(2, "/npm/tiny", Page::Html, "<a href=/p>").is_empty());
    }

    #[test]
    fn s9_a_page_of_pips_teaches_its_files_alone() {
        let json = r#"{"files": [{"url": "/f.whl", "yanked": "href='/p/1'"}], "url": "/p/2",
            "meta": {"url": "/p/3", "files": [{"url": "/p/4"}]}}"#;
        assert_eq!(taught(0, A, Page::Json, json), [link(0, "/f.whl")]);
        assert!(taught(0, A, Page::Json, r#"{"files": [], "files": [{"url": "/p"}]}"#).is_empty());
        let html = "<a href=/f.whl data-yanked=\"href='/p/1' <a href='/p/2'>\">href='/p/3'</a>\
                    <!-- <a href=/p/4> --><link href=/p/5>";
        assert_eq!(taught(0, A, Page::Html, html), [link(0, "/f.whl")]);
        for path in ["/api/pypi/simple/", "/api/pypi/simple/a/b.html", "/api/pypi/packages/a.html"]
        {
            assert!(taught(0, path, Page::Html, html).is_empty(), "{path}");
        }
    }

    #[test]
    fn s61_a_page_of_one_index_teaches_nothing_of_another_that_has_credentials() {
        let html = "<a href=https://other.example/packages/x.whl><a href=/f.whl>";
        assert_eq!(taught(0, A, Page::Html, html), [link(0, "/f.whl")]);
    }

    #[test]
    fn fuzz_a_page_of_an_index_is_read_and_rewritten() {
        let all = bases();
        cofferdam_hostile::fuzz!("page", |bytes: &[u8]| {
            for (index, path) in [(0, A), (2, "/npm/tiny")] {
                for kind in [Page::Html, Page::Json] {
                    let found =
                        links(&all, MirrorSite { index, base: &all[index] }, path, kind, bytes);
                    // Never of another index, and nothing that could be asked for anyway.
                    let is_ours = |PageLink { place, path }: &PageLink| {
                        *place == index && path.len() <= MAX_LINK_BYTES && !all[*place].holds(path)
                    };
                    assert!(found.iter().all(is_ours), "{found:?}");
                    super::super::pages::rewritten(&all, all[index].place.wire, kind, bytes);
                }
            }
        });
    }
}
