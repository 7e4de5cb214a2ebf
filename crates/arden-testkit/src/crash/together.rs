//! The oracle for operations of several clients at once. It knows when each was asked for and when it was answered, and asks
//! whether some order of them explains all answers, one in which an operation that was answered comes before one that was asked for
//! later (linearizability): it keeps every state that is still possible ([`Together`]). After a crash the volume has to be as it may
//! have been at some moment, not before whatever was told to be durable.
//!
//! Content counts in sectors, each filled with the number of the operation that wrote it. Refuses to know a volume.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

pub const SECTOR: usize = 512;

/// An operation's number; also of the file that it made.
pub type Number = u32;
/// A directory and a name in it, both by number.
pub type Name = (u8, u8);
/// The sectors of a file: who wrote each, 0 where nobody did.
pub type Content = Arc<Vec<Number>>;

/// What a client asks for. Files are meant by their id on the volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    Create(Name),
    Lookup(Name),
    List(u8),
    Read(u64),
    Stat(u64),
    /// So many sectors from this one on, with its own number.
    Write(u64, usize, usize),
    /// The same with zeros, up to the end of the file.
    Zero(u64, usize, usize),
    Resize(u64, usize),
    /// Sectors of the second file from the first of these on, to the second.
    Clone(u64, u64, (usize, usize), usize),
    /// `true`: over what has the name.
    Rename(u64, Name, bool),
    Unlink(u64),
    /// The state is kept, and looked at later.
    Snapshot,
}

/// What it is answered. `F` is how a file is known: by the operation that made it, or by its id on the volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer<F> {
    Done,
    /// There is a file of that name.
    Collision,
    /// The name is not there any more.
    Gone,
    /// Such blocks cannot be shared.
    NotShared,
    File(F),
    Missing,
    /// Name and file of each.
    Names(BTreeMap<u8, F>),
    Bytes(Content),
    Sectors(usize),
    /// All names, and what is in their files.
    State(View),
    /// There was no room: nothing happened.
    Full,
}

/// What a volume shows: content by name.
pub type View = BTreeMap<Name, Content>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Model {
    names: BTreeMap<Name, Number>,
    files: BTreeMap<Number, Content>,
}

impl Model {
    fn view(&self) -> View {
        self.names.iter().map(|(name, file)| (*name, self.files[file].clone())).collect()
    }

    fn name_of(&self, file: Number) -> Option<Name> {
        self.names.iter().find(|(_, f)| **f == file).map(|(name, _)| *name)
    }
}

/// Whether an operation changed anything.
type Changed = bool;

/// What may be true now: a state, the answers of operations that happened and have not been answered, and the ids of files.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Possible {
    model: Model,
    happened: BTreeMap<Number, (Answer<Number>, Changed)>,
    ids: BTreeMap<Number, u64>,
}

impl Possible {
    /// The file of this id. Who names one was told of it before.
    fn file(&self, id: u64) -> Option<Number> {
        self.ids.iter().find(|(_, i)| **i == id).map(|(file, _)| *file)
    }

    fn content(&mut self, id: u64) -> Option<&mut Vec<Number>> {
        let file = self.file(id)?;
        self.model.files.get_mut(&file).map(Arc::make_mut)
    }

