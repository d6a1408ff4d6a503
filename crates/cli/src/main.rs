//! `cofferdam`: prints, reads the environment, exits. See [`command`] for what it can do.

mod command;

fn main() -> std::process::ExitCode {
    command::main()
}
