//! A budget is used up and a person may grant more: the call waits at the gate.

use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::model::BudgetAsk;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::budgets::{BudgetAnswer, NewBudgetAsk};
use cofferdam_ledger::listen::{Wake, Wakes};
use cofferdam_ledger::tasks::TaskContext;

use crate::ask::ttl_s;
use crate::patience::patiently;

/// Between two looks at a gate whose wake-up may have been lost.
const LOOK: Duration = Duration::from_secs(1);

/// Asks for more, and waits for the answer as long as the call does. Whether more was granted.
pub(crate) async fn ask_for_more(
    ledger: &Ledger,
    wakes: &Wakes,
    task: &TaskContext,
    over: &BudgetAsk,
) -> bool {
    let mut wakes = wakes.subscribe();
    let timeout_ms = task.work.request().map_or(0, |request| request.timeout_ms);
    let new = NewBudgetAsk {
        run: &task.run,
        tenant: &task.tenant,
        task: &task.key,
        over,
        ttl_s: ttl_s(timeout_ms),
    };
    let n = match patiently(|| ledger.models().budget_ask(&new)).await {
        Ok(Some(n)) => n,
        Ok(None) => return false,
        Err(error) => {
            tracing::warn!(%error, task = %task.key, "more of a budget was not asked for");
            return false;
        }
    };
    tracing::info!(task = %task.key, n, "a task asks for more of its budget of models");
    loop {
        match patiently(|| ledger.models().budget_answer(&task.key, n)).await {
            Ok(BudgetAnswer::Granted) => return true,
            Ok(BudgetAnswer::Denied) | Err(_) => return false,
            Ok(BudgetAnswer::Waiting) => {}
        }
        let moved = async {
            loop {
                match wakes.recv().await {
                    Ok(Wake::Gate(run)) if run == task.run.as_str() => return,
                    Ok(Wake::All) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        };
        tokio::select! {
            () = moved => {}
            () = clock::sleep(LOOK) => {}
        }
    }
}
