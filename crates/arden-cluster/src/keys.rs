//! What etcd holds of a pool: the owner key under the owner's lease and the record that stays, and the transactions that change
//! them. Owns the content of each transaction; when to send one is `pool`'s.

/// The most holders that a record names. More of them are as many takeovers whose fence did not come to an end.
pub const HOLDERS_MAX: usize = 16;

/// A node of the cluster, as `node/N` in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

/// A pool, by the id in its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u128);

/// Names one ownership of a pool for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// A lease of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A revision of etcd's keys. Zero is before the first change, and stands for a key that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

/// An owner, past or present, whose commands may still reach a disk. Its registration key on the disks is made of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    pub node: NodeId,
    pub epoch: Epoch,
}

/// `pool/P/owner`: it exists as long as the lease does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerKey {
    pub node: NodeId,
    pub epoch: Epoch,
    pub lease: LeaseId,
}

impl OwnerKey {
    pub(crate) fn holder(&self) -> Holder {
        Holder { node: self.node, epoch: self.epoch }
    }
}

/// `pool/P/record`: it stays when leases end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Of the last acquisition.
    pub epoch: Epoch,
    /// Everybody whose commands may still reach a disk, the present owner included.
    pub holders: Vec<Holder>,
    /// The newest epoch that a label may bear.
    pub written: Epoch,
    /// A label bears this epoch, which nobody was given: an administrator has to decide.
    pub blocked: Option<Epoch>,
}

/// Both keys of a pool as of one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    pub owner: Option<OwnerKey>,
    pub record: Record,
    /// When the record changed last; zero when there is none.
    pub changed: Revision,
}

/// A condition on the owner key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfOwner {
    Absent,
    Is(OwnerKey),
}

/// A change of the owner key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetOwner {
    Keep,
    /// Under the lease that it names, which has to exist.
    Put(OwnerKey),
    Delete,
}

/// One atomic transaction of etcd on the two keys of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    pub if_owner: IfOwner,
    /// When the record has to have changed last; `None`: whenever.
    pub if_record: Option<Revision>,
    pub owner: SetOwner,
    pub record: Option<Record>,
}

impl Record {
    /// The last owner closed the pool so that there is no other.
    pub fn is_retired(&self) -> bool {
        self.blocked == Some(self.epoch)
    }
}

impl Transaction {
    /// The first step of every takeover: the epoch rises, and the new owner joins the holders before it can send a command. None: there is
    /// no higher epoch.
    pub(crate) fn acquire(view: &View, node: NodeId, lease: LeaseId) -> Option<Transaction> {
        let mut record = view.record.clone();
        record.epoch = Epoch(record.epoch.0.checked_add(1)?);
        record.holders.push(Holder { node, epoch: record.epoch });
        let owner = OwnerKey { node, epoch: record.epoch, lease };
        Some(Transaction {
            if_owner: IfOwner::Absent,
            if_record: Some(view.changed),
            owner: SetOwner::Put(owner),
            record: Some(record),
        })
    }

    /// Every other holder is fenced; from now on labels may bear my epoch.
    pub(crate) fn fenced(view: &View, me: OwnerKey) -> Transaction {
        let record = Record { holders: vec![me.holder()], written: me.epoch, ..view.record.clone() };
        Transaction {
            if_owner: IfOwner::Is(me),
            if_record: Some(view.changed),
            owner: SetOwner::Keep,
            record: Some(record),
        }
    }

    /// The pool was closed: no command of mine exists any more.
    pub(crate) fn release(view: &View, me: OwnerKey) -> Transaction {
        Transaction::leave(view, me, view.record.clone())
    }

    /// Commands of mine may still be on their way: I stay a holder.
    pub(crate) fn give_up(me: OwnerKey) -> Transaction {
        Transaction { if_owner: IfOwner::Is(me), if_record: None, owner: SetOwner::Delete, record: None }
    }

    /// A label has an epoch that nobody was given. I wrote nothing, and `written` is what it was before me.
    pub(crate) fn block(view: &View, me: OwnerKey, written: Epoch, label: Epoch) -> Transaction {
        Transaction::leave(view, me, Record { written, blocked: Some(label), ..view.record.clone() })
    }

    /// As [`Transaction::release`], and nobody acquires the pool any more: it is blocked with the epoch that it has.
    pub(crate) fn retire(view: &View, me: OwnerKey) -> Transaction {
        Transaction::leave(view, me, Record { blocked: Some(me.epoch), ..view.record.clone() })
    }

    /// I am neither owner nor holder any more, and this is the record without me.
    fn leave(view: &View, me: OwnerKey, mut record: Record) -> Transaction {
        record.holders.retain(|h| *h != me.holder());
        Transaction {
            if_owner: IfOwner::Is(me),
            if_record: Some(view.changed),
            owner: SetOwner::Delete,
            record: Some(record),
        }
    }

    /// Both keys after this transaction was applied to `view` at `revision`.
    pub(crate) fn applied(&self, view: &View, revision: Revision) -> View {
        let mut after = view.clone();
        match self.owner {
            SetOwner::Keep => {}
            SetOwner::Put(key) => after.owner = Some(key),
            SetOwner::Delete => after.owner = None,
        }
        if let Some(record) = &self.record {
            after.record = record.clone();
            after.changed = revision;
        }
        after
    }
}
