//! Requests as values, so that a failing sequence can be printed, shortened and made again; and their generator.

use super::{
    acl::{self, Ace, Sd, Who},
    rng::Rng,
    tree::{ATTR_HIDDEN, ATTR_READONLY, ATTR_SYSTEM, Tree},
};

/// Opens that a sequence has at a time.
pub const SLOTS: usize = 16;

/// Names that components come from; some have 8.3 names of their own.
pub const NAMES: [&str; 8] =
    ["a", "b", "docs", "inner", "x.txt", "Long Name One.text", "long name two.text", ".hidden.thing"];
pub const STREAMS: [&str; 4] = ["s", "second stream", "Zone.Identifier", "DosAttrib"];
pub const EAS: [&str; 3] = ["ONE", "TWO", "THREE"];

#[derive(Debug, Clone)]
pub struct Create {
    pub slot: usize,
    pub session: usize,
    pub share: usize,
    /// Relative to the share. A component that begins with `?` stands for the 8.3 name of the rest.
    pub path: String,
    pub stream: String,
    pub desired: u32,
    pub disposition: u32,
    pub options: u32,
    pub attributes: u32,
    pub share_mode: u32,
    /// A security descriptor, and which parts of it are sent.
    pub sd: Option<(Sd, u32)>,
    pub eas: Vec<(String, Vec<u8>)>,
    pub maximal: bool,
}

#[derive(Debug, Clone)]
pub enum Op {
    Create(Box<Create>),
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        offset: u64,
        len: u32,
    },
    Write {
        slot: usize,
        offset: u64,
        len: usize,
        fill: u8,
    },
    Query {
        slot: usize,
        class: u8,
    },
    QuerySecurity {
        slot: usize,
        parts: u32,
    },
    QueryFs {
        slot: usize,
        class: u8,
    },
    SetBasic {
        slot: usize,
        attributes: u32,
    },
    SetSize {
        slot: usize,
        class: u8,
        size: u64,
    },
    SetSecurity {
        slot: usize,
        sd: Sd,
        parts: u32,
    },
    SetEa {
        slot: usize,
        name: String,
        value: Vec<u8>,
    },
    /// A class whose only question is who may set it.
    SetOther {
        slot: usize,
        class: u8,
    },
    Dispose {
        slot: usize,
        flags: u32,
        ex: bool,
    },
    Rename {
        slot: usize,
        path: String,
        stream: String,
        replace: bool,
        ex: bool,
    },
    Link {
        slot: usize,
        path: String,
        replace: bool,
    },
    List {
        slot: usize,
        class: u8,
        pattern: String,
    },
    /// A request on an open from a session that did not open it.
    Foreign {
        slot: usize,
        session: usize,
        kind: u8,
    },
    /// An open of something that must not be there.
    Probe {
        session: usize,
        share: usize,
        path: String,
        desired: u32,
        disposition: u32,
    },
    Fsctl {
        slot: usize,
        kind: Fsctl,
    },
    /// COPYCHUNK, from one open to another.
    Copy {
        from: usize,
        to: usize,
        write_only: bool,
        len: u32,
    },
    /// OFFLOAD_READ and OFFLOAD_WRITE with its token.
    Offload {
        from: usize,
        to: usize,
    },
    Clone {
        from: usize,
        to: usize,
    },
    Lock {
        slot: usize,
        exclusive: bool,
        unlock: bool,
    },
    Watch {
        slot: usize,
    },
    OpenById {
        slot: usize,
        session: usize,
        share: usize,
        of: String,
        desired: u32,
    },
    Session {
        session: usize,
        kind: u8,
        other: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsctl {
    ZeroData {
        from: u64,
        to: u64,
    },
    SetSparse(bool),
    Ranges,
    Trim,
    ObjectId,
    GetObjectId,
    SetObjectId(u8),
    SetReparse(u8),
    GetReparse,
    DeleteReparse,
    GetCompression,
    SetCompression,
    GetIntegrity,
    SetIntegrity,
    /// Creating, listing, comparing, or reverting; of the first or the second snapshot.
    StreamSnapshot(u8, bool),
    ResumeKey,
    Resilient,
    Snapshots,
    FileUsn,
    UsnQuery,
    UsnRead,
    UsnCreate,
    UsnDelete,
}

/// What the generator knows of the world.
pub struct View<'a> {
    pub tree: &'a Tree,
    /// The root of each share.
    pub roots: &'a [usize],
    pub sessions: usize,
    /// Slots with opens.
    pub used: Vec<usize>,
    /// Names that the server keeps for itself, and what they may be called.
    pub hidden: &'a [String],
    /// From the outer root, the names of files that have several.
    pub linked: Vec<String>,
}

