//! Whether a delivery is its sender's: signatures and times, by scheme. Pure, and every comparison takes constant time.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::trigger::{HookScheme, MAX_EVENT_CHARS};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Seconds that a signed time may differ from ours, as Standard Webhooks says.
const TOLERANCE_S: i64 = 300;
/// GitHub's header of a signature.
const GITHUB: &str = "x-hub-signature-256";
/// Signatures of one delivery that are looked at: a sender that rotates its secret sends two.
const MAX_SIGNATURES: usize = 8;

/// Headers of a delivery that a scheme reads, in lower case.
pub const DELIVERY_HEADERS: [&str; 9] = [
    "x-hub-signature-256",
    "x-github-event",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "x-gitlab-token",
    "x-gitlab-event",
    "x-gitlab-event-uuid",
    "idempotency-key",
];

/// The headers of a delivery, by their lower-case names: those of [`DELIVERY_HEADERS`].
pub type DeliveryHeaders = BTreeMap<&'static str, String>;

/// Why a delivery is refused, for its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SignatureFault {
    #[error("the header {0} is missing, or not in its form")]
    Header(&'static str),
    #[error("the signature does not fit the body and the hook's secret")]
    Signature,
    #[error("the signed time is more than 5 minutes from this server's: check both clocks")]
    Time,
}

/// Whether headers have any scheme's form: what does not is refused before a statement, whatever hook it names.
pub(super) fn is_in_form(headers: &DeliveryHeaders) -> bool {
    let said = |name: &str| headers.get(name).map_or("", String::as_str);
    let hex = said(GITHUB).strip_prefix("sha256=").unwrap_or_default();
    let is_github = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    let is_standard = id(said("webhook-id")).is_some()
        && said("webhook-timestamp").parse::<i64>().is_ok()
        && said("webhook-signature").split(' ').any(|one| one.starts_with("v1,"));
    is_github || is_standard || !said("x-gitlab-token").is_empty()
}

/// Whether a scheme's signature leaves out the event's name, so that a body may come again under another one.
pub(super) fn leaves_event_out(scheme: HookScheme) -> bool {
    scheme == HookScheme::Github
}

/// The id of a delivery whose signature and time hold.
pub(super) fn verify(
    scheme: HookScheme,
    secret: &[u8],
    headers: &DeliveryHeaders,
    body: &[u8],
    now_s: i64,
) -> Result<String, SignatureFault> {
    match scheme {
        HookScheme::Github => github(secret, headers, body),
        HookScheme::Standard => standard(secret, headers, body, now_s),
        HookScheme::Gitlab => gitlab(secret, headers, body),
    }
}

/// What a delivery tells of, as its scheme says it; `None`: it does not say.
pub(super) fn event<'a>(
    scheme: HookScheme,
    headers: &'a DeliveryHeaders,
    body: &'a serde_json::Value,
) -> Option<&'a str> {
    match scheme {
        HookScheme::Github => headers.get("x-github-event").map(String::as_str),
        HookScheme::Gitlab => headers.get("x-gitlab-event").map(String::as_str),
        HookScheme::Standard => body.get("type").and_then(serde_json::Value::as_str),
    }
}

fn header<'a>(headers: &'a DeliveryHeaders, name: &'static str) -> Result<&'a str, SignatureFault> {
    headers.get(name).map(String::as_str).ok_or(SignatureFault::Header(name))
}

/// An id that a row holds: visible ASCII, and not too long.
fn id(text: &str) -> Option<String> {
    let fits = !text.is_empty()
        && text.len() <= MAX_EVENT_CHARS
        && text.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

fn of_body(body: &[u8]) -> String {
    format!("sha256:{}", digest_bytes(body))
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Result<Hmac<Sha256>, SignatureFault> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|_| SignatureFault::Signature)?;
    parts.iter().for_each(|part| mac.update(part));
    Ok(mac)
}

/// The body alone is signed, so the body alone tells deliveries apart: `X-GitHub-Delivery` could be another one each time.
fn github(secret: &[u8], headers: &DeliveryHeaders, body: &[u8]) -> Result<String, SignatureFault> {
    let signed =
        header(headers, GITHUB)?.strip_prefix("sha256=").and_then(|hex| hex::decode(hex).ok());
    let signed = signed.ok_or(SignatureFault::Header(GITHUB))?;
    mac(secret, &[body])?.verify_slice(&signed).map_err(|_| SignatureFault::Signature)?;
    Ok(of_body(body))
}

fn standard(
    secret: &[u8],
    headers: &DeliveryHeaders,
    body: &[u8],
    now_s: i64,
) -> Result<String, SignatureFault> {
    let event = id(header(headers, "webhook-id")?).ok_or(SignatureFault::Header("webhook-id"))?;
    let at = header(headers, "webhook-timestamp")?;
    let at_s: i64 = at.parse().map_err(|_| SignatureFault::Header("webhook-timestamp"))?;
    let key = whsec(secret);
    let signatures = header(headers, "webhook-signature")?.split(' ').take(MAX_SIGNATURES);
    let mut signatures =
        signatures.filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    let signed = mac(&key, &[event.as_bytes(), b".", at.as_bytes(), b".", body])?;
    if !signatures.any(|one| signed.clone().verify_slice(&one).is_ok()) {
        return Err(SignatureFault::Signature);
    }
    // Looked at last: who cannot sign learns nothing of this server's clock.
    match at_s.abs_diff(now_s) > TOLERANCE_S.unsigned_abs() {
        true => Err(SignatureFault::Time),
        false => Ok(event),
    }
}

