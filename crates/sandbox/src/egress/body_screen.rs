//! A body that is looked through while it passes: what must not pass ends it.
//!
//! A chunk goes on at once, but for an end that may begin what is looked for; that waits for the next chunk.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use memchr::memmem;
use zeroize::Zeroizing;

/// Why a body ended early.
pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What must not pass. None is empty.
#[derive(Clone, Default)]
pub(crate) struct Needles(Vec<Arc<Zeroizing<Vec<u8>>>>);

impl std::fmt::Debug for Needles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Needles")
    }
}

impl Needles {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut all = Self::default();
        all.add(Arc::new(Zeroizing::new(bytes.to_vec())));
        all
    }

    pub(crate) fn add(&mut self, bytes: Arc<Zeroizing<Vec<u8>>>) {
        if !bytes.is_empty() {
            self.0.push(bytes);
        }
    }

    pub(crate) fn extend(&mut self, others: &Self) {
        self.0.extend(others.0.iter().cloned());
    }

    /// Whether one of them is in there.
    pub(crate) fn are_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|needle| memmem::find(bytes, needle).is_some())
    }

    /// Bytes at the end that may begin one of them.
    fn begun(&self, bytes: &[u8]) -> usize {
        self.0.iter().map(|needle| begun(needle, bytes)).max().unwrap_or(0)
    }
}

/// The longest end of the bytes that a needle begins with, the whole needle excepted.
fn begun(needle: &[u8], bytes: &[u8]) -> usize {
    let Some((first, _)) = needle.split_first() else { return 0 };
    let from = bytes.len().saturating_sub(needle.len() - 1);
    let end = bytes.get(from..).unwrap_or_default();
    let mut starts = memchr::memchr_iter(*first, end);
    let found = starts.find(|at| end.get(*at..).is_some_and(|tail| needle.starts_with(tail)));
    found.map_or(0, |at| end.len() - at)
}

/// Why a body was cut off.
#[derive(Debug, thiserror::Error)]
#[error("it carries what must not pass")]
struct NeedleLeak;

/// A body that ends with an error where a needle would pass.
pub(crate) struct ScreenBody<B, F> {
    body: B,
    needles: Needles,
    held: Bytes,
    /// Called once, where something was found.
    found: F,
    is_over: bool,
}

impl<B, F> ScreenBody<B, F> {
    pub(crate) const fn new(body: B, needles: Needles, found: F) -> Self {
        Self { body, needles, held: Bytes::new(), found, is_over: false }
    }
}

impl<B, F> ScreenBody<B, F>
where
    F: FnMut(),
{
    /// What may go on of a chunk; `Err`: something was found.
    fn push(&mut self, chunk: Bytes) -> Result<Bytes, NeedleLeak> {
        let mut whole = match self.held.is_empty() {
            true => chunk,
            false => [&self.held[..], &chunk].concat().into(),
        };
        if self.needles.are_in(&whole) {
            self.is_over = true;
            (self.found)();
            return Err(NeedleLeak);
        }
        self.held = whole.split_off(whole.len() - self.needles.begun(&whole));
        Ok(whole)
    }
}

impl<B, F> Body for ScreenBody<B, F>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Fault>,
    F: FnMut() + Unpin,
{
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let this = &mut *self;
        loop {
            if this.is_over {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    // Trailers are nobody's: the request for them was not passed on.
                    let Ok(chunk) = frame.into_data() else { continue };
                    match this.push(chunk) {
                        Ok(passed) if passed.is_empty() => {}
                        Ok(passed) => return Poll::Ready(Some(Ok(Frame::data(passed)))),
                        Err(found) => return Poll::Ready(Some(Err(found.into()))),
                    }
                }
                Some(Err(error)) => {
                    this.is_over = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    this.is_over = true;
                    let rest = std::mem::take(&mut this.held);
                    let rest = (!rest.is_empty()).then(|| Ok(Frame::data(rest)));
                    return Poll::Ready(rest);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || (self.held.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let held = u64::try_from(self.held.len()).unwrap_or(u64::MAX);
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(held));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn screened(chunks: &[&str]) -> (String, bool) {
        let found = Cell::new(false);
        let needles = Needles::of(b"{{secret:");
        let mut screen = ScreenBody::new((), needles, || found.set(true));
        let mut passed = Vec::new();
        for chunk in chunks {
            match screen.push(Bytes::copy_from_slice(chunk.as_bytes())) {
                Ok(part) => passed.extend(part),
                Err(NeedleLeak) => break,
            }
        }
        passed.extend(std::mem::take(&mut screen.held));
        let passed = String::from_utf8(passed).unwrap();
        (passed, found.get())
    }

    #[test]
    fn what_must_not_pass_is_found_across_chunks_and_the_rest_passes_whole() {
        assert_eq!(screened(&["abc", "d{{e", "{{secre", "t"]), ("abcd{{e{{secret".into(), false));
        assert_eq!(screened(&["a{", "{secret", ":x}}"]), ("a{{secret".into(), true));
        assert!(screened(&["a", "b {{secret:x}}"]).1);
        let one_by_one: Vec<String> = "x{{{secret:y".chars().map(String::from).collect();
        let one_by_one: Vec<&str> = one_by_one.iter().map(String::as_str).collect();
        assert!(screened(&one_by_one).1);
        assert!(!screened(&["{{", "secret", ";"]).1);
    }

    #[test]
    fn only_an_end_that_may_begin_something_waits() {
        let needles = Needles::of(b"aab");
        for (bytes, waits) in
            [("xx", 0), ("xa", 1), ("xaa", 2), ("aaa", 2), ("aabx", 0), ("", 0), ("ab", 0)]
        {
            assert_eq!(needles.begun(bytes.as_bytes()), waits, "{bytes}");
        }
        assert_eq!(Needles::of(b"").begun(b"x"), 0);
    }
}
