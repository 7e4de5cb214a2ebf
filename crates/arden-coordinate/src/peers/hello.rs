//! The first messages of a connection between nodes. Both sides send a hello, read the other's, and say whether they go on: so both
//! know why not. A message is its length (4 bytes, big-endian) and JSON; fields that are not known are skipped, those that are never
//! change their meaning. Refuses messages of more than [`HELLO_BYTES_MAX`] bytes before it reads them.

use std::future::Future;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Me, PeerError, of_io};

/// The most that one of these messages has.
pub const HELLO_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub cluster: String,
    pub node: u16,
    pub run: String,
    pub version_min: u32,
    pub version_max: u32,
    pub feature_level: u32,
    pub feature_level_max: u32,
    /// What the connection is for; who accepts it leaves this out.
    #[serde(default)]
    pub purpose: Purpose,
}

/// What a connection is for, as the node that makes it says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Requests for shares of the node that accepts it.
    #[default]
    Forward,
    /// One question of an administrator.
    Ask,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    /// Why the sender does not go on; None: it does.
    refused: Option<String>,
}

/// What both sides go on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    pub run: String,
    pub version: u32,
    pub purpose: Purpose,
}

/// Says hello with what the connection is for, and hears it from `node`, whose certificate the peer has. `vouch` says whether this node
/// goes on with what fits.
///
/// # Errors
/// See [`PeerError`].
pub async fn exchange<S, V>(
    stream: &mut S,
    me: &Me,
    node: u16,
    purpose: Purpose,
    vouch: impl FnOnce(Agreed) -> V,
) -> Result<Agreed, PeerError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    V: Future<Output = Result<Agreed, PeerError>>,
{
    let mine = Hello {
        cluster: me.cluster.clone(),
        node: me.node,
        run: me.run.clone(),
        version_min: me.versions.0,
        version_max: me.versions.1,
        feature_level: me.feature_level,
        feature_level_max: me.feature_level_max,
        purpose,
    };
    send(stream, &mine).await?;
    let agreed = match receive::<_, Hello>(stream).await {
        Ok(theirs) => match check(me, node, theirs) {
            Ok(agreed) => vouch(agreed).await,
            Err(e) => Err(e),
        },
        // The peer is still there: it hears why.
        Err(e @ PeerError::Malformed(_)) => Err(e),
        Err(e) => return Err(e),
    };
    let refused = agreed.as_ref().err().map(ToString::to_string);
    send(stream, &Verdict { refused }).await?;
    let verdict = receive::<_, Verdict>(stream).await;
    let agreed = agreed?;
    match verdict?.refused {
        None => Ok(agreed),
        Some(why) => Err(PeerError::Incompatible(format!("it refuses: {why}"))),
    }
}

fn check(me: &Me, node: u16, theirs: Hello) -> Result<Agreed, PeerError> {
    let incompatible = |why: String| Err(PeerError::Incompatible(why));
    if theirs.cluster != me.cluster {
        return incompatible(format!(
            "node {} is of the cluster {}, node {} of {}",
            me.node, me.cluster, node, theirs.cluster
        ));
    }
    if theirs.node != node {
        return Err(PeerError::NotTrusted(format!(
            "it says that it is node {}, and has the certificate of {node}",
            theirs.node
        )));
    }
    let version = theirs.version_max.min(me.versions.1);
    if version < theirs.version_min.max(me.versions.0) {
        return incompatible(format!(
            "no version of the protocol in common: node {} has {} to {}, node {node} has {} to {}",
            me.node, me.versions.0, me.versions.1, theirs.version_min, theirs.version_max
        ));
    }
    if theirs.feature_level > me.feature_level_max || me.feature_level > theirs.feature_level_max {
        return incompatible(format!(
            "the feature level is {} at node {}, which knows up to {}, and {} at node {node}, which knows up to {}",
            me.feature_level, me.node, me.feature_level_max, theirs.feature_level, theirs.feature_level_max
        ));
    }
    let fits =
        !theirs.run.is_empty() && theirs.run.len() <= 64 && theirs.run.chars().all(|c| c.is_ascii_alphanumeric());
    if !fits {
        return Err(PeerError::Malformed("the hello has no run".to_string()));
    }
    Ok(Agreed { run: theirs.run, version, purpose: theirs.purpose })
}

async fn send<S: AsyncWrite + Unpin, T: Serialize>(stream: &mut S, message: &T) -> Result<(), PeerError> {
    let mut bytes = vec![0u8; 4];
    serde_json::to_writer(&mut bytes, message).map_err(|e| PeerError::Malformed(e.to_string()))?;
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    stream.write_all(&bytes).await.map_err(|e| of_io(&e))?;
    stream.flush().await.map_err(|e| of_io(&e))
}

