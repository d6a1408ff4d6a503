//! Places at which a test kills this process, keeps a thread of it busy, or does not wait as long as others do. In a build without debug assertions, which is every
//! build that is shipped, a place is nothing at all.

#[cfg(debug_assertions)]
mod active {
    use std::sync::OnceLock;

    use cofferdam_ambient::{clock, env};

    static AT: OnceLock<Option<String>> = OnceLock::new();

    /// Ends the process as a power cut would where `COFFERDAM_FAILPOINT` names this place.
    pub fn fail_point(place: &str) {
        let at = AT.get_or_init(|| env::var("COFFERDAM_FAILPOINT"));
        if at.as_deref() == Some(place) {
            let own = nix::unistd::getpid();
            let _ = nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL);
            // The signal is on its way; nothing more may happen here.
            loop {
                std::thread::park();
            }
        }
    }

    static SHORT: OnceLock<Option<String>> = OnceLock::new();

    /// A thousandth of this pause where `COFFERDAM_SHORT` names this place.
    pub fn shortened(place: &str, pause: std::time::Duration) -> std::time::Duration {
        let at = SHORT.get_or_init(|| env::var("COFFERDAM_SHORT"));
        match at.as_deref() == Some(place) {
            true => pause / 1_000,
            false => pause,
        }
    }

    static BUSY: OnceLock<Option<String>> = OnceLock::new();

    /// Keeps this thread from all else for half a minute where `COFFERDAM_BUSY` names this place.
    pub fn busy_point(place: &str) {
        let at = BUSY.get_or_init(|| env::var("COFFERDAM_BUSY"));
        if at.as_deref() == Some(place) {
            clock::sleep_blocking(std::time::Duration::from_secs(30));
        }
    }
}

#[cfg(debug_assertions)]
pub use active::{busy_point, fail_point, shortened};

/// The pause itself in this build.
#[cfg(not(debug_assertions))]
#[inline]
pub fn shortened(_place: &str, pause: std::time::Duration) -> std::time::Duration {
    pause
}

/// Does nothing in this build.
#[cfg(not(debug_assertions))]
#[inline]
pub fn fail_point(_place: &str) {}

/// Does nothing in this build.
#[cfg(not(debug_assertions))]
#[inline]
pub fn busy_point(_place: &str) {}
