//! A server with a thing of every kind, and what each route takes: what the tests of refusals share.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_server::Route;
use cofferdam_server::routes::ROUTES;
use cofferdam_tests::{Home, Server, row_counts, text};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{count, until};

pub const ROLES: [&str; 5] = ["submitter", "approver", "operator", "auditor", "admin"];

pub const GATED: &str = "
id: gated
v: '1'
form: {type: object, additionalProperties: false, properties: {n: {type: integer, maximum: 9}}}
caps: {concurrency: 4, steps: 8, sandbox_minutes: 10}
plan:
  gate: approve-plan
  tasks: [{name: t, value: kept}]
";

pub const DONE: &str = "
id: done
v: '1'
plan:
  tasks: [{name: t, exec: {run: echo done, timeout: 30s}}]
";

/// Name of acme's schedule and of its hook.
pub const TRIGGER: &str = "yearly";

/// Statuses with their codes, any of which is right.
pub type Wants = &'static [(u16, &'static str)];

/// A server on which the tenant `acme` has a run at its gate and a finished one.
pub struct World {
    // In this order: the server goes before its home.
    pub server: Server,
    pub sql: PgPool,
    pub keys: BTreeMap<String, (String, String)>,
    pub stranger: String,
    pub gated: Value,
    pub done: Value,
    pub task: String,
    pub uri: String,
    pub sandbox: String,
    pub webhook: String,
    pub link: String,
    pub dispatch: String,
    pub live: String,
    _home: Home,
}

impl World {
    pub async fn new() -> Self {
        let home = Home::new();
        let mut server = home.up_with(&["--allow-dir", "/usr/share"], &[]);
        let mut keys = BTreeMap::new();
        for role in ROLES {
            let body = json!({"tenant": "acme", "roles": [role]});
            keys.insert(role.to_owned(), server.new_key(&body).await);
        }
        let stranger = server.new_key(&json!({"tenant": "stranger", "roles": ["admin"]})).await.1;
        server.key = keys["admin"].1.clone();
        let gated = server.run_recipe(GATED, json!({}), json!({})).await;
        let done = server.run_recipe(DONE, json!({}), json!({})).await;
        let gated = server
            .wait_for(gated["runId"].as_str().unwrap(), "at its gate", |h| {
                h["status"] == "waiting_input"
            })
            .await;
        let done = server.wait_terminal(done["runId"].as_str().unwrap()).await;
        assert_eq!(done["status"], "succeeded", "{done}");
        let (_, artifacts) =
            server.get(&format!("/api/runs/{}/artifacts", text(&done, "runId"))).await;
        let out = artifacts.as_array().unwrap().iter().find(|a| a["kind"] == "stdout").unwrap();
        let (task, uri) = (text(out, "taskKey"), text(out, "uri"));
        let sent = json!({"agent_type": "command", "prompt": "true", "project_dir": "/usr/share",
            "sandbox": "read-only"});
        let (status, made) = server.post("/api/dispatches", &sent).await;
        assert_eq!(status, 201, "{made}");
        let dispatch = text(&made, "id");
        let sent = server.wait_terminal(made["run_id"].as_str().unwrap()).await;
        assert_eq!(sent["status"], "succeeded", "{sent}");
        let (status, made) = server.post("/api/sandboxes", &json!({"template": "base"})).await;
        assert_eq!(status, 201, "{made}");
        let live = text(&made, "id");
        let path = format!("/api/sandboxes/{live}");
        let (status, killed) = server.request("DELETE", &path, Some(&server.key), None).await;
        assert_eq!((status, &killed["state"]), (200, &json!("ended")), "{killed}");
        // Of an event that does not happen here: nothing is sent anywhere.
        let wanted = json!({"url": "https://example.com/", "events": ["gate.reminded"]});
        let (status, made) = server.post("/api/webhooks", &wanted).await;
        assert_eq!(status, 201, "{made}");
        let webhook = text(&made, "webhookId");
        triggers(&server).await;
        let links = format!("/api/runs/{}/gates/approve-plan/links", text(&gated, "runId"));
        let (status, made) = server.post(&links, &json!({"for": "Ada", "expiresS": 3600})).await;
        assert_eq!(status, 201, "{made}");
        let link = text(&made, "path").rsplit('/').next().unwrap().to_owned();
        // A directory of which nothing has come yet.
        let tree = format!("/api/trees/{}/manifest", "a".repeat(64));
        let (status, begun) = server.request("PUT", &tree, Some(&server.key), None).await;
        assert_eq!((status, &begun["state"]), (200, &json!("manifest")), "{begun}");
        let sql = server.sql().await;
        // The run of a life ends after it.
        let lived = server.wait_terminal(&text(&killed, "runId")).await;
        assert_eq!(lived["status"], "succeeded", "{lived}");
        let open = "SELECT count(*) FROM app.runs r JOIN dbos.workflow_status w ON w.workflow_uuid = r.workflow_id
                     WHERE r.status = 'succeeded' AND w.status <> 'SUCCESS'";
        until("what ended is over", Duration::from_secs(20), async || count(&sql, open).await == 0)
            .await;
        let (_, sessions) = server.get("/api/sessions").await;
        let sandbox = text(&sessions[0], "sandboxId");
        Self {
            server,
            sql,
            keys,
            stranger,
            gated,
            done,
            task,
            uri,
            sandbox,
            webhook,
            link,
            dispatch,
            live,
            _home: home,
        }
    }

