//! Runs sequences: generates from a seed, replays, shortens.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    op::{self, Op, View},
    opens::Check,
    rng::Rng,
    world::{StoreKind, World},
};

/// Operations between two comparisons of the whole tree.
const SWEEP_EVERY: usize = 20;

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub store: StoreKind,
    pub ops: usize,
    pub verbose: bool,
}

/// A sequence that the model and the server do not agree on.
#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub ops: Vec<Op>,
    pub what: String,
}

#[derive(Debug, Default, Clone, Copy)]
pub struct Report {
    pub requests: u64,
    pub operations: u64,
}

impl World {
    pub fn step(&mut self, op: &Op) -> Check {
        match op {
            Op::Create(c) => self.create(c),
            Op::Close { slot } => self.close_slot(*slot),
            Op::Read { slot, offset, len } => self.read(*slot, *offset, *len),
            Op::Write { slot, offset, len, fill } => self.write(*slot, *offset, *len, *fill),
            Op::Query { slot, class } => self.query(*slot, *class),
            Op::QuerySecurity { slot, parts } => self.query_security(*slot, *parts),
            Op::QueryFs { slot, class } => self.query_fs(*slot, *class),
            Op::SetBasic { slot, attributes } => self.set_basic(*slot, *attributes),
            Op::SetSize { slot, class, size } => self.set_size(*slot, *class, *size),
            Op::SetSecurity { slot, sd, parts } => self.set_security(*slot, sd, *parts),
            Op::SetEa { slot, name, value } => self.set_ea(*slot, name, value),
            Op::SetOther { slot, class } => self.set_other(*slot, *class),
            Op::Dispose { slot, flags, ex } => self.dispose(*slot, *flags, *ex),
            Op::Rename { slot, path, stream, replace, ex } => self.rename(*slot, path, stream, *replace, *ex),
            Op::Link { slot, path, replace } => self.link(*slot, path, *replace),
            Op::List { slot, class, pattern } => self.list(*slot, *class, pattern),
            Op::Foreign { slot, session, kind } => self.foreign(*slot, *session, *kind),
            Op::Probe { session, share, path, desired, disposition } => {
                self.probe(*session, *share, path, *desired, *disposition)
            }
            Op::Fsctl { slot, kind } => self.fsctl(*slot, *kind),
            Op::Copy { from, to, write_only, len } => self.copy(*from, *to, *write_only, *len),
            Op::Offload { from, to } => self.offload(*from, *to),
            Op::Clone { from, to } => self.duplicate(*from, *to),
            Op::Lock { slot, exclusive, unlock } => self.lock(*slot, *exclusive, *unlock),
            Op::Watch { slot } => self.watch(*slot),
            Op::OpenById { slot, session, share, of, desired } => {
                self.open_by_id(*slot, *session, *share, of, *desired)
            }
            Op::Session { session, kind, other } => self.session(*session, *kind, *other),
        }
    }

    fn view(&self) -> View<'_> {
        View {
            tree: &self.tree,
            roots: &self.roots,
            sessions: self.users.len(),
            used: (0..self.handles.len()).filter(|s| self.handles[*s].is_some()).collect(),
            hidden: &self.hidden,
            linked: self.linked_names(),
        }
    }

    /// All opens closed, the tree compared.
    fn finish(&mut self) -> Check {
        self.sweep()?;
        for slot in 0..self.handles.len() {
            self.close_slot(slot)?;
        }
        self.sweep()
    }
}

fn caught(run: impl FnOnce() -> Check) -> Check {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// One sequence from a seed.
///
/// # Errors
/// The sequence up to where it fails.
pub fn fuzz(seed: u64, settings: &Settings) -> Result<Report, Failure> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(settings.store);
    let mut ops: Vec<Op> = Vec::new();
    let outcome = caught(|| {
        for i in 0..settings.ops {
            let op = op::next(&mut rng, &world.view());
            if settings.verbose {
                println!("{op:?}");
            }
            ops.push(op.clone());
            world.step(&op)?;
            if i % SWEEP_EVERY == SWEEP_EVERY - 1 {
                world.find_hidden();
                world.sweep()?;
            }
        }
        world.finish()
    });
    match outcome {
        Ok(()) => Ok(Report { requests: world.requests, operations: settings.ops as u64 }),
        Err(what) => Err(Failure { seed, ops, what }),
    }
}

/// Runs a sequence as it stands, comparing the tree after each request.
fn replay(ops: &[Op], store: StoreKind) -> (usize, Check) {
    let mut world = World::new(store);
    let mut done = 0;
    let outcome = caught(|| {
        for op in ops {
            done += 1;
            world.step(op)?;
            world.sweep()?;
        }
        world.finish()
    });
    (done, outcome)
}

/// What a failure is about, without the values in it.
fn kind(what: &str) -> String {
    let head: String = what.chars().take_while(|c| !c.is_ascii_digit() && *c != '"' && *c != '\n').collect();
    let reason = what.split("refuses it: ").nth(1).unwrap_or_default();
    format!("{head}{reason}")
}

/// Leaves requests out as long as the sequence fails in the same way.
pub fn shrink(failure: &Failure, store: StoreKind) -> Failure {
    let mut best = failure.clone();
    let (done, outcome) = replay(&best.ops, store);
    let Err(what) = outcome else { return best };
    best.ops.truncate(done);
    let wanted = kind(&what);
    best.what = what;
    let mut chunk = best.ops.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < best.ops.len() {
            let mut ops = best.ops.clone();
            ops.drain(at..(at + chunk).min(ops.len()));
            match replay(&ops, store) {
                (done, Err(what)) if kind(&what) == wanted => {
                    ops.truncate(done);
                    best = Failure { ops, what, ..best };
                }
                _ => at += chunk,
            }
        }
        chunk /= 2;
    }
    best
}
