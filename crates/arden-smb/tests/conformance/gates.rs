//! Shares with a gate, which a node of a cluster may serve only for a time: where it is closed, nothing starts and nothing is
//! answered, and the connection ends. A share that was away and comes back has the handles of its store.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use arden_smb::{Gate, Share};
use arden_store::{
    commit::CommitScope,
    handles::{HandleChange, HandleStore},
};
use arden_wire::smb2::FileId;

use crate::client::*;

const GUID: u128 = 0x6A7E;

/// Open for so many questions of each kind.
#[derive(Default)]
struct Counted {
    starts: AtomicU32,
    answers: AtomicU32,
}

fn take(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

impl Gate for Counted {
    fn may_start(&self) -> bool {
        take(&self.starts)
    }
    fn may_answer(&self) -> bool {
        take(&self.answers)
    }
}

impl Counted {
    fn set(&self, starts: u32, answers: u32) {
        self.starts.store(starts, Ordering::Relaxed);
        self.answers.store(answers, Ordering::Relaxed);
    }
}

/// All shares as they are, those that are continuously available behind the gate.
fn close_off(lab: &Lab, gate: &Arc<Counted>) {
    let shares = lab.server.trees.shares();
    let gated = |s: &Arc<Share>| {
        let gate: Option<Arc<dyn Gate>> = s.continuously_available.then(|| gate.clone() as Arc<dyn Gate>);
        Share { gate, ..(**s).clone() }
    };
    lab.server.trees.set_shares(shares.iter().filter(|s| !s.is_pipe()).map(gated).collect());
}

#[test]
fn nothing_starts_behind_a_closed_gate() {
    let lab = Lab::new();
    let gate = Arc::new(Counted::default());
    gate.set(100, 100);
    close_off(&lab, &gate);
    let mut c = lab.ca_client();
    let f = c.open(want("file"));
    c.write(f.id, 0, b"before");
    gate.set(0, 100);
    let id = c.send(&write(f.id, 0, b"behind"));
    assert!(c.is_closed() && c.poll(id).is_none(), "no answer, not even an error");
    assert_eq!(std::fs::read(lab.host("file")).unwrap(), b"before");
    let mut c = lab.client();
    let other = c.open(want("of another share"));
    c.write(other.id, 0, b"x");
    assert!(!c.is_closed(), "shares without a gate are served");
}

#[test]
fn no_tree_connect_behind_a_closed_gate() {
    let lab = Lab::new();
    let gate = Arc::new(Counted::default());
    close_off(&lab, &gate);
    let mut c = lab.client();
    let id = c.send(&tree_connect(&format!("\\\\server\\{CA}")));
    assert!(c.is_closed() && c.poll(id).is_none());
}

#[test]
fn what_was_done_is_not_answered_when_the_gate_has_closed_meanwhile() {
    let lab = Lab::new();
    let gate = Arc::new(Counted::default());
    gate.set(100, 100);
    close_off(&lab, &gate);
    for ask in [|f: FileId| write(f, 0, b"late"), |f: FileId| read(f, 0, 4)] {
        gate.set(100, 100);
        let mut c = lab.ca_client();
        let f = c.open(want("file"));
        c.write(f.id, 0, b"data");
        gate.set(1, 0);
        let id = c.send(&ask(f.id));
        assert!(c.is_closed() && c.poll(id).is_none());
    }
}

#[test]
fn a_share_that_comes_back_has_its_handles() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(want("file").share(0).lease(1, "RWH").persistent(GUID, 0));
    c.write(f.id, 0, b"kept");
    // Another node served it meanwhile: what this one forgets, the store keeps.
    let kept = lab.handles.load().unwrap();
    assert!(!kept.is_empty());
    let shares: Vec<Share> = lab.server.trees.shares().iter().filter(|s| !s.is_pipe()).map(|s| (**s).clone()).collect();
    c.disconnect();
    lab.server.trees.set_shares(Vec::new());
    assert_eq!(lab.server.trees.persistent_opens(), 0);
    let put = |(key, value)| HandleChange::Put { key, value };
    lab.handles.put(CommitScope::begin().id(), kept.into_iter().map(put).collect());
    lab.handles.commit(CommitScope::begin().id()).unwrap();
    lab.server.trees.set_shares(shares);
    assert_eq!(lab.server.trees.persistent_opens(), 1);
    let mut c = lab.ca_again(c.guid);
    let again = c.open(want("file").share(0).lease(1, "RWH").reconnect_persistent(f.id, GUID));
    assert_eq!(c.read(again.id, 0, 4), b"kept");
}

