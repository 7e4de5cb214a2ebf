//! One question to another node, and its answer, on a connection of its own. A message is its length (4 bytes, big-endian) and bytes
//! that this module does not look at.

use std::{future::Future, time::Duration};

use arden_admin::{
    api::BODY_BYTES_MAX,
    error::{AdminError, ErrorKind},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::{PeerError, PeerStream, Peers, Purpose, of_io};

/// A request of an administrator with the longest body that a node takes, each byte of which is six in a string of JSON, and the longest path.
pub(super) const QUESTION_BYTES_MAX: usize = 6 * BODY_BYTES_MAX + (512 << 10);
/// Nodes of earlier versions take no longer question, and end the connection.
const QUESTION_BYTES_MAX_BEFORE: usize = 64 << 10;
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
        let late = |_| Err(AskError::NoAnswer(PeerError::Late(format!("node {node} does not answer"))));
        timeout(ASK_WAIT, self.ask_for_work(node, question)).await.unwrap_or_else(late).map_err(AskError::into_peer)
    }

    /// Asks a node for what may take long.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask_for_work(&self, node: u16, question: &[u8]) -> Result<Vec<u8>, AskError> {
        let late = |_| PeerError::Late(format!("node {node} does not answer"));
        let connected = timeout(ASK_WAIT, self.connect_for(node, Purpose::Ask)).await.map_err(late).flatten();
        let mut stream = connected.map_err(AskError::NotAsked)?.stream;
        let answered = async {
            timeout(ASK_WAIT, send(&mut stream, question)).await.map_err(late)??;
            timeout(WORK_WAIT + ASK_WAIT, receive(&mut stream, ANSWER_BYTES_MAX)).await.map_err(late)?
        };
        answered.await.map_err(|e| match e {
            PeerError::Unreachable(why) if question.len() > QUESTION_BYTES_MAX_BEFORE => {
                AskError::TooLong { bytes: question.len(), why }
            }
            e => AskError::NoAnswer(e),
        })
    }
}

/// Why there is no answer of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// There was no connection. Nothing was sent.
    NotAsked(PeerError),
    /// It may have been asked: whether it did something is not known.
    NoAnswer(PeerError),
    /// It ended the connection at a question that nodes of an earlier version do not take.
    TooLong { bytes: usize, why: String },
}

impl AskError {
    pub fn into_peer(self) -> PeerError {
        match self {
            AskError::NotAsked(e) | AskError::NoAnswer(e) => e,
            AskError::TooLong { why, .. } => PeerError::Unreachable(why),
        }
    }

    /// For an administrator whose request `node` was to handle. Where it is not reached, its pools have another owner soon: a conflict, as while
    /// nobody owns them.
    pub fn into_admin(self, node: &str) -> AdminError {
        let without_name = |e: &PeerError| e.to_string().trim_start_matches(&format!("node {node}: ")).to_owned();
        match self {
            AskError::NotAsked(
                e @ (PeerError::Unknown(_) | PeerError::Unreachable(_) | PeerError::Late(_) | PeerError::NotAlive(_)),
            ) => AdminError::new(
                ErrorKind::Conflict,
                format!("node {node} does not answer: {}", without_name(&e)),
                "wait until the node answers, or another node owns the pool: `arden pool list` shows which owns it",
            ),
            AskError::NotAsked(e) => AdminError::failed(
                format!("node {node} does not handle it: {}", without_name(&e)),
                "`arden node list` shows which nodes are alive, `arden node check` whether they are reached",
            ),
            AskError::NoAnswer(e) => AdminError::failed(
                format!("node {node} has not answered: {}", without_name(&e)),
                "it may have done what it was asked for: look before you ask again; `arden node list` shows which nodes are alive",
            ),
            AskError::TooLong { bytes, why } => AdminError::failed(
                format!("node {node} ended the connection at a request of {bytes} bytes: {why}"),
                format!(
                    "its version may be an earlier one, which takes {QUESTION_BYTES_MAX_BEFORE} bytes from another node: ask that node itself, or upgrade it"
                ),
            ),
        }
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
