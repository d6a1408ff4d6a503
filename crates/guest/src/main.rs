//! The agent's binary: see [`agent`], [`machine`] for the init of a virtual machine, and [`probe`] for the
//! escape self-test.

mod agent;
mod entry;
mod hold;
mod machine;
mod probe;

fn main() -> std::process::ExitCode {
    entry::run()
}
