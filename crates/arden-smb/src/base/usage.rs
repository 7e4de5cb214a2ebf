//! What users and addresses hold of the server: opens, tree connects, pipes, watches, waiting requests, locks. Each use is
//! charged to its user's SID, to its client's address and to the whole, and released when its [`Charge`] goes. Refuses to
//! know what is charged for.
//!
//! A part of the whole is for administrators, so that one can still work while others have taken all the rest.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use arden_auth::{Token, network};
use arden_lock::{Mutex, ranks};
use arden_store::fs::HeldBytes;
use arden_wire::dtyp::Sid;

use super::{
    alive::find,
    directories::{Directories, KeptDirectory},
};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As many as [`open_cost`] says for each.
    Opens,
    /// Opens of a store that takes descriptors of the process for them, and the directories above them.
    DescriptorOpens,
    /// Tree connects.
    Trees,
    Pipes,
    /// Bytes that pipes keep: answers that nobody has read yet, and calls that are not complete.
    PipeBytes,
    /// Directories watched by CHANGE_NOTIFY, each from its open's first request to the close.
    Watches,
    /// Bytes of changes that watches keep between requests, as in an answer; in memory they are some four times as many.
    WatchBytes,
    /// Requests answered with STATUS_PENDING.
    Waits,
    /// Bytes of messages that are kept for them.
    WaitBytes,
    Locks,
    /// Bytes of requests that another node works on, and of the answers that they may have.
    ForwardedBytes,
}

const KINDS: usize = 11;
/// One in so many of the whole is for administrators.
pub(super) const RESERVED_PART: usize = 16;

/// Bounds of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub user: usize,
    /// Clients of one IPv4 address or one IPv6 network of 64 bits; administrators are not bound by it.
    pub address: usize,
    pub whole: usize,
}

impl Bound {
    /// Of everybody, as it is for this one.
    fn whole_for(&self, administrator: bool) -> usize {
        if administrator { self.whole } else { self.whole - self.whole / RESERVED_PART }
    }
}

/// Bounds of what clients hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageLimits {
    pub opens: Bound,
    pub descriptor_opens: Bound,
    pub trees: Bound,
    pub pipes: Bound,
    pub pipe_bytes: Bound,
    pub watches: Bound,
    pub watch_bytes: Bound,
    pub waits: Bound,
    pub wait_bytes: Bound,
    pub forwarded_bytes: Bound,
    pub locks: Bound,
    /// Messages on threads that may block; more of them wait.
    pub jobs: Bound,
    /// Bytes of these messages, and of their answers until they are sent; more of them wait.
    pub job_bytes: Bound,
    /// Connections that end on threads that may block; more of them wait.
    pub endings: Bound,
    /// Bytes that connections hold of messages and answers; more messages are not read.
    pub buffer_bytes: Bound,
}

impl Bound {
    /// At most so many, of which half for one user or address.
    fn in_all(self, whole: usize) -> Bound {
        let whole = self.whole.min(whole);
        Bound { user: self.user.min(whole / 2), address: self.address.min(whole / 2), whole }
    }
}

impl Default for UsageLimits {
    fn default() -> UsageLimits {
        let bound = |user, address, whole| Bound { user, address, whole };
        UsageLimits {
            opens: bound(16_384, 65_536, 1_000_000),
            descriptor_opens: bound(16_384, 65_536, 1_000_000),
            trees: bound(16_384, 65_536, 524_288),
            pipes: bound(64, 256, 2_048),
            pipe_bytes: bound(16 << 20, 32 << 20, 128 << 20),
            watches: bound(1_024, 4_096, 65_536),
            watch_bytes: bound(4 << 20, 16 << 20, 64 << 20),
            waits: bound(4_096, 16_384, 65_536),
            wait_bytes: bound(16 << 20, 32 << 20, 128 << 20),
            forwarded_bytes: bound(128 << 20, 512 << 20, 1 << 30),
            locks: bound(65_536, 131_072, 1 << 20),
            jobs: bound(32, 256, 448),
            job_bytes: bound(128 << 20, 512 << 20, 1 << 30),
            endings: bound(8, 32, 32),
            buffer_bytes: bound(64 << 20, 256 << 20, 512 << 20),
        }
    }
}

