//! Random numbers that know their place: the same for every grid of ranks.

/// A number that depends on the seed and the place alone. Counts up by an odd constant and scatters (the method of SplitMix64).
pub fn bits(seed: u64, place: usize) -> u64 {
    scatter(scatter(seed).wrapping_add((place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The same as a number from -1 up to 1.
pub fn from_minus_one_to_one(seed: u64, place: usize) -> f64 {
    // As many bits as a fraction has.
    (bits(seed, place) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn scatter(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly_and_differ_by_seed() {
        let numbers = |seed| (0..10_000).map(move |place| from_minus_one_to_one(seed, place));
        for seed in [0, 1, u64::MAX] {
            assert!(numbers(seed).all(|x| (-1.0..1.0).contains(&x)));
            let (mean, square) = numbers(seed).fold((0.0, 0.0), |(mean, square), x| (mean + x / 1e4, square + x * x / 1e4));
            assert!(mean.abs() < 0.03 && (square - 1.0 / 3.0).abs() < 0.02, "seed {seed}: mean {mean}, mean square {square}");
        }
        let product: f64 = numbers(1).zip(numbers(2)).map(|(x, y)| x * y / 1e4).sum();
        assert!(product.abs() < 0.02, "seeds 1 and 2 go together: {product}");
    }
}
