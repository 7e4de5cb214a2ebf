//! Renames and hard links.

use arden_wire::fscc::file_class;

use super::{
    judge::{self, Move, Verdict},
    opens::Check,
    tree::{Handle, upper},
    world::{StoreKind, World},
};
use crate::client::{self, name_change};

impl World {
    pub fn rename(&mut self, slot: usize, path: &str, stream: &str, replace: bool, ex: bool) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        if h.node == self.inner {
            return Ok(());
        }
        if !h.stream.is_empty() {
            return self.rename_stream(&h, if stream.is_empty() { "renamed" } else { stream }, replace);
        }
        let class = if ex { file_class::RENAME_EX } else { file_class::RENAME };
        self.change_name(&h, path, replace, class)
    }

    pub fn link(&mut self, slot: usize, path: &str, replace: bool) -> Check {
        let Some(h) = self.handle(slot) else { return Ok(()) };
        if h.node == self.inner || !h.stream.is_empty() {
            return Ok(());
        }
        self.change_name(&h, path, replace, file_class::LINK)
    }

    fn change_name(&mut self, h: &Handle, path: &str, replace: bool, class: u8) -> Check {
        let links = class == file_class::LINK;
        let (wire, path) = self.spell(self.roots[h.share], path);
        let who = self.token(h.session);
        let share = &self.shares[h.share];
        let data = name_change(&wire, replace);
        let mut plan = match self.tree.resolve(share.root, &path) {
            Ok(target) if path.is_empty() || target.parent.is_none() => {
                let reply = self.set(h, class, &data);
                let verdict = Verdict { refuse: vec!["no name"], ..Verdict::default() };
                return verdict.check(reply.status(), "a change of names");
            }
            Ok(target) if target.node == Some(self.inner) => return Ok(()),
            Ok(target) => judge::rename(&self.tree, share, &who, h, target, (replace, links), &self.opens()),
            Err(why) => {
                let reply = self.set(h, class, &data);
                let verdict = Verdict { refuse: vec![why], ..Verdict::default() };
                return verdict.check(reply.status(), "a change of names");
            }
        };
        // What lies in the inner share is another store to the server.
        let inner = |node: usize| self.tree.is_below(self.inner, node);
        let crosses = inner(h.node) != plan.target.parent.is_some_and(inner);
        plan.verdict.may_refuse_if(crosses && h.share >= 6, "another store");
        plan.verdict.may_refuse_if(class == file_class::RENAME_EX, "support");
        if !links && (self.is_used_through_the_other_store(h) || self.replaces_a_name_in_use(h, &plan)) {
            return Ok(());
        }
        let reply = self.set(h, class, &data);
        let what = if links { "SET_INFO of FileLinkInformation" } else { "SET_INFO of FileRenameInformation" };
        plan.verdict.check(reply.status(), what)?;
        if reply.status().is_success() {
            // A name that was found by its 8.3 name is replaced by that, [MS-FSA] 2.1.5.15.12 (NewLinkName).
            let name = wire.rsplit('\\').next().unwrap_or_default().to_string();
            if upper(&name) != upper(&plan.target.name) {
                let old = plan.target.link();
                let is_self = old == h.link || links && plan.target.node == Some(h.node);
                if let (Some(old), false) = (old, is_self) {
                    self.tree.remove(&old);
                }
                plan.same = false;
                plan.target.name = name;
            }
            self.moved(h, &plan, links);
        }
        Ok(())
    }

    /// Another name of the same file, by which somebody has it open: that open loses its name, [MS-FSA] 2.1.5.15.12, and the
    /// model knows names only by how they are written.
    fn replaces_a_name_in_use(&self, h: &Handle, plan: &Move) -> bool {
        let target = plan.target.link();
        plan.target.node == Some(h.node) && target != h.link && self.opens().iter().any(|o| o.link == target)
    }

    /// Two stores over one directory tree do not tell each other what they rename: an open of the other one keeps the name
    /// that it was opened by, and can no longer be renamed or deleted.
    fn is_used_through_the_other_store(&self, h: &Handle) -> bool {
        let other = |o: &&Handle| (o.share >= judge::INNER_SHARES) != (h.share >= judge::INNER_SHARES);
        let it = |o: &Handle| o.link == h.link;
        let below = |o: &Handle| {
            self.tree.nodes[h.node].directory && o.link.as_ref().is_some_and(|l| self.tree.is_below(h.node, l.0))
        };
        self.kind == StoreKind::Directory && self.opens().into_iter().filter(other).any(|o| it(o) || below(o))
    }

    fn moved(&mut self, h: &Handle, plan: &Move, links: bool) {
        let Some(parent) = plan.target.parent else { return };
        let Some(old) = h.link.clone() else { return };
        let new = (parent, upper(&plan.target.name));
        if links {
            if plan.target.node == Some(h.node) {
                return;
            }
            self.tree.linked_twice.insert(h.node);
            self.tree.remove(&new);
            self.tree.insert(parent, &plan.target.name, h.node);
            return;
        }
        if plan.same {
            self.tree.nodes[parent].children.insert(new.1.clone(), (plan.target.name.clone(), h.node));
            return;
        }
        let doomed = self.tree.doomed.contains(&old);
        self.tree.remove(&old);
        self.tree.remove(&new);
        self.tree.insert(parent, &plan.target.name, h.node);
        if doomed {
            self.tree.doomed.insert(new.clone());
        }
        for other in self.handles.iter_mut().flatten() {
            if other.link.as_ref() == Some(&old) && other.node == h.node {
                other.link = Some(new.clone());
            }
        }
    }

    /// [MS-FSA] 2.1.5.15.12.1.
    fn rename_stream(&mut self, h: &Handle, stream: &str, replace: bool) -> Check {
        use super::acl::DELETE;
        let streams = &self.tree.nodes[h.node].streams;
        let mut v = Verdict::default();
        let there = streams.get(&upper(stream));
        let same = upper(stream) == h.stream;
        v.refuse_if(h.granted & DELETE == 0, "DELETE");
        v.refuse_if(there.is_some() && !replace && !same, "the name is there");
        v.refuse_if(there.is_some_and(|s| !s.1.is_empty()) && !same, "a stream with data is not replaced");
        let open = self.opens().iter().any(|o| o.node == h.node && o.stream == upper(stream));
        v.may_refuse_if(there.is_some() && open, "what is replaced is open");
        v.may_refuse_if(same, "the same name");
        let others = self.opens().iter().filter(|o| o.node == h.node && o.stream == h.stream).count() > 1;
        if others {
            return Ok(());
        }
        v.may_refuse_if(self.tree.doomed_streams.contains(&(h.node, h.stream.clone())), "deletion is pending");
        v.may_refuse_if(h.delete_on_close, "deletion is pending with a close");
        v.may_refuse_if(h.link.as_ref().is_some_and(|l| self.tree.doomed.contains(l)), "deletion is pending");
        let data = name_change(&format!(":{stream}:$DATA"), replace);
        let reply = self.call(h.session, h.share, &client::set_info(h.id, 1, file_class::RENAME, 0, &data));
        v.check(reply.status(), "the rename of a stream")?;
        if !reply.status().is_success() || same {
            return Ok(());
        }
        let n = &mut self.tree.nodes[h.node];
        if let Some((_, data)) = n.streams.remove(&h.stream) {
            n.streams.insert(upper(stream), (stream.to_string(), data));
        }
        match n.snapshots.remove(&h.stream) {
            Some(snapshots) => _ = n.snapshots.insert(upper(stream), snapshots),
            None => _ = n.snapshots.remove(&upper(stream)),
        }
        let old = (h.node, h.stream.clone());
        if self.tree.doomed_streams.remove(&old) {
            self.tree.doomed_streams.insert((h.node, upper(stream)));
        }
        for other in self.handles.iter_mut().flatten() {
            if other.node == h.node && other.stream == h.stream {
                other.stream = upper(stream);
            }
        }
        Ok(())
    }
}
