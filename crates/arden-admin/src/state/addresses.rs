//! Operations on the floating addresses of the state.

use std::net::IpAddr;

use super::Snapshot;
use crate::{
    address::{self, ADDRESSES_MAX, AddressRecord, NewAddress},
    error::{AdminError, ErrorKind, Result},
    names::key,
};

impl Snapshot {
    /// Adds a floating address.
    ///
    /// # Errors
    /// Invalid, for an address or interface that cannot be; not found, for the pool; exists; conflict, when there are too many.
    pub fn add_address(&mut self, new: &NewAddress) -> Result<AddressRecord> {
        let (ip, prefix_length) = address::parse(&new.address)?;
        address::check_interface(&new.interface)?;
        let pool = self.pools.get(&key(&new.pool)).ok_or_else(|| AdminError::not_found("pool", &new.pool))?;
        if self.addresses.contains_key(&ip.to_string()) {
            return Err(AdminError::exists("address", &ip.to_string(), "remove it first, or choose another one"));
        }
        if self.addresses.len() >= ADDRESSES_MAX {
            let error = format!("there are {ADDRESSES_MAX} floating addresses already");
            return Err(AdminError::new(ErrorKind::Conflict, error, "`arden address remove` removes one"));
        }
        let record =
            AddressRecord { address: ip, prefix_length, interface: new.interface.clone(), pool: pool.id.clone() };
        self.addresses.insert(ip.to_string(), record.clone());
        Ok(record)
    }

    /// Removes a floating address.
    ///
    /// # Errors
    /// Not found.
    pub fn remove_address(&mut self, ip: IpAddr) -> Result<()> {
        let ip = ip.to_string();
        self.addresses.remove(&ip).map(|_| ()).ok_or_else(|| AdminError::not_found("address", &ip))
    }

    /// The name of the pool that a floating address belongs to, or its id when there is no such pool.
    pub fn pool_of_address(&self, record: &AddressRecord) -> String {
        let pool = self.pools.values().find(|p| p.id == record.pool);
        pool.map_or_else(|| record.pool.clone(), |p| p.name.clone())
    }
}
