//! Oplock and lease breaks: notifications and acknowledgments, [MS-SMB2] 3.3.4.6, 3.3.4.7 and 3.3.5.22.

use std::sync::Arc;

use arden_store::fs::{ClientId, LeaseBreak, OplockLevel};
use arden_wire::{
    NtStatus,
    cursor::Put,
    smb2::{
        Command, Header,
        create::oplock,
        flags,
        io::{BreakAck, put_lease_break_notification, put_lease_break_response, put_oplock_break},
        transform::TRANSFORM_BYTES,
    },
};

use crate::{
    chain::{Fail, Handled, Request, put_frame_length, seal_frame},
    create::wire_level,
    model::{Peer, Session, SmbOpen},
};

/// A message that the server sends of its own accord: id all ones, no session, not signed; encrypted where the
/// session is.
fn unsolicited(session: &Session, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let encrypt = session.encrypt_data && session.keys.is_some();
    let mut frame = Vec::with_capacity(192);
    frame.put_u32(0);
    if encrypt {
        frame.put_zeros(TRANSFORM_BYTES);
    }
    Header {
        credit_charge: 0,
        status: 0,
        command: Command::OplockBreak as u16,
        credits: 0,
        flags: flags::SERVER_TO_REDIR,
        next_command: 0,
        message_id: u64::MAX,
        async_or_tree: 0,
        session_id: 0,
        signature: [0; 16],
    }
    .put(&mut frame);
    body(&mut frame);
    if encrypt {
        seal_frame(session, &mut frame[4..]);
    }
    put_frame_length(&mut frame, 0);
    frame
}

pub fn send_oplock_break(session: &Session, peer: &Peer, open: &SmbOpen, to: OplockLevel) {
    peer.send(unsolicited(session, |out| put_oplock_break(out, wire_level(to), open.id)));
}

pub fn send_lease_break(session: &Session, peer: &Peer, b: &LeaseBreak) {
    // [MS-SMB2] 2.2.23.2: the epoch belongs to version 2.
    let epoch = if b.version == 2 { b.epoch } else { 0 };
    peer.send(unsolicited(session, |out| put_lease_break_notification(out, epoch, b.ack, b.key, b.from, b.to)));
}

pub fn acknowledge(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    match BreakAck::parse(request.message)? {
        BreakAck::Lease { key, state } => {
            let client = ClientId(request.peer.client_guid());
            let now = request.server.table.ack_lease_break(client, key, state, request.now)?;
            request.server.keep_lease(client, key);
            put_lease_break_response(out, key, now);
        }
        BreakAck::Oplock { level, file_id } => {
            let open: Arc<SmbOpen> = request.open(file_id)?;
            let file = open.file().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
            let to = match level {
                oplock::NONE => OplockLevel::None,
                oplock::LEVEL_II => OplockLevel::LevelII,
                oplock::EXCLUSIVE => OplockLevel::Exclusive,
                oplock::BATCH => OplockLevel::Batch,
                _ => return Err(Fail::Status(NtStatus::INVALID_PARAMETER)),
            };
            let level = file.fs().ack_oplock_break(file, to, request.now)?;
            open.state.lock().breaking = false;
            request.server.keep_open(open.id.persistent);
            put_oplock_break(out, wire_level(level), file_id);
        }
    }
    Ok(NtStatus::SUCCESS)
}
