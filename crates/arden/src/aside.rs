//! Work of administration that may wait for a disk, and for which nobody is to wait as long as that disk hangs.

use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use parking_lot::Mutex;

/// Does `work` on a thread of its own and waits for its end, at most for `patience`; it goes on behind who waits no longer. `what` is for the log.
pub fn wait_a_while(patience: Duration, what: &'static str, work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(Mutex::new(Some(work)));
    let (end, ended) = mpsc::channel::<()>();
    let mine = work.clone();
    let run = move || {
        let work = mine.lock().take();
        work.into_iter().for_each(|work| work());
        drop(end);
    };
    if let Err(error) = std::thread::Builder::new().name("aside".into()).spawn(run) {
        tracing::error!(%error, what, "no thread for it; it is waited for");
        let work = work.lock().take();
        work.into_iter().for_each(|work| work());
        return;
    }
    if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!(
            what,
            seconds = patience.as_secs(),
            "goes on, and is not waited for any longer: a disk may hang"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_waited_for_a_while_and_goes_on() {
        let (release, hangs) = mpsc::channel::<()>();
        let (done, ended) = mpsc::channel::<u32>();
        let begun = Instant::now();
        let also_done = done.clone();
        wait_a_while(Duration::from_millis(50), "a test", move || {
            let _ = hangs.recv();
            done.send(2).unwrap();
        });
        assert!(begun.elapsed() >= Duration::from_millis(50));
        assert!(ended.try_recv().is_err(), "it still hangs");
        wait_a_while(Duration::from_secs(600), "a test", move || also_done.send(1).unwrap());
        assert_eq!(ended.try_recv(), Ok(1), "it was waited for");
        drop(release);
        assert_eq!(ended.recv(), Ok(2));
    }
}
