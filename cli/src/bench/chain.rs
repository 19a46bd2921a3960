//! A chain of equal puts to places that do not touch each other: what `put`, `stream` and `neighbor` time, and the check of what it
//! moved.
//! Knows where the puts lie and which rail each takes; knows neither a queue nor a clock.

use anyhow::{Context, Result, ensure};
use rma::{Comm, MsgHandle, Rail, Rank, RmaWindow};
use std::ops::Range;

/// What lies at least between two places, so that no two puts share a line of any cache.
const GAP_BYTES: usize = 128;
/// What the gaps of the source hold; those of the target hold zeros, and shall keep them.
const GAP: u8 = 0xee;

/// This rank's part of a chain: where it sends from, and where it receives.
pub(super) struct Chain {
    pub(super) inbox: RmaWindow,
    outbox: RmaWindow,
    places: Vec<Range<usize>>,
    puts: Vec<MsgHandle>,
}

impl Chain {
    /// Collective: `count` puts of `bytes` each, each to the target of its number, on `rails` rails in turn.
    pub(super) fn declare(comm: &Comm, target: impl Fn(usize) -> Rank, count: u32, bytes: usize, rails: u16) -> Result<Self> {
        let places = places(count as usize, bytes)?;
        let len_bytes = places.last().map_or(0, |last| last.end);
        let (inbox, outbox) = (comm.window_alloc(len_bytes)?, comm.window_alloc(len_bytes)?);
        {
            let mut source = outbox.write::<u8>(..)?;
            source.fill(GAP);
            for (number, place) in places.iter().enumerate() {
                source[place.clone()].fill(mark(comm.rank(), number));
            }
        }
        let put = |(number, place): (usize, &Range<usize>)| {
            let put = comm.declare_write(&inbox, place.start, &outbox, place.start, bytes, target(number))?;
            put.rail(Rail((number % usize::from(rails)) as u16))
        };
        let puts = places.iter().enumerate().map(put).collect::<rma::Result<_>>()?;
        Ok(Self { inbox, outbox, places, puts })
    }

    pub(super) fn puts(&self) -> &[MsgHandle] {
        &self.puts
    }

    /// Fails unless every byte of every place came from the origin of its number, and no byte between them was touched.
    pub(super) fn check(&self, origin: impl Fn(usize) -> Rank) -> Result<()> {
        let received = self.inbox.read::<u8>(..)?;
        let mut before = 0;
        for (number, place) in self.places.iter().enumerate() {
            let origin = origin(number);
            let wrong = received[place.clone()].iter().filter(|&&byte| byte != mark(origin, number)).count();
            ensure!(wrong == 0, "{wrong} of {} bytes of put {number} from {origin} are wrong", place.len());
            let touched = received[before..place.start].iter().filter(|&&byte| byte != 0).count();
            ensure!(touched == 0, "{touched} bytes before put {number} from {origin} were written, and are not part of any put");
            before = place.end;
        }
        Ok(())
    }

    /// Collective.
    pub(super) fn free(self) -> Result<()> {
        drop(self.puts);
        self.inbox.free()?;
        Ok(self.outbox.free()?)
    }
}

/// What a put of a rank brings; puts that change places are found, but for those 251 apart.
fn mark(origin: Rank, number: usize) -> u8 {
    ((origin.index() + number) % 251 + 1) as u8
}

/// Where each put lies in both windows: from one to the next at least a gap, and each at the beginning of a cache line.
fn places(count: usize, bytes: usize) -> Result<Vec<Range<usize>>> {
    let too_long = || format!("{count} puts of {bytes} bytes do not fit into memory; use smaller --puts or --bytes");
    let stride = bytes.checked_add(GAP_BYTES).and_then(|sum| sum.checked_next_multiple_of(GAP_BYTES)).with_context(too_long)?;
    stride.checked_mul(count).filter(|&sum| sum <= isize::MAX as usize).with_context(too_long)?;
    Ok((0..count).map(|number| number * stride..number * stride + bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_cache_line_or_more_apart_and_a_single_one_has_no_gap() {
        for bytes in [0, 1, 8, 63, 64, 127, 128, 129, 4096] {
            let places = places(5, bytes).unwrap();
            assert_eq!(places[0], 0..bytes);
            for pair in places.windows(2) {
                assert!(pair[1].start >= pair[0].end + GAP_BYTES && pair[1].start.is_multiple_of(64), "{bytes}: {pair:?}");
                assert_eq!(pair[1].len(), bytes);
            }
        }
    }

    #[test]
    fn puts_that_fit_into_no_memory_are_refused_with_their_numbers() {
        for (count, bytes) in [(2, usize::MAX), (1000, usize::MAX / 1000), (2, usize::MAX / 4)] {
            let error = places(count, bytes).unwrap_err().to_string();
            assert!(error.contains(&format!("{count} puts of {bytes} bytes")), "{error}");
        }
    }

    #[test]
    fn puts_take_the_rails_in_turn() {
        // The fifth put needs a fifth rail, and the sixth is back on the first of five.
        let declare = |rails, count, spread| {
            let mut config = rma::Config::default();
            config.rails = Some(rails);
            let declared = Comm::threads_with(1, config, |comm| Chain::declare(&comm, |_| Rank(0), count, 8, spread).map(drop));
            declared.unwrap().remove(0).map_err(|error| error.to_string())
        };
        assert_eq!(declare(4, 4, 5), Ok(()));
        assert!(declare(4, 5, 5).unwrap_err().contains("no rail 4"));
        assert_eq!(declare(5, 12, 5), Ok(()));
    }

    #[test]
    fn a_missing_byte_a_swapped_put_and_a_touched_gap_are_found() {
        Comm::threads(1, |comm| {
            let chain = Chain::declare(&comm, |_| Rank(0), 3, 100, 1).unwrap();
            let write = |at: usize, byte: u8| chain.inbox.write::<u8>(at..at + 1).unwrap()[0] = byte;
            for (number, place) in chain.places.iter().enumerate() {
                place.clone().for_each(|at| write(at, mark(Rank(0), number)));
            }
            chain.check(|_| Rank(0)).unwrap();
            write(99, 0);
            assert!(chain.check(|_| Rank(0)).unwrap_err().to_string().starts_with("1 of 100 bytes of put 0 from rank 0"));
            write(99, mark(Rank(0), 1));
            assert!(chain.check(|_| Rank(0)).is_err());
            write(99, mark(Rank(0), 0));
            write(chain.places[2].start - 1, 1);
            assert!(chain.check(|_| Rank(0)).unwrap_err().to_string().starts_with("1 bytes before put 2"));
        })
        .unwrap();
    }
}