    /// The operation happens here and now. None: it cannot, as this state does not know its file.
    fn happens(&mut self, number: Number, op: &Op) -> Option<()> {
        let before = self.model.clone();
        let answer = match op {
            Op::Create(name) if self.model.names.contains_key(name) => Answer::Collision,
            Op::Create(name) => {
                self.model.names.insert(*name, number);
                self.model.files.insert(number, Arc::default());
                Answer::File(number)
            }
            Op::Lookup(name) => self.model.names.get(name).map_or(Answer::Missing, |file| Answer::File(*file)),
            Op::List(dir) => {
                let names = self.model.names.range((*dir, 0)..=(*dir, u8::MAX));
                Answer::Names(names.map(|((_, name), file)| (*name, *file)).collect())
            }
            Op::Read(id) => Answer::Bytes(Arc::new(self.content(*id)?.clone())),
            Op::Stat(id) => Answer::Sectors(self.content(*id)?.len()),
            Op::Write(id, from, n) => {
                let content = self.content(*id)?;
                content.resize(content.len().max(from + n), 0);
                content[*from..from + n].fill(number);
                Answer::Done
            }
            Op::Zero(id, from, n) => {
                let content = self.content(*id)?;
                let end = content.len();
                content[(*from).min(end)..(from + n).min(end)].fill(0);
                Answer::Done
            }
            Op::Resize(id, n) => {
                self.content(*id)?.resize(*n, 0);
                Answer::Done
            }
            Op::Clone(source, target, (from, to), n) => {
                let target_is_source = source == target;
                let source = self.content(*source)?.clone();
                let overlaps = target_is_source && *from < to + n && *to < from + n;
                let same = self.content(*target)?;
                match source.get(*from..from + n) {
                    None => Answer::NotShared,
                    Some(_) if overlaps => Answer::NotShared,
                    Some(part) => {
                        same.resize(same.len().max(to + n), 0);
                        same[*to..to + n].copy_from_slice(part);
                        Answer::Done
                    }
                }
            }
            Op::Rename(id, to, replace) => {
                let file = self.file(*id)?;
                match (self.model.name_of(file), self.model.names.get(to)) {
                    (None, _) => Answer::Gone,
                    (Some(_), Some(other)) if *other != file && !replace => Answer::Collision,
                    (Some(from), _) => {
                        self.model.names.remove(&from);
                        self.model.names.insert(*to, file);
                        Answer::Done
                    }
                }
            }
            Op::Unlink(id) => {
                let file = self.file(*id)?;
                match self.model.name_of(file) {
                    None => Answer::Gone,
                    Some(name) => {
                        self.model.names.remove(&name);
                        Answer::Done
                    }
                }
            }
            Op::Snapshot => Answer::State(self.model.view()),
        };
        self.happened.insert(number, (answer, self.model != before));
        Some(())
    }

    /// Where `number` happened and is answered so, whether it changed anything. Learns ids.
    fn is_answered(&mut self, number: Number, told: &Answer<u64>) -> Option<Changed> {
        let (here, changed) = self.happened.remove(&number)?;
        let same = match (&here, told) {
            (Answer::Done, Answer::Done)
            | (Answer::Collision, Answer::Collision)
            | (Answer::Gone, Answer::Gone)
            | (Answer::NotShared, Answer::NotShared)
            | (Answer::Missing, Answer::Missing) => true,
            (Answer::File(file), Answer::File(id)) => self.learn(*file, *id),
            // A file that goes while the directory is read may be left out.
            (Answer::Names(here), Answer::Names(told)) => {
                told.keys().all(|name| here.contains_key(name))
                    && here.iter().all(|(name, file)| match told.get(name) {
                        Some(id) => self.learn(*file, *id),
                        None => self.model.name_of(*file).is_none(),
                    })
            }
            (Answer::Bytes(here), Answer::Bytes(told)) => here == told,
            (Answer::Sectors(here), Answer::Sectors(told)) => here == told,
            (Answer::State(here), Answer::State(told)) => here == told,
            _ => false,
        };
        same.then_some(changed)
    }

    fn learn(&mut self, file: Number, id: u64) -> bool {
        match self.ids.get(&file) {
            Some(known) => *known == id,
            None if self.ids.values().any(|known| *known == id) => false,
            None => {
                self.ids.insert(file, id);
                true
            }
        }
    }
}

/// What was possible just before an answer, and what was asked for by then.
#[derive(Clone)]
struct Moment {
    possible: Arc<Vec<Possible>>,
    asked: Arc<BTreeMap<Number, Op>>,
}

/// Every state that a volume may be in, now and after a crash.
pub struct Together {
    possible: Arc<Vec<Possible>>,
    asked: Arc<BTreeMap<Number, Op>>,
    /// Since the last that was told to be durable: what a crash may leave is what was possible at one of them.
    moments: Vec<Moment>,
    /// How many went before the first of those.
    gone: usize,
    /// Operations that were durable when they were answered.
    durable: BTreeSet<Number>,
    last: Number,
    /// The most states that were possible at once.
    pub most: usize,
}

