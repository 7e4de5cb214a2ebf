//! What the server counts. Every counter only goes up; reading them disturbs nobody.

use std::sync::atomic::{AtomicU64, Ordering};

use arden_wire::{NtStatus, smb2::Command};

/// Commands by their number, [MS-SMB2] 2.2.1.2.
pub const COMMANDS: [&str; 19] = [
    "negotiate",
    "session_setup",
    "logoff",
    "tree_connect",
    "tree_disconnect",
    "create",
    "close",
    "flush",
    "read",
    "write",
    "lock",
    "ioctl",
    "cancel",
    "echo",
    "query_directory",
    "change_notify",
    "query_info",
    "set_info",
    "oplock_break",
];

#[derive(Debug, Default)]
pub struct Metrics {
    requests: [AtomicU64; 19],
    errors: [AtomicU64; 19],
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub logons: AtomicU64,
    pub logon_failures: AtomicU64,
    pub connections: AtomicU64,
    /// Times that a busy connection got a thread of its own.
    pub connection_threads: AtomicU64,
    pub breaks: AtomicU64,
}

/// Counters of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandCount {
    pub command: &'static str,
    pub requests: u64,
    pub errors: u64,
}

impl Metrics {
    pub fn answered(&self, command: u16, status: NtStatus) {
        if let (Some(requests), Some(errors)) =
            (self.requests.get(usize::from(command)), self.errors.get(usize::from(command)))
        {
            requests.fetch_add(1, Ordering::Relaxed);
            // A logon takes several requests: the answer to all but the last one is no error.
            if status.is_error() && status != NtStatus::MORE_PROCESSING_REQUIRED {
                errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Those of all commands that are answered: CANCEL never is.
    pub fn commands(&self) -> impl Iterator<Item = CommandCount> + '_ {
        let all = COMMANDS.iter().zip(self.requests.iter().zip(&self.errors)).enumerate();
        let answered = all.filter(|(number, _)| *number != usize::from(Command::Cancel as u16));
        answered.map(|(_, (command, (requests, errors)))| CommandCount {
            command,
            requests: requests.load(Ordering::Relaxed),
            errors: errors.load(Ordering::Relaxed),
        })
    }
}

pub fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

const _: () = assert!(COMMANDS.len() == Command::OplockBreak as usize + 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logon_under_way_is_no_error_and_cancel_is_left_out() {
        let metrics = Metrics::default();
        for status in [NtStatus::MORE_PROCESSING_REQUIRED, NtStatus::SUCCESS, NtStatus::LOGON_FAILURE] {
            metrics.answered(Command::SessionSetup as u16, status);
        }
        let setups = metrics.commands().find(|c| c.command == "session_setup").unwrap();
        assert_eq!((setups.requests, setups.errors), (3, 1));
        assert_eq!(metrics.commands().count(), COMMANDS.len() - 1);
        assert!(metrics.commands().all(|c| c.command != "cancel"));
    }
}
