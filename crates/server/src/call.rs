//! One request, parsed: what every handler starts from.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::id::{IdError, RunId};
use cofferdam_contracts::retention::Content;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::run_name::RunName;
use cofferdam_flows::Error;
use cofferdam_flows::Flows;
use cofferdam_flows::triggers::DeliveryHeaders;
use cofferdam_ledger::keys::Principal;
use cofferdam_live::LiveClient;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What handlers share.
#[derive(Debug)]
pub(crate) struct HandlerContext {
    pub flows: Flows,
    pub live: LiveClient,
    pub no_auth: bool,
    /// What reply links begin with.
    pub public_url: String,
}

/// A request that passed the checks of key, role and schema.
pub(crate) struct Call {
    pub shared: Arc<HandlerContext>,
    pub who: Principal,
    pub params: BTreeMap<String, String>,
    pub query: BTreeMap<String, String>,
    pub body: Value,
    /// The body of a route that takes bytes.
    pub bytes: Vec<u8>,
    /// Headers of a delivery to a hook.
    pub delivery: DeliveryHeaders,
    pub if_none_match: Option<String>,
    /// The header `Range`; where it holds only for one version, `if_range` names that by its ETag.
    pub range: Option<String>,
    pub if_range: Option<String>,
    pub wants_events: bool,
    pub wants_page: bool,
}

impl Call {
    pub(crate) fn flows(&self) -> &Flows {
        &self.shared.flows
    }

    pub(crate) fn live(&self) -> &LiveClient {
        &self.shared.live
    }

    /// The body as the route's type. It fits the route's schema already.
    pub(crate) fn body<T: DeserializeOwned>(&mut self) -> Result<T, Refusal> {
        let body = std::mem::take(&mut self.body);
        // To a schema 3.0 is an integer; to a parser of integers it is none.
        let parsed = T::deserialize(&body).or_else(|_| serde_json::from_value(integral(body)));
        parsed.map_err(|e| {
            Refusal::violations(&[Violation {
                instance_path: String::new(),
                message: e.to_string(),
            }])
        })
    }

    /// A path parameter's text.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    /// A path parameter as an id.
    pub(crate) fn id<T: FromStr<Err = IdError>>(&self, name: &str) -> Result<T, Refusal> {
        self.param(name)
            .parse()
            .map_err(|e: IdError| Refusal::new(ErrorCode::InvalidId, e.to_string()))
    }

    /// A whole number of the query, within bounds.
    pub(crate) fn number(
        &self,
        name: &str,
        bounds: std::ops::RangeInclusive<i64>,
        default: i64,
    ) -> Result<i64, Refusal> {
        let Some(text) = self.query.get(name) else { return Ok(default) };
        match text.parse::<i64>() {
            Ok(n) if bounds.contains(&n) => Ok(n),
            _ => Err(query_error(
                name,
                &format!("a whole number from {} to {}", bounds.start(), bounds.end()),
            )),
        }
    }

