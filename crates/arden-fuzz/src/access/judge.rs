//! The oracle for opens and for changes of names: what [MS-FSA] 2.1.5.1 and 2.1.5.15 and the ceilings of [MS-SMB2]
//! 3.3.5.7 and 3.3.5.9 say of a request, before it is made.

use super::{
    acl::{self, Sd, Token, Who},
    op::Create,
    tree::{ATTR_HIDDEN, ATTR_READONLY, ATTR_SYSTEM, Handle, NodeId, Target, Tree, upper},
};

/// What may come of a request.
#[derive(Debug, Default, Clone)]
pub struct Verdict {
    /// Reasons for which it has to fail.
    pub refuse: Vec<&'static str>,
    /// Reasons for which it may fail.
    pub may_refuse: Vec<&'static str>,
}

impl Verdict {
    pub fn refuse_if(&mut self, condition: bool, why: &'static str) {
        if condition {
            self.refuse.push(why);
        }
    }
    pub fn may_refuse_if(&mut self, condition: bool, why: &'static str) {
        if condition {
            self.may_refuse.push(why);
        }
    }
}

/// The access that each share gives at most, [MS-SMB2] 3.3.5.7.
#[derive(Debug, Clone)]
pub struct ShareModel {
    pub name: &'static str,
    pub root: NodeId,
    /// Ann, Bob, the administrator.
    pub ceilings: [u32; 3],
}

impl ShareModel {
    pub fn ceiling(&self, who: &Token) -> u32 {
        match who.user {
            Who::Ann => self.ceilings[0],
            Who::Bob => self.ceilings[1],
            _ => self.ceilings[2],
        }
    }
}

/// Shares from here on are of the inner directory.
pub const INNER_SHARES: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Superseded = 0,
    Opened = 1,
    Created = 2,
    Overwritten = 3,
}

/// What an open does when it succeeds.
#[derive(Debug, Clone)]
pub struct Plan {
    pub verdict: Verdict,
    pub action: Action,
    pub target: Target,
    pub directory: bool,
    /// The stream's name as asked.
    pub stream: String,
    /// The granted access has at least these,
    pub at_least: u32,
    /// and at most these.
    pub at_most: u32,
}

const CHANGING: u32 = acl::WRITE_DATA
    | acl::APPEND_DATA
    | acl::WRITE_EA
    | acl::WRITE_ATTRIBUTES
    | acl::DELETE
    | acl::DELETE_CHILD
    | acl::WRITE_DAC
    | acl::WRITE_OWNER;

/// An open of `target` on `share` by `who`; `opens` are all there are.
pub fn open(tree: &Tree, share: &ShareModel, who: &Token, c: &Create, target: Target, opens: &[&Handle]) -> Plan {
    let mut v = Verdict::default();
    let existing = target.node;
    let asks_directory = c.options & 1 != 0;
    let asks_file = c.options & 0x40 != 0;
    let directory = match existing {
        Some(n) => tree.nodes[n].directory && c.stream.is_empty(),
        None => asks_directory,
    };
    let desired = acl::specific(c.desired);
    let maximum = desired & acl::MAXIMUM != 0;
    v.refuse_if(c.desired & 0x0CE0_FE00 & !acl::GENERIC_ALL != 0 || c.desired == 0, "bits that nobody may ask for");
    v.refuse_if(asks_directory && asks_file, "a directory that is none");
    v.refuse_if(asks_directory && !matches!(c.disposition, 1..=3), "a directory is not overwritten");
    // The options are checked against the access as it was asked, and a server may map generic bits before.
    v.refuse_if(
        c.options & 0x1000 != 0 && desired & (acl::DELETE | acl::MAXIMUM) == 0,
        "delete on close without DELETE",
    );
    v.may_refuse_if(c.options & 0x1000 != 0 && c.desired & acl::DELETE == 0, "delete on close with generic access");
    v.refuse_if(desired & acl::SYSTEM_SECURITY != 0 && !who.privileged, "SeSecurityPrivilege");
    v.refuse_if(!c.stream.is_empty() && asks_directory, "a stream is no directory");
    v.may_refuse_if(!c.stream.is_empty() && target.parent.is_none(), "a stream of the root of a share");
    let ceiling = share.ceiling(who);
    let plain = desired & !(acl::MAXIMUM | acl::SYSTEM_SECURITY);
    v.refuse_if(plain & !ceiling != 0, "the share's ceiling");
    v.refuse_if(c.options & 0x1000 != 0 && ceiling & acl::DELETE == 0, "the share's ceiling and deletion");
    if let Some(link) = target.link() {
        v.refuse_if(tree.doomed.contains(&link), "deletion is pending");
    }
    let mut plan = Plan {
        verdict: v,
        action: Action::Opened,
        directory,
        stream: c.stream.clone(),
        at_least: plain,
        at_most: 0,
        target,
    };
    match existing {
        None => new_file(tree, &mut plan, ceiling, who, c),
        Some(node) => existing_file(tree, &mut plan, ceiling, who, c, node, opens),
    }
    if maximum {
        plan.verdict.may_refuse_if(plan.at_least == 0, "nothing is granted");
    } else {
        // Rights that the disposition needed may show in the granted access.
        plan.at_most = plan.at_least;
        plan.at_least = plain;
    }
    plan.at_most |= desired & acl::SYSTEM_SECURITY;
    plan.at_least |= desired & acl::SYSTEM_SECURITY;
    plan
}

