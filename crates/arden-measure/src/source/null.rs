//! A source without storage, which shows the cost of the generator itself.

use super::{FILE_BYTES, Need, Prepared, Source};
use crate::{
    Result, fail,
    load::{Live, NullTarget, Target},
};

/// A source that completes every request at once and stores nothing.
#[derive(Debug)]
pub struct Null;

impl Source for Null {
    fn name(&self) -> String {
        "nothing".to_string()
    }
    fn prepare(&mut self, need: &Need, _: &Live) -> Result<Prepared> {
        if need.verify.is_some() {
            fail!("the null target keeps nothing that could be verified");
        }
        Ok(Prepared { file_bytes: need.file_bytes.unwrap_or(FILE_BYTES), filled: true })
    }
    fn open(&self, _: bool, _: bool) -> Result<Box<dyn Target>> {
        Ok(Box::new(NullTarget::default()))
    }
}
