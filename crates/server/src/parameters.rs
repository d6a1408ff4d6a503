//! What a path and a query may hold, for the document. The handlers parse the same types and bounds; a test asks
//! a running server with what lies at each bound and beyond it (`tests/tests/http/document.rs`).

use cofferdam_contracts::config::ConfigKey;
use cofferdam_contracts::dispatch::DispatchStatus;
use cofferdam_contracts::id::{
    DeliveryId, Digest, DispatchId, GateKey, HookAddress, LiveId, ProviderName, RecipeId,
    SandboxId, SecretName, SnapshotId, TenantId, TriggerName, WebhookId, WorkflowId,
};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::live::LiveState;
use cofferdam_contracts::output::MAX_PIECE;
use cofferdam_contracts::run::RunStatus;
use cofferdam_contracts::run_file::FilesFormat;
use cofferdam_contracts::run_name::RunName;
use cofferdam_contracts::sandbox::SessionState;
use cofferdam_contracts::schema::schema_of;
use cofferdam_contracts::tree_manifest::MAX_MANIFEST_BYTES;
use cofferdam_contracts::webhook::DeliveryState;
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::handlers::{cache, ops};
use crate::route::Route;

/// What the header may hold.
const RANGE: &str = "one range of bytes, such as `bytes=-4096` for the last 4096; several ranges or another unit get all bytes";

/// The parameters of a route, in the path, the query and the headers.
pub(crate) fn of(route: &Route) -> Vec<Value> {
    let names = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{').and_then(|p| p.strip_suffix('}')))
        .map(|name| name.trim_start_matches('*'));
    let mut all: Vec<Value> = names
        .map(|name| {
            let (schema, what) = in_path(route.path, name);
            json!({"name": name, "in": "path", "required": true, "schema": schema, "description": what})
        })
        .collect();
    all.extend(route.query.iter().map(|name| {
        let (schema, what) = in_query(route, name);
        let mut one = json!({"name": name, "in": "query", "schema": schema, "description": what});
        if let Some(fields) =
            one.as_object_mut().filter(|_| schema.get("type").is_some_and(|kind| kind == "array"))
        {
            // With commas between its values; a name is given once.
            fields.insert("explode".into(), false.into());
        }
        one
    }));
    if route.is_bytes() {
        all.push(json!({"name": "Range", "in": "header", "schema": {"type": "string"}, "description": RANGE}));
    }
    all
}

fn id<T: JsonSchema>() -> Value {
    let mut schema = schema_of::<T>();
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("$schema");
        fields.remove("title");
    }
    schema
}

/// Text that becomes an id or is looked for: what is no such thing is not found.
fn text() -> Value {
    json!({"type": "string", "minLength": 1, "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]+$"})
}

fn in_path(path: &str, name: &str) -> (Value, &'static str) {
    let is_below = |prefix: &str| path.starts_with(prefix);
    match name {
        "id" if path == STREAM => (
            id::<RunName>(),
            "for status and all a run, by its id or its workflow's; for stdout and stderr a task, by its key (64 hexadecimal digits), as GET /api/runs/{id}/steps lists it",
        ),
        "id" if is_below("/api/recipes/") => (id::<RecipeId>(), "a recipe's id"),
        "id" if is_below("/api/dispatches/") => (id::<DispatchId>(), "a dispatch's id"),
        "id" => (
            id::<RunName>(),
            "a run: its id, the beginning of it (6 digits or more, with or without `rn_`), its workflow's id, or `last` for the \
             caller's newest run",
        ),
        "key" if path == STREAM => {
            (json!({"type": "string", "enum": ["all", "status", "stdout", "stderr"]}), "the stream")
        }
        "key" if is_below("/api/cache/") => (id::<Digest>(), "the key of a base"),
        "key" => (text(), "a key's id"),
        "tree" => (id::<Digest>(), "SHA-256 of a directory's manifest"),
        "gate" => (id::<GateKey>(), "a gate's key"),
        "wid" => (id::<WorkflowId>(), "a workflow of the engine"),
        "live" => (id::<LiveId>(), "a long-lived sandbox"),
        "sandbox" => (id::<SandboxId>(), "a sandbox"),
        "provider" => (id::<ProviderName>(), "a provider of models"),
        "snapshot" => (id::<SnapshotId>(), "a snapshot"),
        "secret" => (id::<SecretName>(), "a secret"),
        "webhook" => (id::<WebhookId>(), "a webhook"),
        "delivery" => (id::<DeliveryId>(), "a delivery"),
        "schedule" => (id::<TriggerName>(), "a schedule's name"),
        "hook" => {
            (id::<HookAddress>(), "a hook's name; of a delivery, the last part of the hook's path")
        }
        "delegation" => {
            (json!({"type": "integer", "minimum": 1, "maximum": i64::MAX}), "a delegation's number")
        }
        "name" => {
            let keys: Vec<String> = ConfigKey::all().map(|key| key.to_string()).collect();
            (json!({"type": "string", "enum": keys}), "a key of the configuration")
        }
        "uri" => (text(), "an artifact's URI without its scheme; slashes stay as they are"),
        "token" => (text(), "the last part of a reply link"),
        _ => (text(), ""),
    }
}

const STREAM: &str = "/api/runs/{id}/stream/{key}";

