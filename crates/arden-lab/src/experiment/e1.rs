//! E1, the cost of continuous availability for information workers: the same work on a share without it and on one with
//! it.

use std::{
    rc::Rc,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use arden_measure::{
    Result,
    base::units::size,
    fail,
    load::Live,
    outcome::{Outcome, Ratio},
    source::own_name,
    sweep::view::View,
};

use super::{
    Limits, Options, Pair,
    data::{Tree, Writer},
    interleave, over_plain, ratios, safe_over_plain,
    systems::{System, Variant},
};

const GIB: u64 = 1 << 30;
/// Bytes that the extending program appends at a time.
const EXTEND_BYTES: usize = 64 << 10;

enum Work {
    Create(u64),
    Copy(u64),
    /// Copies the files of a tree, this many at once.
    CopyTree(Rc<Tree>, usize),
    Synchronise(Rc<Tree>, usize),
    Extend(u64),
}

/// Files that robocopy copies at once with /MT, each on a thread of its own.
const FILES_AT_ONCE: usize = 8;

struct Test {
    name: String,
    published: f64,
    aim: f64,
    work: Work,
}

/// Aims of the ratios: one file at a time, several at once, and the extending program.
const ALONE_AIM: f64 = 1.25;
const AT_ONCE_AIM: f64 = 1.05;
const EXTEND_AIM: f64 = 1.3;
/// Aim for copies over the other server's plain share.
const OTHER_AIM: f64 = 1.0;

fn tests(o: &Options) -> Vec<Test> {
    let part = o.scale;
    let tree = |seed, files: usize, folders: usize, bytes: u64| {
        Tree::new(o.seed + seed, (files / part as usize).max(8), (folders / part as usize).max(4), bytes / part)
    };
    let (user, redirected) = (Rc::new(tree(1, 1238, 96, 2 * GIB)), Rc::new(tree(2, 4609, 143, 5 * GIB)));
    let test = |name: String, published, work: Work| {
        let aim = match work {
            Work::CopyTree(_, 2..) | Work::Synchronise(_, 2..) => AT_ONCE_AIM,
            Work::Extend(_) => EXTEND_AIM,
            _ => ALONE_AIM,
        };
        Test { name, published, aim, work }
    };
    let described = |t: &Tree| format!("{} files in {} folders, {}", t.files.len(), t.folders.len(), size(t.bytes()));
    vec![
        test(format!("create a file of {}", size(GIB / part)), 1.475, Work::Create(GIB / part)),
        test(format!("copy a file of {}", size(GIB / part)), 1.38, Work::Copy(GIB / part)),
        test(format!("copy a user's tree: {}", described(&user)), 1.465, Work::CopyTree(user.clone(), 1)),
        test(format!("the same, {FILES_AT_ONCE} files at once"), 1.465, Work::CopyTree(user, FILES_AT_ONCE)),
        test(
            format!("first sync of a redirected folder: {}", described(&redirected)),
            1.26,
            Work::Synchronise(redirected.clone(), 1),
        ),
        test(format!("this sync, {FILES_AT_ONCE} files at once"), 1.26, Work::Synchronise(redirected, FILES_AT_ONCE)),
        test("a program that extends its file as it writes".into(), 8.6, Work::Extend((2048 / part).max(16))),
    ]
}

/// Does the work and returns its time in seconds. The files are removed afterwards, outside of that time.
fn once(work: &Work, variant: &Variant, live: &Live) -> Result<f64> {
    let mut w = Writer::new(variant.file.connect()?, variant.mark, live);
    let base = &variant.file.path;
    let root = if base.is_empty() { own_name() } else { format!("{base}\\{}", own_name()) };
    let mut helpers = Vec::new();
    if let Work::CopyTree(_, n) | Work::Synchronise(_, n) = work {
        for _ in 1..*n {
            helpers.push(Writer::new(variant.file.connect()?, variant.mark, live));
        }
    }
    let began = Instant::now();
    let result = match work {
        Work::Create(bytes) => (|| {
            let id = w.create(&root)?;
            w.push(id, *bytes, 256 << 10)?;
            w.client.close(id)
        })(),
        Work::Copy(bytes) => w.copy(&root, *bytes),
        Work::Extend(steps) => (|| {
            let id = w.create(&root)?;
            for i in 0..*steps {
                w.set_end(id, (i + 1) * EXTEND_BYTES as u64)?;
                w.write_at(id, i * EXTEND_BYTES as u64, EXTEND_BYTES)?;
            }
            w.client.close(id)
        })(),
        Work::CopyTree(tree, _) => put_tree(&mut w, &mut helpers, &root, tree, Writer::copy),
        Work::Synchronise(tree, _) => put_tree(&mut w, &mut helpers, &root, tree, Writer::synchronise),
    };
    let took = began.elapsed().as_secs_f64();
    let removed = match work {
        // Files that are missing after a failure are not another failure.
        Work::CopyTree(tree, _) | Work::Synchronise(tree, _) => match &result {
            Ok(()) => w.remove(&root, tree),
            Err(_) => {
                w.remove_what_is_there(&root, tree);
                Ok(())
            }
        },
        _ => w.client.delete(&root),
    };
    result?;
    removed?;
    Ok(took)
}

/// Copies the folders, then the files. Each writer takes the next file that is not taken.
fn put_tree<'a>(
    first: &mut Writer<'a>,
    others: &mut [Writer<'a>],
    root: &str,
    tree: &Tree,
    put: impl Fn(&mut Writer<'a>, &str, u64) -> Result<()> + Sync,
) -> Result<()> {
    first.folder(root)?;
    for folder in &tree.folders {
        first.folder(&format!("{root}\\{folder}"))?;
    }
    let next = AtomicUsize::new(0);
    let work = |w: &mut Writer<'a>| -> Result<()> {
        while let Some((name, bytes)) = tree.files.get(next.fetch_add(1, Relaxed)) {
            put(w, &format!("{root}\\{name}"), *bytes)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = others.iter_mut().map(|w| scope.spawn(|| work(w))).collect();
        let mine = work(first);
        let theirs = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| fail!("a writer stopped")));
        theirs.fold(mine, Result::and)
    })
}

