//! Reservations on a model of a namespace. A real target: `tests/e2e/nvme.sh`.

use std::sync::atomic::AtomicBool;

use super::model::{Controller, controllers};
use super::*;
use crate::reserve::disks::{self, Disk};
use crate::reserve::{Absent, Key, Kind};

const A: u64 = 0x1_0000_0005;
const B: u64 = 0x2_0000_0006;

fn on(c: &Controller) -> NamespacePath<Controller> {
    NamespacePath::new(c.clone(), true)
}

fn owned_by_a(like_linux: bool) -> [Controller; 4] {
    let all = controllers();
    all[0].disk.borrow_mut().like_linux = like_linux;
    let a = on(&all[0]);
    a.register(A).unwrap();
    assert_eq!(a.protect(A), Ok(A));
    assert_eq!(a.confirm(A), Ok(()));
    all
}

#[test]
fn all_controllers_of_a_registered_host_write() {
    for short in [false, true] {
        let all = owned_by_a(false);
        let all = if short { controllers() } else { all };
        all[0].disk.borrow_mut().short = short;
        on(&all[0]).register(A).unwrap();
        on(&all[0]).protect(A).unwrap();
        assert!(all[0].write() && all[3].write() && !all[1].write());
        assert_eq!(on(&all[3]).confirm(A), Ok(()), "by its other controller");
        let b = on(&all[1]);
        assert_eq!(b.reserve(B), Err(ReserveError::Conflict));
        assert_eq!(b.fence(B, A, Absent::InDoubt), Err(ReserveError::Conflict), "it has no key");
    }
}

#[test]
fn a_fence_ends_commands_of_all_controllers_and_takes_the_reservation() {
    for like_linux in [false, true] {
        let all = owned_by_a(like_linux);
        assert!(all[0].write() && all[3].write());
        let b = on(&all[1]);
        b.register(B).unwrap();
        assert_eq!(b.protect(B), Ok(A), "it is A's until A is fenced");
        assert_eq!(b.confirm(B), Err(ReserveError::Conflict));
        assert_eq!(b.fence(B, A, Absent::InDoubt), Ok(()));
        all[0].execute();
        all[3].execute();
        assert_eq!(all[0].disk.borrow().executed, [0; 4], "commands that were accepted before are ended");
        assert!(!all[0].write() && !all[3].write() && all[1].write());
        assert_eq!((b.protect(B), b.confirm(B), b.fence(B, A, Absent::InDoubt)), (Ok(B), Ok(()), Ok(())));
        assert_eq!(on(&all[0]).fence(A, B, Absent::InDoubt), Err(ReserveError::Conflict));
    }
}

#[test]
fn a_fence_counts_when_the_key_is_gone() {
    let all = owned_by_a(false);
    let b = on(&all[1]);
    b.register(B).unwrap();
    all[0].disk.borrow_mut().lies = true;
    assert_eq!(b.fence(B, A, Absent::InDoubt), Err(failed("the disk still has the key that was preempted")));
    assert!(all[0].write());
}

#[test]
fn a_holder_fences_a_key_that_comes_late_at_any_target() {
    for like_linux in [false, true] {
        let all = owned_by_a(like_linux);
        let late = on(&all[2]);
        late.register(A - 1).unwrap();
        assert!(all[2].write());
        let a = on(&all[0]);
        assert_eq!(a.confirm(A), Err(ReserveError::Conflict));
        assert_eq!(a.fence(A, A - 1, Absent::InDoubt), Ok(()));
        all[2].execute();
        assert_eq!(all[2].disk.borrow().executed[2], 0);
        assert!(!all[2].write());
        assert_eq!(a.confirm(A), Ok(()), "of its own type again");
    }
}

