//! QUERY_DIRECTORY and CHANGE_NOTIFY, [MS-SMB2] 3.3.5.18 and 3.3.5.19.

use std::sync::Arc;

use arden_auth::Token;
use arden_store::{
    fs::{Change, Emitted, HeldBytes, Step},
    name::PATTERN_UNITS_MAX,
    store::{ChangeKind, DirEntry, Stat},
    table::Open,
};
use arden_wire::{
    NtStatus, access,
    cursor::Put,
    fscc::{self, DirectoryClass, FileMeta},
    names::name_units,
    smb2::info::{ChangeNotifyRequest, QueryDirectoryRequest, WATCH_TREE, directory_flags, put_buffer_response},
};

use crate::{
    base::usage::Kind,
    handlers::request::{Continuation, Fail, Handled, Request, waiting},
    model::SmbOpen,
};

/// Names that are passed over on the reactor before the search goes on elsewhere, by a short pattern.
const INLINE_NAMES_MAX: usize = 1024;
/// Each name costs once more for so many characters of the pattern.
const PATTERN_STEP: usize = 64;
/// What a watch gathers at most.
const NOTIFY_BYTES_MAX: usize = 64 * 1024;
/// A listing with less room than this, and than was asked for, is refused.
const ANSWER_BYTES_MIN: usize = 4096;
/// Larger answers are made off the reactor.
const INLINE_LISTING_BYTES_MAX: u32 = 64 * 1024;

pub fn meta(stat: &Stat) -> FileMeta {
    FileMeta {
        creation: stat.creation,
        last_access: stat.last_access,
        last_write: stat.last_write,
        change: stat.change,
        attributes: stat.attributes,
        allocation: stat.allocation,
        end_of_file: stat.end_of_file,
        links: stat.links,
        delete_pending: false,
        directory: stat.directory,
        file_id: stat.id.file,
        volume_id: stat.id.volume,
        ea_size: stat.ea_size,
        reparse_tag: stat.reparse_tag,
    }
}

pub fn query(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let query = QueryDirectoryRequest::parse(request.verified.message)?;
    let open = request.open(query.file_id)?;
    let file = open.file().ok_or(NtStatus::INVALID_PARAMETER)?.clone();
    if !file.is_directory() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let class = DirectoryClass::from_u8(query.class).ok_or(NtStatus::INVALID_INFO_CLASS)?;
    if query.output_length > request.verified.negotiated.max_transact {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    request.check_charge(query.output_length as usize)?;
    if query.pattern.is_empty() || name_units(&query.pattern) > PATTERN_UNITS_MAX {
        return Err(NtStatus::OBJECT_NAME_INVALID.into());
    }
    if (query.output_length as usize) < class.fixed_bytes() {
        return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
    }
    if query.output_length > INLINE_LISTING_BYTES_MAX && !request.may_block {
        return Err(Fail::Block);
    }
    let max = (query.output_length as usize).min(request.verified.room);
    if max < (query.output_length as usize).min(ANSWER_BYTES_MIN) {
        return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
    }
    let len_at = put_buffer_response(out);
    let mut page = Page { out, class, max, last: None, base: 0, full: false };
    page.base = page.out.len();
    let visible_only = open.share.access_based_enumeration;
    if visible_only && !request.may_block {
        // It looks at each entry's descriptor.
        return Err(Fail::Block);
    }
    let visible = open
        .share
        .access_based_enumeration
        .then(|| Visibility { file: file.clone(), who: request.verified.user.clone() });
    let restart = query.flags & directory_flags::RESTART_SCANS != 0;
    let reopen = query.flags & directory_flags::REOPEN != 0;
    let single = query.flags & directory_flags::RETURN_SINGLE_ENTRY != 0;
    let names_max = match request.may_block {
        true => usize::MAX,
        false => INLINE_NAMES_MAX / (1 + query.pattern.len() / PATTERN_STEP),
    };
    file.fs().query_directory_part(&file, &query.pattern, restart, reopen, single, names_max, &mut |entry| {
        if visible.as_ref().is_some_and(|v| !v.sees(entry)) {
            return Emitted::Hidden;
        }
        if page.put(entry) { Emitted::Taken } else { Emitted::Full }
    })?;
    let (base, nothing, full) = (page.base, page.last.is_none(), page.full);
    if nothing && full {
        return Err(NtStatus::BUFFER_OVERFLOW.into());
    }
    if nothing {
        return Err(NtStatus::NO_MORE_FILES.into());
    }
    let len = (out.len() - base) as u32;
    out.patch_u32(len_at, len);
    Ok(NtStatus::SUCCESS)
}

/// The answer under construction.
struct Page<'a> {
    out: &'a mut Vec<u8>,
    class: DirectoryClass,
    max: usize,
    last: Option<usize>,
    base: usize,
    full: bool,
}

