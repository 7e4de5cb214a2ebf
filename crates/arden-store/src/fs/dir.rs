//! Enumerating directories, [MS-FSA] 2.1.5.6.3, and watching them, 2.1.5.11.

use std::{cell::Cell, sync::Arc};

use super::{Change, Fs, HeldBytes, Open, Operation, Step};
use crate::{
    error::{NotDone, StoreError},
    name::{NtPath, PathWants, Pattern, may_be_made_short},
    store::{DirEntry, EntryShort, Lookup, Node, Result},
    table::{Listing, WaitPlace, file::NameState, notify::Watch},
};

/// What became of an entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emitted {
    Taken,
    /// Not for this user: as if it were not there.
    Hidden,
    /// It did not fit, and is given again by the next call.
    Full,
}

impl Fs {
    /// Gives entries to `emit`, in order. `NoMatchingEntry` when the
    /// pattern never matched, `NoMoreEntries` after the last entry.
    pub fn query_directory(
        &self,
        open: &Arc<Open>,
        pattern: &str,
        restart: bool,
        reopen: bool,
        single: bool,
        emit: &mut dyn FnMut(&DirEntry) -> Emitted,
    ) -> Result<()> {
        self.query_directory_part(open, pattern, restart, reopen, single, usize::MAX, emit)
    }

    /// The same for who may not stay long: after `names_max` names that the pattern does not take it ends with what there is, and
    /// with `WouldBlock` where that is nothing, or where somebody else is at it. A call without that bound then goes on.
    #[expect(clippy::too_many_arguments, reason = "the request's own, and one bound")]
    pub fn query_directory_part(
        &self,
        open: &Arc<Open>,
        pattern: &str,
        restart: bool,
        reopen: bool,
        single: bool,
        names_max: usize,
        emit: &mut dyn FnMut(&DirEntry) -> Emitted,
    ) -> Result<()> {
        open.check(Operation::List)?;
        if !open.directory {
            return Err(StoreError::InvalidParameter.into());
        }
        let mut slot = if names_max == usize::MAX {
            open.listing.lock()
        } else {
            open.listing.try_lock().ok_or(NotDone::WouldBlock)?
        };
        let l = begin_listing(open, &mut slot, |directory| self.wanted(directory, pattern), restart || reopen)?;
        let given = self.give_entries(open, l, single, names_max, emit);
        l.pause(self.table.limits())?;
        given
    }

    fn give_entries(
        &self,
        open: &Arc<Open>,
        l: &mut Listing,
        single: bool,
        names_max: usize,
        emit: &mut dyn FnMut(&DirEntry) -> Emitted,
    ) -> Result<()> {
        let mut given = 0usize;
        let mut left = names_max;
        loop {
            if single && given == 1 {
                break;
            }
            let dot = l.dots < 2;
            let entry = match if dot { self.dot_entry(open, l) } else { next_entry(l, &mut left) } {
                Err(NotDone::WouldBlock) if given > 0 => break,
                other => other?,
            };
            let Some(entry) = entry else {
                if dot {
                    l.dots += 1;
                    continue;
                }
                if given == 0 {
                    return Err(if l.fresh { StoreError::NoMatchingEntry } else { StoreError::NoMoreEntries }.into());
                }
                break;
            };
            match emit(&entry) {
                Emitted::Full => break,
                Emitted::Taken => {
                    given += 1;
                    l.fresh = false;
                }
                Emitted::Hidden => {}
            }
            if dot {
                l.dots += 1;
            } else {
                l.cursor.advance();
            }
        }
        Ok(())
    }

    /// What a query asks for that begins. None: what the one before it asked for. An 8.3 name that the store does not keep asks for the entry for
    /// which it is made; with wildcards only names, and 8.3 names that are kept, are looked at.
    ///
    /// # Errors
    /// `WouldBlock` where that entry is not found without a wait.
    fn wanted(&self, directory: &dyn Node, pattern: &str) -> Result<Option<Pattern>> {
        if !may_be_made_short(pattern) {
            return Ok((!pattern.is_empty()).then(|| Pattern::new(pattern)));
        }
        let mut components = directory.path();
        components.push(pattern.to_owned());
        let found = self.store.lookup(&NtPath { components, stream: None, wants: PathWants::Any });
        let name = match found {
            Ok(Lookup::Found(node)) => node.path().pop(),
            Err(NotDone::WouldBlock) => return Err(NotDone::WouldBlock),
            _ => None,
        };
        Ok(Some(Pattern::new(name.as_deref().unwrap_or(pattern))))
    }

