//! The signing key: a file of the state directory whose fingerprint the database knows.

use std::path::Path;

use anyhow::Context;
use cofferdam_flows::Signer;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;

use super::exit::{Exit, Negative};
use super::locations::Locations;
use super::node::{Node, Parts};
use super::{output, state};

/// What a key's audit row names: the command line's own user holds the host.
const HOST: &str = "host";

/// This host's key, if it is the one in force. The first process on a fresh database brings its own;
/// later ones must have it: a key that was made anew would sign what no verifier accepts.
pub(crate) async fn signer(ledger: &Ledger, dir: &Path) -> anyhow::Result<Option<Signer>> {
    let in_force = ledger.keys().signing_key().await?;
    let text = match (state::signing_read(dir), &in_force) {
        (Some(text), _) => text,
        (None, None) => state::signing_keep(dir, &Signer::fresh())?,
        (None, Some(_)) => return Ok(absent()),
    };
    let signer = Signer::parse(&text).with_context(|| {
        format!(
            "signing.key in {} is not a signing key; copy it again from a host that has it",
            dir.display()
        )
    })?;
    let fingerprint = signer.fingerprint();
    let in_force = match in_force {
        None => ledger.keys().signing_key_register(&fingerprint).await?,
        known => known,
    };
    Ok(if in_force == Some(fingerprint) { Some(signer) } else { absent() })
}

fn absent() -> Option<Signer> {
    tracing::info!(
        "this host lacks the installation's signing key: it sends no webhooks and reads no links"
    );
    None
}

/// Prints the signing key's fingerprint; `replace` makes a fresh key first.
pub(crate) async fn signing(at: &Locations, replace: bool) -> anyhow::Result<Exit> {
    let dir = state::dir(at)?;
    let parts = Parts { worker: None, listen: None, allow_dirs: &[], webhook_private: false };
    let node = Node::start(at, &dir, parts).await?;
    let outcome = act(node.ledger(), &dir, replace).await;
    node.stop().await?;
    outcome
}

async fn act(ledger: &Ledger, dir: &Path, replace: bool) -> anyhow::Result<Exit> {
    if replace {
        let fresh = Signer::fresh();
        let signer = Signer::parse(&fresh).context("reading the fresh signing key back")?;
        let tenant = cofferdam_flows::keys::DEFAULT_TENANT.parse()?;
        state::signing_write(dir, &fresh)?;
        let fingerprint = signer.fingerprint();
        let audit = Audit {
            tenant: &tenant,
            key_id: HOST,
            actor: HOST,
            op: "key.signing.replace",
            target: fingerprint.as_str(),
            reason: "asked for on the command line",
            detail: None,
        };
        ledger.keys().signing_key_replace(&fingerprint, &audit).await?;
        output::note(
            "replaced; restart the servers, copy signing.key to the other hosts, add the webhooks again",
        );
    }
    match (signer(ledger, dir).await?, ledger.keys().signing_key().await?) {
        (Some(signer), _) => {
            output::line(signer.fingerprint().as_str());
            Ok(Exit::Ok)
        }
        (None, in_force) => {
            let in_force = in_force.map(|digest| digest.to_string()).unwrap_or_default();
            Err(Negative(format!(
                "this host lacks the signing key with the fingerprint {in_force}; copy signing.key from a host that has it"
            ))
            .into())
        }
    }
}
