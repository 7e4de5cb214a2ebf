//! Breaking and granting, scenario by scenario, against the caches of one file.

use std::sync::Arc;

use arden_wire::access::{FILE_GENERIC_READ, FILE_READ_ATTRIBUTES, READ_CONTROL};

use super::*;
use crate::{
    commit::CommitScope,
    error::StoreError,
    fs::{
        OpenOwner, WaitId,
        lease_state::{letters as text, of_letters as state},
    },
    table::share::is_stat_open,
};

/// One file with its opens; breaks are collected as text.
struct World {
    caches: Caches,
    now: Instant,
    next: u64,
    opens: Vec<(OpenId, Option<LeaseId>, u32)>,
    log: Vec<String>,
}

fn lease_id(key: u128) -> LeaseId {
    LeaseId { client: ClientId(1), key }
}

#[derive(Clone, Copy)]
struct Asks<'a> {
    lease: Option<(u128, &'a str)>,
    oplock: OplockLevel,
    access: u32,
    overwrite: bool,
    sharing_violation: bool,
}

const PLAIN: Asks<'static> = Asks {
    lease: None,
    oplock: OplockLevel::None,
    access: FILE_GENERIC_READ,
    overwrite: false,
    sharing_violation: false,
};

fn lease<'a>(key: u128, state: &'a str) -> Asks<'a> {
    Asks { lease: Some((key, state)), ..PLAIN }
}

/// The owner of opens whose effects the test collects itself.
fn nobody() -> Owner {
    struct Nobody;
    impl OpenOwner for Nobody {
        fn oplock_break(&self, _: &CommitScope, _: OpenId, _: OplockLevel, _: bool) {}
        fn lease_break(&self, _: &CommitScope, _: &LeaseBreak) {}
        fn resume(&self, _: WaitId) {}
    }
    Owner::new(Arc::new(Nobody))
}

impl World {
    fn new() -> World {
        World { caches: Caches::new(), now: Instant::now(), next: 1, opens: Vec::new(), log: Vec::new() }
    }
    fn clock(&self) -> Clock {
        Clock { now: self.now, timeout: Duration::from_secs(35), patient_timeout: Duration::from_secs(180) }
    }
    fn collect(&mut self, fx: Effects) {
        for e in fx.list {
            self.log.push(match e {
                Effect::LeaseBreak(_, b) => {
                    format!("{}:{}>{}{}", b.key, text(b.from), text(b.to), if b.ack { "!" } else { "" })
                }
                Effect::OplockBreak { open, to, ack, .. } => {
                    format!("o{}>{to:?}{}", open.0, if ack { "!" } else { "" })
                }
                Effect::Resume(w) => format!("resume {}", w.0),
                Effect::CacheChanged(_, opens) => format!("changed {}", opens.len()),
            });
        }
    }
    fn breaks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
    /// None: has to wait.
    fn open(&mut self, a: Asks<'_>) -> Option<(OpenId, CacheGrant)> {
        let lease = a.lease.map(|(key, _)| lease_id(key));
        let stat_open = is_stat_open(a.access);
        let mut fx = Effects::default();
        if !stat_open {
            let c =
                Conflict { lease, access: a.access, overwrite: a.overwrite, sharing_violation: a.sharing_violation };
            let wait = self.caches.conflict(&c, self.clock(), &mut fx);
            self.collect(fx);
            if wait {
                return None;
            }
        }
        let open = OpenId(self.next);
        self.next += 1;
        let owner = nobody();
        let cx = GrantContext {
            open,
            owner: &owner,
            client: ClientId(1),
            directory: false,
            stat_open,
            real: !stat_open,
            existed: !self.opens.is_empty(),
            other_real_opens: self.opens.iter().filter(|o| !is_stat_open(o.2)).count() as u32,
            has_locks: false,
            changed_at: 0,
        };
        let request = match a.lease {
            Some((key, s)) => {
                CacheRequest::Lease(LeaseRequest { key, state: state(s), parent_key: None, epoch: 0x10, version: 2 })
            }
            None => CacheRequest::Oplock(a.oplock),
        };
        let grant = self.caches.grant(&request, &cx);
        self.opens.push((open, lease, a.access));
        Some((open, grant))
    }
    fn leased(&mut self, a: Asks<'_>) -> String {
        match self.open(a) {
            None => "wait".into(),
            Some((_, CacheGrant::Lease { state, breaking, .. })) => {
                format!("{}{}", text(state), if breaking { "?" } else { "" })
            }
            Some((_, CacheGrant::Oplock(level))) => format!("{level:?}"),
        }
    }
    fn ack(&mut self, key: u128, s: &str) -> Result<String, StoreError> {
        let mut fx = Effects::default();
        let r = self.caches.ack_lease(lease_id(key), state(s), self.clock(), &mut fx);
        self.collect(fx);
        r.map(text)
    }
    fn close(&mut self, open: OpenId) {
        let i = self.opens.iter().position(|o| o.0 == open).unwrap();
        let (_, lease, access) = self.opens.remove(i);
        self.caches.close(open, lease, is_stat_open(access));
    }
}

