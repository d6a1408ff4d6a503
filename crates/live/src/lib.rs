//! Long-lived sandboxes: a run of one task whose sandbox is held until it is killed or its time is over.
//!
//! ```text
//! create --one transaction: intent, run, its workflow, app.live_sandboxes--> run workflow -> task workflow
//!   live_task: up -> started (token's hash, times) -> registry -> { killed | expired | canceled | died | stopped } -> wipe
//!   the row ends in the commit of the task's end, with its wipe evidence
//! ```
//! **A sandbox is made once.** A second execution, a second attempt and a process that did not ask for it refuse to make
//! it: its name, its token and its environment are in the memory of the process that its caller asked, and in no table.
//! That process alone claims its task and talks to it; another one's answer says so (`location`). A paused one has no process: its files
//! and what was asked for are sealed on its host, and whoever resumes it there holds its next life (`resume`).
//!
//! An operation is a file: `create`, `pause`, `resume`, `fork`, `kill`, `extend`, `network`. All that make a sandbox go through `launch`, with
//! a `spec`; its task holds it in `live_task`. What this process holds is in `registry`, what a running one is ordered to in `handle`, and
//! which state may follow which in [`cofferdam_contracts::life`]. Who answers requests sends it `message`s, and asks the inside of a sandbox
//! by those of `guest`. Kept files are in `snapshot`, layers of paused sandboxes in `layer`, builds in `template`.
//!
//! # Floors
//! A line imports only from those below it; what imports each other in a circle stands on one line.
//! ```text
//! wake
//! create resume template::builds template::tags worker
//! launch pause snapshot::sweep template::build_steps
//! live_task layer::task snapshot::open template::build_layers template::uploads wait
//! fork kill snapshot::comparison snapshot::copy snapshot::capture snapshot::memory
//!    snapshot::space template::build_images template::host
//! location extend layer::layers network revocation snapshot::eraser snapshot::snapshots template::build
//!    template::build_log template::templates view
//! client guest::handle
//! message
//! live
//! registry
//! guest::directory guest::file guest::port guest::process guest::state guest::watch
//! guest::message
//! handle
//! pending_launch spec
//! early layer::transitions
//! layer::paused_layer layer::local_layers layer::retry
//! layer::sealer snapshot::new_file
//! snapshot::store template::program
//! background snapshot::resume_spec snapshot::reader snapshot::allowance work
//! accounts guest guest::error guest::facts ids layer layer::layer_memory layer::loan layer::retention patience
//!    refusal snapshot snapshot::handles snapshot::writer template template::resolved_template template::upload_digest
//!    tokens
//! ```

mod accounts;
mod background;
mod client;
mod create;
mod early;
mod extend;
mod fork;
mod guest;
mod handle;
mod ids;
mod kill;
mod launch;
mod layer;
mod live;
mod live_task;
mod location;
mod message;
mod network;
mod patience;
mod pause;
mod pending_launch;
mod refusal;
mod registry;
mod resume;
mod revocation;
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
pub use cofferdam_sandbox::{CommandEvent, ExecOptions, Stream};

pub use accounts::Account;
pub use client::LiveClient;
pub use create::CreateSandbox;
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
    AwaitAlive, CheckAlive, GuestEnvironment, GuestUsage, ReadEnvironment, ReadUsage,
};
pub use guest::watch::WatchDirectories;
pub use handle::{STREAMS, VISITORS};
pub use kill::KillSandbox;
pub use layer::sealer::{SEAL_COMMAND, seal_layer};
pub use live::Live;
pub use location::RefuseForeign;
pub use message::Message;
pub use network::{ChangeNetwork, ListNetworks};
pub use patience::CREATE_PATIENCE;
pub use pause::PauseSandbox;
pub use resume::{ResumeOptions, ResumeSandbox};
pub use snapshot::capture::{DeleteSnapshot, TakeSnapshot};
pub use snapshot::comparison::{Comparison, StoreComparison};
pub use snapshot::snapshots::Snapshots;
pub use template::builds::{
    BuildRequest, BuildResponse, DeleteTemplate, OpenBuild, StartBuild, ViewBuild,
};
pub use template::host::{FindTemplateFiles, ListHostTemplates};
pub use template::tags::{TagBuild, UntagBuilds};
pub use template::uploads::{FindUpload, SendUpload};
pub use view::{AllGuests, FindAnyGuest, FindGuest, ViewSandbox};
pub use wake::{ResumeRequest, WakeSandbox};
