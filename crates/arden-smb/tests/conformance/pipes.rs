//! Named pipes over IPC$.

use arden_smb::model::Object;

use crate::client::*;

fn on_ipc(lab: &Lab) -> Client {
    let mut c = lab.client();
    let reply = c.connect("IPC$");
    assert_eq!(reply.body()[2], 2, "SMB2_SHARE_TYPE_PIPE");
    c
}

fn pipe(name: &str) -> Want {
    want(name).existing().access(GENERIC_READ | GENERIC_WRITE).options(OPT_NON_DIRECTORY_FILE)
}

/// `BVT_FileAccess_OpenNamedPipe`, `FileAccess_OpenNamedPipe_IsCaseInsensitive`
#[test]
fn bvt_file_access_open_named_pipe() {
    let lab = Lab::new();
    let mut c = on_ipc(&lab);
    for name in ["srvsvc", "SrvSvc", "lsarpc", "wkssvc"] {
        let f = c.open(pipe(name));
        c.close(f.id);
    }
    assert!(lab.server.trees.opens().is_empty());
}
/// `BVT_FileAccess_OpenNamedPipe_InvalidPathName`
#[test]
fn bvt_file_access_open_named_pipe_invalid_path_name() {
    let lab = Lab::new();
    assert_eq!(on_ipc(&lab).fails(pipe("InvalidName")), NtStatus::OBJECT_NAME_NOT_FOUND);
}
/// `FileAccess_OpenNamedPipe_DesiredAccessZero`
#[test]
fn file_access_open_named_pipe_desired_access_zero() {
    let lab = Lab::new();
    assert_eq!(on_ipc(&lab).fails(pipe("srvsvc").access(0)), NtStatus::ACCESS_DENIED);
}

/// A bind to srvsvc with NDR.
pub fn bind() -> Vec<u8> {
    let mut b = vec![5, 0, 11, 3, 0x10, 0, 0, 0, 72, 0, 0, 0, 1, 0, 0, 0];
    b.put_u16(4280);
    b.put_u16(4280);
    b.put_u32(0);
    b.extend_from_slice(&[1, 0, 0, 0, 0, 0, 1, 0]);
    b.extend_from_slice(&[
        0xc8, 0x4f, 0x32, 0x4b, 0x70, 0x16, 0xd3, 0x01, 0x12, 0x78, 0x5a, 0x47, 0xbf, 0x6e, 0xe1, 0x88,
    ]);
    b.put_u32(3);
    b.extend_from_slice(&[
        0x04, 0x5d, 0x88, 0x8a, 0xeb, 0x1c, 0xc9, 0x11, 0x9f, 0xe8, 0x08, 0x00, 0x2b, 0x10, 0x48, 0x60,
    ]);
    b.put_u32(2);
    b
}

#[test]
fn a_conversation_by_transceive_and_by_write_and_read() {
    let lab = Lab::new();
    let mut c = on_ipc(&lab);
    let f = c.open(pipe("srvsvc"));
    let ack = c.fsctl(f.id, fsctl::PIPE_TRANSCEIVE, &bind(), 4096);
    assert_eq!(ack[2], 12, "bind_ack");
    let g = c.open(pipe("srvsvc"));
    c.write(g.id, 0, &bind());
    assert_eq!(c.read(g.id, 0, 4096)[2], 12);
    // An answer that does not fit comes in pieces.
    let h = c.open(pipe("srvsvc"));
    let reply = c.call(&ioctl(h.id, fsctl::PIPE_TRANSCEIVE, &bind(), 16));
    assert_eq!(reply.status(), NtStatus::BUFFER_OVERFLOW);
    let rest = c.read(h.id, 0, 4096);
    let mut pieces = [reply.ioctl_output(), &rest].concat();
    // The association's id is each pipe's own.
    pieces[20..24].copy_from_slice(&ack[20..24]);
    assert_eq!(pieces, ack);
}

#[test]
fn what_files_have_and_pipes_have_not() {
    let lab = Lab::new();
    let mut c = on_ipc(&lab);
    let f = c.open(pipe("srvsvc"));
    assert_eq!(c.status(&lock(f.id, 0, &[(0, 1, lock_flags::SHARED)])), NtStatus::INVALID_DEVICE_REQUEST);
    assert!(c.status(&notify(f.id, 0, 1, 100)).is_error());
    assert!(c.list_once(f.id, file_class::NAMES, 1, "*").is_err());
    assert!(c.set(f.id, file_class::END_OF_FILE, &[0; 8]).is_error());
    assert!(c.try_fsctl(f.id, fsctl::SET_SPARSE, &[], 0).is_err());
    assert_eq!(c.status(&flush(f.id)), NtStatus::SUCCESS);
    assert_eq!(c.query(f.id, file_class::STANDARD).len(), 24);
}

/// Reads that were taken back leave nothing with the pipe; one that waits beside them hears what is said.
#[test]
fn reads_of_an_empty_pipe_that_are_cancelled_leave_nothing_behind() {
    if has_two_nodes() {
        // Pipes are the client's node's, which nobody can look into here.
        return;
    }
    let lab = Lab::new();
    let mut c = on_ipc(&lab);
    let f = c.open(pipe("srvsvc"));
    let waits = c.send(&read(f.id, 0, 4096));
    c.interim(waits);
    for _ in 0..1000 {
        let id = c.send(&read(f.id, 0, 4096));
        let async_id = c.interim(id);
        c.cancel(async_id);
        assert_eq!(c.receive(id).status(), NtStatus::CANCELLED);
    }
    let opens = lab.server.trees.opens();
    let Object::Pipe(state) = &opens[0].object else { panic!("a pipe") };
    let kept = state.readers.lock().capacity();
    assert!(kept < 100, "{kept} readers are kept");
    c.write(f.id, 0, &bind());
    assert_eq!(c.receive(waits).read_data()[2], 12);
}