    /// `true` or `false` of the query; absent is false.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.query.get(name).map(String::as_str) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(query_error(name, "true or false")),
        }
    }

    /// A value of a closed list, by its name in the query.
    pub(crate) fn one_of<T: Copy>(
        &self,
        name: &str,
        all: &[T],
        text: fn(T) -> &'static str,
    ) -> Result<Option<T>, Refusal> {
        let Some(given) = self.query.get(name) else { return Ok(None) };
        let found = all.iter().copied().find(|value| text(*value) == given);
        found.map(Some).ok_or_else(|| {
            let names: Vec<&str> = all.iter().copied().map(text).collect();
            query_error(name, &format!("one of {}", names.join(", ")))
        })
    }

    /// A label of the query, `NAME=VALUE`.
    pub(crate) fn label(&self, name: &str) -> Result<Option<(String, String)>, Refusal> {
        let Some(given) = self.query.get(name) else { return Ok(None) };
        match given.split_once('=') {
            Some((label, value)) if !label.is_empty() => Ok(Some((label.into(), value.into()))),
            _ => Err(query_error(name, "a label, as NAME=VALUE")),
        }
    }

    /// The id of the run that a caller named, or its workflow's. A beginning of an id and `last` are looked up here and nowhere
    /// else, in the caller's tenant; whether a whole id is a run's is for who uses it to find.
    pub(crate) async fn named(&self, name: &RunName) -> Result<String, Error> {
        let runs = self.flows().ledger.runs();
        let found = match name {
            RunName::Id(id) => return Ok(id.to_string()),
            RunName::Prefix(prefix) => runs.with_prefix(&self.who.tenant, prefix).await?,
            RunName::Last => runs.newest_of(&self.who).await?.into_iter().collect(),
        };
        Ok(name.resolve(found)?.into())
    }

    /// The id of the run that `:id` names, or its workflow's.
    pub(crate) async fn run_or_workflow(&self) -> Result<String, Error> {
        self.named(&self.id("id")?).await
    }

    /// The run that `:id` names, if it is the tenant's.
    pub(crate) async fn run(&self) -> Result<RunHeader, Error> {
        let name = self.id("id")?;
        let id = self.named(&name).await?;
        let found = self.flows().ledger.runs().header(&self.who.tenant, &id).await?;
        Ok(found.ok_or_else(|| name.not_found())?)
    }

    pub(crate) async fn run_id(&self) -> Result<RunId, Error> {
        Ok(self.run().await?.run_id)
    }

    /// The same, refused where the content that is read went.
    pub(crate) async fn run_with(&self, content: Content) -> Result<RunId, Error> {
        let run = self.run_id().await?;
        self.flows().ledger.erasures().refuse(&run, Some(content)).await?;
        Ok(run)
    }
}

/// The value with integers in the place of numbers that are written as fractions and are none.
fn integral(value: Value) -> Value {
    match value {
        Value::Number(number) => match whole(&number) {
            Some(whole) => Value::from(whole),
            None => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(integral).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, integral(value))).collect()
        }
        other => other,
    }
}

fn whole(number: &serde_json::Number) -> Option<i64> {
    let fraction = number.as_f64().filter(|_| number.is_f64())?;
    // Beyond, a fraction's neighbours are more than one apart: which integer was meant is not known.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (fraction.fract() == 0.0 && fraction.abs() < EXACT)
        .then(|| format!("{fraction:.0}").parse().ok())?
}

pub(crate) fn query_error(name: &str, wanted: &str) -> Refusal {
    Refusal::violations(&[Violation {
        instance_path: format!("?{name}"),
        message: format!("must be {wanted}"),
    }])
}

/// The query's pairs, decoded; repeated names are refused, and those that are not among `names`.
pub(crate) fn query_of(
    names: &[&str],
    raw: Option<&str>,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut query = BTreeMap::new();
    for pair in raw.unwrap_or("").split('&').filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if !names.contains(&name.as_str()) {
            return Err(query_error(&name, &format!("one of: {}", names.join(", "))));
        }
        if query.insert(name.clone(), value).is_some() {
            return Err(query_error(&name, "given once"));
        }
    }
    Ok(query)
}

/// Percent-decoded text: valid UTF-8 without control characters, since it may become an id.
pub(crate) fn decode(text: &str) -> Result<String, Refusal> {
    let spaced = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&spaced)
        .decode_utf8()
        .map_err(|_| Refusal::new(ErrorCode::InvalidId, "the URL is not UTF-8"))?;
    if decoded.chars().any(char::is_control) {
        return Err(Refusal::new(ErrorCode::InvalidId, "the URL has control characters"));
    }
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::integral;
    use serde_json::json;

    #[test]
    fn e7_an_integer_that_is_written_as_a_fraction_is_one() {
        let said = json!({"a": [333.0, -2.0, 0.5, 1e300, 7], "b": {"c": 65535.0, "d": "1.0"}});
        let meant = json!({"a": [333, -2, 0.5, 1e300, 7], "b": {"c": 65535, "d": "1.0"}});
        assert_eq!(integral(said).to_string(), meant.to_string());
    }
}