    /// The route's path with parameters that name things of acme.
    pub fn path(&self, route: &Route) -> String {
        self.fill(route.path)
    }

    pub fn fill(&self, path: &str) -> String {
        let run = if path.ends_with("/retry") { &self.done } else { &self.gated };
        let id = match path {
            _ if path.starts_with("/api/recipes") => "gated",
            _ if path.starts_with("/api/dispatches") => &self.dispatch,
            _ => run["runId"].as_str().unwrap(),
        };
        path.replace("/api/cache/{key}", &format!("/api/cache/{}", "0".repeat(64)))
            .replace("{id}", id)
            .replace("{wid}", self.gated["workflowID"].as_str().unwrap())
            .replace("{gate}", "approve-plan")
            .replace("{sandbox}", &self.sandbox)
            .replace("{live}", &self.live)
            .replace("{delegation}", "999999999")
            .replace("{*uri}", &self.uri)
            .replace("{name}", "profile.go")
            .replace("{webhook}", &self.webhook)
            .replace("{snapshot}", &"a".repeat(20))
            .replace("{provider}", "none")
            .replace("{secret}", "none")
            .replace("{schedule}", TRIGGER)
            .replace("{hook}", TRIGGER)
            .replace("{tree}", &"a".repeat(64))
            .replace("{delivery}", &format!("msg_{}", "0".repeat(32)))
            .replace("{token}", &self.link)
            .replace(
                "{key}",
                if path.contains("stream") { "status" } else { &self.keys["auditor"].0 },
            )
    }

