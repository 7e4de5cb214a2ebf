//! Reading ordered keys and values, as it is the same in the present, in the past and in a transaction: [`View`]. Owns the
//! merge of changes in memory with the tree below them.

use std::{
    collections::btree_map,
    iter::Peekable,
    ops::Bound::{Excluded, Included},
};

use crate::{
    disk::{
        error::VolResult,
        keys::{self, Key, Val},
    },
    engine::tree::{Layer, Root, Tree},
};

/// Takes an entry; false ends the scan.
pub type Take<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

struct Merged<'a> {
    layers: Vec<Peekable<btree_map::Range<'a, Key, Option<Val>>>>,
}

impl<'a> Merged<'a> {
    fn peek_key(&mut self) -> Option<&'a Key> {
        self.layers.iter_mut().filter_map(|l| l.peek().map(|(k, _)| *k)).min()
    }

    /// The topmost layer's entry with the lowest key.
    fn next(&mut self) -> Option<(&'a Key, &'a Option<Val>)> {
        let key = self.peek_key()?;
        let mut found = None;
        for l in &mut self.layers {
            if let Some(entry) = l.next_if(|(k, _)| *k == key) {
                found = found.or(Some(entry));
            }
        }
        found
    }
}

/// Entries of all layers, the first one on top, over the tree.
pub fn scan(
    layers: &[&Layer],
    tree: &Tree,
    root: &Root,
    start: &[u8],
    end: &[u8],
    take: &mut Take<'_>,
) -> VolResult<()> {
    if start >= end {
        return Ok(());
    }
    let bounds = (Included(start), Excluded(end));
    let mut merged = Merged { layers: layers.iter().map(|l| l.range::<[u8], _>(bounds).peekable()).collect() };
    let mut go_on = true;
    tree.scan(root, start, end, &mut |key, value| {
        while merged.peek_key().is_some_and(|k| k.as_slice() < key) {
            if let Some((k, Some(v))) = merged.next()
                && !take(k, v)
            {
                go_on = false;
                return false;
            }
        }
        go_on = if merged.peek_key().is_some_and(|k| k.as_slice() == key) {
            match merged.next() {
                Some((k, Some(v))) => take(k, v),
                _ => true,
            }
        } else {
            take(key, value)
        };
        go_on
    })?;
    while go_on {
        match merged.next() {
            Some((k, Some(v))) => go_on = take(k, v),
            Some((_, None)) => {}
            None => break,
        }
    }
    Ok(())
}

/// Reading, as it is the same in and outside of a transaction.
pub trait View {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>>;
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()>;

    fn collect(&self, start: &[u8], end: &[u8], max: usize) -> VolResult<Vec<(Key, Val)>> {
        let mut out = Vec::new();
        self.scan(start, end, &mut |k, v| {
            out.push((k.to_vec(), v.into()));
            out.len() < max
        })?;
        Ok(out)
    }

    /// A value in pieces; None when there is none.
    fn pieces(&self, kind: u8, n: u64) -> VolResult<Option<Vec<u8>>> {
        let mut out: Option<Vec<u8>> = None;
        self.scan(&keys::one(kind, n), &keys::end_of(kind, n), &mut |_, v| {
            out.get_or_insert_default().extend_from_slice(v);
            true
        })?;
        Ok(out)
    }
}