/// [MS-SMB2] 3.3.5.7: SMB2_SHARE_CAP_CLUSTER, ASYMMETRIC where the dialect has it, and SCALEOUT of a share of that type.
#[test]
fn a_share_of_a_cluster_with_a_witness_says_so() {
    use arden_wire::smb2::session::share_capability::{ASYMMETRIC, CLUSTER, CONTINUOUS_AVAILABILITY, SCALEOUT};
    let lab = Lab::new();
    let gate = Arc::new(Counted::default());
    gate.set(100, 100);
    let capabilities = |dialect, share| {
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(dialect));
        c.logon(&logon(USER));
        c.connect(share).u32(8)
    };
    close_off(&lab, &gate);
    assert_eq!(capabilities(Dialect::Smb311, CA), CONTINUOUS_AVAILABILITY, "there is no witness");
    lab.server.trees.config.policy.has_witness.store(true, Ordering::Relaxed);
    for (dialect, more) in [(Dialect::Smb300, 0), (Dialect::Smb302, ASYMMETRIC), (Dialect::Smb311, ASYMMETRIC)] {
        assert_eq!(capabilities(dialect, CA), CONTINUOUS_AVAILABILITY | CLUSTER | more);
    }
    assert_eq!(capabilities(Dialect::Smb210, CA), 0);
    assert_eq!(capabilities(Dialect::Smb311, SHARE), 0, "it is of this node alone");
    change_share(&lab, CA, |share| share.scale_out = true);
    change_share(&lab, SHARE, |share| share.scale_out = true);
    for (dialect, more) in [(Dialect::Smb300, 0), (Dialect::Smb302, ASYMMETRIC), (Dialect::Smb311, ASYMMETRIC)] {
        assert_eq!(capabilities(dialect, CA), CONTINUOUS_AVAILABILITY | CLUSTER | SCALEOUT | more);
    }
    assert_eq!(capabilities(Dialect::Smb210, CA), 0);
    assert_eq!(capabilities(Dialect::Smb311, SHARE), 0, "it is of this node alone");
}

/// [MS-SMB2] 3.3.5.9, 3.3.5.9.8 and 3.3.5.9.11: what a client of SMB 3 caches of a scale-out share is what it reads.
#[test]
fn clients_of_a_scale_out_share_cache_reads_alone() {
    let lab = Lab::new();
    let gate = Arc::new(Counted::default());
    gate.set(1000, 1000);
    close_off(&lab, &gate);
    change_share(&lab, CA, |share| share.scale_out = true);
    change_share(&lab, SHARE, |share| share.scale_out = true);
    let client = |dialect, share| {
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(dialect));
        c.logon(&logon(USER));
        c.connect(share);
        c
    };
    let mut key = 0;
    let mut lease = |c: &mut Client, state: &str| {
        key += 1;
        let how = want(&format!("file{key}")).lease_v1(key, state);
        let f = c.open(how);
        c.close(f.id);
        f.lease()
    };
    for dialect in [Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut c = client(dialect, CA);
        for (asked, granted) in [("RWH", "R"), ("RH", "R"), ("R", "R"), ("", "")] {
            assert_eq!(lease(&mut c, asked), granted, "{asked} with {dialect:?}");
        }
        let f = c.open(want("v2").lease(1000, "RWH").persistent(GUID, 0));
        assert_eq!((f.lease().as_str(), f.durable_v2().is_some()), ("R", true), "it persists all the same");
        c.close(f.id);
        let d = c.open(want("directory").directory().lease(1001, "RH"));
        assert_eq!(d.lease(), "R");
        c.close(d.id);
        for (asked, granted) in [(oplock::BATCH, oplock::LEVEL_II), (oplock::LEVEL_II, oplock::LEVEL_II)] {
            let f = c.open(want("oplock").oplock(asked));
            assert_eq!(f.oplock, granted);
            c.close(f.id);
        }
    }
    // Older clients know no such shares, and nor does a daemon that is no node.
    assert_eq!(lease(&mut client(Dialect::Smb210, CA), "RWH"), "RWH");
    assert_eq!(lease(&mut client(Dialect::Smb311, SHARE), "RWH"), "RWH");
}
