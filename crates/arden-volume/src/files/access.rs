//! When reading a file moves its LastAccessTime, [MS-FSA] 2.1.4.17 and 2.1.4.20, which leave it to the object store:
//! a policy of the volume. Refuses to know which open holds the time still: that is above.

use std::sync::atomic::Ordering;

use arden_wire::FileTime;

use crate::{
    disk::{error::VolResult, inode::Inode, superblock::feature},
    files::{
        inodes::{load_inode, now},
        owner::Files,
    },
};

/// What moves LastAccessTime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LastAccess {
    /// Only who sets it.
    #[default]
    Never,
    /// Reading and listing, where it is not behind the last change already, and once a day.
    Relative,
    /// Every read, listing and change.
    Always,
}

/// [`LastAccess::Relative`] moves a time that is older than this: 24 hours.
const OLD: u64 = 24 * 3600 * 10_000_000;

impl LastAccess {
    pub fn of(features: u32) -> LastAccess {
        match features & (feature::ACCESS_RELATIVE | feature::ACCESS_ALWAYS) {
            0 => LastAccess::Never,
            feature::ACCESS_RELATIVE => LastAccess::Relative,
            _ => LastAccess::Always,
        }
    }

    fn bits(self) -> u32 {
        match self {
            LastAccess::Never => 0,
            LastAccess::Relative => feature::ACCESS_RELATIVE,
            LastAccess::Always => feature::ACCESS_ALWAYS,
        }
    }

    fn is_due(self, inode: &Inode, now: FileTime) -> bool {
        let at = inode.last_access;
        match self {
            LastAccess::Never => false,
            LastAccess::Relative => at <= inode.last_write || at <= inode.change || now.0.abs_diff(at.0) > OLD,
            LastAccess::Always => at < now || is_ahead(at, now),
        }
    }
}

/// Set while the clock was wrong, or by a client. Less is what two that read at once may differ by.
fn is_ahead(at: FileTime, now: FileTime) -> bool {
    at.0.saturating_sub(now.0) > OLD
}

impl Files {
    pub fn last_access(&self) -> LastAccess {
        LastAccess::of(self.access_bits.load(Ordering::Relaxed))
    }

    pub fn set_last_access(&self, policy: LastAccess) -> VolResult<()> {
        let guard = self.engine.lock_checkpoint();
        let all = feature::ACCESS_RELATIVE | feature::ACCESS_ALWAYS;
        if self.last_access() != policy {
            self.engine.change_superblock(&guard, |sb| sb.features = sb.features & !all | policy.bits())?;
            self.access_bits.store(policy.bits(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Somebody read the file or listed the directory.
    pub fn accessed(&self, ino: u64) {
        let policy = self.last_access();
        if policy == LastAccess::Never {
            return;
        }
        let now = now();
        let moved = || -> VolResult<()> {
            if !policy.is_due(&load_inode(&self.engine.reading(), ino)?, now) {
                return Ok(());
            }
            let mut t = self.begin_beside();
            t.unanswered = true;
            let mut inode = load_inode(&t, ino)?;
            let before = inode.last_access;
            inode.last_access = if is_ahead(before, now) { now } else { now.max(before) };
            t.put_inode(ino, &inode);
            t.commit().map(|_| ())
        };
        if let Err(e) = moved() {
            tracing::debug!("last access of file {ino}: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arden_store::store::{BasicUpdate, Wait};

    use super::*;
    use crate::testing::{Files, volume, volume_on};

    #[test]
    fn each_policy_moves_the_time_when_it_says_and_is_kept() {
        let (device, vol) = volume(16 << 20);
        let files = Files::new(&vol);
        files.make("dir", true).unwrap();
        let node = files.write("f", b"content");
        let time = || files.find("f").unwrap().stat().unwrap().last_access;
        let read = || {
            std::thread::sleep(Duration::from_millis(2));
            node.read_at(0, &mut [0; 4], Wait::Yes).unwrap();
        };
        let made = time();
        read();
        assert_eq!(time(), made, "never");
        vol.set_last_access(LastAccess::Relative).unwrap();
        read();
        let first = time();
        assert!(first > made);
        read();
        assert_eq!(time(), first, "it is behind no change");
        let old = FileTime(first.0 - OLD - 1);
        let times = Some(FileTime(1));
        let update = BasicUpdate { last_access: Some(old), last_write: times, change: times, ..BasicUpdate::default() };
        node.set_basic(None, &update).unwrap();
        read();
        assert!(time() > first, "older than a day");
        node.write_at(None, 0, b"again", Wait::Yes).unwrap();
        let before = time();
        read();
        assert!(time() > before, "behind a change");
        vol.set_last_access(LastAccess::Always).unwrap();
        for _ in 0..2 {
            let before = time();
            read();
            assert!(time() > before, "always");
        }
        for policy in [LastAccess::Relative, LastAccess::Always] {
            vol.set_last_access(policy).unwrap();
            let ahead = FileTime(now().0 + 2 * OLD);
            node.set_basic(None, &BasicUpdate { last_access: Some(ahead), ..BasicUpdate::default() }).unwrap();
            read();
            assert!(time() < ahead, "{policy:?}: a clock that was wrong once");
        }
        let before = time();
        std::thread::sleep(Duration::from_millis(2));
        node.write_at(None, 0, b"more", Wait::Yes).unwrap();
        assert!(time() > before, "writing is access too");
        let dir = files.find("dir").unwrap();
        let before = dir.stat().unwrap().last_access;
        std::thread::sleep(Duration::from_millis(2));
        dir.list().unwrap();
        assert!(dir.stat().unwrap().last_access > before);
        vol.close().unwrap();
        drop((files, node, dir, vol));
        assert_eq!(volume_on(device.clone()).last_access(), LastAccess::Always);
        let vol = volume_on(device);
        vol.set_last_access(LastAccess::Never).unwrap();
        assert_eq!(vol.superblock().features, feature::ALWAYS);
    }
}