/// Runs the experiment. After an error `outcome` holds the ratios of the tests that ended.
///
/// # Errors
/// A server or a disk fails, or the load was stopped.
pub fn run(systems: &[System], o: &Options, live: &Live, view: &mut View, outcome: &mut Outcome) -> Result<()> {
    let tests = tests(o);
    let n = tests.len() as u32;
    let began = Instant::now();
    for (i, test) in tests.iter().enumerate() {
        let other_aim = (!matches!(test.work, Work::Extend(_))).then_some(OTHER_AIM);
        let (published, aim) = (Some(test.published), Some(test.aim));
        let pairs = [Pair { name: test.name.clone(), a: 1, b: 0, published, aim }];
        let budget = o.limit.saturating_sub(began.elapsed()) / (n - i as u32);
        let limits = Limits { budget, rounds_max: o.rounds_max };
        let seen = interleave(systems, &test.name, &pairs, limits, live, view, |_, v| once(&test.work, v, live))?;
        outcome.ratios.extend(ratios(systems, &pairs, &seen, "s"));
        outcome.ratios.extend(over_plain(systems, &test.name, 0, Some(OTHER_AIM), &seen, "s"));
        outcome.ratios.extend(safe_over_plain(systems, &test.name, other_aim, &seen, "s"));
        verdict(outcome);
    }
    Ok(())
}

fn verdict(outcome: &mut Outcome) {
    outcome.verdict.clear();
    // Of plain shares beside each other nothing is said: neither is safe.
    let of_safe = |r: &&Ratio| r.a_name != r.b_name;
    let mut systems: Vec<String> = outcome.ratios.iter().filter(of_safe).map(|r| r.config.clone()).collect();
    systems.sort();
    systems.dedup();
    for system in systems {
        let of: Vec<_> = outcome.ratios.iter().filter(|r| r.config == system).collect();
        let better = of.iter().filter(|r| r.published.is_some_and(|p| r.ratio.value < p)).count();
        let worst = of.iter().max_by(|a, b| a.ratio.value.total_cmp(&b.ratio.value));
        let mean = of.iter().map(|r| r.ratio.value.ln()).sum::<f64>() / of.len().max(1) as f64;
        if let Some(worst) = worst {
            outcome.verdict.push(format!(
                "{system}: work takes {:.2} times as long where nothing is acknowledged before it is safe ({:.2} at worst: {}). \
                 In {better} of {} tests that is less than was published.",
                mean.exp(),
                worst.ratio.value,
                worst.name,
                of.len()
            ));
        }
    }
}
