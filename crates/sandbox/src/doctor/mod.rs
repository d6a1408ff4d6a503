//! Whether a host holds: what `doctor` looks at, and the escape self-test.
//!
//! The topmost floor: it looks at all others and nothing imports it.

mod escape;
mod finding;
mod survey;
mod vulnerabilities;

pub use escape::{
    ProbeResult, SelfTest, SelfTestError, self_test_in, self_test_of, self_test_plan,
};
pub use finding::{Finding, Grade};
pub use survey::{monitors, survey};