#[test]
fn grants_only_whole_states() {
    for (asked, got) in
        [("", ""), ("R", "R"), ("H", ""), ("W", ""), ("RH", "RH"), ("RW", "RW"), ("WH", ""), ("RWH", "RWH")]
    {
        assert_eq!(World::new().leased(lease(1, asked)), got, "{asked}");
    }
}

#[test]
fn upgrades_but_never_downgrades() {
    let states = ["", "R", "RH", "RW", "RWH"];
    for first in states {
        for second in states {
            let mut w = World::new();
            w.leased(lease(1, first));
            let expect = if state(second) & state(first) == state(first) { second } else { first };
            assert_eq!(w.leased(lease(1, second)), expect, "{first} then {second}");
            assert!(w.breaks().is_empty());
        }
    }
}

#[test]
fn another_lease_limits_the_upgrade() {
    let mut w = World::new();
    assert_eq!(w.leased(lease(1, "R")), "R");
    assert_eq!(w.leased(lease(2, "RWH")), "RH");
    // W cannot be had, so nothing changes.
    assert_eq!(w.leased(lease(1, "RWH")), "R");
    assert_eq!(w.leased(lease(1, "RH")), "RH");
    assert!(w.breaks().is_empty());
}

#[test]
fn conflicting_opens_break_writes() {
    for (held, left) in [("RW", "R"), ("RWH", "RH")] {
        let mut w = World::new();
        w.leased(lease(1, held));
        assert_eq!(w.leased(lease(2, "RWH")), "wait");
        assert_eq!(w.breaks(), [format!("1:{held}>{left}!")]);
        assert_eq!(w.ack(1, left).unwrap(), left);
        assert_eq!(w.leased(lease(2, "RWH")), "RH");
        assert!(w.breaks().is_empty());
    }
    for held in ["R", "RH"] {
        let mut w = World::new();
        w.leased(lease(1, held));
        assert_eq!(w.leased(lease(2, "RWH")), "RH");
        assert!(w.breaks().is_empty());
    }
}

#[test]
fn the_same_key_works_on_while_breaking() {
    let mut w = World::new();
    w.leased(lease(1, "RWH"));
    assert_eq!(w.leased(PLAIN), "wait");
    assert_eq!(w.breaks(), ["1:RWH>RH!"]);
    assert_eq!(w.leased(lease(1, "RWH")), "RWH?");
    assert_eq!(w.ack(1, "RW"), Err(StoreError::AckExceedsBreak));
    assert_eq!(w.ack(1, "RH").unwrap(), "RH");
    assert_eq!(w.ack(1, "RH"), Err(StoreError::NoBreakUnderWay));
    assert_eq!(w.ack(2, "RH"), Err(StoreError::NotFound));
    // The one that broke it never came back.
    assert_eq!(w.leased(lease(1, "RWH")), "RWH");
}

