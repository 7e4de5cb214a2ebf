//! What clients do with files, one call each.

use arden_wire::{
    NtStatus,
    cursor::Reader,
    fscc::file_class,
    smb2::{Command, FileId, header::Command as C, info::info_type},
};

use super::{Break, Client, Created, Want, close, ioctl, query_directory, query_info, read, set_info, want, write};

impl Client {
    pub fn try_open(&mut self, want: &Want) -> Result<Created, NtStatus> {
        self.call(&want.req()).result().map(|r| Created::parse(&r))
    }
    #[track_caller]
    pub fn open(&mut self, want: Want) -> Created {
        match self.try_open(&want) {
            Ok(created) => created,
            Err(status) => panic!("{}: {status}", want.name),
        }
    }
    /// The status of a create that has to fail.
    #[track_caller]
    pub fn fails(&mut self, want: Want) -> NtStatus {
        self.try_open(&want).expect_err("the create succeeds")
    }
    /// A create that waits for a break; its MessageId.
    #[track_caller]
    pub fn starts(&mut self, want: Want) -> u64 {
        let id = self.send(&want.req());
        self.interim(id);
        id
    }
    /// What a create that waited gave.
    #[track_caller]
    pub fn opened(&mut self, id: u64) -> Created {
        Created::parse(&self.receive(id).ok())
    }
    pub fn try_close(&mut self, id: FileId) -> NtStatus {
        self.status(&close(id))
    }
    #[track_caller]
    pub fn close(&mut self, id: FileId) {
        assert_eq!(self.try_close(id), NtStatus::SUCCESS);
    }
    pub fn try_write(&mut self, id: FileId, offset: u64, data: &[u8]) -> Result<u32, NtStatus> {
        self.call(&write(id, offset, data)).result().map(|r| r.u32(4))
    }
    #[track_caller]
    pub fn write(&mut self, id: FileId, offset: u64, data: &[u8]) {
        assert_eq!(self.try_write(id, offset, data), Ok(data.len() as u32));
    }
    pub fn try_read(&mut self, id: FileId, offset: u64, len: u32) -> Result<Vec<u8>, NtStatus> {
        self.call(&read(id, offset, len)).result().map(|r| r.read_data().to_vec())
    }
    #[track_caller]
    pub fn read(&mut self, id: FileId, offset: u64, len: u32) -> Vec<u8> {
        self.try_read(id, offset, len).expect("a read")
    }
    pub fn try_fsctl(&mut self, id: FileId, code: u32, input: &[u8], max: u32) -> Result<Vec<u8>, NtStatus> {
        self.call(&ioctl(id, code, input, max)).result().map(|r| r.ioctl_output().to_vec())
    }
    #[track_caller]
    pub fn fsctl(&mut self, id: FileId, code: u32, input: &[u8], max: u32) -> Vec<u8> {
        self.try_fsctl(id, code, input, max).expect("an FSCTL")
    }
    pub fn try_query(&mut self, id: FileId, class: u8) -> Result<Vec<u8>, NtStatus> {
        self.call(&query_info(id, info_type::FILE, class, 0, &[], 4096)).result().map(|r| r.buffer().to_vec())
    }
    #[track_caller]
    pub fn query(&mut self, id: FileId, class: u8) -> Vec<u8> {
        self.try_query(id, class).expect("information")
    }
    pub fn try_query_fs(&mut self, id: FileId, class: u8, max: u32) -> Result<Vec<u8>, NtStatus> {
        self.call(&query_info(id, info_type::FILE_SYSTEM, class, 0, &[], max)).result().map(|r| r.buffer().to_vec())
    }
    pub fn set(&mut self, id: FileId, class: u8, data: &[u8]) -> NtStatus {
        self.status(&set_info(id, info_type::FILE, class, 0, data))
    }
    pub fn rename(&mut self, id: FileId, to: &str, replace: bool) -> NtStatus {
        self.set(id, file_class::RENAME, &name_change(to, replace))
    }
    pub fn delete(&mut self, id: FileId) -> NtStatus {
        self.set(id, file_class::DISPOSITION, &[1])
    }

    /// A file with this content, closed.
    #[track_caller]
    pub fn put(&mut self, name: &str, data: &[u8]) {
        let f = self.open(want(name));
        self.write(f.id, 0, data);
        self.close(f.id);
    }
    #[track_caller]
    pub fn make_directory(&mut self, name: &str) {
        let f = self.open(want(name).directory());
        self.close(f.id);
    }

