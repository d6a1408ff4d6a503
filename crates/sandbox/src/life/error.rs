//! Why a sandbox could not be made: what callers are given, and the step that failed.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cofferdam_contracts::sandbox::{ErrCode, WipeEvidence};

use crate::agent::AgentError;
use crate::agent::excess::Excess;
use crate::class::StartError;
use crate::egress::EgressError;
use crate::host::crypt::MakeError;
use crate::host::hostpath::{HostPath, OpenError};
use crate::life::input::InputError;
use crate::life::service::ServiceError;

/// One file: 64 MiB through a sandbox with a hundredth of a CPU.
pub(crate) const UPLOAD_MS: u64 = 60_000;

/// A sandbox that could not be made. Nothing of the task ran, and what was begun is wiped.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
pub struct ProvisionError {
    /// `BOOT_FAIL`, `UPLOAD_FAIL` or `NET_FAIL`.
    pub code: ErrCode,
    /// Why, in words.
    pub message: String,
    /// Whether another attempt on this host would end the same.
    pub permanent: bool,
    /// The wipe of what had been made.
    pub evidence: Box<WipeEvidence>,
}

/// A step of the start that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    #[error("{what} {path:?}")]
    Prepare { what: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the sandbox did not start: {log}")]
    Ended { log: String },
    #[error("the agent did not answer in time: {log}")]
    Silent { log: String },
    #[error("the machine could not be made a sandbox: {fault}")]
    Machine { fault: String },
    #[error("the agent's process was not found")]
    Unobserved,
    #[error("the worker is stopping and starts no sandbox")]
    Closed,
    #[error("it was given up while it began")]
    Unwanted,
    #[error("the root file system cannot be used")]
    Base(#[from] OpenError),
    #[error(
        "{of:?} cannot be given: an overlay over its file system failed; give a copy of it that lies on \
         another one"
    )]
    Over { of: String, source: io::Error },
    #[error("{said:?} could not be mounted for the sandbox")]
    Share { said: HostPath, source: io::Error },
    #[error("the files of its snapshot cannot be used")]
    Fill { source: io::Error },
    #[error(
        "/{0} is not a directory in the files that the sandbox is to begin with, of its image, template or snapshot: \
         no sandbox begins with such files; begin with others, in which it is a directory"
    )]
    Displaced(String),
    #[error("its agent went on and does not say which commands run")]
    Woken { source: AgentError },
    #[error("an input cannot be given")]
    Input(#[from] InputError),
    #[error("{path:?} could not be given to the sandbox")]
    Upload { path: String, source: AgentError },
    #[error("{path:?} could not be read on this host")]
    Read { path: String, source: io::Error },
    #[error("{path:?} was not taken within {UPLOAD_MS} ms")]
    Slow { path: String },
    #[error("the network of its phases cannot be set up")]
    Net(#[from] EgressError),
    #[error(transparent)]
    Encrypted(#[from] MakeError),
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl BootError {
    pub(crate) fn code(&self) -> ErrCode {
        match self {
            Self::Input(_) | Self::Upload { .. } | Self::Read { .. } | Self::Slow { .. } => {
                ErrCode::UploadFail
            }
            Self::Net(_) => ErrCode::NetFail,
            _ => ErrCode::BootFail,
        }
    }

    /// Whether what was asked for is refused, rather than that something failed.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::Input(error) => error.is_permanent(),
            // A root that is kept from this run is not given a moment later.
            Self::Base(error) => error.is_permanent(),
            Self::Start(StartError::Unfillable(_)) => true,
            Self::Fill { .. } | Self::Displaced(_) => true,
            // The agent cannot write there: no file can have the path, or the fresh layer is too small for it.
            Self::Upload { source: AgentError::Refused { .. }, .. } => true,
            _ => false,
        }
    }
}

pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), BootError> {
    DirBuilder::new().mode(mode).create(path).map_err(fault("making", path))
}

pub(crate) fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BootError {
    let path = path.to_owned();
    move |source| BootError::Prepare { what, path, source }
}

/// Why something inside a sandbox could not be done.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Someone asked for it.
    #[error("the sandbox was killed")]
    Killed,
    /// The agent is gone or wrong.
    #[error("the agent failed")]
    Agent(#[from] AgentError),
    /// Its files are more than one collection takes; they would be another time.
    #[error(transparent)]
    Excess(Excess),
    /// The agent is silent.
    #[error("the agent did not answer within {0} ms")]
    Silent(u64),
}