fn dacl(rng: &mut Rng) -> Option<Vec<Ace>> {
    if rng.once_in(15) {
        return None;
    }
    let masks = [acl::ALL, acl::ALL, acl::LEVEL_READ, acl::LEVEL_CHANGE, acl::GENERIC_READ, acl::GENERIC_ALL];
    let single = [
        acl::READ_DATA,
        acl::WRITE_DATA,
        acl::APPEND_DATA,
        acl::DELETE,
        acl::DELETE_CHILD,
        acl::WRITE_DAC,
        acl::WRITE_OWNER,
        acl::READ_CONTROL,
        acl::WRITE_ATTRIBUTES,
        acl::READ_ATTRIBUTES,
        acl::WRITE_EA,
        acl::READ_EA,
        acl::EXECUTE,
    ];
    let who = [
        Who::Ann,
        Who::Ann,
        Who::Bob,
        Who::Bob,
        Who::Everyone,
        Who::Users,
        Who::Authenticated,
        Who::Admins,
        Who::CreatorOwner,
        Who::OwnerRights,
        Who::Stranger,
        Who::Primary,
        Who::CreatorGroup,
    ];
    let ace = |rng: &mut Rng| {
        let mask = match rng.below(6) {
            0 => rng.pick(&single) | rng.pick(&single),
            1 => rng.word() as u32 & acl::ALL,
            2 => acl::ALL & !rng.pick(&single),
            _ => rng.pick(&masks),
        };
        let flags =
            rng.pick(&[0, 0, 0, acl::OI | acl::CI, acl::OI | acl::CI, acl::OI, acl::CI, 0x0B, 0x07, 0x0F, acl::ID]);
        Ace { allow: !rng.once_in(4), who: rng.pick(&who), flags, mask }
    };
    Some((0..rng.below(5)).map(|_| ace(rng)).collect())
}

pub fn descriptor(rng: &mut Rng) -> Sd {
    let owner = rng.pick(&[Who::Ann, Who::Ann, Who::Bob, Who::Bob, Who::Root, Who::Admins, Who::Stranger]);
    let audit = Ace { allow: false, who: Who::Everyone, flags: 0, mask: acl::WRITE_DATA };
    let sacl = if rng.once_in(2) { vec![audit] } else { Vec::new() };
    Sd { owner, group: rng.pick(&[Who::Primary, Who::Users]), dacl: dacl(rng), protected: rng.once_in(4), sacl }
}

fn desired(rng: &mut Rng) -> u32 {
    let common = [
        acl::MAXIMUM,
        acl::MAXIMUM,
        acl::GENERIC_READ,
        acl::GENERIC_WRITE,
        acl::GENERIC_ALL,
        acl::GENERIC_EXECUTE,
        acl::ALL,
        acl::READ_ATTRIBUTES,
        acl::DELETE,
        acl::READ_CONTROL | acl::WRITE_DAC,
        acl::WRITE_OWNER,
        acl::READ_DATA,
        acl::WRITE_DATA,
        acl::APPEND_DATA,
        acl::WRITE_ATTRIBUTES,
        acl::WRITE_EA | acl::READ_EA,
        acl::EXECUTE,
        acl::LEVEL_READ,
        acl::LEVEL_CHANGE,
    ];
    let mut mask = rng.pick(&common);
    if rng.once_in(4) {
        mask |= rng.pick(&common);
    }
    if rng.once_in(12) {
        mask = rng.word() as u32 & acl::ALL;
    }
    if rng.once_in(25) {
        mask |= acl::SYSTEM_SECURITY;
    }
    mask
}

/// One component as a client may write it.
fn spelled(rng: &mut Rng, name: &str) -> String {
    match rng.below(12) {
        0 => name.to_uppercase(),
        1 => name.to_lowercase(),
        2 => format!("?{name}"),
        _ => name.to_string(),
    }
}

