//! How the ranks of the halo exchange lie: a periodic torus of three dimensions, as even as their number allows, rows
//! major, which is what `MPI_Dims_create` and `MPI_Cart_create` give. `rma bench halo` lays them out the same way.

/// Three factors of `ranks` in falling order, the largest as small as can be, then the second: 8 is 2x2x2, 12 is 3x2x2.
pub(super) fn dims(ranks: u32) -> [u32; 3] {
    let divisors = |n: u32| (1..=n).filter(move |d| n.is_multiple_of(*d));
    divisors(ranks)
        .flat_map(|a| divisors(ranks / a).map(move |b| [a, b, ranks / a / b]))
        .filter(|[a, b, c]| a >= b && b >= c)
        .min()
        .unwrap_or([ranks, 1, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_are_as_even_as_the_number_allows() {
        for (ranks, expected) in [
            (1, [1, 1, 1]),
            (2, [2, 1, 1]),
            (4, [2, 2, 1]),
            (6, [3, 2, 1]),
            (8, [2, 2, 2]),
            (12, [3, 2, 2]),
            (16, [4, 2, 2]),
            (7, [7, 1, 1]),
        ] {
            assert_eq!(dims(ranks), expected, "{ranks} ranks");
        }
    }

    #[test]
    fn dims_multiply_to_the_ranks() {
        assert!((1..300).all(|ranks| dims(ranks).iter().product::<u32>() == ranks));
    }
}
