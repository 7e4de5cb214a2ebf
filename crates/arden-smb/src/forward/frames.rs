//! Frames over a stream: a queue that anybody may add to and one task writes, users in turn, and a reader.

use std::{
    ops::{Deref, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arden_lock::{Mutex, ranks};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Notify,
    time::timeout,
};

use crate::{
    base::buffers::is_too_large,
    forward::{
        PING_EVERY, UNSENT_BYTES_MAX, WRITE_WAIT,
        turns::{Lane, Turns},
    },
    model::wire::{FRAME_BYTES_MAX, LENGTH_BYTES, Version, frame_bytes, piece_bytes, piece_header},
};

/// Frames up to so many bytes together are written at once.
const BATCH_BYTES_MAX: usize = 64 << 10;
/// A reader has room for so much at least.
const READ_BYTES_MIN: usize = 64 << 10;
/// Frames with so much behind what was read of them end a buffer.
pub const LONG_BYTES: usize = 64 << 10;
/// A frame that is longer than this is written in pieces of so many bytes: others' short frames go between them.
const WHOLE_BYTES_MAX: usize = 512 << 10;
const PIECE_BYTES: usize = 256 << 10;
/// A buffer grows to so much times what has come at most.
const GROWTH: usize = 16;
/// What a reader keeps of what a long frame needed.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Frames that wait to be written: those of a user in order, and users in turn.
#[derive(Clone)]
pub struct Outbox(Arc<Backlog>);

#[derive(Default)]
struct Backlog {
    turns: Mutex<Turns, ranks::Turns>,
    /// Of `turns`, for who looks without the lock.
    load: AtomicUsize,
    /// There is something to write, or there will be nothing any more.
    more: Notify,
    less: Notify,
    /// Nothing is written any more.
    closed: AtomicBool,
    /// What the last long frame was in, to be used again.
    spare: Mutex<Vec<u8>, ranks::LargeBuffer>,
}

impl Backlog {
    fn keep(&self, buffer: Vec<u8>) {
        if (LONG_BYTES..=KEPT_BYTES_MAX).contains(&buffer.capacity()) {
            *self.spare.lock() = buffer;
        }
    }

    fn with_turns<R>(&self, change: impl FnOnce(&mut Turns) -> R) -> R {
        let mut turns = self.turns.lock();
        let result = change(&mut turns);
        self.load.store(turns.load(), Ordering::Relaxed);
        result
    }
}

/// The other end of an [`Outbox`].
pub struct Unwritten(Arc<Backlog>);

pub fn outbox() -> (Outbox, Unwritten) {
    let backlog = Arc::<Backlog>::default();
    (Outbox(backlog.clone()), Unwritten(backlog))
}

/// Room for an answer that is still to come.
pub struct Reserved {
    out: Outbox,
    lane: Lane,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.out.0.with_turns(|turns| turns.release(self.lane, self.bytes));
            self.out.0.less.notify_one();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 2 {
            // Only the writer is left.
            self.0.more.notify_one();
        }
    }
}

impl Outbox {
    /// One frame or several. Nothing happens once the stream has ended.
    pub fn send(&self, lane: Lane, frame: Vec<u8>) {
        if self.0.closed.load(Ordering::Acquire) {
            return;
        }
        if self.0.with_turns(|turns| turns.push(lane, frame)) {
            self.0.more.notify_one();
        }
    }

    /// Room for an answer of so many bytes in this lane. None: it has to wait until there is less, which [`Outbox::less`] tells of.
    pub fn reserve(&self, lane: Lane, bytes: usize) -> Option<Reserved> {
        // Whatever the others have, half of the rest is more than all that there is.
        let is_free = self.0.load.load(Ordering::Relaxed) < UNSENT_BYTES_MAX / 3;
        if bytes > 0 || !is_free {
            self.0.with_turns(|turns| turns.reserve(lane, bytes, UNSENT_BYTES_MAX)).then_some(())?;
        }
        Some(Reserved { out: self.clone(), lane, bytes })
    }

    /// Until something was written, or an answer is not to come.
    pub async fn less(&self) {
        self.0.less.notified().await;
    }

    /// A buffer that a long frame was in, or none.
    pub fn spare(&self) -> &Mutex<Vec<u8>, ranks::LargeBuffer> {
        &self.0.spare
    }

