//! What the methods of a trait object return where they wait.

use std::pin::Pin;

/// A boxed future: what a trait object can give.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
