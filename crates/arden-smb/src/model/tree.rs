//! A tree connect, [MS-SMB2] 3.3.1.9.

use std::{sync::Arc, time::Instant};

use arden_auth::Token;

use crate::{base::usage::Charge, model::share::Share};

/// [MS-SMB2] 3.3.1.9.
pub struct Tree {
    pub id: u32,
    pub session_id: u64,
    pub share: Arc<Share>,
    /// What the share allows the user who connected.
    pub maximal_access: u32,
    pub created: Instant,
    /// What it holds of the server.
    pub usage: Arc<Charge>,
}

impl Tree {
    /// What may be done through this tree connect: as much as the share permitted when it was made, and no more than it
    /// permits `who`, whose groups may have changed since.
    pub fn ceiling(&self, who: &Token) -> u32 {
        self.maximal_access & self.share.ceiling(who)
    }
}
