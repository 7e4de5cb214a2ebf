//! What a message changed, which has to be durable before the answer leaves: on shares that are continuously available or
//! write through, and every share of a root that keeps persistent handles. Refuses to send or to build answers.

use arden_store::commit::CommitScope;
use arden_wire::smb2::Command;

use crate::model::share::Share;

/// Changes that have to be durable before what was answered may leave.
#[derive(Default)]
pub struct Commits {
    pub scope: CommitScope,
    /// The first response that speaks of a change.
    first: Option<usize>,
}

impl Commits {
    /// The request is about to change something of its share.
    pub fn note(&mut self, share: &Share, response: usize) {
        let Some(fs) = &share.fs else { return };
        if !share.is_durable() && !fs.is_available() {
            return;
        }
        self.scope.join(fs, share.is_durable());
        self.noted(response);
    }
    /// The request ran, and may have joined the scope with what it changed.
    pub fn noted(&mut self, response: usize) {
        if self.first.is_none() && !self.scope.is_empty() {
            self.first = Some(response);
        }
    }
    /// The first response that a failure concerns.
    pub fn first(&self) -> Option<usize> {
        self.first
    }
}

/// Commands that can change a file, or what is kept of an open.
pub fn changes(command: Command) -> bool {
    matches!(
        command,
        Command::Create
            | Command::Close
            | Command::Write
            | Command::SetInfo
            | Command::Ioctl
            | Command::Lock
            | Command::OplockBreak
    )
}
