//! CLOSE, FLUSH, READ and WRITE, [MS-SMB2] 3.3.5.10 to 3.3.5.13.

use std::sync::{Arc, atomic::Ordering};

use arden_store::{fs::Step, store::Wait, table::Open};
use arden_wire::{
    NtStatus, access,
    cursor::Put,
    smb2::io::{
        CLOSE_POSTQUERY_ATTRIB, CloseResponse, ReadRequest, WRITEFLAG_WRITE_THROUGH, WriteRequest, parse_close,
        parse_flush, put_read_response, put_write_response,
    },
    smb2::session::put_empty,
};

use crate::{
    base::metrics,
    handlers::request::{Continuation, Fail, Handled, Request, waiting},
    model::{Object, SmbOpen},
};

/// Transfers above this run off the reactor, beside the connection's other requests. Up to it the hop to another
/// thread, and its cold cache, cost more than the copy.
pub const INLINE_IO_BYTES_MAX: usize = 1024 * 1024;
/// Writes above this run off the reactor too while the disk is slow.
const SLOW_DISK_INLINE_BYTES_MAX: usize = 64 * 1024;
/// Reads from this size on, that are answered with no more than this before them, take the connection's large buffer.
const LARGE_READ_BYTES: usize = 128 * 1024;
const LARGE_READ_HEAD_BYTES_MAX: usize = 512;

/// [MS-SMB2] 3.3.5.10.
pub fn close(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let (flags, id) = parse_close(request.verified.message)?;
    let close = CloseAfterBreak { open: request.open(id)?, flags };
    let handled = close.close(request, out);
    waiting(handled, close)
}

/// A close that deletes its file, and waits for others to give up their handle caching.
struct CloseAfterBreak {
    open: Arc<SmbOpen>,
    flags: u16,
}

impl Continuation for CloseAfterBreak {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        request.check_still_open(&self.open)?;
        self.close(request, out)
    }
}

impl CloseAfterBreak {
    fn close(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Handled {
        let open = &self.open;
        if !request.may_block && open.closes_long() {
            return Err(Fail::Block);
        }
        if open.has_work() {
            // What came before on this handle is finished first.
            return Err(Fail::After(open.clone()));
        }
        if let Some(file) = open.file()
            && let Step::Wait(wait) = file.fs().prepare_close(file, request.cause())?
        {
            return Err(Fail::Wait(wait, None));
        }
        let mut response = CloseResponse::default();
        if let (true, Some(file)) = (self.flags & CLOSE_POSTQUERY_ATTRIB != 0, open.file()) {
            if let Ok(info) = file.fs().stat(file) {
                let s = info.stat;
                response = CloseResponse {
                    flags: CLOSE_POSTQUERY_ATTRIB,
                    creation: s.creation,
                    last_access: s.last_access,
                    last_write: s.last_write,
                    change: s.change,
                    allocation: s.allocation,
                    end_of_file: s.end_of_file,
                    attributes: s.attributes,
                };
            }
        }
        if !request.trees.close_open(request.scope, open) {
            return Err(NtStatus::FILE_CLOSED.into());
        }
        response.put(out);
        Ok(NtStatus::SUCCESS)
    }
}

/// [MS-SMB2] 3.3.5.11.
pub fn flush(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let open = request.open(parse_flush(request.verified.message)?)?;
    if let Some(file) = open.file() {
        if open.share.is_durable() {
            // What was acknowledged is on stable storage; the chain looks after the rest.
            file.fs().flush_times(file)?;
        } else if request.may_block {
            file.fs().flush(file)?;
        } else {
            return Err(Fail::Block);
        }
    }
    put_empty(out);
    Ok(NtStatus::SUCCESS)
}

/// The largest file: what NTFS has at 4 KiB clusters, 2^44 - 64 KiB.
const FILE_BYTES_MAX: u64 = 0xFFF_FFFF_0000;

/// Files end at 2^63 - 1, [MS-FSA] 2.1.5.3 and 2.1.5.4.
fn check_range(offset: u64, len: usize) -> Result<(), Fail> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(NtStatus::INVALID_PARAMETER.into()),
    }
}

fn wait(request: &Request<'_>) -> Wait {
    if request.may_block { Wait::Yes } else { Wait::No }
}

