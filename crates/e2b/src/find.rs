//! Which row of the table a request is. Pure.

use axum::http::Method;

use crate::params::Params;
use crate::route::{Access, Route, Surface};
use crate::routes::ROUTES;

/// A row, and what its path has.
pub(crate) struct RouteMatch {
    pub route: &'static Route,
    pub params: Params,
}

/// The first row that a request fits.
pub(crate) fn find(surface: Surface, method: &Method, path: &str) -> Option<RouteMatch> {
    // What is open is so by its path alone, to the letter.
    let plain = path.trim_matches('/');
    let rows = ROUTES.iter().filter(|route| route.surface == surface);
    let mut rows = rows.filter(|route| route.method == "*" || route.method == method.as_str());
    rows.find_map(|route| {
        let is_exact = surface == Surface::Envd || route.access == Access::Open;
        let path = if is_exact { path.strip_prefix('/')? } else { plain };
        Some(RouteMatch { route, params: fits(route.path, path)? })
    })
}

/// What a path has for the names of a row; `None`: it does not fit.
fn fits(pattern: &'static str, path: &str) -> Option<Params> {
    let mut params = Params::default();
    let mut given = path.split('/');
    for name in pattern.strip_prefix('/').unwrap_or(pattern).split('/') {
        if name == "{*rest}" {
            return Some(params);
        }
        let found = given.next()?;
        match name.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) => params = params.and(name, found),
            None if name == found => {}
            None => return None,
        }
    }
    given.next().is_none().then_some(params)
}

/// The first segment of a path.
pub(crate) fn first(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or("")
}

/// Whether a path is one of this surface's, by its first segment.
pub(crate) fn is_of(surface: Surface, path: &str) -> bool {
    let first = first(path);
    let rows = ROUTES.iter().filter(|route| route.surface == surface);
    // `*` rows for what is not there name no segment.
    rows.map(|route| self::first(route.path)).any(|known| !known.starts_with('{') && known == first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Endpoint;

    fn of(surface: Surface, method: &Method, path: &str) -> Option<(&'static str, Params)> {
        find(surface, method, path).map(|found| (found.route.path, found.params))
    }

    #[test]
    fn a_request_is_the_first_row_that_it_fits() {
        let id = |id: &str| Params::default().and("id", id);
        for (method, path, row, params) in [
            (Method::GET, "/sandboxes/metrics", "/sandboxes/metrics", Params::default()),
            (Method::GET, "/sandboxes/x", "/sandboxes/{id}", id("x")),
            (Method::GET, "/sandboxes/x/", "/sandboxes/{id}", id("x")),
            (Method::POST, "/sandboxes/", "/sandboxes", Params::default()),
            (Method::GET, "/templates/tags/tags", "/templates/{id}/tags", id("tags")),
            (Method::DELETE, "/templates/tags", "/templates/tags", Params::default()),
            (Method::PUT, "/templates/x", "/templates/{*rest}", Params::default()),
            (Method::GET, "/v2/x", "/{*rest}", Params::default()),
            (Method::GET, "/volumes", "/volumes/{*rest}", Params::default()),
            (Method::PUT, "/health", "/health", Params::default()),
            // Not to the letter: it asks for a key like any other path.
            (Method::GET, "/health/", "/{*rest}", Params::default()),
        ] {
            assert_eq!(of(Surface::Control, &method, path), Some((row, params)), "{method} {path}");
        }
        let files = of(Surface::Envd, &Method::GET, "/files").unwrap();
        assert_eq!(files.0, "/files");
        assert_eq!(of(Surface::Envd, &Method::GET, "/health/").unwrap().0, "/{*rest}");
    }

    #[test]
    fn no_row_is_behind_one_that_takes_all_of_its_requests() {
        for (at, late) in ROUTES.iter().enumerate() {
            let path = late.path.replace("{*rest}", "x").replace(['{', '}'], "");
            let method = if late.method == "*" { "OPTIONS" } else { late.method };
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let found = find(late.surface, &method, &path).unwrap().route;
            let first = ROUTES.iter().position(|route| std::ptr::eq(route, found)).unwrap();
            assert_eq!(first, at, "{} {} is taken by {}", late.method, late.path, found.path);
        }
    }

    #[test]
    fn a3f9_a_link_for_an_upload_is_a_write_and_every_other_get_reads() {
        for route in ROUTES.iter().filter(|route| route.surface == Surface::Control) {
            let is_link = route.path == "/templates/{id}/files/{hash}";
            let wanted = match (route.method, &route.endpoint) {
                (_, Endpoint::Empty) => Access::Open,
                (_, Endpoint::Upload(_)) => Access::Link,
                ("*", _) => Access::ByMethod,
                ("GET", _) if !is_link => Access::Reads,
                _ => Access::Writes,
            };
            assert_eq!(route.access, wanted, "{} {}", route.method, route.path);
        }
    }

    #[test]
    fn a_surface_is_known_by_its_first_segments() {
        for path in ["/sandboxes", "/v2/sandboxes", "/v3/x", "/health", "/api-keys/x", "/nodes"] {
            assert!(is_of(Surface::Control, path), "{path}");
        }
        for path in ["/process.Process/Start", "/files", "/health", "/envs", "/metrics"] {
            assert!(is_of(Surface::Envd, path), "{path}");
        }
        for ours in ["/healthz", "/api/sandboxes", "/", "/v1/x", "/{*rest}"] {
            assert!(!is_of(Surface::Control, ours) && !is_of(Surface::Envd, ours), "{ours}");
        }
    }
}
