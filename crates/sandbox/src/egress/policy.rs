//! What a phase may reach: exact names and their ports, everything else is refused. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use cofferdam_contracts::sandbox::{Egress, Phase, ViolationWhy};

use super::dial::Upstream;
use super::forward::Target;

/// Bytes of a name: the protocol's own bound.
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// A whole domain name in lower case, never an address in disguise.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(String);

impl Name {
    /// Two labels at least, and the last begins with a letter: what resolvers read as an address
    /// (`127.1`, `0x7f.1`, `2130706433`) is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let name = text.to_ascii_lowercase();
        let label = |label: &str| {
            (1..=MAX_LABEL_BYTES).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let top = name.rsplit('.').next()?;
        let whole = name.len() <= MAX_NAME_BYTES
            && name.contains('.')
            && name.split('.').all(label)
            && top.starts_with(|c: char| c.is_ascii_alphabetic());
        whole.then_some(Self(name))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A registry that the machine's own client configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MirrorName {
    Pip,
    Npm,
    Cargo,
    Apt,
}

impl MirrorName {
    pub(crate) const ALL: [Self; 4] = [Self::Pip, Self::Npm, Self::Cargo, Self::Apt];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pip => "@pip",
            Self::Npm => "@npm",
            Self::Cargo => "@cargo",
            Self::Apt => "@apt",
        }
    }
}

/// One entry of a phase's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    Name(Name),
    Mirror(MirrorName),
}

/// Reads a phase's list, or says what is wrong with it.
pub(crate) fn parse(egress: &Egress) -> Result<Vec<Wanted>, String> {
    let Egress::Names(names) = egress else { return Ok(Vec::new()) };
    names.iter().map(|text| entry(text)).collect()
}

fn entry(text: &str) -> Result<Wanted, String> {
    if text.starts_with('@') {
        return MirrorName::ALL
            .into_iter()
            .find(|mirror| mirror.as_str() == text)
            .map(Wanted::Mirror)
            .ok_or_else(|| format!("{text:?} is no mirror: @pip, @npm, @cargo and @apt are"));
    }
    Name::parse(text).map(Wanted::Name).ok_or_else(|| {
        format!(
            "{text:?} is not an exact domain name: no wildcard, port, address or path can be \
             enforced"
        )
    })
}

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
    /// It is a mirror's name inside, and the host fetches what is asked of it.
    pub forward: Option<Target>,
    /// The phase lists the name itself.
    listed: bool,
}

impl Rule {
    /// The name is there for a mirror's sake, which is only fetched from.
    pub(crate) const fn is_mirror_alone(&self) -> bool {
        self.trusted && !self.listed
    }
}

/// What was asked for and refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refused {
    pub why: ViolationWhy,
    pub name: Option<String>,
    pub address: Option<IpAddr>,
    pub port: Option<u16>,
}

impl Refused {
    /// A name that a task wrote: cut, and without what terminals obey.
    pub(crate) fn name(why: ViolationWhy, name: &str, port: Option<u16>) -> Self {
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
        let name = name.chars().take(MAX_NAME_BYTES).map(plain).collect();
        Self { why, name: Some(name), address: None, port }
    }

    /// An attempt that names nothing.
    pub(crate) fn nameless(why: ViolationWhy, port: Option<u16>) -> Self {
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

    /// What a mirror is called inside: plain HTTP that ends at the host's forwarder.
    pub(crate) fn allow_forward(&mut self, name: Name, target: Target, via: Option<&Upstream>) {
        let ports = BTreeMap::from([(80, Wire::Plain)]);
        let forward = Some(target);
        let rule = Rule { ports, via: via.cloned(), trusted: true, forward, listed: false };
        self.names.insert(name, rule);
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
    ) -> Result<(&Name, &Rule), Refused> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            let why = ViolationWhy::IpLiteral;
            return Err(Refused { why, name: None, address: Some(address), port: Some(port) });
        }
        let (name, rule) =
            self.find(host).ok_or_else(|| Refused::name(ViolationWhy::Name, host, Some(port)))?;
        if rule.ports.get(&port) == Some(&wire) {
            return Ok((name, rule));
        }
        Err(Refused::name(ViolationWhy::Port, host, Some(port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_and_known_mirrors_are_read() {
        for text in ["a.example", "A.Example", "x-1.b.co", "@pip", "@apt", "xn--p1ai.xn--p1ai"] {
            assert!(entry(text).is_ok(), "{text}");
        }
        for text in [
            "*.example",
            "example",
            "a.example:443",
            "1.2.3.4",
            "127.1",
            "0x7f.1",
            "::1",
            "a..b",
            "https://a.example",
            "a.example/x",
            "-a.example",
            "a_b.example",
            "@maven",
            "",
            ".a.b",
            "a.example.",
            "ä.example",
            "2130706433",
            "a.example@b.example",
        ] {
            assert!(entry(text).is_err(), "{text}");
        }
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
            ("b.a.example", 443, Wire::Tls, ViolationWhy::Name),
            ("a.example.evil.example", 443, Wire::Tls, ViolationWhy::Name),
            ("a.example", 22, Wire::Tls, ViolationWhy::Port),
            ("a.example", 80, Wire::Tls, ViolationWhy::Port),
            ("a.example", 443, Wire::Plain, ViolationWhy::Port),
            ("m.example", 443, Wire::Tls, ViolationWhy::Port),
            ("127.0.0.1", 443, Wire::Tls, ViolationWhy::IpLiteral),
            ("[::1]", 443, Wire::Tls, ViolationWhy::IpLiteral),
            ("127.1", 443, Wire::Tls, ViolationWhy::Name),
            ("localhost", 443, Wire::Tls, ViolationWhy::Name),
        ] {
            assert_eq!(why(host, port, wire), Some(expected), "{host}:{port}");
        }
        assert!(Rules::new(Phase::Exec).admit("a.example", 443, Wire::Tls).is_err());
    }
}
