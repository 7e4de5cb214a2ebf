//! A tree connect, [MS-SMB2] 3.3.1.9.

use std::{collections::HashMap, ops::Deref, sync::Arc, time::Instant};

use arden_auth::Token;

use crate::{
    base::usage::Charge,
    model::share::{Share, ShareUsers},
};

/// The tree connects of a session, by their ids. With each share that it has any of the session counts as one user, from the
/// first of them to the end of the last, whatever ends it.
#[derive(Default)]
pub struct TreeConnects {
    by_id: HashMap<u32, Arc<Tree>>,
    /// Shares, with how many of the tree connects are theirs.
    shares: Vec<(ShareUsers, usize)>,
}

impl TreeConnects {
    /// Adds a tree connect, or replaces the one with its id.
    pub fn insert(&mut self, tree: Arc<Tree>) {
        match self.shares.iter_mut().find(|(users, _)| users.are_of(&tree.share)) {
            Some((_, trees)) => *trees += 1,
            None => self.shares.push((tree.share.users.begin(), 1)),
        }
        if let Some(replaced) = self.by_id.insert(tree.id, tree) {
            self.has_gone(&replaced);
        }
    }

    pub fn remove(&mut self, id: u32) -> Option<Arc<Tree>> {
        let tree = self.by_id.remove(&id)?;
        self.has_gone(&tree);
        Some(tree)
    }

    pub fn clear(&mut self) {
        self.by_id.clear();
        self.shares.drain(..).for_each(|(users, _)| users.end());
    }

    fn has_gone(&mut self, tree: &Tree) {
        let Some(at) = self.shares.iter().position(|(users, _)| users.are_of(&tree.share)) else { return };
        self.shares[at].1 -= 1;
        if self.shares[at].1 == 0 {
            self.shares.swap_remove(at).0.end();
        }
    }
}

impl Deref for TreeConnects {
    type Target = HashMap<u32, Arc<Tree>>;
    fn deref(&self) -> &HashMap<u32, Arc<Tree>> {
        &self.by_id
    }
}

impl Drop for TreeConnects {
    fn drop(&mut self) {
        self.clear();
    }
}

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