impl UsageLimits {
    fn of(&self, kind: Kind) -> Bound {
        match kind {
            Kind::Opens => self.opens,
            Kind::DescriptorOpens => self.descriptor_opens,
            Kind::Trees => self.trees,
            Kind::Pipes => self.pipes,
            Kind::PipeBytes => self.pipe_bytes,
            Kind::Watches => self.watches,
            Kind::WatchBytes => self.watch_bytes,
            Kind::Waits => self.waits,
            Kind::WaitBytes => self.wait_bytes,
            Kind::Locks => self.locks,
            Kind::ForwardedBytes => self.forwarded_bytes,
        }
    }

    /// At most so many opens in all.
    #[must_use]
    pub fn with_opens(mut self, whole: usize) -> UsageLimits {
        self.opens = self.opens.in_all(whole);
        self
    }

    /// For a process that may have so many descriptors: each open that takes some, and each directory above it, can take two, and
    /// sockets need some.
    #[must_use]
    pub fn with_descriptors(mut self, descriptors: usize) -> UsageLimits {
        self.descriptor_opens = self.descriptor_opens.in_all((descriptors / 4).max(64));
        self
    }
}

#[derive(Debug, Default)]
struct Account([AtomicUsize; KINDS]);

/// Who holds how much.
#[derive(Debug)]
pub struct Usage {
    limits: UsageLimits,
    whole: Arc<Account>,
    users: Mutex<HashMap<Sid, Weak<Account>>, ranks::UsageUsers>,
    addresses: Mutex<HashMap<IpAddr, Weak<Account>>, ranks::UsageAddresses>,
    pub directories: Directories,
    refusals: AtomicUsize,
}

/// The bound that does not allow more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// Something held; released when it is dropped.
#[derive(Debug)]
pub struct Charge {
    usage: Arc<Usage>,
    /// With its bound: the user, the address where there is one, the whole.
    accounts: [Option<(Arc<Account>, usize)>; 3],
    kind: Kind,
    administrator: bool,
    user_name: Arc<str>,
    amount: AtomicUsize,
}

impl Usage {
    pub fn new(limits: UsageLimits) -> Arc<Usage> {
        Arc::new(Usage {
            limits,
            whole: Arc::default(),
            users: Mutex::default(),
            addresses: Mutex::default(),
            directories: Directories::default(),
            refusals: AtomicUsize::new(0),
        })
    }

    /// Nothing yet, for `who` at `address`; to be added to.
    pub fn account(self: &Arc<Usage>, kind: Kind, who: &Token, address: Option<IpAddr>) -> Charge {
        let bound = self.limits.of(kind);
        let administrator = who.is_administrator();
        let whole = bound.whole_for(administrator);
        let address = address.filter(|_| !administrator).map(|a| (find(&self.addresses, network(a)), bound.address));
        Charge {
            usage: self.clone(),
            accounts: [
                Some((find(&self.users, who.user.clone()), bound.user)),
                address,
                Some((self.whole.clone(), whole)),
            ],
            kind,
            administrator,
            user_name: who.user_name.as_str().into(),
            amount: AtomicUsize::new(0),
        }
    }

    /// Charges `amount`.
    ///
    /// # Errors
    /// [`Refused`] when a bound would be passed; it is logged.
    pub fn charge(
        self: &Arc<Usage>,
        kind: Kind,
        who: &Token,
        address: Option<IpAddr>,
        amount: usize,
    ) -> Result<Charge, Refused> {
        let charge = self.account(kind, who, address);
        charge.add(amount)?;
        Ok(charge)
    }