async fn receive<S: AsyncRead + Unpin, T: DeserializeOwned>(stream: &mut S) -> Result<T, PeerError> {
    let length = stream.read_u32().await.map_err(|e| of_io(&e))? as usize;
    if length > HELLO_BYTES_MAX {
        return Err(PeerError::Malformed(format!("a hello of {length} bytes, of at most {HELLO_BYTES_MAX}")));
    }
    let mut bytes = vec![0u8; length];
    stream.read_exact(&mut bytes).await.map_err(|e| of_io(&e))?;
    serde_json::from_slice(&bytes).map_err(|_| PeerError::Malformed("the hello is not understood".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me(node: u16) -> Me {
        Me {
            cluster: "c".into(),
            node,
            run: format!("run{node}"),
            versions: (1, 2),
            feature_level: 1,
            feature_level_max: 2,
        }
    }

    async fn goes_on(agreed: Agreed) -> Result<Agreed, PeerError> {
        Ok(agreed)
    }

    async fn both(a: Me, b: Me) -> (Result<Agreed, PeerError>, Result<Agreed, PeerError>) {
        let (mut x, mut y) = tokio::io::duplex(4096);
        tokio::join!(exchange(&mut x, &a, 2, Purpose::Ask, goes_on), exchange(&mut y, &b, 1, Purpose::Forward, goes_on))
    }

    #[tokio::test]
    async fn both_agree_on_the_newest_version_that_both_know() {
        let newer = Me { versions: (2, 5), feature_level: 2, feature_level_max: 7, ..me(2) };
        let (a, b) = both(me(1), newer).await;
        assert_eq!(a, Ok(Agreed { run: "run2".into(), version: 2, purpose: Purpose::Forward }));
        assert_eq!(b, Ok(Agreed { run: "run1".into(), version: 2, purpose: Purpose::Ask }));
    }

    #[tokio::test]
    async fn each_mismatch_is_told_on_both_sides() {
        let cases = [
            (Me { cluster: "d".into(), ..me(2) }, "of the cluster c, node 2 of d"),
            (Me { versions: (3, 9), ..me(2) }, "node 1 has 1 to 2, node 2 has 3 to 9"),
            (Me { versions: (0, 0), ..me(2) }, "node 1 has 1 to 2, node 2 has 0 to 0"),
            (Me { feature_level: 3, feature_level_max: 3, ..me(2) }, "and 3 at node 2"),
            (Me { feature_level: 0, feature_level_max: 0, ..me(2) }, "which knows up to 0"),
        ];
        for (other, says) in cases {
            let (a, b) = both(me(1), other.clone()).await;
            let (a, b) = (a.unwrap_err(), b.unwrap_err());
            assert!(matches!(&a, PeerError::Incompatible(why) if why.contains(says)), "{a}");
            assert!(matches!(b, PeerError::Incompatible(_)), "{other:?}: {b}");
        }
        let (a, b) = both(me(1), me(3)).await;
        assert!(matches!(&a, Err(PeerError::NotTrusted(why)) if why.contains("says that it is node 3")), "{a:?}");
        assert!(matches!(&b, Err(PeerError::Incompatible(why)) if why.contains("it refuses: it says")), "{b:?}");
        let (a, _) = both(me(1), Me { run: "\n".into(), ..me(2) }).await;
        assert!(matches!(a, Err(PeerError::Malformed(_))), "{a:?}");
    }

    #[tokio::test]
    async fn a_long_or_wrong_hello_is_malformed_and_an_early_end_is_no_hello() {
        for sent in [&b"\xff\xff\xff\xff"[..], b"\x00\x00\x04\x01", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x01\xff"] {
            let (mut x, mut y) = tokio::io::duplex(4096);
            y.write_all(sent).await.unwrap();
            send(&mut y, &Verdict::default()).await.unwrap();
            let said = exchange(&mut x, &me(1), 2, Purpose::Forward, goes_on).await;
            assert!(matches!(said, Err(PeerError::Malformed(_))), "{sent:?}: {said:?}");
            let theirs: Hello = receive(&mut y).await.unwrap();
            assert_eq!(theirs.node, 1);
            let verdict: Verdict = receive(&mut y).await.unwrap();
            assert!(verdict.refused.is_some());
        }
        let (mut x, y) = tokio::io::duplex(4096);
        drop(y);
        let said = exchange(&mut x, &me(1), 2, Purpose::Forward, goes_on).await;
        assert!(matches!(said, Err(PeerError::Unreachable(_))));
    }
}
