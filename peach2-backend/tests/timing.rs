//! What exchanges take on the boards' clock: the figures of the paper (P3), and where chains of descriptors lie.

mod boards;

use boards::{now, on_boards, us};
use rma::{Comm, Error, MsgHandle, Rail, Rank, Ready, RmaQueue, RmaWindow, VirtualSpan};
use std::time::Duration;

fn assert_near(measured_us: f64, expected_us: f64, what: &str) {
    let off = (measured_us / expected_us - 1.0).abs();
    assert!(off < 0.02, "{what}: {measured_us:.4} us instead of {expected_us:.4} us, {:.1} % off", off * 100.0);
}

/// Puts of `(offset, bytes, rail)` from rank 0 to another, and its answer.
struct PingPong {
    there: RmaQueue<Ready>,
    back: RmaQueue<Ready>,
    outbox: RmaWindow,
    inbox: RmaWindow,
    plays: bool,
}

impl PingPong {
    fn new(comm: &Comm, far: Rank, puts: &[(usize, usize, u16)]) -> Result<Self, Error> {
        let me = comm.rank();
        let len_bytes = puts.iter().map(|(offset, bytes, _)| offset + bytes).max().unwrap_or(0);
        let (outbox, inbox) = (comm.window_alloc(len_bytes)?, comm.window_alloc(len_bytes)?);
        let commit = |from: Rank, to: Rank| {
            let mut queue = comm.queue_alloc(&inbox)?;
            if me == from {
                for &(offset, bytes, rail) in puts {
                    queue.push(&comm.declare_write(&inbox, offset, &outbox, offset, bytes, to)?.rail(Rail(rail))?)?;
                }
            }
            if me == to {
                queue.add_origin(from)?;
            }
            queue.commit()
        };
        let (there, back) = (commit(Rank(0), far)?, commit(far, Rank(0))?);
        Ok(Self { there, back, outbox, inbox, plays: me == Rank(0) || me == far })
    }

    /// One way, after a first round, for which the credits of the commit may still be under way.
    fn one_way_us(&mut self, comm: &Comm) -> Result<f64, Error> {
        const ROUNDS: u32 = 5;
        let mut begun = Duration::ZERO;
        for round in (0..=ROUNDS).filter(|_| self.plays) {
            if round == 1 {
                begun = now(comm);
            }
            if comm.rank() == Rank(0) {
                self.there.start()?.wait()?;
                self.back.start()?.wait()?;
            } else {
                let arrived = self.there.start()?.wait()?;
                self.back.start_after(arrived)?.wait()?;
            }
        }
        Ok(us(now(comm) - begun) / f64::from(2 * ROUNDS))
    }
}

/// One way between ranks 0 and `boards - 1`.
fn ping_pong_us(boards: u32, options: &[(&str, &str)], puts: &[(usize, usize, u16)]) -> f64 {
    let times = on_boards(boards, options, |comm| PingPong::new(comm, Rank(boards - 1), puts)?.one_way_us(comm));
    times[0]
}

#[test]
fn eight_bytes_between_neighbors_take_what_the_paper_measured() {
    assert_near(ping_pong_us(2, &[], &[(0, 8, 0)]), 1.8, "8 bytes from CPU to CPU");
}

#[test]
fn every_size_between_graphics_processors_follows_the_fit() {
    for bits in 3..=22 {
        let bytes = 1usize << bits;
        let expected = match bytes {
            ..=2048 => 2.01 + 8.5e-5 * bytes as f64,
            4096..=524_288 => 1.95 + bytes as f64 / 2585.0,
            _ => bytes as f64 / 2345.0,
        };
        let measured = ping_pong_us(2, &[("RMA_PEACH2_MEMORY", "gpu")], &[(0, bytes, 0)]);
        assert_near(measured, expected, &format!("{bytes} bytes from GPU to GPU"));
    }
}

