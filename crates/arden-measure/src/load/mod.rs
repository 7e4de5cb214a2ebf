//! The load generator: profiles (`profile`), targets (`target` and its implementations), the loop (`drive`) and figures
//! (`figures`). One thread drives one target with many requests in flight. Knows nothing of the comparison that it
//! serves.

pub mod block;
pub mod content;
pub mod drive;
pub mod figures;
pub mod model;
pub mod nbd;
pub mod profile;
pub mod smb;
pub mod target;

pub use block::BlockTarget;
pub use content::Content;
pub use drive::{Live, Load, Measured, Window, drive, fill, flush};
pub use figures::{Figures, Latencies, Recorder};
pub use model::{Model, NullTarget};
pub use nbd::NbdTarget;
pub use profile::{Access, Profile};
pub use target::{Done, Kind, Op, Target};
