//! The change journal of a volume over SMB: FSCTL_READ_FILE_USN_DATA, [MS-FSA] 2.1.5.10.27, and the controls of the
//! journal, which are for who manages the volume.

use std::time::Duration;

use crate::{
    client::*,
    quotas::{client, lab, on_volume},
};

/// USN_REASON_*.
const FILE_CREATE: u32 = 0x100;
const DATA_EXTEND: u32 = 2;
const CLOSE: u32 = 0x8000_0000;

fn reading(start: u64, mask: u32, only_closed: bool, id: u64, versions: Option<(u16, u16)>) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u64(start);
    out.put_u32(mask);
    out.put_u32(u32::from(only_closed));
    out.put_zeros(16);
    out.put_u64(id);
    if let Some((min, max)) = versions {
        out.put_u16(min);
        out.put_u16(max);
        out.put_u32(0);
    }
    out
}

/// USN, reason and name of each record.
fn records(data: &[u8]) -> Vec<(u64, u32, String)> {
    let (mut out, mut at) = (Vec::new(), 8);
    while at < data.len() {
        let d = &data[at..];
        // FileReferenceNumber and ParentFileReferenceNumber are twice as long in version 3.
        let ids = if le_u16(d, 4) == 3 { 32 } else { 16 };
        let (usn, reason) = (le_u64(d, 8 + ids), le_u32(d, 24 + ids));
        let (len, offset) = (le_u16(d, 40 + ids) as usize, le_u16(d, 42 + ids) as usize);
        let name: Vec<u16> = d[offset..offset + len].chunks(2).map(|c| u16::from_le_bytes([c[0], c[1]])).collect();
        out.push((usn, reason, String::from_utf16(&name).unwrap()));
        at += le_u32(d, 0) as usize;
    }
    out
}

#[test]
fn the_journal_is_made_read_and_deleted_by_who_manages_the_volume() {
    let (lab, _) = lab();
    let mut c = client(&lab, USER);
    let root = c.open(want("").directory()).id;
    assert_eq!(c.try_fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 64), Err(NtStatus::JOURNAL_NOT_ACTIVE));
    let size = [1u64 << 20, 1 << 18].map(u64::to_le_bytes).concat();
    c.fsctl(root, fsctl::CREATE_USN_JOURNAL, &size, 0);
    let info = c.fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 80);
    let (id, first) = (le_u64(&info, 0), le_u64(&info, 8));
    assert_eq!((le_u64(&info, 40), le_u64(&info, 48), info.len()), (1 << 20, 1 << 18, 64));
    assert_eq!((le_u16(&info, 56), le_u16(&info, 58)), (2, 3));
    assert_eq!(c.fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 56).len(), 56);
    c.put("file", &[1; 100]);
    let all = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, false, id, None), 4096);
    let seen: Vec<_> = records(&all).into_iter().map(|(_, reason, name)| (reason, name)).collect();
    let created = FILE_CREATE | DATA_EXTEND;
    assert_eq!(seen.first(), Some(&(FILE_CREATE, "file".to_string())), "{seen:x?}");
    let last = seen.last().unwrap().0;
    assert_eq!(last & (created | CLOSE), created | CLOSE, "{seen:x?}");
    // In version 3 the same; only what was closed; only with certain reasons; from where it ended.
    let v3 = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, false, id, Some((2, 3))), 4096);
    assert_eq!(records(&v3), records(&all));
    assert_eq!(le_u16(&v3, 12), 3);
    let closed = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, true, id, None), 4096);
    assert!(records(&closed).iter().all(|(_, r, _)| r & CLOSE != 0) && records(&closed).len() == 1);
    let none = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, 0x200, false, id, None), 4096);
    assert_eq!((none.len(), le_u64(&none, 0)), (8, le_u64(&all, 0)));
    let rest = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(le_u64(&all, 0), u32::MAX, false, id, None), 4096);
    assert_eq!(rest.len(), 8);
    // Where the answer is full, it says where to go on.
    let one = c.fsctl(root, fsctl::READ_USN_JOURNAL, &reading(first, u32::MAX, false, id, None), 90);
    assert_eq!((records(&one).len(), le_u64(&one, 0)), (1, records(&all)[1].0));
    let wrong = reading(first, u32::MAX, false, id ^ 1, None);
    assert_eq!(c.try_fsctl(root, fsctl::READ_USN_JOURNAL, &wrong, 4096), Err(NtStatus::INVALID_PARAMETER));
    // Of one file, whoever has it open.
    let f = c.open(want("file")).id;
    let of = c.fsctl(f, fsctl::READ_FILE_USN_DATA, &[], 4096);
    assert_eq!((le_u16(&of, 4), le_u64(&of, 24)), (2, records(&all).last().unwrap().0));
    assert_eq!((le_u64(&of, 32), le_u32(&of, 40)), (0, 0), "no time and no reason");
    assert_eq!(le_u16(&c.fsctl(f, fsctl::READ_FILE_USN_DATA, &[2, 0, 3, 0], 4096), 4), 3);
    assert_eq!(c.try_fsctl(f, fsctl::READ_FILE_USN_DATA, &[4, 0, 5, 0], 4096), Err(NtStatus::INVALID_PARAMETER));
    assert_eq!(c.try_fsctl(f, fsctl::READ_FILE_USN_DATA, &[], 59), Err(NtStatus::BUFFER_TOO_SMALL));
    let usn = c.fsctl(f, fsctl::WRITE_USN_CLOSE_RECORD, &[], 8);
    assert!(le_u64(&usn, 0) >= le_u64(&all, 0));
    // Others may not.
    let mut other = client(&lab, OTHER);
    let its = other.open(want("").directory().access(FILE_READ_DATA | FILE_READ_ATTRIBUTES)).id;
    for code in [fsctl::QUERY_USN_JOURNAL, fsctl::CREATE_USN_JOURNAL, fsctl::READ_USN_JOURNAL] {
        assert_eq!(other.try_fsctl(its, code, &size, 4096), Err(NtStatus::ACCESS_DENIED));
    }
    let delete = [id.to_le_bytes(), 1u64.to_le_bytes()].concat();
    c.fsctl(root, fsctl::DELETE_USN_JOURNAL, &delete, 0);
    assert_eq!(c.try_fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 64), Err(NtStatus::JOURNAL_NOT_ACTIVE));
}

