//! What the library promises, as bodies that take a `Comm` and run on every backend: as threads, as processes, under any launcher.
//! Owns the table of bodies. A body knows no backend; what it draws at random it draws from the seed, alike on every rank.
#![deny(unsafe_code)]

pub mod after;
pub mod check;
pub mod commit;
pub mod credits;
pub mod data;
pub mod exchange;
pub mod faults;
pub mod halo;
pub mod leases;
pub mod life;
pub mod neighbor;
pub mod plan;
pub mod queues;
pub mod waiting;

use rma::Comm;

/// A promise that can be checked.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    /// The fact, which is also the name of the function.
    pub name: &'static str,
    /// Checks it on this rank; called on every rank with the same seed.
    pub run: fn(&Comm, u64) -> anyhow::Result<()>,
    /// The fewest ranks it makes sense on.
    pub fewest: u32,
}

impl Body {
    /// Whether the body is meant for jobs of this size.
    pub const fn suits(&self, size: u32) -> bool {
        size >= self.fewest
    }
}

/// The sizes of jobs every body is run on, as far as it suits them.
pub const SIZES: [u32; 5] = [1, 2, 3, 4, 8];

/// The body of this name.
pub fn body(name: &str) -> Option<&'static Body> {
    BODIES.iter().chain(faults::FAULTS).find(|body| body.name == name)
}