#[test]
fn a_holder_leaves_the_key_of_a_newer_owner() {
    let all = owned_by_a(true);
    on(&all[1]).register(B).unwrap();
    on(&all[2]).register(A - 1).unwrap();
    assert!(on(&all[0]).fence(A, A - 1, Absent::InDoubt).is_err());
    assert_eq!(all[0].disk.borrow().key_of(0x52), Some(B));
    assert_eq!(on(&all[1]).fence(B, A, Absent::InDoubt), Ok(()));
    assert_eq!(on(&all[1]).fence(B, A - 1, Absent::InDoubt), Ok(()));
    assert_eq!(on(&all[1]).confirm(B), Ok(()));
}

/// The holder A fences a key that comes late, in several steps, of which the one with this number has no answer: A is gone, or is not.
fn cut_off(step: usize, done: bool) -> [Controller; 4] {
    let all = owned_by_a(true);
    on(&all[2]).register(A - 1).unwrap();
    assert!(all[0].write() && all[2].write());
    let at = all[0].disk.borrow().changes.len() + step;
    all[0].disk.borrow_mut().lost_change = Some((at, done));
    let fenced = on(&all[0]).fence(A, A - 1, Absent::InDoubt);
    assert!(matches!(fenced, Err(ReserveError::Unreachable(_))), "step {step}: {fenced:?}");
    all
}

const STEPS: [(usize, bool); 8] =
    [(0, false), (0, true), (1, false), (1, true), (2, false), (2, true), (3, false), (3, true)];

#[test]
fn a_preempting_that_was_cut_off_leaves_the_disk_to_the_next_owner() {
    for (step, done) in STEPS {
        let all = cut_off(step, done);
        let b = on(&all[1]);
        b.register(B).unwrap();
        assert!(b.protect(B).is_ok(), "step {step}, {done}: {:?}", b.protect(B));
        for victim in [A, A - 1] {
            assert_eq!(b.fence(B, victim, Absent::InDoubt), Ok(()), "step {step}, {done}");
        }
        assert_eq!(b.confirm(B), Ok(()), "step {step}, {done}");
        (0..4).for_each(|n| all[n].execute());
        assert_eq!(all[0].disk.borrow().executed, [0; 4], "step {step}, {done}");
        assert!(!all[0].write() && all[1].write() && !all[2].write());
    }
}

#[test]
fn a_preempting_that_was_cut_off_is_tried_again() {
    for (step, done) in STEPS {
        let all = cut_off(step, done);
        let a = on(&all[0]);
        assert_eq!(a.fence(A, A - 1, Absent::InDoubt), Ok(()), "step {step}, {done}");
        assert_eq!(a.confirm(A), Ok(()), "step {step}, {done}");
        all[2].execute();
        assert_eq!(all[0].disk.borrow().executed[2], 0, "step {step}, {done}");
        assert!(all[0].write() && !all[2].write());
    }
}

/// To end a reservation that all hold takes all other keys away.
#[test]
fn the_newest_owner_alone_ends_what_a_preempting_that_was_cut_off_left() {
    let all = cut_off(1, true);
    let (newer, b) = (on(&all[2]), on(&all[1]));
    newer.unregister(A - 1).unwrap();
    newer.register(B + 1).unwrap();
    b.register(B).unwrap();
    assert!(b.protect(B).unwrap_err().to_string().contains("another type"));
    assert_eq!(b.fence(B, A, Absent::InDoubt), Ok(()));
    assert_eq!((b.confirm(B), b.keys()), (Err(ReserveError::Conflict), Ok(vec![B, B + 1])));
    assert_eq!(newer.protect(B + 1), Ok(B + 1));
    assert_eq!(newer.fence(B + 1, B, Absent::InDoubt), Ok(()));
    assert_eq!(newer.confirm(B + 1), Ok(()));
}

/// Another program may have made it such a one.
#[test]
fn a_reservation_that_all_hold_is_left_to_keys_of_others() {
    let all = cut_off(1, true);
    on(&all[2]).unregister(A - 1).unwrap();
    on(&all[2]).register(0x7_0001_0000_0001).unwrap();
    on(&all[1]).register(B).unwrap();
    assert!(on(&all[1]).protect(B).unwrap_err().to_string().contains("another type"));
    assert_eq!(on(&all[1]).keys().map(|k| k.len()), Ok(3));
}

