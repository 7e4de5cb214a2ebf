//! Sequential writes and reads on a mirror: a file of a volume over SMB, compared with the blocks of another space of
//! the same pool over NBD. The generator, the requests and the bytes are the same, and written data is flushed before
//! the clock stops.

use std::path::Path;

use arden_measure::{
    Result,
    base::stats::median,
    client::Protection,
    fail,
    load::{
        Content, Kind, Live, Op, Target, fill,
        smb::{How, SmbFile, SmbTarget},
    },
    source::{Need, Source},
};

use super::{
    lines::{Aim, Line, table},
    plan::{Plan, VOLUME_DISK_BYTES},
    turns::{Turn, in_turn},
};
use crate::{
    local::servers,
    targets::daemon::{Home, SpaceSource},
};

const AIM: f64 = 0.85;
const IO_BYTES: u32 = 1 << 20;
const IN_FLIGHT: usize = 8;
const SPACE: &str = "beside";

/// The ways to the disks of the pool; the first is the space itself.
const WAYS: [(&str, Option<Protection>); 3] = [
    ("space over NBD", None),
    ("volume over SMB, signed with AES-GMAC", Some(Protection::GMAC)),
    ("volume over SMB, not signed", Some(Protection::Plain)),
];

fn mib_s(bytes: u64, began_ns: u64, target: &dyn Target) -> f64 {
    bytes as f64 / f64::from(1 << 20) / ((target.now_ns() - began_ns) as f64 / 1e9)
}

/// Reads every byte once, from the first to the last.
fn read_through(target: &mut dyn Target, bytes: u64) -> Result<()> {
    let (mut at, mut in_flight, mut done) = (0, 0, Vec::new());
    while at < bytes || in_flight > 0 {
        while at < bytes && in_flight < IN_FLIGHT {
            let tag = (at / u64::from(IO_BYTES)) as u32;
            let op = Op { kind: Kind::Read, offset: at, bytes: IO_BYTES, durable: false, tag, want_data: false };
            target.start(op, None)?;
            (at, in_flight) = (at + u64::from(IO_BYTES), in_flight + 1);
        }
        target.wait(None, &mut done)?;
        for one in done.drain(..) {
            in_flight -= 1;
            if let Some(error) = one.error {
                fail!("reading: {error}");
            }
        }
    }
    Ok(())
}

/// The rates in MiB a second of writing and of reading the written data.
fn once(open: impl Fn(How) -> Result<Box<dyn Target>>, bytes: u64, round: usize, live: &Live) -> Result<[f64; 2]> {
    // The bytes differ in every round, so that cached data of the last round does not help.
    let mut content = Content::plain(round as u64 + 1);
    let mut target = open(How::Overwrite)?;
    let began = target.now_ns();
    fill(&mut *target, bytes, &mut content, live)?;
    let write = mib_s(bytes, began, &*target);
    target.close()?;
    let mut target = open(How::Read)?;
    let began = target.now_ns();
    read_through(&mut *target, bytes)?;
    let read = mib_s(bytes, began, &*target);
    target.close()?;
    Ok([write, read])
}

/// Measures the part and returns its table.
///
/// # Errors
/// A server fails, or the measurement was stopped.
pub fn measure(plan: &Plan, dir: &Path, live: &Live) -> Result<String> {
    let bytes = plan.stream_bytes;
    // Each disk of the mirror holds the files of both SMB ways, the space, and the data of two rounds.
    let disk_bytes = VOLUME_DISK_BYTES.max(12 * bytes);
    let server = servers::arden_on_volume(&plan.arden, dir, disk_bytes, &[("test", None)])?;
    // A cache of the volume's blocks that is much smaller than the file: what is read comes from the disks.
    servers::settings(&plan.arden, dir, &["--signing-required=false", "--volume-cache", "32m"])?;
    servers::mirror(&plan.arden, dir, SPACE, bytes)?;
    let home = Home { state: dir.join("state"), program: None };
    let mut space = SpaceSource::new(SPACE, &home)?;
    space.prepare(&Need { writes: true, force: true, file_bytes: Some(bytes), ..Need::default() }, live)?;
    let open = |side: usize, how: How| -> Result<Box<dyn Target>> {
        let Some(protection) = WAYS[side].1 else { return space.open(true, false) };
        let path = format!("stream{side}.bin");
        let file = SmbFile { target: server.target.clone(), path, protection, channels: 1 };
        Ok(Box::new(SmbTarget::open(&file, how, false)?))
    };
    let result = rounds(plan, open, live);
    space.remove()?;
    let [writes, reads] = result?;
    Ok(tables(&writes, &reads))
}

/// The rates of every round by way: written and read.
fn rounds(
    plan: &Plan,
    open: impl Fn(usize, How) -> Result<Box<dyn Target>>,
    live: &Live,
) -> Result<[Vec<Vec<f64>>; 2]> {
    // The first write to a slab costs more than later ones.
    for side in 0..WAYS.len() {
        once(|how| open(side, how), plan.stream_bytes, plan.rounds, live)?;
    }
    let mut reads = vec![Vec::new(); WAYS.len()];
    let writes = in_turn(plan.rounds, &WAYS.map(|w| w.0), "MiB/s written", live, |Turn { side, round }| {
        let [write, read] = once(|how| open(side, how), plan.stream_bytes, round, live)?;
        reads[side].push(read);
        Ok(write)
    })?;
    Ok([writes, reads])
}

fn tables(writes: &[Vec<f64>], reads: &[Vec<f64>]) -> String {
    let mut lines = Vec::new();
    for (what, seen) in [("write, then flush", writes), ("read, from the disks", reads)] {
        let space = median(&seen[0]);
        for (side, (name, protection)) in WAYS.iter().enumerate().skip(1) {
            let ours = median(&seen[side]);
            lines.push(Line {
                what: format!("sequential {what}: {name}"),
                ours: format!("{ours:.0} MiB/s"),
                beside: format!("{space:.0} MiB/s"),
                ratio: ours / space,
                published: None,
                // Shares are signed by default; the row without signing shows its cost.
                aim: if *protection == Some(Protection::Plain) { Aim::Nothing } else { Aim::AtLeast(AIM) },
                why: "streams-beside-the-space",
            });
        }
    }
    table(["mirror2, 1 MiB, 8 in flight", "volume", "space over NBD"], &lines)
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_directions_are_beside_the_space() {
        let t = super::tables(
            &[vec![1000.0, 1200.0, 1100.0], vec![990.0, 1.0, 5000.0], vec![1100.0]],
            &[vec![2000.0], vec![1000.0], vec![2000.0]],
        );
        assert!(t.contains("write, then flush: volume over SMB, signed with AES-GMAC | 990 MiB/s | 1100 MiB/s | 0.90 | ≥ 0.85 | yes |"), "{t}");
        assert!(t.contains("signed with AES-GMAC | 1000 MiB/s | 2000 MiB/s | 0.50 | ≥ 0.85 | [no]"), "{t}");
        assert!(t.contains("not signed | 2000 MiB/s | 2000 MiB/s | 1.00 | – | – |"), "{t}");
    }
}
