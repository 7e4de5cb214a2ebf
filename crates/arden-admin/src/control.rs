//! What administration may ask of a live server. The SMB server answers through it; tests use a fake one.

use crate::{
    error::Result,
    model::{Id, Metric, OpenInfo, SessionInfo, Settings, Share},
};

/// Calls may come from any thread and must not block for longer than a system call does.
pub trait Control: Send + Sync {
    /// Would this share work (the directory opens, the file system has what it needs)? Asked before it is stored.
    fn check_share(&self, share: &Share) -> Result<()>;
    /// The complete new list, grants by SID; what is gone gets disconnected. Called after the commit.
    fn shares_changed(&self, shares: &[Share]);
    /// These users (by name) changed password, were disabled or removed: their sessions end.
    fn users_changed(&self, names: &[String]);
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