    /// `.` or `..`, where the pattern takes it. The root is its own parent.
    fn dot_entry(&self, open: &Open, l: &Listing) -> Result<Option<DirEntry>> {
        let name = if l.dots == 0 { "." } else { ".." };
        if !l.pattern.matches(name) {
            return Ok(None);
        }
        let node = if l.dots == 0 { None } else { self.parent_of(&open.node.path()) };
        let stat = node.as_ref().unwrap_or(&open.node).stat()?;
        Ok(Some(DirEntry { name: name.to_owned(), short: EntryShort::Kept(None), stat }))
    }

    /// `ChangesLost` as an error: too much happened. `WatchEnded`: the open was closed. The filter and the depth
    /// are those of the open's first call, and so is who counts what the watch keeps (`held`).
    pub fn notify(
        &self,
        open: &Arc<Open>,
        filter: u32,
        recursive: bool,
        max_bytes: usize,
        held: impl FnOnce() -> Arc<dyn HeldBytes>,
    ) -> Result<Step<Vec<Change>>> {
        if open.is_closed() {
            return Err(StoreError::WatchEnded.into());
        }
        open.check(Operation::List)?;
        if !open.directory {
            return Err(StoreError::InvalidParameter.into());
        }
        open.fs.listen_outside();
        let watch = open.watch.get_or_init(|| {
            // The first call's buffer is the one that changes gather in from then on.
            let buffer_max = self.table.limits().notify_buffer_bytes_max.min(max_bytes);
            let watch =
                Arc::new(Watch::new(open.id, (self.identity(), open.node.id()), filter, recursive, buffer_max, held()));
            if open.restored {
                // Whoever watched before the restart is told that it missed something.
                watch.overflow(&mut Vec::new());
            }
            self.watches.add(watch.clone());
            match self.store.watch_directory(&*open.node, recursive) {
                Ok(guard) => guard.into_iter().for_each(|guard| drop(watch.outside.set(guard))),
                Err(e) => tracing::debug!("changes made outside are not seen here: {e}"),
            }
            watch
        });
        let mut waiting = None;
        let changes = watch.query(max_bytes, || {
            if open.file.lock().name_of(open) != NameState::Stays {
                return Err(StoreError::DeletePending);
            }
            let id = self.table.new_wait(&open.owner, WaitPlace::Notify(Arc::downgrade(watch)))?;
            waiting = Some(id);
            Ok(id)
        })?;
        if open.is_closed() {
            // Closed meanwhile: nobody would come to take the watch away.
            self.watches.remove(watch);
        }
        match (changes, waiting) {
            (Some(changes), _) => Ok(Step::Done(changes)),
            (None, Some(id)) => Ok(Step::Wait(id)),
            (None, None) => Err(StoreError::Internal.into()),
        }
    }
}

/// Where the query stands: at the beginning of a listing that is new or begins again.
fn begin_listing<'a>(
    open: &Open,
    slot: &'a mut Option<Listing>,
    wanted: impl FnOnce(&dyn Node) -> Result<Option<Pattern>>,
    restart: bool,
) -> Result<&'a mut Listing> {
    if slot.is_none() {
        let cursor = open.node.list()?;
        let kept = open.fs.table.read_ahead.of(&open.who.user);
        let pattern = wanted(&*open.node)?.unwrap_or_else(|| Pattern::new("*"));
        return Ok(slot.insert(Listing { cursor, pattern, dots: 0, fresh: true, kept }));
    }
    let l = slot.as_mut().ok_or(StoreError::Internal)?;
    if restart {
        l.cursor.rewind()?;
        if let Some(pattern) = wanted(&*open.node)? {
            l.pattern = pattern;
        }
        (l.dots, l.fresh) = (0, true);
    }
    Ok(l)
}

/// The next entry that the pattern takes; `WouldBlock` once `left` others have been passed over.
fn next_entry(l: &mut Listing, left: &mut usize) -> Result<Option<DirEntry>> {
    let pattern = &l.pattern;
    let passed = Cell::new(*left);
    let found = l.cursor.peek(&|name| {
        if pattern.matches(name) {
            return true;
        }
        passed.set(passed.get().saturating_sub(1));
        // The last one is taken, and left out below: that ends the search here.
        passed.get() == 0
    })?;
    *left = passed.get();
    if *left == 0 && found.as_ref().is_some_and(|e| !e.matches(&|name| pattern.matches(name))) {
        l.cursor.advance();
        return Err(NotDone::WouldBlock);
    }
    Ok(found)
}
