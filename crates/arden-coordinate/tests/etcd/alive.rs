//! Which nodes have connections: those that etcd says are alive, and none beside them.

use tokio::io::AsyncReadExt;

use super::*;

/// A copy of a state directory, started beside the node whose it is.
#[test]
fn another_daemon_of_a_node_has_no_lease_and_no_connections() {
    let Some(two) = Two::new() else { return };
    let second = membership::load(two.directories[1].path()).unwrap().unwrap();
    let copy = Member::connect(two.directories[1].path(), second).unwrap();
    let _listens = two.runtime.block_on(listen(&copy));
    thread::sleep(Duration::from_secs(2));
    assert!(!copy.has_lease() && two.members.iter().all(|m| m.has_lease()));
    two.runtime.block_on(async {
        let error = copy.peers().connect(1).await.unwrap_err();
        assert!(matches!(error, PeerError::NotAlive(_)), "{error:?}");
        let error = copy.peers().ask(1, b"who").await.unwrap_err();
        assert!(error.to_string().contains("is not alive in etcd, or another daemon has its name"), "{error}");
        // The node itself goes on.
        two.members[1].peers().connect(1).await.unwrap();
    });
    copy.leave();
    two.members.iter().for_each(|m| m.leave());
}

#[test]
fn connections_end_with_the_lease_at_both_ends() {
    let Some(mut two) = Two::new() else { return };
    let peers = two.members.clone().map(|m| m.peers().clone());
    let connect = |from: usize, to: usize, listener: &mut Listener| {
        let accept = async { Ok(listener.accept().await.unwrap()) };
        let both = async { tokio::try_join!(peers[from].connect(to as u16 + 1), accept) };
        let (a, b) = two.runtime.block_on(both).unwrap();
        [a.stream, b.stream]
    };
    let [at_a, at_b] = &mut two.listeners;
    let streams = [connect(0, 1, at_b), connect(1, 0, at_a)];
    // Renewals of the lease change nothing.
    thread::sleep(Duration::from_secs(4));
    let mut ends = streams.into_iter().flatten().collect::<Vec<_>>();
    two.runtime.block_on(async {
        for end in &mut ends {
            assert!(tokio::time::timeout(Duration::from_millis(50), end.read_u8()).await.is_err(), "it goes on");
        }
    });
    // Without etcd both nodes stop by their clocks.
    two.server.stop();
    two.runtime.block_on(async {
        for end in &mut ends {
            let read = tokio::time::timeout(Duration::from_secs(5), end.read_u8()).await;
            assert_eq!(read.expect("it ends").unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
        }
    });
    assert!(two.members.iter().all(|m| !m.has_lease()));
    // An administrator still asks: etcd has not said that a node is gone.
    let [_, at_b] = &mut two.listeners;
    let (connected, asked) = two.runtime.block_on(async {
        let asks = tokio::time::timeout(Duration::from_secs(1), peers[0].ask(2, b"who"));
        let answers = async {
            let connected = at_b.accept().await.unwrap();
            arden_coordinate::peers::answer(connected.stream, |_| async { b"b".to_vec() }).await
        };
        let (asked, answered) = tokio::join!(asks, answers);
        (answered, asked)
    });
    assert_eq!((connected, asked.unwrap()), (Ok(()), Ok(b"b".to_vec())));
    assert!(two.server.run());
    two.members.iter().for_each(|m| two.until(m, |t| t.values().all(|k| k.run.is_some())));
    connect(0, 1, &mut two.listeners[1]);
    two.members.iter().for_each(|m| m.leave());
}
