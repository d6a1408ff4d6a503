//! Mirrors: what `@pip` and the like mean is asked of this machine's own clients, when it is needed.
//!
//! What those clients authenticate with stays on the host: a site with credentials, and every site of pip
//! and npm, is a [`Base`](MirrorBase) that the host fetches from. Archives and crates are reached by name, without any.
//!
//! Inside, such a site answers under its own name, so that lock files made there are those of anywhere else, and under an
//! alias. **Under its own name it takes what the mirror takes and nothing else**; where the phase reaches that name in another
//! way already, the alias alone is left.
//!
//! Nothing is written down here: neither a registry's name nor where it keeps its files. A client
//! that is not installed, or does not know, fails the sandbox by the mirror's name.

mod apt;
mod cargo;
mod client;
mod npm;
mod pip;

use std::path::PathBuf;
use std::sync::Arc;

use client::Mirror;

use super::forward::{Forward, MirrorBase, MirrorOrigin, Target};
use super::policy::{MirrorName, Name, Rules, Wire};
use super::trust::{USUAL_CA, own_ca};
use super::variables::Variables;

/// A mirror with what fetches from it.
#[derive(Debug)]
pub(crate) struct MirrorEntry {
    mirror: Mirror,
    forward: Arc<Forward>,
}

impl MirrorEntry {
    /// Asks this machine's client.
    ///
    /// # Errors
    /// In words: the client does not say, or what it says cannot be followed.
    pub(crate) async fn resolve(name: MirrorName) -> Result<Self, String> {
        let mirror = resolve(name).await?;
        let ca = mirror.ca.clone().or_else(own_ca).unwrap_or_else(|| PathBuf::from(USUAL_CA));
        let (bases, via) = (mirror.bases.clone(), mirror.via.as_ref());
        let forward = Arc::new(Forward::new(name, bases, via, Some(&ca))?);
        Ok(Self { mirror, forward })
    }

    /// The certificates that its client trusts.
    pub(crate) fn ca(&self) -> Option<&PathBuf> {
        self.mirror.ca.as_ref()
    }

    /// Lists what is reached by name, without credentials.
    pub(crate) fn list_origins(&self, rules: &mut Rules) {
        for MirrorOrigin { name, port, wire } in &self.mirror.origins {
            rules.allow_mirror(name.clone(), *port, *wire, self.mirror.via.as_ref());
        }
    }

    /// Lists what the host fetches from, and gives the variables by which its client inside finds it. `serves`: whether TLS
    /// for a name can be ended in this sandbox.
    pub(crate) fn list_places(
        &self,
        rules: &mut Rules,
        serves: impl Fn(&Name) -> bool,
    ) -> &Variables {
        let is_own = |base: &MirrorBase| {
            let MirrorOrigin { name, port, wire } = &base.place;
            rules.is_free(name, *port, *wire) && (*wire == Wire::Plain || serves(name))
        };
        // A page under an own name links to own names, so all of them or none.
        let is_own = self.forward.bases().iter().all(is_own);
        for (index, base) in self.forward.bases().iter().enumerate() {
            let target = || Target { forward: Arc::clone(&self.forward), index };
            rules.allow_forward(&base.alias, 80, Wire::Plain, target());
            if is_own {
                let MirrorOrigin { name, port, wire } = &base.place;
                rules.allow_forward(name, *port, *wire, target());
            }
        }
        match is_own {
            true => &self.mirror.own,
            false => &self.mirror.aliases,
        }
    }
}

/// Asks the client.
async fn resolve(name: MirrorName) -> Result<Mirror, String> {
    let mirror = match name {
        MirrorName::Pip => pip::mirror().await,
        MirrorName::Npm => npm::mirror().await,
        MirrorName::Cargo => cargo::mirror(),
        MirrorName::Apt => apt::mirror().await,
    }?;
    if mirror.origins.is_empty() && mirror.bases.is_empty() {
        return Err("this machine's client names no server".into());
    }
    Ok(mirror)
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::egress::Phase;

    use super::*;
    use crate::egress::forward::IndexKind;

    fn known(text: &str) -> MirrorEntry {
        let mut mirror = Mirror::default();
        let urls = [mirror.base("npm", text, Some(IndexKind::Npm)).unwrap()];
        mirror.tell("registry", &urls);
        let forward = Forward::new(MirrorName::Npm, mirror.bases.clone(), None, None).unwrap();
        MirrorEntry { mirror, forward: Arc::new(forward) }
    }

    #[test]
    fn r70_a_place_answers_under_its_own_name_unless_that_name_is_reached_in_another_way() {
        let (own, alias) =
            ("https://n.example/npm/", "http://npm-0.mirrors.cofferdam.internal/npm/");
        let (found, name) = (known(own), Name::parse("n.example").unwrap());
        let told = |rules: &mut Rules, serves: bool| {
            found.list_places(rules, |_| serves).0["registry"].clone()
        };
        let mut plain = Rules::new(Phase::Exec);
        assert_eq!(told(&mut plain, true), own);
        assert!(plain.admit("n.example", 443, Wire::Tls).unwrap().1.ends_tls(443));
        assert!(plain.admit("n.example", 80, Wire::Plain).is_err());
        assert_eq!(plain.ended().collect::<Vec<_>>(), [&name]);
        // An archive at another port of the same server leaves this one free.
        let mut beside = Rules::new(Phase::Exec);
        beside.allow_mirror(name.clone(), 80, Wire::Plain, None);
        assert_eq!(told(&mut beside, true), own);
        let (mut listed, mut sealed) = (Rules::new(Phase::Exec), Rules::new(Phase::Exec));
        listed.allow(name.clone());
        sealed.allow_mirror(name, 443, Wire::Tls, None);
        for (mut rules, serves) in
            [(listed, true), (sealed, true), (Rules::new(Phase::Exec), false)]
        {
            assert_eq!(told(&mut rules, serves), alias);
            assert!(rules.find("n.example").is_none_or(|(_, rule)| !rule.ends_tls(443)));
            assert!(rules.find("npm-0.mirrors.cofferdam.internal").is_some());
        }
    }
}
