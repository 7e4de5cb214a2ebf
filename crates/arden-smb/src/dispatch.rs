//! From command to handler.

use arden_wire::{NtStatus, smb2::Command};

use crate::request::{Fail, Handled, Request};

pub fn handle(command: Command, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    match command {
        Command::Logoff => crate::tree::logoff(request, out),
        Command::TreeConnect => crate::tree::connect(request, out),
        Command::TreeDisconnect => crate::tree::disconnect(request, out),
        Command::Create => crate::create::create(request, out),
        Command::Close => crate::data::close(request, out),
        Command::Flush => crate::data::flush(request, out),
        Command::Read => crate::data::read(request, out),
        Command::Write => crate::data::write(request, out),
        Command::Lock => crate::locks::lock(request, out),
        Command::Ioctl => crate::ioctl::ioctl(request, out),
        Command::QueryDirectory => crate::directory::query(request, out),
        Command::ChangeNotify => crate::directory::notify(request, out),
        Command::QueryInfo => crate::query::query_info(request, out),
        Command::SetInfo => crate::set::set_info(request, out),
        Command::OplockBreak => crate::breaks::acknowledge(request, out),
        // These never come here: the connection handles them itself, alone in their message.
        Command::Negotiate | Command::SessionSetup | Command::Cancel | Command::Echo => {
            Err(Fail::Status(NtStatus::INVALID_PARAMETER))
        }
    }
}
