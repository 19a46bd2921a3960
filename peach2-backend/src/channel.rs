//! The four DMA channels in the virtual time: what is serial on one, and when its puts begin and end.
//! Owns that arithmetic; moves nothing.

use crate::clock::{Constants, Memory, Time};
use crate::descriptor::{Placement, Request};
use crate::placement::CHANNELS;
use std::cell::Cell;

/// Until when each channel has something to do.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    free_at: [Cell<Time>; CHANNELS],
}

impl Channels {
    /// Gives a channel something more to do, for so long: when it begins with it.
    #[inline]
    pub(crate) fn reserve(&self, channel: usize, now: Time, busy: Time) -> Time {
        let begin = now.max(self.free_at[channel].get());
        self.free_at[channel].set(begin + busy);
        begin
    }
}

/// When each put of a chain is under way, from when the chain is taken up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timetable {
    /// From when its descriptor is taken up to when it has arrived.
    pub(crate) puts: Vec<(Time, Time)>,
    /// When all have arrived.
    pub(crate) end: Time,
}

impl Timetable {
    /// Of descriptors where they lie, over so many hops. Each put waits until the one before it has arrived, or, if that one says so,
    /// until it has left.
    pub(crate) fn of(chain: &[(Placement, Request)], hops: u32, memory: Memory, constants: &Constants) -> Self {
        let (mut begin, mut end) = (Time::default(), Time::default());
        let mut puts = Vec::with_capacity(chain.len());
        for (placement, request) in chain {
            let cost = constants.message(memory, *placement, &request.shape, hops);
            let arrived = begin + cost.arrived;
            puts.push((begin, arrived));
            end = end.max(arrived);
            begin = if request.pipeline { begin + cost.sent } else { arrived };
        }
        Self { puts, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::descriptor::Shape;

    fn put(bytes: u64, pipeline: bool) -> (Placement, Request) {
        let request = Request {
            next: None,
            placement: Placement::Internal,
            source: Address::NULL,
            target: Address::NULL,
            shape: Shape::copy(bytes),
            notify: None,
            notify_self: None,
            pipeline,
        };
        (Placement::Internal, request)
    }

    fn timetable(chain: &[(Placement, Request)]) -> Timetable {
        Timetable::of(chain, 2, Memory::Cpu, &Constants::default())
    }

    #[test]
    fn puts_of_a_chain_are_serial() {
        let one = timetable(&[put(8, false)]).end;
        let four = timetable(&[put(8, false); 4]);
        assert_eq!(four.end, one + one + one + one);
        assert_eq!(four.puts[1], (one, one + one));
    }

    #[test]
    fn a_pipelined_put_lets_the_next_begin_when_it_has_left() {
        let cost = Constants::default().message(Memory::Cpu, Placement::Internal, &Shape::copy(8), 2);
        let two = timetable(&[put(8, true), put(8, false)]);
        assert_eq!(two.puts, [(Time(0), cost.arrived), (cost.sent, cost.sent + cost.arrived)]);
        assert_eq!(two.end, cost.sent + cost.arrived);
    }

    #[test]
    fn a_channel_does_one_thing_after_the_other_and_another_channel_its_own() {
        let channels = Channels::default();
        assert_eq!(channels.reserve(0, Time(100), Time(50)), Time(100));
        assert_eq!(channels.reserve(0, Time(120), Time(50)), Time(150));
        assert_eq!(channels.reserve(1, Time(120), Time(50)), Time(120));
        assert_eq!(channels.reserve(0, Time(500), Time(1)), Time(500));
    }
}
