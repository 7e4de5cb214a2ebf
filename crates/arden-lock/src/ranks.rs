//! The ranks of all locks that have one, lowest first: that is the order in which a thread may take them. The names are
//! those of the fields that they lock; `docs/locks.md` says what each protects.

use crate::Rank;

macro_rules! ranks {
    ($($level:literal $rank:ident $name:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub struct $rank;
            impl Rank for $rank {
                const LEVEL: u16 = $level;
                const NAME: &'static str = $name;
            }
        )*
        /// Level and name of each.
        pub const ALL: &[(u16, &str)] = &[$(($level, $name)),*];
    };
}

ranks! {
    90 Pipe "PipeState::end";
    100 Accounts "Server::accounts";
    120 Throttle "Server::throttle";
    140 Shares "Trees::shares";
    141 SharesElsewhere "Trees::shares_elsewhere";
    150 KeptLocks "SmbOpen::kept_locks";
    160 Peers "Server::peers";
    170 ClientPeers "ClientPeers";
    180 Sessions "Server::sessions";
    190 SessionTables "Trees::sessions";
    200 ReservedIds "Server::reserved_ids";
    210 ForwardedSessions "Server::forwarded";
    220 Routes "Forwarder::routes";
    230 OwnerLink "OwnerLink::state";
    232 LinkOrigins "Link::origins";
    234 LinkCalls "Link::calls";
    236 ForwardedCall "Call::state";
    237 ForwardRoom "Room::queues";
    238 ForwardWaiter "Waiter::state";
    240 SessionUser "SessionTables::user";
    300 SessionTrees "SessionTables::trees";
    320 SessionOpens "SessionTables::opens";
    340 Opens "Trees::opens";
    380 Persistence "Persistence::state";
    400 OpenState "SmbOpen::state";
    420 PipeReaders "PipeState::readers";
    440 CreateGuids "Trees::by_create_guid";
    450 AppInstances "Trees::by_app_instance";
    460 Pending "Peer::pending";
    480 Parked "Waits::parked";
    490 SessionChannels "Session::channels";
    495 PeerChannels "Peer::channels";
    500 PendingCreates "PendingCreates";
    520 UsnWaits "UsnWaits";
    540 Openings "Openings";
    550 AllGrants "Trees::grants";
    560 Grants "SessionTables::grants";
    580 Mailbox "Peer::mailbox";
    590 Unacknowledged "Peer::unacknowledged";
    600 Admission "Admission";
    610 RpcUsers "Server::rpc_users";
    620 UsageUsers "Usage::users";
    640 UsageAddresses "Usage::addresses";
    645 UsageDirectories "Usage::directories";
    650 Endings "Endings";
    660 Jobs "Server::jobs, Server::endings";
    670 Buffers "Server::buffers";
    680 Tokens "Tokens";
    700 Interfaces "Trees::interfaces";
    720 Work "Work";
    730 Turns "Backlog::turns";
    740 LargeBuffer "Peer::large, Backlog::spare, Returned";
    800 LogLines "Server::told_limits, LogLimit, RareWarning";
    900 Volumes "Volumes::open";
    920 VolumeScrubs "Volumes::scrubs";
    940 ScrubThread "Scrubbing::thread";
    960 ScrubReport "Scrubbing::found";
    1000 Past "Fs::past";
    1010 Listing "Open::listing";
    1020 Watches "Watches::by_directory";
    1030 Watch "Watch::state";
    1040 StoreWatches "OpenTable::watches";
    1055 ReadAhead "OpenTable::read_ahead";
    1060 Files "OpenTable::files";
    1080 File "FileState";
    1100 Leases "OpenTable::leases";
    1120 Waits "OpenTable::waits";
    1140 Deadlines "OpenTable::deadlines";
    1160 HeldTimes "Open::times";
    1170 CommitScope "CommitScope";
    1180 SimClients "Gate::left";
    1200 HandleChanges "VolumeHandles::state";
    1220 SnapshotDeletions "Snapshots::deletions";
    1240 Checkpoint "Checkpoints::unfinished";
    1260 FileData "OpenFile::data";
    1300 GroupCommit "GroupCommit::state";
    1320 CommitSlot "Slot::state";
    1340 CommitQueue "CommitQueue::asked";
    1350 DataPlaces "dir::Inode::places";
    1360 DirNames "DirPart::names";
    1370 FileStreams "dir::Inode::streams";
    1400 SnapshotUse "Snapshot::in_use";
    1415 VolumeChange "State::changing";
    1420 VolumeState "State::core";
    1440 QuotaFolders "QuotaCounts::folders";
    1500 OpenFiles "OpenFiles::map";
    1520 UnnamedFiles "OpenFiles::unnamed";
    1540 FileLinks "OpenFile::links";
    1560 LinkPlace "Link::place";
    1580 OpenStreams "OpenStreams";
    1600 StreamName "StreamRef::state";
    1620 UnclosedReasons "Unclosed::reasons";
    1640 ClosedFiles "Unclosed::closed";
    1660 JournalWatchers "Watchers";
    1680 DescriptorsById "Descriptors::by_id";
    1700 DescriptorIds "Descriptors::ids";
    1720 Tunnel "Tunnel::gone";
    1800 FreeBlocks "State::alloc";
    1820 TreeNodes "Tree::shards";
    1830 TreeRows "Tree::rows";
    1840 WalState "Wal::state";
    1860 VolumeSuperblock "Checkpoints::superblock";
    1880 Housekeeping "Wakeup::asked";
    1890 SpareMemory "SpareMemory";
    1895 GatheredWrites "Gathering::state";
    1900 MemDevice "MemDevice::bytes";
    1920 SpaceAnswer "Answer::state";
    2000 ChildDefaults "DirPart::child_defaults";
    2010 Subdirectories "DirPart::subdirs";
    2020 Listings "dir::Shared::listings";
    2030 InodeLinks "dir::Inode::links";
    2040 NamePlace "dir::Link::place";
    2050 InodeKnown "dir::Inode::known";
    2060 CachedAttributes "dir::Shared::metas";
    2070 CachedDirectories "dir::Shared::directories";
    2080 SeenPlaces "dir::Shared::places";
    2090 ParsedDescriptors "dir::Shared::descriptors";
    2100 DirTunnel "dir::Tunnel::gone";
    2110 DirWatcher "Watcher::state";
    2120 OwnChanges "Watcher::echoes";
    2130 ChangedFiles "ChangedFiles::state";
    2140 Inodes "InodeTable";
    2150 InodeSeen "dir::Inode::seen";
    2160 Overlapping "STORES";
    2170 HandleFile "HandleLog::state";
    2180 MemoryHandles "MemoryHandles::state";
    4000 PoolsChanging "Pools::changing";
    4020 Pools "Pools::pools";
    4040 PoolJobs "Pools::jobs";
    4060 JobsFinished "Pools::finished";
    4070 PoolKeys "Pools::entered";
    4080 PoolsWatcher "Pools::watcher";
    4090 Hanging "HANGING";
    4100 PoolThread "OpenPool::host";
    4120 Exports "OpenPool::exports";
    4140 SpaceUses "OpenPool::uses";
    4160 SpaceReclaimers "OpenPool::givers";
    5000 StateChange "State::change";
    5020 StateSnapshot "State::current";
    5040 MemoryState "MemoryStore::contents";
    5060 RedbFile "RedbFile::db";
    6000 DeferredWork "DeferredWork::work";
    6020 DeferredWake "DeferredWork::wake";
    6100 SpaceViews "SpaceViews::views";
    6200 ConnectionThreads "ConnectionThreads::state";
    6220 ThreadSignal "Wake::on_thread";
}
