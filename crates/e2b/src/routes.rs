//! The one table of E2B's endpoints. The router, the check of permissions and the page `docs/e2b.md` are made from it.
//!
//! A new endpoint is a row here, and its function in the file that is named by what it does. Rows are asked in order.

use crate::connect::schema;
use crate::connect::schema::Method;
use crate::envd::files::{download, upload};
use crate::envd::filesystem::{list, make_dir, remove, rename, stat, watch};
use crate::envd::process;
use crate::envd::{environment, usage};
use crate::route::{Access, Endpoint, Route, Surface};
use crate::sandbox::{
    connect, create, detail, fork, kill, list as sandboxes, logs, metrics, network, pause, resume,
    snapshots, timeout,
};
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

macro_rules! reads {
    ($path:literal, $handler:path, $state:literal) => {
        control("GET", $path, Access::Reads, Endpoint::Control(boxed!($handler)), $state)
    };
}

macro_rules! writes {
    ($method:literal $path:literal, $handler:path, $state:literal) => {
        control($method, $path, Access::Writes, Endpoint::Control(boxed!($handler)), $state)
    };
}

/// A call of Connect.
macro_rules! rpc {
    ($kind:ident $path:literal, $request:ident => $reply:ident, $handler:path, $state:literal) => {
        Route {
            endpoint: Endpoint::$kind {
                codec: &Method { request: &schema::$request, reply: &schema::$reply },
                handler: boxed!($handler),
            },
            ..envd("POST", $path, Access::Token, Endpoint::Empty, $state)
        }
    };
}

const fn control(
    method: &'static str,
    path: &'static str,
    access: Access,
    endpoint: Endpoint,
    state: &'static str,
) -> Route {
    Route { surface: Surface::Control, method, path, access, endpoint, state }
}

const fn envd(
    method: &'static str,
    path: &'static str,
    access: Access,
    endpoint: Endpoint,
    state: &'static str,
) -> Route {
    Route { surface: Surface::Envd, ..control(method, path, access, endpoint, state) }
}

/// What is not there says so.
const fn absent(method: &'static str, path: &'static str, why: &'static str) -> Route {
    control(method, path, Access::ByMethod, Endpoint::Absent(400, why), "")
}

/// E2B's older builds.
const fn absent_write(path: &'static str, state: &'static str) -> Route {
    control("POST", path, Access::Writes, Endpoint::Absent(400, OLDER), state)
}

const OLDER: &str = "not supported: builds by E2B's older API, which pushes images to a registry: use Template.build of e2b 2 (POST /v3/templates)";

