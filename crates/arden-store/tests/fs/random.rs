//! Random clients at one small directory: whatever they do, the rules hold after every step, and nothing is left.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arden_block::rng::Rng;
use arden_store::fs::*;

use crate::world::*;

fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.below(of.len() as u64) as usize]
}

const NAMES: [&str; 5] = ["a", "b", "a:s", "d\\x", "d"];
const ACCESS: [u32; 7] = [
    FILE_READ_DATA,
    FILE_READ_DATA | FILE_WRITE_DATA,
    FILE_ALL_ACCESS,
    DELETE,
    FILE_READ_ATTRIBUTES,
    READ_CONTROL | SYNCHRONIZE,
    FILE_EXECUTE | FILE_APPEND_DATA,
];

fn request(rng: &mut Rng) -> Want {
    use Disposition::*;
    let name = *pick(rng, &NAMES);
    let client = 1 + rng.below(3) as u128;
    let mut w =
        want(name).access(*pick(rng, &ACCESS)).share(rng.below(8) as u32 | if rng.below(3) == 0 { 0 } else { 7 });
    w = w.disposition(*pick(rng, &[OpenIf, OpenIf, OpenIf, Open, Create, Overwrite, OverwriteIf, Supersede]));
    if name == "d" {
        w = w.directory().disposition(OpenIf);
    }
    if rng.below(6) == 0 {
        w = w.options(OPT_DELETE_ON_CLOSE);
        w.access |= DELETE;
    }
    w = match rng.below(4) {
        0 => w,
        1 => w.oplock(*pick(rng, &[OplockLevel::LevelII, OplockLevel::Exclusive, OplockLevel::Batch])),
        // A key belongs to one name and client.
        _ => {
            let key = NAMES.iter().position(|n| *n == name).unwrap() as u128 * 4 + rng.below(2) as u128;
            w.lease(key, ["R", "RH", "RW", "RWH", ""][rng.below(5) as usize])
        }
    };
    w.client(client)
}

/// Nobody caches writes beside others, unless those cache nothing under the same key and did no work yet; nobody is open
/// against a share mode.
fn check(w: &World, seed: u64, step: usize) {
    // A deleted file keeps its path, beside a new one of that name.
    let mut by_path: HashMap<(u64, String), Vec<OpenSummary>> = HashMap::new();
    // Streams that were deleted under their opens have no name: one has nothing to do with the other.
    for o in w.table.opens().into_iter().filter(|o| !o.path.ends_with(':')) {
        by_path.entry((o.file.file, o.path.to_lowercase())).or_default().push(o);
    }
    let shared = FILE_READ_DATA | FILE_EXECUTE | FILE_WRITE_DATA | FILE_APPEND_DATA | DELETE;
    let stat = |o: &OpenSummary| o.access & !(FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES | SYNCHRONIZE) == 0;
    for (path, opens) in by_path {
        for (i, a) in opens.iter().enumerate() {
            for b in opens.iter().skip(i + 1) {
                let conflict = |x: &OpenSummary, y: &OpenSummary| {
                    (x.access & (FILE_READ_DATA | FILE_EXECUTE) != 0 && y.share & FILE_SHARE_READ == 0)
                        || (x.access & (FILE_WRITE_DATA | FILE_APPEND_DATA) != 0 && y.share & FILE_SHARE_WRITE == 0)
                        || (x.access & DELETE != 0 && y.share & FILE_SHARE_DELETE == 0)
                };
                let both = a.access & shared != 0 && b.access & shared != 0;
                assert!(!(both && (conflict(a, b) || conflict(b, a))), "seed {seed} step {step} {path:?}: {a:?} {b:?}");
            }
            let (writes, mine) = match a.cache {
                CacheGrant::Lease { state, key, .. } => (state & lease_state::WRITE != 0, Some((a.client, key))),
                CacheGrant::Oplock(level) => (level >= OplockLevel::Exclusive, None),
            };
            let same = |o: &OpenSummary| match o.cache {
                CacheGrant::Lease { key, .. } => Some((o.client, key)) == mine,
                CacheGrant::Oplock(_) => o.id == a.id,
            };
            let idle = |o: &OpenSummary| match o.cache {
                CacheGrant::Lease { key, state: 0, .. } => mine.is_some_and(|m| m.1 == key && m.0 != o.client),
                _ => false,
            };
            let alone = opens.iter().all(|o| same(o) || stat(o) || idle(o));
            // READ_CONTROL breaks no lease.
            let nearly = |o: &OpenSummary| stat(o) || (mine.is_some() && o.access & !(READ_CONTROL | SYNCHRONIZE) == 0);
            assert!(
                !writes || alone || opens.iter().all(|o| same(o) || nearly(o) || idle(o)),
                "seed {seed} step {step} {path:?}: {opens:#?}"
            );
        }
    }
}