/// A path below `root`, mostly of something that is there.
fn path(rng: &mut Rng, view: &View<'_>, root: usize, fresh: usize) -> String {
    if !view.linked.is_empty() && rng.once_in(8) {
        return rng.pick(&view.linked);
    }
    let mut known = Vec::new();
    view.tree.walk(root, "", &mut known);
    let mut parts: Vec<String> = Vec::new();
    if !known.is_empty() && !rng.once_in(12) {
        let base = rng.pick(&known).0;
        parts.extend(base.split('\\').map(|p| spelled(rng, p)));
    }
    if parts.len() < 4 && rng.once_in(fresh) {
        let name = rng.pick(&NAMES);
        parts.push(spelled(rng, name));
    }
    parts.join("\\")
}

fn create(rng: &mut Rng, view: &View<'_>) -> Create {
    let session = rng.below(view.sessions);
    let share = rng.below(view.roots.len());
    let stream = if rng.once_in(5) { rng.pick(&STREAMS).to_string() } else { String::new() };
    let mut mask = desired(rng);
    let mut options = match rng.below(8) {
        0..=1 => 1,
        2..=3 => 0x40,
        _ => 0,
    };
    if rng.once_in(12) {
        options |= 0x1000;
        mask |= acl::DELETE;
    }
    if rng.once_in(10) {
        options |= 0x20_0000;
    }
    if rng.once_in(15) {
        options |= 0x4000;
    }
    let parts = rng.pick(&[4, 4, 5, 7, 1, 8, 12, 15]);
    Create {
        slot: rng.below(SLOTS),
        session,
        share,
        path: path(rng, view, view.roots[share], 2),
        stream,
        desired: mask,
        disposition: rng.pick(&[1, 1, 1, 1, 2, 2, 3, 3, 3, 4, 5, 0]),
        options,
        attributes: if rng.once_in(8) { rng.pick(&[ATTR_READONLY, ATTR_HIDDEN, ATTR_SYSTEM]) } else { 0 },
        share_mode: if rng.once_in(15) { rng.below(8) as u32 } else { 7 },
        sd: rng.once_in(4).then(|| (descriptor(rng), parts)),
        eas: if rng.once_in(12) { vec![(rng.pick(&EAS).into(), vec![1, 2, 3])] } else { Vec::new() },
        maximal: rng.once_in(4),
    }
}

/// Names that lead nowhere, or out of the share.
fn probe(rng: &mut Rng, view: &View<'_>) -> Op {
    let fixed = [
        "..",
        "..\\..",
        ".",
        "a\\..\\..\\outside",
        "inner\\..\\..",
        "docs/../..",
        "../outside",
        "$Extend",
        "$Extend\\$Quota",
        "\\outside",
        "@GMT-2020.01.01-00.00.00\\a",
        "a\\@GMT-2020.01.01-00.00.00",
        "::$INDEX_ALLOCATION\\..",
        "lost+found",
    ];
    let mut path = rng.pick(&fixed).to_string();
    if !view.hidden.is_empty() && rng.once_in(2) {
        path = rng.pick(view.hidden);
        path = match rng.below(5) {
            0 => path.to_uppercase(),
            1 => format!("{path}::$INDEX_ALLOCATION"),
            2 => format!("{path}."),
            3 => format!("{path}\\"),
            _ => path,
        };
    }
    Op::Probe {
        session: rng.below(view.sessions),
        share: rng.below(view.roots.len()),
        path,
        desired: rng.pick(&[acl::READ_ATTRIBUTES, acl::MAXIMUM, acl::READ_DATA]),
        disposition: 1,
    }
}

fn fsctl(rng: &mut Rng) -> Fsctl {
    match rng.below(24) {
        0 | 1 => Fsctl::ZeroData { from: rng.below(40) as u64, to: rng.below(80) as u64 },
        2 => Fsctl::SetSparse(rng.once_in(2)),
        3 => Fsctl::Ranges,
        4 => Fsctl::Trim,
        5 => Fsctl::ObjectId,
        6 => Fsctl::GetObjectId,
        7 => Fsctl::SetObjectId(rng.below(250) as u8 + 1),
        8 | 9 => Fsctl::SetReparse(rng.below(3) as u8),
        10 => Fsctl::GetReparse,
        11 => Fsctl::DeleteReparse,
        12 => Fsctl::GetCompression,
        13 => Fsctl::SetCompression,
        14 => Fsctl::GetIntegrity,
        15 => Fsctl::SetIntegrity,
        16 => Fsctl::ResumeKey,
        17 => Fsctl::Snapshots,
        18 => Fsctl::FileUsn,
        19 => Fsctl::UsnQuery,
        20 => Fsctl::UsnRead,
        21 | 22 => Fsctl::StreamSnapshot(rng.pick(&[0, 0, 1, 2, 3, 3]), rng.once_in(3)),
        _ => rng.pick(&[Fsctl::UsnCreate, Fsctl::UsnDelete, Fsctl::Resilient]),
    }
}

