//! Which addresses a board can reach, and what is behind them: the windows of the queues that are committed.
//! Pure; what is behind an address is the user's business.

use crate::address::Address;

/// Pieces of memory by their address, none overlapping another, each with the number of its users.
#[derive(Debug)]
pub(crate) struct Windows<T> {
    /// By ascending address.
    all: Vec<Window<T>>,
}

#[derive(Debug)]
struct Window<T> {
    begin: Address,
    len_bytes: u64,
    users: u32,
    memory: T,
}

/// A range that is not in any window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutOfReach {
    #[error("no window of this board's queues is at {0}")]
    Nothing(Address),
    #[error("{asked} bytes at {at} reach past the end of their window, which has {left} from there")]
    PastTheEnd { at: Address, asked: u128, left: u64 },
}

impl<T> Windows<T> {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new() }
    }

    /// One user more for the window at `begin`; `memory` is what is there if it is the first.
    pub(crate) fn add(&mut self, begin: Address, len_bytes: u64, memory: impl FnOnce() -> T) {
        match self.all.binary_search_by_key(&begin, |window| window.begin) {
            Ok(at) => self.all[at].users += 1,
            Err(at) => self.all.insert(at, Window { begin, len_bytes, users: 1, memory: memory() }),
        }
    }

    /// One user less; with the last the window is out of reach.
    pub(crate) fn remove(&mut self, begin: Address) {
        if let Ok(at) = self.all.binary_search_by_key(&begin, |window| window.begin) {
            self.all[at].users -= 1;
            if self.all[at].users == 0 {
                self.all.remove(at);
            }
        }
    }

    /// What is behind `extent` bytes from an address on, and how far from its beginning they begin.
    #[inline]
    pub(crate) fn find(&self, at: Address, extent: u128) -> Result<(&T, u64), OutOfReach> {
        let after = self.all.partition_point(|window| window.begin <= at);
        let window = after.checked_sub(1).map(|index| &self.all[index]).ok_or(OutOfReach::Nothing(at))?;
        let offset = at.bits() - window.begin.bits();
        match window.len_bytes.checked_sub(offset) {
            None => Err(OutOfReach::Nothing(at)),
            Some(left) if u128::from(left) < extent => Err(OutOfReach::PastTheEnd { at, asked: extent, left }),
            Some(_) => Ok((&window.memory, offset)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{HOST, Node};

    fn at(offset: u64) -> Address {
        Address::new(Node(2), HOST + offset)
    }

    #[test]
    fn a_range_is_found_only_where_all_of_it_is() {
        let mut windows = Windows::new();
        windows.add(at(4096), 100, || 'b');
        windows.add(at(0), 10, || 'a');
        assert_eq!(windows.find(at(0), 10), Ok((&'a', 0)));
        assert_eq!(windows.find(at(4100), 96), Ok((&'b', 4)));
        assert_eq!(windows.find(at(4196), 0), Ok((&'b', 100)), "an empty range at the end");
        assert_eq!(windows.find(at(11), 0), Err(OutOfReach::Nothing(at(11))));
        assert_eq!(windows.find(at(4097), 100), Err(OutOfReach::PastTheEnd { at: at(4097), asked: 100, left: 99 }));
        assert_eq!(windows.find(Address::new(Node(1), HOST), 1), Err(OutOfReach::Nothing(Address::new(Node(1), HOST))));
        assert_eq!(windows.find(Address::new(Node(3), HOST), 1), Err(OutOfReach::Nothing(Address::new(Node(3), HOST))));
        assert!(windows.find(at(4096), u128::MAX).is_err());
    }

    #[test]
    fn a_window_is_there_as_long_as_it_has_users() {
        let mut windows = Windows::new();
        windows.add(at(0), 8, || 1);
        windows.add(at(0), 8, || panic!("it is there already"));
        windows.remove(at(0));
        assert!(windows.find(at(0), 8).is_ok());
        windows.remove(at(0));
        assert_eq!(windows.find(at(0), 8), Err(OutOfReach::Nothing(at(0))));
    }
}