    /// A body that the route would accept, with every optional field filled in.
    pub fn body(&self, route: &Route) -> Value {
        let run_opts = json!({
            "queuePartitionKey": "acme/x", "lane": "batch", "priority": 5,
            "workload": {"concurrency": 1, "steps": 1, "sandboxMinutes": 1},
            "budget": {"maxFanout": 1, "maxSBXMinutes": 1, "maxArtifactsMB": 1, "maxRetriesPerStep": 0, "maxWallClockMS": 9000},
            "timeoutMS": 8000, "traceId": "trace",
        });
        let action = json!({"actor": "ann", "reason": "because"});
        match (route.method, route.path) {
            (_, "/api/intents") => {
                json!({"goal": "g", "inputs": {}, "constraints": {"planApprovalTimeoutS": 9}, "connectors": ["c"]})
            }
            (_, "/api/runs") => {
                let mut body = run_opts;
                let more = json!({
                    "intentId": self.gated["intentId"], "queueName": "intentQ", "recipeName": "gated",
                    "recipeVersion": "1", "deduplicationID": "d", "tenantId": "acme",
                });
                body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                body
            }
            (_, "/api/run") => {
                json!({"recipeRef": {"id": "gated", "v": "1"}, "formData": {"n": 1}, "opts": run_opts})
            }
            (_, path) if path.ends_with("/reply") => {
                json!({"payload": {"choice": "yes"}, "dedupeKey": "k", "origin": "manual", "topic": "human:approve-plan"})
            }
            (_, path) if path.ends_with("/approve-plan") => {
                json!({"approvedBy": "ann", "notes": "fine"})
            }
            (_, "/api/events/hitl") => json!({
                "workflowId": self.gated["workflowID"], "gateKey": "approve-plan", "topic": "human:approve-plan",
                "payload": {"choice": "yes"}, "dedupeKey": "k", "origin": "webhook",
            }),
            (_, "/api/sandboxes/{live}/fork") => json!({"timeoutS": 9, "count": 2}),
            (_, "/api/sandboxes/{live}/resume") => json!({"timeoutS": 9, "memory": false}),
            (_, "/api/sandboxes/{live}/pause") => json!({"memory": false}),
            (_, "/api/sandboxes/{live}/snapshots") => json!({"name": "n"}),
            (_, path) if path.ends_with("/fork") => {
                json!({"actor": "ann", "reason": "because", "stepN": 0})
            }
            (_, path) if path.starts_with("/api/ops/") || path.ends_with("/settle") => action,
            (_, "/api/recipes/import") => json!({"yaml": GATED, "origin": "gated.yaml"}),
            (_, path) if path.ends_with("/promote") => {
                json!({"v": "1", "to": "stable", "reason": "because"})
            }
            (_, "/api/recipes/export") => json!({"id": "gated", "v": "1"}),
            (_, "/api/config/{name}") => json!({
                "value": {"buildTimeoutMs": 1, "execTimeoutMs": 1, "limits": {}},
                "expectedVersion": 0, "scope": "tenant",
            }),
            (_, "/api/webhooks") => {
                json!({"url": "https://example.com/", "events": ["gate.reminded"], "label": "x"})
            }
            ("PUT", "/api/secrets/{secret}") => {
                json!({"value": "a-value-of-a-test", "for": ["api.example"]})
            }
            (_, path) if path.ends_with("/rotate") => json!({"value": "a-value-of-a-test"}),
            (_, "/api/models") => json!({
                "name": "p", "url": "https://example.com/v1", "protocols": ["openai-chat"], "secret": "k",
                "models": [{"model": "m", "input_micros": 1, "output_micros": 1, "cached_micros": 1, "cache_write_micros": 1, "cache_write_hour_micros": 1, "max_output": 1}],
                "budget": {"calls": 1, "tokens": 1, "micros": 1}, "day_budget": {"calls": 1},
            }),
            (_, "/api/schedules") => json!({
                "recipeRef": {"id": "gated", "v": "1"}, "name": "n",
                "schedule": {"cron": "0 3 1 1 *", "time_zone": "UTC", "jitter": "5m", "missed": "once", "overlap": "skip", "inputs": {"n": 1}},
            }),
            (_, "/api/hooks") => json!({
                "name": "n", "recipeRef": {"id": "gated", "v": "1"},
                "hook": {"scheme": "github", "secret": "none", "events": ["push"], "inputs": {"n": "/n"}},
            }),
            (_, "/api/runs/{id}/erase") => json!({"content": "prompt", "why": "because"}),
            (_, "/api/secrets/{secret}/erase") => json!({"why": "because"}),
            (_, "/api/gc") => json!({"from": {"tenant": "acme", "after": "rn_"}}),
            (_, "/api/links/{token}") => json!({"payload": {"choice": "yes"}}),
            (_, path) if path.ends_with("/links") => {
                json!({"for": "Ada", "expiresS": 60, "choice": "yes"})
            }
            (_, "/api/keys") => {
                json!({"tenant": "acme", "roles": ["auditor"], "groups": ["sre"], "label": "x", "format": "e2b"})
            }
            (_, "/api/delegations") => {
                json!({"to": self.keys["approver"].0, "group": "sre", "ttlS": 60, "reason": "holiday"})
            }
            (_, "/api/dispatches") => json!({
                "agent_type": "command", "prompt": "true", "prompt_file": "/p", "cmd": ["true"],
                "project_dir": "/srv/none", "output_file": "/o", "name": "n", "model": "m",
                "sandbox": "read-only", "sandbox_spec": {"max_turns": 1}, "lenient_spec": false,
                "enforce": false, "scope_id": "s", "parent_id": "abcd1234", "timeout_sec": 9,
                "scheduled": false,
            }),
            (_, "/api/sandboxes") => json!({
                "template": "base", "timeoutS": 9, "metadata": {"a": "b"}, "env": {"A": "b"}, "net": "none",
                "limits": {"memMB": 64}, "private": true, "dedup": "k", "snapshot": "a".repeat(20), "pauseOnTimeout": true,
                "pauseMemory": false, "classMin": "gvisor",
            }),
            (_, path) if path.starts_with("/api/sandboxes/") && path.ends_with("/exec") => {
                json!({"cmd": ["true"], "env": {"A": "b"}, "cwd": "/", "user": "root", "timeoutS": 1})
            }
            (_, path) if path.ends_with("/applies") => json!({
                "approvedIn": self.gated["runId"], "tree": "3".repeat(40), "task": "ExecuteST:t", "patch": "0".repeat(64), "repo": "/r",
                "branch": "b", "base": "1".repeat(40), "commit": "1".repeat(40),
            }),
            (_, path) if path.ends_with("/terminal") => json!({"rows": 24, "cols": 80}),
            (_, path) if path.ends_with("/extend") => json!({"timeoutS": 9}),
            (_, "/api/sandboxes/{live}/network") => json!({"net": ["a.example"]}),
            (_, "/api/dispatches/prune") => json!({"older_than_sec": 86_400}),
            (_, "/api/dispatches/import") => {
                json!({"rows": [{"id": "abcd1234", "status": "completed"}]})
            }
            (method, path) => panic!("{method} {path} takes a body: give this test a good one"),
        }
    }

