//! Which fault strikes when: from the seed alone.

use std::collections::VecDeque;
use std::time::Duration;

use crate::support::Dice;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// kill -9 of one worker, which is started again.
    KillWorker,
    /// kill -9 of the server in front.
    KillShim,
    /// SIGSTOP and SIGCONT of one worker.
    StopWorker,
    /// Everybody's connections carry nothing and are not closed, those to come included.
    BlackHole,
    /// The same for one worker alone.
    BlackHoleWorker,
    /// Every connection is closed, and those that are made are closed while they are made.
    Cut,
    /// Every connection is gone at the database's end, and its client hears nothing.
    HalfOpen,
    /// The database is killed, or shut down at once, and comes back.
    RestartDatabase,
    /// The database ends every session.
    TerminateBackends,
    /// The leader's host is lost: its process is gone and its connections stay open at the database.
    LoseLeader,
}

impl Kind {
    pub const ALL: [Self; 10] = [
        Self::KillWorker,
        Self::KillShim,
        Self::StopWorker,
        Self::BlackHole,
        Self::BlackHoleWorker,
        Self::Cut,
        Self::HalfOpen,
        Self::RestartDatabase,
        Self::TerminateBackends,
        Self::LoseLeader,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::KillWorker => "kill_worker",
            Self::KillShim => "kill_shim",
            Self::StopWorker => "stop_worker",
            Self::BlackHole => "black_hole",
            Self::BlackHoleWorker => "black_hole_worker",
            Self::Cut => "cut",
            Self::HalfOpen => "half_open",
            Self::RestartDatabase => "restart_database",
            Self::TerminateBackends => "terminate_backends",
            Self::LoseLeader => "lose_leader",
        }
    }

    /// How long such a fault may last, in milliseconds: shorter and longer than the silence after which a worker is
    /// dead.
    fn lasts_ms(self) -> (u64, u64) {
        match self {
            Self::StopWorker | Self::BlackHole | Self::BlackHoleWorker => (300, 12_000),
            Self::RestartDatabase => (0, 8_000),
            Self::Cut => (50, 750),
            _ => (0, 1),
        }
    }
}

/// A fault to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Calm before it.
    pub pause: Duration,
    pub lasts: Duration,
    /// Chooses the worker, the signal, the byte.
    pub chance: u64,
}

/// Rounds of all kinds, each in an order of its own.
pub struct Schedule<'a> {
    dice: &'a mut Dice,
    round: VecDeque<Kind>,
    began: bool,
}

impl<'a> Schedule<'a> {
    pub fn new(dice: &'a mut Dice) -> Self {
        Self { dice, round: VecDeque::new(), began: false }
    }

    /// The next fault; none where the time is up and no kind is missing.
    pub fn next(&mut self, is_over: bool) -> Option<Fault> {
        if self.round.is_empty() {
            if self.began && is_over {
                return None;
            }
            self.round = self.shuffled();
        }
        if self.began && is_over && self.round.len() == Kind::ALL.len() {
            return None;
        }
        self.began = true;
        let kind = self.round.pop_front()?;
        let (least, most) = kind.lasts_ms();
        Some(Fault {
            kind,
            pause: Duration::from_millis(self.dice.below(1_500)),
            lasts: Duration::from_millis(least + self.dice.below(most - least)),
            chance: self.dice.below(1 << 32),
        })
    }

    fn shuffled(&mut self) -> VecDeque<Kind> {
        let mut left = Kind::ALL.to_vec();
        let mut round = VecDeque::new();
        while let Some(most) = u64::try_from(left.len()).ok().filter(|n| *n > 0) {
            round.push_back(left.remove(usize::try_from(self.dice.below(most)).unwrap()));
        }
        round
    }
}

#[test]
fn a_seed_is_a_schedule_and_every_round_has_every_fault() {
    let rounds = |seed| {
        let mut dice = Dice::of(seed);
        let mut schedule = Schedule::new(&mut dice);
        (0..Kind::ALL.len() * 3).map_while(|_| schedule.next(false)).collect::<Vec<_>>()
    };
    assert_eq!(rounds(7), rounds(7));
    assert_ne!(rounds(7), rounds(8));
    for round in rounds(7).chunks(Kind::ALL.len()) {
        let mut kinds: Vec<Kind> = round.iter().map(|fault| fault.kind).collect();
        kinds.sort_unstable();
        let mut all = Kind::ALL.to_vec();
        all.sort_unstable();
        assert_eq!(kinds, all);
    }
    let mut dice = Dice::of(7);
    let mut schedule = Schedule::new(&mut dice);
    let whole = std::iter::from_fn(|| schedule.next(true)).count();
    assert_eq!(whole, Kind::ALL.len(), "one round, however late it is");
}
