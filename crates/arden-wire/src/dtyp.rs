//! SIDs, ACEs, ACLs and security descriptors, [MS-DTYP] 2.4: their types, bytes and text.
//! Refuses to decide anything about access; that is arden-auth's.

mod acl;
mod descriptor;
mod sddl;
mod sid;
#[cfg(test)]
mod tests;

pub use acl::*;
pub use descriptor::*;
pub use sid::{Sid, well_known};
