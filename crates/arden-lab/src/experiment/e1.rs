//! What continuous availability costs information workers: the same work on a share without it and on one with it.

use std::time::Instant;

use super::{
    Options, Pair, System, Variant,
    data::{Tree, Writer},
    interleave, ratios,
};
use crate::{
    Result,
    load::{Live, profile::size},
    outcome::Outcome,
    source::own_name,
    view::View,
};

const GIB: u64 = 1 << 30;
/// What the extending program adds at a time.
const EXTEND_BYTES: usize = 64 << 10;

enum Work {
    Create(u64),
    Copy(u64),
    CopyTree(Tree),
    Synchronise(Tree),
    Extend(u64),
}

struct Test {
    name: String,
    published: f64,
    work: Work,
}

fn tests(o: &Options) -> Vec<Test> {
    let part = o.scale;
    let tree = |seed, files: usize, folders: usize, bytes: u64| {
        Tree::new(o.seed + seed, (files / part as usize).max(8), (folders / part as usize).max(4), bytes / part)
    };
    let (user, redirected) = (tree(1, 1238, 96, 2 * GIB), tree(2, 4609, 143, 5 * GIB));
    let test = |name: String, published, work| Test { name, published, work };
    let described = |t: &Tree| format!("{} files in {} folders, {}", t.files.len(), t.folders.len(), size(t.bytes()));
    vec![
        test(format!("create a file of {}", size(GIB / part)), 1.475, Work::Create(GIB / part)),
        test(format!("copy a file of {}", size(GIB / part)), 1.38, Work::Copy(GIB / part)),
        test(format!("copy a user's tree: {}", described(&user)), 1.465, Work::CopyTree(user)),
        test(
            format!("first sync of a redirected folder: {}", described(&redirected)),
            1.26,
            Work::Synchronise(redirected),
        ),
        test("a program that extends its file as it writes".into(), 8.6, Work::Extend((2048 / part).max(16))),
    ]
}

/// Does the work; how many seconds it took. Removes what it made, outside of that time.
fn once(work: &Work, variant: &Variant, live: &Live) -> Result<f64> {
    let mut w = Writer::new(variant.file.connect()?, variant.mark, live);
    let base = &variant.file.path;
    let root = if base.is_empty() { own_name() } else { format!("{base}\\{}", own_name()) };
    let began = Instant::now();
    let mut only = Tree { folders: Vec::new(), files: Vec::new() };
    let result = (|| match work {
        Work::Create(bytes) => {
            let id = w.create(&root)?;
            w.push(id, *bytes, 256 << 10)?;
            w.client.close(id)
        }
        Work::Copy(bytes) => w.copy(&root, *bytes),
        Work::Extend(steps) => {
            let id = w.create(&root)?;
            for i in 0..*steps {
                w.set_end(id, (i + 1) * EXTEND_BYTES as u64)?;
                w.write_at(id, i * EXTEND_BYTES as u64, EXTEND_BYTES)?;
            }
            w.client.close(id)
        }
        Work::CopyTree(tree) | Work::Synchronise(tree) => {
            let sync = matches!(work, Work::Synchronise(_));
            w.folder(&root)?;
            for folder in &tree.folders {
                w.folder(&format!("{root}\\{folder}"))?;
                only.folders.push(folder.clone());
            }
            for (name, bytes) in &tree.files {
                let path = format!("{root}\\{name}");
                if sync {
                    w.synchronise(&path, *bytes)?
                } else {
                    w.copy(&path, *bytes)?
                }
                only.files.push((name.clone(), *bytes));
            }
            Ok(())
        }
    })();
    let took = began.elapsed().as_secs_f64();
    let removed = match work {
        Work::CopyTree(_) | Work::Synchronise(_) => w.remove(&root, &only),
        _ => w.client.delete(&root),
    };
    result?;
    removed?;
    Ok(took)
}

pub fn run(systems: &[System], o: &Options, live: &Live, view: &mut View, outcome: &mut Outcome) -> Result<()> {
    let tests = tests(o);
    let n = tests.len() as u32;
    let began = Instant::now();
    for (i, test) in tests.iter().enumerate() {
        let pairs = [Pair { name: test.name.clone(), a: 1, b: 0, published: Some(test.published) }];
        let left = o.limit.saturating_sub(began.elapsed()) / (n - i as u32);
        let seen = interleave(systems, &test.name, &pairs, left, live, view, |_, v| once(&test.work, v, live))?;
        outcome.ratios.extend(ratios(systems, &pairs, &seen, "s"));
        verdict(outcome);
    }
    Ok(())
}

fn verdict(outcome: &mut Outcome) {
    outcome.verdict.clear();
    let mut systems: Vec<String> = outcome.ratios.iter().map(|r| r.config.clone()).collect();
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