    pub async fn refused(
        &self,
        what: &str,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        want: Wants,
    ) -> Value {
        self.refused_as(Some(&self.server.key), what, method, path, body, want).await
    }

    /// The answer is one of `want`, and an error as the contract shapes it.
    pub async fn refused_as(
        &self,
        key: Option<&str>,
        what: &str,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        want: Wants,
    ) -> Value {
        let shown =
            body.as_deref().map(|b| String::from_utf8_lossy(&b[..b.len().min(300)]).into_owned());
        let (status, answer) = self.server.request(method, path, key, body).await;
        let code = answer["code"].as_str().unwrap_or("");
        let seen = format!("{what}: {method} {path} {shown:?} -> {status} {answer}");
        assert!(want.contains(&(status, code)), "want {want:?}, got {seen}");
        assert!(answer["error"].as_str().is_some_and(|e| !e.is_empty()), "{seen}");
        let fields: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
        assert!(fields.iter().all(|f| ["error", "code", "details"].contains(f)), "{seen}");
        answer
    }

    pub async fn rows(&self) -> Vec<(String, i64)> {
        row_counts(&self.sql).await
    }
}

/// A schedule that is due on the first of January, and a hook whose secret is set.
async fn triggers(server: &Server) {
    let secret = json!({"value": "a-value-of-a-test", "for": ["hooks.example"]});
    let path = "/api/secrets/hooked";
    let body = Some(secret.to_string().into_bytes());
    let (status, said) = server.request("PUT", path, Some(&server.key), body).await;
    assert!((200..300).contains(&status), "{said}");
    let recipe = json!({"id": "gated", "v": "1"});
    let schedule = json!({"name": TRIGGER, "recipeRef": recipe, "schedule": {"cron": "0 3 1 1 *"}});
    let hook = json!({
        "name": TRIGGER, "recipeRef": recipe,
        "hook": {"scheme": "github", "secret": "hooked", "events": ["push"]},
    });
    for (path, body) in [("/api/schedules", schedule), ("/api/hooks", hook)] {
        let (status, said) = server.post(path, &body).await;
        assert_eq!(status, 201, "{path}: {said}");
    }
}

pub fn bytes(value: &Value) -> Option<Vec<u8>> {
    Some(value.to_string().into_bytes())
}

pub fn with_body() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|r| r.request.is_some())
}

pub const SCHEMA: Wants = &[(400, "schema_violation")];
pub const POLICY: Wants = &[(400, "queue_policy_violation")];
pub const NO_JSON: Wants = &[(400, "invalid_json")];
pub const NO_ID: Wants = &[(400, "invalid_id")];
pub const NOT_FOUND: Wants = &[(404, "not_found")];
pub const DENIED: Wants = &[(400, "policy_violation")];
pub const RECIPE: Wants = &[(400, "recipe_invalid")];
