//! What an exchange will move, drawn from a seed alike on every rank, and a naive oracle of what every byte must be afterwards.
//! Pure: knows no library; strides and patterns are spelled out byte by byte.

use fastrand::Rng;
use std::ops::RangeInclusive;

/// Equal blocks at equal distances, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// Where the first block begins.
    pub offset: usize,
    /// The length of a block.
    pub block: usize,
    /// How many blocks.
    pub count: usize,
    /// From the start of a block to the start of the next.
    pub stride: usize,
}

impl Strided {
    /// Every byte, in the order in which it is moved.
    pub fn bytes(self) -> impl Iterator<Item = usize> {
        (0..self.count).flat_map(move |i| (0..self.block).map(move |j| self.offset + i * self.stride + j))
    }

    /// The byte behind the last.
    pub fn end(self) -> usize {
        self.bytes().max().map_or(self.offset, |last| last + 1)
    }
}

/// A put as it will be declared.
#[derive(Clone, Copy, Debug)]
pub struct PlannedPut {
    /// Who writes.
    pub origin: u32,
    /// Who is written.
    pub target: u32,
    /// Which window is read on the origin.
    pub from_window: usize,
    /// Which bytes of it.
    pub from: Strided,
    /// Which window is written on the target.
    pub to_window: usize,
    /// Which bytes of it.
    pub to: Strided,
    /// The rail, if the plan chooses it.
    pub rail: Option<u16>,
}

/// How the rails of a plan are chosen.
#[derive(Clone, Copy, Debug)]
pub enum RailChoice {
    /// By the library.
    Open,
    /// By the plan, any of so many.
    Any(u16),
    /// By the plan or by the library.
    Mixed(u16),
}

/// What kind of plan to draw.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Origin and target of every group of puts.
    pub pairs: Vec<(u32, u32)>,
    /// How many puts a pair has.
    pub puts: RangeInclusive<usize>,
    /// How long a block may be.
    pub block: RangeInclusive<usize>,
    /// How many blocks a put may have.
    pub count: RangeInclusive<usize>,
    /// How rails are chosen.
    pub rails: RailChoice,
    /// How many windows there are.
    pub windows: usize,
    /// Ranks whose parts of all windows have no bytes at all, so that only empty puts reach and leave them.
    pub hollow: Vec<u32>,
}

impl Shape {
    /// Contiguous puts of up to 300 bytes between these pairs, in one window.
    pub fn contiguous(pairs: Vec<(u32, u32)>) -> Self {
        Self { pairs, puts: 1..=4, block: 1..=300, count: 1..=1, rails: RailChoice::Open, windows: 1, hollow: Vec::new() }
    }

    /// Puts of up to 7 blocks of up to 40 bytes between these pairs, in two windows.
    pub fn strided(pairs: Vec<(u32, u32)>) -> Self {
        Self { count: 1..=7, block: 1..=40, windows: 2, ..Self::contiguous(pairs) }
    }
}

/// Every rank with every rank, itself too.
pub fn all_pairs(size: u32) -> Vec<(u32, u32)> {
    (0..size).flat_map(|origin| (0..size).map(move |target| (origin, target))).collect()
}

/// Every rank writes `bytes` bytes to the next one, out of the first half of the only window into the second.
pub fn ring_plan(seed: u64, size: u32, bytes: usize) -> Plan {
    let part = |offset| Strided { offset, block: bytes, count: 1, stride: bytes };
    let to_next = |origin| PlannedPut {
        origin,
        target: (origin + 1) % size,
        from_window: 0,
        from: part(0),
        to_window: 0,
        to: part(bytes),
        rail: None,
    };
    let ranks = size as usize;
    Plan { seed, sources: vec![vec![bytes; ranks]], lengths: vec![vec![2 * bytes; ranks]], puts: (0..size).map(to_next).collect() }
}

/// Windows and the puts between them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed, for the patterns.
    pub seed: u64,
    /// How many bytes of window w rank r keeps for its sources, before those that are written: `sources[w][r]`.
    pub sources: Vec<Vec<usize>>,
    /// The length of window w on rank r: `lengths[w][r]`.
    pub lengths: Vec<Vec<usize>>,
    /// The puts, in the order they are pushed.
    pub puts: Vec<PlannedPut>,
}

