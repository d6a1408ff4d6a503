//! The installation's signing key and what is made from it: webhooks' secrets, signatures, links.
//!
//! The key is 256 random bits in a file of the state directory (0600). The database knows its
//! fingerprint only, so whoever reads every row still signs nothing; every host of a fleet needs a copy
//! of the file (decision 0024). **Nothing here prints, logs or stores a key or a secret.**

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, WebhookId};
use cofferdam_contracts::link::LinkClaim;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Bytes of a key and of each secret: the signature's own width.
const KEY_BYTES: usize = 32;
/// Bytes of a SHA-256 block, to which the HMAC key is padded with zeros.
const BLOCK_BYTES: usize = 64;
/// Characters of a link's token: the longest gate key, topic and name twice over.
pub const MAX_TOKEN_CHARS: usize = 2_048;

/// The key, where this process has the one that its database names.
#[derive(Clone)]
pub struct Signer([u8; KEY_BYTES]);

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// A fresh key as it stands in its file: hexadecimal.
    #[must_use]
    pub fn fresh() -> String {
        secret_hex(KEY_BYTES)
    }

    /// Reads it; `None` where the text is no key.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self(hex::decode(text.trim()).ok()?.try_into().ok()?))
    }

    /// What the database knows the key by. It is no HMAC that anything else uses.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        digest_bytes(&[b"cofferdam signing key\n".as_slice(), &self.0].concat())
    }

    fn secret(&self, webhook: &WebhookId) -> [u8; KEY_BYTES] {
        let mac = mac(&self.0, &[b"webhook\n", webhook.as_str().as_bytes()]);
        mac.finalize().into_bytes().into()
    }

    /// A webhook's secret, as its receiver is given it once.
    pub(crate) fn webhook_secret(&self, webhook: &WebhookId) -> String {
        format!("whsec_{}", STANDARD.encode(self.secret(webhook)))
    }

    /// The `webhook-signature` of one attempt.
    pub(crate) fn webhook_signature(
        &self,
        webhook: &WebhookId,
        id: &str,
        timestamp_s: i64,
        body: &str,
    ) -> String {
        webhook_signature(&self.secret(webhook), id, timestamp_s, body)
    }

    /// A link's token: its claim and the claim's HMAC.
    pub(crate) fn link(&self, claim: &LinkClaim) -> Option<String> {
        let claim = serde_json::to_vec(claim).ok()?;
        let mac = mac(&self.0, &[b"link\n", &claim]).finalize().into_bytes();
        Some(format!("{}.{}", URL_SAFE_NO_PAD.encode(&claim), URL_SAFE_NO_PAD.encode(mac)))
    }

    /// The claim of a token that this key signed, and of no other. Compares in constant time.
    pub(crate) fn link_claim(&self, token: &str) -> Option<LinkClaim> {
        if token.len() > MAX_TOKEN_CHARS {
            return None;
        }
        let (claim, signed) = token.split_once('.')?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let (claim, signed) = (decode(claim)?, decode(signed)?);
        mac(&self.0, &[b"link\n", &claim]).verify_slice(&signed).ok()?;
        serde_json::from_slice(&claim).ok()
    }
}

/// The key of this installation, or why nothing can be signed or checked here.
pub(crate) fn here(signer: Option<&Signer>) -> Result<&Signer, Refusal> {
    signer.ok_or_else(|| {
        Refusal::new(
            ErrorCode::Unavailable,
            "this host lacks the installation's signing key: copy signing.key from the state \
             directory of a host that has it",
        )
    })
}

/// HMAC-SHA256 over the parts. A key shorter than a block is padded with zeros, which is what HMAC does
/// with one anyway and cannot fail.
fn mac(key: &[u8; KEY_BYTES], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut block = [0; BLOCK_BYTES];
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Standard Webhooks: `v1,` and the base64 of the HMAC over id, time and body, joined by dots.
fn webhook_signature(secret: &[u8; KEY_BYTES], id: &str, timestamp_s: i64, body: &str) -> String {
    let mac = mac(
        secret,
        &[id.as_bytes(), b".", timestamp_s.to_string().as_bytes(), b".", body.as_bytes()],
    );
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::id::{GateKey, RunId, TenantId};

    use super::*;

    fn signer(digit: char) -> Signer {
        Signer::parse(&digit.to_string().repeat(64)).unwrap()
    }

    fn claim() -> LinkClaim {
        LinkClaim {
            v: 1,
            id: "0".repeat(32),
            tenant: TenantId::parse("t").unwrap(),
            run: RunId::parse(&format!("rn_{}", "a".repeat(32))).unwrap(),
            gate: GateKey::parse("approve-plan").unwrap(),
            topic: "human:approve-plan".into(),
            digest: Digest::parse(&"b".repeat(64)).unwrap(),
            choice: None,
            name: "Ada".into(),
            expires_at: 7,
        }
    }

    #[test]
    fn a_signature_is_the_one_that_the_standards_libraries_make() {
        // The vector of the published libraries.
        let mut secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        secret.resize(KEY_BYTES, 0);
        let secret: [u8; KEY_BYTES] = secret.try_into().unwrap();
        let signed = webhook_signature(
            &secret,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            "{\"test\": 2432232314}",
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_link_is_read_back_and_no_altered_byte_of_it_is() {
        let token = signer('1').link(&claim()).unwrap();
        assert_eq!(signer('1').link_claim(&token), Some(claim()));
        assert_eq!(signer('2').link_claim(&token), None, "another installation's key");
        for at in 0..token.len() {
            let mut altered = token.clone().into_bytes();
            altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
            let altered = String::from_utf8(altered).unwrap();
            // The last character of each half has bits that base64 does not use.
            assert_eq!(signer('1').link_claim(&altered), None, "{at}");
        }
        for bad in
            ["", ".", "a.b", &token[..token.len() - 2], &format!("{token}.x"), &"a".repeat(9_999)]
        {
            assert_eq!(signer('1').link_claim(bad), None, "{bad}");
        }
    }

    #[test]
    fn purposes_and_webhooks_have_secrets_of_their_own() {
        let id = |digit: &str| WebhookId::parse(&format!("wh_{}", digit.repeat(32))).unwrap();
        let secret = signer('1').webhook_secret(&id("a"));
        assert!(secret.starts_with("whsec_") && secret.len() == 50, "{secret}");
        assert_ne!(secret, signer('1').webhook_secret(&id("b")));
        assert_ne!(secret, signer('2').webhook_secret(&id("a")));
        assert_eq!(
            secret,
            signer('1').webhook_secret(&id("a")),
            "nothing is stored, so it is made again"
        );
        assert_eq!(format!("{:?}", signer('1')), "Signer");
        assert!(Signer::parse("1234").is_none() && Signer::parse(&"x".repeat(64)).is_none());
        assert_eq!(Signer::fresh().len(), 64);
    }
}
