//! Which shares a message changed whose changes have to be durable before the answer leaves: shares that are continuously
//! available or write through, and every share of a root that keeps persistent handles. Refuses to send or to build answers.

use std::sync::Arc;

use arden_store::{fs::Fs, store::Result};
use arden_wire::smb2::Command;

use crate::model::share::Share;

/// Changes that have to be durable before what was answered may leave.
#[derive(Default)]
pub struct Commits {
    /// Roots that were changed, and whether their files count beside what is kept of opens.
    roots: Vec<(Arc<Fs>, bool)>,
    /// The first response that speaks of a change, and its request.
    first: Option<(usize, usize)>,
}

impl Commits {
    /// The request may have changed something of its share.
    pub fn note(&mut self, share: &Share, response: usize, element: usize) {
        let Some(fs) = &share.fs else { return };
        if !share.is_durable() && !fs.is_available() {
            return;
        }
        self.first.get_or_insert((response, element));
        match self.roots.iter_mut().find(|(root, _)| Arc::ptr_eq(root, fs)) {
            Some((_, changes)) => *changes |= share.is_durable(),
            None => self.roots.push((fs.clone(), share.is_durable())),
        }
    }
    /// Waits for stable storage.
    pub fn run(&self) -> Result<()> {
        self.roots.iter().try_for_each(|(fs, changes)| fs.commit(*changes))
    }
    /// The one root, and whether its files count, where it can be committed without waiting.
    pub fn later(&self) -> Option<(Arc<Fs>, bool)> {
        match &self.roots[..] {
            [(fs, changes)] if fs.commits_later() => Some((fs.clone(), *changes)),
            _ => None,
        }
    }
    /// The first response and request that a failure concerns.
    pub fn first(&self) -> Option<(usize, usize)> {
        self.first
    }
    /// Whether `run` would wait.
    pub fn is_due(&self) -> bool {
        self.roots.iter().any(|(fs, changes)| fs.has_uncommitted(*changes))
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
