//! The agent's binary: see [`agent`], and [`probe`] for the escape self-test.

mod agent;
mod entry;
mod probe;

fn main() -> std::process::ExitCode {
    entry::run()
}