/// The next request.
pub fn next(rng: &mut Rng, view: &View<'_>) -> Op {
    if view.used.is_empty() || rng.below(10) < 3 {
        return Op::Create(Box::new(create(rng, view)));
    }
    let slot = rng.pick(&view.used);
    let other = rng.pick(&view.used);
    match rng.below(40) {
        0..=2 => Op::Close { slot },
        3..=5 => Op::Read { slot, offset: rng.below(40) as u64, len: 100 },
        6..=9 => {
            let len = match rng.below(60) {
                0..=1 => 70_000,
                2..=5 => 9000,
                n => n,
            };
            Op::Write { slot, offset: rng.below(40) as u64, len, fill: rng.word() as u8 }
        }
        10..=11 => {
            Op::Query { slot, class: rng.pick(&[4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 21, 22, 28, 34, 35, 48, 59]) }
        }
        12 => Op::QuerySecurity { slot, parts: rng.pick(&[0, 1, 2, 4, 7, 8, 15, 0x10, 0x17]) },
        13 => Op::QueryFs { slot, class: rng.pick(&[1, 3, 4, 5, 6, 7, 8, 11]) },
        14..=15 => {
            Op::SetBasic { slot, attributes: rng.pick(&[0x80, 0x80, ATTR_READONLY, ATTR_HIDDEN, ATTR_SYSTEM, 0x20]) }
        }
        16 => Op::SetSize { slot, class: rng.pick(&[20, 20, 19]), size: rng.below(100) as u64 },
        17..=20 => Op::SetSecurity { slot, sd: descriptor(rng), parts: rng.pick(&[4, 4, 4, 4, 1, 2, 5, 7, 8, 12, 15]) },
        21 => Op::SetEa { slot, name: rng.pick(&EAS).into(), value: vec![7; rng.below(4)] },
        22 => Op::SetOther { slot, class: rng.pick(&[14, 16, 39, 40]) },
        23..=24 => Op::Dispose { slot, flags: rng.pick(&[1, 1, 1, 0, 0x11, 3]), ex: rng.once_in(3) },
        25..=26 => {
            let root = rng.pick(view.roots);
            let stream = if rng.once_in(5) { rng.pick(&STREAMS).to_string() } else { String::new() };
            Op::Rename { slot, path: path(rng, view, root, 1), stream, replace: rng.once_in(2), ex: rng.once_in(4) }
        }
        27 => {
            let root = rng.pick(view.roots);
            Op::Link { slot, path: path(rng, view, root, 1), replace: rng.once_in(2) }
        }
        28..=29 => {
            let pattern = if rng.once_in(3) { rng.pick(&NAMES).to_string() } else { "*".into() };
            Op::List { slot, class: rng.pick(&[1, 2, 3, 12, 37, 38, 60]), pattern }
        }
        30 => Op::Foreign { slot, session: rng.below(view.sessions), kind: rng.below(8) as u8 },
        31 => probe(rng, view),
        39 if !view.hidden.is_empty() => probe(rng, view),
        32..=34 => Op::Fsctl { slot, kind: fsctl(rng) },
        35 => Op::Copy { from: slot, to: other, write_only: rng.once_in(2), len: 1 + rng.below(20) as u32 },
        36 => rng.pick(&[Op::Offload { from: slot, to: other }, Op::Clone { from: slot, to: other }]),
        37 if rng.once_in(2) => Op::Watch { slot },
        37 => Op::Lock { slot, exclusive: rng.once_in(2), unlock: rng.once_in(2) },
        38 => {
            let share = rng.below(view.roots.len());
            let of = path(rng, view, view.roots[share], 9);
            Op::OpenById { slot: rng.below(SLOTS), session: rng.below(view.sessions), share, of, desired: desired(rng) }
        }
        _ => Op::Session {
            session: rng.below(view.sessions),
            kind: rng.below(10) as u8,
            other: rng.below(view.sessions),
        },
    }
}
