//! The watch of the cluster's keys. A member of etcd that hangs keeps its connections, and says nothing, while requests go to other members:
//! so what the watch has told is held against etcd's revision, and a watch that stays behind is left for a new one.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{Input, WATCH_AGAIN};
use crate::{
    etcd::{Etcd, Told, Watch},
    keys::Names,
};

/// A watch may be behind for so long, as a part of a lease's time.
const BEHIND: u32 = 4;

/// Which changes were told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    /// The revision of etcd up to which they were.
    upto: u64,
    /// The next watch begins with this revision. None: anew, and everything is read.
    from: Option<u64>,
}

impl Heard {
    /// What the loop is to be told.
    fn note(&mut self, told: Told) -> Option<Told> {
        match &told {
            Told::Begun(_) if self.from.is_some() => return None,
            Told::Begun(revision) => *self = Heard { upto: *revision, from: Some(revision + 1) },
            Told::Changed(keys) => {
                let newest = keys.iter().map(|(_, revision)| *revision).max()?;
                *self = Heard { upto: newest.max(self.upto), from: Some(newest + 1) };
            }
        }
        Some(told)
    }
}

/// The revision up to which the state has changed, by what is told. When a watch begins, whatever etcd had by then may have come while there
/// was none.
pub(super) fn state_changed(told: &Told, names: &Names) -> Option<u64> {
    match told {
        Told::Begun(revision) => Some(*revision),
        Told::Changed(keys) => {
            let of_state = keys.iter().filter(|(key, _)| key.starts_with(&names.state()));
            of_state.map(|(_, revision)| *revision).max()
        }
    }
}

/// Tells of every change of a key of the cluster, for ever.
pub(super) async fn watch(etcd: Arc<Etcd>, names: Names, inputs: mpsc::UnboundedSender<Input>, ttl: Duration) {
    let mut heard = Heard::default();
    loop {
        match etcd.watch(&names.all(), heard.from, ttl / 4).await {
            Ok(watch) => listen(&etcd, &names, &inputs, ttl, (watch, &mut heard)).await,
            Err(e) => tracing::debug!("no watch: etcd: {e}"),
        }
        if inputs.is_closed() {
            return;
        }
        sleep(WATCH_AGAIN).await;
    }
}

/// Passes on what the watch tells, until it ends or stays behind.
async fn listen(
    etcd: &Arc<Etcd>,
    names: &Names,
    inputs: &mpsc::UnboundedSender<Input>,
    ttl: Duration,
    (mut watch, heard): (Watch, &mut Heard),
) {
    let mut newest = pin!(revision_after(etcd, names, ttl));
    // A revision that it has to come to, and until when.
    let mut awaited: Option<(u64, Instant)> = None;
    loop {
        let until = awaited.map_or_else(Instant::now, |(_, until)| until);
        tokio::select! {
            told = watch.next() => match told.map(|told| heard.note(told)) {
                // What it would have told next is not known: it may be too old for etcd.
                None => return *heard = Heard::default(),
                Some(told) => {
                    awaited = awaited.filter(|(revision, _)| *revision > heard.upto);
                    if let Some(told) = told {
                        let _ = inputs.send(Input::Told(told));
                    }
                }
            },
            revision = &mut newest, if awaited.is_none() => {
                awaited = (revision > heard.upto).then(|| (revision, Instant::now() + ttl / BEHIND));
                newest.set(revision_after(etcd, names, ttl));
            }
            () = sleep_until(until), if awaited.is_some() => break,
        }
        if inputs.is_closed() {
            return;
        }
    }
    // The next one is begun where requests are answered. Others may use this etcd too: then it is their changes that were not told, and the
    // next one has nothing to tell either.
    tracing::debug!(upto = heard.upto, "the watch of etcd is behind, and is begun anew");
}

/// The revision of etcd after this time, or as soon as it answers then.
async fn revision_after(etcd: &Arc<Etcd>, names: &Names, ttl: Duration) -> u64 {
    sleep(ttl).await;
    loop {
        match etcd.read_all(&[], &names.cluster(), ttl / 4).await {
            Ok(found) => return found.revision,
            Err(_) => sleep(WATCH_AGAIN).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_may_have_changed_before_a_watch_begins() {
        let names = Names::new("c");
        let key = |relative: &str, revision| (format!("/arden/c/{relative}"), revision);
        assert_eq!(state_changed(&Told::Begun(7), &names), Some(7));
        let keys = vec![key("state/revision", 9), key("state/users/eve", 8), key("alive/1", 10)];
        assert_eq!(state_changed(&Told::Changed(keys), &names), Some(9));
        assert_eq!(state_changed(&Told::Changed(vec![key("alive/1", 10)]), &names), None);
    }

    #[test]
    fn the_next_watch_begins_where_the_last_one_ended() {
        let mut heard = Heard::default();
        assert_eq!(heard.note(Told::Begun(7)), Some(Told::Begun(7)), "everything up to there is read");
        assert_eq!(heard, Heard { upto: 7, from: Some(8) });
        let keys = Told::Changed(vec![("a".to_string(), 9), ("b".to_string(), 8)]);
        assert_eq!(heard.note(keys.clone()), Some(keys));
        assert_eq!(heard, Heard { upto: 9, from: Some(10) });
        assert_eq!(heard.note(Told::Begun(30)), None, "what happened since is still to come");
        assert_eq!(heard, Heard { upto: 9, from: Some(10) });
        assert_eq!(heard.note(Told::Changed(Vec::new())), None);
    }
}
