//! The agent's binary: see [`agent`], and [`machine`] for the init of a virtual machine.

mod agent;
mod entry;
mod machine;
mod user_namespace;

fn main() -> std::process::ExitCode {
    entry::run()
}