    /// One QUERY_DIRECTORY: the names of its entries.
    pub fn list_once(&mut self, id: FileId, class: u8, flags: u8, pattern: &str) -> Result<Vec<String>, NtStatus> {
        let reply = self.call(&query_directory(id, class, flags, pattern, 65536)).result()?;
        Ok(entry_names(reply.buffer(), class))
    }
    /// Everything that matches, from the start, sorted, without `.` and `..`.
    #[track_caller]
    pub fn list(&mut self, id: FileId, pattern: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut flags = 1;
        loop {
            match self.list_once(id, file_class::NAMES, flags, pattern) {
                Ok(more) => names.extend(more),
                Err(NtStatus::NO_MORE_FILES | NtStatus::NO_SUCH_FILE) => break,
                Err(status) => panic!("{status}"),
            }
            flags = 0;
        }
        names.retain(|n| n != "." && n != "..");
        names.sort();
        names
    }

    /// Break notifications that have come.
    pub fn breaks(&mut self) -> Vec<Break> {
        self.pump();
        let mut found = Vec::new();
        self.inbox.retain(|r| {
            let is = r.header.message_id == u64::MAX && r.header.command == Command::OplockBreak as u16;
            if is {
                found.push(Break::parse(r));
            }
            !is
        });
        found
    }
    /// The one break notification that has come.
    #[track_caller]
    pub fn one_break(&mut self) -> Break {
        let all = self.comes(|c| Some(c.breaks()).filter(|all| !all.is_empty()));
        let mut all = all.unwrap_or_default();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }
    #[track_caller]
    pub fn oplock_break(&mut self) -> (FileId, u8) {
        match self.one_break() {
            Break::Oplock { id, level } => (id, level),
            other => panic!("{other:?}"),
        }
    }
    /// From, to, and whether it has to be acknowledged.
    #[track_caller]
    pub fn lease_break(&mut self) -> (String, String, bool) {
        match self.one_break() {
            Break::Lease { from, to, ack, .. } => (from, to, ack),
            other => panic!("{other:?}"),
        }
    }
    pub fn cancel(&mut self, async_id: u64) {
        let mut req = super::Req::empty(C::Cancel);
        req.async_id = Some(async_id);
        req.flags = arden_wire::smb2::flags::ASYNC_COMMAND;
        req.message_id = Some(0);
        self.send(&req);
    }
}

/// FileRenameInformation and FileLinkInformation.
pub fn name_change(to: &str, replace: bool) -> Vec<u8> {
    use arden_wire::cursor::Put;
    let mut data = vec![u8::from(replace), 0, 0, 0, 0, 0, 0, 0];
    data.put_u64(0);
    data.put_u32((arden_wire::names::name_units(to) * 2) as u32);
    arden_wire::names::put_name_units(&mut data, to);
    // The server may ask for the fixed size of the structure.
    if data.len() < 24 {
        data.resize(24, 0);
    }
    data
}

/// Names in a QUERY_DIRECTORY answer of this class.
pub fn entry_names(data: &[u8], class: u8) -> Vec<String> {
    entries(data, class).into_iter().map(|(name, _)| name).collect()
}

/// Name and bytes of each entry.
pub fn entries(data: &[u8], class: u8) -> Vec<(String, Vec<u8>)> {
    // Where FileNameLength and FileName lie, [MS-FSCC] 2.4.
    let (len_at, name_at) = match class {
        file_class::DIRECTORY => (60, 64),
        file_class::FULL_DIRECTORY => (60, 68),
        file_class::BOTH_DIRECTORY => (60, 94),
        file_class::NAMES => (8, 12),
        file_class::ID_BOTH_DIRECTORY => (60, 104),
        file_class::ID_FULL_DIRECTORY => (60, 80),
        file_class::ID_EXTD_DIRECTORY => (60, 88),
        other => panic!("class {other}"),
    };
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        let entry = &data[at..];
        let next = Reader::new(entry).u32().unwrap() as usize;
        let len = Reader::new(&entry[len_at..]).u32().unwrap() as usize;
        let name = arden_wire::names::name_of_utf16(&entry[name_at..name_at + len]).unwrap();
        out.push((name, entry[..if next == 0 { entry.len() } else { next }].to_vec()));
        if next == 0 {
            return out;
        }
        assert!(next.is_multiple_of(8), "entries are aligned");
        at += next;
    }
}

pub fn le_u16(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(data[at..at + 2].try_into().unwrap())
}
pub fn le_u32(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}
pub fn le_u64(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}