/// Both start together, at once after what they got, and so before the credit for it has come: every epoch takes as much longer as a
/// store of the processor is under way. The credits of the commit are, too, as the clocks begin with it.
#[test]
fn a_credit_is_under_way_for_as_long_as_a_store_of_the_processor() {
    let spans = on_boards(2, &[], |comm| {
        let other = Rank(1 - comm.rank().0);
        let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
        let mut queue = comm.queue_alloc(&inbox)?;
        queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, other)?)?.add_origin(other)?;
        let mut queue = queue.commit()?;
        (0..4).map(|_| Ok(queue.start()?.wait()?.virtual_span().expect("a virtual clock"))).collect::<Result<Vec<_>, Error>>()
    });
    for spans in spans {
        for span in spans {
            assert_near(us(span.duration()) - 1.802, 0.8, "the credit");
        }
    }
}

#[test]
fn each_further_board_adds_the_same() {
    let nearest = ping_pong_us(2, &[], &[(0, 8, 0)]);
    // A ring of 8, one of 16, and two of those; the way around is taken where it is shorter.
    for (boards, hops) in [(3, 2), (5, 4), (6, 3), (8, 1), (9, 8), (13, 4), (16, 1), (17, 1), (19, 3)] {
        let added = ping_pong_us(boards, &[], &[(0, 8, 0)]) - nearest;
        let expected = 0.25 * f64::from(hops - 1);
        assert!((added - expected).abs() < 0.001, "over {hops} cables {added:.4} us more than over one, not {expected}");
    }
}

/// The time of the puts of an epoch from rank 0 to rank 1.
fn epoch_us(declare: impl Fn(&Comm, &RmaWindow, &RmaWindow) -> Result<MsgHandle, Error> + Sync) -> f64 {
    const BYTES: usize = 1 << 16;
    let times = on_boards(2, &[], |comm| {
        let (outbox, inbox) = (comm.window_alloc(BYTES)?, comm.window_alloc(BYTES)?);
        let mut queue = comm.queue_alloc(&inbox)?;
        if comm.rank() == Rank(0) {
            queue.push(&declare(comm, &inbox, &outbox)?)?;
        } else {
            queue.add_origin(0)?;
        }
        let span = queue.commit()?.start()?.wait()?.virtual_span();
        Ok(us(span.expect("a virtual clock").duration()))
    });
    // Before them the credit of the commit is under way.
    times[0] - 0.8
}

#[test]
fn every_further_block_of_a_stride_adds_the_same() {
    let one = epoch_us(|comm, inbox, outbox| comm.declare_write(inbox, 0, outbox, 0, 128, 1));
    for count in [2, 16] {
        let blocks =
            epoch_us(|comm, inbox, outbox| comm.declare_write(inbox, 0, outbox, 0, 128 / count, 1)?.blocks(count, 1000, 2000));
        let (added, expected) = (blocks - one, (count - 1) as f64 * 0.043);
        assert!((added - expected).abs() < 0.002, "{count} blocks instead of one take {added:.4} us more, not {expected}");
    }
}

#[test]
fn a_descriptor_in_host_memory_costs_a_read_and_the_others_nothing() {
    let times = ["registers", "internal", "host"].map(|place| ping_pong_us(2, &[("RMA_PEACH2_PLACEMENT", place)], &[(0, 8, 0)]));
    let read = times[2] - times[1];
    assert!((0.5..=0.8).contains(&read), "a descriptor is read in {read} us");
    assert_eq!(times[0], times[1]);
}

#[test]
fn four_messages_on_four_channels_take_the_time_of_one_and_on_one_channel_of_four() {
    for bytes in [8, 4096, 1 << 18] {
        let puts = |rails: [u16; 4]| rails.iter().enumerate().map(|(i, &rail)| (i * bytes, bytes, rail)).collect::<Vec<_>>();
        let one = ping_pong_us(2, &[], &[(0, bytes, 0)]);
        assert_near(ping_pong_us(2, &[], &puts([0, 1, 2, 3])), one, &format!("four times {bytes} bytes on four channels"));
        assert_near(ping_pong_us(2, &[], &puts([0; 4])), 4.0 * one, &format!("four times {bytes} bytes on one channel"));
        assert_near(ping_pong_us(2, &[], &puts([0, 0, 1, 1])), 2.0 * one, &format!("four times {bytes} bytes on two channels"));
    }
}

