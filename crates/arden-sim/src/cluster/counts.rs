//! How often each fault of a cluster happened, and what came of it.

#[derive(Debug, Clone, Default)]
pub struct Counts {
    pub kills: u64,
    pub stops: u64,
    pub freezes: u64,
    pub cut_from_etcd: u64,
    pub cut_from_peers: u64,
    pub cut_from_disks: u64,
    pub without_leader: u64,
    pub without_quorum: u64,
    pub deposed_leaders: u64,
    pub lagging_watches: u64,
    pub drains: u64,
    pub blackouts: u64,
    pub restores: u64,
    pub blocked: u64,
    pub went_back: u64,
    pub messages_lost: u64,
    pub messages_late: u64,
    pub messages_twice: u64,
    pub fences: u64,
    pub fences_failed: u64,
    pub orphans: u64,
    pub late_registrations: u64,
    pub imports: u64,
    pub imports_failed: u64,
    pub leases_ended: u64,
    pub forwarded: u64,
    /// Requests whose handle was not open at the new owner yet.
    pub reopened: u64,
    /// Requests that came after later ones of their client.
    pub outrun: u64,
    pub answers_withheld: u64,
    pub successions: u64,
    /// The longest that a client waited after the faults ended, in milliseconds.
    pub stall_max_ms: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, c: &Counts) {
        let sums = [
            (&mut self.kills, c.kills),
            (&mut self.stops, c.stops),
            (&mut self.freezes, c.freezes),
            (&mut self.cut_from_etcd, c.cut_from_etcd),
            (&mut self.cut_from_peers, c.cut_from_peers),
            (&mut self.cut_from_disks, c.cut_from_disks),
            (&mut self.without_leader, c.without_leader),
            (&mut self.without_quorum, c.without_quorum),
            (&mut self.deposed_leaders, c.deposed_leaders),
            (&mut self.lagging_watches, c.lagging_watches),
            (&mut self.drains, c.drains),
            (&mut self.blackouts, c.blackouts),
            (&mut self.restores, c.restores),
            (&mut self.blocked, c.blocked),
            (&mut self.went_back, c.went_back),
            (&mut self.messages_lost, c.messages_lost),
            (&mut self.messages_late, c.messages_late),
            (&mut self.messages_twice, c.messages_twice),
            (&mut self.fences, c.fences),
            (&mut self.fences_failed, c.fences_failed),
            (&mut self.orphans, c.orphans),
            (&mut self.late_registrations, c.late_registrations),
            (&mut self.imports, c.imports),
            (&mut self.imports_failed, c.imports_failed),
            (&mut self.leases_ended, c.leases_ended),
            (&mut self.forwarded, c.forwarded),
            (&mut self.reopened, c.reopened),
            (&mut self.outrun, c.outrun),
            (&mut self.answers_withheld, c.answers_withheld),
            (&mut self.successions, c.successions),
        ];
        sums.into_iter().for_each(|(a, b)| *a += b);
        self.stall_max_ms = self.stall_max_ms.max(c.stall_max_ms);
    }
}