/// A moment that [`Together::durable_since`] means.
#[derive(Debug, Clone, Copy)]
pub struct Since(usize);

impl Default for Together {
    fn default() -> Together {
        Together {
            possible: Arc::new(vec![Possible::default()]),
            asked: Arc::default(),
            moments: Vec::new(),
            gone: 0,
            durable: BTreeSet::new(),
            last: 0,
            most: 1,
        }
    }
}

impl Together {
    /// A client asks for something. The number that it is known by.
    pub fn ask(&mut self, op: Op) -> Number {
        self.last += 1;
        Arc::make_mut(&mut self.asked).insert(self.last, op);
        self.last
    }

    /// What is answered before this counts as done for whoever now asks for durability.
    pub fn now(&self) -> Since {
        Since(self.gone + self.moments.len())
    }

    /// All that was answered at that moment is durable.
    pub fn durable_since(&mut self, since: Since) {
        let more = since.0.saturating_sub(self.gone).min(self.moments.len());
        self.moments.drain(..more);
        self.gone += more;
    }

    /// A client is told. `since`: what it changed is durable, and it was asked for then.
    ///
    /// # Errors
    /// No order of the operations explains it.
    pub fn answer(&mut self, number: Number, told: &Answer<u64>, since: Option<Since>) -> Result<(), String> {
        self.moments.push(Moment { possible: self.possible.clone(), asked: self.asked.clone() });
        let mut asked = (*self.asked).clone();
        let (mut next, mut changed) = (HashSet::new(), true);
        for possible in self.possible.iter() {
            if *told == Answer::Full {
                next.extend((!possible.happened.contains_key(&number)).then(|| possible.clone()));
                continue;
            }
            each_order(possible, &asked, Some(number), &mut |mut after| {
                if let Some(c) = after.is_answered(number, told) {
                    changed &= c;
                    next.insert(after);
                }
            });
        }
        let op = asked.remove(&number);
        if next.is_empty() {
            let expected: BTreeSet<String> = self.expected(number);
            return Err(format!(
                "operation {number} {op:?} is answered {told:?}; possible were {expected:?} beside {asked:?}"
            ));
        }
        if let Some(since) = since.filter(|_| changed && *told != Answer::Full) {
            self.durable_since(since);
            self.durable.insert(number);
        }
        self.most = self.most.max(next.len());
        let mut next: Vec<Possible> = next.into_iter().collect();
        // Whoever runs this again wants the same.
        next.sort_by_cached_key(|p| format!("{p:?}"));
        (self.possible, self.asked) = (Arc::new(next), Arc::new(asked));
        Ok(())
    }

    /// What an operation may have been answered, for people.
    fn expected(&self, number: Number) -> BTreeSet<String> {
        let mut out = BTreeSet::new();
        for possible in self.possible.iter() {
            each_order(possible, &self.asked, Some(number), &mut |after| {
                out.extend(after.happened.get(&number).map(|(a, _)| format!("{a:?}")));
            });
        }
        out
    }

    /// Everybody was answered, and this is what the volume shows. Files without a name are asked for no more.
    ///
    /// # Errors
    /// No order explains it.
    pub fn shows(&mut self, view: &View) -> Result<(), String> {
        let mut next: Vec<Possible> = self.possible.iter().filter(|p| p.model.view() == *view).cloned().collect();
        if next.is_empty() {
            let all: Vec<View> = self.possible.iter().map(|p| p.model.view()).collect();
            return Err(format!("the volume shows {}", differences(view, &all)));
        }
        for possible in &mut next {
            let Possible { model, ids, .. } = possible;
            let named: BTreeSet<Number> = model.names.values().copied().collect();
            model.files.retain(|file, _| named.contains(file));
            ids.retain(|file, _| named.contains(file));
        }
        next.dedup();
        self.possible = Arc::new(next);
        Ok(())
    }

