//! SET_INFO, [MS-SMB2] 3.3.5.21.

use std::sync::{Arc, atomic::Ordering};

use arden_store::{
    error::NotDone,
    fs::{BasicInformation, Disposal, NameChange, Operation, Step},
    name::NtPath,
    store::{Ea, Lookup},
    table::Open,
};
use arden_wire::{
    NtStatus, access,
    cursor::{Put, Reader, utf16_string},
    dtyp::SecurityDescriptor,
    fscc::{self, BasicSet, RenameSet, file_class, fs_class},
    smb2::info::{SetInfoRequest, info_type},
};

use crate::{
    base::{
        directories::{Directories, KeptDirectory},
        usage::Charge,
    },
    handlers::request::{Continuation, Fail, Handled, Request, waiting},
    model::SmbOpen,
};

/// FILE_RENAME_* flags of the Ex class, [MS-FSCC] 2.4.43.
mod rename_flags {
    pub const REPLACE_IF_EXISTS: u32 = 1;
    pub const POSIX_SEMANTICS: u32 = 2;
    pub const IGNORE_READONLY: u32 = 0x40;
}

/// FILE_DISPOSITION_* flags, [MS-FSCC] 2.4.12.
mod disposition_flags {
    pub const DELETE: u32 = 1;
    pub const POSIX_SEMANTICS: u32 = 2;
    pub const ON_CLOSE: u32 = 8;
    pub const IGNORE_READONLY: u32 = 0x10;
    /// FORCE_IMAGE_SECTION_CHECK among them, which concerns no file that is opened over SMB.
    pub const ALL: u32 = 0x1F;
}

pub fn set_info(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let set = SetInfoRequest::parse(request.verified.message)?;
    if set.buffer.len() > request.verified.negotiated.max_transact as usize {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    request.check_charge(set.buffer.len())?;
    let open = request.open(set.file_id)?;
    let Some(file) = open.file() else {
        return Err(NtStatus::NOT_SUPPORTED.into());
    };
    let is_long =
        || may_take_long(file, &set) || file.fs().telling_takes_long(&**file.node()) || request.trees.keeps_many(file);
    if !request.may_block && is_long() {
        return Err(Fail::Block);
    }
    match set.info_type {
        info_type::FILE => match names_set(file, &set)? {
            Some(change) => {
                let may_take_long = is_long();
                let wait = ChangeAfterBreak { open: open.clone(), change, may_take_long };
                let handled = wait.change(request, out);
                return waiting(handled, wait);
            }
            None => file_info(request, &open, file, &set)?,
        },
        info_type::SECURITY => {
            let sd = SecurityDescriptor::parse(set.buffer).map_err(|_| NtStatus::INVALID_SECURITY_DESCR)?;
            file.fs().set_security(file, set.additional, &sd, request.cause())?;
        }
        info_type::FILE_SYSTEM if set.class == fs_class::CONTROL => {
            crate::handlers::quota::set_control(request.scope, file, set.buffer)?
        }
        info_type::QUOTA => crate::handlers::quota::set(request.scope, file, set.buffer)?,
        // A plain directory keeps no label to change.
        info_type::FILE_SYSTEM if !matches!(set.class, fs_class::LABEL | fs_class::OBJECT_ID) => {
            return Err(NtStatus::INVALID_INFO_CLASS.into());
        }
        info_type::FILE_SYSTEM => return Err(NtStatus::NOT_SUPPORTED.into()),
        _ => return Err(NtStatus::INVALID_PARAMETER.into()),
    }
    out.put_u16(2);
    Ok(NtStatus::SUCCESS)
}

/// Larger descriptors, attributes and lists are set where that may take its time.
const INLINE_SET_BYTES_MAX: usize = 4 * 1024;
/// Likewise sizes that are so far from the present one: a store may have to free or reserve all that is between.
const INLINE_RESIZE_BYTES_MAX: u64 = 16 << 20;

/// Whether it may keep a thread for milliseconds.
fn may_take_long(file: &Open, set: &SetInfoRequest<'_>) -> bool {
    if set.info_type != info_type::FILE {
        return set.buffer.len() > INLINE_SET_BYTES_MAX || set.info_type == info_type::QUOTA;
    }
    match set.class {
        // Renames of streams copy their data in some stores, and those of directories go over what is open below.
        file_class::RENAME | file_class::RENAME_EX => {
            file.is_directory()
                || file.stream().is_some()
                || set.buffer.get(20..).is_some_and(|name| name.contains(&b':'))
        }
        file_class::END_OF_FILE | file_class::ALLOCATION => {
            let Some(size) = set.buffer.first_chunk().map(|b| u64::from_le_bytes(*b)) else { return false };
            let far = |from: u64| size.abs_diff(from) > INLINE_RESIZE_BYTES_MAX;
            file.node().stat().is_ok_and(|s| far(s.end_of_file) || far(s.allocation))
        }
        file_class::SHORT_NAME => file.is_directory(),
        file_class::FULL_EA => set.buffer.len() > INLINE_SET_BYTES_MAX,
        _ => false,
    }
}

/// A change of a file's names, or of whether it is to be deleted: others have to give up their handle caching first.
enum Change {
    Rename(NtPath, NameChange),
    Link(NtPath, NameChange),
    ShortName(String),
    Dispose(Disposal),
}

/// A SET_INFO that waits for that.
struct ChangeAfterBreak {
    open: Arc<SmbOpen>,
    change: Change,
    may_take_long: bool,
}

impl Continuation for ChangeAfterBreak {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        request.check_still_open(&self.open)?;
        if self.may_take_long && !request.may_block {
            return Err(Fail::Block);
        }
        self.change(request, out)
    }
}

