//! CHANGE_NOTIFY, [MS-SMB2] 3.3.5.19.

use crate::client::*;

/// FILE_NOTIFY_CHANGE_*, [MS-SMB2] 2.2.35.
mod filter {
    pub const FILE_NAME: u32 = 0x1;
    pub const DIR_NAME: u32 = 0x2;
    pub const ATTRIBUTES: u32 = 0x4;
    pub const SIZE: u32 = 0x8;
    pub const LAST_WRITE: u32 = 0x10;
    pub const LAST_ACCESS: u32 = 0x20;
    pub const CREATION: u32 = 0x40;
    pub const EA: u32 = 0x80;
    pub const SECURITY: u32 = 0x100;
    pub const STREAM_NAME: u32 = 0x200;
    pub const STREAM_SIZE: u32 = 0x400;
    pub const STREAM_WRITE: u32 = 0x800;
}

/// Actions of [MS-FSCC] 2.7.1.
const ADDED: u32 = 1;
const REMOVED: u32 = 2;
const MODIFIED: u32 = 3;
const RENAMED_OLD: u32 = 4;
const RENAMED_NEW: u32 = 5;
const ADDED_STREAM: u32 = 6;
const MODIFIED_STREAM: u32 = 8;

/// A directory "dir" with "file" in it, watched by the first client; the second one changes it.
struct Watched {
    lab: Lab,
    watcher: Client,
    changer: Client,
    dir: FileId,
    id: u64,
    async_id: u64,
}

fn watch(filter: u32) -> Watched {
    let lab = Lab::new();
    let (mut watcher, mut changer) = (lab.client(), lab.client());
    changer.make_directory("dir");
    changer.put("dir\\file", b"content");
    changer.put("dir\\file:stream", b"s");
    let dir = watcher.open(want("dir").directory().access(FILE_GENERIC_READ)).id;
    let id = watcher.send(&notify(dir, 0, filter, 4096));
    let async_id = watcher.interim(id);
    Watched { lab, watcher, changer, dir, id, async_id }
}

impl Watched {
    #[track_caller]
    fn told(&mut self) -> Vec<(u32, String)> {
        let reply = self.watcher.receive(self.id).ok();
        assert!(reply.header.is(arden_wire::smb2::flags::ASYNC_COMMAND));
        assert_eq!(reply.header.async_or_tree, self.async_id);
        changes(reply.buffer())
    }
    fn file(&mut self) -> FileId {
        self.changer.open(want("dir\\file").existing()).id
    }
}

fn one(action: u32, name: &str) -> Vec<(u32, String)> {
    vec![(action, name.to_owned())]
}

/// `BVT_SMB2Basic_CancelRegisteredChangeNotify`
#[test]
fn bvt_smb2basic_cancel_registered_change_notify() {
    let mut w = watch(filter::LAST_WRITE);
    let async_id = w.async_id;
    w.watcher.cancel(async_id);
    assert_eq!(w.watcher.receive(w.id).status(), NtStatus::CANCELLED);
    // Nothing of it is left behind.
    w.changer.put("dir\\new", b"x");
    assert!(w.watcher.inbox.is_empty());
    // By message id as well.
    let mut w = watch(filter::LAST_WRITE);
    let id = w.id;
    w.watcher.send(&Req::empty(Command::Cancel).id(id));
    assert_eq!(w.watcher.receive(id).status(), NtStatus::CANCELLED);
    // And, as clients of Samba do before they know an AsyncId, with MessageId 0: the latest of the same session.
    let mut w = watch(filter::LAST_WRITE);
    let latest = w.watcher.send(&notify(w.dir, 0, filter::LAST_WRITE, 4096));
    w.watcher.interim(latest);
    w.changer.send(&Req::empty(Command::Cancel).id(0));
    w.watcher.send(&Req::empty(Command::Cancel).id(0));
    assert_eq!(w.watcher.receive(latest).status(), NtStatus::CANCELLED);
    assert!(w.watcher.poll(w.id).is_none());
}

/// Clients do not wait for the interim response before they change something: the directory is watched once the request
/// was read, and not later on another thread.
#[test]
fn changes_right_after_the_request_are_told() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.make_directory("dir");
    let dir = c.open(want("dir").directory().access(FILE_GENERIC_READ)).id;
    c.held = Some(Vec::new());
    let id = c.send(&notify(dir, 1, filter::FILE_NAME, 4096));
    lab.client().put("dir\\new", b"");
    assert_eq!(c.run_held(), 0);
    assert_eq!(changes(c.receive(id).ok().buffer()), one(ADDED, "new"));
}

