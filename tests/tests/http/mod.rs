//! The HTTP API as its users meet it: what each route does, and what it refuses.

mod bodies;
mod calls;
mod document;
mod operations;
mod outside;
mod paths;
mod permissions;
mod runs;
mod tasks;
mod values;
mod world;
