//! A sandbox that is made while it is still being put on record.
//!
//! ```text
//! reserve: a name of its own, marked --make--> made, without inputs --taken--> the sandbox of its record: no mark
//!                                                  \--dropped--> wiped, then the mark is taken away
//! ```
//! **Nothing of a tenant runs in it before it is taken**, and until then it is marked as a container that waits is: its
//! worker's death makes it an orphan, and nobody else touches it before. Whoever records it does so under its name.

use std::io;

use cofferdam_ambient::random;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::WipeStatus;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::boot::{provision, provision_filled};
use super::error::ProvisionError;
use super::host::Host;
use super::keep::Filling;
use super::sandbox::Sandbox;
use super::waits::{AheadMarks, Claim, tell};
use crate::spec::plan::Plan;

/// Of the evidence of one that nobody took.
const REASON: &str = "never-taken";

/// A name that is marked for a sandbox that is not on record.
#[derive(Debug)]
pub struct Reserved {
    id: SandboxId,
    all: AheadMarks,
}

/// A sandbox that is being made under a reserved name, and what is kept until it is taken or wiped. It is wiped with this value
/// unless it is taken.
#[derive(Debug)]
pub struct Ahead<T: Send + 'static> {
    plan: Plan,
    making: Option<Making<T>>,
}

#[derive(Debug)]
struct Making<T> {
    made: JoinHandle<Result<Sandbox, ProvisionError>>,
    name: Reserved,
    keeps: T,
}

impl Host {
    /// A new name, under which no container waits.
    ///
    /// # Errors
    /// The host's directory of sandboxes takes no file.
    pub fn reserve(&self) -> io::Result<Reserved> {
        let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10)));
        let id = id.map_err(io::Error::other)?;
        let (claim, all) = (Claim::take(&self.facts().live_dir, &id)?, self.ahead_marks());
        all.add(&id, claim);
        Ok(Reserved { id, all })
    }

    /// Takes away the marks of those that are not on record yet: the next reconciler finds them. Call it when this worker is at its
    /// end and does not wait for them.
    pub fn abandon_ahead(&self) {
        self.ahead_marks().end_all();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.all.end(&self.id);
    }
}

impl Reserved {
    /// The name.
    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Begins to make the sandbox of a plan under this name, with these files.
    pub fn make<T: Send + 'static>(
        self,
        host: &Host,
        plan: Plan,
        filling: Option<Filling>,
        keeps: T,
    ) -> Ahead<T> {
        let (host, its) = (host.clone(), plan.clone());
        let made = tokio::spawn(async move {
            match filling {
                Some(filling) => provision_filled(&host, &its, &[], filling).await,
                None => provision(&host, &its, &[]).await,
            }
        });
        Ahead { plan, making: Some(Making { made, name: self, keeps }) }
    }
}

impl<T: Send + 'static> Ahead<T> {
    /// As what it is made.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sandbox, which is on record now, and what was kept with it. `None`: the task that made it is gone.
    pub async fn taken(mut self) -> Option<(Result<Sandbox, ProvisionError>, T)> {
        let Making { made, name, keeps } = self.making.take()?;
        // From now on it is found as every sandbox is.
        drop(name);
        Some((made.await.ok()?, keeps))
    }

    /// Wipes it.
    pub async fn end(mut self) {
        if let Some(making) = self.making.take() {
            making.end().await;
        }
    }
}

impl<T> Making<T> {
    async fn end(self) {
        let evidence = match self.made.await {
            Ok(Ok(sandbox)) => Some(sandbox.wipe(REASON).await),
            Ok(Err(error)) => Some(*error.evidence),
            Err(error) => {
                tracing::error!(%error, "a sandbox that was made ahead is lost");
                None
            }
        };
        evidence.iter().for_each(tell);
        if evidence.is_none_or(|evidence| evidence.status != WipeStatus::Verified) {
            self.name.all.fail(&self.name.id);
        }
        drop((self.name, self.keeps));
    }
}

impl<T: Send + 'static> Drop for Ahead<T> {
    fn drop(&mut self) {
        let Some(making) = self.making.take() else { return };
        // Without a runtime its worker is at its end: the next one finds what is left.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(making.end());
        }
    }
}