    /// Power was lost, and this is what an opening finds, with the ids of the files.
    ///
    /// # Errors
    /// It was so at no moment since what was told to be durable.
    pub fn crashed(&mut self, view: &View, ids: &BTreeMap<Name, u64>) -> Result<(), String> {
        let last = Moment { possible: self.possible.clone(), asked: self.asked.clone() };
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for moment in self.moments.iter().chain([&last]) {
            let must: BTreeSet<Number> = moment.asked.keys().filter(|n| self.durable.contains(n)).copied().collect();
            for possible in moment.possible.iter() {
                each_order(possible, &moment.asked, None, &mut |after| {
                    if must.iter().all(|n| after.happened.contains_key(n)) && seen.insert(after.model.clone()) {
                        all.push(after.model.view());
                    }
                });
            }
        }
        if !all.contains(view) {
            return Err(format!("after a crash the volume shows {}", differences(view, &all)));
        }
        self.begin(view, ids);
        Ok(())
    }

    /// From here on the volume is known to be so, durably.
    pub fn begin(&mut self, view: &View, ids: &BTreeMap<Name, u64>) {
        let mut found = Possible::default();
        for (name, content) in view {
            self.last += 1;
            found.model.names.insert(*name, self.last);
            found.model.files.insert(self.last, content.clone());
            found.ids.insert(self.last, ids[name]);
        }
        (self.possible, self.asked) = (Arc::new(vec![found]), Arc::default());
        self.gone += self.moments.len();
        self.moments.clear();
        self.durable.clear();
    }
}

/// Every state that comes of operations which were asked for and not answered, in every order: those that end with `last`, or
/// all of them.
fn each_order(from: &Possible, asked: &BTreeMap<Number, Op>, last: Option<Number>, f: &mut dyn FnMut(Possible)) {
    let mut seen = HashSet::new();
    let mut open = vec![from.clone()];
    while let Some(at) = open.pop() {
        if !seen.insert(at.clone()) {
            continue;
        }
        match last {
            Some(number) if at.happened.contains_key(&number) => {
                f(at);
                continue;
            }
            Some(_) => {}
            None => f(at.clone()),
        }
        for (number, op) in asked.iter().filter(|(n, _)| !at.happened.contains_key(n)) {
            let mut after = at.clone();
            if after.happens(*number, op).is_some() {
                open.push(after);
            }
        }
    }
}

/// In what a view differs from the nearest of those that are possible.
fn differences(view: &View, all: &[View]) -> String {
    let names: BTreeSet<Name> = all.iter().flat_map(|v| v.keys()).chain(view.keys()).copied().collect();
    let differs = |other: &View| names.iter().filter(|n| view.get(n) != other.get(n)).copied().collect::<Vec<_>>();
    let Some(nearest) = all.iter().min_by_key(|other| differs(other).len()) else { return "something".into() };
    let runs = |content: Option<&Content>| content.map_or("nothing".into(), |c| runs(c));
    let mut out = format!("not one of {} states; beside the nearest:", all.len());
    for name in differs(nearest) {
        out += &format!(" {name:?} is {} and not {};", runs(view.get(&name)), runs(nearest.get(&name)));
    }
    out
}

/// Sectors for people: who wrote how many.
fn runs(content: &[Number]) -> String {
    let parts = content.chunk_by(|a, b| a == b).map(|run| format!("{}x{}", run.len(), run[0]));
    format!("[{}]", parts.collect::<Vec<_>>().join(" "))
}

/// The bytes that an operation writes.
pub fn bytes_of(number: Number, sectors: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(sectors * SECTOR / 4)
}

