//! Frames over a stream: a queue that anybody may add to and one task writes, and a reader.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

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
/// What a reader keeps of what a long frame needed.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Frames that wait to be written, in order.
#[derive(Clone)]
pub struct Outbox {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    unsent: Arc<Unsent>,
}

#[derive(Default)]
struct Unsent {
    bytes: AtomicUsize,
    less: Notify,
}

/// The other end of an [`Outbox`].
pub struct Unwritten {
    frames: mpsc::UnboundedReceiver<Vec<u8>>,
    unsent: Arc<Unsent>,
}

pub fn outbox() -> (Outbox, Unwritten) {
    let (sender, frames) = mpsc::unbounded_channel();
    let unsent = Arc::<Unsent>::default();
    (Outbox { frames: sender, unsent: unsent.clone() }, Unwritten { frames, unsent })
}

impl Outbox {
    /// Nothing happens once the stream has ended.
    pub fn send(&self, frame: Vec<u8>) {
        self.unsent.bytes.fetch_add(frame.len(), Ordering::Relaxed);
        let _ = self.frames.send(frame);
    }

    /// Until there is room for what a reader's next frame may answer.
    pub async fn has_room(&self) {
        loop {
            let less = self.unsent.less.notified();
            if self.unsent.bytes.load(Ordering::Relaxed) <= UNSENT_BYTES_MAX {
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
                    self.unsent.bytes.fetch_add(frame.len(), Ordering::Relaxed);
                    frames.push(frame);
                }
            }
            for frame in frames.drain(..) {
                if batch.len() + frame.len() > BATCH_BYTES_MAX && !self.put(stream, &mut batch).await {
                    return;
                }
                if frame.len() <= BATCH_BYTES_MAX {
                    batch.extend_from_slice(&frame);
                } else if !self.put(stream, &mut { frame }).await {
                    return;
                }
            }
            if !self.put(stream, &mut batch).await {
                return;
            }
            let flushed = self.frames.is_empty().then(|| timeout(WRITE_WAIT, stream.flush()));
            if let Some(flushed) = flushed
                && !matches!(flushed.await, Ok(Ok(())))
            {
                return;
            }
        }
    }

    /// Writes these frames, and leaves none. False: the stream takes no more.
    async fn put(&self, stream: &mut (impl AsyncWrite + Unpin), frames: &mut Vec<u8>) -> bool {
        if frames.is_empty() {
            return true;
        }
        let written = timeout(WRITE_WAIT, stream.write_all(frames)).await;
        self.unsent.bytes.fetch_sub(frames.len(), Ordering::Relaxed);
        self.unsent.less.notify_one();
        frames.clear();
        matches!(written, Ok(Ok(())))
    }
}

/// Frames that come over a stream.
pub struct FrameReader<R> {
    stream: R,
    buffer: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(stream: R) -> FrameReader<R> {
        FrameReader { stream, buffer: Vec::new(), at: 0 }
    }

    /// The next frame, without its length. None: the stream has ended, says what is no frame, or nothing for so long.
    pub async fn next(&mut self, silence_max: Duration) -> Option<&[u8]> {
        let mut frame = self.whole()?;
        while frame.is_empty() {
            self.make_room();
            match timeout(silence_max, self.stream.read_buf(&mut self.buffer)).await {
                Ok(Ok(n)) if n > 0 => {}
                _ => return None,
            }
            frame = self.whole()?;
        }
        self.at = frame.end;
        Some(&self.buffer[frame])
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

    /// The buffer grows with what comes, whatever a frame says of its length, and what a long frame needed is given back.
    fn make_room(&mut self) {
        self.buffer.drain(..self.at);
        self.at = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = Vec::new();
        }
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES_MIN {
            self.buffer.reserve(READ_BYTES_MIN);
        }
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
        assert_eq!(unwritten.unsent.bytes.load(Ordering::Relaxed), 0);
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
}
