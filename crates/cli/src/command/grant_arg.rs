//! What a yes grants to a task that asked: a name, or more of a budget.

use cofferdam_contracts::egress::Name;
use cofferdam_contracts::model::BudgetMetric;

use super::bounds;

/// What one `--grant` of `gate reply` gives the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GrantArg {
    /// A name, for the time of `--until`.
    Name(Name),
    /// So much more of a budget.
    Of(BudgetMetric, u64),
}

/// Parses `--grant`: no domain name holds `=`.
pub(crate) fn more(text: &str) -> Result<GrantArg, String> {
    if text.contains('=') {
        let found = bounds::bound(text).ok_or("write calls=N, tokens=N or money=N")?;
        return Ok(GrantArg::Of(found.0, found.1));
    }
    let name = Name::parse(text).ok_or_else(|| {
        format!("{text:?} is not an exact domain name, nor calls=N, tokens=N or money=N")
    })?;
    Ok(GrantArg::Name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_a1_a_grant_is_a_name_or_more_of_a_budget() {
        assert_eq!(more("calls=50"), Ok(GrantArg::Of(BudgetMetric::Calls, 50)));
        assert_eq!(more("money=0.5"), Ok(GrantArg::Of(BudgetMetric::Micros, 500_000)));
        assert_eq!(more("micros=7"), Ok(GrantArg::Of(BudgetMetric::Micros, 7)));
        assert!(matches!(more("a.example"), Ok(GrantArg::Name(_))));
        for bad in ["calls=", "calls=-1", "calls=x", "wall_ms=1", "=3", "*.example", "calls"] {
            assert!(more(bad).is_err(), "{bad}");
        }
    }
}
