//! Reservations on a model of a disk. A real target: `tests/e2e/scsi.sh`.

use std::path::Path as FilePath;

use super::model::{Path, paths};
use super::scsi::{CHECK_CONDITION, GOOD};
use super::*;
use std::io;

const A: u64 = 0x10;
const B: u64 = 0x20;

fn on(path: &Path) -> Reservations<Path> {
    Reservations::new(path.clone())
}

fn owned_by_a() -> [Path; 3] {
    let all = paths();
    let a = on(&all[0]);
    a.register(A).unwrap();
    assert_eq!(a.protect(A), Ok(A));
    assert_eq!(a.confirm(A), Ok(()));
    all
}

#[test]
fn only_registered_paths_write() {
    let all = owned_by_a();
    assert!(all[0].write() && !all[1].write());
    let b = on(&all[1]);
    assert_eq!(b.reserve(B), Err(ReserveError::Conflict));
    assert_eq!(b.preempt_and_abort(B, A), Err(ReserveError::Conflict), "it has no key");
    assert_eq!(b.fence(B, A, Absent::InDoubt), Err(ReserveError::Conflict));
    assert!(all[0].write());
}

#[test]
fn a_fence_ends_what_was_accepted_and_takes_the_reservation() {
    let all = owned_by_a();
    assert!(all[0].write());
    let b = on(&all[1]);
    b.register(B).unwrap();
    assert_eq!(b.protect(B), Ok(A), "it is A's until A is fenced");
    assert_eq!(b.confirm(B), Err(ReserveError::Conflict));
    assert_eq!(b.fence(B, A, Absent::InDoubt), Ok(()));
    all[0].execute();
    assert_eq!(all[0].disk.borrow().executed[0], 0, "a command that was accepted before is ended");
    assert!(!all[0].write() && all[1].write());
    assert_eq!((b.protect(B), b.confirm(B)), (Ok(B), Ok(())));
    assert_eq!(b.fence(B, A, Absent::InDoubt), Ok(()), "once more");
    let a = on(&all[0]);
    assert_eq!(a.confirm(A), Err(ReserveError::Conflict));
    assert_eq!(a.fence(A, B, Absent::InDoubt), Err(ReserveError::Conflict));
}

/// What was accepted is ended, whatever the answers that were lost and the keys that are gone.
#[test]
fn a_fence_whose_answer_was_lost_ends_commands_all_the_same() {
    let all = owned_by_a();
    let b = on(&all[1]);
    b.register(B).unwrap();
    assert!(all[0].write());
    all[0].disk.borrow_mut().loses_answer = true;
    assert!(matches!(b.fence(B, A, Absent::Ended), Err(ReserveError::Unreachable(_))));
    assert_eq!((b.keys(), all[0].disk.borrow().accepted[0]), (Ok(vec![B]), 1), "the key is gone, the command is not");
    all[0].disk.borrow_mut().no_reset = true;
    let why = b.fence(B, A, Absent::InDoubt).unwrap_err();
    assert!(why.to_string().contains("commands of a former owner may be under way"), "{why}");
    all[0].disk.borrow_mut().no_reset = false;
    assert_eq!(b.fence(B, A, Absent::InDoubt), Ok(()));
    all[0].execute();
    assert_eq!(all[0].disk.borrow().executed[0], 0);
    assert_eq!(b.confirm(B), Ok(()), "a reset leaves keys and reservation");
}

/// A key that was never there needs no reset, which would end the commands of all paths.
#[test]
fn a_disk_is_reset_where_there_is_a_doubt_alone() {
    let all = owned_by_a();
    let b = on(&all[1]);
    b.register(B).unwrap();
    assert_eq!((b.fence(B, A, Absent::InDoubt), b.fence(B, A + 1, Absent::Ended)), (Ok(()), Ok(())));
    assert_eq!(all[0].disk.borrow().resets, 0);
    assert_eq!(b.fence(B, A + 1, Absent::InDoubt), Ok(()));
    assert_eq!(all[0].disk.borrow().resets, 1);
}

#[test]
fn a_fence_counts_when_the_key_is_gone() {
    let all = owned_by_a();
    let b = on(&all[1]);
    b.register(B).unwrap();
    all[0].disk.borrow_mut().lies = true;
    assert_eq!(b.fence(B, A, Absent::InDoubt), Err(failed("the disk still has the key that was preempted")));
    assert!(all[0].write());
}

