//! What a phase may reach: exact names and their ports, everything else is refused. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cofferdam_contracts::egress::{MAX_NAME_BYTES, Phase, ViolationReason};
pub(crate) use cofferdam_contracts::egress::{Mirror as MirrorName, Name};
use cofferdam_contracts::secret::SecretUse;

use super::forward::Target;
use super::upstream::Upstream;

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Tls,
    Plain,
}

/// How one name may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rule {
    ports: BTreeMap<u16, Wire>,
    /// The proxy that the name's own client configuration sets.
    pub via: Option<Upstream>,
    /// The operator's own configuration names it, so it may lie on a private address.
    pub trusted: bool,
    /// Sites of mirrors behind a port: the host fetches what is asked of them.
    forwards: BTreeMap<u16, Vec<Target>>,
    /// The phase lists the name itself.
    listed: bool,
    /// What the proxy adds to requests for it; then TLS is ended there.
    pub secrets: Vec<SecretUse>,
}

impl Rule {
    /// How the host itself reaches a site of a mirror.
    pub(crate) fn of_mirror(via: Option<&Upstream>) -> Self {
        Self { via: via.cloned(), trusted: true, ..Self::default() }
    }

    /// The mirrors' sites behind a port.
    pub(crate) fn targets(&self, port: u16) -> &[Target] {
        self.forwards.get(&port).map_or(&[], Vec::as_slice)
    }

    /// Whether TLS to an admitted port is ended by the sandbox's own authority.
    pub(crate) fn ends_tls(&self, port: u16) -> bool {
        !self.secrets.is_empty() || !self.targets(port).is_empty()
    }

    /// The name is there for a mirror's sake, which is only fetched from.
    pub(crate) const fn is_mirror_alone(&self) -> bool {
        self.trusted && !self.listed
    }
}

/// A refused attempt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EgressRefusal {
    pub why: ViolationReason,
    pub name: Option<String>,
    pub address: Option<IpAddr>,
    pub port: Option<u16>,
}

impl EgressRefusal {
    /// A name that a task wrote: cut, and without what terminals obey.
    pub(crate) fn name(why: ViolationReason, name: &str, port: Option<u16>) -> Self {
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
        let name = name.chars().take(MAX_NAME_BYTES).map(plain).collect();
        Self { why, name: Some(name), address: None, port }
    }

    /// An attempt that names nothing.
    pub(crate) fn nameless(why: ViolationReason, port: Option<u16>) -> Self {
        Self { why, name: None, address: None, port }
    }
}

/// The policy of one phase, mirrors resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    pub phase: Phase,
    /// Whether a name that is not listed may be asked for.
    pub ask: bool,
    names: BTreeMap<Name, Rule>,
}

impl Rules {
    pub(crate) fn new(phase: Phase) -> Self {
        Self { phase, ask: false, names: BTreeMap::new() }
    }

    /// A listed name: HTTPS and HTTP at their own ports.
    pub(crate) fn allow(&mut self, name: Name) {
        let ports = [(443, Wire::Tls), (80, Wire::Plain)];
        let rule = self.names.entry(name).or_default();
        rule.ports.extend(ports);
        rule.listed = true;
    }

    /// Secrets of the phase: their hosts, which are listed, are reached over HTTPS alone.
    pub(crate) fn carry(&mut self, uses: &[SecretUse]) {
        for used in uses {
            let rule = self.names.entry(used.host.clone()).or_default();
            rule.ports = BTreeMap::from([(443, Wire::Tls)]);
            rule.forwards.clear();
            rule.secrets.push(used.clone());
        }
    }

    /// What a mirror's site is called inside: requests end at the host's forwarder.
    pub(crate) fn allow_forward(&mut self, name: &Name, port: u16, wire: Wire, target: Target) {
        let rule = self.names.entry(name.clone()).or_default();
        rule.ports.insert(port, wire);
        rule.forwards.entry(port).or_default().push(target);
    }

    /// Whether a site may answer under its own name: nothing else is reached there.
    pub(crate) fn is_free(&self, name: &Name, port: u16, wire: Wire) -> bool {
        let is_shared = |rule: &Rule| match rule.ports.get(&port) {
            Some(spoken) => *spoken == wire && !rule.targets(port).is_empty(),
            None => true,
        };
        self.names.get(name).is_none_or(|rule| !rule.listed && is_shared(rule))
    }

