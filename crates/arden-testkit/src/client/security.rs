//! Security descriptors as clients set and read them, and what opens are granted.

use arden_wire::dtyp::{Ace, Acl, DACL_SECURITY_INFORMATION, SecurityDescriptor, Sid, well_known};

use super::*;

/// A self-relative descriptor of a DACL, and of an owner where there is one.
pub fn descriptor(owner: Option<&Sid>, aces: Vec<Ace>) -> Vec<u8> {
    let mut sd = SecurityDescriptor::with_dacl(&well_known::SYSTEM, &well_known::SYSTEM, Acl::new(aces));
    sd.owner = owner.cloned();
    sd.group = None;
    sd.encode()
}

impl Client {
    pub fn set_security(&mut self, id: FileId, information: u32, sd: &[u8]) -> NtStatus {
        self.status(&set_info(id, info_type::SECURITY, 0, information, sd))
    }
    pub fn query_security(&mut self, id: FileId, information: u32) -> Result<SecurityDescriptor, NtStatus> {
        let reply = self.call(&query_info(id, info_type::SECURITY, 0, information, &[], 4096)).result()?;
        Ok(SecurityDescriptor::parse(reply.buffer()).unwrap())
    }
    /// A directory with these ACEs and no others.
    #[track_caller]
    pub fn make_with(&mut self, name: &str, aces: Vec<Ace>) {
        let d = self.open(want(name).directory().disposition(CREATE).context(tag::SD_BUFFER, descriptor(None, aces)));
        self.close(d.id);
    }
    /// The DACL of what is there.
    #[track_caller]
    pub fn protect(&mut self, name: &str, aces: Vec<Ace>) {
        let f = self.open(want(name).existing().access(WRITE_DAC | READ_CONTROL));
        assert_eq!(self.set_security(f.id, DACL_SECURITY_INFORMATION, &descriptor(None, aces)), NtStatus::SUCCESS);
        self.close(f.id);
    }
    /// The content of a file.
    #[track_caller]
    pub fn content(&mut self, name: &str) -> Vec<u8> {
        let f = self.open(want(name).existing().access(FILE_READ_DATA));
        let data = self.try_read(f.id, 0, 65536).unwrap_or_default();
        self.close(f.id);
        data
    }
    pub fn granted(&mut self, id: FileId) -> u32 {
        le_u32(&self.query(id, file_class::ACCESS), 0)
    }
    pub fn opens(&mut self, want: Want) -> NtStatus {
        match self.try_open(&want) {
            Ok(f) => {
                self.close(f.id);
                NtStatus::SUCCESS
            }
            Err(status) => status,
        }
    }
}