/// [MS-FSA] 2.1.5.1.1.
fn new_file(tree: &Tree, plan: &mut Plan, ceiling: u32, who: &Token, c: &Create) {
    let v = &mut plan.verdict;
    plan.action = Action::Created;
    v.refuse_if(matches!(c.disposition, 1 | 4), "no such file");
    let Some(parent) = plan.target.parent else { return };
    v.refuse_if(!tree.nodes[parent].directory, "a file is no directory");
    v.refuse_if(tree.nodes[parent].reparse.is_some(), "a symbolic link on the way");
    let right = if plan.directory { acl::APPEND_DATA } else { acl::WRITE_DATA };
    let denied = tree.nodes[parent].sd.grants(who) & right == 0;
    v.refuse_if(denied && !who.privileged, "no right to add to the directory");
    v.may_refuse_if(denied && who.privileged, "SeRestorePrivilege without backup intent");
    v.refuse_if(ceiling & right == 0, "the share's ceiling and new files");
    v.refuse_if(c.attributes & ATTR_READONLY != 0 && c.options & 0x1000 != 0, "a read-only file that deletes itself");
    creator_descriptor(v, who, c);
    let all = acl::ALL & ceiling;
    if acl::specific(c.desired) & acl::MAXIMUM != 0 {
        (plan.at_least, plan.at_most) = (all, all);
    }
}

/// A security descriptor that the creator sends, [MS-DTYP] 2.5.3.4.1 and [MS-FSA] 2.1.5.17.
fn creator_descriptor(v: &mut Verdict, who: &Token, c: &Create) {
    if let Some((sd, parts)) = &c.sd {
        v.refuse_if(parts & 1 != 0 && !who.may_own(sd.owner), "an owner that the token may not give");
        // A server may also leave the SACL out; the comparison of descriptors tells.
        v.may_refuse_if(parts & 8 != 0, "a SACL");
        v.may_refuse_if(parts & 1 != 0 && sd.owner != who.user, "another owner");
    }
}