/// Every endpoint.
pub(crate) static ROUTES: &[Route] = &[
    control("*", "/health", Access::Open, Endpoint::Empty, "204"),
    control(
        "PUT",
        "/templates/{id}/files/{hash}",
        Access::Link,
        Endpoint::Upload(boxed!(archive::take)),
        "200: the link of `GET` takes one archive for an hour, without a key, until the server restarts",
    ),
    writes!("POST" "/v2/sandboxes", create::newer, "201; `Idempotency-Key` gives the first sandbox again. `autoPause`, `autoResume`; a name, `NAME:TAG` or the id of a template or a snapshot as `templateID`. 400 by field name: `mcp`, `iam`, `volumeMounts`, `network.dnsServers`, `egressProxy`, `maskRequestHost`, `httpsPorts`, `rules`; unknown fields. 404: unknown template. 400: its program did not become ready"),
    writes!("POST" "/sandboxes", create::older, ""),
    reads!(
        "/v2/sandboxes",
        sandboxes::newer,
        "pages, `X-Next-Token`, `X-Total-Running`; `metadata`, `state` (`running`, `paused`; both without it), `template`, `startedAfter`, `limit`, `nextToken`, `order` (`desc`, `asc`: by creation); others 400"
    ),
    reads!("/sandboxes", sandboxes::older, "up to 1,000, running ones"),
    reads!("/sandboxes/metrics", metrics::metrics_of_all, "one sample, of now"),
    reads!("/sandboxes/{id}/metrics", metrics::metrics, ""),
    reads!("/sandboxes/{id}", detail::detail, "200, 404"),
    writes!("DELETE" "/sandboxes/{id}", kill::kill, "204 once the wipe is verified; 404. 503 with `Retry-After`: its host is lost (at once), or its wipe is not seen within 20 s; it has ended and runs no command"),
    writes!("POST" "/v2/sandboxes/{id}/connect", connect::connect, "200, only extends; 201 where it was paused"),
    writes!("POST" "/sandboxes/{id}/connect", connect::connect, ""),
    writes!("POST" "/sandboxes/{id}/resume", resume::resume, "201; 409: it runs already; 421: on another server"),
    writes!("POST" "/sandboxes/{id}/pause", pause::pause, "204 once the pause and the wipe of all but its files are on record; 409: paused already, and nothing else, since clients take it for done; 421: another server holds it; 400: what kept it from being paused"),
    writes!("POST" "/sandboxes/{id}/fork", fork::fork, "201: 1 to 20 sandboxes, each with its own error; of a running or a paused one"),
    writes!("POST" "/sandboxes/{id}/snapshots", snapshots::snapshot, "201"),
    reads!("/snapshots", snapshots::list, "pages, `sandboxID`, `name`"),
    writes!("POST" "/sandboxes/{id}/timeout", timeout::timeout, "204; at most one day from now"),
    writes!("POST" "/sandboxes/{id}/refreshes", timeout::refresh, ""),
    writes!("PUT" "/sandboxes/{id}/network", network::update, "204 once it is in force; replaces all names. 400 by field name: `dnsServers`, `egressProxy`, `rules`, addresses in `allowOut`, unknown fields; 409: paused; 503: starting; 421: held by another server"),
    reads!(
        "/v2/sandboxes/{id}/logs",
        logs::newer,
        "what is on record of its life: created, started, paused, resumed, snapshots, ended; no output of commands. `cursor`, `direction`, `level`, `search`, `limit`; the older one `start`, `limit`"
    ),
    reads!("/sandboxes/{id}/logs", logs::older, ""),
    reads!(
        "/templates",
        templates::list,
        "the host's, `base` always; and those of the tenant (`NAME:BUILDID` names a build while its files are kept: as long as a tag does): `buildID` is the newest build that is ready, `buildStatus` of the newest. `v2` by the page (`limit`, `nextToken`); the default ones are the host's. Another tenant's: 404"
    ),
    reads!("/v2/templates", templates::pages, ""),
    reads!("/default-templates", templates::defaults, ""),
    reads!("/templates/aliases/{alias}", alias::alias, ""),
    writes!("POST" "/v3/templates", builds::open, "202; `name` with or without a tag, `tags`, `cpuCount`, `memoryMB`. 409: a name of the host's templates"),
    writes!("POST" "/v2/templates/{id}/builds/{build}", build::start, "202; 400 by step number; 409: it was started before, or another build of the template runs"),
    reads!(
        "/templates/{id}/builds/{build}/status",
        build_status::status,
        "`logsOffset`, `limit`, `level`; `reason` with `message` and `step`: a number, `base` or `finalize`"
    ),
    reads!(
        "/templates/{id}/builds/{build}/logs",
        build_logs::logs,
        "`cursor`, `limit`, `direction`, `level`, `source` (both are one here)"
    ),
    control(
        "GET",
        "/templates/{id}/files/{hash}",
        Access::Writes,
        Endpoint::Control(boxed!(files::link)),
        "201: `present`, and a link that takes a `PUT`",
    ),
    writes!("POST" "/templates/tags", tags::assign, "201, 204, 200; 404 without the tag; the tag `default` stays (400)"),
    writes!("DELETE" "/templates/tags", tags::remove, ""),
    reads!("/templates/{id}/tags", tags::list, ""),
    reads!(
        "/templates/{id}/tags/count",
        tag_groups::count,
        "200; a tag has one assignment, the one that holds: earlier ones are not kept"
    ),
    reads!("/templates/{id}/tags/exists", tag_groups::exists, ""),
    reads!("/templates/{id}/tags/groups", tag_groups::groups, ""),
    reads!("/templates/{id}/tags/{tag}/assignments", tag_groups::assignments, ""),
    reads!(
        "/templates/{id}",
        template::detail,
        "200 with `builds`, newest first, by the page; those of the host have none. `spawnCount` counts creations with it"
    ),
    writes!("DELETE" "/templates/{id}", delete::delete, "204 for a snapshot, and for a template of the tenant, 409 while a build of it runs; of the host 400: see `cofferdam template rm`; 404 without one"),
    writes!("PATCH" "/v2/templates/{id}", publish::change, "200 for `public: false` of a tenant's; others 400"),
    writes!("PATCH" "/templates/{id}", publish::change, ""),
    absent_write("/templates", "400: E2B's older builds push images to a registry"),
    absent_write("/v2/templates", ""),
    absent_write("/templates/{id}", ""),
    absent_write("/templates/{id}/builds/{build}", ""),
    control(
        "*",
        "/templates/{*rest}",
        Access::ByMethod,
        Endpoint::Absent(400, publish::UNCHANGED),
        "400 `not supported: ..`",
    ),
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
    control(
        "*",
        "/{*rest}",
        Access::ByMethod,
        Endpoint::Absent(404, "E2B's API has no such route here"),
        "404",
    ),
    envd("GET", "/health", Access::Open, Endpoint::Empty, "204"),
    envd(
        "GET",
        "/files",
        Access::TokenOrSignature,
        Endpoint::Files(boxed!(download::download)),
        "one range, signatures; no gzip",
    ),
    envd(
        "POST",
        "/files",
        Access::TokenOrSignature,
        Endpoint::Files(boxed!(upload::upload)),
        "multipart (10,000 files), octet-stream, gzip, signatures; 507 without room",
    ),
    envd("GET", "/envs", Access::Token, Endpoint::Told(boxed!(environment::variables)), "200"),
    envd("GET", "/metrics", Access::Token, Endpoint::Told(boxed!(usage::metrics)), ""),
    rpc!(Stream "/process.Process/Start", START => EVENTS, process::start::start, "the end of a command is kept 30 s (of the last 256 commands); a command line of more than 64 KiB is listed by its name; `Connect-Timeout-Ms` ends the command"),
    rpc!(Stream "/process.Process/Connect", SELECT => EVENTS, process::connect::connect, ""),
    rpc!(Unary "/process.Process/List", EMPTY => PROCESSES, process::list::list, ""),
    rpc!(Unary "/process.Process/Update", UPDATE => EMPTY, process::terminal::resize, ""),
    rpc!(Unary "/process.Process/SendInput", SEND_INPUT => EMPTY, process::input::send, ""),
    rpc!(Stream "/process.Process/StreamInput", STREAM_INPUT => EMPTY, process::input::stream, ""),
    rpc!(Unary "/process.Process/CloseStdin", SELECT => EMPTY, process::input::close, ""),
    rpc!(Unary "/process.Process/SendSignal", SIGNAL => EMPTY, process::signal::send, ""),
    rpc!(Unary "/filesystem.Filesystem/Stat", PATH => ENTRY_REPLY, stat::stat, "lists of at most 10,000 entries and 16 MiB; 8 watchers, each with the last 4,096 changes and 1 MiB"),
    rpc!(Unary "/filesystem.Filesystem/ListDir", LIST_DIR => ENTRIES, list::list_dir, ""),
    rpc!(Unary "/filesystem.Filesystem/MakeDir", PATH => ENTRY_REPLY, make_dir::make_dir, ""),
    rpc!(Unary "/filesystem.Filesystem/Move", MOVE => ENTRY_REPLY, rename::rename, ""),
    rpc!(Unary "/filesystem.Filesystem/Remove", PATH => EMPTY, remove::remove, ""),
    rpc!(Stream "/filesystem.Filesystem/WatchDir", WATCH => WATCHED, watch::stream, ""),
    rpc!(Unary "/filesystem.Filesystem/CreateWatcher", WATCH => WATCHER, watch::create, ""),
    rpc!(Unary "/filesystem.Filesystem/GetWatcherEvents", WATCHER => CHANGES, watch::events, ""),
    rpc!(Unary "/filesystem.Filesystem/RemoveWatcher", WATCHER => EMPTY, watch::remove, ""),
    envd(
        "*",
        "/files/compose",
        Access::Token,
        Endpoint::Absent(400, "/files/compose is not supported"),
        "400",
    ),
    envd(
        "*",
        "/{*rest}",
        Access::Token,
        Endpoint::Absent(404, "envd has no such route here"),
        "`/init`, `/freeze` and the like: 404",
    ),
];
