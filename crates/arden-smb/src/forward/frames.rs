//! Frames over a stream: a queue that anybody may add to and one task writes, and a reader.

use std::{
    ops::{Deref, Range},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arden_lock::{Mutex, ranks};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, mpsc},
    time::timeout,
};

use crate::{
    forward::{PING_EVERY, UNSENT_BYTES_MAX, WRITE_WAIT},
    model::wire::{LENGTH_BYTES, frame_bytes},
};

/// Frames up to so many bytes together are written at once.
const BATCH_BYTES_MAX: usize = 64 << 10;
/// Frames that are taken from an outbox at once.
const BATCH_FRAMES_MAX: usize = 128;
/// A reader has room for so much at least.
const READ_BYTES_MIN: usize = 64 << 10;
/// Frames with so much behind what was read of them end a buffer.
pub const LONG_BYTES: usize = 64 << 10;
/// A buffer grows to so much times what has come at most.
const GROWTH: usize = 16;
/// What a reader keeps of what a long frame needed.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Frames that wait to be written, in order.
#[derive(Clone)]
pub struct Outbox {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Backlog {
    bytes: AtomicUsize,
    less: Notify,
    /// What the last long frame was in, to be used again.
    spare: Mutex<Vec<u8>, ranks::LargeBuffer>,
}

impl Backlog {
    fn keep(&self, buffer: Vec<u8>) {
        if (LONG_BYTES..=KEPT_BYTES_MAX).contains(&buffer.capacity()) {
            *self.spare.lock() = buffer;
        }
    }
}

/// The other end of an [`Outbox`].
pub struct Unwritten {
    frames: mpsc::UnboundedReceiver<Vec<u8>>,
    backlog: Arc<Backlog>,
}

pub fn outbox() -> (Outbox, Unwritten) {
    let (sender, frames) = mpsc::unbounded_channel();
    let backlog = Arc::<Backlog>::default();
    (Outbox { frames: sender, backlog: backlog.clone() }, Unwritten { frames, backlog })
}

impl Outbox {
    /// One frame or several. Nothing happens once the stream has ended.
    pub fn send(&self, frame: Vec<u8>) {
        self.backlog.bytes.fetch_add(frame.len(), Ordering::Relaxed);
        let _ = self.frames.send(frame);
    }

    /// A buffer that a long frame was in, or none.
    pub fn spare(&self) -> &Mutex<Vec<u8>, ranks::LargeBuffer> {
        &self.backlog.spare
    }

    /// The same, empty, for somebody to fill.
    pub fn take_spare(&self) -> Vec<u8> {
        let mut spare = std::mem::take(&mut *self.spare().lock());
        spare.clear();
        spare
    }

    /// A buffer that was taken and is not needed any more.
    pub fn give_spare(&self, buffer: Vec<u8>) {
        self.backlog.keep(buffer);
    }

    /// Until there is room for what a reader's next frame may answer.
    pub async fn has_room(&self) {
        loop {
            let less = self.backlog.less.notified();
            if self.backlog.bytes.load(Ordering::Relaxed) <= UNSENT_BYTES_MAX {
                return;
            }
            less.await;
        }
    }
}

impl Unwritten {
    /// Writes frames until the stream or the outbox ends, all that wait at once. `idle` makes a frame where there was none for a while.
    pub async fn write(&mut self, stream: &mut (impl AsyncWrite + Unpin), idle: impl Fn() -> Option<Vec<u8>>) {
        let (mut frames, mut batch) = (Vec::new(), Vec::new());
        loop {
            match timeout(PING_EVERY, self.frames.recv_many(&mut frames, BATCH_FRAMES_MAX)).await {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => {
                    let Some(frame) = idle() else { continue };
                    self.backlog.bytes.fetch_add(frame.len(), Ordering::Relaxed);
                    frames.push(frame);
                }
            }
            for frame in frames.drain(..) {
                if batch.len() + frame.len() > BATCH_BYTES_MAX {
                    if !self.put(stream, &batch).await {
                        return;
                    }
                    batch.clear();
                }
                if frame.len() <= BATCH_BYTES_MAX {
                    batch.extend_from_slice(&frame);
                } else {
                    if !self.put(stream, &frame).await {
                        return;
                    }
                    self.backlog.keep(frame);
                }
            }
            if !self.put(stream, &batch).await {
                return;
            }
            batch.clear();
            let flushed = self.frames.is_empty().then(|| timeout(WRITE_WAIT, stream.flush()));
            if let Some(flushed) = flushed
                && !matches!(flushed.await, Ok(Ok(())))
            {
                return;
            }
        }
    }