#[test]
fn a_fence_whose_answer_was_lost_ends_commands_all_the_same() {
    for like_linux in [false, true] {
        let all = owned_by_a(like_linux);
        assert!(all[0].write());
        let b = on(&all[1]);
        b.register(B).unwrap();
        all[0].disk.borrow_mut().loses_answer = true;
        assert!(matches!(b.fence(B, A, Absent::InDoubt), Err(ReserveError::Unreachable(_))));
        assert_eq!(b.keys(), Ok(vec![B]), "the key is gone, the commands are not");
        assert_eq!(b.fence(B, A, Absent::InDoubt), Ok(()));
        all[0].execute();
        assert_eq!(all[0].disk.borrow().executed[0], 0);
    }
}

#[test]
fn the_key_of_a_node_changes_and_its_reservation_stays() {
    let all = owned_by_a(false);
    let a = on(&all[3]);
    a.register(A + 1).unwrap();
    a.register(A + 1).unwrap();
    assert_eq!(a.confirm(A + 1), Ok(()));
    assert!(!all[1].write());
    assert_eq!(a.fence(A + 1, A, Absent::InDoubt), Ok(()), "nobody has it");
    assert!(a.fence(A + 1, A + 1, Absent::InDoubt).is_err());
}

#[test]
fn two_nodes_with_one_host_identifier_are_not_taken_for_one() {
    let all = owned_by_a(false);
    all[0].disk.borrow_mut().hosts[1] = 0x51;
    let why = on(&all[1]).register(B).unwrap_err().to_string();
    assert!(why.contains("node 1 has registered") && why.contains("host identifier"), "{why}");
    assert_eq!(all[0].disk.borrow().keys, [(0x51, A)], "nothing was changed");
    assert_eq!(on(&all[0]).confirm(A), Ok(()));
}

#[test]
fn leaving_opens_the_disk_to_all() {
    let all = owned_by_a(false);
    let a = on(&all[0]);
    assert_eq!(a.unregister(B), Err(ReserveError::Conflict));
    a.release(A).unwrap();
    assert_eq!(a.reservation(), Ok(None));
    assert!(all[1].write());
    a.reserve(A).unwrap();
    a.unregister(A).unwrap();
    assert_eq!((a.reservation(), a.keys()), (Ok(None), Ok(vec![])));
    let all = owned_by_a(false);
    on(&all[1]).register(B).unwrap();
    on(&all[1]).clear(B).unwrap();
    assert_eq!((on(&all[0]).reservation(), on(&all[0]).keys()), (Ok(None), Ok(vec![])));
}

#[test]
fn disks_that_cannot_are_refused() {
    let all = controllers();
    let strict = NamespacePath::new(all[0].clone(), false);
    let why = |change: fn(&mut model::Disk)| {
        change(&mut all[0].disk.borrow_mut());
        strict.check().unwrap_err().to_string()
    };
    assert_eq!(strict.check(), Ok(()));
    assert!(why(|d| d.can = 0x08).contains("power fails"));
    assert_eq!(on(&all[0]).check(), Ok(()), "it was asked to take such a one");
    assert!(why(|d| d.can = 0x03).contains("registrants only"));
    assert!(why(|d| d.can = 0x80).contains("has none"));
    assert!(why(|d| (d.can, d.nmic) = (0x09, 0)).contains("one controller"));
    assert!(why(|d| d.nmic = 3).contains("several NVM subsystems"));
    assert!(why(|d| d.oncs = 0).contains("no reservation commands"));
    assert!(why(|d| (d.oncs, d.nmic, d.hosts[0]) = (0x20, 1, 0)).contains("no host identifier"));
    let file = std::env::current_exe().unwrap();
    let refused = NamespacePath::open(&file, true).err().unwrap();
    assert!(matches!(refused, ReserveError::Unsupported(_)), "{refused}");
    let gone = NamespacePath::open(Path::new("/nonexistent"), true).err().unwrap();
    assert!(matches!(gone, ReserveError::Unreachable(_)), "{gone}");
    let null = NamespacePath::open(Path::new("/dev/null"), true).err().unwrap();
    assert!(null.to_string().contains("no NVMe namespace"), "{null}");
}

