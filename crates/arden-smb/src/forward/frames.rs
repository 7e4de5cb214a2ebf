//! Frames over a stream: a queue that anybody may add to and one task writes, and a reader.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
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
    /// Writes frames until the stream or the outbox ends. `idle` makes a frame where there was none for a while.
    pub async fn write(&mut self, stream: &mut (impl AsyncWrite + Unpin), idle: impl Fn() -> Option<Vec<u8>>) {
        loop {
            let (frame, counted) = match timeout(PING_EVERY, self.frames.recv()).await {
                Ok(Some(frame)) => (frame, true),
                Ok(None) => return,
                Err(_) => match idle() {
                    Some(frame) => (frame, false),
                    None => continue,
                },
            };
            let written = timeout(WRITE_WAIT, async {
                stream.write_all(&frame).await?;
                if self.frames.is_empty() { stream.flush().await } else { Ok(()) }
            });
            let written = written.await;
            if counted {
                self.unsent.bytes.fetch_sub(frame.len(), Ordering::Relaxed);
                self.unsent.less.notify_one();
            }
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
    }
}

/// The next frame, without its length. None: the stream has ended, or says what is no frame.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut length = [0; LENGTH_BYTES];
    stream.read_exact(&mut length).await.ok()?;
    let len = frame_bytes(length).ok()?;
    // Grows with what comes.
    let mut frame = Vec::with_capacity(len.min(1 << 16));
    let read = stream.take(len as u64).read_to_end(&mut frame).await.ok()?;
    (read == len).then_some(frame)
}
