//! When clients see the time of a write.

use std::time::Duration;

use arden_wire::FileTime;

use crate::world::*;

impl World {
    /// Lets time pass on the table's clocks alone: what the file system writes down stays the real time.
    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.table.set_time(self.now, FileTime(200_000_000_000_000_000));
    }
    fn write_time(&self, open: &std::sync::Arc<arden_store::fs::Open>) -> FileTime {
        self.fs.stat(open).unwrap().stat.last_write
    }
}

#[test]
fn a_write_shows_after_two_seconds_and_the_next_with_close() {
    let mut w = World::new();
    let f = w.opened(want("f"));
    let created = f.stat.last_write;
    let (f, other) = (f.open, w.open(want("f")));
    w.wait(1);
    w.write(&f, 0, b"x").unwrap();
    assert_eq!(w.write_time(&f), created);
    assert_eq!(w.write_time(&other), created);
    assert_eq!(w.opened(want("f")).stat.last_write, created);
    w.wait(2);
    let first = w.write_time(&f);
    assert!(first > created);
    w.write(&f, 0, b"y").unwrap();
    w.wait(100);
    assert_eq!(w.write_time(&f), first);
    assert_eq!(w.write_time(&other), first);
    w.close(f);
    assert_eq!(w.write_time(&other), FileTime(200_000_000_000_000_000));
}

#[test]
fn flush_sizes_and_attributes_show_a_write_at_once() {
    let mut w = World::new();
    let fs = w.fs.clone();
    for (i, settle) in ["flush", "size", "attributes", "close"].into_iter().enumerate() {
        let f = w.opened(want(&format!("f{i}")));
        let (created, f) = (f.stat.last_write, f.open);
        let other = w.open(want(&format!("f{i}")));
        w.wait(1);
        w.write(&f, 0, b"x").unwrap();
        assert_eq!(w.write_time(&f), created, "{settle}");
        match settle {
            "flush" => fs.flush(&f).unwrap(),
            "size" => fs.set_end_of_file(&f, 1, w.cause()).unwrap(),
            "attributes" => fs.set_basic(&f, &arden_store::fs::BasicInformation::default(), w.cause()).unwrap(),
            _ => w.close(f),
        }
        let shown = w.write_time(&other);
        assert!(shown > created && shown < FileTime(200_000_000_000_000_000), "{settle}");
    }
}

/// A time that a client set is not moved by writes that came before.
#[test]
fn a_time_that_was_set_wins() {
    let mut w = World::new();
    let (f, other) = (w.open(want("f")), w.open(want("f")));
    w.write(&f, 0, b"x").unwrap();
    let time = 150_000_000_000_000_000;
    let info = arden_store::fs::BasicInformation { last_write: time, ..Default::default() };
    w.fs.set_basic(&other, &info, w.cause()).unwrap();
    w.wait(3);
    w.close(f);
    assert_eq!(w.write_time(&other), FileTime(time as u64));
}
