//! The program of the escape self-test.

fn main() -> std::process::ExitCode {
    cofferdam_probe::run()
}