    /// Writes these frames. False: the stream takes no more.
    async fn put(&self, stream: &mut (impl AsyncWrite + Unpin), frames: &[u8]) -> bool {
        if frames.is_empty() {
            return true;
        }
        let written = timeout(WRITE_WAIT, stream.write_all(frames)).await;
        self.backlog.bytes.fetch_sub(frames.len(), Ordering::Relaxed);
        self.backlog.less.notify_one();
        matches!(written, Ok(Ok(())))
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
    buffer: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
    /// The frame that was given last, without its length.
    last: Range<usize>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(stream: R) -> FrameReader<R> {
        FrameReader { stream, buffer: Vec::new(), at: 0, last: 0..0 }
    }

    /// The next frame, without its length. None: the stream has ended, says what is no frame, or nothing for so long.
    pub async fn next(&mut self, silence_max: Duration) -> Option<&[u8]> {
        let mut frame = self.whole()?;
        while frame.is_empty() {
            let limit = self.make_room();
            let mut limited = (&mut self.stream).take(limit as u64);
            match timeout(silence_max, limited.read_buf(&mut self.buffer)).await {
                Ok(Ok(n)) if n > 0 => {}
                _ => return None,
            }
            frame = self.whole()?;
        }
        self.at = frame.end;
        self.last = frame.clone();
        Some(&self.buffer[frame])
    }

    /// What the frame that came last has from here on. Once. `spare` has a buffer to go on with, where this one is taken along.
    pub fn take(&mut self, from: usize, spare: &Outbox) -> Body {
        let Range { start, end } = std::mem::replace(&mut self.last, 0..0);
        let at = (start + from).min(end);
        if end - at < LONG_BYTES || end != self.buffer.len() {
            return Body { buffer: self.buffer[at..end].to_vec(), at: 0 };
        }
        self.at = 0;
        Body { buffer: std::mem::replace(&mut self.buffer, spare.take_spare()), at }
    }

    /// Whether the next frame has come already.
    pub fn has_next(&self) -> bool {
        self.whole().is_none_or(|frame| !frame.is_empty())
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
        if is_long { missing } else { usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::wire::FRAME_BYTES_MAX;

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
        let lengths: Vec<usize> = (1..=BATCH_FRAMES_MAX).map(|n| if n == 9 { 3 << 20 } else { n }).collect();
        for (n, len) in lengths.iter().enumerate() {
            out.send(frame(*len, n as u8));
        }
        drop(out);
        let writes = Arc::<AtomicUsize>::default();
        unwritten.write(&mut Writes(writes.clone(), near), || None).await;
        assert_eq!(writes.load(Ordering::Relaxed), 3, "before the long one, it, and behind it");
        assert_eq!(unwritten.backlog.bytes.load(Ordering::Relaxed), 0);
        let mut incoming = FrameReader::new(far);
        for (n, len) in lengths.iter().enumerate() {
            let frame = incoming.next(PATIENCE).await.unwrap();
            assert_eq!((frame.len(), frame[len - 1]), (*len, n as u8));
        }
        assert!(incoming.next(PATIENCE).await.is_none());
    }

    #[tokio::test]
    async fn a_frame_may_come_in_pieces_and_takes_no_memory_before_it_comes() {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let mut incoming = FrameReader::new(far);
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

    #[tokio::test]
    async fn a_long_frame_is_taken_along_and_others_are_copied() {
        let (mut near, far) = tokio::io::duplex(64 << 20);
        let (out, _unwritten) = outbox();
        let mut incoming = FrameReader::new(far);
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
}