    /// Names of mirrors' sites whose TLS is ended by the sandbox's own authority.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &Name> {
        let is_ended =
            |rule: &Rule| rule.forwards.keys().any(|port| rule.ports.get(port) == Some(&Wire::Tls));
        self.names.iter().filter(move |(_, rule)| is_ended(rule)).map(|(name, _)| name)
    }

    /// One port of a mirror.
    pub(crate) fn allow_mirror(
        &mut self,
        name: Name,
        port: u16,
        wire: Wire,
        via: Option<&Upstream>,
    ) {
        let rule = self.names.entry(name).or_default();
        rule.ports.insert(port, wire);
        rule.via = rule.via.take().or_else(|| via.cloned());
        rule.trusted = true;
    }

    /// Every name that is listed, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.names.keys().map(ToString::to_string).collect()
    }

    /// Nothing is listed and nothing can be: the phase needs no proxy.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.ask
    }

    /// The listed name that this host is.
    pub(crate) fn find(&self, host: &str) -> Option<(&Name, &Rule)> {
        // A resolver's absolute form.
        let host = host.strip_suffix('.').unwrap_or(host);
        self.names.get_key_value(&Name::parse(host)?)
    }

    /// The listed name that a connection asks for, or why it is refused.
    pub(crate) fn admit(
        &self,
        host: &str,
        port: u16,
        wire: Wire,
    ) -> Result<(&Name, &Rule), EgressRefusal> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            let why = ViolationReason::IpLiteral;
            return Err(EgressRefusal {
                why,
                name: None,
                address: Some(address),
                port: Some(port),
            });
        }
        let (name, rule) = self
            .find(host)
            .ok_or_else(|| EgressRefusal::name(ViolationReason::Name, host, Some(port)))?;
        if rule.ports.get(&port) == Some(&wire) {
            return Ok((name, rule));
        }
        if wire == Wire::Plain && !rule.secrets.is_empty() {
            return Err(EgressRefusal::name(ViolationReason::Plain, host, Some(port)));
        }
        Err(EgressRefusal::name(ViolationReason::Port, host, Some(port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_gets_a_secret_takes_https_alone() {
        let mut rules = Rules::new(Phase::Exec);
        let name = Name::parse("a.example").unwrap();
        rules.allow(name.clone());
        rules.allow_mirror(name.clone(), 8443, Wire::Tls, None);
        let form = "basic u".parse().unwrap();
        rules.carry(&[SecretUse { name: "s".parse().unwrap(), host: name, form }]);
        let why = |port, wire| rules.admit("a.example", port, wire).err().map(|r| r.why);
        assert_eq!(why(443, Wire::Tls), None);
        assert_eq!(why(80, Wire::Plain), Some(ViolationReason::Plain));
        assert_eq!(why(8443, Wire::Tls), Some(ViolationReason::Port));
        assert_eq!(rules.find("a.example").unwrap().1.secrets.len(), 1);
    }

    #[test]
    fn a_name_is_admitted_at_its_own_ports_and_nothing_else_is() {
        let mut rules = Rules::new(Phase::Build);
        rules.allow(Name::parse("a.example").unwrap());
        rules.allow_mirror(Name::parse("m.example").unwrap(), 8443, Wire::Tls, None);
        let why = |host: &str, port, wire| rules.admit(host, port, wire).err().map(|r| r.why);
        assert_eq!(why("a.example", 443, Wire::Tls), None);
        assert_eq!(why("A.EXAMPLE.", 80, Wire::Plain), None);
        assert_eq!(why("m.example", 8443, Wire::Tls), None);
        for (host, port, wire, expected) in [
            ("b.a.example", 443, Wire::Tls, ViolationReason::Name),
            ("a.example.evil.example", 443, Wire::Tls, ViolationReason::Name),
            ("a.example", 22, Wire::Tls, ViolationReason::Port),
            ("a.example", 80, Wire::Tls, ViolationReason::Port),
            ("a.example", 443, Wire::Plain, ViolationReason::Port),
            ("m.example", 443, Wire::Tls, ViolationReason::Port),
            ("127.0.0.1", 443, Wire::Tls, ViolationReason::IpLiteral),
            ("[::1]", 443, Wire::Tls, ViolationReason::IpLiteral),
            ("127.1", 443, Wire::Tls, ViolationReason::Name),
            ("localhost", 443, Wire::Tls, ViolationReason::Name),
        ] {
            assert_eq!(why(host, port, wire), Some(expected), "{host}:{port}");
        }
        assert!(Rules::new(Phase::Exec).admit("a.example", 443, Wire::Tls).is_err());
    }
}