/// Who wrote each sector.
///
/// # Errors
/// A sector is of several.
pub fn content_of(bytes: &[u8]) -> Result<Content, String> {
    let sectors = bytes.chunks(SECTOR).enumerate().map(|(i, sector)| {
        let first: [u8; 4] = sector[..4].try_into().map_err(|_| format!("sector {i} is short"))?;
        let whole = sector.len() == SECTOR && sector.chunks(4).all(|word| word == first);
        if whole { Ok(Number::from_le_bytes(first)) } else { Err(format!("sector {i} is of several writes")) }
    });
    sectors.collect::<Result<Vec<_>, _>>().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Name = (0, 0);
    const B: Name = (0, 1);

    fn file(together: &mut Together, name: Name, id: u64) {
        let create = together.ask(Op::Create(name));
        together.answer(create, &Answer::File(id), None).unwrap();
    }

    #[test]
    fn a_read_beside_a_write_sees_all_of_it_or_nothing_and_the_next_one_no_less() {
        let mut t = Together::default();
        file(&mut t, A, 7);
        let (write, read) = (t.ask(Op::Write(7, 0, 2)), t.ask(Op::Read(7)));
        let half = Arc::new(vec![write]);
        assert!(t.answer(read, &Answer::Bytes(half), None).is_err());
        t.answer(read, &Answer::Bytes(Arc::new(vec![write; 2])), None).unwrap();
        let read = t.ask(Op::Read(7));
        assert!(t.answer(read, &Answer::Bytes(Arc::default()), None).is_err(), "it was seen already");
        t.answer(read, &Answer::Bytes(Arc::new(vec![write; 2])), None).unwrap();
        t.answer(write, &Answer::Done, None).unwrap();
    }

    #[test]
    fn one_of_two_who_create_a_name_is_told_of_the_other() {
        let mut t = Together::default();
        let (one, other) = (t.ask(Op::Create(A)), t.ask(Op::Create(A)));
        let lookup = t.ask(Op::Lookup(A));
        t.answer(lookup, &Answer::File(7), None).unwrap();
        t.answer(one, &Answer::Collision, None).unwrap();
        assert!(t.answer(other, &Answer::File(8), None).is_err(), "somebody found another");
        assert!(t.answer(other, &Answer::Collision, None).is_err(), "somebody has to have it");
        t.answer(other, &Answer::File(7), None).unwrap();
    }

    #[test]
    fn a_crash_leaves_a_moment_and_nothing_from_before_what_was_durable() {
        let view = |names: &[(Name, &[Number])]| -> View {
            names.iter().map(|(name, content)| (*name, Arc::new(content.to_vec()))).collect()
        };
        let ids = BTreeMap::from([(A, 7), (B, 8)]);
        let begun = || {
            let mut t = Together::default();
            file(&mut t, A, 7);
            let since = t.now();
            file(&mut t, B, 8);
            (t, since)
        };
        for (found, plain, durable) in [(view(&[]), true, false), (view(&[(A, &[])]), true, true)] {
            assert_eq!(begun().0.crashed(&found, &ids).is_ok(), plain);
            let (mut t, since) = begun();
            t.durable_since(since);
            assert_eq!(t.crashed(&found, &ids).is_ok(), durable);
        }
        assert!(begun().0.crashed(&view(&[(B, &[])]), &ids).is_err(), "the second without the first");
        // A rename is in both names or in neither, also when nobody was told of it.
        let (mut t, since) = begun();
        t.durable_since(since);
        t.ask(Op::Rename(7, B, true));
        assert!(t.crashed(&view(&[]), &ids).is_err());
        assert!(t.crashed(&view(&[(B, &[])]), &ids).is_ok());
    }

    #[test]
    fn what_was_durable_when_it_was_answered_is_there() {
        let mut t = Together::default();
        file(&mut t, A, 7);
        let since = t.now();
        let (write, other) = (t.ask(Op::Write(7, 0, 1)), t.ask(Op::Write(7, 1, 1)));
        t.answer(write, &Answer::Done, Some(since)).unwrap();
        let view = |content: Vec<Number>| View::from([(A, Arc::new(content))]);
        let ids = BTreeMap::from([(A, 7)]);
        assert!(t.crashed(&view(vec![]), &ids).is_err());
        assert!(t.crashed(&view(vec![0, other]), &ids).is_err());
        assert!(t.crashed(&view(vec![write, other]), &ids).is_ok());
    }
}