/// `BVT_SMB2Basic_ChangeNotify_ChangeFileName`
#[test]
fn bvt_smb2basic_change_notify_change_file_name() {
    let mut w = watch(filter::FILE_NAME);
    w.changer.put("dir\\new", b"");
    assert_eq!(w.told(), one(ADDED, "new"));
    let mut w = watch(filter::FILE_NAME);
    let f = w.file();
    assert_eq!(w.changer.rename(f, "dir\\renamed", false), NtStatus::SUCCESS);
    assert_eq!(w.told(), [(RENAMED_OLD, "file".to_owned()), (RENAMED_NEW, "renamed".to_owned())]);
    let mut w = watch(filter::FILE_NAME);
    let f = w.changer.open(want("dir\\file").existing().delete_on_close());
    w.changer.close(f.id);
    assert_eq!(w.told(), one(REMOVED, "file"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeDirName`
#[test]
fn bvt_smb2basic_change_notify_change_dir_name() {
    let mut w = watch(filter::DIR_NAME);
    w.changer.put("dir\\new", b"");
    assert!(w.watcher.waits(w.id), "files do not matter");
    w.changer.make_directory("dir\\sub");
    assert_eq!(w.told(), one(ADDED, "sub"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeAttributes`
#[test]
fn bvt_smb2basic_change_notify_change_attributes() {
    let mut w = watch(filter::ATTRIBUTES);
    let f = w.file();
    assert_eq!(w.changer.set(f, file_class::BASIC, &basic(0, 0, 0, 0, ATTR_HIDDEN)), NtStatus::SUCCESS);
    assert_eq!(w.told(), one(MODIFIED, "file"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeSize`
#[test]
fn bvt_smb2basic_change_notify_change_size() {
    let mut w = watch(filter::SIZE);
    let f = w.file();
    assert_eq!(w.changer.set(f, file_class::END_OF_FILE, &100u64.to_le_bytes()), NtStatus::SUCCESS);
    assert_eq!(w.told(), one(MODIFIED, "file"));
}

const A_TIME: u64 = 0x01D0_0000_0000_0000;

fn by_time(filter: u32, times: [u64; 3]) {
    let mut w = watch(filter);
    let f = w.file();
    let data = basic(times[0], times[1], times[2], 0, 0);
    assert_eq!(w.changer.set(f, file_class::BASIC, &data), NtStatus::SUCCESS);
    assert_eq!(w.told(), one(MODIFIED, "file"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeLastAccess`
#[test]
fn bvt_smb2basic_change_notify_change_last_access() {
    by_time(filter::LAST_ACCESS, [0, A_TIME, 0]);
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeLastWrite`
#[test]
fn bvt_smb2basic_change_notify_change_last_write() {
    by_time(filter::LAST_WRITE, [0, 0, A_TIME]);
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeCreation`
#[test]
fn bvt_smb2basic_change_notify_change_creation() {
    by_time(filter::CREATION, [A_TIME, 0, 0]);
}

/// `BVT_SMB2Basic_ChangeNotify_ChangeEa`
#[test]
fn bvt_smb2basic_change_notify_change_ea() {
    let mut w = watch(filter::EA);
    let f = w.file();
    assert_eq!(w.changer.set(f, file_class::FULL_EA, &eas(&[("NAME", b"value")])), NtStatus::SUCCESS);
    assert_eq!(w.told(), one(MODIFIED, "file"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeSecurity`
#[test]
fn bvt_smb2basic_change_notify_change_security() {
    let mut w = watch(filter::SECURITY);
    let f = w.file();
    let dacl = 4;
    let sd = w.changer.call(&query_info(f, info_type::SECURITY, 0, dacl, &[], 4096)).ok().buffer().to_vec();
    w.changer.call(&set_info(f, info_type::SECURITY, 0, dacl, &sd)).ok();
    assert_eq!(w.told(), one(MODIFIED, "file"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeStreamName`
#[test]
fn bvt_smb2basic_change_notify_change_stream_name() {
    let mut w = watch(filter::STREAM_NAME);
    w.changer.open(want("dir\\file:new"));
    assert_eq!(w.told(), one(ADDED_STREAM, "file:new"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeStreamSize`
#[test]
fn bvt_smb2basic_change_notify_change_stream_size() {
    let mut w = watch(filter::STREAM_SIZE);
    let f = w.changer.open(want("dir\\file:stream").existing());
    assert_eq!(w.changer.set(f.id, file_class::END_OF_FILE, &100u64.to_le_bytes()), NtStatus::SUCCESS);
    assert_eq!(w.told(), one(MODIFIED_STREAM, "file:stream"));
}
/// `BVT_SMB2Basic_ChangeNotify_ChangeStreamWrite`
#[test]
fn bvt_smb2basic_change_notify_change_stream_write() {
    let mut w = watch(filter::STREAM_WRITE);
    let f = w.changer.open(want("dir\\file:stream").existing());
    w.changer.write(f.id, 0, b"x");
    if w.watcher.waits(w.id) {
        w.changer.close(f.id);
    }
    assert_eq!(w.told(), one(MODIFIED_STREAM, "file:stream"));
}

/// Both statuses are no failures: the answer is a CHANGE_NOTIFY response without changes, [MS-SMB2] 2.2.36 and 3.3.4.4.
fn ends_without_changes(reply: &Reply, status: NtStatus) {
    assert_eq!(reply.status(), status);
    assert_eq!((reply.u16(0), reply.u16(2)), (9, 72), "StructureSize, OutputBufferOffset");
    assert_eq!(&reply.body()[4..], [0; 5], "OutputBufferLength");
}

/// `BVT_SMB2Basic_ChangeNotify_ServerReceiveSmb2Close`
#[test]
fn bvt_smb2basic_change_notify_server_receive_smb2_close() {
    let mut w = watch(filter::FILE_NAME);
    w.watcher.close(w.dir);
    ends_without_changes(&w.watcher.receive(w.id), NtStatus::NOTIFY_CLEANUP);
}

/// `BVT_SMB2Basic_ChangeNotify_NonDirectoryFile`
#[test]
fn bvt_smb2basic_change_notify_non_directory_file() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    assert_eq!(c.status(&notify(f.id, 0, filter::FILE_NAME, 4096)), NtStatus::INVALID_PARAMETER);
}

fn max_transact(dialect: Dialect) {
    let lab = Lab::new();
    let mut c = lab.connect();
    let n = c.negotiate(&Offer::up_to(dialect));
    c.logon(&logon(USER));
    c.connect(SHARE);
    c.call(&echo().credits(512)).ok();
    let f = c.open(want("dir").directory());
    let status = c.status(&notify(f.id, 0, filter::FILE_NAME, n.max_transact + 1));
    assert_eq!(status, NtStatus::INVALID_PARAMETER);
    let id = c.send(&notify(f.id, 0, filter::FILE_NAME, n.max_transact));
    c.interim(id);
}
/// `BVT_SMB2Basic_ChangeNotify_MaxTransactSizeCheck_Smb2002`
#[test]
fn bvt_smb2basic_change_notify_max_transact_size_check_smb2002() {
    max_transact(Dialect::Smb202);
}
/// `BVT_SMB2Basic_ChangeNotify_MaxTransactSizeCheck_Smb21`
#[test]
fn bvt_smb2basic_change_notify_max_transact_size_check_smb21() {
    max_transact(Dialect::Smb210);
}
/// `BVT_SMB2Basic_ChangeNotify_MaxTransactSizeCheck_Smb30`
#[test]
fn bvt_smb2basic_change_notify_max_transact_size_check_smb30() {
    max_transact(Dialect::Smb300);
}
/// `BVT_SMB2Basic_ChangeNotify_MaxTransactSizeCheck_Smb302`
#[test]
fn bvt_smb2basic_change_notify_max_transact_size_check_smb302() {
    max_transact(Dialect::Smb302);
}
/// `BVT_SMB2Basic_ChangeNotify_MaxTransactSizeCheck_Smb311`
#[test]
fn bvt_smb2basic_change_notify_max_transact_size_check_smb311() {
    max_transact(Dialect::Smb311);
}

/// `BVT_SMB2Basic_ChangeNotify_NoFileListDirectoryInGrantedAccess`
#[test]
fn bvt_smb2basic_change_notify_no_file_list_directory_in_granted_access() {
    let lab = Lab::new();
    let mut c = lab.client();
    let access = FILE_READ_ATTRIBUTES | SYNCHRONIZE | FILE_WRITE_DATA;
    let f = c.open(want("dir").directory().access(access));
    assert_eq!(c.status(&notify(f.id, 0, filter::FILE_NAME, 4096)), NtStatus::ACCESS_DENIED);
}

#[test]
fn a_tree_is_watched_when_asked() {
    let lab = Lab::new();
    let (mut watcher, mut changer) = (lab.client(), lab.client());
    changer.make_directory("dir");
    changer.make_directory("dir\\sub");
    let d = watcher.open(want("dir").directory().access(FILE_GENERIC_READ));
    let id = watcher.send(&notify(d.id, 1, filter::FILE_NAME, 4096));
    watcher.interim(id);
    changer.put("dir\\sub\\deep", b"");
    assert_eq!(changes(watcher.receive(id).ok().buffer()), one(ADDED, "sub\\deep"));
}

#[test]
fn what_happens_between_two_calls_is_kept_and_too_much_says_so() {
    let mut w = watch(filter::FILE_NAME);
    for name in ["a", "b", "c"] {
        w.changer.put(&format!("dir\\{name}"), b"");
    }
    assert_eq!(w.told(), one(ADDED, "a"));
    let reply = w.watcher.call(&notify(w.dir, 0, filter::FILE_NAME, 4096)).ok();
    assert_eq!(changes(reply.buffer()), [(ADDED, "b".to_owned()), (ADDED, "c".to_owned())]);
    let id = w.watcher.send(&notify(w.dir, 0, filter::FILE_NAME, 16));
    w.watcher.interim(id);
    w.changer.put("dir\\a-name-that-does-not-fit", b"");
    ends_without_changes(&w.watcher.receive(id), NtStatus::NOTIFY_ENUM_DIR);
    drop(w.lab);
}
