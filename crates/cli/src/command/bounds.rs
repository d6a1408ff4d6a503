//! Bounds of a budget, as flags name them: `calls=N`, `tokens=N`, `money=N`.

use cofferdam_contracts::model::{BudgetMetric, MICROS};

/// A decimal of at most six places, in micro-units.
pub(crate) fn micros(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || part.len() > 6 || !is_number(whole) || !is_number(part) {
        return None;
    }
    let part: u64 = format!("{part:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(MICROS)?.checked_add(part)
}

/// One `KEY=N`. `money` is in units and `micros` in micro-units.
pub(crate) fn bound(text: &str) -> Option<(BudgetMetric, u64)> {
    let (key, number) = text.split_once('=')?;
    match key {
        "calls" => Some((BudgetMetric::Calls, number.parse().ok()?)),
        "tokens" => Some((BudgetMetric::Tokens, number.parse().ok()?)),
        "money" => Some((BudgetMetric::Micros, micros(number)?)),
        "micros" => Some((BudgetMetric::Micros, number.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::micros;

    #[test]
    fn money_is_read_without_a_float() {
        for (text, of) in [("1.25", 1_250_000), ("10", 10_000_000), ("0.000001", 1), ("0", 0)] {
            assert_eq!(micros(text), Some(of), "{text}");
        }
        for bad in ["", ".5", "-1", "1.0000001", "1e3", "x", "99999999999999999999"] {
            assert_eq!(micros(bad), None, "{bad}");
        }
    }
}