/// [MS-SMB2] 3.3.5.12.
pub fn read(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let read = ReadRequest::parse(request.verified.message)?;
    let length = read.length as usize;
    if read.length > request.verified.negotiated.max_read {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    request.check_charge(length)?;
    check_range(read.offset, length)?;
    if read.channel != 0 {
        // RDMA channels: not on this transport.
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let open = request.open(read.file_id)?;
    let file = match &open.object {
        Object::File(file) => file,
        Object::Pipe(_) => {
            let read = PipeRead { open: open.clone(), max: length };
            let handled = read.read(request, out);
            return waiting(handled, read);
        }
    };
    let asked = length;
    let length = there_is(file, read.offset, asked);
    if length < asked {
        // Locks count behind the end of the file too.
        file.fs().may_read(file, read.offset, asked as u64)?;
    }
    if length > request.verified.room {
        return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
    }
    if length > INLINE_IO_BYTES_MAX && !request.may_block {
        return Err(Fail::Block);
    }
    let at = put_read_response(out, 0);
    let start = out.len();
    let count = if length >= LARGE_READ_BYTES && start <= LARGE_READ_HEAD_BYTES_MAX {
        let mut large = std::mem::take(&mut *request.large.lock());
        let had = large.capacity();
        large.resize(start + length, 0);
        large[..start].copy_from_slice(out);
        let count = file.fs().read(request.scope, file, read.offset, &mut large[start..], wait(request));
        match count {
            Ok(_) => *out = large,
            // What it has become here is paid for only when it was sent.
            Err(_) if large.capacity() == had => *request.large.lock() = large,
            Err(_) => {}
        }
        count?
    } else {
        out.resize(start + length, 0);
        file.fs().read(request.scope, file, read.offset, &mut out[start..], wait(request))?
    };
    if count < read.minimum_count as usize {
        return Err(NtStatus::END_OF_FILE.into());
    }
    open.position.store(read.offset + count as u64, Ordering::Relaxed);
    out.truncate(start + count);
    out.patch_u32(at, count as u32);
    metrics::count(&request.trees.metrics.bytes_read, count as u64);
    if count == 0 {
        // One byte of buffer is always there, [MS-SMB2] 2.2.20.
        out.put_u8(0);
    }
    Ok(NtStatus::SUCCESS)
}

/// Reads up to this length are not asked first whether there is so much.
const SMALL_READ_BYTES_MAX: usize = 16 * 1024;

/// How much of `length` bytes there can be: memory and time follow what is read, not what is asked for. One byte at least,
/// so that locks and the end of the file are told as for any read.
fn there_is(file: &Open, offset: u64, length: usize) -> usize {
    if length <= SMALL_READ_BYTES_MAX {
        return length;
    }
    match file.node().stat() {
        Ok(stat) if !stat.directory => stat.end_of_file.saturating_sub(offset).clamp(1, length as u64) as usize,
        _ => length,
    }
}

/// A read of a pipe, which waits until there is something to read.
struct PipeRead {
    open: Arc<SmbOpen>,
    max: usize,
}

impl Continuation for PipeRead {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        request.check_still_open(&self.open)?;
        self.read(request, out)
    }
}

impl PipeRead {
    fn read(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Handled {
        let Object::Pipe(pipe) = &self.open.object else { return Err(NtStatus::INVALID_DEVICE_REQUEST.into()) };
        let arden_rpc::PipeRead { data, more } = crate::handlers::pipes::read(request, &self.open, pipe, self.max)?;
        put_read_response(out, data.len() as u32);
        out.extend_from_slice(&data);
        Ok(if more { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS })
    }
}

/// [MS-SMB2] 3.3.5.13.
pub fn write(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let write = WriteRequest::parse(request.verified.message)?;
    if write.data.len() > request.verified.negotiated.max_write as usize {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    request.check_charge(write.data.len())?;
    check_range(write.offset, write.data.len())?;
    if !write.data.is_empty() && write.offset + write.data.len() as u64 > FILE_BYTES_MAX {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if write.channel != 0 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let open = request.open(write.file_id)?;
    let file = match &open.object {
        Object::File(file) => file,
        Object::Pipe(pipe) => {
            crate::handlers::pipes::write(request, &open, pipe, write.data)?;
            put_write_response(out, write.data.len() as u32);
            return Ok(NtStatus::SUCCESS);
        }
    };
    let through = must_write_through(&open, write.flags);
    if (through || write.data.len() > inline_write_bytes_max(request)) && !request.may_block {
        return Err(Fail::Block);
    }
    file.fs().write(file, write.offset, write.data, wait(request), request.cause())?;
    open.position.store(write.offset + write.data.len() as u64, Ordering::Relaxed);
    metrics::count(&request.trees.metrics.bytes_written, write.data.len() as u64);
    if through {
        file.fs().flush(file)?;
    }
    put_write_response(out, write.data.len() as u32);
    Ok(NtStatus::SUCCESS)
}

fn inline_write_bytes_max(request: &Request<'_>) -> usize {
    let slow_until = request.trees.slow_disk_until_ms.load(Ordering::Relaxed);
    match slow_until > 0 && (request.now - request.trees.started).as_millis() < u128::from(slow_until) {
        true => SLOW_DISK_INLINE_BYTES_MAX,
        false => INLINE_IO_BYTES_MAX,
    }
}

/// The request or the handle may ask for stable storage; where the share does, the chain flushes for all that is answered
/// at once.
fn must_write_through(open: &SmbOpen, flags: u32) -> bool {
    !open.share.is_durable()
        && (flags & WRITEFLAG_WRITE_THROUGH != 0 || open.mode.load(Ordering::Relaxed) & access::OPT_WRITE_THROUGH != 0)
}
