//! The volume's state as keys and values, and how changes of it become durable: transactions, the log, the tree, free blocks,
//! commits and checkpoints. Refuses to know files; who has to take part in a transaction says so by a trait of `txn`, who
//! leaves work for later by one of `deferred`.

pub mod alloc;
pub mod background;
pub mod checkpoint;
pub mod commit;
pub mod deferred;
pub mod kept;
pub mod load;
pub mod owner;
pub mod record;
pub mod relief;
pub mod state;
pub mod threads;
pub mod tree;
pub mod txn;
pub mod view;
pub mod wal;