/// The record of a file has the name that the file was opened by: another one may be where the opener may not look. One without FILE_TRAVERSE
/// who came by its id is told none, as by [MS-FSA] 2.1.5.12.30.
#[test]
fn a_record_tells_no_other_name_of_the_file() {
    let (lab, _) = lab();
    let mut c = client(&lab, USER);
    c.make_directory("secret");
    let f = c.open(want("secret\\plan")).id;
    assert_eq!(c.set(f, file_class::LINK, &name_change("public", false)), NtStatus::SUCCESS);
    let number = le_u64(&c.query(f, file_class::INTERNAL), 0).to_le_bytes();
    let secret = c.open(want("secret").existing().directory()).id;
    let secret = le_u64(&c.query(secret, file_class::INTERNAL), 0);
    let mut told = |f| {
        let of = c.fsctl(f, fsctl::READ_FILE_USN_DATA, &[], 4096);
        (le_u64(&of, 16), records(&[&[0; 8], &of[..]].concat())[0].2.clone())
    };
    assert_eq!(told(f), (secret, "plan".to_string()));
    let mut other = client(&lab, USER);
    let by_link = other.open(want("public").existing().access(FILE_READ_ATTRIBUTES)).id;
    let of = other.fsctl(by_link, fsctl::READ_FILE_USN_DATA, &[], 4096);
    assert_eq!(records(&[&[0; 8], &of[..]].concat())[0].2, "public");
    assert_ne!(le_u64(&of, 16), secret);
    for (access, name) in [(FILE_READ_ATTRIBUTES, ""), (FILE_READ_ATTRIBUTES | FILE_TRAVERSE, "plan")] {
        let by_id = want("").existing().access(access).options(OPT_OPEN_BY_FILE_ID).req_named(&number);
        let by_id = Created::parse(&other.call(&by_id).ok()).id;
        let of = other.fsctl(by_id, fsctl::READ_FILE_USN_DATA, &[], 4096);
        assert_eq!(records(&[&[0; 8], &of[..]].concat())[0].2, name);
        assert_eq!(le_u64(&of, 16), if name.is_empty() { 0 } else { secret });
    }
}