impl ChangeAfterBreak {
    /// Access, sharing and what the new name stands for are looked at in the moment of the change.
    fn change(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Handled {
        let file = self.open.file().ok_or(NtStatus::NOT_SUPPORTED)?;
        let (fs, cause) = (file.fs(), request.cause());
        let step = match &self.change {
            Change::Rename(to, how) => {
                let moving = Moving::begin(request, &self.open, file, to)?;
                let step = fs.rename(file, to, *how, cause)?;
                if let (Step::Done(()), Some(moving)) = (&step, moving) {
                    moving.done();
                }
                step
            }
            Change::Link(to, how) => fs.link(file, to, *how, cause)?,
            Change::ShortName(name) => fs.set_short_name(file, name, cause)?,
            Change::Dispose(how) => {
                // The name waits for the last user of the file, who may have it open by another one.
                if let Some(open) = &self.open.usage.descriptors {
                    request.trees.usage.directories.stay(open, &**file.node());
                }
                fs.set_disposition(file, *how, cause)?
            }
        };
        if let Step::Wait(wait) = step {
            return Err(Fail::Wait(wait, None));
        }
        if !matches!(self.change, Change::Link(..) | Change::ShortName(_)) {
            request.trees.keep_file(request.scope, &self.open);
        }
        out.put_u16(2);
        Ok(NtStatus::SUCCESS)
    }
}

/// A rename of what has directories above it in use: those above the new name are charged to who moves it before it has that
/// name, and then for as long as anybody has it in use by that name.
struct Moving<'a> {
    directories: &'a Directories,
    open: &'a Charge,
    file: &'a Open,
    from: Option<u64>,
    _to: Option<Arc<KeptDirectory>>,
}

impl<'a> Moving<'a> {
    fn begin(
        request: &Request<'a>,
        open: &'a SmbOpen,
        file: &'a Open,
        to: &NtPath,
    ) -> Result<Option<Moving<'a>>, Fail> {
        let (Some(open), Some((_, above))) = (&open.usage.descriptors, to.components.split_last()) else {
            return Ok(None);
        };
        let directories = &request.trees.usage.directories;
        let path = NtPath { components: above.to_vec(), ..NtPath::default() };
        let to = match file.fs().store().lookup(&path) {
            Ok(Lookup::Found(parent)) => directories.keep(open, &*parent, true, false),
            Err(NotDone::WouldBlock) => return Err(NotDone::WouldBlock.into()),
            // The rename itself says what is wrong.
            _ => Ok(None),
        };
        let to = to.map_err(|_| NtStatus::TOO_MANY_OPENED_FILES)?;
        Ok(Some(Moving { directories, open, file, from: nearest(file), _to: to }))
    }

    /// Others may have moved those directories meanwhile: what is there now counts.
    fn done(self) {
        if nearest(self.file) != self.from {
            self.directories.stay(self.open, &**self.file.node());
        }
    }
}

/// The directory that the file's name is in, where that is not the root.
fn nearest(file: &Open) -> Option<u64> {
    let mut nearest = None;
    file.node().directories_above(false, &mut |number| {
        nearest = Some(number);
        false
    });
    nearest
}

/// What is set, where that is one of a file's names or their end.
fn names_set(file: &Open, set: &SetInfoRequest<'_>) -> Result<Option<Change>, Fail> {
    let mut r = Reader::new(set.buffer);
    Ok(Some(match set.class {
        file_class::RENAME | file_class::RENAME_EX => {
            let ex = set.class == file_class::RENAME_EX;
            // [MS-FSA] 2.1.5.15.12: the length, the access, and then the name.
            short(RenameSet::parse(set.buffer, ex))?;
            file.check(Operation::Rename)?;
            let (to, how) = name_change(set, ex)?;
            Change::Rename(to, how)
        }
        file_class::LINK => {
            // 2.1.5.15.7: the length, what is open, and then the name.
            short(RenameSet::parse(set.buffer, false))?;
            file.fs().check_linkable(file)?;
            let (to, how) = name_change(set, false)?;
            Change::Link(to, how)
        }
        file_class::SHORT_NAME => {
            let len = short(r.u32())? as usize;
            Change::ShortName(utf16_string(short(r.bytes(len))?)?)
        }
        file_class::DISPOSITION => Change::Dispose(Disposal { delete: short(r.u8())? != 0, ..Disposal::default() }),
        file_class::DISPOSITION_EX => {
            let flags = short(r.u32())?;
            if flags & !disposition_flags::ALL != 0 {
                return Err(NtStatus::NOT_SUPPORTED.into());
            }
            Change::Dispose(Disposal {
                delete: flags & disposition_flags::DELETE != 0,
                posix: flags & disposition_flags::POSIX_SEMANTICS != 0,
                ignore_readonly: flags & disposition_flags::IGNORE_READONLY != 0,
                on_close: flags & disposition_flags::ON_CLOSE != 0,
            })
        }
        _ => return Ok(None),
    }))
}

