//! Tokens of copy offload that are good, [MS-FSCC] 2.3.41: each is known to the user who got it until its time is over.

use std::{collections::HashMap, time::Instant};

use arden_lock::{Mutex, ranks};
use arden_store::fs::Frozen;
use arden_wire::{NtStatus, dtyp::Sid};

pub const TOKEN_ID_BYTES: usize = 16;
const TOKENS_MAX: usize = 1024;
/// Of one user; with more, the one that would end first ends.
const TOKENS_PER_USER_MAX: usize = 128;

/// What was read, by reference.
pub struct Token {
    pub frozen: Frozen,
    pub user: Sid,
    pub expires: Instant,
}

/// Tokens that are good.
#[derive(Default)]
pub struct Tokens(Mutex<HashMap<[u8; TOKEN_ID_BYTES], Token>, ranks::Tokens>);

impl Tokens {
    pub fn expire(&self, now: Instant) {
        self.0.lock().retain(|_, t| t.expires > now);
    }

    pub fn add(&self, id: [u8; TOKEN_ID_BYTES], token: Token) -> Result<(), NtStatus> {
        let mut tokens = self.0.lock();
        let own = tokens.iter().filter(|(_, t)| t.user == token.user);
        if own.clone().count() >= TOKENS_PER_USER_MAX
            && let Some(first) = own.min_by_key(|(_, t)| t.expires).map(|(id, _)| *id)
        {
            tokens.remove(&first);
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        tokens.insert(id, token);
        Ok(())
    }

    pub fn find(&self, id: &[u8], user: &Sid, now: Instant) -> Option<Frozen> {
        let tokens = self.0.lock();
        let token = tokens.get(id).filter(|t| t.expires > now && t.user == *user)?;
        Some(token.frozen.clone())
    }
}