#[test]
fn an_overwrite_during_a_break_goes_on_in_steps() {
    let mut w = World::new();
    w.leased(lease(1, "RWH"));
    assert_eq!(w.leased(PLAIN), "wait");
    assert_eq!(w.breaks(), ["1:RWH>RH!"]);
    assert_eq!(w.leased(Asks { overwrite: true, ..PLAIN }), "wait");
    assert_eq!(w.breaks(), ["changed 1"]);
    assert_eq!(w.ack(1, "RH").unwrap(), "RH");
    assert_eq!(w.breaks(), ["1:RH>R!"]);
    assert_eq!(w.leased(lease(1, "RWH")), "RH?");
    assert_eq!(w.leased(PLAIN), "wait");
    assert_eq!(w.ack(1, "R").unwrap(), "R");
    assert_eq!(w.breaks(), ["1:R>"]);
    assert_eq!(w.leased(PLAIN), "None");
    assert_eq!(w.leased(Asks { overwrite: true, ..PLAIN }), "None");
    assert!(w.breaks().is_empty());
}

#[test]
fn overwriting_a_handle_lease_does_not_wait() {
    let mut w = World::new();
    w.leased(lease(1, "RH"));
    let overwrite = Asks { overwrite: true, ..PLAIN };
    assert_eq!(w.leased(overwrite), "None");
    assert_eq!(w.breaks(), ["1:RH>!"]);
    assert_eq!(w.leased(overwrite), "None");
    assert!(w.breaks().is_empty());
    assert_eq!(w.leased(lease(1, "")), "RH?");
    assert_eq!(w.ack(1, "").unwrap(), "");
    assert!(w.breaks().is_empty());
}

#[test]
fn read_leases_end_without_an_answer() {
    let mut w = World::new();
    w.leased(lease(1, "R"));
    assert_eq!(w.leased(Asks { overwrite: true, ..PLAIN }), "None");
    assert_eq!(w.breaks(), ["1:R>"]);
    assert_eq!(w.ack(1, ""), Err(StoreError::NoBreakUnderWay));
    assert_eq!(w.leased(lease(1, "")), "");
}

#[test]
fn a_sharing_violation_breaks_handles_alone() {
    let mut w = World::new();
    w.leased(lease(1, "RWH"));
    let violating = Asks { sharing_violation: true, overwrite: true, ..PLAIN };
    assert_eq!(w.leased(violating), "wait");
    assert_eq!(w.breaks(), ["1:RWH>RW!"]);
    w.ack(1, "RW").unwrap();
    assert!(w.breaks().is_empty());
    let mut w = World::new();
    w.open(Asks { oplock: OplockLevel::Batch, ..PLAIN });
    assert_eq!(w.leased(violating), "wait");
    assert_eq!(w.breaks(), ["o1>LevelII!"]);
}

#[test]
fn stat_opens_disturb_nobody() {
    let mut w = World::new();
    w.leased(lease(1, "RWH"));
    w.leased(Asks { access: FILE_READ_ATTRIBUTES, ..PLAIN });
    w.leased(Asks { access: READ_CONTROL, ..PLAIN });
    assert!(w.breaks().is_empty());
    let mut w = World::new();
    w.open(Asks { oplock: OplockLevel::Batch, ..PLAIN });
    assert_eq!(w.leased(Asks { access: READ_CONTROL, ..PLAIN }), "wait");
    assert_eq!(w.breaks(), ["o1>LevelII!"]);
}

