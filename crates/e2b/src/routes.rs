//! The one table of E2B's endpoints. The router, the check of permissions, the OpenAPI documents and the page
//! `docs/reference/e2b.md` are made from it.
//!
//! A new endpoint is a row here, and its function in the file that is named by what it does. Rows are asked in order.

use std::collections::BTreeMap;

use cofferdam_contracts::schema::schema_of;

use crate::connect::schema;
use crate::connect::schema::Method;
use crate::envd::files::{download, upload};
use crate::envd::filesystem::{list, make_dir, remove, rename, stat, watch};
use crate::envd::process;
use crate::envd::{environment, usage};
use crate::route::{Access, Endpoint, Route, Surface};
use crate::sandbox::answers::{Sandbox, SandboxItem};
use crate::sandbox::bodies::TimeoutRequest;
use crate::sandbox::{
    connect, create, detail, fork, kill, list as sandboxes, logs, metrics, network, pause, resume,
    snapshots, timeout,
};
use crate::template::names::TemplateAnswer;
use crate::template::upload as archive;
use crate::template::{
    alias, build, build_logs, build_status, create as builds, delete, detail as template, files,
    list as templates, publish, tag_groups, tags,
};

/// Services of Connect.
pub(crate) const PROCESS: &str = "process.Process";
pub(crate) const FILESYSTEM: &str = "filesystem.Filesystem";

/// Its handler, in a box that every row has alike.
macro_rules! boxed {
    ($handler:path) => {
        |call| Box::pin($handler(call))
    };
}

/// The schema of a body, where it has one.
macro_rules! schema {
    () => {
        None
    };
    ($type:ty) => {
        Some(schema_of::<$type>)
    };
}

/// Who and where, what answers, names of the query, the body, statuses and the body of a success, then words.
macro_rules! route {
    ($method:literal $path:literal, $surface:ident $access:ident, $endpoint:expr,
     [$($query:literal),*] $($request:ty)? => $($success:literal)|+ $($response:ty)?, $summary:literal $(, $notes:literal)?) => {
        Route {
            surface: Surface::$surface,
            method: $method,
            path: $path,
            access: Access::$access,
            summary: $summary,
            query: &[$($query),*],
            request: schema!($($request)?),
            success: &[$($success),+],
            response: schema!($($response)?),
            endpoint: $endpoint,
            notes: concat!($($notes)?),
        }
    };
}

macro_rules! reads {
    ($path:literal, $handler:path, $($rest:tt)+) => {
        route!("GET" $path, Control Reads, Endpoint::Control(boxed!($handler)), $($rest)+)
    };
}

macro_rules! writes {
    ($method:literal $path:literal, $handler:path, $($rest:tt)+) => {
        route!($method $path, Control Writes, Endpoint::Control(boxed!($handler)), $($rest)+)
    };
}

/// A call of Connect.
macro_rules! rpc {
    ($kind:ident $path:literal, $request:ident => $reply:ident, $handler:path, $summary:literal $(, $notes:literal)?) => {
        route!("POST" $path, Envd Token, Endpoint::$kind {
            codec: &Method { request: &schema::$request, reply: &schema::$reply },
            handler: boxed!($handler),
        }, [] => 200, $summary $(, $notes)?)
    };
}

/// What a path that is no row's is told, of each surface.
pub(crate) const NO_ROUTE: &str = "E2B's API has no such route here";
pub(crate) const NO_ENVD_ROUTE: &str = "envd has no such route here";

/// What is not there says so.
const fn absent(method: &'static str, path: &'static str, why: &'static str) -> Route {
    Route {
        surface: Surface::Control,
        method,
        path,
        access: Access::ByMethod,
        summary: "",
        query: &[],
        request: None,
        success: &[],
        response: None,
        endpoint: Endpoint::Absent(400, why),
        notes: "",
    }
}

/// E2B's older builds.
const fn absent_write(path: &'static str) -> Route {
    const OLDER: &str = "not supported: builds by E2B's older API, which pushes images to a registry: use Template.build of e2b 2 (POST /v3/templates)";
    Route { access: Access::Writes, ..absent("POST", path, OLDER) }
}