    /// How much everybody holds.
    pub fn total(&self, kind: Kind) -> usize {
        self.whole.0[kind as usize].load(Ordering::Relaxed)
    }
}

impl Charge {
    /// Nothing yet of another kind, for whom this one is.
    fn of(&self, kind: Kind) -> Charge {
        let Charge { usage, accounts: [user, address, whole], administrator, user_name, .. } = self;
        let bound = usage.limits.of(kind);
        let with = |account: &Option<(Arc<Account>, usize)>, bound| account.as_ref().map(|(a, _)| (a.clone(), bound));
        Charge {
            usage: usage.clone(),
            accounts: [
                with(user, bound.user),
                with(address, bound.address),
                with(whole, bound.whole_for(*administrator)),
            ],
            kind,
            administrator: *administrator,
            user_name: user_name.clone(),
            amount: AtomicUsize::new(0),
        }
    }

    /// Charges whom this one is for.
    ///
    /// # Errors
    /// As [`Usage::charge`].
    pub fn also(&self, kind: Kind, amount: usize) -> Result<Charge, Refused> {
        let charge = self.of(kind);
        charge.add(amount)?;
        Ok(charge)
    }

    /// The same, whatever the bounds say.
    pub fn also_beyond(&self, kind: Kind, amount: usize) -> Charge {
        let charge = self.of(kind);
        charge.force(amount);
        charge
    }

    /// The same for all charges of a user, and for those of nobody else while one of them is there.
    pub(super) fn account_number(&self) -> usize {
        self.accounts[0].as_ref().map_or(0, |(user, _)| Arc::as_ptr(user) as usize)
    }

    /// The same. Nobody is told of a refusal.
    pub fn also_quietly(&self, kind: Kind, amount: usize) -> Option<Charge> {
        let charge = self.of(kind);
        charge.try_add(amount).is_ok().then_some(charge)
    }

    /// Whether `amount` is no more than half of every bound, whatever is held.
    pub fn is_within_half(&self, kind: Kind, amount: usize) -> bool {
        self.of(kind).accounts.iter().flatten().all(|(_, bound)| amount <= bound / 2)
    }

    /// The same where no more than half of every bound is held then: for what can be done without. Nobody is told of a refusal.
    pub fn also_half(&self, kind: Kind, amount: usize) -> Option<Charge> {
        self.of(kind).half(amount)
    }

    /// Whether whom this is for has passed half of a bound.
    pub fn is_past_half(&self) -> bool {
        let is_past = |(account, bound): &(Arc<Account>, usize)| {
            account.0[self.kind as usize].load(Ordering::Relaxed) > bound / 2
        };
        self.accounts.iter().flatten().any(is_past)
    }

    /// Adds what fits into half of every bound.
    fn half(self, amount: usize) -> Option<Charge> {
        let fits = |(account, bound): &(Arc<Account>, usize)| {
            account.0[self.kind as usize].load(Ordering::Relaxed).saturating_add(amount) <= bound / 2
        };
        let all_fit = self.accounts.iter().flatten().all(fits);
        (all_fit && self.add(amount).is_ok()).then_some(self)
    }

    /// # Errors
    /// [`Refused`] when a bound would be passed; nothing is added then.
    pub fn add(&self, amount: usize) -> Result<(), Refused> {
        self.try_add(amount).map_err(|bound| {
            self.log(bound);
            Refused
        })
    }

    /// Gives the bound back that would be passed; nothing is added then.
    fn try_add(&self, amount: usize) -> Result<(), usize> {
        let k = self.kind as usize;
        for (i, (account, bound)) in self.accounts.iter().flatten().enumerate() {
            let before = account.0[k].fetch_add(amount, Ordering::Relaxed);
            if before.saturating_add(amount) > *bound {
                for (account, _) in self.accounts.iter().flatten().take(i + 1) {
                    account.0[k].fetch_sub(amount, Ordering::Relaxed);
                }
                return Err(*bound);
            }
        }
        self.amount.fetch_add(amount, Ordering::Relaxed);
        Ok(())
    }

