//! SIDs, ACEs, ACLs and security descriptors, [MS-DTYP] 2.4: their types, bytes and text. Access decisions belong to
//! arden-auth.

mod acl;
mod descriptor;
mod sddl;
mod sid;
#[cfg(test)]
mod tests;

pub use acl::*;
pub use descriptor::*;
pub use sid::{Sid, well_known};
