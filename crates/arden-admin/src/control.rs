//! What administration may ask of a live server. The SMB server answers through it; tests use a fake one.

use crate::{
    error::Result,
    model::{Id, Metric, OpenInfo, SessionInfo, Settings, Share},
};

/// Calls may come from any thread and must not block for longer than a system call does.
pub trait Control: Send + Sync {
    /// Would this share work (the directory opens, the file system has what it needs)? Asked before it is stored.
    fn check_share(&self, share: &Share) -> Result<()>;
    /// Is the share's directory one that users may be let into? Errors say what they would get at.
    fn check_exposure(&self, share: &Share) -> Result<()>;
    /// The shares are others, after the commit: what is gone gets disconnected, and what clients have open becomes what the
    /// shares allow by now.
    fn shares_changed(&self);
    /// Users or groups are others, after the commit: sessions of users who are gone, disabled, or in fewer groups end.
    fn accounts_changed(&self);
    /// Ends all sessions of a user, by name; how many.
    fn close_user_sessions(&self, name: &str) -> usize;
    fn settings_changed(&self, settings: &Settings);
    fn sessions(&self) -> Vec<SessionInfo>;
    /// False when there is no such session.
    fn close_session(&self, id: Id) -> bool;
    fn opens(&self) -> Vec<OpenInfo>;
    /// False when there is no such open.
    fn close_open(&self, id: Id) -> bool;
    fn metrics(&self) -> Vec<Metric>;
    /// `address:port` of the listening sockets.
    fn listen(&self) -> Vec<String>;
}