#[test]
fn a_directory_has_no_journal() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file")).id;
    for code in [fsctl::QUERY_USN_JOURNAL, fsctl::READ_FILE_USN_DATA, fsctl::WRITE_USN_CLOSE_RECORD] {
        assert_eq!(c.try_fsctl(f, code, &[], 4096), Err(NtStatus::INVALID_DEVICE_REQUEST));
    }
}

/// READ_USN_JOURNAL_DATA with BytesToWaitFor and Timeout, in seconds.
pub fn waiting(start: u64, mask: u32, id: u64, bytes: u64, timeout_s: u64) -> Vec<u8> {
    let mut out = reading(start, mask, false, id, None);
    out[16..24].copy_from_slice(&timeout_s.to_le_bytes());
    out[24..32].copy_from_slice(&bytes.to_le_bytes());
    out
}

/// Who reads the journal of a volume, and who changes files on it.
struct Watched {
    lab: Lab,
    reader: Client,
    changer: Client,
    root: FileId,
    journal: u64,
    /// Where it ends.
    end: u64,
}

fn watched(change: impl FnOnce(&mut Setup)) -> Watched {
    let (lab, _) = on_volume(Lab::with(change));
    let (mut reader, changer) = (client(&lab, USER), client(&lab, USER));
    let root = reader.open(want("").directory()).id;
    reader.fsctl(root, fsctl::CREATE_USN_JOURNAL, &[0; 16], 0);
    let info = reader.fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 80);
    Watched { lab, reader, changer, root, journal: le_u64(&info, 0), end: le_u64(&info, 16) }
}

impl Watched {
    /// Asks, and is told that it takes time.
    #[track_caller]
    fn ask(&mut self, mask: u32, bytes: u64, timeout_s: u64) -> (u64, u64) {
        let input = waiting(self.end, mask, self.journal, bytes, timeout_s);
        let id = self.reader.send(&ioctl(self.root, fsctl::READ_USN_JOURNAL, &input, 4096));
        let async_id = self.reader.interim(id);
        assert!(self.reader.waits(id));
        (id, async_id)
    }
    /// The names that the answer has, once each.
    #[track_caller]
    fn told(&mut self, id: u64) -> Vec<String> {
        let reply = self.reader.receive(id).ok();
        let mut names: Vec<_> = records(reply.ioctl_output()).into_iter().map(|(_, _, name)| name).collect();
        names.dedup();
        names
    }
}

#[test]
fn a_read_of_the_journal_waits_for_records() {
    let mut w = watched(|_| {});
    // Without BytesToWaitFor it does not, whatever Timeout is.
    let input = waiting(w.end, u32::MAX, w.journal, 0, 5);
    assert_eq!(w.reader.fsctl(w.root, fsctl::READ_USN_JOURNAL, &input, 4096).len(), 8);
    let (id, _) = w.ask(u32::MAX, 1, 0);
    w.changer.put("first", b"x");
    assert_eq!(w.told(id), ["first"]);
    // What is there is told at once.
    let input = waiting(w.end, u32::MAX, w.journal, 1 << 20, 0);
    let there = w.reader.fsctl(w.root, fsctl::READ_USN_JOURNAL, &input, 4096);
    assert!(records(&there).iter().all(|(_, _, name)| name == "first"));
    w.end = le_u64(&there, 0);
    // So many bytes, however many changes that takes.
    let (id, _) = w.ask(u32::MAX, 1000, 0);
    w.changer.put("one", b"x");
    assert!(w.reader.waits(id), "a record has less than a hundred bytes");
    w.lab.pass(Duration::from_secs(3600));
    assert!(w.reader.waits(id), "without a Timeout for as long as it takes");
    let names: Vec<_> = (0..20).map(|i| format!("more{i}")).collect();
    names.iter().for_each(|name| w.changer.put(name, b"x"));
    assert!(w.told(id).contains(&"more0".to_owned()));
}

