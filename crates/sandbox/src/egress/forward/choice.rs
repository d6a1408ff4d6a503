//! Which site is asked where several have one name. Pure.

use super::links::PageLinks;
use super::target::Target;

/// Of the sites behind one port the one that a path is asked of, and whether a page linked to it: of those whose own path
/// holds it the nearest, else one whose page linked to it, else the first, which refuses it.
pub(super) fn asked_of<'t>(
    targets: &'t [Target],
    links: &PageLinks,
    path: &str,
) -> Option<(&'t Target, bool)> {
    let is_linked = |target: &Target| links.holds(target.forward.mirror, target.index, path);
    let depth = |target: &&Target| {
        let base = target.base().filter(|base| base.holds(path))?;
        Some(base.prefix.len())
    };
    // The first of the nearest: `max_by_key` alone would take the last.
    let holder = targets.iter().rev().filter(|target| depth(target).is_some()).max_by_key(depth);
    let linked = || targets.iter().find(|target| is_linked(target));
    let found = holder.or_else(linked).or_else(|| targets.first())?;
    Some((found, is_linked(found)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::links::PageLink;
    use super::super::site::tests::base;
    use super::super::{Forward, IndexKind};
    use super::*;
    use crate::egress::policy::MirrorName;

    #[test]
    fn r70_a_name_of_several_places_is_asked_by_path_and_by_what_the_pages_of_each_linked_to() {
        let place = ("x-0.m.internal", "n.example", 443);
        let (npm, pip) = (MirrorName::Npm, MirrorName::Pip);
        let bases = [
            (npm, base(place, "/npm/", Some(IndexKind::Npm))),
            (pip, base(place, "/pypi/simple/", Some(IndexKind::Pip))),
        ];
        let all = bases.map(|(mirror, base)| {
            let forward = Forward::new(mirror, vec![base], None, None).unwrap();
            Target { forward: Arc::new(forward), index: 0 }
        });
        let links = PageLinks::default();
        let of = |path: &str| {
            let found = asked_of(&all, &links, path);
            found.map(|(target, is_linked)| (target.forward.mirror, is_linked))
        };
        assert_eq!(of("/npm/tiny"), Some((npm, false)));
        assert_eq!(of("/pypi/simple/tiny/"), Some((pip, false)));
        let file = "/pypi/packages/a.whl";
        assert_eq!(of(file), Some((npm, false)), "the first refuses it");
        links.learn(pip, vec![PageLink { place: 0, path: file.to_owned() }]);
        assert_eq!(of(file), Some((pip, true)));
        assert!(asked_of(&[], &links, file).is_none());
    }
}
