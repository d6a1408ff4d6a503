//! Services that run beside a task, inside its boundary.
//!
//! A service is written as a name that the host knows, or as an object:
//!
//! ```yaml
//! services: [postgres, {name: api, cmd: [python3, -m, http.server, "8000"], port: 8000}]
//! ```

use std::collections::BTreeMap;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::own_schema::{own_schema, text_or_object};
use crate::user::UserName;

/// Services that a host starts by their names alone, where its root file system has their servers.
pub const KNOWN_SERVICES: [&str; 2] = ["postgres", "redis"];
/// Time to become healthy when a service does not say. PostgreSQL makes its database within a second
/// or two; a loaded host may take ten times that.
pub const DEFAULT_READY_MS: u64 = 30_000;
/// The longest that a service may ask for: a task waits for it.
pub const MAX_READY_MS: u64 = 300_000;
/// Services of one sandbox.
pub const MAX_SERVICES: usize = 8;

/// A service beside the task: one that the host knows, or a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name; alone it must be one that the host knows: `postgres` or `redis`.
    pub name: String,
    /// What a plain name leaves open.
    pub detail: Option<ServiceDetail>,
}

/// A service in full.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceDetail {
    /// Its root file system: the sandbox's own (default), or an image of a registry, `HOST[:PORT]/PATH[:TAG][@sha256:DIGEST]`.
    pub image: Option<String>,
    /// argv, in the foreground. Needed unless the host knows the name, or an image of a registry has a command. With such an image:
    /// what follows its entry point.
    pub cmd: Option<Vec<String>>,
    /// Its port on the sandbox's loopback. Needed with `cmd` and with an image of a registry.
    pub port: Option<u16>,
    /// Its environment, where it has a `cmd` or an image of a registry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whom it runs as: a name or number of its root file system, and after a colon a group. Default: the user of its image of a
    /// registry, otherwise root.
    pub user: Option<UserName>,
    /// When it counts as healthy.
    pub health: Option<ServiceHealth>,
}

/// When a service counts as healthy.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceHealth {
    /// What is asked. Default: the known service's own protocol, otherwise `tcp`.
    pub probe: Option<Probe>,
    /// How long it may take, in milliseconds: 1 to 300,000. Default 30,000.
    pub timeout_ms: Option<u64>,
}

/// What shows that a service works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Probe {
    /// Its port takes a connection.
    Tcp,
    /// It answers `GET /` with any HTTP status.
    Http,
    /// It takes PostgreSQL's startup message.
    Postgres,
    /// It answers PING.
    Redis,
}

/// How a service fared: one entry of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceReport {
    /// Name of the service.
    pub name: String,
    /// From its start to its first healthy answer, in milliseconds.
    pub ready_ms: u64,
    /// Its exit status if it ended before the task did; 128 + n for signal n.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// The image of a registry that it ran from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ServiceImage>,
}

/// An image of a registry that a service ran from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceImage {
    /// Reference with the digest that the plan is bound to.
    pub reference: String,
    /// Digest of the manifest for this machine: the reference's own, unless that is an index of several platforms.
    pub digest: Digest,
    /// Bytes of its layers as the registry has them.
    pub bytes: u64,
    /// Bytes that were fetched for this task; 0 where its tenant had the image on this host.
    pub fetched_bytes: u64,
}

/// The object form.
#[serde_with::skip_serializing_none]
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ServiceObject {
    /// Lower-case letters, digits and `-`.
    name: String,
    /// Its root file system: the sandbox's own, or an image of a registry.
    image: Option<String>,
    /// argv, in the foreground. With an image of a registry: what follows its entry point.
    cmd: Option<Vec<String>>,
    /// Its port on the sandbox's loopback.
    port: Option<u16>,
    /// Environment of `cmd` or of an image of a registry; refused without either.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    /// Whom it runs as.
    user: Option<UserName>,
    /// When it counts as healthy.
    health: Option<ServiceHealth>,
}

own_schema!(Service, |generator| {
    let whole = <ServiceObject as JsonSchema>::json_schema(generator);
    json_schema!({"oneOf": [
        {"type": "string", "minLength": 1, "maxLength": 32},
        whole
    ]})
});

impl Serialize for Service {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(detail) = self.detail.clone() else {
            return serializer.serialize_str(&self.name);
        };
        let ServiceDetail { image, cmd, port, env, user, health } = detail;
        ServiceObject { name: self.name.clone(), image, cmd, port, env, user, health }
            .serialize(serializer)
    }
}

text_or_object!(
    Service,
    "the name of a service, or an object with its name",
    |text| Ok(Service { name: text.to_owned(), detail: None }),
    ServiceObject => |ServiceObject { name, image, cmd, port, env, user, health }| Service {
        name,
        detail: Some(ServiceDetail { image, cmd, port, env, user, health }),
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_survive_and_an_unknown_field_is_refused() {
        for text in [
            r#""postgres""#,
            r#"{"name":"postgres"}"#,
            r#"{"name":"a","cmd":["x"],"port":1,"env":{"A":"b"},"user":"app:7","health":{"probe":"http","timeout_ms":5}}"#,
        ] {
            let service: Service = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&service).unwrap(), text);
        }
        for bad in [
            r#"{"name":"a","ports":[1]}"#,
            r#"{"cmd":["x"]}"#,
            "7",
            r#"{"name":"a","port":70000}"#,
            r#"{"name":"a","user":"a b"}"#,
        ] {
            assert!(serde_json::from_str::<Service>(bad).is_err(), "{bad}");
        }
    }
}
