//! Which named stream a node of a file is, whatever the stream is called by now, for stores to share. Refuses to know where
//! streams are kept.

use std::sync::{Arc, Weak};

use arden_lock::{Mutex, ranks};

use crate::error::StoreError;

/// A stream as the nodes know it that were opened by one name.
#[derive(Debug)]
pub struct StreamRef {
    pub opened_as: String,
    state: Mutex<State, ranks::StreamName>,
}

#[derive(Debug)]
struct State {
    /// "" once it is the file's own data.
    name: String,
    gone: bool,
}

impl StreamRef {
    pub fn is_unnamed(&self) -> bool {
        self.state.lock().name.is_empty()
    }

    /// The stream's name now.
    ///
    /// # Errors
    /// [`StoreError::Deleted`]: it is gone, though there may be another of its name.
    pub fn name(&self) -> Result<String, StoreError> {
        let state = self.state.lock();
        if state.gone { Err(StoreError::Deleted) } else { Ok(state.name.clone()) }
    }
}

/// The streams of one file that nodes are.
#[derive(Debug, Default)]
pub struct OpenStreams(Mutex<Vec<Weak<StreamRef>>, ranks::OpenStreams>);

impl OpenStreams {
    /// For a node that is opened as the stream of this name.
    pub fn open(&self, name: &str) -> Arc<StreamRef> {
        let mut all = self.0.lock();
        all.retain(|s| s.strong_count() > 0);
        let is_it = |s: &Arc<StreamRef>| {
            let state = s.state.lock();
            !state.gone && state.name == name && s.opened_as == name
        };
        if let Some(known) = all.iter().filter_map(Weak::upgrade).find(is_it) {
            return known;
        }
        let state = Mutex::new(State { name: name.to_owned(), gone: false });
        let new = Arc::new(StreamRef { opened_as: name.to_owned(), state });
        all.push(Arc::downgrade(&new));
        new
    }

    /// Tells all nodes that are the stream `from` that it is called `to`, or, without that, that it is gone. Whoever calls
    /// sees to it that names change one at a time.
    pub fn moved(&self, from: &str, to: Option<&str>) {
        for stream in self.0.lock().iter().filter_map(Weak::upgrade) {
            let mut state = stream.state.lock();
            if state.name == from && !state.gone {
                match to {
                    Some(to) => state.name = to.to_owned(),
                    None => state.gone = true,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_gone_is_not_the_next_of_its_name() {
        let streams = OpenStreams::default();
        let (old, same) = (streams.open("s"), streams.open("s"));
        assert!(Arc::ptr_eq(&old, &same));
        streams.moved("s", None);
        let new = streams.open("s");
        streams.moved("s", Some("t"));
        assert_eq!((old.name(), new.name()), (Err(StoreError::Deleted), Ok("t".into())));
        assert_eq!(new.opened_as, "s");
        streams.moved("t", Some(""));
        assert!(new.is_unnamed() && !old.is_unnamed());
    }
}
