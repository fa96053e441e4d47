//! The table of user and group ids, to which the owners of inodes are indexes. Pure: no I/O.

use std::collections::HashMap;

use super::stop::{Stop, unfit};

/// The user and group ids of an image.
#[derive(Debug, Default)]
pub struct Ids {
    pub list: Vec<u32>,
    index: HashMap<u32, u16>,
}

impl Ids {
    /// The index of an id.
    pub fn of(&mut self, id: u32) -> Result<u16, Stop> {
        if let Some(index) = self.index.get(&id) {
            return Ok(*index);
        }
        let index = u16::try_from(self.list.len()).ok().filter(|index| *index < u16::MAX);
        let index = index.ok_or_else(|| unfit("it has more than 65535 owners"))?;
        self.list.push(id);
        self.index.insert(id, index);
        Ok(index)
    }
}
