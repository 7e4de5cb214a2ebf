//! From command to handler.

use arden_wire::{NtStatus, smb2::Command};

use crate::handlers::{
    breaks, create, data, directory, ioctl, locks, query,
    request::{Fail, Handled, Request},
    set, tree,
};

pub fn handle(command: Command, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    match command {
        Command::Logoff => tree::logoff(request, out),
        Command::TreeConnect => tree::connect(request, out),
        Command::TreeDisconnect => tree::disconnect(request, out),
        Command::Create => create::create(request, out),
        Command::Close => data::close(request, out),
        Command::Flush => data::flush(request, out),
        Command::Read => data::read(request, out),
        Command::Write => data::write(request, out),
        Command::Lock => locks::lock(request, out),
        Command::Ioctl => ioctl::ioctl(request, out),
        Command::QueryDirectory => directory::query(request, out),
        Command::ChangeNotify => directory::notify(request, out),
        Command::QueryInfo => query::query_info(request, out),
        Command::SetInfo => set::set_info(request, out),
        Command::OplockBreak => breaks::acknowledge(request, out),
        // These never come here: the connection handles them itself, alone in their message.
        Command::Negotiate | Command::SessionSetup | Command::Cancel | Command::Echo => {
            Err(Fail::Status(NtStatus::INVALID_PARAMETER))
        }
    }
}
