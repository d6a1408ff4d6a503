//! The least isolation class at submission: what no worker of this installation can give is refused before a row is written.

use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::floor::ClassFloor;
use cofferdam_contracts::profile::Settings;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::sandbox::IsolationClass;
use cofferdam_ledger::Ledger;

use crate::error::Result;

/// Admits what these settings are for, unless every live worker offers weaker classes alone. Where none is live it waits in its
/// queue, and the worker that takes it looks again.
///
/// # Errors
/// A refusal that names the least class, by which value it is set, and what the workers offer.
pub async fn admit(ledger: &Ledger, settings: &Settings) -> Result<()> {
    let Some(least) = settings.floor() else { return Ok(()) };
    if let Some(offered) = ledger.executors().classes().await? {
        offers(least, &offered)?;
    }
    Ok(())
}

/// Whether a recipe makes any sandbox: one that only stores texts is bound by no class. Pure.
pub(crate) fn binds(recipe: &Recipe) -> bool {
    recipe.plan.agent.is_some() || recipe.plan.tasks.iter().any(|task| task.exec.is_some())
}

/// Compares the least class with what workers offer. Pure.
fn offers(least: &ClassFloor, offered: &[IsolationClass]) -> Result<(), Refusal> {
    match offered.iter().max() {
        Some(strongest) if *strongest < least.value => {
            let refusal = least.refuse("the strongest class that a worker offers", *strongest);
            let why = format!(
                "{}; or start a worker that has it (`cofferdam doctor` says how)",
                refusal.message
            );
            Err(Refusal { message: why, ..refusal })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::config::{ConfigKey, ConfigRef, ConfigScope};
    use cofferdam_contracts::error::ErrorCode;
    use cofferdam_contracts::profile::ConfigValue;

    #[test]
    fn what_no_worker_offers_is_refused_with_the_remedy() {
        let source = ConfigRef { key: ConfigKey::ClassMin, scope: ConfigScope::Global, version: 2 };
        let least = ConfigValue { value: IsolationClass::Microvm, source };
        let offered = [IsolationClass::Gvisor, IsolationClass::Container];
        let refusal = offers(&least, &offered).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::PolicyViolation);
        for word in ["gvisor", "microvm", "isolation.class_min of the host, version 2", "doctor"] {
            assert!(refusal.message.contains(word), "{refusal}");
        }
        offers(&least, &[IsolationClass::Microvm]).unwrap();
        offers(&least, &[]).unwrap();
    }
}