impl Page<'_> {
    /// False: does not fit.
    fn put(&mut self, entry: &DirEntry) -> bool {
        let used = self.out.len() - self.base;
        let padded = used.next_multiple_of(8);
        let need = self.class.fixed_bytes() + name_units(&entry.name) * 2;
        if padded + need > self.max {
            self.full = true;
            return false;
        }
        self.out.put_zeros(padded - used);
        let at = self.out.len();
        if let Some(last) = self.last {
            self.out.patch_u32(last, (at - last) as u32);
        }
        let short = match self.class {
            DirectoryClass::Both | DirectoryClass::IdBoth => entry.short_name(),
            _ => None,
        };
        self.class.put_entry(self.out, &meta(&entry.stat), &entry.name, short.as_deref().unwrap_or(""));
        self.last = Some(at);
        true
    }
}

/// Access-based enumeration: who may not read a file does not see it.
struct Visibility {
    file: Arc<Open>,
    who: Arc<Token>,
}

impl Visibility {
    fn sees(&self, entry: &DirEntry) -> bool {
        if entry.name == "." || entry.name == ".." {
            return true;
        }
        let Ok(sd) = self.file.node().child_security(&entry.name) else { return false };
        // As peers have it: what generic read stands for, but for waiting on the handle.
        let read = access::FILE_GENERIC_READ & !access::SYNCHRONIZE;
        arden_auth::access_check(&sd, &self.who, read).is_ok()
    }
}

pub fn notify(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let parsed = ChangeNotifyRequest::parse(request.verified.message)?;
    if parsed.output_length > request.verified.negotiated.max_transact {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    request.check_charge(parsed.output_length as usize)?;
    let open = request.open(parsed.file_id)?;
    let file = open.file().ok_or(NtStatus::INVALID_PARAMETER)?;
    if !file.is_directory() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if open.usage.watch.get().is_none() {
        let charged = request.trees.usage.charge(Kind::Watches, &open.owner, Some(request.verified.ip), 1);
        // Where another request of this handle was first, one of the charges goes again.
        let _ = open.usage.watch.set(charged.map_err(|_| NtStatus::INSUFFICIENT_RESOURCES)?);
    }
    let recursive = parsed.flags & WATCH_TREE != 0;
    let watch = Watching { filter: parsed.filter, recursive, max: parsed.output_length as usize, open };
    let handled = watch.query(request, out);
    waiting(handled, watch)
}

/// A CHANGE_NOTIFY, which waits until there are changes.
struct Watching {
    open: Arc<SmbOpen>,
    filter: u32,
    recursive: bool,
    max: usize,
}

impl Continuation for Watching {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        request.check_still_open(&self.open)?;
        self.query(request, out)
    }
}

impl Watching {
    fn query(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Handled {
        if self.max.min(NOTIFY_BYTES_MAX) > request.verified.room {
            return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
        }
        let file = self.open.file().ok_or(NtStatus::INVALID_PARAMETER)?;
        let held = || -> Arc<dyn HeldBytes> {
            Arc::new(request.trees.usage.account(Kind::WatchBytes, &self.open.owner, Some(request.verified.ip)))
        };
        match file.fs().notify(file, self.filter, self.recursive, self.max, held)? {
            Step::Done(changes) => put_changes(&changes, self.max, out),
            Step::Wait(wait) => Err(Fail::Wait(wait, None)),
        }
    }
}

fn put_changes(changes: &[Change], max: usize, out: &mut Vec<u8>) -> Handled {
    let len_at = put_buffer_response(out);
    let base = out.len();
    let mut last: Option<usize> = None;
    for change in changes {
        out.pad_to(base, 4);
        let at = out.len();
        if let Some(last) = last {
            out.patch_u32(last, (at - last) as u32);
        }
        last = Some(at);
        fscc::put_notify_entry(out, action(change.kind), &change.name);
    }
    if out.len() - base > max || changes.is_empty() {
        return Err(NtStatus::NOTIFY_ENUM_DIR.into());
    }
    let len = (out.len() - base) as u32;
    out.patch_u32(len_at, len);
    Ok(NtStatus::SUCCESS)
}

/// The answer to a CHANGE_NOTIFY whose status says why it has no changes: STATUS_NOTIFY_CLEANUP and
/// STATUS_NOTIFY_ENUM_DIR are success codes, [MS-SMB2] 3.3.4.4 and 3.3.5.19. Its buffer has the one byte that the
/// StructureSize counts.
pub fn put_no_changes(out: &mut Vec<u8>) {
    put_buffer_response(out);
    out.put_zeros(1);
}

/// [MS-FSCC] 2.7.1.
fn action(kind: ChangeKind) -> u32 {
    match kind {
        ChangeKind::Added => 1,
        ChangeKind::Removed => 2,
        ChangeKind::Modified => 3,
        ChangeKind::RenamedOld => 4,
        ChangeKind::RenamedNew => 5,
        ChangeKind::AddedStream => 6,
        ChangeKind::RemovedStream => 7,
        ChangeKind::ModifiedStream => 8,
    }
}
