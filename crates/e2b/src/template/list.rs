//! Templates by the page.

use crate::answer::{self, bad_request};
use crate::call::{Call, Outcome};
use crate::query::{self, MAX_PAGE};
use crate::template::names::{self, TemplateAnswer, hosts};

/// Which rows a query asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    limit: Option<usize>,
    /// The token that the page before ended with.
    pub after: Option<String>,
}

impl Page {
    pub(crate) fn of(query: &str) -> Result<Self, String> {
        let mut asked = Self::default();
        for (name, value) in query::pairs(query) {
            match name {
                "limit" => asked.limit = Some(query::rows(name, value)?),
                "nextToken" => {
                    asked.after = Some(query::decoded(value).ok_or("nextToken is not UTF-8")?);
                }
                // There are no teams: the key's tenant is meant.
                "teamID" => {}
                other => return Err(format!("the query's {other} is not supported")),
            }
        }
        Ok(asked)
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.unwrap_or(MAX_PAGE.into())
    }
}

/// Where an entry stands in the list: the host's are before those of the tenant, each by name.
fn key(TemplateAnswer { names: [name], public, .. }: &TemplateAnswer) -> String {
    format!("{}.{name}", if *public { "host" } else { "own" })
}

/// The entries of one page, and the token of the next. Pure.
fn cut(mut all: Vec<TemplateAnswer>, asked: &Page) -> (Vec<TemplateAnswer>, Option<String>) {
    all.sort_by_key(key);
    if let Some(after) = &asked.after {
        all.retain(|entry| key(entry) > *after);
    }
    let more = query::cut(&mut all, asked.limit());
    let next = all.last().filter(|_| more).map(key);
    (all, next)
}

/// Answers `GET /v2/templates`: the templates by the page, the host's first.
pub(crate) async fn pages(call: Call) -> Outcome {
    let asked = Page::of(&call.query).map_err(bad_request)?;
    let (all, next) = cut(names::all(&call).await?, &asked);
    Ok(answer::page(&all, next.as_deref()))
}

/// `GET /default-templates`: the host's.
pub(crate) async fn defaults(call: Call) -> Outcome {
    let all = hosts(&call.services.live).await.map_err(answer::refused)?;
    let all = all.into_iter().map(TemplateAnswer::by_default);
    Ok(answer::json_of(200, &all.collect::<Vec<_>>()))
}

/// Answers `GET /templates`: all templates of the host and of the caller's tenant.
pub(crate) async fn list(call: Call) -> Outcome {
    Ok(answer::json_of(200, &names::all(&call).await?))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_list_is_read_page_by_page_each_entry_once() {
        let entry = |name: &str, public: bool| TemplateAnswer::tested(name, public);
        let all = [entry("b", false), entry("base", true), entry("a", false), entry("zero", true)]
            .to_vec();
        let mut page = Page::of("limit=3&teamID=x").unwrap();
        let names = |all: &[TemplateAnswer]| -> Vec<String> {
            all.iter().map(|one| one.names[0].clone()).collect()
        };
        let (first, next) = cut(all.clone(), &page);
        assert_eq!(names(&first), ["base", "zero", "a"]);
        page.after = next;
        let (second, next) = cut(all, &page);
        assert_eq!((names(&second), next), (vec!["b".to_owned()], None));
        for bad in ["limit=0", "limit=101", "limit=x", "x=1"] {
            assert!(Page::of(bad).is_err(), "{bad}");
        }
    }
}
