//! The ids of the interface, each its own type so that a rank is never taken for a rail.
//! Owns nothing but the numbers; knows no communication.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A participant of the job, counted from 0.
    Rank(u32), "rank "
);
id!(
    /// One communication device, counted from 0. Rail r of the origin goes to rail r of the target.
    Rail(u16), "rail "
);
id!(
    /// How many times a chain was started. Epoch 0 is "never"; the first start is epoch 1.
    Epoch(u64), "epoch "
);
id!(
    /// A window, numbered alike on every rank in the order of the collective allocations.
    WindowId(u32), "window "
);
id!(
    /// A committed queue, numbered alike on every rank in the order of the commits.
    QueueId(u32), "queue "
);

impl Rank {
    /// This rank as an index into a list of all ranks.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Rail {
    /// This rail as an index into a list of all rails.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Epoch {
    /// The epoch after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
