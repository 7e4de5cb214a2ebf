//! The volume's state as keys and values, and how changes of it become durable: transactions, the log, the tree, free blocks, checkpoints.

pub mod alloc;
pub mod background;
pub mod kv;
pub mod later;
pub mod pipeline;
pub mod relief;
pub mod tree;
pub mod volume;
pub mod wal;
