//! Requests of administration to a running server. The SMB server implements them; tests use a fake.

use crate::{
    address::AddressAtNode,
    error::Result,
    model::{Id, Metric, OpenInfo, SessionInfo, Share, ShareProblem},
};

/// A running server. Calls may come from any thread and must not block for longer than a system call does.
pub trait Control: Send + Sync {
    /// Checks that a share can be served, before it is stored.
    ///
    /// # Errors
    /// The directory cannot be opened, or its file system lacks what shares need.
    fn check_share(&self, share: &Share) -> Result<()>;
    /// Checks that users may be let into the share's directory.
    ///
    /// # Errors
    /// The directory holds, or is part of, files of the system or of Arden; the error names them.
    fn check_exposure(&self, share: &Share) -> Result<()>;
    /// Called after a change of shares was committed. Disconnects clients from shares that are gone, and reduces opens to the
    /// access that the shares grant now.
    fn shares_changed(&self);
    /// Shares that are not served as they are written down.
    fn share_problems(&self) -> Vec<ShareProblem>;
    /// Called after a change of users or groups was committed. Ends the sessions of users who were removed, disabled, or left
    /// a group.
    fn accounts_changed(&self);
    /// Ends all sessions of the user `name` and returns their number.
    fn close_user_sessions(&self, name: &str) -> usize;
    /// Called after a change of settings was committed. Those of the newest snapshot are in force when it returns, whichever caller
    /// of several comes last.
    fn settings_changed(&self);
    /// Sessions of all users.
    fn sessions(&self) -> Vec<SessionInfo>;
    /// How many there are.
    fn session_count(&self) -> usize;
    /// Ends a session. False when there is no such session.
    fn close_session(&self, id: Id) -> bool;
    /// Opens of all users. May block, and be large.
    fn opens(&self) -> Vec<OpenInfo>;
    /// How many there are.
    fn open_count(&self) -> usize;
    /// Closes an open. False when there is no such open.
    fn close_open(&self, id: Id) -> bool;
    /// The server's own metrics.
    fn metrics(&self) -> Vec<Metric>;
    /// The floating addresses whose pools this node owns.
    fn floating_addresses(&self) -> Vec<AddressAtNode>;
    /// Called after a change of floating addresses was committed.
    fn addresses_changed(&self);
    /// `address:port` of the listening sockets.
    fn listen(&self) -> Vec<String>;
}
