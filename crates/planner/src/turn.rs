//! One prompt, from its row to its end: read back, sent, followed, and ended where it does not move.

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::plan::OPENCODE_PORT;
use cofferdam_flows::Prompts;
use cofferdam_opencode::{
    Address, Answer, Bounds, Client, Connection, Detector, Dial, DialFuture, Error, Event,
    EventStream, Ids, Patience, Prompt, ReadbackAction, TurnError, Verdict,
};
use cofferdam_sandbox::Agent;

/// The daemon's name for us.
pub(super) const USER: &str = "cofferdam";
/// Between two looks at a turn that says nothing.
const LOOK: Duration = Duration::from_millis(500);
/// Looks at children: every fourth.
const CHILDREN_EVERY: u32 = 4;
/// Times that a turn is attached to again before its daemon counts as broken.
const MAX_ATTACHED: u32 = 50;

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TurnEnd {
    Answered(Answer),
    Failed(TurnError),
    Stalled(String),
}

/// The daemon's port of a sandbox, through its agent.
#[derive(Debug)]
struct Loopback(Agent);

impl Dial for Loopback {
    fn dial(&self) -> DialFuture<'_> {
        Box::pin(async {
            let stream = self.0.dial(OPENCODE_PORT).await.map_err(io::Error::other)?;
            let connection: Box<dyn Connection> = Box::new(stream);
            Ok(connection)
        })
    }
}

/// A client of the daemon in a sandbox.
pub(super) fn client_of(agent: &Agent, password: &str, turn_ms: u64) -> Result<Client, Error> {
    let dial = std::sync::Arc::new(Loopback(agent.clone()));
    let bounds = Bounds { turn: Duration::from_millis(turn_ms), ..Bounds::default() };
    Client::new(Address::Through(dial), USER, password, bounds)
}

type AnswerFuture<'a> = Pin<&'a mut (dyn Future<Output = Result<Answer, Error>> + Send)>;

/// Drives a prompt to its end. Nothing is sent before the daemon said what it knows of it.
pub(super) async fn drive_turn(
    client: &Client,
    prompt: &Prompt<'_>,
    prompts: &Prompts,
    patience: Patience,
) -> Result<TurnEnd, Error> {
    let (clock, ids) = (Stopwatch::start(), prompt.ids);
    let mut detector = Detector::new(patience, clock.elapsed_ms());
    for _ in 0..MAX_ATTACHED {
        let known = client.read_back(ids).await?;
        match known {
            ReadbackAction::Finished(answer) => return Ok(TurnEnd::Answered(answer)),
            ReadbackAction::Failed(error) => return Ok(TurnEnd::Failed(error)),
            ReadbackAction::Running | ReadbackAction::NotAdmitted | ReadbackAction::Unknown => {}
        }
        let mut events = client.events(&ids.session).await?;
        let following = TurnWatch { client, ids, prompts, clock: &clock, detector: &mut detector };
        let turned = match known {
            // Once more, now that no event is missed.
            ReadbackAction::Running => match client.read_back(ids).await? {
                ReadbackAction::Running => following.follow(&mut events, None).await?,
                _ => None,
            },
            _ => {
                let mut sending = pin!(client.prompt(prompt));
                following.follow(&mut events, Some(sending.as_mut())).await?
            }
        };
        if let Some(turned) = turned {
            return Ok(turned);
        }
    }
    let message = format!("the turn was attached to {MAX_ATTACHED} times and never ended");
    Ok(TurnEnd::Failed(TurnError { name: "Endless".to_owned(), message }))
}

/// A turn that is watched.
struct TurnWatch<'a> {
    client: &'a Client,
    ids: &'a Ids,
    prompts: &'a Prompts,
    clock: &'a Stopwatch,
    detector: &'a mut Detector,
}

impl TurnWatch<'_> {
    /// `None`: what became of it has to be read back.
    async fn follow(
        self,
        events: &mut EventStream,
        mut sending: Option<AnswerFuture<'_>>,
    ) -> Result<Option<TurnEnd>, Error> {
        let (mut looks, mut is_held) = (0_u32, false);
        let mut look = Box::pin(clock::sleep(LOOK));
        loop {
            let answer = async {
                match sending.as_mut() {
                    Some(sending) => sending.as_mut().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answered = answer => return Ok(match answered {
                    Ok(answer) => Some(TurnEnd::Answered(answer)),
                    Err(Error::Turn(error)) => Some(TurnEnd::Failed(error)),
                    Err(Error::Children(ids)) => return Err(Error::Children(ids)),
                    Err(_) => None,
                }),
                () = &mut look => {
                    look = Box::pin(clock::sleep(LOOK));
                    looks = looks.wrapping_add(1);
                    let is_asking = self.prompts.is_asking();
                    match (is_asking, is_held) {
                        (true, false) => self.detector.hold(),
                        (false, true) => self.detector.release(self.clock.elapsed_ms()),
                        _ => {}
                    }
                    is_held = is_asking;
                    if looks.is_multiple_of(CHILDREN_EVERY) {
                        self.tend().await?;
                        // A busy daemon may say that it listens before it does: an end at that moment is heard by nobody.
                        if sending.is_none()
                            && self.client.read_back(self.ids).await? != ReadbackAction::Running
                        {
                            return Ok(None);
                        }
                    }
                    if let Verdict::Stalled(why) = self.detector.verdict(self.clock.elapsed_ms()) {
                        self.client.abort(&self.ids.session).await?;
                        return Ok(Some(TurnEnd::Stalled(why.to_string())));
                    }
                }
                event = events.next() => match event {
                    Ok(Event::Idle) if sending.is_none() => return Ok(None),
                    // Also one that is gone before the next look.
                    Ok(Event::Session(id)) => return Err(Error::Children(vec![id])),
                    Ok(event) => self.detector.event(&event, self.clock.elapsed_ms()),
                    Err(_) => return Ok(None),
                },
            }
        }
    }

    /// Nobody is there who would answer a question; and no session may have children, or run beside ours.
    async fn tend(&self) -> Result<(), Error> {
        let session = &self.ids.session;
        self.client.check_children(session).await?;
        self.client.check_alone(session).await?;
        for pending in self.client.permissions(session).await? {
            unless_gone(self.client.answer_permission(&pending, false).await)?;
        }
        for pending in self.client.questions(session).await? {
            unless_gone(self.client.reject_question(&pending).await)?;
        }
        Ok(())
    }
}

fn unless_gone(answered: Result<(), Error>) -> Result<(), Error> {
    match answered {
        Err(Error::NotFound { .. }) => Ok(()),
        other => other,
    }
}
