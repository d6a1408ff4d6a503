//! Draws what the view says: the only part of progress that acts.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::env;
use cofferdam_contracts::step::StepRow;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::output::{self, Mark};
use super::fold::{group_of, groups};
use super::mode::{Mode, ModeFacts};
use super::phase_log::PhaseLog;
use super::task_line::fitted;
use super::{LastLines, ProgressView};

/// Draws a second: more is not seen, and costs.
pub(super) const HZ: u8 = 10;
/// Lines of the terminal that stay free of ours: what was there before, a message, the cursor.
const FREE_LINES: usize = 3;
/// Of a terminal that does not say how large it is.
const USUAL: Size = Size { columns: 80, lines: 24 };

#[derive(Debug, Clone, Copy)]
struct Size {
    columns: usize,
    lines: usize,
}

/// A task's attempt that ended, for the line that stays.
#[derive(Debug)]
pub(crate) struct EndLine {
    /// The attempt's key; of a task without an attempt its step.
    pub key: String,
    pub mark: Mark,
    pub text: String,
}

/// Progress on stderr. Dropped, it leaves a terminal without live lines, however its command ends.
#[derive(Debug)]
pub(crate) struct Screen {
    mode: Mode,
    began: Stopwatch,
    view: ProgressView,
    log: PhaseLog,
    output: LastLines,
    steps: Vec<StepRow>,
    shown: BTreeSet<String>,
    /// When the lines that are there were drawn.
    drawn_ms: Option<u64>,
    /// While lines are drawn.
    bar: Option<ProgressBar>,
}

impl Screen {
    /// Decides by the environment how it shows a run.
    pub(crate) fn new(is_quiet: bool, is_refused: bool) -> Self {
        Self {
            mode: mode_here(is_quiet, is_refused),
            began: Stopwatch::start(),
            view: ProgressView::default(),
            log: PhaseLog::default(),
            output: LastLines::default(),
            steps: Vec::new(),
            shown: BTreeSet::new(),
            drawn_ms: None,
            bar: None,
        }
    }

    /// Whether anything is shown.
    pub(crate) fn is_silent(&self) -> bool {
        self.mode == Mode::Silent
    }

    /// Whether it shows what tasks write.
    pub(crate) fn is_live(&self) -> bool {
        self.mode == Mode::Live
    }

    /// Whether the end of this attempt was shown, or counted in its group's line.
    pub(crate) fn has_shown(&self, attempt: &str) -> bool {
        self.shown.contains(attempt)
    }

    /// Shows steps as they are now, and the ends that were not shown before.
    pub(crate) fn look(&mut self, steps: Vec<StepRow>, ends: Vec<EndLine>) {
        let grouped = match self.mode {
            Mode::Silent => return,
            Mode::Lines => BTreeSet::new(),
            // The line of a group counts those that are fine.
            Mode::Live => grouped(&steps),
        };
        for end in ends {
            let is_counted =
                !matches!(end.mark, Mark::Failed | Mark::Canceled) && grouped.contains(&end.key);
            if self.shown.insert(end.key.clone()) && !is_counted {
                self.above(|| output::mark(end.mark, &end.text));
            }
        }
        if self.mode == Mode::Lines {
            let lines = self.log.apply(&steps, self.began.elapsed_ms());
            lines.iter().for_each(|line| output::note(line));
        }
        self.steps = steps;
        self.draw();
    }

    /// A task wrote something.
    pub(crate) fn wrote(&mut self, task: &str, stream: &str, text: &str) {
        self.output.push(task, stream, text);
    }

    /// Draws the live lines, at most ten times a second: what comes too soon, the next look draws.
    pub(crate) fn draw_if_due(&mut self) {
        let now = self.began.elapsed_ms();
        if self.drawn_ms.is_none_or(|drawn| now.saturating_sub(drawn) >= 1_000 / u64::from(HZ)) {
            self.draw();
        }
    }

    fn draw(&mut self) {
        if self.mode != Mode::Live {
            return;
        }
        self.drawn_ms = Some(self.began.elapsed_ms());
        let size = size();
        let height = size.lines.saturating_sub(FREE_LINES).max(1);
        let lines = self.view.apply(&self.steps, &self.output, self.began.elapsed_ms());
        // A line of the whole width would wrap on some terminals.
        let texts = fitted(&lines, size.columns.saturating_sub(1), height);
        if texts.is_empty() {
            return self.clear();
        }
        self.bar.get_or_insert_with(bar).set_message(texts.join("\n"));
    }

    /// Takes the live lines away: something else is to be shown, and the next look draws them again.
    pub(crate) fn clear(&mut self) {
        self.drawn_ms = None;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// A line that stays above the live ones.
    pub(crate) fn note(&self, text: &str) {
        self.above(|| output::note(text));
    }

    fn above(&self, show: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(show),
            None => show(),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the environment decides.
pub(super) fn mode_here(is_quiet: bool, is_refused: bool) -> Mode {
    let (term, ci) = (env::var("TERM"), env::var("CI"));
    let is_terminal = io::stderr().is_terminal();
    let (term, ci) = (term.as_deref(), ci.as_deref());
    Mode::of(ModeFacts { is_quiet, is_refused, is_terminal, term, ci })
}

/// A line, or several, of the terminal.
pub(super) fn bar() -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(HZ);
    let bar = ProgressBar::with_draw_target(None, target);
    // Its text is all that it has; the template is a constant that parses.
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        bar.set_style(style);
    }
    bar
}

/// What the end of a step is known by: the attempt's key, or the step where it has none.
pub(crate) fn end_key(step: &StepRow) -> &str {
    step.task_key.as_ref().map_or(step.step_id.as_str(), |key| key.as_str())
}

/// The attempts whose tasks share a line with others.
fn grouped(steps: &[StepRow]) -> BTreeSet<String> {
    let names: BTreeSet<&str> =
        steps.iter().filter(|step| step.is_task()).map(StepRow::task_name).collect();
    let groups = groups(names.into_iter());
    let is_in = |step: &&StepRow| {
        group_of(step.task_name()).is_some_and(|group| groups.contains_key(group))
    };
    steps.iter().filter(is_in).map(|step| end_key(step).to_owned()).collect()
}

/// Of the terminal now.
pub(super) fn columns() -> usize {
    size().columns
}

fn size() -> Size {
    let known = rustix::termios::tcgetwinsize(io::stderr()).ok();
    let known = known.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    known.map_or(USUAL, |size| Size { columns: size.ws_col.into(), lines: size.ws_row.into() })
}
