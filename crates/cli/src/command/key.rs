//! `key create | ls | revoke | signing`.

use clap::{Args, Subcommand};
use cofferdam_contracts::key::{KeyResponse, KeyRevocation, KeyRow, Role};
use serde_json::json;

use super::client::segment;
use super::connection::{Connection, within};
use super::exit::Exit;
use super::locations::Locations;
use super::table::{self, extra, usual};
use super::{flag, output};

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key; its secret is shown once
    Create {
        /// Tenant of the key; default: the tenant of your key
        #[arg(long)]
        tenant: Option<String>,
        /// submitter, approver, operator, auditor or admin (repeatable)
        #[arg(long = "role", required = true, value_parser = flag::one_of(Role::ALL, Role::as_str))]
        roles: Vec<String>,
        /// Group that gates can ask for (repeatable)
        #[arg(long = "group")]
        groups: Vec<String>,
        /// Label, shown in lists
        #[arg(long)]
        label: Option<String>,
        /// How the secret is written: cofferdam, or e2b for clients of E2B
        #[arg(long, default_value = "cofferdam", value_parser = ["cofferdam", "e2b"])]
        format: String,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List keys, without their secrets
    Ls {
        /// Keys of another tenant; for the host's admin
        #[arg(long)]
        tenant: Option<String>,
        /// Keys of every tenant; for the host's admin
        #[arg(long, conflicts_with = "tenant")]
        all: bool,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Revoke a key
    Revoke {
        key_id: String,
        /// Tenant of the key; for the host's admin
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Show whether this host has the signing key of webhooks and reply links
    Signing {
        /// Replace a lost or leaked key: add webhooks again, open links become void
        #[arg(long)]
        replace: bool,
    },
}

pub(crate) async fn key(at: &Locations, args: &KeyArgs) -> anyhow::Result<Exit> {
    if let KeyCommand::Signing { replace } = args.command {
        return super::signing_key::signing(at, replace).await;
    }
    within(Connection::reading(at), async |session| act(session, &args.command).await).await?;
    Ok(Exit::Ok)
}

async fn act(session: &Connection, command: &KeyCommand) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        KeyCommand::Create { tenant, roles, groups, label, format, json: as_json } => {
            let mut body = json!({"roles": roles, "groups": groups, "format": format});
            if let Some(fields) = body.as_object_mut() {
                for (name, value) in [("tenant", tenant), ("label", label)] {
                    if let Some(value) = value {
                        fields.insert(name.into(), json!(value));
                    }
                }
            }
            let created: KeyResponse = client.post("/api/keys", &body).await?;
            if *as_json {
                output::json(&serde_json::to_value(&created)?);
            } else {
                output::line(&created.key);
                output::note(&format!(
                    "key {} of tenant {}; store it now, it is not shown again",
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
            let _: KeyRevocation = client.delete(&path).await?;
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
    let rows = keys.iter().map(|k| {
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
    });
    table::print(
        &[
            table::key("KEY"),
            usual("TENANT").least(8),
            usual("ROLES").least(10),
            extra("GROUPS").least(8),
            table::key("STATE"),
            extra("CREATED (UTC)"),
            usual("LABEL").least(10),
        ],
        rows,
    );
}