/// [MS-FSA] 2.1.5.1.2 and 2.1.5.1.2.1.
fn existing_file(tree: &Tree, plan: &mut Plan, ceiling: u32, who: &Token, c: &Create, node: NodeId, opens: &[&Handle]) {
    let n = &tree.nodes[node];
    let v = &mut plan.verdict;
    let desired = acl::specific(c.desired);
    let parent = plan.target.parent;
    v.refuse_if(c.options & 1 != 0 && !n.directory, "a file is no directory");
    v.refuse_if(c.options & 0x40 != 0 && plan.directory, "a directory is no file");
    let link = n.reparse.is_some() && c.options & 0x20_0000 == 0;
    v.refuse_if(link && c.stream.is_empty(), "a symbolic link");
    v.may_refuse_if(link, "a stream of a symbolic link");
    let stream = n.streams.get(&upper(&c.stream));
    let found = plan.directory || stream.is_some();
    let overwrites = matches!(c.disposition, 0 | 4 | 5);
    let mut implied = 0;
    if found {
        v.refuse_if(c.disposition == 2, "it is there already");
        v.refuse_if(plan.directory && overwrites, "a directory is not overwritten");
        if overwrites {
            plan.action = if c.disposition == 0 { Action::Superseded } else { Action::Overwritten };
            implied |= if c.disposition == 0 { acl::DELETE } else { acl::WRITE_DATA };
            if c.stream.is_empty() {
                implied |= acl::WRITE_EA | acl::WRITE_ATTRIBUTES;
                let loses = |bit| n.attributes & bit != 0 && c.attributes & bit == 0;
                v.refuse_if(
                    loses(ATTR_HIDDEN) || loses(ATTR_SYSTEM),
                    "hidden and system files are overwritten as such",
                );
            }
            v.refuse_if(n.attributes & ATTR_READONLY != 0 && c.disposition != 0, "a read-only file is not overwritten");
            v.may_refuse_if(n.attributes & ATTR_READONLY != 0, "a read-only file is superseded");
            let mapped = opens.iter().any(|h| h.node == node);
            v.may_refuse_if(mapped && c.disposition == 0, "a file in use is superseded");
        }
    } else {
        plan.action = Action::Created;
        v.refuse_if(matches!(c.disposition, 1 | 4), "no such stream");
        implied |= acl::WRITE_DATA;
        v.may_refuse_if(n.attributes & ATTR_READONLY != 0, "a stream of a read-only file");
        // The context is for files that are created; a server may look at it for streams too.
        v.may_refuse_if(c.sd.is_some(), "a descriptor for a stream");
    }
    // A server may let a file go as a whole, whichever of its names is deleted.
    v.may_refuse_if(tree.doomed_streams.contains(&(node, upper(&c.stream))), "deletion of the stream is pending");
    let read_only = n.attributes & ATTR_READONLY != 0;
    let writes = desired & (acl::WRITE_DATA | acl::APPEND_DATA) != 0;
    v.refuse_if(read_only && !n.directory && writes, "a read-only file is not written");
    v.may_refuse_if(read_only && n.directory && writes, "a read-only directory");
    v.refuse_if(read_only && c.options & 0x1000 != 0, "a read-only file is not deleted");
    v.may_refuse_if(c.options & 0x1000 != 0 && parent.is_none(), "the root is not deleted");
    v.may_refuse_if(c.options & 0x1000 != 0 && plan.directory && !n.children.is_empty(), "a directory with entries");
    let mut base = tree.grants(node, parent, who);
    // MAXIMUM_ALLOWED gives what a privilege gives by [MS-FSA], and does not by [MS-DTYP] 2.5.3.2.
    let mut surely = tree.without_privileges(node, parent, who);
    if who.privileged && c.options & 0x4000 != 0 {
        // Phase 4 of [MS-FSA] 2.1.5.1.
        base |= 0x13_01BF | acl::WRITE_DAC | acl::WRITE_OWNER;
        v.may_refuse_if(true, "backup intent");
    }
    if parent.is_none() {
        // The directory above the share counts or does not; it is not the share's.
        v.may_refuse_if(base != acl::ALL, "the root of a share");
    }
    let needs = (desired & acl::ALL) | implied;
    v.refuse_if(needs & !base != 0, "the descriptor");
    // A right that only the disposition needs is one that the share has to allow too.
    v.refuse_if(implied & CHANGING & !ceiling != 0, "the share's ceiling and the disposition");
    if read_only {
        let cleared = acl::WRITE_DATA | acl::APPEND_DATA | acl::DELETE_CHILD;
        surely &= !cleared;
        if !n.directory {
            base &= !cleared;
        }
    }
    if desired & acl::MAXIMUM != 0 {
        // A right that the disposition takes may be gone again from a read-only file.
        plan.at_least = (surely | desired & acl::ALL) & ceiling;
        plan.at_most = (base | needs) & ceiling;
    } else {
        plan.at_least = needs;
    }
    sharing(v, c, node, opens);
}

/// Opens that do not share everything may refuse others; which do is not this model's matter.
fn sharing(v: &mut Verdict, c: &Create, node: NodeId, opens: &[&Handle]) {
    let on_it = || opens.iter().filter(|h| h.node == node);
    v.may_refuse_if(c.share_mode != 7 && on_it().next().is_some(), "shares less than there is");
    v.may_refuse_if(on_it().any(|h| h.share_mode != 7), "an open that shares less");
    v.may_refuse_if(on_it().any(|h| h.delete_on_close), "deletion is pending with a close");
}

/// A change of names: where to, and what becomes of what is there.
#[derive(Debug, Clone)]
pub struct Move {
    pub verdict: Verdict,
    pub target: Target,
    /// The same link already: nothing happens, or its case changes.
    pub same: bool,
}

