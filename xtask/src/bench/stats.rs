//! Medians, quartiles and paired ratios. Pure.

/// A set of figures in five numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) upper_quartile: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) count: usize,
}

impl Summary {
    /// `None` for no figures.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<_> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Self {
            median: quantile(&sorted, 0.5),
            lower_quartile: quantile(&sorted, 0.25),
            upper_quartile: quantile(&sorted, 0.75),
            min,
            max,
            count: sorted.len(),
        })
    }
}

/// Ours over theirs, round by round; a round in which one of them is missing does not count. Within a round the machine
/// was in one state, so the ratio stays true while the times jump.
pub(crate) fn paired_ratios<'a>(ours: &'a [Option<f64>], theirs: &'a [Option<f64>]) -> impl Iterator<Item = f64> + 'a {
    ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?))
}

/// Linear between neighbors.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_numbers_of_an_unsorted_set() {
        let summary = Summary::of([5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        let expected = Summary { median: 3.0, lower_quartile: 2.0, upper_quartile: 4.0, min: 1.0, max: 5.0, count: 5 };
        assert_eq!(summary, expected);
    }

    #[test]
    fn an_even_set_has_its_median_between_two() {
        let summary = Summary::of([1.0, 2.0, 3.0, 10.0]).unwrap();
        assert_eq!((summary.median, summary.lower_quartile, summary.upper_quartile), (2.5, 1.75, 4.75));
    }

    #[test]
    fn one_figure_is_all_five_numbers() {
        let summary = Summary::of([7.0]).unwrap();
        assert_eq!((summary.median, summary.lower_quartile, summary.max, summary.count), (7.0, 7.0, 7.0, 1));
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn ratios_pair_what_was_measured_in_the_same_round() {
        let ours = [Some(1.0), None, Some(6.0), Some(2.0)];
        let theirs = [Some(2.0), Some(1.0), Some(3.0), None];
        assert_eq!(paired_ratios(&ours, &theirs).collect::<Vec<_>>(), [0.5, 2.0]);
    }
}
