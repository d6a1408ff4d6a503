//! A name server that knows the phase's names, all at its own address, and asks nobody. Pure.

use std::net::Ipv4Addr;

use cofferdam_contracts::sandbox::ViolationReason;

use super::policy::{EgressRefusal, Rules};

/// Bytes of a question over UDP; a longer one is no plain question.
pub(crate) const MAX_QUESTION_BYTES: usize = 512;

const HEADER: usize = 12;
const IN: u16 = 1;
const A: u16 = 1;
/// Asked by ordinary clients beside A and answered with nothing: IPv6 addresses, and service
/// parameters (which would carry the keys of hidden names).
const EMPTY: [u16; 3] = [28, 64, 65];
/// Seconds that an answer may be remembered: not into the next phase.
const TTL: u32 = 0;

const NO_ERROR: u8 = 0;
const FORMAT: u8 = 1;
const NO_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;

/// The answer to a message, if it deserves one, and the refusal that it records.
pub(crate) fn answer(
    message: &[u8],
    rules: &Rules,
    own: Ipv4Addr,
) -> (Option<Vec<u8>>, Option<EgressRefusal>) {
    let malformed = || Some(EgressRefusal::nameless(ViolationReason::Malformed, Some(53)));
    let Some(head) = message.get(..HEADER) else { return (None, malformed()) };
    // An answer to nobody's question could start an endless exchange.
    if head.get(2).is_none_or(|flags| flags & 0x80 != 0) {
        return (None, malformed());
    }
    if head.get(2).is_some_and(|flags| flags & 0x78 != 0) {
        return (Some(reply(head, &[], NOT_IMPLEMENTED, None)), malformed());
    }
    let Some(question) = (head.get(4..6) == Some(&[0, 1])).then(|| read(message)).flatten() else {
        return (Some(reply(head, &[], FORMAT, None)), malformed());
    };
    let raw = question.raw;
    if rules.find(&question.name).is_none() {
        let refused = EgressRefusal::name(ViolationReason::Name, &question.name, Some(53));
        return (Some(reply(head, raw, NO_NAME, None)), Some(refused));
    }
    match (question.class, question.kind) {
        (IN, A) => (Some(reply(head, raw, NO_ERROR, Some(own))), None),
        (IN, kind) if EMPTY.contains(&kind) => (Some(reply(head, raw, NO_ERROR, None)), None),
        _ => {
            let refused = EgressRefusal::name(ViolationReason::DnsType, &question.name, Some(53));
            (Some(reply(head, raw, NO_ERROR, None)), Some(refused))
        }
    }
}

struct Question<'a> {
    name: String,
    kind: u16,
    class: u16,
    raw: &'a [u8],
}

/// The first question; a compressed name has nothing to point at there.
fn read(message: &[u8]) -> Option<Question<'_>> {
    let mut labels = Vec::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        if length > 63 {
            return None;
        }
        labels.push(String::from_utf8_lossy(message.get(at..at + length)?).into_owned());
        at += length;
    }
    let number = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
    Some(Question {
        name: labels.join("."),
        kind: number(at)?,
        class: number(at + 2)?,
        raw: message.get(HEADER..at + 4)?,
    })
}

fn reply(head: &[u8], question: &[u8], code: u8, address: Option<Ipv4Addr>) -> Vec<u8> {
    let flags = head.get(2).copied().unwrap_or(0);
    let mut out = Vec::with_capacity(HEADER + question.len() + 16);
    out.extend_from_slice(head.get(..2).unwrap_or(&[0, 0]));
    // An answer, with authority, to the same opcode and wish for recursion; recursion "available",
    // since stub resolvers otherwise look for another server.
    out.extend_from_slice(&[0x84 | (flags & 0x79), 0x80 | code]);
    out.extend_from_slice(&[0, u8::from(!question.is_empty()), 0, u8::from(address.is_some())]);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(question);
    if let Some(address) = address {
        // The name is the question's, twelve bytes from the start.
        out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
        out.extend_from_slice(&TTL.to_be_bytes());
        out.extend_from_slice(&[0, 4]);
        out.extend_from_slice(&address.octets());
    }
    out
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::sandbox::Phase;

    use super::super::policy::Name;
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);

    fn ask(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend_from_slice(label.as_bytes());
        }
        message.push(0);
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&IN.to_be_bytes());
        message
    }

    fn rules() -> Rules {
        let mut rules = Rules::new(Phase::Build);
        rules.allow(Name::parse("a.example").unwrap());
        rules
    }

    #[test]
    fn a_listed_name_is_at_the_proxy_and_another_does_not_exist() {
        let (told, refused) = answer(&ask("A.example", A), &rules(), OWN);
        let told = told.unwrap();
        assert_eq!(
            (&told[..2], told[3] & 15, &told[told.len() - 4..]),
            (&[7, 9][..], 0, &[127, 0, 0, 53][..])
        );
        assert_eq!(refused, None);
        let (told, refused) = answer(&ask("c2VjcmV0.evil.example", A), &rules(), OWN);
        assert_eq!(told.unwrap()[3] & 15, NO_NAME);
        let refused = refused.unwrap();
        assert_eq!(
            (refused.why, refused.name.as_deref()),
            (ViolationReason::Name, Some("c2VjcmV0.evil.example"))
        );
    }

    #[test]
    fn other_types_of_a_listed_name_are_empty() {
        for (kind, recorded) in [(28, false), (65, false), (16, true), (255, true)] {
            let (told, refused) = answer(&ask("a.example", kind), &rules(), OWN);
            assert_eq!(&told.unwrap()[6..8], &[0, 0], "{kind}");
            assert_eq!(refused.is_some(), recorded, "{kind}");
        }
    }

    #[test]
    fn what_is_no_question_gets_no_address() {
        for message in [&b""[..], b"short", &[0; 12], &[0xff; 600]] {
            let (told, refused) = answer(message, &rules(), OWN);
            assert!(told.is_none_or(|told| told[7] == 0) && refused.is_some());
        }
        for length in 12..ask("a.example", A).len() {
            let (told, refused) = answer(&ask("a.example", A)[..length], &rules(), OWN);
            assert!(refused.is_some() && told.unwrap()[3] & 15 == FORMAT, "{length}");
        }
    }
}