/// Calls a macro with every body: `name: fewest ranks, function;`. The one list of bodies.
#[macro_export]
macro_rules! for_each_body {
    ($callback:ident) => {
        $callback! {
            every_byte_of_contiguous_puts_arrives: 1, data::every_byte_of_contiguous_puts_arrives;
            every_byte_of_strided_puts_arrives: 1, data::every_byte_of_strided_puts_arrives;
            a_rank_can_put_to_itself: 1, data::a_rank_can_put_to_itself;
            many_origins_write_one_target: 2, data::many_origins_write_one_target;
            one_origin_writes_many_targets: 2, data::one_origin_writes_many_targets;
            empty_puts_notify_and_write_nothing: 1, data::empty_puts_notify_and_write_nothing;
            windows_may_be_uneven_and_empty: 1, data::windows_may_be_uneven_and_empty;
            every_rail_carries_puts: 1, data::every_rail_carries_puts;
            one_queue_uses_many_rails: 1, data::one_queue_uses_many_rails;
            two_neighbors_that_are_one_rank_get_both_puts: 1, data::two_neighbors_that_are_one_rank_get_both_puts;
            large_puts_arrive_whole: 2, data::large_puts_arrive_whole;
            fresh_windows_are_zero: 1, data::fresh_windows_are_zero;
            a_slow_reader_keeps_its_epoch: 2, credits::a_slow_reader_keeps_its_epoch;
            a_slow_writer_loses_nothing: 2, credits::a_slow_writer_loses_nothing;
            held_data_is_intact_while_the_origin_has_gone_on: 2, credits::held_data_is_intact_while_the_origin_has_gone_on;
            ranges_exposed_at_start_are_ordinary_memory_between_flights: 1,
                credits::ranges_exposed_at_start_are_ordinary_memory_between_flights;
            nothing_is_written_before_a_target_exposed_at_start_has_started: 2,
                credits::nothing_is_written_before_a_target_exposed_at_start_has_started;
            queues_exposed_at_start_share_ranges: 1, credits::queues_exposed_at_start_share_ranges;
            exposures_may_differ_between_ranks: 2, credits::exposures_may_differ_between_ranks;
            without_credits_a_program_that_keeps_order_loses_nothing: 1,
                credits::without_credits_a_program_that_keeps_order_loses_nothing;
            a_credit_travels_while_its_target_waits_for_another_queue: 2,
                credits::a_credit_travels_while_its_target_waits_for_another_queue;
            a_cleared_queue_blocks_its_rivals_until_its_partners_clear_it: 2,
                credits::a_cleared_queue_blocks_its_rivals_until_its_partners_clear_it;
            two_buffers_that_start_after_each_other_keep_every_byte: 1,
                after::two_buffers_that_start_after_each_other_keep_every_byte;
            what_is_given_back_by_a_start_after_is_closed_again: 1, after::what_is_given_back_by_a_start_after_is_closed_again;
            a_start_after_takes_over_the_ranges_that_it_gives_back: 1,
                after::a_start_after_takes_over_the_ranges_that_it_gives_back;
            a_ping_pong_of_starts_after_keeps_every_byte: 2, after::a_ping_pong_of_starts_after_keeps_every_byte;
            a_start_after_that_is_refused_gives_the_credit_all_the_same: 2,
                after::a_start_after_that_is_refused_gives_the_credit_all_the_same;
            a_start_after_gives_credits_to_partners_it_does_not_write_to: 3,
                after::a_start_after_gives_credits_to_partners_it_does_not_write_to;
            test_alone_completes_an_epoch: 1, queues::test_alone_completes_an_epoch;
            start_never_blocks: 2, queues::start_never_blocks;
            queues_and_windows_interleave: 1, queues::queues_and_windows_interleave;
            queues_in_flight_together_keep_their_epochs_apart: 1, queues::queues_in_flight_together_keep_their_epochs_apart;
            a_cleared_queue_is_committed_again: 1, queues::a_cleared_queue_is_committed_again;
            a_dropped_queue_is_as_good_as_cleared: 1, queues::a_dropped_queue_is_as_good_as_cleared;
            a_put_may_be_in_several_queues: 1, queues::a_put_may_be_in_several_queues;
            a_wait_moves_on_the_other_queues_in_flight: 2, queues::a_wait_moves_on_the_other_queues_in_flight;
            a_queue_without_puts_and_origins_completes: 1, queues::a_queue_without_puts_and_origins_completes;
            commit_refuses_a_put_whose_target_does_not_expect_it: 2, commit::commit_refuses_a_put_whose_target_does_not_expect_it;
            commit_refuses_an_origin_that_pushes_nothing: 2, commit::commit_refuses_an_origin_that_pushes_nothing;
            commit_refuses_overlapping_puts_of_one_origin: 1, commit::commit_refuses_overlapping_puts_of_one_origin;
            commit_refuses_overlapping_puts_of_two_origins: 2, commit::commit_refuses_overlapping_puts_of_two_origins;
            commit_refuses_overlap_with_another_committed_queue: 1, commit::commit_refuses_overlap_with_another_committed_queue;
            commit_refuses_overlap_of_early_and_at_start: 1, commit::commit_refuses_overlap_of_early_and_at_start;
            commit_refuses_a_window_that_is_not_exposed: 2, commit::commit_refuses_a_window_that_is_not_exposed;
            commit_refuses_credits_on_one_side_only: 2, commit::commit_refuses_credits_on_one_side_only;
            commit_refuses_to_expose_leased_bytes: 1, commit::commit_refuses_to_expose_leased_bytes;
            commit_refuses_sources_that_origins_write: 1, commit::commit_refuses_sources_that_origins_write;
            commit_refuses_ranges_that_only_this_rank_has_cleared: 2, commit::commit_refuses_ranges_that_only_this_rank_has_cleared;
            different_collective_calls_are_named_on_every_rank: 2, commit::different_collective_calls_are_named_on_every_rank;
            an_allocation_that_fails_on_one_rank_fails_on_all: 1, commit::an_allocation_that_fails_on_one_rank_fails_on_all;
            a_wait_that_times_out_names_what_is_missing: 2, waiting::a_wait_that_times_out_names_what_is_missing;
            test_alone_times_out_as_a_wait_does: 2, waiting::test_alone_times_out_as_a_wait_does;
            a_wait_for_credit_that_times_out_names_the_target: 2, waiting::a_wait_for_credit_that_times_out_names_the_target;
            a_queue_that_timed_out_is_poisoned_and_can_be_cleared: 2,
                waiting::a_queue_that_timed_out_is_poisoned_and_can_be_cleared;
            a_dropped_flight_poisons_only_its_queue: 1, waiting::a_dropped_flight_poisons_only_its_queue;
            a_put_goes_out_when_its_credit_comes_whatever_the_origin_waits_for: 2,
                waiting::a_put_goes_out_when_its_credit_comes_whatever_the_origin_waits_for;
            a_partner_that_clears_early_is_named: 2, waiting::a_partner_that_clears_early_is_named;
            a_target_that_clears_early_is_named: 2, waiting::a_target_that_clears_early_is_named;
            test_alone_names_a_partner_that_clears_early: 2, waiting::test_alone_names_a_partner_that_clears_early;
            a_rank_that_left_is_named_in_collective_calls: 2, waiting::a_rank_that_left_is_named_in_collective_calls;
            a_rank_that_left_is_named_by_who_waits_for_it: 2, waiting::a_rank_that_left_is_named_by_who_waits_for_it;
            leases_exclude_each_other_where_one_writes: 1, leases::leases_exclude_each_other_where_one_writes;
            exposed_ranges_are_refused_and_the_rest_is_free: 1, leases::exposed_ranges_are_refused_and_the_rest_is_free;
            sources_may_be_read_but_not_written_in_flight: 2, leases::sources_may_be_read_but_not_written_in_flight;
            start_is_refused_while_a_source_is_leased_for_writing: 1,
                leases::start_is_refused_while_a_source_is_leased_for_writing;
            start_is_refused_while_a_received_range_is_leased: 1, leases::start_is_refused_while_a_received_range_is_leased;
            what_a_partner_may_still_write_goes_nowhere_else: 2, leases::what_a_partner_may_still_write_goes_nowhere_else;
            arrived_leases_reach_no_other_queue: 1, leases::arrived_leases_reach_no_other_queue;
            the_interior_is_computed_while_the_exchange_is_in_flight: 1,
                leases::the_interior_is_computed_while_the_exchange_is_in_flight;
            free_with_a_queue_alive_gives_every_rank_its_window_back: 1,
                leases::free_with_a_queue_alive_gives_every_rank_its_window_back;
            free_is_refused_while_a_queue_without_bytes_is_on_the_window: 1,
                leases::free_is_refused_while_a_queue_without_bytes_is_on_the_window;
            free_of_different_windows_is_refused_on_every_rank: 2, leases::free_of_different_windows_is_refused_on_every_rank;
            free_leaves_declared_puts_harmless: 1, leases::free_leaves_declared_puts_harmless;
            a_window_dropped_by_its_owner_can_still_be_written: 2, leases::a_window_dropped_by_its_owner_can_still_be_written;
            every_byte_of_an_exchange_arrives_however_it_is_cut: 1, neighbor::every_byte_of_an_exchange_arrives_however_it_is_cut;
            uneven_and_empty_messages_arrive_however_they_are_cut: 1,
                neighbor::uneven_and_empty_messages_arrive_however_they_are_cut;
            neighbors_of_a_narrow_torus_get_all_their_messages: 1, neighbor::neighbors_of_a_narrow_torus_get_all_their_messages;
            test_alone_completes_an_exchange: 1, neighbor::test_alone_completes_an_exchange;
            auto_chooses_alike_on_every_rank_and_says_why: 1, neighbor::auto_chooses_alike_on_every_rank_and_says_why;
            an_exchange_that_is_not_agreed_upon_is_refused_on_every_rank: 2,
                neighbor::an_exchange_that_is_not_agreed_upon_is_refused_on_every_rank;
            a_dropped_flight_makes_its_exchange_unusable: 1, neighbor::a_dropped_flight_makes_its_exchange_unusable;
            a_later_round_that_cannot_start_makes_its_exchange_unusable: 1,
                neighbor::a_later_round_that_cannot_start_makes_its_exchange_unusable;
            an_exchange_exposed_at_start_leaves_its_ranges_between_flights: 1,
                neighbor::an_exchange_exposed_at_start_leaves_its_ranges_between_flights;
            every_mode_of_a_halo_fills_every_ghost: 1, halo::every_mode_of_a_halo_fills_every_ghost;
            a_ghost_in_flight_is_refused_and_inner_points_are_not: 1, halo::a_ghost_in_flight_is_refused_and_inner_points_are_not;
            a_ring_makes_steady_progress: 1, life::a_ring_makes_steady_progress;
            ranks_may_end_as_soon_as_their_last_wait_is_over: 2, life::ranks_may_end_as_soon_as_their_last_wait_is_over;
            a_thousand_lives_leave_nothing_behind: 1, life::a_thousand_lives_leave_nothing_behind;
        }
    };
}

macro_rules! table {
    ($($name:ident: $fewest:literal, $function:path;)*) => {
        /// All bodies that leave their process alive.
        pub static BODIES: &[Body] = &[$(Body { name: stringify!($name), run: $function, fewest: $fewest }),*];
    };
}

for_each_body!(table);
