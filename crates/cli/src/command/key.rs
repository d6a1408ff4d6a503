//! `key create | ls | revoke | signing`.

use cofferdam_contracts::key::{KeyCreated, KeyRow};
use serde_json::{Value, json};

use super::args::{At, KeyArgs, KeyCommand};
use super::client::segment;
use super::exit::Exit;
use super::output;
use super::session::Session;

pub(crate) async fn key(at: &At, args: &KeyArgs) -> anyhow::Result<Exit> {
    if let KeyCommand::Signing { replace } = args.command {
        return super::signing::signing(at, replace).await;
    }
    let session = Session::reading(at).await?;
    let outcome = act(&session, &args.command).await;
    session.close().await?;
    outcome.map(|()| Exit::Ok)
}

async fn act(session: &Session, command: &KeyCommand) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        KeyCommand::Create { tenant, roles, groups, label, json: as_json } => {
            let mut body = json!({"roles": roles, "groups": groups});
            if let Some(fields) = body.as_object_mut() {
                for (name, value) in [("tenant", tenant), ("label", label)] {
                    if let Some(value) = value {
                        fields.insert(name.into(), json!(value));
                    }
                }
            }
            let created: KeyCreated = client.post("/api/keys", &body).await?;
            if *as_json {
                output::json(&serde_json::to_value(&created)?);
            } else {
                output::line(&created.key);
                output::note(&format!(
                    "key {} of tenant {}: kept nowhere else",
                    created.key_id, created.tenant
                ));
            }
        }
        KeyCommand::Ls { tenant, all, json: as_json } => {
            let tenant = if *all { Some("*") } else { tenant.as_deref() };
            let keys: Vec<KeyRow> = client.get(&format!("/api/keys{}", of(tenant))).await?;
            if *as_json {
                output::json(&json!({"schemaVersion": 1, "keys": keys}));
            } else {
                print(&keys);
            }
        }
        KeyCommand::Revoke { key_id, tenant } => {
            let path = format!("/api/keys/{}{}", segment(key_id), of(tenant.as_deref()));
            let _: Value = client.delete(&path).await?;
            output::line("revoked");
        }
        // Of this host, not of the API: answered before a session is opened.
        KeyCommand::Signing { .. } => {}
    }
    Ok(())
}

fn of(tenant: Option<&str>) -> String {
    tenant.map(|tenant| format!("?tenant={}", segment(tenant))).unwrap_or_default()
}

fn print(keys: &[KeyRow]) {
    let rows: Vec<Vec<String>> = keys
        .iter()
        .map(|k| {
            let roles: Vec<&str> = k.roles.iter().map(|r| r.as_str()).collect();
            let state = if k.revoked_at.is_some() { "revoked" } else { "works" };
            vec![
                k.key_id.clone(),
                k.tenant.to_string(),
                roles.join(","),
                k.groups.iter().map(|g| g.as_str()).collect::<Vec<_>>().join(","),
                state.to_owned(),
                output::time(k.created_at),
                k.label.clone().unwrap_or_default(),
            ]
        })
        .collect();
    output::table(&["KEY", "TENANT", "ROLES", "GROUPS", "STATE", "CREATED (UTC)", "LABEL"], &rows);
}