impl Plan {
    /// Draws a plan: targets are placed one behind the other with gaps, some interleaved block by block, sources anywhere.
    pub fn draw(seed: u64, size: u32, shape: &Shape) -> Self {
        let mut rng = Rng::with_seed(seed);
        let hollow = |rank: u32| shape.hollow.contains(&rank);
        let of_ranks = |rng: &mut Rng| (0..size).map(|r| if hollow(r) { 0 } else { rng.usize(0..600) }).collect::<Vec<_>>();
        let sources: Vec<_> = (0..shape.windows).map(|_| of_ranks(&mut rng)).collect();
        let mut lengths = sources.clone();
        let mut puts = Vec::new();
        for &(origin, target) in &shape.pairs {
            let mut left = rng.usize(shape.puts.clone());
            while left > 0 {
                // Puts that are written between the blocks of each other.
                let together = rng.usize(1..=left.min(3));
                left -= together;
                let to_window = rng.usize(0..shape.windows);
                let count = rng.usize(shape.count.clone());
                let empty = hollow(origin) || hollow(target);
                let blocks: Vec<_> = (0..together).map(|_| if empty { 0 } else { rng.usize(shape.block.clone()) }).collect();
                let slack = if empty { 0 } else { rng.usize(0..9) };
                let stride = blocks.iter().sum::<usize>() + slack;
                let mut offset = lengths[to_window][target as usize] + if empty { 0 } else { rng.usize(0..20) };
                let mut end = lengths[to_window][target as usize];
                for block in blocks {
                    let to = Strided { offset, block, count, stride };
                    offset += block;
                    end = end.max(to.end());
                    let from_window = rng.usize(0..shape.windows);
                    let from = place_source(&mut rng, sources[from_window][origin as usize], block, count);
                    // What finds no room in the sources becomes an empty put.
                    let (from, to) = from.map_or_else(
                        || (Strided { offset: 0, block: 0, count, stride: 0 }, Strided { block: 0, ..to }),
                        |from| (from, to),
                    );
                    let rail = match shape.rails {
                        RailChoice::Open => None,
                        RailChoice::Any(rails) => Some(rng.u16(0..rails)),
                        RailChoice::Mixed(rails) => rng.bool().then(|| rng.u16(0..rails)),
                    };
                    puts.push(PlannedPut { origin, target, from_window, from, to_window, to, rail });
                }
                lengths[to_window][target as usize] = end.max(offset);
            }
        }
        for (rank, length) in lengths.iter_mut().flat_map(|of_ranks| of_ranks.iter_mut().enumerate()) {
            if !hollow(rank as u32) {
                *length += rng.usize(0..30);
            }
        }
        rng.shuffle(&mut puts);
        Self { seed, sources, lengths, puts }
    }

    /// Byte `byte` of the part of `rank` of `window`, as its source is filled for `epoch`; epoch 0 is what was there at first.
    pub fn pattern(&self, epoch: u64, rank: u32, window: usize, byte: usize) -> u8 {
        let place = (byte as u64) ^ (u64::from(rank) << 32) ^ ((window as u64) << 48);
        // The mixing of splitmix64, so that no shift or swap of bytes, ranks, windows or epochs goes unseen.
        let mut x = self.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ epoch.wrapping_mul(0xd134_2543_de82_ef95);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 56) as u8
    }

    /// What the whole part of `rank` of `window` holds at first.
    pub fn prefill(&self, rank: u32, window: usize) -> Vec<u8> {
        (0..self.lengths[window][rank as usize]).map(|byte| self.pattern(0, rank, window, byte)).collect()
    }

    /// The source bytes of `rank` in `window` for `epoch`.
    pub fn source(&self, epoch: u64, rank: u32, window: usize) -> Vec<u8> {
        (0..self.sources[window][rank as usize]).map(|byte| self.pattern(epoch, rank, window, byte)).collect()
    }

    /// Does to `memory` (a vector for each window of `target`) what the puts of `epoch` among `which` must do.
    pub fn apply(&self, epoch: u64, target: u32, which: impl Fn(usize) -> bool, memory: &mut [Vec<u8>]) {
        for (_, put) in self.puts.iter().enumerate().filter(|(i, put)| which(*i) && put.target == target) {
            for (from, to) in put.from.bytes().zip(put.to.bytes()) {
                memory[put.to_window][to] = self.pattern(epoch, put.origin, put.from_window, from);
            }
        }
    }
}

fn place_source(rng: &mut Rng, room: usize, block: usize, count: usize) -> Option<Strided> {
    if block > room {
        return None;
    }
    // Blocks of a source may touch, overlap or even be the same.
    let most = if count > 1 { (room - block) / (count - 1) } else { 0 };
    let stride = rng.usize(0..=most.min(2 * block + 9));
    let span = stride * count.saturating_sub(1) + block;
    Some(Strided { offset: rng.usize(0..=room - span), block, count, stride })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_plan_writes_a_byte_twice_or_leaves_its_window() {
        for seed in 0..200 {
            let shape = Shape { hollow: vec![2], rails: RailChoice::Mixed(3), ..Shape::strided(all_pairs(4)) };
            let plan = Plan::draw(seed, 4, &shape);
            let mut written: Vec<Vec<Vec<bool>>> =
                plan.lengths.iter().map(|of_ranks| of_ranks.iter().map(|&len| vec![false; len]).collect()).collect();
            for put in &plan.puts {
                assert!(put.from.end() <= plan.sources[put.from_window][put.origin as usize], "seed {seed}: {put:?}");
                assert_eq!(put.from.bytes().count(), put.to.bytes().count(), "seed {seed}: {put:?}");
                for byte in put.to.bytes() {
                    let twice = std::mem::replace(&mut written[put.to_window][put.target as usize][byte], true);
                    assert!(!twice && byte >= plan.sources[put.to_window][put.target as usize], "seed {seed}: {put:?}");
                }
            }
        }
    }

    #[test]
    fn the_oracle_changes_just_the_bytes_of_the_puts() {
        let put = PlannedPut {
            origin: 0,
            target: 1,
            from_window: 0,
            from: Strided { offset: 0, block: 1, count: 2, stride: 2 },
            to_window: 0,
            to: Strided { offset: 1, block: 1, count: 2, stride: 3 },
            rail: None,
        };
        let plan = Plan { seed: 1, sources: vec![vec![3, 0]], lengths: vec![vec![3, 6]], puts: vec![put] };
        let mut memory = vec![vec![0; 6]];
        plan.apply(7, 1, |_| true, &mut memory);
        assert_eq!(memory[0], [0, plan.pattern(7, 0, 0, 0), 0, 0, plan.pattern(7, 0, 0, 2), 0]);
    }
}