    /// Adds what is held already, whatever the bounds say.
    pub fn force(&self, amount: usize) {
        for (account, _) in self.accounts.iter().flatten() {
            account.0[self.kind as usize].fetch_add(amount, Ordering::Relaxed);
        }
        self.amount.fetch_add(amount, Ordering::Relaxed);
    }

    /// So much is held now, whatever the bounds say.
    pub fn set(&self, amount: usize) {
        let held = self.amount.load(Ordering::Relaxed);
        if amount > held { self.force(amount - held) } else { self.release(held - amount) }
    }

    /// Gives `amount` of it back.
    pub fn release(&self, amount: usize) {
        let held = self.amount.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |a| Some(a.saturating_sub(amount)));
        let amount = amount.min(held.unwrap_or(0));
        for (account, _) in self.accounts.iter().flatten() {
            account.0[self.kind as usize].fetch_sub(amount, Ordering::Relaxed);
        }
    }

    /// The first refusals, and then ever fewer: a client can cause any number.
    fn log(&self, bound: usize) {
        let count = self.usage.refusals.fetch_add(1, Ordering::Relaxed) + 1;
        if count < 4 || count.is_power_of_two() {
            tracing::warn!(user = %self.user_name, kind = ?self.kind, bound, refusals = count, "a usage bound is reached");
        }
    }
}

impl HeldBytes for Charge {
    fn hold(&self, bytes: usize) -> bool {
        self.add(bytes).is_ok()
    }
    fn release(&self, bytes: usize) {
        Charge::release(self, bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release(usize::MAX);
    }
}

/// The name of an open may have been so long for each open that it counts as.
const NAME_BYTES_OF_AN_OPEN: usize = 1024;

/// As how many an open with this name counts, as its name stays in memory: one but for long names.
pub fn open_cost(name: &str) -> usize {
    name.len().div_ceil(NAME_BYTES_OF_AN_OPEN).max(1)
}

/// What one SMB open holds.
#[derive(Debug, Default)]
pub struct OpenUsage {
    pub open: Option<Charge>,
    /// Of [`Kind::DescriptorOpens`].
    pub descriptors: Option<Charge>,
    /// Where the file was opened. What has become of that since is kept with its name.
    pub directories: Option<Arc<KeptDirectory>>,
    pub watch: std::sync::OnceLock<Charge>,
    pub pipe_bytes: std::sync::OnceLock<Charge>,
    pub locks: std::sync::OnceLock<Charge>,
}

impl OpenUsage {
    pub fn of(open: Charge) -> OpenUsage {
        OpenUsage { open: Some(open), ..OpenUsage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(n: u32) -> Token {
        Token { user: Sid::new(5, &[21, n]), ..Token::anonymous() }
    }

    fn usage(user: usize, address: usize, whole: usize) -> Arc<Usage> {
        Usage::new(UsageLimits { pipes: Bound { user, address, whole }, ..UsageLimits::default() })
    }

    fn at(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, n]))
    }

    #[test]
    fn what_can_be_done_without_leaves_half_of_every_bound() {
        let usage = usage(8, 12, 32);
        let half = |n| usage.account(Kind::Pipes, &user(n), at(1)).half(1);
        let one: Vec<_> = std::iter::from_fn(|| half(1)).collect();
        assert_eq!(one.len(), 4, "of the user's");
        let two: Vec<_> = std::iter::from_fn(|| half(2)).collect();
        assert_eq!(two.len(), 2, "of the address's");
        assert!(usage.charge(Kind::Pipes, &user(1), at(1), 4).is_ok(), "the other half is there for what has to be");
        drop(one);
        let first = half(1).unwrap();
        let more: Vec<_> = std::iter::from_fn(|| first.also_half(Kind::Pipes, 1)).collect();
        assert_eq!(more.len(), 3, "it is the same user's");
        assert!(!first.is_past_half());
        let rest: Vec<_> = std::iter::from_fn(|| first.also(Kind::Pipes, 1).ok()).collect();
        assert!(first.is_past_half());
        assert_eq!(rest.len(), 4, "up to the bound");
        assert_eq!(usage.total(Kind::Pipes), 10);
        drop((first, more, rest));
        assert_eq!(usage.total(Kind::Pipes), two.len());
    }

