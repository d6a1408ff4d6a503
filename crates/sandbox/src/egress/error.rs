//! Why a sandbox's network cannot be what its plan says.

use std::io;

use super::authority::CertificateAuthorityError;
use crate::agent::AgentError;

/// Why a sandbox's network cannot be what its plan says.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EgressError {
    #[error("the mirror {mirror} cannot be resolved on this host: {words}")]
    Mirror { mirror: &'static str, words: String },
    #[error("this host's network configuration cannot be followed: {0}")]
    Host(String),
    #[error("the egress proxy could not listen inside the sandbox")]
    Listen(#[from] io::Error),
    #[error("the agent could not listen inside the sandbox")]
    Doors(#[from] AgentError),
    #[error("this host's certificates could not be read")]
    Certificates(#[source] io::Error),
    #[error("the sandbox's own authority of certificates")]
    Authority(#[from] CertificateAuthorityError),
    #[error("the sandbox's network namespace was not found")]
    NoNetns,
    #[error("the build phase is over and its network with it")]
    Over,
    #[error("the sandbox ends, and its network with it")]
    Ended,
}