#[test]
fn a_registration_persists_where_the_namespace_can_or_does_not_count() {
    let all = owned_by_a(false);
    assert!(all[0].disk.borrow().ptpls);
    on(&all[0]).settle(A).unwrap();
    assert!(all[0].disk.borrow().ptpls, "it stays");
    let all = controllers();
    all[0].disk.borrow_mut().ignores_cptpl = true;
    assert!(on(&all[0]).register(A).unwrap_err().to_string().contains("persist"));
    all[0].disk.borrow_mut().can = 0x08;
    on(&all[0]).register(A).unwrap();
}

/// The steps of an owner, which are those of SCSI.
#[test]
fn a_pool_on_namespaces_is_entered_fenced_and_admitted() {
    let key = |node, epoch| Key::new(9, node, epoch).unwrap();
    for like_linux in [false, true] {
        let all = controllers();
        all[0].disk.borrow_mut().like_linux = like_linux;
        let [a, b, c] = [0, 1, 2].map(|n| Disk { name: "d".into(), path: Box::new(on(&all[n])) });
        assert_eq!(disks::enter(&a, key(1, 5)), Ok(vec![]));
        assert_eq!(disks::enter(&b, key(2, 6)), Ok(vec![key(1, 5)]));
        let all_keys = vec![key(1, 5), key(2, 6)];
        assert_eq!(disks::enter(&c, key(3, 7)), Ok(all_keys.clone()), "one that began before it is on its way");
        for victim in all_keys {
            assert_eq!(disks::fence(&c, key(3, 7), victim, Absent::Ended), Ok(()));
        }
        assert_eq!(c.path.confirm(key(3, 7).raw()), Ok(()));
        let sure = AtomicBool::new(false);
        assert!(disks::admit(&a, key(1, 6), &sure, &|_| Ok(())).unwrap_err().contains("newer key"));
        assert_eq!(disks::admit(&a, key(1, 8), &sure, &|_| Ok(())), Ok(()));
        assert!(all[0].write() && !all[1].write() && !all[2].write());
    }
}

/// A disk that never executes anything, and one that speaks nonsense.
struct Odd(u16, Vec<u8>);

impl Namespace for Odd {
    fn command(&self, _: &Command, data: Data<'_>) -> io::Result<u16> {
        if let Data::In(into) = data {
            let n = into.len().min(self.1.len());
            into[..n].copy_from_slice(&self.1[..n]);
        }
        Ok(self.0)
    }
}

#[test]
fn nothing_that_a_disk_says_is_believed_too_far() {
    let keys = |status, bytes: &[u8]| NamespacePath::new(Odd(status, bytes.to_vec()), true).keys();
    assert!(matches!(keys(0x4082, &[]), Err(ReserveError::Unreachable(_))));
    assert!(matches!(keys(0x0371, &[]), Err(ReserveError::Unreachable(_))));
    assert!(matches!(keys(0x4006, &[]), Err(ReserveError::Failed(_))));
    assert!(matches!(keys(0, &[0, 0, 0, 0, 3, 0xFF, 0xFF]), Err(ReserveError::Failed(_))), "too long");
    let mut many = vec![0; 64 + 300 * 64];
    many[4..7].copy_from_slice(&[3, 44, 1]);
    (0..300).for_each(|i| many[64 + i * 64 + 16..][..2].copy_from_slice(&(i as u16).to_le_bytes()));
    assert_eq!(keys(0, &many).map(|k| k.len()), Ok(300), "asked again with more room");
    many[4] = 1;
    let odd = NamespacePath::new(Odd(0, many), true);
    assert!(matches!(odd.reservation(), Err(ReserveError::Failed(_))), "a type without a holder");
    let other = NamespacePath::new(Odd(0, vec![0, 0, 0, 0, 5, 0, 0]), true).reservation();
    assert_eq!(other, Ok(Some(Reservation { key: 0, kind: Kind::Other(5) })));
}
