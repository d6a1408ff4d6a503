//! What is published of the table: the page `docs/e2b.md`, and who may call what. Pure.

use std::collections::BTreeMap;

use crate::route::{Access, Endpoint, Route, Surface};
use crate::routes::ROUTES;

/// The table of the page for the control plane, or for envd.
#[must_use]
pub fn page(of_envd: bool) -> String {
    let surface = if of_envd { Surface::Envd } else { Surface::Control };
    let mut lines: Vec<(Vec<String>, &str)> = Vec::new();
    for route in ROUTES.iter().filter(|route| route.surface == surface) {
        match lines.last_mut() {
            // The row before it speaks for this one too.
            Some((names, _)) if route.state.is_empty() => names.push(shown(route)),
            _ => lines.push((vec![shown(route)], route.state)),
        }
    }
    let rows =
        lines.into_iter().map(|(names, state)| format!("| {} | {state} |\n", names.join(", ")));
    std::iter::once("| Endpoint | State |\n|---|---|\n".to_owned()).chain(rows).collect()
}

/// An endpoint as a reader writes it.
fn shown(Route { method, path, endpoint, .. }: &Route) -> String {
    let path = match path.strip_suffix("{*rest}") {
        Some("/") => "any other path".to_owned(),
        Some(path) => format!("{path}.."),
        None => (*path).to_owned(),
    };
    match (*method, endpoint.codec()) {
        (_, Some(_)) => format!("`{}`", path.trim_start_matches('/')),
        ("*", _) if matches!(endpoint, Endpoint::Empty) => format!("`GET {path}`"),
        ("*", _) if path.starts_with('/') => format!("`{path}`"),
        ("*", _) => path,
        (method, _) => format!("`{method} {path}`"),
    }
}

/// Who may call each endpoint, by method and path.
#[must_use]
pub fn permissions() -> BTreeMap<String, &'static str> {
    let who = |route: &Route| match route.access {
        Access::Open => "everybody",
        Access::Reads => "submitter, approver, operator, auditor",
        Access::Writes => "submitter",
        Access::ByMethod => "GET: submitter, approver, operator, auditor; other methods: submitter",
        Access::Link => "who has the upload link",
        Access::Token => "who has the sandbox's token",
        Access::TokenOrSignature => {
            "who has the sandbox's token, or a link that was signed with it"
        }
    };
    let place = |surface| if surface == Surface::Envd { " (port 49983)" } else { "" };
    let rows = ROUTES.iter().filter(|route| !matches!(route.endpoint, Endpoint::Absent(..)));
    rows.map(|route| {
        (format!("{} {}{}", route.method, route.path, place(route.surface)), who(route))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_endpoint_once_and_says_something_of_each() {
        for of_envd in [false, true] {
            let page = page(of_envd);
            let surface = if of_envd { Surface::Envd } else { Surface::Control };
            for route in ROUTES.iter().filter(|route| route.surface == surface) {
                let shown = shown(route);
                assert_eq!(page.matches(&shown).count(), 1, "{shown}: {page}");
            }
            assert!(page.lines().all(|line| !line.ends_with("|  |")), "{page}");
        }
    }
}