    #[test]
    fn users_addresses_and_the_whole_are_bound() {
        let usage = usage(3, 5, 32);
        let held: Vec<_> = (0..3).map(|_| usage.charge(Kind::Pipes, &user(1), at(1), 1).unwrap()).collect();
        assert_eq!(usage.charge(Kind::Pipes, &user(1), at(2), 1).err(), Some(Refused), "the user");
        let more = usage.charge(Kind::Pipes, &user(2), at(1), 2).unwrap();
        assert_eq!(usage.charge(Kind::Pipes, &user(3), at(1), 1).err(), Some(Refused), "the address");
        let other = usage.charge(Kind::Pipes, &user(3), at(2), 3).unwrap();
        assert_eq!(usage.total(Kind::Pipes), 8);
        drop((held, more, other));
        assert_eq!(usage.total(Kind::Pipes), 0);
        assert!(usage.charge(Kind::Pipes, &user(1), at(1), 3).is_ok());
    }

    #[test]
    fn administrators_have_a_part_that_nobody_else_gets() {
        let usage = usage(1000, 1000, 32);
        let charge = usage.charge(Kind::Pipes, &user(1), at(1), 30).unwrap();
        assert_eq!(charge.add(1), Err(Refused));
        let root = usage.charge(Kind::Pipes, &Token::system(), at(1), 2).unwrap();
        assert_eq!(root.add(1), Err(Refused));
    }

    #[test]
    fn an_amount_goes_up_and_down() {
        let usage = usage(10, 10, 100);
        let charge = usage.account(Kind::Pipes, &user(1), at(1));
        charge.add(7).unwrap();
        charge.release(5);
        charge.add(8).unwrap();
        assert_eq!(charge.add(1), Err(Refused));
        charge.force(5);
        assert_eq!(usage.total(Kind::Pipes), 15);
        charge.release(100);
        assert_eq!(usage.total(Kind::Pipes), 0);
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let usage = usage(100, 2, 100);
        let one = usage.charge(Kind::Pipes, &user(1), Some("2001:db8::1".parse().unwrap()), 1).unwrap();
        let two = usage.charge(Kind::Pipes, &user(1), Some("2001:db8::2".parse().unwrap()), 1).unwrap();
        assert!(usage.charge(Kind::Pipes, &user(1), Some("2001:db8::3".parse().unwrap()), 1).is_err());
        assert!(usage.charge(Kind::Pipes, &user(1), Some("2001:db8:0:1::3".parse().unwrap()), 1).is_ok());
        drop((one, two));
    }

    /// All hosts of a link share its /64.
    #[test]
    fn a_link_local_client_is_itself() {
        let usage = usage(100, 2, 100);
        let at = |n: u8| Some(format!("fe80::{n}").parse().unwrap());
        let one = usage.charge(Kind::Pipes, &user(1), at(1), 2).unwrap();
        assert_eq!(usage.charge(Kind::Pipes, &user(1), at(1), 1).err(), Some(Refused));
        assert!(usage.charge(Kind::Pipes, &user(1), at(2), 2).is_ok());
        drop(one);
    }

    #[test]
    fn descriptors_bound_the_opens() {
        let limits = UsageLimits::default().with_descriptors(4096);
        assert_eq!((limits.descriptor_opens.whole, limits.descriptor_opens.user), (1024, 512));
        assert_eq!(limits.opens, UsageLimits::default().opens, "opens on a volume take none");
        assert_eq!(UsageLimits::default().with_opens(1000).opens, Bound { user: 500, address: 500, whole: 1000 });
    }
}
