//! Long-lived sandboxes: a run of one task whose sandbox is held until it is killed or its time is over.
//!
//! ```text
//! create --one transaction: intent, run, its workflow, app.live_sandboxes--> run workflow -> task workflow
//!   hold: up -> started (token's hash, times) -> registry -> { killed | expired | canceled | died | stopped } -> wipe
//!   the row ends in the commit of the task's end, with its wipe evidence
//! ```
//! **A sandbox is made once.** A second execution, a second attempt and a process that did not ask for it refuse to make
//! it: its name, its token and its environment are in the memory of the process that its caller asked, and in no table.
//! That process alone claims its task and talks to it; another one's answer says so (`elsewhere`). A paused one has no process: its files
//! and what was asked for are sealed on its host, and whoever resumes it there holds its next life (`resume`).
//!
//! An operation is a file: `create`, `pause`, `resume`, `fork`, `kill`, `extend`, `network`. All that make a sandbox go through `launch`, with
//! a `spec`; its task holds it in `hold`. What this process holds is in `registry`, what a running one is ordered to in `held`, and which state
//! may follow which in [`cofferdam_contracts::life`]. Who answers requests sends it `message`s, and asks the inside of a sandbox by those of `guest`. Kept files are in `snapshot`, layers of paused sandboxes in `layer`, builds in `template`.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! wake
//! create resume template::builds template::tags worker
//! launch pause snapshot::sweep template::build_steps
//! hold layer::task snapshot::open template::build_layers template::uploads wait
//! fork kill snapshot::compared snapshot::copied snapshot::keep snapshot::memory
//!    snapshot::space template::build_images template::host
//! elsewhere extend layer::layers network revoked snapshot::eraser snapshot::snapshots template::build
//!    template::build_log template::templates view
//! client guest::handle
//! message
//! live
//! registry
//! guest::directory guest::file guest::port guest::process guest::state guest::watch
//! guest::message
//! held
//! expected spec
//! ahead layer::machine
//! layer::plain layer::plain_layers layer::retry
//! layer::sealer snapshot::new_file
//! snapshot::shelf template::program
//! background snapshot::again snapshot::opened snapshot::room work
//! accounts guest guest::error guest::facts ids layer layer::left_memory layer::loan layer::rest patience
//!    refusal snapshot snapshot::handles snapshot::sealed template template::basis template::upload_digest
//!    tokens
//! ```

mod accounts;
mod ahead;
mod background;
mod client;
mod create;
mod elsewhere;
mod expected;
mod extend;
mod fork;
mod guest;
mod held;
mod hold;
mod ids;
mod kill;
mod launch;
mod layer;
mod live;
mod message;
mod network;
mod patience;
mod pause;
mod refusal;
mod registry;
mod resume;
mod revoked;
mod snapshot;
mod spec;
mod template;
mod tokens;
mod view;
mod wait;
mod wake;
mod work;
mod worker;

pub use cofferdam_sandbox::inside;
pub use cofferdam_sandbox::templates::Template;
pub use cofferdam_sandbox::{Manner, Said, Stream};

pub use accounts::Account;
pub use client::LiveClient;
pub use create::CreateSandbox;
pub use elsewhere::RefuseElsewhere;
pub use extend::ExtendSandbox;
pub use fork::ForkSandbox;
pub use guest::directory::{ListDirectory, MakeDirectory, RemoveFile, RenameFile, StatFile};
pub use guest::error::GuestError;
pub use guest::facts::Facts;
pub use guest::file::{ByteSink, FileBytes, ReadFile, WriteFile};
pub use guest::handle::Guest;
pub use guest::message::GuestMessage;
pub use guest::port::{DialPort, PortConnection, PortLease};
pub use guest::process::{
    FollowCommand, ListCommands, Process, ResizeTerminal, SignalCommand, StartCommand,
};
pub use guest::state::{
    GuestEnvironment, GuestUsage, LivesOn, LivesOnForRequest, ReadEnvironment, ReadUsage,
};
pub use guest::watch::WatchDirectories;
pub use held::{STREAMS, VISITORS};
pub use kill::KillSandbox;
pub use layer::sealer::{SEAL_COMMAND, seal_layer};
pub use live::Live;
pub use message::Message;
pub use network::{ChangeNetwork, ListNetworks};
pub use patience::CREATE_PATIENCE;
pub use pause::PauseSandbox;
pub use resume::{ResumeOptions, ResumeSandbox};
pub use snapshot::compared::{Comparison, KeptDifferences};
pub use snapshot::keep::{DeleteSnapshot, TakeSnapshot};
pub use snapshot::snapshots::Snapshots;
pub use template::builds::{
    BuildAsked, BuildOpened, DeleteTemplate, OpenBuild, StartBuild, ViewBuild,
};
pub use template::host::{ListHostTemplates, NamedTemplate};
pub use template::tags::{TagBuild, UntagBuilds};
pub use template::uploads::{HasUpload, SendUpload};
pub use view::{AllGuests, FindGuest, NamedGuest, ViewSandbox};
pub use wake::{Knock, WakeSandbox};