    /// The same, empty, for somebody to fill.
    pub fn take_spare(&self) -> Vec<u8> {
        let mut spare = std::mem::take(&mut *self.spare().lock());
        spare.clear();
        spare
    }

    /// A buffer that was taken and is not needed any more.
    pub fn give_spare(&self, buffer: Vec<u8>) {
        self.0.keep(buffer);
    }

    /// Until there is room for what a reader's next frame may answer. False: nothing is written any more.
    pub async fn has_room(&self) -> bool {
        loop {
            if self.0.closed.load(Ordering::Acquire) {
                return false;
            }
            let is_free = self.0.load.load(Ordering::Relaxed) <= UNSENT_BYTES_MAX;
            if is_free || self.0.turns.lock().unsent() <= UNSENT_BYTES_MAX {
                return true;
            }
            self.less().await;
        }
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.less.notify_one();
    }
}

impl Unwritten {
    /// Writes frames until the stream or the outbox ends. `idle` makes a frame where there was none for a while.
    pub async fn write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        version: Version,
        idle: impl Fn() -> Option<Vec<u8>>,
    ) {
        let (mut frames, mut batch) = (Vec::new(), Vec::new());
        loop {
            match timeout(PING_EVERY, self.next(&mut frames)).await {
                Ok(false) => return,
                Ok(true) => {}
                Err(_) => {
                    let Some(frame) = idle() else { continue };
                    frames.push((Lane::NODE, frame));
                }
            }
            for (lane, mut frame) in frames.drain(..) {
                if frame.len() <= BATCH_BYTES_MAX {
                    batch.extend_from_slice(&frame);
                    continue;
                }
                if !Self::put(stream, &batch).await {
                    return;
                }
                batch.clear();
                let is_written = match version >= Version::Four && frame.len() > WHOLE_BYTES_MAX {
                    true => self.put_long(stream, lane, &mut frame).await,
                    false => Self::put(stream, &frame).await,
                };
                if !is_written {
                    return;
                }
                self.0.keep(frame);
            }
            if !Self::put(stream, &batch).await {
                return;
            }
            batch.clear();
            self.0.less.notify_one();
            let is_last = self.0.turns.lock().unsent() == 0;
            if is_last && !matches!(timeout(WRITE_WAIT, stream.flush()).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// What is to be written at once, when there is something. False: there will be nothing any more.
    async fn next(&self, into: &mut Vec<(Lane, Vec<u8>)>) -> bool {
        loop {
            self.0.with_turns(|turns| turns.take(BATCH_BYTES_MAX, into));
            if !into.is_empty() {
                return true;
            }
            if Arc::strong_count(&self.0) == 1 {
                return false;
            }
            self.0.more.notified().await;
        }
    }

    /// Writes these frames. False: the stream takes no more.
    async fn put(stream: &mut (impl AsyncWrite + Unpin), frames: &[u8]) -> bool {
        frames.is_empty() || matches!(timeout(WRITE_WAIT, stream.write_all(frames)).await, Ok(Ok(())))
    }
}

impl Unwritten {
    /// One frame or several of a lane, the long ones in pieces. False: the stream takes no more.
    async fn put_long(&self, stream: &mut (impl AsyncWrite + Unpin), lane: Lane, frames: &mut [u8]) -> bool {
        let (mut unwritten, mut at) = (0, 0);
        while let Some(length) = frames[at..].first_chunk::<LENGTH_BYTES>() {
            let (start, len) = (at + LENGTH_BYTES, u32::from_le_bytes(*length) as usize);
            at = start + len;
            if len <= WHOLE_BYTES_MAX {
                continue;
            }
            if !Self::put(stream, &frames[unwritten..start - LENGTH_BYTES]).await
                || !self.put_pieces(stream, lane, &mut frames[start - LENGTH_BYTES..at]).await
            {
                return false;
            }
            unwritten = at;
        }
        Self::put(stream, &frames[unwritten..]).await
    }

    /// The header of each piece takes the place of what was written before it.
    async fn put_pieces(&self, stream: &mut (impl AsyncWrite + Unpin), lane: Lane, frame: &mut [u8]) -> bool {
        let (mut beside, mut batch, mut at) = (Vec::new(), Vec::new(), LENGTH_BYTES);
        while at < frame.len() {
            let end = frame.len().min(at + PIECE_BYTES);
            let header = piece_header(end - at, end == frame.len());
            frame[at - LENGTH_BYTES..at].copy_from_slice(&header);
            if !Self::put(stream, &frame[at - LENGTH_BYTES..end]).await {
                return false;
            }
            at = end;
            self.0.with_turns(|turns| turns.take_beside(lane, BATCH_BYTES_MAX, &mut beside));
            beside.drain(..).for_each(|(_, frame)| batch.extend_from_slice(&frame));
            if !Self::put(stream, &batch).await {
                return false;
            }
            batch.clear();
        }
        true
    }
}

/// What a frame had to its end: the rest of a buffer, or a copy.
#[derive(Debug, Default)]
pub struct Body {
    buffer: Vec<u8>,
    at: usize,
}

impl Body {
    /// To be used again.
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

impl Deref for Body {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[self.at..]
    }
}

/// Frames that come over a stream.
pub struct FrameReader<R> {
    stream: R,
    takes_pieces: bool,
    buffer: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
    /// The frame that was given last, without its length.
    last: Range<usize>,
    /// A frame that comes in pieces.
    pieces: Vec<u8>,
    /// What has not come of the piece that is coming, and whether it is the last one of its frame.
    missing: usize,
    is_last: bool,
    /// The frame that was given last is `pieces`.
    gave_pieces: bool,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(stream: R, version: Version) -> FrameReader<R> {
        FrameReader {
            stream,
            takes_pieces: version >= Version::Four,
            buffer: Vec::new(),
            at: 0,
            last: 0..0,
            pieces: Vec::new(),
            missing: 0,
            is_last: false,
            gave_pieces: false,
        }
    }

    /// The next frame, without its length. None: the stream has ended, says what is no frame, or nothing for so long.
    pub async fn next(&mut self, silence_max: Duration) -> Option<&[u8]> {
        let mut budget = usize::MAX;
        self.next_within(silence_max, &mut budget).await
    }

    /// The same, but an empty one when more than `budget` has come before all of it has. Takes what has come from `budget`.
    pub async fn next_within(&mut self, silence_max: Duration, budget: &mut usize) -> Option<&[u8]> {
        if std::mem::take(&mut self.gave_pieces) {
            self.pieces.clear();
            if self.pieces.capacity() > KEPT_BYTES_MAX {
                self.pieces = Vec::new();
            }
        }
        loop {
            if self.begin_piece()? {
                while self.missing > 0 {
                    if *budget == 0 {
                        return Some(&[]);
                    }
                    let soon = self.missing.min(READ_BYTES_MIN.max(self.pieces.len()));
                    self.pieces.reserve(soon);
                    let mut limited = (&mut self.stream).take(self.missing as u64);
                    match timeout(silence_max, limited.read_buf(&mut self.pieces)).await {
                        Ok(Ok(n)) if n > 0 => {
                            self.missing -= n;
                            *budget = budget.saturating_sub(n);
                        }
                        _ => return None,
                    }
                }
                if std::mem::take(&mut self.is_last) {
                    (self.gave_pieces, self.last) = (true, 0..0);
                    return Some(&self.pieces);
                }
                continue;
            }
            let frame = self.whole()?;
            if !frame.is_empty() {
                self.at = frame.end;
                self.last = frame.clone();
                return Some(&self.buffer[frame]);
            }
            if *budget == 0 {
                return Some(&[]);
            }
            let limit = self.make_room();
            let mut limited = (&mut self.stream).take(limit as u64);
            match timeout(silence_max, limited.read_buf(&mut self.buffer)).await {
                Ok(Ok(n)) if n > 0 => *budget = budget.saturating_sub(n),
                _ => return None,
            }
        }
    }

    /// Whether a piece is coming, of which the buffer has the beginning. None: it is no piece, or one too many.
    fn begin_piece(&mut self) -> Option<bool> {
        if self.missing > 0 {
            return Some(true);
        }
        let header = self.buffer[self.at..].first_chunk::<LENGTH_BYTES>().filter(|_| self.takes_pieces);
        let Some((bytes, is_last)) = header.map_or(Ok(None), |header| piece_bytes(*header)).ok()? else {
            return Some(false);
        };
        if self.pieces.len() + bytes > FRAME_BYTES_MAX {
            return None;
        }
        let start = self.at + LENGTH_BYTES;
        let here = (self.buffer.len() - start).min(bytes);
        self.pieces.extend_from_slice(&self.buffer[start..start + here]);
        (self.at, self.missing, self.is_last) = (start + here, bytes - here, is_last);
        Some(true)
    }

    /// What the frame that came last has from here on. Once. `spare` has a buffer to go on with, where this one is taken along.
    pub fn take(&mut self, from: usize, spare: &Outbox) -> Body {
        if std::mem::take(&mut self.gave_pieces) {
            let at = from.min(self.pieces.len());
            if is_too_large(self.pieces.capacity(), self.pieces.len() - at) {
                let buffer = self.pieces[at..].to_vec();
                self.pieces.clear();
                return Body { buffer, at: 0 };
            }
            return Body { buffer: std::mem::replace(&mut self.pieces, spare.take_spare()), at };
        }
        let Range { start, end } = std::mem::replace(&mut self.last, 0..0);
        let at = (start + from).min(end);
        let is_taken_along = end - at >= LONG_BYTES && end == self.buffer.len();
        if !is_taken_along || is_too_large(self.buffer.capacity(), end - at) {
            return Body { buffer: self.buffer[at..end].to_vec(), at: 0 };
        }
        self.at = 0;
        Body { buffer: std::mem::replace(&mut self.buffer, spare.take_spare()), at }
    }

    /// Whether the next frame has come already.
    pub fn has_next(&self) -> bool {
        let is_piece = self.missing > 0
            || self.takes_pieces && self.buffer.get(self.at + LENGTH_BYTES - 1).is_some_and(|b| b >> 7 == 1);
        !is_piece && self.whole().is_none_or(|frame| !frame.is_empty())
    }

    /// Where the next frame is, without its length; empty: not all of it has come. None: it is no frame.
    fn whole(&self) -> Option<Range<usize>> {
        let Some(length) = self.buffer[self.at..].first_chunk::<LENGTH_BYTES>() else { return Some(0..0) };
        let (start, len) = (self.at + LENGTH_BYTES, frame_bytes(*length).ok()?);
        Some(if self.buffer.len() - start >= len { start..start + len } else { 0..0 })
    }

    /// The buffer grows with what comes, whatever a frame says of its length, and what a long frame needed is given back. How much to
    /// read: a long frame ends a buffer, so that it can be taken along.
    fn make_room(&mut self) -> usize {
        self.buffer.drain(..self.at);
        (self.at, self.last) = (0, 0..0);
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = Vec::new();
        }
        let length = self.buffer.first_chunk::<LENGTH_BYTES>().and_then(|length| frame_bytes(*length).ok());
        let missing = length.map_or(0, |len| (LENGTH_BYTES + len).saturating_sub(self.buffer.len()));
        let is_long = missing >= LONG_BYTES;
        let soon = if is_long { missing.min(self.buffer.len() * GROWTH) } else { 0 };
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES_MIN.max(soon) {
            self.buffer.reserve(READ_BYTES_MIN.max(soon));
        }
        match is_long {
            true => missing,
            // The piece behind these bytes is read where it is to be.
            false if !self.pieces.is_empty() && self.buffer.is_empty() => LENGTH_BYTES,
            false => usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn frame(bytes: usize, of: u8) -> Vec<u8> {
        let mut frame = (bytes as u32).to_le_bytes().to_vec();
        frame.resize(LENGTH_BYTES + bytes, of);
        frame
    }

    /// Counts what is written at once.
    struct Writes(Arc<AtomicUsize>, tokio::io::DuplexStream);

    impl AsyncWrite for Writes {
        fn poll_write(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::pin::Pin::new(&mut self.1).poll_write(cx, bytes)
        }
        fn poll_flush(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.1).poll_flush(cx)
        }
        fn poll_shutdown(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.1).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn what_waits_is_written_at_once_and_comes_in_order() {
        let (near, far) = tokio::io::duplex(64 << 20);
        let (out, mut unwritten) = outbox();
        let lengths: Vec<usize> = (1..=128).map(|n| if n == 9 { 3 << 20 } else { n }).collect();
        for (n, len) in lengths.iter().enumerate() {
            out.send(Lane::NODE, frame(*len, n as u8));
        }
        drop(out);
        let writes = Arc::<AtomicUsize>::default();
        unwritten.write(&mut Writes(writes.clone(), near), Version::Three, || None).await;
        assert_eq!(writes.load(Ordering::Relaxed), 3, "before the long one, it, and behind it");
        assert_eq!(unwritten.0.load.load(Ordering::Relaxed), 0);
        let mut incoming = FrameReader::new(far, Version::NEWEST);
        for (n, len) in lengths.iter().enumerate() {
            let frame = incoming.next(PATIENCE).await.unwrap();
            assert_eq!((frame.len(), frame[len - 1]), (*len, n as u8));
        }
        assert!(incoming.next(PATIENCE).await.is_none());
    }

    /// Whoever waits for room hears that there will be none.
    #[tokio::test]
    async fn a_stream_that_fails_ends_the_wait_for_room() {
        let (near, far) = tokio::io::duplex(64);
        let (out, mut unwritten) = outbox();
        for _ in 0..9 {
            out.send(Lane::NODE, frame(UNSENT_BYTES_MAX / 8, 1));
        }
        let waits = tokio::spawn({
            let out = out.clone();
            async move { out.has_room().await }
        });
        tokio::task::yield_now().await;
        drop(far);
        let writes = tokio::spawn(async move { unwritten.write(&mut { near }, Version::NEWEST, || None).await });
        timeout(PATIENCE, writes).await.unwrap().unwrap();
        assert!(!timeout(PATIENCE, waits).await.unwrap().unwrap());
        let unsent = out.0.load.load(Ordering::Relaxed);
        out.send(Lane::NODE, frame(10, 1));
        assert_eq!(out.0.load.load(Ordering::Relaxed), unsent, "nothing more is kept");
    }

    #[tokio::test]
    async fn a_frame_may_come_in_pieces_and_takes_no_memory_before_it_comes() {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let mut incoming = FrameReader::new(far, Version::NEWEST);
        let mut sent = frame(5, 1);
        sent.extend(frame(FRAME_BYTES_MAX, 2));
        near.write_all(&sent[..3]).await.unwrap();
        let wait = incoming.next(Duration::from_millis(20));
        assert!(wait.await.is_none(), "half a length, then nothing");
        near.write_all(&sent[3..15]).await.unwrap();
        assert_eq!(incoming.next(PATIENCE).await.unwrap(), [1; 5]);
        assert!(!incoming.has_next());
        assert!(incoming.next(Duration::from_millis(20)).await.is_none());
        assert!(incoming.buffer.capacity() <= 2 * READ_BYTES_MIN, "{}", incoming.buffer.capacity());
        let rest = sent.split_off(15);
        let writes = tokio::spawn(async move { near.write_all(&rest).await.map(|()| near) });
        assert_eq!(incoming.next(PATIENCE).await.unwrap().len(), FRAME_BYTES_MAX);
        let mut near = writes.await.unwrap().unwrap();
        near.write_all(&frame(1, 3)).await.unwrap();
        assert_eq!(incoming.next(PATIENCE).await.unwrap(), [3]);
        assert!(incoming.buffer.capacity() <= KEPT_BYTES_MAX, "what a long frame needed is given back");
        for wrong in [[0; 4], [0xff; 4]] {
            near.write_all(&wrong).await.unwrap();
            assert!(incoming.next(PATIENCE).await.is_none(), "{wrong:?}");
            incoming.at += LENGTH_BYTES;
        }
    }

    /// Others' short frames come between the pieces of a long one, and those of its own lane behind it.
    #[tokio::test]
    async fn short_frames_of_others_come_between_the_pieces_of_a_long_one() {
        let (near, far) = tokio::io::duplex(PIECE_BYTES);
        let (out, mut unwritten) = outbox();
        let (long, own, other) = (5 * PIECE_BYTES + 7, Lane::test(1), Lane::test(2));
        let several = [frame(9, 1), frame(long, 2), frame(11, 3), frame(long, 4)].concat();
        out.send(own, several);
        out.send(own, frame(13, 5));
        let writes = tokio::spawn(async move { unwritten.write(&mut { near }, Version::NEWEST, || None).await });
        tokio::task::yield_now().await;
        for of in 6..9 {
            out.send(other, frame(of as usize, of));
        }
        let mut incoming = FrameReader::new(far, Version::NEWEST);
        let mut came = Vec::new();
        for n in 0..8 {
            // Whoever does not wait for it to the end goes on where it was.
            while tokio::select! {
                biased;
                frame = incoming.next(PATIENCE) => {
                    let frame = frame.unwrap();
                    came.push((frame[0], frame.len()));
                    assert!(frame.iter().all(|b| *b == frame[0]), "{n}");
                    false
                }
                () = tokio::task::yield_now() => true,
            } {}
            let (of, len) = came[n];
            if len == long {
                let body = incoming.take(4, &out);
                assert!(body.len() == long - 4 && body.iter().all(|b| *b == of));
                assert!(incoming.take(0, &out).is_empty(), "once");
            }
        }
        let of = |own: bool| came.iter().copied().filter(|(of, _)| (*of < 6) == own).collect::<Vec<_>>();
        assert_eq!(of(true), [(1, 9), (2, long), (3, 11), (4, long), (5, 13)]);
        assert_eq!(of(false), [(6, 6), (7, 7), (8, 8)]);
        let place = |wanted: u8| came.iter().position(|(of, _)| *of == wanted);
        assert!(place(8) < place(2), "{came:?}");
        drop(out);
        writes.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_no_piece_ends_the_stream() {
        let long = [piece_header(FRAME_BYTES_MAX, false).to_vec(), vec![0; FRAME_BYTES_MAX]].concat();
        for wrong in [
            piece_header(0, true).to_vec(),
            piece_header(FRAME_BYTES_MAX + 1, false).to_vec(),
            [long, piece_header(1, true).to_vec(), vec![0]].concat(),
        ] {
            let (mut near, far) = tokio::io::duplex(32 << 20);
            near.write_all(&wrong).await.unwrap();
            drop(near);
            assert!(FrameReader::new(far, Version::NEWEST).next(PATIENCE).await.is_none());
        }
        let (mut near, far) = tokio::io::duplex(64);
        near.write_all(&[&piece_header(1, true)[..], &[7]].concat()).await.unwrap();
        assert!(FrameReader::new(far, Version::Three).next(PATIENCE).await.is_none(), "not before version 4");
    }

    #[tokio::test]
    async fn a_long_frame_is_taken_along_and_others_are_copied() {
        let (mut near, far) = tokio::io::duplex(64 << 20);
        let (out, _unwritten) = outbox();
        let mut incoming = FrameReader::new(far, Version::NEWEST);
        out.give_spare(vec![7; LONG_BYTES]);
        let lengths = [10, 3 * READ_BYTES_MIN, 20, 1 << 20, 30];
        for (of, bytes) in lengths.into_iter().enumerate() {
            near.write_all(&frame(bytes, of as u8)).await.unwrap();
        }
        for (of, bytes) in lengths.into_iter().enumerate() {
            assert_eq!(incoming.next(PATIENCE).await.unwrap().len(), bytes);
            let body = incoming.take(4, &out);
            assert_eq!((body.len(), body.iter().all(|b| *b == of as u8)), (bytes - 4, true));
            assert_eq!(
                body.buffer.len() > body.len(),
                bytes >= LONG_BYTES,
                "{bytes}: only what is long is taken along"
            );
            assert!(incoming.take(0, &out).is_empty(), "once");
            out.give_spare(body.into_buffer());
        }
    }

    /// What is kept of a frame costs what its buffer takes, which may be that of a longer one before it.
    #[tokio::test]
    async fn a_frame_is_not_taken_along_in_a_buffer_that_is_far_too_large() {
        let (mut near, far) = tokio::io::duplex(64 << 20);
        let (out, _unwritten) = outbox();
        let mut incoming = FrameReader::new(far, Version::NEWEST);
        let bytes = LONG_BYTES + 5000;
        for of in 0..4 {
            out.give_spare(Vec::with_capacity(KEPT_BYTES_MAX));
            near.write_all(&frame(bytes, of)).await.unwrap();
            assert_eq!(incoming.next(PATIENCE).await.unwrap().len(), bytes);
            let body = incoming.take(4, &out);
            assert!(body.len() == bytes - 4 && body.iter().all(|b| *b == of));
            assert!(body.buffer.capacity() <= 3 * bytes, "frame {of}: {} bytes", body.buffer.capacity());
        }
    }
}
