//! Operations on snapshots of streams: making them, reverting, and what is told of them against the model's contents.

use std::rc::Rc;

use arden_store::{error::StoreError, name::fold, store::NodeRef};
use arden_volume::read_stream_snapshot;

use super::ops::{Both, World};

const NAMES: [&str; 5] = ["s", "S", "t", "ünï", "ÜNÏ"];
/// Of one stream.
const SNAPSHOTS_MAX: usize = 4;
const BLOCK: usize = 4096;

type Snapshots = Vec<(String, Rc<Vec<u8>>)>;

impl World<'_> {
    pub(super) fn stream_snapshot(&mut self) -> Both {
        let (node, id, stream) = self.data()?;
        let key = stream.clone().unwrap_or_default();
        let name = NAMES[self.rng.below(NAMES.len() as u64) as usize];
        let mut all: Snapshots = self.model.files[&id].snapshots.get(&key).cloned().unwrap_or_default();
        let found = all.iter().position(|(n, _)| fold(n) == fold(name));
        let content = self.content(id, &stream).clone();
        let result = match self.rng.below(6) {
            0..=2 if all.len() < SNAPSHOTS_MAX => {
                let result = node.create_stream_snapshot(None, name);
                if found.is_some() {
                    return Some((result, Err(StoreError::NameCollision.into())));
                }
                all.push((name.to_owned(), Rc::new(content)));
                result
            }
            3 => {
                let result = node.revert_stream(None, name);
                let Some(found) = found else { return Some((result, Err(StoreError::NotFound.into()))) };
                *self.content(id, &stream) = (*all[found].1).clone();
                all.truncate(found);
                result
            }
            _ => {
                self.look_at_snapshots(&node, &all, &content);
                return None;
            }
        };
        let snapshots = &mut self.model.file(id).snapshots;
        snapshots.remove(&key);
        if !all.is_empty() {
            snapshots.insert(key, all);
        }
        Some((result, Ok(())))
    }

    fn look_at_snapshots(&mut self, node: &NodeRef, all: &Snapshots, content: &[u8]) {
        let listed = node.stream_snapshots().unwrap();
        assert!(listed.is_sorted_by(|a, b| a.created < b.created));
        assert_eq!(
            listed.iter().map(|s| (&s.name, s.size)).collect::<Vec<_>>(),
            all.iter().map(|(name, data)| (name, data.len() as u64)).collect::<Vec<_>>()
        );
        for (name, then) in all {
            assert!(read_stream_snapshot(&**node, name).unwrap() == **then, "snapshot {name} differs");
            self.look_at_deltas(node, name, then, content);
        }
    }

    fn look_at_deltas(&mut self, node: &NodeRef, name: &str, then: &[u8], content: &[u8]) {
        let from = if self.rng.one_in(2) { 0 } else { self.rng.below(20) };
        let max = [1, 3, 1000][self.rng.below(3) as usize];
        let deltas = node.stream_deltas(name, from, max).unwrap();
        assert!(deltas.len() <= max + 1, "{deltas:?}");
        // Each part follows the one before it, and is of the stream.
        let mut end = from;
        for d in &deltas {
            assert!(d.from >= end && d.blocks > 0, "{deltas:?} from {from}");
            end = d.from + d.blocks;
        }
        assert!(deltas.is_empty() || end <= content.len().div_ceil(BLOCK) as u64, "{deltas:?}");
        // What differs is told, as far as it was asked for.
        let told = |block: u64| deltas.iter().any(|d| (d.from..d.from + d.blocks).contains(&block));
        let until = if deltas.len() > max { end } else { u64::MAX };
        for (i, block) in (0..).zip(content.chunks(BLOCK)).filter(|(i, _)| (from..until).contains(i)) {
            let at = i as usize * BLOCK;
            let same = (0..block.len()).all(|n| block[n] == then.get(at + n).copied().unwrap_or(0));
            assert!(same || told(i), "block {i} differs from {name}, told are {deltas:?}");
        }
    }
}
