//! The texts of a task that are rendered, each with its field.

use super::{Cmd, TaskSpec};
use crate::cache::BuildCache;

/// A text of a task.
pub(crate) struct TaskText<'a> {
    /// Its field within the task.
    pub(crate) field: String,
    pub(crate) text: &'a str,
    /// Whether it may wait for outputs of other tasks. What people consent to by name, such as an image, may not.
    pub(crate) may_be_late: bool,
}

/// The texts so far.
struct TextList<'a>(Vec<TaskText<'a>>);

impl<'a> TextList<'a> {
    fn late(&mut self, field: String, text: &'a str) {
        self.0.push(TaskText { field, text, may_be_late: true });
    }

    fn early(&mut self, field: &str, text: Option<&'a str>) {
        let text = text.map(|text| TaskText { field: field.to_owned(), text, may_be_late: false });
        self.0.extend(text);
    }

    fn command(&mut self, field: &str, run: &'a Cmd) {
        match run {
            Cmd::Shell(text) => self.late(field.to_owned(), text),
            Cmd::Argv(argv) => {
                for (i, arg) in argv.iter().enumerate() {
                    self.late(format!("{field}[{i}]"), arg);
                }
            }
        }
    }
}

impl TaskSpec {
    /// Every text, except `each` and `when`, whose values are their own.
    pub(crate) fn texts(&self) -> Vec<TaskText<'_>> {
        let mut texts = TextList(Vec::new());
        texts.early("name", Some(&self.name));
        texts.early("image", self.image.as_deref());
        texts.early("user", self.user.as_deref());
        for (i, file) in self.files.iter().enumerate() {
            texts.early(&format!("files[{i}].from"), file.from.as_deref());
            texts.early(&format!("files[{i}].to"), Some(&file.to));
            if let Some(text) = &file.text {
                texts.late(format!("files[{i}].text"), text);
            }
        }
        if let Some(repo) = &self.repo {
            texts.early("repo.path", repo.path.as_deref());
            texts.early("repo.url", repo.url.as_deref());
            texts.early("repo.commit", repo.commit.as_deref());
            texts.early("repo.ref", repo.reference.as_deref());
        }
        if let Some(build) = &self.build {
            texts.command("build.run", &build.run);
            for (name, text) in &build.env {
                texts.late(format!("build.env.{name}"), text);
            }
            texts.early("build.timeout", build.timeout.as_deref());
            texts.early("build.user", build.user.as_deref());
            if let Some(BuildCache::Lock(path)) = &build.cache {
                texts.early("build.cache", Some(path));
            }
        }
        if let Some(exec) = &self.exec {
            texts.command("exec.run", &exec.run);
            for (name, text) in &exec.env {
                texts.late(format!("exec.env.{name}"), text);
            }
            texts.early("exec.timeout", exec.timeout.as_deref());
            texts.early("exec.workdir", exec.workdir.as_deref());
            texts.early("exec.stdin", exec.stdin.as_deref());
        }
        if let Some(text) = &self.value {
            texts.late("value".to_owned(), text);
        }
        if let Some((field, cache)) = self.said_cache() {
            let all = cache.repo.iter().chain(&cache.paths).chain(&cache.dirs);
            all.for_each(|text| texts.early(field, Some(text)));
        }
        for (i, glob) in self.artifacts.iter().enumerate() {
            texts.early(&format!("artifacts[{i}]"), Some(&glob.path));
        }
        for (i, report) in self.reports.iter().enumerate() {
            texts.early(&format!("reports[{i}]"), Some(&report.path));
        }
        texts.0
    }
}
