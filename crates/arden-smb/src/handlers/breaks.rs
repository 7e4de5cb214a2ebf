//! Acknowledgments of oplock and lease breaks, [MS-SMB2] 3.3.5.22.

use std::sync::Arc;

use arden_store::fs::OplockLevel;
use arden_wire::{
    NtStatus,
    smb2::{
        create::oplock,
        io::{BreakAck, put_lease_break_response, put_oplock_break},
    },
};

use crate::{
    handlers::request::{Fail, Handled, Request},
    model::{SmbOpen, wire_level},
};

pub fn acknowledge(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    match BreakAck::parse(request.verified.message)? {
        BreakAck::Lease { key, state } => {
            // Of this client as this user: nobody acknowledges another's break.
            let client = request.verified.client;
            // Whoever answers a break has heard of the opens, also where the answer is refused.
            for id in request.trees.table.lease_opens(client, key)? {
                if let Some(open) = request.trees.open(id.0) {
                    open.state.lock().replay_eligible = false;
                }
            }
            let now = request.trees.table.ack_lease_break(client, key, state, request.cause())?;
            request.trees.keep_lease(request.scope, client, key);
            put_lease_break_response(out, key, now);
        }
        BreakAck::Oplock { level, file_id } => {
            let open: Arc<SmbOpen> = request.open(file_id)?;
            let file = open.file().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
            // A level that answers no oplock break ends this one all the same, and nothing is left.
            let (to, refusal) = match level {
                oplock::NONE => (OplockLevel::None, None),
                oplock::LEVEL_II => (OplockLevel::LevelII, None),
                oplock::EXCLUSIVE => (OplockLevel::Exclusive, None),
                oplock::BATCH => (OplockLevel::Batch, None),
                oplock::LEASE => (OplockLevel::None, Some(NtStatus::INVALID_PARAMETER)),
                _ => (OplockLevel::None, Some(NtStatus::INVALID_OPLOCK_PROTOCOL)),
            };
            let answered = file.fs().ack_oplock_break(file, to, request.cause());
            // An answer that is refused may have ended the oplock.
            request.trees.keep_open(request.scope, open.id.persistent);
            let level = answered?;
            open.state.lock().breaking = false;
            if let Some(status) = refusal {
                return Err(Fail::Status(status));
            }
            put_oplock_break(out, wire_level(level), file_id);
        }
    }
    Ok(NtStatus::SUCCESS)
}
