//! The self-test of a second life: files that another sandbox kept, after its task had put links to the host's directories in
//! the place of each of its own that it could.
//!
//! ```text
//! first life (a container, where this host has them) -> links -> its files are kept -> it is wiped
//! second life (the class)                            -> every probe once more, as `again.ID`
//! a third that would begin with a link at /tmp       -> refused, as `again.displaced`
//! ```
//! A host that resolves a path in such files shows what the link names: where a mask lies, or read-write as `/tmp`.

use std::io::{self, Cursor};

use cofferdam_contracts::sandbox::WipeEvidence;

use super::{ProbeResult, SelfTestError, command, self_test_plan_in};
use crate::host::task::blocking;
use crate::life::LayerSnapshotError;
use crate::life::{Host, InitialFiles, Sandbox, provision, provision_filled};
use crate::spec::class::{Class, Offer};
use crate::spec::command::Command;

/// Classes whose files lie on this host. A machine resolves its own, and begins with what a container left.
const KEPT_HERE: [Class; 3] = [Class::Container, Class::Gvisor, Class::Docker];
/// `/etc` is a directory of every host, and has nothing that a probe looks for below these names.
const LINKS: &str = "rm -rf /.cofferdam/none; ln -s /etc /.cofferdam/none || exit 1; \
    for at in home mnt media opt root run srv var; do rm -rf /$at; ln -s /etc /$at; done; exit 0";
const DISPLACED: &str = "rm -rf /tmp && ln -s /etc /tmp";
const REFUSED: &str = "refused";

/// In which class the first life is, where this one has second lives on this host.
pub(super) fn first_of(host: &Host, class: Class) -> Option<Class> {
    let has_containers = host
        .facts()
        .classes
        .iter()
        .any(|fact| fact.class == Class::Container && matches!(fact.offer, Offer::Present(_)));
    match class {
        Class::Gvisor | Class::Microvm if has_containers => Some(Class::Container),
        class => KEPT_HERE.contains(&class).then_some(class),
    }
}

/// Files of a sandbox of this class whose task changed its root, and the evidence of its wipe.
async fn kept(
    host: &Host,
    class: Class,
    script: &str,
    wipes: &mut Vec<WipeEvidence>,
) -> Result<InitialFiles, SelfTestError> {
    let sandbox = provision(host, &self_test_plan_in(host, class)?, &[]).await?;
    let stream = files_of(&sandbox, script).await;
    wipes.push(sandbox.wipe("self-test").await);
    Ok(InitialFiles::new(Cursor::new(stream?)))
}

async fn files_of(sandbox: &Sandbox, script: &str) -> Result<Vec<u8>, SelfTestError> {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).into();
    let ran = sandbox.exec(&Command { argv, ..command(&[]) }, |_, _| {}).await?;
    if ran.exit != 0 {
        return Err(SelfTestError::Early(ran.cause.unwrap_or_default()));
    }
    let snapshotter = sandbox.snapshotter().map_err(io::Error::other)?;
    let written = blocking(move || {
        let mut stream = Vec::new();
        let still = snapshotter.snapshot(&mut stream, &|| true)?;
        still.end();
        Ok::<_, LayerSnapshotError>(stream)
    });
    Ok(written.await.map_err(io::Error::other)?)
}

/// What a second life begins with.
pub(super) async fn links(
    host: &Host,
    first: Class,
    wipes: &mut Vec<WipeEvidence>,
) -> Result<InitialFiles, SelfTestError> {
    kept(host, first, LINKS, wipes).await
}

/// Whether this host would resolve a link in its files, so that it refuses some.
pub(super) fn resolves(class: Class) -> bool {
    KEPT_HERE.contains(&class)
}

fn is_displaced(why: &io::Error) -> bool {
    let inner = why.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(LayerSnapshotError::Displaced(_)))
}

async fn begun(
    host: &Host,
    class: Class,
    filling: InitialFiles,
    wipes: &mut Vec<WipeEvidence>,
) -> Result<String, SelfTestError> {
    let plan = self_test_plan_in(host, class)?;
    match provision_filled(host, &plan, &[], filling).await {
        Ok(sandbox) => {
            wipes.push(sandbox.wipe("self-test").await);
            Ok("begun".to_owned())
        }
        Err(error) if error.permanent => {
            wipes.push(*error.evidence);
            Ok(REFUSED.to_owned())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a life begins where the host would have to follow a link.
pub(super) async fn displaced(
    host: &Host,
    first: Class,
    class: Class,
    wipes: &mut Vec<WipeEvidence>,
) -> Result<ProbeResult, SelfTestError> {
    let observed = match kept(host, first, DISPLACED, wipes).await {
        // Not even kept.
        Err(SelfTestError::Host(why)) if is_displaced(&why) => REFUSED.to_owned(),
        Err(error) => return Err(error),
        Ok(filling) => begun(host, class, filling, wipes).await?,
    };
    Ok(ProbeResult {
        id: "again.displaced".to_owned(),
        area: "lives".to_owned(),
        tries: "begin with a link in the place of /tmp".to_owned(),
        expected: vec![REFUSED.to_owned()],
        ok: observed == REFUSED,
        observed,
    })
}
