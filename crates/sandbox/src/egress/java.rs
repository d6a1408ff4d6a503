//! What programs of Java trust: the certificates of a file in the form that every version of Java reads (JKS). Pure.
//!
//! ```text
//! FEEDFEED, version 2, count, { 2 = trusted, alias, time, "X.509", certificate } ..., SHA-1 of a password, a phrase and all that
//! ```

use std::iter;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha1::{Digest as _, Sha1};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// An entry that is trusted and has no key.
const TRUSTED: u32 = 2;
const KIND: &str = "X.509";
/// The usual one, by which `keytool` checks that nothing was changed; Java itself asks for none.
const PASSWORD: &str = "changeit";
const PHRASE: &[u8] = b"Mighty Aphrodite";

/// A store of the certificates in a PEM file. What cannot be read is left out, as in the file itself.
pub(super) fn store(pem: &[u8]) -> Vec<u8> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).flatten().collect();
    let mut out = Vec::with_capacity(pem.len());
    number(&mut out, MAGIC);
    number(&mut out, VERSION);
    number(&mut out, u32::try_from(certificates.len()).unwrap_or(u32::MAX));
    for (index, certificate) in certificates.iter().enumerate() {
        number(&mut out, TRUSTED);
        text(&mut out, &format!("cofferdam-{index}"));
        // When it was added, in milliseconds: a fixed time, since equal certificates make equal stores.
        out.extend_from_slice(&0_u64.to_be_bytes());
        text(&mut out, KIND);
        number(&mut out, u32::try_from(certificate.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(certificate);
    }
    let password: Vec<u8> = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let mut hash = Sha1::new();
    iter::once(password.as_slice()).chain([PHRASE, &out]).for_each(|part| hash.update(part));
    out.extend_from_slice(&hash.finalize());
    out
}

fn number(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// A short text with its length.
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::authority::CertificateAuthority;
    use super::*;
    use cofferdam_contracts::egress::Name;

    #[test]
    fn a_store_has_each_certificate_of_a_file_once_and_equal_files_make_equal_stores() {
        let name = Name::parse("a.example").unwrap();
        let pem = |count: usize| -> String {
            (0..count)
                .map(|_| CertificateAuthority::new([&name]).unwrap().certificate_pem().to_owned())
                .collect()
        };
        let (none, two) = (store(b"no certificate"), pem(2));
        assert_eq!(none.len(), 12 + 20);
        let made = store(format!("{two}\n-----BEGIN CERTIFICATE-----\n!\n").as_bytes());
        assert_eq!(made[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]);
        assert_eq!(made, store(two.as_bytes()));
    }
}
