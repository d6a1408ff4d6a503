//! Where a command's frames go: to the host, which may be away for a while.
//!
//! ```text
//! Host --sleep--> Asleep --wake--> Unheard --follow--> Host
//! ```

use bytes::Bytes;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

use super::clock::{Stopwatch, sleep_ms};

/// Who takes the frames.
enum OutletState {
    Host(Sender<Bytes>),
    /// Nobody for now: they wait.
    Asleep,
    /// Nobody: they are dropped.
    Unheard,
}

/// The frames of one command.
pub struct Outlet(watch::Sender<OutletState>);

/// Nobody will take them.
#[derive(Debug)]
pub struct OutletError;

impl Outlet {
    pub fn to(frames: Sender<Bytes>) -> Self {
        Self(watch::Sender::new(OutletState::Host(frames)))
    }

    /// Who takes them now; waits while the agent sleeps. `None`: nobody.
    async fn taker(&self) -> Option<Sender<Bytes>> {
        let mut places = self.0.subscribe();
        loop {
            match &*places.borrow_and_update() {
                OutletState::Host(frames) => return Some(frames.clone()),
                OutletState::Unheard => return None,
                OutletState::Asleep => {}
            }
            // Its sender is ours.
            let _ = places.changed().await;
        }
    }

    /// Sends a frame, or drops it where nobody follows.
    pub async fn send(&self, frame: Bytes) -> Result<(), OutletError> {
        while let Some(frames) = self.taker().await {
            match frames.send(frame.clone()).await {
                Ok(()) => return Ok(()),
                Err(_) if self.is(&frames) => return Err(OutletError),
                // The agent fell asleep meanwhile.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn is(&self, frames: &Sender<Bytes>) -> bool {
        matches!(&*self.0.borrow(), OutletState::Host(now) if now.same_channel(frames))
    }

    /// Once the host has hung up.
    pub async fn closed(&self) {
        let mut places = self.0.subscribe();
        loop {
            let now = match &*places.borrow_and_update() {
                OutletState::Host(frames) => Some(frames.clone()),
                OutletState::Asleep | OutletState::Unheard => None,
            };
            let Some(frames) = now else {
                let _ = places.changed().await;
                continue;
            };
            tokio::select! {
                () = frames.closed() => if self.is(&frames) { return },
                _ = places.changed() => {}
            }
        }
    }

    /// After so many milliseconds in which the agent did not sleep.
    pub async fn awake_for(&self, ms: u64) {
        let (mut places, mut left) = (self.0.subscribe(), ms);
        loop {
            if matches!(&*places.borrow_and_update(), OutletState::Asleep) {
                let _ = places.changed().await;
                continue;
            }
            let clock = Stopwatch::start();
            tokio::select! {
                () = sleep_ms(left) => return,
                _ = places.changed() => left = left.saturating_sub(clock.elapsed_ms()),
            }
        }
    }

    pub fn sleep(&self) {
        self.0.send_replace(OutletState::Asleep);
    }

    /// Nobody follows it until somebody says so.
    pub fn wake(&self) {
        self.0.send_replace(OutletState::Unheard);
    }

    /// From now on they go there.
    pub fn lead(&self, frames: Sender<Bytes>) {
        self.0.send_replace(OutletState::Host(frames));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agent::clock::within_ms;

    #[tokio::test]
    async fn frames_wait_while_the_agent_sleeps_and_are_dropped_where_nobody_follows() {
        let (frames, mut body) = tokio::sync::mpsc::channel(1);
        let outlet = Arc::new(Outlet::to(frames));
        outlet.send(Bytes::from_static(b"1")).await.unwrap();
        let waiting = {
            let outlet = Arc::clone(&outlet);
            tokio::spawn(async move { outlet.send(Bytes::from_static(b"2")).await })
        };
        // It is in the middle of a send that has no room: that frame arrives.
        tokio::task::yield_now().await;
        outlet.sleep();
        assert_eq!(body.recv().await.unwrap(), "1");
        waiting.await.unwrap().unwrap();
        assert_eq!(body.recv().await.unwrap(), "2");
        assert!(body.recv().await.is_none(), "the answer ends");
        let third = {
            let outlet = Arc::clone(&outlet);
            tokio::spawn(async move { outlet.send(Bytes::from_static(b"3")).await })
        };
        assert!(within_ms(20, outlet.closed()).await.is_none());
        assert!(!third.is_finished());
        outlet.wake();
        third.await.unwrap().unwrap();
        assert!(within_ms(20, outlet.closed()).await.is_none());
        let (frames, mut body) = tokio::sync::mpsc::channel(1);
        outlet.lead(frames);
        outlet.send(Bytes::from_static(b"4")).await.unwrap();
        assert_eq!(body.recv().await.unwrap(), "4");
        drop(body);
        outlet.closed().await;
        assert!(outlet.send(Bytes::from_static(b"5")).await.is_err());
    }

    #[tokio::test]
    async fn time_in_which_the_agent_sleeps_does_not_count() {
        let (frames, _body) = tokio::sync::mpsc::channel(1);
        let outlet = Arc::new(Outlet::to(frames));
        let waiting = {
            let outlet = Arc::clone(&outlet);
            tokio::spawn(async move { outlet.awake_for(60).await })
        };
        tokio::task::yield_now().await;
        outlet.sleep();
        sleep_ms(120).await;
        assert!(!waiting.is_finished());
        outlet.wake();
        assert!(within_ms(5_000, waiting).await.is_some());
    }
}
