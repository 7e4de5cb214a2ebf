//! Operations on files and directories over one connection: open, close, flush, make, delete. One request at a time.

use smb2::{
    msg::{
        close::CloseRequest,
        create::{CreateDisposition, CreateRequest},
        flush::FlushRequest,
    },
    types::{Command, FileId, flags::FileAccessMask},
};

use super::{
    connection::{Call, Client},
    requests::{DELETE_ON_CLOSE, DIRECTORY_FILE, Open, close, create, status_name},
};
use crate::{Result, fail};

impl Client {
    /// Opens a file and keeps it open.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn open(&mut self, name: &str, access: u32, disposition: CreateDisposition, options: u32) -> Result<FileId> {
        let body = create(name, access, disposition, options);
        match self.try_open(&body)? {
            Ok(open) => Ok(open.id),
            Err(status) => fail!("create of {name}: {}", status_name(status)),
        }
    }

    /// Opens a file. The inner error is the status of a refusal.
    ///
    /// # Errors
    /// A lost connection.
    pub fn try_open(&mut self, body: &CreateRequest) -> Result<std::result::Result<Open, u32>> {
        let (status, answer) = self.ask(Call { command: Command::Create, body, charge: 1 })?;
        if status != 0 || answer.len() < 80 {
            return Ok(Err(status));
        }
        let u64_at = |i: usize| u64::from_le_bytes(answer[i..i + 8].try_into().expect("eight bytes"));
        // [MS-SMB2] 2.2.14: EndofFile at 48, FileAttributes at 56, FileId at 64.
        Ok(Ok(Open {
            id: FileId { persistent: u64_at(64), volatile: u64_at(72) },
            size_bytes: u64_at(48),
            is_directory: answer[56] & 0x10 != 0,
        }))
    }

    /// Closes an open.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn close(&mut self, file_id: FileId) -> Result<()> {
        self.call(&[Call { command: Command::Close, body: &CloseRequest { flags: 0, file_id }, charge: 1 }])
    }

    /// Flushes the written data of a file to stable storage, [MS-SMB2] 2.2.17.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn flush_file(&mut self, file_id: FileId) -> Result<()> {
        self.call(&[Call { command: Command::Flush, body: &FlushRequest { file_id }, charge: 1 }])
    }

    /// Makes a directory, which may exist.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn make_directory(&mut self, name: &str) -> Result<()> {
        let id = self.open(name, 0x80, CreateDisposition::FileOpenIf, DIRECTORY_FILE)?;
        self.close(id)
    }

    /// Deletes a file or an empty directory.
    ///
    /// # Errors
    /// A lost connection, or the server's refusal.
    pub fn delete(&mut self, name: &str) -> Result<()> {
        let create = create(name, FileAccessMask::DELETE, CreateDisposition::FileOpen, DELETE_ON_CLOSE);
        self.call(&[
            Call { command: Command::Create, body: &create, charge: 1 },
            Call { command: Command::Close, body: &close(), charge: 1 },
        ])
    }
}