#[test]
fn leases_and_oplocks_side_by_side() {
    use OplockLevel::{Batch, Exclusive, LevelII};
    for (held, left, granted) in [("R", "R", "LevelII"), ("RH", "RH", "None"), ("RW", "R", "LevelII")] {
        for oplock in [LevelII, Exclusive, Batch] {
            let mut w = World::new();
            w.leased(lease(1, held));
            let mut got = w.leased(Asks { oplock, ..PLAIN });
            if got == "wait" {
                w.ack(1, left).unwrap();
                got = w.leased(Asks { oplock, ..PLAIN });
            }
            assert_eq!(got, granted, "{held} {oplock:?}");
        }
    }
    for oplock in [LevelII, Exclusive, Batch] {
        for asked in ["R", "RH", "RW", "RWH"] {
            let mut w = World::new();
            let (first, _) = w.open(Asks { oplock, ..PLAIN }).unwrap();
            let mut got = w.leased(lease(1, asked));
            if got == "wait" {
                assert_eq!(w.breaks(), ["o1>LevelII!"]);
                let mut fx = Effects::default();
                let now = w.caches.ack_oplock(first, LevelII, w.clock(), &mut fx).unwrap();
                assert_eq!(now, LevelII);
                got = w.leased(lease(1, asked));
            }
            assert_eq!(got, "R", "{oplock:?} {asked}");
        }
    }
}

#[test]
fn oplock_answers() {
    use OplockLevel::{Batch, Exclusive, LevelII, None as No};
    for (held, answer, result) in [
        (Exclusive, LevelII, Ok(LevelII)),
        (Exclusive, No, Ok(No)),
        (Exclusive, Exclusive, Err(StoreError::InvalidBreakAck)),
        (Batch, Exclusive, Ok(No)),
        (Batch, Batch, Err(StoreError::InvalidBreakAck)),
    ] {
        let mut w = World::new();
        let (first, _) = w.open(Asks { oplock: held, ..PLAIN }).unwrap();
        assert_eq!(w.leased(PLAIN), "wait");
        let mut fx = Effects::default();
        assert_eq!(w.caches.ack_oplock(first, answer, w.clock(), &mut fx), result, "{held:?} {answer:?}");
        let again = w.caches.ack_oplock(first, No, w.clock(), &mut fx);
        assert_eq!(again, Err(StoreError::InvalidBreakAck));
        assert_eq!(w.leased(PLAIN), "None");
    }
}

#[test]
fn an_overwrite_after_a_level_two_offer_ends_in_none() {
    let mut w = World::new();
    let (first, _) = w.open(Asks { oplock: OplockLevel::Batch, ..PLAIN }).unwrap();
    assert_eq!(w.leased(PLAIN), "wait");
    assert_eq!(w.leased(Asks { overwrite: true, ..PLAIN }), "wait");
    assert_eq!(w.breaks(), ["o1>LevelII!", "changed 1"]);
    let mut fx = Effects::default();
    w.caches.ack_oplock(first, OplockLevel::LevelII, w.clock(), &mut fx).unwrap();
    w.collect(fx);
    assert_eq!(w.breaks(), ["o1>None"]);
}

#[test]
fn holders_that_do_not_answer_lose_everything() {
    let mut w = World::new();
    w.leased(lease(1, "RWH"));
    assert_eq!(w.leased(PLAIN), "wait");
    assert_eq!(w.caches.next_deadline(), Some(w.now + Duration::from_secs(35)));
    assert!(!w.caches.expire(w.now + Duration::from_secs(34), &mut Effects::default()));
    assert!(w.caches.expire(w.now + Duration::from_secs(35), &mut Effects::default()));
    assert_eq!(w.ack(1, "RH"), Err(StoreError::NoBreakUnderWay));
    assert_eq!(w.leased(PLAIN), "None");
    assert_eq!(w.leased(lease(1, "")), "");
}

/// The owner is told each time that a break under way goes further, and only then: it keeps that over a restart.
#[test]
fn a_break_that_goes_further_is_said_once() {
    let mut w = World::new();
    w.open(lease(1, "RH")).unwrap();
    let (other, _) = w.open(PLAIN).unwrap();
    assert_eq!(w.leased(Asks { sharing_violation: true, ..PLAIN }), "wait");
    assert_eq!(w.breaks(), ["1:RH>R!"]);
    assert_eq!(w.leased(Asks { sharing_violation: true, ..PLAIN }), "wait");
    assert!(w.breaks().is_empty());
    for said in [&["changed 1"][..], &[]] {
        let mut fx = Effects::default();
        w.caches.break_reads(&Actor { open: other, lease: None }, w.clock(), &mut fx);
        w.collect(fx);
        assert_eq!(w.breaks(), said);
    }
    w.ack(1, "R").unwrap();
    assert_eq!(w.breaks(), ["1:R>"]);
}

