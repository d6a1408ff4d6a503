//! What a task may send to the proxy, as hostile as it gets.

use std::net::Ipv4Addr;

use cofferdam_contracts::sandbox::Phase;
use cofferdam_hostile::fuzz;

use super::policy::{Name, Rules};
use super::{dns, hello};

#[test]
fn fuzz_a_question_about_a_name_is_answered_or_refused() {
    let mut rules = Rules::new(Phase::Build);
    rules.allow(Name::parse("a.example").unwrap());
    let own = Ipv4Addr::new(127, 0, 0, 53);
    fuzz!("dns", |bytes: &[u8]| {
        let (told, refused) = dns::answer(bytes, &rules, own);
        // An address is only told of the one name that is listed.
        let is_told = told.as_ref().is_some_and(|told| told.get(6..8) == Some(&[0, 1]));
        assert!(!(is_told && refused.is_some()));
        assert!(told.is_none_or(|told| told.len() <= bytes.len() + 16));
    });
}

#[test]
fn fuzz_the_first_bytes_of_tls_are_looked_at() {
    fuzz!("hello", |bytes: &[u8]| {
        let seen = hello::look(bytes);
        // What is whole stays so, whatever follows: the proxy decides once.
        if let hello::Hello::Whole { .. } = seen {
            assert_eq!(hello::look(&[bytes, b"more"].concat()), seen);
        }
    });
}

#[test]
fn fuzz_a_name_is_read_as_it_is_written() {
    fuzz!("name", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Some(name) = Name::parse(&text) {
            let written = name.to_string();
            assert!(Name::parse(&written).is_some_and(|again| again.to_string() == written));
        }
    });
}