/// A buffer that is too short for its class.
fn short<T>(parsed: Result<T, arden_wire::Malformed>) -> Result<T, Fail> {
    parsed.map_err(|_| Fail::Status(NtStatus::INFO_LENGTH_MISMATCH))
}

fn file_info(request: &Request<'_>, open: &SmbOpen, file: &Arc<Open>, set: &SetInfoRequest<'_>) -> Result<(), Fail> {
    let fs = file.fs();
    let cause = request.cause();
    let mut r = Reader::new(set.buffer);
    match set.class {
        file_class::BASIC => {
            let b = short(BasicSet::parse(set.buffer))?;
            let info = BasicInformation {
                creation: b.creation as i64,
                last_access: b.last_access as i64,
                last_write: b.last_write as i64,
                change: b.change as i64,
                attributes: b.attributes,
            };
            fs.set_basic(file, &info, cause)?;
        }
        file_class::POSITION => {
            let position = short(r.u64())?;
            let unbuffered = open.mode.load(Ordering::Relaxed) & access::OPT_NO_INTERMEDIATE_BUFFERING != 0;
            let sector = u64::from(fs.store().space()?.sector_bytes);
            if position > i64::MAX as u64 || unbuffered && !position.is_multiple_of(sector) {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            open.position.store(position, Ordering::Relaxed);
        }
        file_class::FULL_EA => {
            let eas = fscc::parse_eas(set.buffer).map_err(|_| NtStatus::EA_LIST_INCONSISTENT)?;
            let eas: Vec<Ea> = eas.into_iter().map(|e| Ea { name: e.name, flags: e.flags, value: e.value }).collect();
            fs.set_eas(request.scope, file, &eas)?;
        }
        file_class::MODE => {
            let mode = short(r.u32())?;
            set_mode(open, mode)?;
        }
        file_class::ALLOCATION => fs.set_allocation(file, short(r.u64())?, cause)?,
        file_class::END_OF_FILE => fs.set_end_of_file(file, short(r.u64())?, cause)?,
        file_class::VALID_DATA_LENGTH => fs.set_valid_data_length(file, short(r.u64())?, cause)?,
        class => return Err(not_set(class).into()),
    }
    Ok(())
}

/// The status of a class that nobody sets, [MS-SMB2] 3.3.5.21.1 and its <428>.
fn not_set(class: u8) -> NtStatus {
    match class {
        file_class::QUOTA | file_class::OBJECT_ID | file_class::SFIO_RESERVE | file_class::PIPE => {
            NtStatus::NOT_SUPPORTED
        }
        30 | 41 | 42 | 43 => NtStatus::NOT_SUPPORTED,
        _ => NtStatus::INVALID_INFO_CLASS,
    }
}

/// FileModeInformation, [MS-FSA] 2.1.5.15.9.
fn set_mode(open: &SmbOpen, mode: u32) -> Result<(), Fail> {
    const SETTABLE: u32 = access::OPT_WRITE_THROUGH | access::OPT_SEQUENTIAL_ONLY;
    // FILE_SYNCHRONOUS_IO_*: local to the client, accepted and of no effect.
    const SYNCHRONOUS: u32 = 0x30;
    if mode & !(SETTABLE | SYNCHRONOUS | access::OPT_NO_INTERMEDIATE_BUFFERING) != 0 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.mode.store(mode & (SETTABLE | access::OPT_NO_INTERMEDIATE_BUFFERING), Ordering::Relaxed);
    Ok(())
}

/// The new name: from the share's root, or `:stream` of the same file.
fn name_change(set: &SetInfoRequest<'_>, ex: bool) -> Result<(NtPath, NameChange), Fail> {
    let rename = short(RenameSet::parse(set.buffer, ex))?;
    if rename.root_directory != 0 || rename.name.is_empty() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let path = if rename.name.starts_with(':') {
        let stream = NtPath::parse(&format!("x{}", rename.name))?;
        // No components: the stream of the file that is open.
        NtPath { stream: stream.stream, wants: stream.wants, ..NtPath::default() }
    } else {
        NtPath::parse(rename.name.strip_prefix('\\').unwrap_or(&rename.name))?
    };
    let how = NameChange {
        replace: rename.flags & rename_flags::REPLACE_IF_EXISTS != 0,
        posix: ex && rename.flags & rename_flags::POSIX_SEMANTICS != 0,
        ignore_readonly: ex && rename.flags & rename_flags::IGNORE_READONLY != 0,
    };
    Ok((path, how))
}