const fn absent_in_envd(path: &'static str, status: u16, why: &'static str) -> Route {
    Route {
        surface: Surface::Envd,
        access: Access::Token,
        endpoint: Endpoint::Absent(status, why),
        ..absent("*", path, why)
    }
}

/// Endpoints of both surfaces, served or not; the first that fits a request answers it.
pub static ROUTES: &[Route] = &[
    route!("*" "/health", Control Open, Endpoint::Empty, [] => 204,
        "Whether the server answers"),
    route!("PUT" "/templates/{id}/files/{hash}", Control Link, Endpoint::Upload(boxed!(archive::take)),
        ["signature"] => 200,
        "Takes the archive of a COPY step",
        "The path and its signature are the link that `GET` answers. It takes one archive for an hour, without a key, until the server restarts."),
    writes!("POST" "/v2/sandboxes", create::newer, [] create::NewSandbox => 201 Sandbox,
        "Creates a sandbox",
        "An unknown template is a 404, a program that does not become ready a 400. A creation without room waits, then answers 503."),
    writes!("POST" "/sandboxes", create::older, [] create::NewSandbox => 201 Sandbox,
        "Creates a sandbox, for older clients",
        "As `POST /v2/sandboxes`, with another default of `timeout`."),
    reads!("/v2/sandboxes", sandboxes::newer,
        ["metadata", "state", "template", "startedAfter", "limit", "nextToken", "order"] => 200 Vec<SandboxItem>,
        "Sandboxes by the page",
        "Without `state`, both running and paused ones. `X-Total-Running` counts those that run."),
    reads!("/sandboxes", sandboxes::older, ["metadata", "state", "order"] => 200 Vec<SandboxItem>,
        "Up to 1,000 sandboxes",
        "Without `state`, running ones only."),
    reads!("/sandboxes/metrics", metrics::metrics_of_all, ["sandbox_ids"] => 200 metrics::Samples,
        "What several sandboxes use",
        "One sample each, of now. A sandbox that does not run has none."),
    reads!("/sandboxes/{id}/metrics", metrics::metrics, [] => 200 Vec<metrics::Sample>,
        "What a sandbox uses",
        "One sample, of now. Names of the query are ignored."),
    reads!("/sandboxes/{id}", detail::detail, [] => 200 detail::SandboxDetail,
        "A sandbox, running or paused",
        "The network is shown as it is enforced. A key that only reads gets no `envdAccessToken`."),
    writes!("DELETE" "/sandboxes/{id}", kill::kill, [] => 204,
        "Ends a sandbox",
        "The answer comes once the wipe is verified. 503 with `Retry-After` means that the sandbox has ended and runs no command, but its host is lost (answered at once) or its wipe is not seen within 20 s."),
    writes!("POST" "/v2/sandboxes/{id}/connect", connect::connect, [] TimeoutRequest => 200 | 201 Sandbox,
        "Extends a sandbox, or resumes it",
        "200 for a running sandbox, whose end is only ever moved back; 201 for one that was paused."),
    writes!("POST" "/sandboxes/{id}/connect", connect::connect, [] TimeoutRequest => 200 | 201 Sandbox,
        "Extends a sandbox, or resumes it, for older clients",
        "As `POST /v2/sandboxes/{id}/connect`."),
    writes!("POST" "/sandboxes/{id}/resume", resume::resume, [] TimeoutRequest => 201 Sandbox,
        "Resumes a paused sandbox",
        "409: it runs already. 421: its files are on another server."),
    writes!("POST" "/sandboxes/{id}/pause", pause::pause, [] pause::PauseRequest => 204,
        "Pauses a sandbox",
        "The answer comes once the pause and the wipe of all but its files are on record. 409 means only that it is paused already, since clients take it for a success. 400 says what kept it from being paused; 421: another server holds it."),
    writes!("POST" "/sandboxes/{id}/fork", fork::fork, [] fork::ForkRequest => 201 Vec<fork::ForkResult>,
        "Makes sandboxes with the files of a running or paused one",
        "Each of the 1 to 20 sandboxes has its own error."),
    writes!("POST" "/sandboxes/{id}/snapshots", snapshots::snapshot, [] snapshots::NewSnapshot => 201 snapshots::Snapshot,
        "Takes a snapshot of a sandbox's files"),
    reads!("/snapshots", snapshots::list, ["sandboxID", "name", "limit", "nextToken"] => 200 Vec<snapshots::Snapshot>,
        "Snapshots by the page"),
    writes!("POST" "/sandboxes/{id}/timeout", timeout::timeout, [] TimeoutRequest => 204,
        "Sets when a sandbox ends",
        "`timeout` is needed. A sandbox ends at most one day from now."),
    writes!("POST" "/sandboxes/{id}/refreshes", timeout::refresh, [] timeout::RefreshRequest => 204,
        "Moves a sandbox's end back",
        "A sandbox ends at most one day from now."),
    writes!("PUT" "/sandboxes/{id}/network", network::update, [] network::NetworkUpdate => 204,
        "Replaces the network of a running sandbox",
        "The answer comes once it is in force. 409: it is paused. 503: it starts. 421: another server holds it."),
    reads!("/v2/sandboxes/{id}/logs", logs::newer,
        ["cursor", "direction", "level", "search", "limit"] => 200 logs::Logs,
        "What is on record of a sandbox's life",
        "Each creation, start, pause, resume, snapshot, change of the network and end has an entry. Output of commands has none."),
    reads!("/sandboxes/{id}/logs", logs::older, ["start", "limit"] => 200 logs::OlderLogs,
        "What is on record of a sandbox's life, for older clients",
        "As `GET /v2/sandboxes/{id}/logs`."),
    reads!("/templates", templates::list, [] => 200 Vec<TemplateAnswer>,
        "Templates of the host and the tenant",
        "`base` is always among them. `buildID` is the newest build that is ready, `buildStatus` that of the newest build. `NAME:BUILDID` names a build while its files are kept, which is as long as it has a tag. A template of another tenant is a 404."),
    reads!("/v2/templates", templates::pages, ["limit", "nextToken", "teamID"] => 200 Vec<TemplateAnswer>,
        "Templates of the host and the tenant, by the page",
        "As `GET /templates`."),
    reads!("/default-templates", templates::defaults, [] => 200 Vec<TemplateAnswer>,
        "Templates of the host"),
    reads!("/templates/aliases/{alias}", alias::alias, [] => 200 alias::TemplateAlias,
        "Whether a template is there",
        "A tag of the name is ignored."),
    writes!("POST" "/v3/templates", builds::open, [] builds::NewBuild => 202 builds::BuildResponse,
        "Opens a build",
        "409: the name is that of a template of the host."),
    writes!("POST" "/v2/templates/{id}/builds/{build}", build::start, [] build::BuildSteps => 202,
        "Starts a build",
        "A step that is refused is a 400 with its number. 409: the build was started before, or another one of the template runs."),
    reads!("/templates/{id}/builds/{build}/status", build_status::status,
        ["logsOffset", "limit", "level"] => 200 build_status::BuildProgress,
        "How a build is getting on",
        "`reason` has a message and a step: its number, `base` or `finalize`."),
    reads!("/templates/{id}/builds/{build}/logs", build_logs::logs,
        ["cursor", "limit", "direction", "level", "source"] => 200 build_logs::BuildLogs,
        "The log of a build"),
    route!("GET" "/templates/{id}/files/{hash}", Control Writes, Endpoint::Control(boxed!(files::link)),
        [] => 201 files::UploadLink,
        "A link for the archive of a COPY step",
        "`present` says whether the archive is there already."),
    writes!("POST" "/templates/tags", tags::assign, [] tags::TagRequest => 201 tags::TagsResponse,
        "Gives a build tags",
        "404: the template has no such tag."),
    writes!("DELETE" "/templates/tags", tags::remove, [] tags::UntagRequest => 204,
        "Removes tags",
        "404: the template has no such tag. `default` stays (400)."),
    reads!("/templates/{id}/tags", tags::list, [] => 200 Vec<tags::TemplateTag>,
        "Tags of a template"),
    reads!("/templates/{id}/tags/count", tag_groups::count, [] => 200 tag_groups::TagCount,
        "How many tags a template has"),
    reads!("/templates/{id}/tags/exists", tag_groups::exists, ["tag"] => 200 tag_groups::TagPresence,
        "Whether a template has a tag",
        "`tag` is needed."),
    reads!("/templates/{id}/tags/groups", tag_groups::groups,
        ["assignmentLimit", "tagsLimit", "tagsCursor", "search", "sort"] => 200 tag_groups::TagGroups,
        "Tags of a template with their assignments",
        "A tag has one assignment, the one that holds: earlier ones are not kept."),
    reads!("/templates/{id}/tags/{tag}/assignments", tag_groups::assignments, ["limit"] => 200 tag_groups::Assignments,
        "Assignments of a tag",
        "There is one, the one that holds: earlier ones are not kept."),
    reads!("/templates/{id}", template::detail, ["limit", "nextToken", "teamID"] => 200 TemplateAnswer,
        "A template with its builds by the page, newest first",
        "A template of the host has none. `spawnCount` counts creations with it."),
    writes!("DELETE" "/templates/{id}", delete::delete, [] => 204,
        "Deletes a template of the tenant, or a snapshot",
        "409: a build of it runs. A template of the host is a 400: see `cofferdam template rm`."),
    writes!("PATCH" "/v2/templates/{id}", publish::change, [] publish::TemplateChange => 200 publish::TemplateNames,
        "Keeps a template private",
        "`public: false` of a tenant's template changes nothing. Any other change is a 400."),
    writes!("PATCH" "/templates/{id}", publish::change, [] publish::TemplateChange => 200 publish::TemplateNames,
        "Keeps a template private, for older clients",
        "As `PATCH /v2/templates/{id}`."),
    absent_write("/templates"),
    absent_write("/v2/templates"),
    absent_write("/templates/{id}"),
    absent_write("/templates/{id}/builds/{build}"),
    absent("*", "/templates/{*rest}", publish::UNCHANGED),
    absent("*", "/v2/templates/{*rest}", publish::UNCHANGED),
    absent("*", "/v3/templates/{*rest}", publish::UNCHANGED),
    absent("*", "/default-templates", publish::UNCHANGED),
    absent("*", "/volumes/{*rest}", "not supported: volumes"),
    absent("*", "/volumecontent/{*rest}", "not supported: volumes"),
    absent("*", "/secrets/{*rest}", "not supported: E2B's secrets: see `cofferdam secret`"),
    absent("*", "/teams/{*rest}", "not supported: teams"),
    absent("*", "/access-tokens/{*rest}", "not supported: E2B's keys: see `cofferdam key`"),
    absent("*", "/api-keys/{*rest}", "not supported: E2B's keys: see `cofferdam key`"),
    absent("*", "/nodes/{*rest}", "not supported: nodes: see `cofferdam doctor`"),
    absent(
        "*",
        "/events/{*rest}",
        "not supported: events of sandboxes: see GET /v2/sandboxes/{id}/logs",
    ),
    absent(
        "*",
        "/admin/{*rest}",
        "not supported: E2B's administration: see `cofferdam sandbox` and `cofferdam key`",
    ),
    Route { endpoint: Endpoint::Absent(404, NO_ROUTE), ..absent("*", "/{*rest}", NO_ROUTE) },
    route!("GET" "/health", Envd Open, Endpoint::Empty, [] => 204,
        "Whether the sandbox runs",
        "It resumes nothing."),
    route!("GET" "/files", Envd TokenOrSignature, Endpoint::Files(boxed!(download::download)),
        ["path", "username", "signature", "signature_expiration"] => 200 | 206,
        "The bytes of a file, or one range of them",
        "They are never compressed."),
    route!("POST" "/files", Envd TokenOrSignature, Endpoint::Files(boxed!(upload::upload)),
        ["path", "username", "signature", "signature_expiration"] => 200 Vec<upload::FileAnswer>,
        "Writes files",
        "A form has at most 10,000 fields `file`, each of which becomes a file, at `path` or at its own file name. `Content-Encoding: gzip` is read. 507: the sandbox has too little space."),
    route!("GET" "/envs", Envd Token, Endpoint::Told(boxed!(environment::variables)),
        [] => 200 BTreeMap<String, String>,
        "Variables of the default user's commands"),
    route!("GET" "/metrics", Envd Token, Endpoint::Told(boxed!(usage::metrics)), [] => 200 usage::Usage,
        "What the sandbox uses",
        "One sample, of now."),
    rpc!(Stream "/process.Process/Start", START => EVENTS, process::start::start,
        "Starts a command, and follows it",
        "Lists show a command line of more than 64 KiB by its name only."),
    rpc!(Stream "/process.Process/Connect", SELECT => EVENTS, process::connect::connect,
        "Follows a command that was started before",
        "The end of a command is kept for 30 s, of the last 256 commands."),
    rpc!(Unary "/process.Process/List", EMPTY => PROCESSES, process::list::list,
        "Commands that run"),
    rpc!(Unary "/process.Process/Update", UPDATE => EMPTY, process::terminal::resize,
        "Sets the size of a terminal"),
    rpc!(Unary "/process.Process/SendInput", SEND_INPUT => EMPTY, process::input::send,
        "Gives a command input"),
    rpc!(Stream "/process.Process/StreamInput", STREAM_INPUT => EMPTY, process::input::stream,
        "Gives a command input piece by piece",
        "The first message names the process."),
    rpc!(Unary "/process.Process/CloseStdin", SELECT => EMPTY, process::input::close,
        "Closes the input of a command"),
    rpc!(Unary "/process.Process/SendSignal", SIGNAL => EMPTY, process::signal::send,
        "Sends a command SIGTERM or SIGKILL"),
    rpc!(Unary "/filesystem.Filesystem/Stat", PATH => ENTRY_REPLY, stat::stat,
        "What is at a path"),
    rpc!(Unary "/filesystem.Filesystem/ListDir", LIST_DIR => ENTRIES, list::list_dir,
        "Entries of a directory",
        "A list has at most 10,000 entries and 16 MiB."),
    rpc!(Unary "/filesystem.Filesystem/MakeDir", PATH => ENTRY_REPLY, make_dir::make_dir,
        "Makes a directory and those above it"),
    rpc!(Unary "/filesystem.Filesystem/Move", MOVE => ENTRY_REPLY, rename::rename,
        "Moves a file or a directory"),
    rpc!(Unary "/filesystem.Filesystem/Remove", PATH => EMPTY, remove::remove,
        "Removes a file or a directory"),
    rpc!(Stream "/filesystem.Filesystem/WatchDir", WATCH => WATCHED, watch::stream,
        "Follows the changes of a directory",
        "A recursive watch follows at most 16 directories."),
    rpc!(Unary "/filesystem.Filesystem/CreateWatcher", WATCH => WATCHER, watch::create,
        "Keeps the changes of a directory",
        "A sandbox has at most 8 watchers, each with the last 4,096 changes and 1 MiB. A recursive watch follows at most 16 directories."),
    rpc!(Unary "/filesystem.Filesystem/GetWatcherEvents", WATCHER => CHANGES, watch::events,
        "Hands over the changes that a watcher has kept"),
    rpc!(Unary "/filesystem.Filesystem/RemoveWatcher", WATCHER => EMPTY, watch::remove,
        "Ends a watcher"),
    absent_in_envd("/files/compose", 400, "/files/compose is not supported"),
    absent_in_envd("/{*rest}", 404, NO_ENVD_ROUTE),
];
