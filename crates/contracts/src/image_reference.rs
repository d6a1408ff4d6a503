//! References to images of registries: `HOST[:PORT]/PATH[:TAG][@sha256:HEX]`.
//!
//! A reference always names its registry: a short name would mean a registry that its author did not choose.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{ErrorCode, Refusal};
use crate::id::{Digest, TenantId};
use crate::sandbox::{IsolationClass, SandboxRequest};

/// The key of `dynamic_config`, of the host alone: registries from which images of services are pulled, by tenant; `*` is every
/// tenant.
pub const REGISTRIES: &str = "services.registries";
/// The entry of the grants that is every tenant's.
const EVERY_TENANT: &str = "*";
/// Pattern of a registry in the configuration: a host name or IPv4 address in lower case, and a port.
pub const REGISTRY_PATTERN: &str = "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[0-9]{1,5})?$";
/// Bytes of a whole reference: a host's longest name, a path, a tag and a digest.
const MAX_REFERENCE: usize = 512;
/// Bytes of a tag, as registries have it.
const MAX_TAG: usize = 128;
const SHA256: &str = "@sha256:";

/// Registries by tenant.
pub type RegistryGrants = BTreeMap<String, Vec<String>>;

/// The registries that a tenant's services may come from.
#[must_use]
pub fn registries_of(grants: &RegistryGrants, tenant: &TenantId) -> Vec<String> {
    let of = |who: &str| grants.get(who).into_iter().flatten().cloned();
    of(EVERY_TENANT).chain(of(tenant.as_str())).collect()
}

/// The grants as a tenant sees them: no other tenant's.
#[must_use]
pub fn registries_seen_by(mut grants: RegistryGrants, tenant: &TenantId) -> RegistryGrants {
    grants.retain(|who, _| who == EVERY_TENANT || who == tenant.as_str());
    grants
}

/// An image of a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageReference {
    registry: String,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl ImageReference {
    /// Parses a reference; the error says what is wrong with it.
    ///
    /// # Errors
    /// It names no registry, has neither tag nor digest, or characters that no reference has.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| Err(format!("{:?} {why}", text.chars().take(200).collect::<String>()));
        if text.len() > MAX_REFERENCE {
            return wrong("is longer than 512 bytes");
        }
        let (name, digest) = match text.split_once(SHA256) {
            Some((name, hex)) => match Digest::parse(hex) {
                Ok(digest) => (name, Some(digest)),
                Err(_) => return wrong("has a digest that is not `sha256:` and 64 hex digits"),
            },
            None => (text, None),
        };
        let Some((registry, rest)) = name.split_once('/').filter(|(host, _)| is_registry(host))
        else {
            return wrong(
                "must begin with its registry: HOST[:PORT]/PATH:TAG or HOST[:PORT]/PATH@sha256:DIGEST, in lower case",
            );
        };
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        if !path.split('/').all(is_component) {
            return wrong(
                "has a path with other than lower-case letters, digits and `.`, `_`, `-` inside a component",
            );
        }
        if !tag.is_none_or(is_tag) {
            return wrong("has a tag with other than letters, digits, `.`, `_` and `-`");
        }
        if tag.is_none() && digest.is_none() {
            return wrong("has neither a tag nor a digest: add `:TAG` or `@sha256:DIGEST`");
        }
        Ok(Self {
            registry: registry.to_owned(),
            path: path.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }

    /// Host, and port where the reference has one.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Digest of the manifest or index, where the reference is pinned.
    #[must_use]
    pub const fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The reference pinned to this digest. Its tag stays for readers.
    #[must_use]
    pub fn pinned(&self, digest: Digest) -> Self {
        Self { digest: Some(digest), ..self.clone() }
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "{SHA256}{digest}"),
            None => Ok(()),
        }
    }
}

/// A host name with a dot or a port, or `localhost`: what tells a registry from the first component of a path.
fn is_registry(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_host = (1..=253).contains(&host.len())
        && host.bytes().all(is_plain)
        && is_edge(host.bytes().next())
        && is_edge(host.bytes().last());
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    is_host && is_port && (host.contains('.') || port.is_some() || host == "localhost")
}

fn is_component(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_edge = |byte: Option<u8>| byte.is_some_and(is_word);
    text.bytes().all(|byte| is_word(byte) || b"._-".contains(&byte))
        && is_edge(text.bytes().next())
        && is_edge(text.bytes().last())
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=MAX_TAG).contains(&text.len())
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || b".-".contains(&byte))
}

/// Images of a request's services, each with the index of its service. The sandbox's own image is left out.
pub fn service_images(request: &SandboxRequest) -> impl Iterator<Item = (usize, &str)> {
    let services = request.spec.as_ref().and_then(|spec| spec.services.as_deref());
    services.unwrap_or_default().iter().enumerate().filter_map(|(index, service)| {
        let image = service.detail.as_ref()?.image.as_deref()?;
        (image != request.env_ref).then_some((index, image))
    })
}