/// FileRenameInformation, [MS-FSA] 2.1.5.15.12, and FileLinkInformation, 2.1.5.15.7, to `target`.
pub fn rename(
    tree: &Tree,
    share: &ShareModel,
    who: &Token,
    handle: &Handle,
    target: Target,
    (replace, links): (bool, bool),
    opens: &[&Handle],
) -> Move {
    let mut v = Verdict::default();
    let n = &tree.nodes[handle.node];
    let ceiling = share.ceiling(who);
    let others = || opens.iter().filter(|h| h.id != handle.id || h.session != handle.session);
    v.refuse_if(!links && handle.granted & acl::DELETE == 0, "DELETE");
    v.refuse_if(links && n.directory, "a link to a directory");
    v.refuse_if(handle.link.is_none(), "the root of a share");
    v.refuse_if(handle.link.as_ref().is_some_and(|l| tree.doomed.contains(l)), "deletion is pending");
    v.may_refuse_if(handle.delete_on_close, "deletion is pending with a close");
    let Some(parent) = target.parent else {
        v.refuse.push("the root of a share as a name");
        return Move { verdict: v, target, same: false };
    };
    let right = if n.directory { acl::APPEND_DATA } else { acl::WRITE_DATA };
    let there = tree.nodes[parent].sd.grants(who);
    let same = target.link() == handle.link;
    v.refuse_if(!tree.nodes[parent].directory, "a file is no directory");
    v.refuse_if(tree.nodes[parent].reparse.is_some(), "a symbolic link on the way");
    let stays = handle.link.as_ref().is_some_and(|l| l.0 == parent) && !links;
    v.refuse_if(there & right == 0 && !same && !stays, "no right to add to the directory");
    v.refuse_if(there & right == 0 && !same && stays, "no right to add to the directory of a name that stays there");
    // Not in the specification: a server may ask for more than that a file is open before it gives it another name.
    let lookers = tree.nodes[handle.node].sd.grants(who) & acl::WRITE_ATTRIBUTES == 0;
    v.may_refuse_if(links && lookers, "FILE_WRITE_ATTRIBUTES for a link");
    v.may_refuse_if(there & right == 0 && same, "no right to add, and the name stays");
    v.may_refuse_if(there & acl::SYNCHRONIZE == 0, "SYNCHRONIZE on the directory");
    v.refuse_if(ceiling & right == 0 && !same, "the share's ceiling and new names");
    v.may_refuse_if(ceiling & right == 0, "the share's ceiling, and the name stays");
    let above = others().filter(|h| h.node == parent);
    // [MS-FSA] 2.1.5.15.12, <185>: the directory is not shared with who may delete it.
    let in_the_way = |h: &&&Handle| h.share_mode != 7 || h.granted & acl::DELETE != 0;
    v.may_refuse_if(above.into_iter().any(|h| in_the_way(&h)), "an open of the directory that shares less");
    if n.directory {
        v.refuse_if(tree.is_below(handle.node, parent), "below itself");
        // [MS-FSA] 2.1.4.2 goes by the names that files were opened by: another name of a file below does not count.
        let below = |l: &(NodeId, String)| tree.is_below(handle.node, l.0);
        let inside = |h: &&&Handle| h.node != handle.node && h.link.as_ref().is_some_and(below);
        let in_store = |h: &&Handle| (h.share >= INNER_SHARES) == (handle.share >= INNER_SHARES);
        v.refuse_if(!same && others().filter(inside).any(in_store), "opens below");
        v.may_refuse_if(others().any(|h| inside(&h)), "opens below through another store");
    }
    v.may_refuse_if(!links && others().any(|h| h.node == handle.node), "other opens of it");
    if let Some(old) = target.node {
        replaced(tree, &mut v, who, (handle, old, parent), (replace, same, links), opens);
        v.refuse_if(old != handle.node && ceiling & acl::DELETE == 0, "the share's ceiling and what is replaced");
    }
    Move { verdict: v, target, same }
}

fn replaced(
    tree: &Tree,
    v: &mut Verdict,
    who: &Token,
    (handle, old, parent): (&Handle, NodeId, NodeId),
    (replace, same, links): (bool, bool, bool),
    opens: &[&Handle],
) {
    let n = &tree.nodes[old];
    if old == handle.node {
        // Another link to the same file, or the same one.
        v.may_refuse_if(true, "a name of the same file");
        v.refuse_if(links && !replace, "the name is there");
        let _ = same;
        return;
    }
    v.refuse_if(!replace, "the name is there");
    v.refuse_if(n.directory, "a directory is not replaced");
    v.may_refuse_if(tree.nodes[handle.node].directory, "a directory in the place of a file");
    v.refuse_if(n.attributes & ATTR_READONLY != 0, "a read-only file is not replaced");
    let link = (
        parent,
        tree.nodes[parent].children.iter().find(|(_, (_, c))| *c == old).map(|(k, _)| k.clone()).unwrap_or_default(),
    );
    v.may_refuse_if(tree.doomed.contains(&link), "deletion is pending");
    v.refuse_if(tree.grants(old, Some(parent), who) & acl::DELETE == 0, "no right to delete what is replaced");
    v.may_refuse_if(opens.iter().any(|h| h.node == old), "what is replaced is open");
}

/// Whether `sd`, as the server has it, is one of those that a new object may have.
pub fn matches_one(sd: &Sd, allowed: &[Sd], privileged: bool) -> bool {
    let same_dacl = |a: &Sd| match (&a.dacl, &sd.dacl) {
        (Some(a), Some(b)) => acl::same_acl(a, b),
        (None, None) => true,
        _ => false,
    };
    let sacl = |a: &Sd| sd.sacl.is_empty() || privileged && acl::same_acl(&a.sacl, &sd.sacl);
    allowed.iter().any(|a| a.owner == sd.owner && a.group == sd.group && same_dacl(a) && sacl(a))
}
