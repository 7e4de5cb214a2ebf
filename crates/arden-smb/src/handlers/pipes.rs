//! Named pipes: what IPC$ serves, [MS-SMB2] 3.3.5.9 and 3.3.5.15.3. The conversation is `arden-rpc`'s.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64},
};

use arden_lock::Mutex;
use arden_rpc::{PipeContext, PipeRead};
use arden_store::fs::{CreateAction, WaitId};
use arden_wire::{
    FileTime, NtStatus, access,
    fscc::fsctl,
    smb2::{
        FileId,
        create::{CreateRequest, CreateResponse, oplock},
        io::IoctlRequest,
    },
};

use crate::{
    base::usage::{Charge, Kind, OpenUsage},
    handlers::{
        create::register,
        request::{Fail, Handled, Request},
    },
    model::{Object, OpenState, PipeState, SmbOpen, Tree, Work},
};

pub fn create(request: &mut Request<'_>, tree: &Tree, r: &CreateRequest<'_>, out: &mut Vec<u8>) -> Handled {
    let name = r.name.clone().map_err(|_| NtStatus::OBJECT_NAME_INVALID)?;
    let caller = request.verified.user.clone();
    let usage = request.trees.usage.charge(Kind::Pipes, &caller, Some(request.verified.ip), 1);
    let usage = usage.map_err(|_| NtStatus::INSUFFICIENT_RESOURCES)?;
    let view = request.trees.view().ok_or(NtStatus::INSUFFICIENT_RESOURCES)?;
    let pipe = arden_rpc::open_pipe(&name, PipeContext { view, caller: caller.clone() })
        .ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    // Pipes share the number space of files, from the top down.
    let id = u64::MAX / 2 - request.trees.next_id();
    let id = FileId { persistent: id, volatile: id };
    let open = Arc::new(SmbOpen {
        id,
        object: Object::Pipe(PipeState { end: Mutex::new(pipe), readers: Mutex::default() }),
        share: tree.share.clone(),
        owner: caller,
        client: request.verified.client,
        create_guid: None,
        lease_key: None,
        app_instance: None,
        action: CreateAction::Opened,
        create_options: r.options,
        name,
        desired_access: r.desired_access,
        state: Mutex::new(OpenState::new(request.session, tree.id, request.verified.header.channel_sequence())),
        position: AtomicU64::new(0),
        quota_index: AtomicU64::new(0),
        ea_index: AtomicU64::new(0),
        mode: AtomicU32::new(0),
        kept_locks: Mutex::default(),
        work: Work::default(),
        usage: OpenUsage::of(usage),
    });
    register(request, &open);
    request.related.file = Some(id);
    CreateResponse {
        oplock_level: oplock::NONE,
        action: 1,
        creation: FileTime::ZERO,
        last_access: FileTime::ZERO,
        last_write: FileTime::ZERO,
        change: FileTime::ZERO,
        allocation: 4096,
        end_of_file: 0,
        attributes: access::ATTR_NORMAL,
        reparse: false,
        file_id: id,
    }
    .put(out, &[]);
    Ok(NtStatus::SUCCESS)
}

/// [MS-SMB2] 3.3.5.12: a read of an empty pipe waits for something to be said, and is made again then.
pub fn read(request: &Request<'_>, open: &Arc<SmbOpen>, pipe: &PipeState, max: usize) -> Result<PipeRead, Fail> {
    off_the_reactor(request)?;
    let mut end = pipe.end.lock();
    match end.read(max) {
        Err(NtStatus::PIPE_EMPTY) => {
            let wait = request.trees.new_wait();
            note_reader(request, pipe, wait);
            // Who closed it meanwhile has not seen this one.
            request.check_still_open(open).inspect_err(|_| request.trees.forget_wait(wait))?;
            Err(Fail::Wait(wait, None))
        }
        other => {
            if let Some(held) = open.usage.pipe_bytes.get() {
                held.set(end.held_bytes());
            }
            Ok(other?)
        }
    }
}

/// Before the list grows, those whose requests were taken back leave it.
fn note_reader(request: &Request<'_>, pipe: &PipeState, wait: WaitId) {
    let mut readers = pipe.readers.lock();
    if readers.len() == readers.capacity() {
        readers.retain(|reader| request.trees.is_awaited(*reader));
        // So that the next look at all of them comes after as many as there are now.
        let room = readers.len().max(8);
        readers.reserve(room);
    }
    readers.push(wait);
}

/// Counts what nobody has read yet, and calls that are not complete. INSUFFICIENT_RESOURCES: it is too much in all pipes of the user for another call.
fn room<'a>(request: &Request<'_>, open: &'a SmbOpen) -> Result<&'a Charge, Fail> {
    let account = || request.trees.usage.account(Kind::PipeBytes, &open.owner, Some(request.verified.ip));
    let held = open.usage.pipe_bytes.get_or_init(account);
    held.add(0).map_err(|_| NtStatus::INSUFFICIENT_RESOURCES)?;
    Ok(held)
}

/// One write may hold thousands of calls, and who asks meanwhile waits for the pipe's end.
fn off_the_reactor(request: &Request<'_>) -> Result<(), Fail> {
    if request.may_block { Ok(()) } else { Err(Fail::Block) }
}

/// Takes a message; readers that waited go on.
pub fn write(request: &Request<'_>, open: &SmbOpen, pipe: &PipeState, message: &[u8]) -> Result<(), Fail> {
    off_the_reactor(request)?;
    let mut end = pipe.end.lock();
    let held = room(request, open)?;
    let written = end.write(message);
    held.set(end.held_bytes());
    written?;
    if end.available() > 0 {
        let readers = std::mem::take(&mut *pipe.readers.lock());
        drop(end);
        readers.into_iter().for_each(|wait| request.trees.resume(wait));
    }
    Ok(())
}

/// FSCTL_PIPE_TRANSCEIVE, [MS-SMB2] 3.3.5.15.3: a write and the read of its answer.
pub fn ioctl(
    request: &Request<'_>,
    open: &SmbOpen,
    pipe: &PipeState,
    ioctl: &IoctlRequest<'_>,
) -> Result<(NtStatus, Vec<u8>), Fail> {
    match ioctl.ctl_code {
        fsctl::PIPE_TRANSCEIVE => {
            off_the_reactor(request)?;
            let max = ioctl.max_output_response as usize;
            let held = room(request, open)?;
            let mut end = pipe.end.lock();
            let done = end.transceive(ioctl.input, max);
            held.set(end.held_bytes());
            drop(end);
            let PipeRead { data, more } = done?;
            Ok((if more { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS }, data))
        }
        // FSCTL_PIPE_WAIT on a pipe that is open has nothing to wait for.
        fsctl::PIPE_WAIT => Ok((NtStatus::SUCCESS, Vec::new())),
        _ => Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
    }
}