#[test]
fn the_key_of_a_path_changes_and_its_reservation_stays() {
    let all = owned_by_a();
    let a = on(&all[0]);
    a.register(A + 1).unwrap();
    assert_eq!(a.confirm(A + 1), Ok(()));
    assert!(!all[1].write());
    assert_eq!(a.fence(A + 1, A, Absent::InDoubt), Ok(()), "nobody has it");
    assert!(a.fence(A + 1, A + 1, Absent::InDoubt).is_err());
}

#[test]
fn a_key_that_comes_late_is_seen() {
    let all = owned_by_a();
    on(&all[2]).register(B).unwrap();
    assert_eq!(on(&all[0]).confirm(A), Err(ReserveError::Conflict));
    assert_eq!(on(&all[0]).fence(A, B, Absent::InDoubt), Ok(()));
    assert_eq!(on(&all[0]).confirm(A), Ok(()));
}

#[test]
fn leaving_opens_the_disk_to_all() {
    let all = owned_by_a();
    let a = on(&all[0]);
    assert_eq!(a.unregister(B), Err(ReserveError::Conflict));
    a.release(A).unwrap();
    assert_eq!((a.reservation(), a.keys()), (Ok(None), Ok(vec![A])));
    assert!(all[1].write());
    a.reserve(A).unwrap();
    a.unregister(A).unwrap();
    assert_eq!((a.reservation(), a.keys()), (Ok(None), Ok(vec![])));
    let all = owned_by_a();
    on(&all[1]).register(B).unwrap();
    on(&all[1]).clear(B).unwrap();
    assert_eq!((on(&all[0]).reservation(), on(&all[0]).keys()), (Ok(None), Ok(vec![])));
}

#[test]
fn disks_that_cannot_are_refused() {
    let all = paths();
    assert_eq!(on(&all[0]).check(), Ok(()));
    all[0].disk.borrow_mut().persists = false;
    assert!(on(&all[0]).check().unwrap_err().to_string().contains("power fails"));
    all[0].disk.borrow_mut().cannot = true;
    assert!(matches!(on(&all[0]).check(), Err(ReserveError::Unsupported(_))));
    let file = std::env::current_exe().unwrap();
    assert!(Reservations::open(&file).err().unwrap().to_string().contains("no block device"));
    let gone = Reservations::open(FilePath::new("/nonexistent")).err().unwrap();
    assert!(matches!(gone, ReserveError::Unreachable(_)));
}

/// A disk that never executes anything, and one that speaks nonsense.
struct Odd(u8, Vec<u8>);

impl Target for Odd {
    fn command(&self, _: &[u8], data: Data<'_>) -> io::Result<Reply> {
        let mut moved = 0;
        if let Data::In(into) = data {
            moved = into.len().min(self.1.len());
            into[..moved].copy_from_slice(&self.1[..moved]);
        }
        let sense = (self.0 == CHECK_CONDITION).then_some(Sense { key: 6, code: 0x29, qualifier: 0 });
        Ok(Reply { status: self.0, host_status: 0, sense, transferred: moved })
    }
    fn reset(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_that_a_disk_says_is_believed_too_far() {
    for status in [CHECK_CONDITION, 0x77] {
        let odd = Reservations::new(Odd(status, vec![]));
        assert!(matches!(odd.keys(), Err(ReserveError::Unreachable(_))), "{status:02x}");
    }
    let mut longer = vec![0; 8];
    longer[4..8].copy_from_slice(&0x10_0000_u32.to_be_bytes());
    for answer in [vec![], vec![0; 7], longer, vec![0, 0, 0, 0, 0, 0, 0, 9]] {
        let odd = Reservations::new(Odd(GOOD, answer));
        assert!(matches!(odd.keys(), Err(ReserveError::Failed(_))));
    }
    let many: Vec<u64> = (1..=1000).collect();
    let mut answer = vec![0; 8];
    answer[4..8].copy_from_slice(&8000_u32.to_be_bytes());
    many.iter().for_each(|k| answer.extend(k.to_be_bytes()));
    assert_eq!(Reservations::new(Odd(GOOD, answer)).keys(), Ok(many), "asked again with more room");
}
