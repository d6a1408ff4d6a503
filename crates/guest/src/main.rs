//! The agent's binary; see [`agent`].

mod agent;

fn main() -> std::process::ExitCode {
    agent::run()
}
