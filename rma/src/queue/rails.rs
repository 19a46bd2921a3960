//! Which rail a put takes when the program leaves the choice to the queue. Pure.

use crate::Rail;

/// A rail for each put of `(choice of the program, bytes)`. Where rails work in parallel the open ones go, in order, to the rail
/// with the fewest bytes so far; elsewhere they go to rail 0, which saves notifications.
pub(super) fn assign(puts: &[(Option<Rail>, u64)], rails: u16, rails_work_in_parallel: bool) -> Vec<Rail> {
    let mut load = vec![0u64; usize::from(rails.max(1))];
    for (rail, bytes) in puts {
        if let Some(load) = rail.and_then(|rail| load.get_mut(rail.index())) {
            *load = load.saturating_add(*bytes);
        }
    }
    let mut choose = |&(choice, bytes): &(Option<Rail>, u64)| {
        if let Some(rail) = choice {
            return rail;
        }
        if !rails_work_in_parallel {
            return Rail(0);
        }
        let lightest = (0..load.len()).min_by_key(|&rail| load[rail]).unwrap_or(0);
        // An empty put still costs a request.
        load[lightest] = load[lightest].saturating_add(bytes.max(1));
        Rail(lightest as u16)
    };
    puts.iter().map(&mut choose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_the_program_stands() {
        let puts = [(Some(Rail(3)), 8), (None, 8), (Some(Rail(1)), 8)];
        assert_eq!(assign(&puts, 4, true), [Rail(3), Rail(0), Rail(1)]);
        assert_eq!(assign(&puts, 4, false), [Rail(3), Rail(0), Rail(1)]);
    }

    #[test]
    fn open_choices_balance_the_bytes() {
        let puts: Vec<_> = [100, 10, 10, 80, 1].into_iter().map(|bytes| (None, bytes)).collect();
        assert_eq!(assign(&puts, 2, true), [Rail(0), Rail(1), Rail(1), Rail(1), Rail(0)]);
    }
}
