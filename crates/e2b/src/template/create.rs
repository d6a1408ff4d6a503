//! A build of a template, opened.

use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::template_build::{MAX_TAGS, tag, tagged};
use cofferdam_live::{BuildRequest, OpenBuild};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::{self, bad_request};
use crate::body;
use crate::call::{Call, Outcome};

/// CPUs and MiB that one may ask for; what a tenant may have is its ceiling's to say.
const MAX_CPUS: u32 = 256;
const MEM_MB: std::ops::RangeInclusive<u32> = 128..=1_048_576;

/// A new build of a template.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct NewBuild {
    /// The template's name, with or without a tag: `web`, `web:v1`. It is needed, unless `alias` is given.
    name: Option<String>,
    /// The older name of `name`.
    alias: Option<String>,
    /// Tags besides the one in `name`, at most 31.
    tags: Option<Vec<String>>,
    /// CPUs of the build and of its sandboxes, 1 to 256.
    cpu_count: Option<u32>,
    /// Memory of the build and of its sandboxes in MiB, 128 to 1,048,576.
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
    /// Accepted, and without effect: a layer may have three quarters of its sandbox's memory.
    #[serde(rename = "minFreeDiskMb", alias = "minFreeDiskMB")]
    _min_free_disk_mb: Option<u64>,
    /// Accepted, and without effect: the template belongs to the key's tenant.
    #[serde(rename = "teamID")]
    _team_id: Option<String>,
}

impl NewBuild {
    fn asked(self) -> Result<BuildRequest, String> {
        let name = self.name.or(self.alias).ok_or("name is missing")?;
        let (name, own) = tagged(&name).map_err(|why| format!("name: {why}"))?;
        let tags = self.tags.unwrap_or_default();
        if tags.len() >= MAX_TAGS {
            return Err(format!("tags: at most {} beside that of the name", MAX_TAGS - 1));
        }
        let tags = tags.iter().map(|text| tag(text)).collect::<Result<Vec<_>, _>>();
        let mut tags = tags.map_err(|why| format!("tags: {why}"))?;
        tags.extend(own);
        if !self.cpu_count.is_none_or(|cpus| (1..=MAX_CPUS).contains(&cpus)) {
            return Err(format!("cpuCount must be between 1 and {MAX_CPUS}"));
        }
        if !self.memory_mb.is_none_or(|mem_mb| MEM_MB.contains(&mem_mb)) {
            return Err(format!(
                "memoryMB must be between {} and {}",
                MEM_MB.start(),
                MEM_MB.end()
            ));
        }
        Ok(BuildRequest { name, tags, cpu: self.cpu_count, mem_mb: self.memory_mb })
    }
}

/// A build that was opened.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BuildResponse {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    public: bool,
    names: [String; 1],
    aliases: [String; 1],
    tags: Vec<String>,
}

pub(crate) async fn open(call: Call) -> Outcome {
    let asked: NewBuild = body::body(call.body).await?;
    let asked = asked.asked().map_err(bad_request)?;
    let name: TemplateName = asked.name.clone();
    let opened = call.services.live.ask(OpenBuild { who: call.who, asked }).await;
    let opened = opened.map_err(answer::refused)?;
    let opened = BuildResponse {
        template_id: opened.template.to_string(),
        build_id: opened.build.to_string(),
        public: false,
        names: [name.to_string()],
        aliases: [name.to_string()],
        tags: opened.tags,
    };
    Ok(answer::json_of(202, &opened))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_build_is_named_within_bounds() {
        let asked = |body: Value| {
            serde_json::from_value::<NewBuild>(body).map_err(|why| why.to_string())?.asked()
        };
        let good =
            asked(json!({"name": "web:v1", "tags": ["Stable"], "cpuCount": 2, "memoryMB": 1024}))
                .unwrap();
        assert_eq!(
            (good.name.as_str(), good.tags),
            ("web", vec!["stable".to_owned(), "v1".to_owned()])
        );
        assert!(asked(json!({"alias": "web", "teamID": "x", "minFreeDiskMb": 0})).is_ok());
        for bad in [
            json!({}),
            json!({"name": "We b"}),
            json!({"name": "a/b"}),
            json!({"name": "a", "tags": vec!["x"; MAX_TAGS]}),
            json!({"name": "a", "tags": ["x y"]}),
            json!({"name": "a", "cpuCount": 0}),
            json!({"name": "a", "memoryMB": 1}),
            json!({"name": "a", "surprise": 1}),
        ] {
            assert!(asked(bad.clone()).is_err(), "{bad}");
        }
    }
}
