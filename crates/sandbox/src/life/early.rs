//! A sandbox that is made while it is still being put on record.
//!
//! ```text
//! reserve: a name of its own, marked --make--> made, without inputs --taken--> the sandbox of its record: no mark
//!                                                  \--dropped--> wiped, then the mark is taken away
//! ```
//! **Nothing of a tenant runs in it before it is taken**, and until then it is marked as a container that waits is: its
//! worker's death makes it an orphan, and nobody else touches it before. Whoever records it does so under its name.

use cofferdam_contracts::sandbox::WipeStatus;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::container_pool::tell;
use super::error::ProvisionError;
use super::host::Host;
use super::names::NameReservation;
use super::provision::{provision, provision_filled};
use super::sandbox::Sandbox;
use super::snapshot::InitialFiles;
use crate::spec::plan::Plan;

/// Of the evidence of one that nobody took.
const REASON: &str = "never-taken";

/// A sandbox that is being made under a reserved name, and what is kept until it is taken or wiped. It is wiped with this value
/// unless it is taken.
#[derive(Debug)]
pub struct EarlySandbox<T: Send + 'static> {
    plan: Plan,
    making: Option<EarlyTask<T>>,
}

#[derive(Debug)]
struct EarlyTask<T> {
    made: JoinHandle<Result<Sandbox, ProvisionError>>,
    name: NameReservation,
    keeps: T,
}

impl NameReservation {
    /// Begins to make the sandbox of a plan under this name, with these files.
    pub fn make<T: Send + 'static>(
        self,
        host: &Host,
        plan: Plan,
        filling: Option<InitialFiles>,
        keeps: T,
    ) -> EarlySandbox<T> {
        let (host, its) = (host.clone(), plan.clone());
        let made = tokio::spawn(async move {
            match filling {
                Some(filling) => provision_filled(&host, &its, &[], filling).await,
                None => provision(&host, &its, &[]).await,
            }
        });
        EarlySandbox { plan, making: Some(EarlyTask { made, name: self, keeps }) }
    }
}

impl<T: Send + 'static> EarlySandbox<T> {
    /// As what it is made.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sandbox, which is on record now, and what was kept with it. `None`: the task that made it is gone.
    pub async fn take(mut self) -> Option<(Result<Sandbox, ProvisionError>, T)> {
        let EarlyTask { made, name, keeps } = self.making.take()?;
        // From now on it is found as every sandbox is.
        drop(name);
        Some((made.await.ok()?, keeps))
    }

    /// Waits until the sandbox is made or has failed, then wipes it.
    pub async fn end(mut self) {
        if let Some(making) = self.making.take() {
            making.end().await;
        }
    }
}

impl<T> EarlyTask<T> {
    async fn end(self) {
        let evidence = match self.made.await {
            Ok(Ok(sandbox)) => Some(sandbox.wipe(REASON).await),
            Ok(Err(error)) => Some(*error.evidence),
            Err(error) => {
                tracing::error!(%error, "a sandbox that was made early is lost");
                None
            }
        };
        evidence.iter().for_each(tell);
        if evidence.is_none_or(|evidence| evidence.status != WipeStatus::Verified) {
            self.name.fail();
        }
        drop((self.name, self.keeps));
    }
}

impl<T: Send + 'static> Drop for EarlySandbox<T> {
    fn drop(&mut self) {
        let Some(making) = self.making.take() else { return };
        // Without a runtime its worker is at its end: the next one finds what is left.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(making.end());
        }
    }
}
