//! Levels of the entries of a log.

/// In rising order.
pub(crate) const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// This level and those above it.
pub(crate) fn from_level(name: &str) -> Result<&'static [&'static str], String> {
    let at = LEVELS.iter().position(|known| *known == name);
    let levels = at.and_then(|at| LEVELS.get(at..));
    levels.ok_or_else(|| format!("level must be one of {}", LEVELS.join(", ")))
}
