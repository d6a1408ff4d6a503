//! Wall times as recipes write them: a language profile, or a duration.

use crate::duration::Duration;
use crate::profile::Language;
use crate::sandbox::MAX_TIMEOUT_MS;

/// The shortest wall time.
pub const MIN_WALL: Duration = Duration::from_ms(1);
/// The longest wall time.
pub const MAX_WALL: Duration = Duration::from_ms(MAX_TIMEOUT_MS);

/// A wall time as a recipe writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wall {
    /// A duration of 1 ms to 24 h, as the recipe gives it.
    Fixed(Duration),
    /// What the profile says when the plan is compiled.
    Profile(Language),
}

/// `python`, `500ms`, `90s`, `5m`, `2h`: the only fields that take the name of a profile.
///
/// # Errors
/// A text that is neither a profile nor a duration from 1 ms to 24 h.
pub fn read(text: &str) -> Result<Wall, String> {
    if let Some(language) = Language::parse(text) {
        return Ok(Wall::Profile(language));
    }
    let duration = text.parse::<Duration>().map_err(|_| {
        let names: Vec<&str> = Language::ALL.iter().map(|language| language.as_str()).collect();
        format!(
            "{text:?} is neither a duration (500ms, 90s, 5m, 2h) nor a profile ({})",
            names.join(", ")
        )
    })?;
    duration.within(MIN_WALL, MAX_WALL).map(Wall::Fixed).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_profiles() {
        assert_eq!(read("90s"), Ok(Wall::Fixed(Duration::from_ms(90_000))));
        assert_eq!(read("python"), Ok(Wall::Profile(Language::parse("python").unwrap())));
        assert_eq!(read("1d"), read("24h"));
        for bad in ["", "0s", "25h", "5", "-1s", "1.5m", "cobol", "99999999999999999999s"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
