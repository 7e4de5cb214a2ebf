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
/// From the connection to the end of the answer, without what the other node does for it where that may take long.
const ASK_WAIT: Duration = Duration::from_secs(10);
/// What a node does for an answer may take so long.
const WORK_WAIT: Duration = Duration::from_secs(3600);

impl Peers {
    /// Asks a node. Within a runtime with I/O and time.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn ask(&self, node: u16, question: &[u8]) -> Result<Vec<u8>, PeerError> {
        let late = |_| Err(PeerError::Late(format!("node {node} does not answer")));
        timeout(ASK_WAIT, self.ask_for_work(node, question)).await.unwrap_or_else(late)
    }

    /// Asks a node for what may take long.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn ask_for_work(&self, node: u16, question: &[u8]) -> Result<Vec<u8>, PeerError> {
        let late = || PeerError::Late(format!("node {node} does not answer"));
        let asked = async {
            let mut stream = self.connect_for(node, Purpose::Ask).await?.stream;
            send(&mut stream, question).await.map(|()| stream)
        };
        let mut stream = timeout(ASK_WAIT, asked).await.map_err(|_| late())??;
        timeout(WORK_WAIT + ASK_WAIT, receive(&mut stream, ANSWER_BYTES_MAX)).await.map_err(|_| late())?
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
    let late = |what: &str| PeerError::Late(format!("{what} took too long"));
    let question = timeout(ASK_WAIT, receive(&mut stream, QUESTION_BYTES_MAX)).await;
    let question = question.map_err(|_| late("the question"))??;
    let answer = timeout(WORK_WAIT, reply(question)).await.map_err(|_| late("the work for the answer"))?;
    let sent = async {
        send(&mut stream, &answer).await?;
        stream.shutdown().await.map_err(|e| of_io(&e))
    };
    timeout(ASK_WAIT, sent).await.map_err(|_| late("the answer"))?
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