/// Also where each goes to another board.
#[test]
fn puts_to_several_targets_are_serial_on_one_channel_too() {
    let one = epoch_us(|comm, inbox, outbox| comm.declare_write(inbox, 0, outbox, 0, 4096, 1));
    for (rails, times) in [([0, 0, 0], 3.0), ([0, 1, 2], 1.0)] {
        let ended = on_boards(4, &[("RMA_PEACH2_CLOCK", "hop_ns=0,pio_ns=0")], |comm| {
            let (outbox, inbox) = (comm.window_alloc(4096)?, comm.window_alloc(4096)?);
            let mut queue = comm.queue_alloc(&inbox)?;
            if comm.rank() == Rank(0) {
                for (target, rail) in (1..).zip(rails) {
                    queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 4096, target)?.rail(Rail(rail))?)?;
                }
            } else {
                queue.add_origin(0)?;
            }
            let span = queue.commit()?.start()?.wait()?.virtual_span();
            Ok(us(span.expect("a virtual clock").duration()))
        });
        let one = one - 0.25;
        assert_near(ended[0], times * one, "all of them");
        assert_near(ended[1], one, "the first");
        assert_near(ended[3], times * one, "the last");
    }
}

#[test]
fn queues_that_use_one_channel_take_turns_on_it() {
    let one = epoch_us(|comm, inbox, outbox| comm.declare_write(inbox, 0, outbox, 0, 4096, 1));
    for (rails, times) in [([2, 2], 2.0), ([1, 2], 1.0)] {
        let ended = on_boards(2, &[("RMA_PEACH2_CLOCK", "pio_ns=0,hop_ns=0")], |comm| {
            let (outbox, inbox) = (comm.window_alloc(4096)?, comm.window_alloc(2 * 4096)?);
            let commit = |place: usize| {
                let mut queue = comm.queue_alloc(&inbox)?;
                if comm.rank() == Rank(0) {
                    let put = comm.declare_write(&inbox, place * 4096, &outbox, 0, 4096, 1)?;
                    queue.push(&put.rail(Rail(rails[place]))?)?;
                } else {
                    queue.add_origin(0)?;
                }
                queue.commit()
            };
            let (mut first, mut second) = (commit(0)?, commit(1)?);
            let (first, second) = (first.start()?, second.start()?);
            let ended = |span: Option<VirtualSpan>| us(span.expect("a virtual clock").ended);
            Ok((ended(first.wait()?.virtual_span()), ended(second.wait()?.virtual_span())))
        });
        for (first, second) in ended {
            assert_near(first, one - 0.25, "the first");
            assert_near(second, times * (one - 0.25), "the second");
        }
    }
}

#[test]
fn a_pipelined_channel_does_not_wait_for_arrivals() {
    let puts: Vec<_> = (0..4).map(|i| (8 * i, 8, 0)).collect();
    let serial = ping_pong_us(2, &[], &puts);
    let pipelined = ping_pong_us(2, &[("RMA_PEACH2_PIPELINE", "on")], &puts);
    // Three times the last hop and the end of a put less.
    assert!((serial - pipelined - 3.0 * 0.35).abs() < 0.002, "{serial} and {pipelined}");
}

#[test]
fn constants_can_be_changed() {
    let slow = [("RMA_PEACH2_CLOCK", "hop_ns=1250,end_ns=0")];
    assert_near(ping_pong_us(2, &slow, &[(0, 8, 0)]), 2.7, "with a slow cable");
}