/// Holds the images of a request's services against the registries that its tenant may pull from, where these are known, and against
/// its class.
///
/// # Errors
/// [`ErrorCode::RecipeInvalid`] for a reference or a task that cannot be, [`ErrorCode::PolicyViolation`] for what is not granted;
/// with the field, and what to do.
pub fn check(
    what: &str,
    request: &SandboxRequest,
    allowed: Option<&[String]>,
) -> Result<(), Refusal> {
    for (index, image) in service_images(request) {
        let field = format!("services[{index}].image");
        let refuse = |code, why: String| {
            let details = serde_json::json!({"field": field, "image": image});
            Refusal::new(code, format!("{what}: {field}: {why}")).with(details)
        };
        let reference = ImageReference::parse(image);
        let reference = reference.map_err(|why| refuse(ErrorCode::RecipeInvalid, why))?;
        let class = request.class_min();
        if class != IsolationClass::Container {
            let why = format!(
                "a sandbox of the class {} runs no services from images, `container` does: take the service from the task's own \
                 image, with `cmd`",
                class.as_str()
            );
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
        let is_granted = |all: &[String]| all.iter().any(|one| one == reference.registry());
        if !allowed.is_none_or(is_granted) {
            let why = format!(
                "images of {} are not allowed: have the host's admin add it to {REGISTRIES}",
                reference.registry()
            );
            return Err(refuse(ErrorCode::PolicyViolation, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_names_its_registry_and_a_tag_or_a_digest() {
        let hex = "0f".repeat(32);
        for good in [
            "registry.example/db:15".to_owned(),
            "localhost/a/b-c/d_e.f:V1.2-x".to_owned(),
            format!("127.0.0.1:5000/team/tool@sha256:{hex}"),
            format!("registry.example:443/tool:1@sha256:{hex}"),
        ] {
            assert_eq!(ImageReference::parse(&good).unwrap().to_string(), good);
        }
        let tagged = ImageReference::parse("r.example/db:15").unwrap();
        assert_eq!((tagged.registry(), tagged.digest()), ("r.example", None));
        let pinned = tagged.pinned(Digest::parse(&hex).unwrap()).to_string();
        assert_eq!(pinned, format!("r.example/db:15@sha256:{hex}"));
        for bad in [
            "db:15",
            "library/db:15",
            "r.example/db",
            "r.example/../db:1",
            "r.example/a//b:1",
            "r.example/DB:1",
            "R.example/db:1",
            "r.example/db:",
            "r.example/db:a b",
            "r.example:0/db:1",
            "r.example:70000/db:1",
            "r.example/db@sha256:12",
            "r.example/:1",
            "-r.example/db:1",
            "http://r.example/db:1",
            "user@r.example/db:1",
            "r.example/db:1\n",
            "",
        ] {
            assert!(ImageReference::parse(bad).is_err(), "{bad}");
        }
        let long = format!("r.example/{}:1", "a".repeat(MAX_REFERENCE));
        assert!(ImageReference::parse(&long).unwrap_err().contains("512"));
    }

    #[test]
    fn an_image_of_a_registry_that_is_not_granted_or_of_another_class_is_refused_with_the_remedy() {
        let grants: RegistryGrants =
            serde_json::from_value(json!({"*": ["all.example"], "acme": ["own.example:5000"]}))
                .unwrap();
        let acme = registries_of(&grants, &TenantId::parse("acme").unwrap());
        let mut request = SandboxRequest::plain("host", vec!["true".to_owned()], 1_000);
        let mut checked = |image: &str, spec: serde_json::Value, allowed: &[String]| {
            let mut spec = spec;
            spec["services"] = json!([{"name": "db", "image": image, "port": 1}]);
            request.spec = serde_json::from_value(spec).unwrap();
            check("t", &request, Some(allowed)).map_err(|refusal| (refusal.code, refusal.message))
        };
        checked("own.example:5000/db:1", json!({}), &acme).unwrap();
        checked("all.example/db:1", json!({}), &acme).unwrap();
        checked("host", json!({}), &[]).unwrap();
        let (code, why) = checked("own.example/db:1", json!({}), &acme).unwrap_err();
        assert_eq!(code, ErrorCode::PolicyViolation);
        assert!(why.contains("t: services[0].image") && why.contains(REGISTRIES), "{why}");
        let (code, why) =
            checked("all.example/db:1", json!({"isolation": {"class_min": "microvm"}}), &acme)
                .unwrap_err();
        assert!(code == ErrorCode::PolicyViolation && why.contains("microvm"), "{why}");
        assert_eq!(checked("db:1", json!({}), &acme).unwrap_err().0, ErrorCode::RecipeInvalid);
        let other = TenantId::parse("other").unwrap();
        assert_eq!(registries_of(&grants, &other), ["all.example"]);
        assert_eq!(registries_seen_by(grants, &other).keys().collect::<Vec<_>>(), ["*"]);
    }
}