#[test]
fn closing_answers_a_break() {
    let mut w = World::new();
    let (first, _) = w.open(lease(1, "RWH")).unwrap();
    let (second, _) = w.open(lease(1, "RWH")).unwrap();
    assert_eq!(w.leased(PLAIN), "wait");
    w.close(first);
    assert_eq!(w.leased(PLAIN), "wait");
    w.close(second);
    assert_eq!(w.leased(PLAIN), "None");
    assert_eq!(w.ack(1, "RH"), Err(StoreError::NotFound));
}

#[test]
fn epochs_count_changes() {
    let epoch = |g: Option<(OpenId, CacheGrant)>| match g {
        Some((_, CacheGrant::Lease { epoch, .. })) => epoch,
        other => panic!("{other:?}"),
    };
    let mut w = World::new();
    assert_eq!(epoch(w.open(lease(1, "R"))), 0x11);
    assert_eq!(epoch(w.open(lease(1, "R"))), 0x11);
    assert_eq!(epoch(w.open(lease(1, "RWH"))), 0x12);
    assert_eq!(w.leased(PLAIN), "wait");
    assert_eq!(epoch(w.open(lease(1, "R"))), 0x13);
    w.ack(1, "RH").unwrap();
    assert_eq!(epoch(w.open(lease(1, "R"))), 0x13);
    // Nothing granted, nothing counted.
    let mut w = World::new();
    assert_eq!(epoch(w.open(lease(2, "W"))), 0x10);
}

#[test]
fn writes_break_readers_but_not_the_writer() {
    let mut w = World::new();
    let (mine, _) = w.open(lease(1, "RH")).unwrap();
    w.leased(lease(2, "R"));
    w.leased(lease(3, "RH"));
    let mut fx = Effects::default();
    let me = Actor { open: mine, lease: Some(lease_id(1)) };
    w.caches.break_reads(&me, w.clock(), &mut fx);
    w.collect(fx);
    assert_eq!(w.breaks(), ["2:R>", "3:RH>!"]);
}

#[test]
fn renames_wait_for_handles() {
    let mut w = World::new();
    let (mine, _) = w.open(lease(1, "RH")).unwrap();
    let me = Actor { open: mine, lease: Some(lease_id(1)) };
    w.leased(lease(2, "RH"));
    let mut fx = Effects::default();
    assert!(w.caches.break_handles(Some(&me), false, w.clock(), &mut fx));
    w.collect(fx);
    assert_eq!(w.breaks(), ["2:RH>R!"]);
    w.ack(2, "R").unwrap();
    assert!(!w.caches.break_handles(Some(&me), false, w.clock(), &mut Effects::default()));
}

/// A holder that comes back hears of the break again and has its time anew, but not each time: others wait.
#[test]
fn who_comes_back_again_and_again_has_his_time_anew_once() {
    let mut w = World::new();
    let (open, _) = w.open(lease(1, "RWH")).unwrap();
    w.caches.make_patient(open, Some(lease_id(1)));
    assert!(w.open(lease(2, "R")).is_none());
    assert_eq!(w.breaks(), ["1:RWH>RH!"]);
    let begun = w.now;
    for seconds in [100, 200, 270] {
        w.now = begun + Duration::from_secs(seconds);
        let mut fx = Effects::default();
        w.caches.tell_again(open, Some(lease_id(1)), w.clock(), &mut fx);
        w.collect(fx);
        assert_eq!(w.breaks(), ["1:RWH>RH!"], "{seconds}");
    }
    assert_eq!(w.caches.next_deadline(), Some(begun + Duration::from_secs(280)));
    assert!(w.caches.expire(begun + Duration::from_secs(280), &mut Effects::default()));
    assert!(w.open(lease(2, "R")).is_some());
}
