//! Helpers of the end-to-end tests: they drive the real binary.
