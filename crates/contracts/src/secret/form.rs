//! What a secret is in a request: a header around it, or the password of basic authentication.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::json_schema;
use serde_with::{DeserializeFromStr, SerializeDisplay};
use zeroize::Zeroizing;

use super::value::SecretValue;

use crate::own_schema::own_schema;

/// Characters of a form: a header's name and the words around a token.
const MAX_FORM_CHARS: usize = 256;
/// Characters of a header's name.
const MAX_HEADER_CHARS: usize = 64;
/// Characters of a user.
const MAX_USER_CHARS: usize = 128;
/// What published schemas say of a form. A test compares it with [`SecretForm`]'s parser, which also refuses
/// headers that frame a request.
pub const FORM_PATTERN: &str = concat!(
    "^(header [A-Za-z][A-Za-z0-9-]{0,63} \"[ !#-\\[\\]-~]*\\{\\}[ !#-\\[\\]-~]*\"",
    "|basic [!#-9;-\\[\\]-~]{1,128})$"
);
/// Headers that frame a request, name its host or belong to one hop.
const NEVER: [&str; 15] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// How a secret stands in a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, SerializeDisplay, DeserializeFromStr)]
pub enum SecretForm {
    /// `header NAME "TEXT {} TEXT"`: the value stands where the braces do.
    Header {
        /// In lower case.
        name: String,
        /// Before the value.
        before: String,
        /// After the value.
        after: String,
    },
    /// `basic USER`: the value is the user's password.
    Basic {
        /// Without a colon.
        user: String,
    },
}

/// Why a text is no form of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// Neither of the two.
    #[error("write `header NAME \"Bearer {{}}\"`, where {{}} is the secret, or `basic USER`")]
    Form,
    /// The name of the header.
    #[error("a header's name is 1 to {MAX_HEADER_CHARS} letters, digits and dashes")]
    Header,
    /// A header that the proxy writes itself.
    #[error("this header frames a request or belongs to one hop: a secret cannot stand in it")]
    Never,
    /// The text around the value.
    #[error("the text needs exactly one {{}}, and holds ASCII without \" and \\")]
    Text,
    /// The user's name.
    #[error("a user is 1 to {MAX_USER_CHARS} printable characters without spaces and : \" \\")]
    User,
}

impl SecretForm {
    /// The header that it sets, in lower case.
    #[must_use]
    pub fn header(&self) -> &str {
        match self {
            Self::Header { name, .. } => name,
            Self::Basic { .. } => "authorization",
        }
    }

    /// The header's value with the secret in it.
    #[must_use]
    pub fn filled(&self, value: &SecretValue) -> Zeroizing<Vec<u8>> {
        let value = value.expose();
        Zeroizing::new(match self {
            Self::Header { before, after, .. } => {
                [before.as_bytes(), value, after.as_bytes()].concat()
            }
            Self::Basic { user } => {
                let pair = Zeroizing::new([user.as_bytes(), b":", value].concat());
                let encoded = Zeroizing::new(STANDARD.encode(&*pair));
                [b"Basic ", encoded.as_bytes()].concat()
            }
        })
    }
}

impl FromStr for SecretForm {
    type Err = FormError;

    fn from_str(text: &str) -> Result<Self, FormError> {
        if text.len() > MAX_FORM_CHARS {
            return Err(FormError::Form);
        }
        if let Some(user) = text.strip_prefix("basic ") {
            let fits = |b: u8| b.is_ascii_graphic() && !matches!(b, b':' | b'"' | b'\\');
            let whole = (1..=MAX_USER_CHARS).contains(&user.len()) && user.bytes().all(fits);
            return if whole {
                Ok(Self::Basic { user: user.to_owned() })
            } else {
                Err(FormError::User)
            };
        }
        let rest = text.strip_prefix("header ").ok_or(FormError::Form)?;
        let (name, quoted) = rest.split_once(' ').ok_or(FormError::Form)?;
        let inner = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let inner = inner.ok_or(FormError::Form)?;
        let is_name = (1..=MAX_HEADER_CHARS).contains(&name.len())
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !is_name {
            return Err(FormError::Header);
        }
        let name = name.to_ascii_lowercase();
        if NEVER.contains(&name.as_str()) {
            return Err(FormError::Never);
        }
        let fits = |b: u8| (b == b' ' || b.is_ascii_graphic()) && !matches!(b, b'"' | b'\\');
        let (before, after) = inner.split_once("{}").ok_or(FormError::Text)?;
        if after.contains("{}") || !inner.bytes().all(fits) {
            return Err(FormError::Text);
        }
        Ok(Self::Header { name, before: before.to_owned(), after: after.to_owned() })
    }
}

impl fmt::Display for SecretForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header { name, before, after } => {
                write!(f, "header {name} \"{before}{{}}{after}\"")
            }
            Self::Basic { user } => write!(f, "basic {user}"),
        }
    }
}

own_schema!(SecretForm, |_| json_schema!({
    "type": "string", "maxLength": MAX_FORM_CHARS, "pattern": FORM_PATTERN
}));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Validator;
    use serde_json::json;

    fn value(text: &str) -> SecretValue {
        SecretValue::parse(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn a_form_is_a_header_or_basic_authentication() {
        let filled = |form: &str| {
            let form: SecretForm = form.parse().unwrap();
            let filled = form.filled(&value("s3cret-value")).to_vec();
            (form.header().to_owned(), String::from_utf8(filled).unwrap())
        };
        let bearer = filled("header Authorization \"Bearer {}\"");
        assert_eq!(bearer, ("authorization".into(), "Bearer s3cret-value".into()));
        assert_eq!(filled("header X-Key \"{}\"").1, "s3cret-value");
        assert_eq!(filled("basic git").1, "Basic Z2l0OnMzY3JldC12YWx1ZQ==");
    }

    #[test]
    fn the_schema_and_the_parser_agree() {
        let schema = Validator::compile(&crate::schema::schema_of::<SecretForm>()).unwrap();
        for (text, why) in [
            ("header Authorization \"Bearer {}\"", None),
            ("header x-key \"a {} b\"", None),
            ("basic x-access-token", None),
            ("basic", Some(FormError::Form)),
            ("basic a:b", Some(FormError::User)),
            ("basic a b", Some(FormError::User)),
            ("header a", Some(FormError::Form)),
            ("header a {}", Some(FormError::Form)),
            ("header a \"x\"", Some(FormError::Text)),
            ("header a \"{}\\{}\"", Some(FormError::Text)),
            ("header a \"\u{e9}{}\"", Some(FormError::Text)),
            ("header a \"\n{}\"", Some(FormError::Text)),
            ("header 1a \"{}\"", Some(FormError::Header)),
            ("header a: \"{}\"", Some(FormError::Header)),
            ("query token", Some(FormError::Form)),
        ] {
            assert_eq!(text.parse::<SecretForm>().err(), why, "{text}");
            assert_eq!(schema.check(&json!(text)).is_ok(), why.is_none(), "{text}");
        }
        for name in NEVER {
            let form = format!("header {name} \"{{}}\"");
            assert_eq!(form.parse::<SecretForm>(), Err(FormError::Never), "{name}");
        }
    }
}
