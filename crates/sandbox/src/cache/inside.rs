//! Taking what a build left out of a machine, whose layer the host does not see.
//!
//! ```text
//! agent, pack --tar--> a file without a name --> unpacked into the draft --> walked as any base --> renamed
//! ```
//! The agent may have been taken over by the build. What comes is bounded while it comes, unpacked as
//! somebody's who lies, and then looked at once more by the walk that describes every base.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_guest::archive::Pack;

use super::bounds::{Bounds, Usage};
use super::copy::Walk;
use super::error::{CacheError, at};
use super::identity::BaseRequest;
use super::store::{BaseWriter, Caches, Promotion};
use super::unpack::unpack;
use crate::agent::Agent;
use crate::host::task::blocking;

/// For one directory: 4 GiB out of a machine whose processor is emulated, which reads 20 MB in a second.
const PACK_MS: u64 = 300_000;

/// Makes the directories that a machine shows at these paths the base of their key.
pub(crate) async fn promote(
    agent: &Agent,
    shown: &[String],
    caches: Caches,
    wanted: BaseRequest,
) -> Result<Promotion, CacheError> {
    let Some(mut begun) = begin(&caches, &wanted).await? else { return Ok(Promotion::Late) };
    let mut usage = Usage::new(caches.bounds);
    let mut places = Vec::new();
    for (index, path) in shown.iter().enumerate() {
        let place = begun.make(index)?;
        let tar = fetch(agent, path, usage.left(), begun.spool()?).await?;
        let unpacked = {
            let place = place.clone();
            // The draft goes along: it must not be swept away under a thread that still writes.
            blocking(move || {
                let mut usage = usage;
                unpack(&place, tar, &mut usage).map(|()| (begun, usage))
            })
        };
        (begun, usage) = unpacked.await?;
        places.push(place);
    }
    blocking(move || finish(&caches, &wanted, &begun, &places)).await
}

async fn begin(caches: &Caches, wanted: &BaseRequest) -> Result<Option<BaseWriter>, CacheError> {
    let (caches, wanted) = (caches.clone(), wanted.clone());
    blocking(move || caches.begin(&wanted)).await
}

fn finish(
    caches: &Caches,
    wanted: &BaseRequest,
    begun: &BaseWriter,
    places: &[PathBuf],
) -> Result<Promotion, CacheError> {
    let mut walk = Walk::new(caches.bounds);
    for place in places {
        walk.tree(place, None)?;
    }
    caches.finish(wanted, begun, walk)
}

/// Whether these directories hold nothing but what a base may, as their own kernel shows them: gVisor keeps
/// pipes and sockets in memory, and on the host their names are not there at all. A build that has taken its
/// agent over may hide them, and then its base lacks them.
pub(crate) async fn look(
    agent: &Agent,
    shown: &[String],
    caches: &Caches,
) -> Result<(), CacheError> {
    for path in shown {
        let request = Pack {
            path: path.clone(),
            max_bytes: 0,
            max_entries: caches.bounds.entries,
            exact: true,
            look: true,
        };
        let looked = agent.files().pack(&request, |_| {});
        let limit = Duration::from_millis(PACK_MS);
        tokio::time::timeout(limit, looked).await.map_err(|_| CacheError::Silent)??;
    }
    Ok(())
}

/// Writes the tar of a directory to the file, which is at its begin again.
async fn fetch(
    agent: &Agent,
    path: &str,
    left: Bounds,
    mut file: File,
) -> Result<File, CacheError> {
    let request = Pack {
        path: path.to_owned(),
        max_bytes: left.bytes,
        max_entries: left.entries,
        exact: true,
        look: false,
    };
    let mut written = Ok(());
    let packed = agent.files().pack(&request, |bytes| {
        if written.is_ok() {
            written = file.write_all(bytes);
        }
    });
    let limit = Duration::from_millis(PACK_MS);
    tokio::time::timeout(limit, packed).await.map_err(|_| CacheError::Silent)??;
    let fault = |source| at(std::path::Path::new(path))(source);
    written.map_err(fault)?;
    file.rewind().map_err(fault)?;
    Ok(file)
}