fn number(minimum: i64, maximum: i64, default: i64) -> Value {
    json!({"type": "integer", "minimum": minimum, "maximum": maximum, "default": default})
}

fn one_of<T: Copy>(all: &[T], text: fn(T) -> &'static str) -> Value {
    let names: Vec<&str> = all.iter().copied().map(text).collect();
    json!({"type": "string", "enum": names})
}

fn in_query(route: &Route, name: &str) -> (Value, &'static str) {
    match (name, route.path) {
        ("limit", path) => {
            let (most, usual) = match path {
                "/api/runs" => (500, 50),
                "/api/hitl/inbox" => (200, 50),
                "/api/webhooks/{webhook}/deliveries" => (200, 50),
                "/api/ops/wf" => (200, 20),
                "/api/sessions" | "/api/dispatches" | "/api/sandboxes" => (1_000, 100),
                _ => (500, 100),
            };
            (number(1, most, usual), "maximum number of rows")
        }
        ("timeoutS", _) => (number(0, 30, 0), "seconds to wait for a change"),
        ("from", "/api/runs/{id}/output") => {
            (number(0, MAX_PIECE, 0), "`next` of the answer before, which confirms its pieces")
        }
        ("at", "/api/trees/{tree}/manifest") => {
            let most = i64::try_from(MAX_MANIFEST_BYTES).unwrap_or(i64::MAX);
            (number(0, most, 0), "bytes of the manifest before the body")
        }
        ("end", "/api/trees/{tree}/manifest") => (
            json!({"type": "string", "enum": ["true", "false"]}),
            "whether the manifest ends with the body",
        ),
        ("at", _) => (
            number(0, MAX_PIECE, 0),
            "bytes of the input before the body; those that were taken already are left out",
        ),
        ("end", _) => (
            json!({"type": "string", "enum": ["true", "false"]}),
            "whether the input ends with the body",
        ),
        ("skipObjects", _) => (
            json!({"type": "string", "enum": ["true", "false"]}),
            "whether the bytes of stored artifacts are left out: then the rows alone are proved, and the answer has no `objects`",
        ),
        ("output", _) => (
            json!({"type": "string", "enum": ["true", "false"]}),
            "whether the caller reads the run's whole output (`GET /api/runs/{id}/output`), and sends its input where it takes some",
        ),
        ("from", _) => (
            number(0, i64::MAX, 0),
            "the first chunk; for `all` when it was stored, ms since the epoch: a chunk of that moment may come again",
        ),
        ("olderThanS", _) => (number(0, cache::MAX_AGE_S, 0), "seconds without use"),
        ("follow", _) => (
            json!({"type": "string", "enum": ["", "0", "1", "false", "true"]}),
            "whether to follow new output",
        ),
        ("active", _) => (json!({"type": "string", "enum": ["true", "false"]}), "only live ones"),
        ("status", "/api/runs") => {
            let one = one_of(RunStatus::ALL, RunStatus::as_str);
            let most = RunStatus::ALL.len();
            let some = json!({"type": "array", "items": one, "minItems": 1, "maxItems": most, "uniqueItems": true});
            (some, "runs of these states")
        }
        ("failed", _) => (
            json!({"type": "string", "enum": ["true", "false"]}),
            "only runs that failed, after retries too; not together with status",
        ),
        ("recipe", _) => (id::<RecipeId>(), "runs of this recipe, in any version"),
        ("since", _) => (id::<Instant>(), "runs created then or later"),
        ("until", _) => (id::<Instant>(), "runs created before that"),
        ("after", _) => (id::<RunName>(), "the last run of the page before: older runs follow"),
        ("status", "/api/ops/wf") => {
            (one_of(ops::STATUSES, |status| status), "workflows of this state")
        }
        ("status", _) => {
            (one_of(DispatchStatus::ALL, DispatchStatus::as_str), "dispatches of this state")
        }
        ("format", _) => {
            (one_of(FilesFormat::ALL, FilesFormat::as_str), "a list, or an archive of the files")
        }
        ("glob", _) => (
            json!({"type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]+$"}),
            "files whose path matches, or lies below a directory that does: relative, without `..`; `*` stays in a directory, `**` does not",
        ),
        ("task", _) => (text(), "one task alone, by its name"),
        ("state", "/api/sessions") => {
            (one_of(SessionState::ALL, SessionState::as_str), "sessions of this state")
        }
        ("state", "/api/sandboxes") => {
            (one_of(LiveState::ALL, LiveState::as_str), "sandboxes of this state")
        }
        ("state", _) => {
            (one_of(DeliveryState::ALL, DeliveryState::as_str), "deliveries of this state")
        }
        ("id", _) => (id::<DispatchId>(), "one dispatch"),
        ("tenant", _) if route.method == "GET" => (
            json!({"anyOf": [{"type": "string", "const": "*"}, id::<TenantId>()]}),
            "another tenant's, or * for all, for the host's admin",
        ),
        ("tenant", _) => (id::<TenantId>(), "another tenant's, for the host's admin"),
        ("label", _) => (
            json!({"type": "string", "pattern": "^[^=\\x00-\\x1f\\x7f-\\x9f]+=[^\\x00-\\x1f\\x7f-\\x9f]*$"}),
            "those with this label, as NAME=VALUE",
        ),
        _ => (json!({"type": "string", "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]*$"}), "exact match"),
    }
}