#[test]
fn bytes_to_wait_for_are_those_of_all_records_and_a_time_out_begins_again_without_any() {
    let mut w = watched(|_| {});
    let (id, _) = w.ask(CLOSE, 1, 0);
    let open = w.changer.open(want("file"));
    assert!(w.reader.waits(id), "a record, but none that was asked for");
    w.changer.close(open.id);
    assert_eq!(w.told(id), ["file"]);
    let info = w.reader.fsctl(w.root, fsctl::QUERY_USN_JOURNAL, &[], 80);
    w.end = le_u64(&info, 16);
    let (id, _) = w.ask(u32::MAX, 1 << 30, 10);
    w.lab.pass(Duration::from_secs(11));
    assert!(w.reader.waits(id), "there is nothing to return");
    w.changer.put("late", b"x");
    w.lab.pass(Duration::from_secs(5));
    assert!(w.reader.waits(id), "neither so many bytes nor so late");
    w.lab.pass(Duration::from_secs(6));
    assert_eq!(w.told(id), ["late"]);
}

#[test]
fn a_read_that_waits_ends_with_its_cancel_its_handle_its_session_and_its_journal() {
    let mut w = watched(|_| {});
    let (id, async_id) = w.ask(u32::MAX, 1, 0);
    w.reader.cancel(async_id);
    assert_eq!(w.reader.receive(id).status(), NtStatus::CANCELLED);
    w.changer.put("after", b"x");
    assert!(w.reader.inbox.is_empty(), "nothing of it is left");
    let info = w.reader.fsctl(w.root, fsctl::QUERY_USN_JOURNAL, &[], 80);
    w.end = le_u64(&info, 16);
    let (id, _) = w.ask(u32::MAX, 1, 60);
    w.reader.close(w.root);
    assert_eq!(w.reader.receive(id).status(), NtStatus::CANCELLED);
    w.root = w.reader.open(want("").directory()).id;
    let (id, _) = w.ask(u32::MAX, 1, 60);
    let root = w.changer.open(want("").directory()).id;
    let delete = [w.journal.to_le_bytes(), 1u64.to_le_bytes()].concat();
    w.changer.fsctl(root, fsctl::DELETE_USN_JOURNAL, &delete, 0);
    assert_eq!(w.reader.receive(id).status(), NtStatus::JOURNAL_NOT_ACTIVE);
    w.reader.fsctl(w.root, fsctl::CREATE_USN_JOURNAL, &[0; 16], 0);
    let info = w.reader.fsctl(w.root, fsctl::QUERY_USN_JOURNAL, &[], 80);
    (w.journal, w.end) = (le_u64(&info, 0), le_u64(&info, 16));
    let (id, _) = w.ask(u32::MAX, 1, 0);
    let logoff = w.reader.send(&Req::empty(Command::Logoff));
    assert_eq!(w.reader.receive(logoff).status(), NtStatus::SUCCESS);
    assert_eq!(w.reader.receive(id).status(), NtStatus::CANCELLED);
    // And with its connection, of which nobody is told.
    let mut gone = watched(|_| {});
    gone.ask(u32::MAX, 1, 5);
    gone.reader.disconnect();
    gone.changer.put("file", b"x");
    gone.lab.pass(Duration::from_secs(6));
    assert_eq!(gone.lab.server.trees.opens().len(), 0);
}

#[test]
fn reads_that_wait_are_bounded_as_all_requests_that_do() {
    let mut w = watched(|s| s.limits.pending_per_connection_max = 2);
    let waits = [w.ask(u32::MAX, 1, 0), w.ask(u32::MAX, 1, 0)];
    let input = waiting(w.end, u32::MAX, w.journal, 1, 0);
    let refused = w.reader.try_fsctl(w.root, fsctl::READ_USN_JOURNAL, &input, 4096);
    assert_eq!(refused, Err(NtStatus::INSUFFICIENT_RESOURCES));
    w.changer.put("file", b"x");
    for (id, _) in waits {
        assert_eq!(w.told(id), ["file"]);
    }
}
