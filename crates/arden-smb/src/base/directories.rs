//! Directories that a store keeps in use, with descriptors of the process, because a name below them is. Each is charged once
//! to every user who has something open below it, so that those of all users together are no more than are charged.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use arden_lock::{Mutex, ranks};
use arden_store::store::Node;

use super::usage::{Charge, Kind, Refused};

/// By the user's account and the directory's number.
#[derive(Debug, Default)]
pub struct Directories(Mutex<HashMap<(usize, u64), Weak<KeptDirectory>>, ranks::UsageDirectories>);

/// A directory charged to a user, and those above it.
pub struct KeptDirectory {
    above: Option<Arc<KeptDirectory>>,
    /// With it the account lives whose place in memory is its number.
    _charge: Charge,
}

impl Directories {
    /// Charges the directories above `node`, and with `itself` that one too, to whom `open` is charged, unless something of
    /// theirs has them in use. None where there are none.
    ///
    /// # Errors
    /// [`Refused`] when a bound would be passed; never with `force`.
    pub fn keep(
        &self,
        open: &Charge,
        node: &dyn Node,
        itself: bool,
        force: bool,
    ) -> Result<Option<Arc<KeptDirectory>>, Refused> {
        let user = open.account_number();
        let mut new = Vec::new();
        let mut kept = None;
        let mut known = self.0.lock();
        node.directories_above(itself, &mut |number| {
            kept = known.get(&(user, number)).and_then(Weak::upgrade);
            if kept.is_none() {
                new.push(number);
            }
            kept.is_none()
        });
        for number in new.into_iter().rev() {
            let charge = match open.also(Kind::DescriptorOpens, 1) {
                Err(Refused) if force => open.also_beyond(Kind::DescriptorOpens, 1),
                charge => charge?,
            };
            let directory = Arc::new(KeptDirectory { above: kept, _charge: charge });
            if known.len() == known.capacity() {
                known.retain(|_, directory| directory.strong_count() > 0);
            }
            known.insert((user, number), Arc::downgrade(&directory));
            kept = Some(directory);
        }
        Ok(kept)
    }

    /// Charges the directories above the name that `node` has now, for as long as any user has it open: for what was moved
    /// there, or is to be deleted by its last user.
    pub fn stay(&self, open: &Charge, node: &dyn Node) {
        if let Ok(Some(kept)) = self.keep(open, node, false, true) {
            node.keep_with_name(kept);
        }
    }
}

/// Without those above: there may be more of them than a stack has frames.
impl std::fmt::Debug for KeptDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptDirectory").finish_non_exhaustive()
    }
}

impl Drop for KeptDirectory {
    /// One after the other, as the directories themselves.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut directory) = above.and_then(Arc::into_inner) {
            above = directory.above.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use arden_auth::Token;
    use arden_wire::dtyp::Sid;

    use super::*;
    use crate::base::usage::{Usage, UsageLimits};

    #[test]
    fn a_directory_is_shown_without_those_above() {
        let user = Token { user: Sid::new(5, &[21, 1]), user_name: "u".into(), groups: Vec::new(), privileges: 0 };
        let charge = Usage::new(UsageLimits::default()).charge(Kind::DescriptorOpens, &user, None, 1).unwrap();
        let below =
            |above| Some(Arc::new(KeptDirectory { above, _charge: charge.also_beyond(Kind::DescriptorOpens, 1) }));
        let deep = (0..100).fold(None, |above, _| below(above));
        assert_eq!(format!("{deep:?}"), "Some(KeptDirectory { .. })");
    }
}