#[test]
fn a_chain_goes_to_the_smallest_memory_that_has_room_and_every_byte_arrives_from_there() {
    for (descriptors, place) in
        [(1, "registers"), (16, "registers"), (17, "internal memory"), (1024, "internal memory"), (1025, "host memory")]
    {
        let puts: Vec<_> = (0..descriptors).map(|i| (24 * i, 16, 0)).collect();
        on_boards(2, &[], |comm| {
            let mut game = PingPong::new(comm, Rank(1), &puts)?;
            let expected = format!("{descriptors} descriptor(s) in {place};");
            let explained = if comm.rank() == Rank(0) { game.there.explain() } else { game.back.explain() };
            assert!(explained.contains(&expected), "{expected} is not in\n{explained}");
            let byte = |rank: Rank, at: usize| (at % 251) as u8 ^ ((rank.0 as u8 + 1) << 3);
            game.outbox.write::<u8>(..)?.iter_mut().zip(0..).for_each(|(cell, at)| *cell = byte(comm.rank(), at));
            game.one_way_us(comm)?;
            let PingPong { there, back, inbox, .. } = game;
            drop((there, back));
            let received = inbox.read::<u8>(..)?;
            for (at, &received) in received.iter().enumerate() {
                let expected = if at % 24 < 16 { byte(Rank(1 - comm.rank().0), at) } else { 0 };
                assert_eq!(received, expected, "byte {at} of {descriptors} puts");
            }
            Ok(())
        });
    }
}

#[test]
fn chains_take_the_places_that_other_queues_leave_and_give_them_back_when_cleared() {
    on_boards(1, &[], |comm| {
        let (outbox, inbox) = (comm.window_alloc(4096)?, comm.window_alloc(4096)?);
        let commit = |first: usize, count: usize, rail: u16| {
            let mut queue = comm.queue_alloc(&inbox)?;
            for i in first..first + count {
                queue.push(&comm.declare_write(&inbox, i, &outbox, i, 1, 0)?.rail(Rail(rail))?)?;
            }
            queue.add_origin(0)?;
            queue.commit()
        };
        let lies_in = |queue: &RmaQueue<Ready>, place: &str| {
            let text = queue.explain();
            assert!(text.contains(&format!("in {place};")), "not in {place}:\n{text}");
        };
        let ten = commit(0, 10, 0)?;
        let seven = commit(10, 7, 0)?;
        let six = commit(17, 6, 0)?;
        let other_channel = commit(23, 16, 1)?;
        let nearly_all = commit(39, 1000, 2)?;
        let no_room = commit(1039, 18, 3)?;
        lies_in(&ten, "registers");
        lies_in(&seven, "internal memory");
        lies_in(&six, "registers");
        lies_in(&other_channel, "registers");
        lies_in(&nearly_all, "internal memory");
        lies_in(&no_room, "host memory");
        ten.clear();
        let again = commit(0, 10, 0)?;
        lies_in(&again, "registers");
        nearly_all.clear();
        lies_in(&commit(1057, 18, 3)?, "internal memory");
        Ok(())
    });
}

/// What a partner does must not decide where the next chain lies, and so how long it takes.
#[test]
fn a_cleared_queue_gives_its_places_back_although_its_partner_keeps_it() {
    on_boards(2, &[], |comm| {
        let (outbox, inbox) = (comm.window_alloc(64)?, comm.window_alloc(64)?);
        let commit = |first: usize| {
            let mut queue = comm.queue_alloc(&inbox)?;
            if comm.rank() == Rank(0) {
                for i in first..first + 16 {
                    queue.push(&comm.declare_write(&inbox, i, &outbox, i, 1, 1)?.rail(Rail(0))?)?;
                }
            } else {
                queue.add_origin(0)?;
            }
            queue.commit()
        };
        let mut kept = Vec::new();
        for round in 0..3 {
            let queue = commit(16 * round)?;
            if comm.rank() == Rank(1) {
                kept.push(queue);
            } else {
                let text = queue.explain();
                assert!(text.contains("16 descriptor(s) in registers;"), "{text}");
                queue.clear();
            }
        }
        Ok(())
    });
}
