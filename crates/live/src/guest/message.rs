//! What is asked of the inside of a sandbox.

use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guest::error::GuestError;
use crate::handle::LiveHandle;

/// A message to who holds one sandbox, about its inside.
pub trait GuestMessage: Serialize + DeserializeOwned + Debug + Send + 'static {
    /// Its answer: data, and channels where something goes on.
    type Reply: Send + 'static;

    /// What its receiver does with it: who sends it has no handle to call this with.
    fn answer(
        self,
        held: &Arc<LiveHandle>,
    ) -> impl Future<Output = Result<Self::Reply, GuestError>> + Send;
}
