//! One question to another node, and its answer, on a connection of its own. A message is its length (4 bytes, big-endian) and bytes
//! that this module does not look at.

use std::{future::Future, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::{PeerError, PeerStream, Peers, Purpose, of_io};

const QUESTION_BYTES_MAX: usize = 64 << 10;
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// From the connection to the end of the answer.
const ASK_WAIT: Duration = Duration::from_secs(10);

impl Peers {
    /// Asks a node. Within a runtime with I/O and time.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn ask(&self, node: u16, question: &[u8]) -> Result<Vec<u8>, PeerError> {
        let whole = async {
            let mut stream = self.connect_for(node, Purpose::Ask).await?.stream;
            send(&mut stream, question).await?;
            receive(&mut stream, ANSWER_BYTES_MAX).await
        };
        timeout(ASK_WAIT, whole).await.unwrap_or_else(|_| Err(PeerError::Late(format!("node {node} does not answer"))))
    }
}

/// Answers the question of a node that has connected to ask.
///
/// # Errors
/// See [`PeerError`].
pub async fn answer<A: Future<Output = Vec<u8>>>(
    mut stream: PeerStream,
    reply: impl FnOnce(Vec<u8>) -> A,
) -> Result<(), PeerError> {
    let whole = async {
        let question = receive(&mut stream, QUESTION_BYTES_MAX).await?;
        send(&mut stream, &reply(question).await).await?;
        stream.shutdown().await.map_err(|e| of_io(&e))
    };
    timeout(ASK_WAIT, whole)
        .await
        .unwrap_or_else(|_| Err(PeerError::Late("the question or its answer took too long".to_string())))
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> Result<(), PeerError> {
    let length = u32::try_from(message.len()).map_err(|_| PeerError::Malformed("a message is too long".to_string()))?;
    stream.write_u32(length).await.map_err(|e| of_io(&e))?;
    stream.write_all(message).await.map_err(|e| of_io(&e))?;
    stream.flush().await.map_err(|e| of_io(&e))
}

async fn receive(stream: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> Result<Vec<u8>, PeerError> {
    let length = stream.read_u32().await.map_err(|e| of_io(&e))? as usize;
    if length > bytes_max {
        return Err(PeerError::Malformed(format!("a message of {length} bytes, of at most {bytes_max}")));
    }
    // It takes memory as it comes.
    let mut message = Vec::new();
    let read = stream.take(length as u64).read_to_end(&mut message).await.map_err(|e| of_io(&e))?;
    match read == length {
        true => Ok(message),
        false => Err(PeerError::Unreachable("the connection ended in a message".to_string())),
    }
}
