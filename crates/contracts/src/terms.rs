//! How a run is queued and bounded: the fields that every request for a run has.
//!
//! On the wire they stand beside the request's own fields, and unknown fields are refused, which serde's
//! `flatten` does not promise together. So one macro writes them into each request.

use crate::recipe::Lane;
use crate::run::{Budget, ExecutionMode, Workload};

/// The terms of a run, whichever request asks for it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunTerms {
    /// The partition of `sbxQ`; the tenant where absent.
    pub queue_partition_key: Option<String>,
    /// Urgency: interactive or batch.
    pub lane: Option<Lane>,
    /// Priority within the queue, lower first; the lane's where absent.
    pub priority: Option<i32>,
    /// Expected load, held against the recipe's caps and the budget before the run starts.
    pub workload: Option<Workload>,
    /// Fan-out, minutes, artifacts, retries, wall clock.
    pub budget: Option<Budget>,
    /// Wall time of the run in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The caller's trace id.
    pub trace_id: Option<String>,
    /// Where its sandboxes are to be; where the worker has them, where absent.
    pub execution_mode: Option<ExecutionMode>,
}

/// A request with fields of its own and those of [`RunTerms`].
macro_rules! with_terms {
    ($(#[$of:meta])* pub struct $request:ident { $($own:tt)* }) => {
        $(#[$of])*
        pub struct $request {
            $($own)*
            /// The tenant's partition of `sbxQ`; default the tenant.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(length(min = 1, max = 128))]
            pub queue_partition_key: Option<String>,
            /// Urgency: interactive or batch.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub lane: Option<Lane>,
            /// Priority within the queue, lower first; default the lane's.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = 0, max = 2_147_483_647))]
            pub priority: Option<i32>,
            /// Expected load, held against the recipe's caps and the budget before the run starts.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub workload: Option<Workload>,
            /// Bounds of this run: fan-out, minutes, artifacts, retries, wall clock.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub budget: Option<Budget>,
            /// Wall time of the run in milliseconds.
            #[serde(default, rename = "timeoutMS", skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = 1, max = 2_592_000_000_u64))]
            pub timeout_ms: Option<u64>,
            /// The caller's trace id.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(length(min = 1, max = 128))]
            pub trace_id: Option<String>,
            /// Where its sandboxes are to be; a worker whose sandboxes are elsewhere refuses them. Default:
            /// where the worker that takes them has them.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub execution_mode: Option<ExecutionMode>,
        }

        impl $request {
            /// The terms that it asks for.
            #[must_use]
            pub fn terms(&self) -> RunTerms {
                RunTerms {
                    queue_partition_key: self.queue_partition_key.clone(),
                    lane: self.lane,
                    priority: self.priority,
                    workload: self.workload,
                    budget: self.budget,
                    timeout_ms: self.timeout_ms,
                    trace_id: self.trace_id.clone(),
                    execution_mode: self.execution_mode,
                }
            }
        }
    };
}

pub(crate) use with_terms;