/// A write, unless it has to wait for who caches writes under the same key: once it is made, nobody else does.
fn write(w: &World, o: &Arc<Open>) {
    match w.fs.begin_work(o, w.cause()) {
        Ok(Step::Done(())) if w.write(o, 0, b"x").is_ok() => {
            let opens = w.table.opens();
            let Some(path) = opens.iter().find(|x| x.id == o.id()).map(|x| &x.path) else { return };
            let me = (o.client(), w.fs.cache(o));
            for other in opens.iter().filter(|x| x.file == o.file_id() && x.path.eq_ignore_ascii_case(path)) {
                let CacheGrant::Lease { state, key, .. } = other.cache else { continue };
                let own = matches!(me.1, CacheGrant::Lease { key: k, .. } if (me.0, k) == (other.client, key));
                assert!(own || state & lease_state::WRITE == 0, "{o:?} wrote beside {opens:#?}");
            }
        }
        Ok(Step::Wait(wait)) => w.table.cancel_wait(wait),
        _ => {}
    }
}

fn answer(w: &World, rng: &mut Rng, open: &[Arc<Open>]) {
    for o in open {
        match w.fs.cache(o) {
            CacheGrant::Lease { key, breaking: true, .. } => {
                let _ = w.table.ack_lease_break(o.client(), key, rng.below(8) as u32, w.cause());
            }
            CacheGrant::Oplock(level) if level > OplockLevel::LevelII => {
                let to = *pick(rng, &[OplockLevel::None, OplockLevel::LevelII]);
                let _ = w.fs.ack_oplock_break(o, to, w.cause());
            }
            _ => {}
        }
    }
}

#[test]
fn rules_hold_after_every_step() {
    for seed in 1..=40u64 {
        let mut rng = Rng::new(seed);
        let mut w = World::new();
        w.close(w.open(want("d").directory()));
        let mut open: Vec<Arc<Open>> = Vec::new();
        let mut waiting: Vec<(WaitId, Want)> = Vec::new();
        for step in 0..300 {
            match rng.below(10) {
                0..=3 if open.len() < 12 => {
                    let want = request(&mut rng);
                    match w.try_open(&want) {
                        Ok(Step::Done(o)) => open.push(o.open),
                        Ok(Step::Wait(id)) => waiting.push((id, want)),
                        Err(_) => {}
                    }
                }
                4 | 5 if !open.is_empty() => {
                    let o = open.swap_remove(rng.below(open.len() as u64) as usize);
                    w.close(o);
                }
                6 if !open.is_empty() => {
                    let o = pick(&mut rng, &open).clone();
                    write(&w, &o);
                    let how = Disposal { delete: rng.below(3) == 0, posix: rng.below(4) == 0, ..Disposal::default() };
                    let _ = w.fs.set_disposition(&o, how, w.cause());
                }
                7 if !open.is_empty() => {
                    let o = pick(&mut rng, &open).clone();
                    let to = *pick(&mut rng, &["a", "b", "d\\x", "c", ":s", ":t", "::$DATA"]);
                    let _ = w.rename(&o, to, rng.below(2) == 0);
                }
                8 => answer(&w, &mut rng, &open),
                _ if rng.below(4) == 0 => {
                    w.now += Duration::from_secs(36);
                    w.table.tick(w.now);
                }
                _ => {}
            }
            for line in w.told() {
                let Some(id) = line.strip_prefix("resume ").and_then(|n| n.parse().ok()) else { continue };
                let Some(i) = waiting.iter().position(|(w, _)| *w == WaitId(id)) else { continue };
                let (_, want) = waiting.swap_remove(i);
                match w.try_open(&want) {
                    Ok(Step::Done(o)) => open.push(o.open),
                    Ok(Step::Wait(id)) => waiting.push((id, want)),
                    Err(_) => {}
                }
            }
            check(&w, seed, step);
        }
        for (id, _) in waiting.drain(..) {
            w.table.cancel_wait(id);
        }
        for o in open.drain(..) {
            w.close(o);
        }
        assert_eq!(w.table.open_count(), 0, "seed {seed}");
        assert!(w.table.opens().is_empty(), "seed {seed}");
        for name in ["a", "b", "c"] {
            w.close(w.open(want(name)));
        }
    }
}
