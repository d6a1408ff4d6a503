//! The question at a gate, on a terminal of the test's own: it goes with its gate, and hears Ctrl-C.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, Server, text};
use serde_json::json;
use support::pty::{CTRL_C, Interrupt, Terminal};

const LIMIT: Duration = Duration::from_secs(60);
const QUESTION: &str = "execute this plan? [yes/no]";
const GATED: &str = "examples/hello-gated.yaml";

fn asked(home: &Home, interrupt: Interrupt) -> Terminal {
    let mut terminal = Terminal::start(&home.command(&["run", GATED]), interrupt);
    terminal.wait_for(QUESTION);
    terminal
}

/// The only run of a server.
async fn only_run(up: &Server) -> String {
    let (status, runs) = up.get("/api/runs").await;
    assert_eq!((status, runs.as_array().map(Vec::len)), (200, Some(1)), "{runs}");
    text(&runs[0], "runId")
}

async fn answered(up: &Server, run: &str, choice: &str) {
    let reply = json!({"payload": {"choice": choice}, "dedupeKey": "elsewhere"});
    let path = format!("/api/runs/{run}/gates/approve-plan/reply");
    let (status, answer) = up.post(&path, &reply).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_a_question_that_was_answered_elsewhere_goes_and_the_exit_is_the_runs() {
    for (choice, code) in [("yes", 0), ("no", 1)] {
        let home = Home::new();
        let up = home.up();
        let mut terminal = asked(&home, Interrupt::Usual);
        // Half an answer is nobody's.
        terminal.types("n");
        answered(&up, &only_run(&up).await, choice).await;
        let (status, shown) = terminal.ended(LIMIT);
        assert_eq!(status.code(), Some(code), "{shown}");
        let words = format!("approve-plan: answered elsewhere: {choice}");
        assert_eq!(
            (shown.matches(&words).count(), shown.matches(QUESTION).count()),
            (1, 1),
            "{shown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_ctrl_c_at_the_question_leaves_at_once_and_says_how_to_go_on() {
    for interrupt in [Interrupt::Usual, Interrupt::Ignored] {
        let home = Home::new();
        let up = home.up();
        let mut terminal = asked(&home, interrupt);
        terminal.types(CTRL_C);
        let (status, shown) = terminal.ended(LIMIT);
        assert_eq!(status.code(), Some(130), "{interrupt:?}: {shown}");
        let run = only_run(&up).await;
        for line in [
            format!("cofferdam gate reply {run} approve-plan --choice yes|no"),
            format!("cofferdam logs -f {run}"),
        ] {
            assert!(shown.contains(&line), "{line}: {shown}");
        }
        let (_, header) = up.get(&format!("/api/runs/{run}")).await;
        assert_eq!(header["status"], "waiting_input", "it was left alone: {header}");
        answered(&up, &run, "yes").await;
        assert_eq!(up.wait_terminal(&run).await["status"], "succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_a_run_that_ends_elsewhere_takes_its_question_along() {
    let home = Home::new();
    let up = home.up();
    let terminal = asked(&home, Interrupt::Usual);
    let run = only_run(&up).await;
    let (_, header) = up.get(&format!("/api/runs/{run}")).await;
    let path = format!("/api/ops/wf/{}/cancel", text(&header, "workflowID"));
    let (status, answer) = up.post(&path, &json!({"actor": "test", "reason": "elsewhere"})).await;
    assert_eq!(status, 202, "{answer}");
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(1), "{shown}");
    assert!(shown.contains("no answer is awaited any more"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_an_unclear_answer_is_asked_again_and_the_end_of_input_leaves_it_to_others() {
    let home = Home::new();
    let up = home.up();
    let mut terminal = asked(&home, Interrupt::Usual);
    terminal.types("perhaps\n");
    terminal.wait_for("answer yes or no");
    // Ctrl-D.
    terminal.types("\u{4}");
    terminal.wait_for("waiting for an answer: cofferdam gate reply");
    answered(&up, &only_run(&up).await, "yes").await;
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(0), "{shown}");
    let mut terminal = asked(&home, Interrupt::Usual);
    terminal.types("yes\n");
    let (status, shown) = terminal.ended(LIMIT);
    assert_eq!(status.code(), Some(0), "{shown}");
}