/// The bytes of a secret: `whsec_` and base64, or the text itself.
fn whsec(secret: &[u8]) -> zeroize::Zeroizing<Vec<u8>> {
    let encoded = secret.strip_prefix(b"whsec_");
    let decoded = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
    zeroize::Zeroizing::new(decoded.unwrap_or_else(|| secret.to_vec()))
}

fn gitlab(secret: &[u8], headers: &DeliveryHeaders, body: &[u8]) -> Result<String, SignatureFault> {
    let token = header(headers, "x-gitlab-token")?;
    // Two codes of one width: neither the length nor a common beginning shows in the time.
    let wanted = mac(secret, &[secret])?.finalize().into_bytes();
    mac(secret, &[token.as_bytes()])?
        .verify_slice(wanted.as_slice())
        .map_err(|_| SignatureFault::Signature)?;
    let said =
        ["idempotency-key", "x-gitlab-event-uuid"].iter().find_map(|name| id(headers.get(name)?));
    Ok(said.unwrap_or_else(|| of_body(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"Hello, World!";

    fn headers(list: &[(&'static str, &str)]) -> DeliveryHeaders {
        list.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_signed_by_no_scheme_is_seen_without_a_secret() {
        let hex = format!("sha256={}", "a".repeat(64));
        let time = ("webhook-timestamp", "1");
        for sent in [
            headers(&[("x-hub-signature-256", &hex)]),
            headers(&[("x-gitlab-token", "t")]),
            headers(&[("webhook-id", "m"), time, ("webhook-signature", "v2,x v1,y")]),
        ] {
            assert!(is_in_form(&sent), "{sent:?}");
        }
        for sent in [
            headers(&[]),
            headers(&[("x-hub-signature-256", &hex[..70]), ("x-github-event", "push")]),
            headers(&[("x-gitlab-token", "")]),
            headers(&[("webhook-id", "m"), ("webhook-signature", "v1,y")]),
            headers(&[("webhook-id", "m m"), time, ("webhook-signature", "v1,y")]),
        ] {
            assert!(!is_in_form(&sent), "{sent:?}");
        }
    }

    #[test]
    fn githubs_own_example_holds_and_another_body_does_not() {
        // From GitHub's page "Validating webhook deliveries".
        let secret = b"It's a Secret to Everybody";
        let signed = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let sent = headers(&[("x-hub-signature-256", signed)]);
        let event = verify(HookScheme::Github, secret, &sent, BODY, 0).unwrap();
        assert!(event.starts_with("sha256:"));
        assert_eq!(
            verify(HookScheme::Github, secret, &sent, b"Hello, World", 0),
            Err(SignatureFault::Signature)
        );
        assert_eq!(
            verify(HookScheme::Github, b"another one", &sent, BODY, 0),
            Err(SignatureFault::Signature)
        );
        for bad in ["", "sha256=", "sha256=zz", "sha1=757107ea", &signed[..50]] {
            let sent = headers(&[("x-hub-signature-256", bad)]);
            assert!(verify(HookScheme::Github, secret, &sent, BODY, 0).is_err(), "{bad}");
        }
        assert!(verify(HookScheme::Github, secret, &headers(&[]), BODY, 0).is_err());
    }

    #[test]
    fn the_example_of_standard_webhooks_holds_for_five_minutes() {
        // From the specification's reference libraries.
        let secret = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let body = br#"{"test": 2432232314}"#;
        let at = 1_614_265_330;
        let sent = |signature: &str| {
            headers(&[
                ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
                ("webhook-timestamp", "1614265330"),
                ("webhook-signature", signature),
            ])
        };
        let good = sent("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let verify = |headers: &DeliveryHeaders, now_s| {
            verify(HookScheme::Standard, secret, headers, body, now_s)
        };
        assert_eq!(verify(&good, at).as_deref(), Ok("msg_p5jXN8AQM9LWM0D4loKWxJek"));
        assert!(verify(&good, at + TOLERANCE_S).is_ok());
        assert_eq!(verify(&good, at + TOLERANCE_S + 1), Err(SignatureFault::Time));
        assert_eq!(verify(&good, at - TOLERANCE_S - 1), Err(SignatureFault::Time));
        let two = sent("v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert!(verify(&two, at).is_ok());
        let other = sent("v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(verify(&other, at), Err(SignatureFault::Signature));
        let mut renamed = good.clone();
        renamed.insert("webhook-id", "msg_another".to_owned());
        assert_eq!(verify(&renamed, at), Err(SignatureFault::Signature));
    }

    #[test]
    fn gitlabs_token_is_compared_whole_and_its_id_tells_deliveries_apart() {
        let secret = b"a-long-token";
        let sent = headers(&[("x-gitlab-token", "a-long-token"), ("x-gitlab-event-uuid", "u-1")]);
        assert_eq!(verify(HookScheme::Gitlab, secret, &sent, BODY, 0).as_deref(), Ok("u-1"));
        for bad in ["", "a-long-toke", "a-long-token2"] {
            let sent = headers(&[("x-gitlab-token", bad)]);
            assert_eq!(
                verify(HookScheme::Gitlab, secret, &sent, BODY, 0),
                Err(SignatureFault::Signature)
            );
        }
    }
}
