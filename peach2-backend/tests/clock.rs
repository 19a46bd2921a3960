//! The clock of the boards: moved by what a program does and by nothing else, and so the same on every run.

mod boards;

use boards::{now, on_boards};
use rma::{Comm, Error, Rail, Rank, Ready, RmaQueue, RmaWindow};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

#[test]
fn a_flight_that_is_complete_has_its_times_and_the_wait_moves_the_clock() {
    on_boards(1, &[], |comm| {
        let window = comm.window_alloc(16)?;
        let mut queue = comm.queue_alloc(&window)?;
        queue.push(&comm.declare_write(&window, 0, &window, 8, 8, 0)?)?.add_origin(0)?;
        let mut queue = queue.commit()?;
        let mut flight = queue.start()?;
        assert_eq!(flight.virtual_span(), None);
        while !flight.test()? {}
        let span = flight.virtual_span().expect("a virtual clock");
        assert_eq!(now(comm), Duration::ZERO);
        let arrived = flight.wait()?;
        assert_eq!((arrived.virtual_span(), now(comm)), (Some(span), span.ended));
        assert!(span.ended > span.begun);
        Ok(())
    });
}

/// A program with several queues, credits that come late, rails in any order, tests and waits, on a machine that does what it likes.
#[test]
fn the_times_are_the_same_on_every_run() {
    const BOARDS: u32 = 5;
    const BYTES: usize = 1300;
    let run = |disturbance: u64| {
        let random = Mutex::new(fastrand::Rng::with_seed(disturbance));
        // Gives the core away now and then, for longer or shorter.
        let disturb = || {
            let yields = random.lock().unwrap().u32(0..40);
            (0..yields * yields / 40).for_each(|_| std::thread::yield_now());
        };
        on_boards(BOARDS, &[("RMA_PEACH2_MEMORY", "gpu")], |comm| {
            let me = comm.rank().0;
            let mut plan = fastrand::Rng::with_seed(7);
            let (outbox, inbox) = (comm.window_alloc(48 * BYTES)?, comm.window_alloc(48 * BYTES)?);
            let mut queues = Vec::new();
            for number in 0..4 {
                let mut queue = comm.queue_alloc(&inbox)?;
                for place in 0..12 {
                    let (from, to) = (plan.u32(..BOARDS), plan.u32(..BOARDS));
                    let (bytes, rail) = (plan.usize(..BYTES), plan.u16(..4));
                    let at = (number * 12 + place) * BYTES;
                    if me == from {
                        queue.push(&comm.declare_write(&inbox, at, &outbox, at, bytes, to)?.rail(Rail(rail))?)?;
                    }
                    if me == to {
                        queue.add_origin(from)?;
                    }
                }
                queues.push(queue.commit()?);
            }
            let mut times = Vec::new();
            for _ in 0..6 {
                let mut flights = Vec::new();
                for queue in &mut queues {
                    disturb();
                    flights.push(queue.start()?);
                }
                // Each rank waits in an order of its own, for every second one by testing.
                let count = flights.len();
                flights.rotate_left(me as usize % count);
                for (number, mut flight) in flights.into_iter().enumerate() {
                    disturb();
                    while number % 2 == 1 && !flight.test()? {
                        disturb();
                    }
                    let arrived = flight.wait()?;
                    disturb();
                    times.push((arrived.virtual_span(), now(comm)));
                }
            }
            Ok(times)
        })
    };
    let first = run(0);
    for disturbance in 1..8 {
        assert_eq!(run(disturbance), first, "disturbed by {disturbance}");
    }
}

/// A machine whose cables take longer than the clock can count stays at the clock's end; it does not begin anew.
#[test]
fn a_clock_that_has_come_to_its_end_stays_there() {
    let spans = on_boards(2, &[("RMA_PEACH2_CLOCK", "hop_ns=1e15")], |comm| {
        let other = Rank(1 - comm.rank().0);
        let (outbox, inbox) = (comm.window_alloc(8)?, comm.window_alloc(8)?);
        let mut queue = comm.queue_alloc(&inbox)?;
        queue.push(&comm.declare_write(&inbox, 0, &outbox, 0, 8, other)?)?.add_origin(other)?;
        let mut queue = queue.commit()?;
        // Each takes a credit and a put: two cables, a ninth of all time.
        (0..12).map(|_| Ok(queue.start()?.wait()?.virtual_span().expect("a virtual clock"))).collect::<Result<Vec<_>, Error>>()
    });
    let end = Duration::from_nanos(u64::MAX / 1000 + 1);
    for spans in spans {
        assert!(spans.is_sorted_by(|before, after| before.ended <= after.begun), "{spans:?}");
        assert_eq!(spans.last().map(|span| (span.begun, span.ended)), Some((end, end)));
    }
}

/// On boards that take no time at all an epoch still begins when it is started, and nothing arrives before that.
#[test]
fn a_put_that_takes_no_time_arrives_when_it_is_started() {
    let nothing = [("RMA_PEACH2_CLOCK", "hop_ns=0,end_ns=0,cpu_start_ns=0,pio_ns=500")];
    let ended = on_boards(2, &nothing, |comm| {
        let (outbox, inbox) = (comm.window_alloc(3500)?, comm.window_alloc(3500)?);
        let mut to_itself = comm.queue_alloc(&inbox)?;
        to_itself.push(&comm.declare_write(&inbox, 0, &outbox, 0, 3500, comm.rank())?)?.add_origin(comm.rank())?;
        let mut empty = comm.queue_alloc(&inbox)?;
        if comm.rank() == Rank(0) {
            empty.push(&comm.declare_write(&inbox, 0, &outbox, 0, 0, 1)?)?;
        } else {
            empty.add_origin(0)?;
        }
        let (mut to_itself, mut empty) = (to_itself.commit()?, empty.commit()?);
        if comm.rank() == Rank(0) {
            // From 0.5, when the credit is there, to 1.5 us.
            to_itself.start()?.wait()?;
        }
        let ended = empty.start()?.wait()?.virtual_span().expect("a virtual clock").ended;
        let _ = empty.explain();
        Ok(ended)
    });
    assert_eq!(ended, [Duration::from_nanos(1500); 2]);
}

/// The program cannot do anything with an epoch before `wait` has returned, so whether `test` saw its end before or after something
/// else was started is the machine's affair.
#[test]
fn a_test_does_not_move_the_clock_whatever_it_sees() {
    const LONG: usize = 1 << 20;
    let run = |is_early: bool| {
        let (sent, may_send) = (AtomicBool::new(false), AtomicBool::new(is_early));
        let times = on_boards(2, &[], |comm| {
            let (outbox, inbox) = (comm.window_alloc(LONG)?, comm.window_alloc(LONG)?);
            let mut long = comm.queue_alloc(&inbox)?;
            if comm.rank() == Rank(1) {
                long.push(&comm.declare_write(&inbox, 0, &outbox, 0, LONG, 0)?)?;
                let mut long = long.commit()?;
                until(&may_send);
                long.start()?.wait()?;
                sent.store(true, Release);
                return Ok(Vec::new());
            }
            long.add_origin(1)?;
            let mut long = long.commit()?;
            let mut flight = long.start()?;
            if is_early {
                until(&sent);
            }
            let mut times = vec![now(comm)];
            assert_eq!(flight.test()?, is_early);
            times.push(now(comm));
            may_send.store(true, Release);
            flight.wait()?;
            times.push(now(comm));
            Ok(times)
        });
        times.into_iter().next().unwrap()
    };
    let early = run(true);
    assert_eq!(early, run(false));
    assert!(early[0] == early[1] && early[1] < early[2], "{early:?}");
}

/// Waits for a word of another rank.
fn until(word: &AtomicBool) {
    let begun = Instant::now();
    while !word.load(Acquire) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the other rank does not come");
        std::thread::yield_now();
    }
}

/// A queue of puts by chance, the same ones on every rank that asks with the same `plan`.
fn any_queue(comm: &Comm, plan: &mut fastrand::Rng, windows: &[RmaWindow; 2], at: usize) -> Result<RmaQueue<Ready>, Error> {
    const PLACE: usize = 700;
    let (me, boards, [outbox, inbox]) = (comm.rank().0, comm.size(), windows);
    let mut queue = comm.queue_alloc(inbox)?;
    for place in 0..plan.usize(..10) {
        let (from, to) = (plan.u32(..boards), plan.u32(..boards));
        let (bytes, rail) = (plan.usize(..PLACE), plan.u16(..4));
        let at = (at * 10 + place) * PLACE;
        if me == from {
            queue.push(&comm.declare_write(inbox, at, outbox, at, bytes, to)?.rail(Rail(rail))?)?;
        }
        if me == to {
            queue.add_origin(from)?;
        }
    }
    if plan.bool() {
        queue.expose_at_start();
    }
    queue.commit()
}

/// Queues come and go, flights are tested and dropped, what has arrived is kept for longer or shorter, and all of it in an order of each
/// rank's own.
#[test]
fn the_times_of_programs_by_chance_are_the_same_on_every_run() {
    const BOARDS: u32 = 4;
    const QUEUES: usize = 4;
    let run = |program: u64, disturbance: u64| {
        let random = Mutex::new(fastrand::Rng::with_seed(disturbance));
        let disturb = || {
            let yields = random.lock().unwrap().u32(0..30);
            (0..yields * yields / 30).for_each(|_| std::thread::yield_now());
        };
        on_boards(BOARDS, &[("RMA_PEACH2_PIPELINE", "on")], |comm| {
            let mut plan = fastrand::Rng::with_seed(program);
            let mut own = fastrand::Rng::with_seed(program ^ u64::from(comm.rank().0 + 1) << 32);
            let windows = [comm.window_alloc(QUEUES * 7000)?, comm.window_alloc(QUEUES * 7000)?];
            let mut queues = (0..QUEUES).map(|at| any_queue(comm, &mut plan, &windows, at)).collect::<Result<Vec<_>, Error>>()?;
            let mut times = Vec::new();
            for _ in 0..12 {
                let dropped = if plan.u8(..4) == 0 { plan.usize(..QUEUES) } else { QUEUES };
                let mut flights = Vec::new();
                for (at, queue) in queues.iter_mut().enumerate() {
                    disturb();
                    flights.push((at, queue.start()?));
                    for _ in 0..own.u8(..4) {
                        disturb();
                        let (_, flight) = &mut flights[own.usize(..=at)];
                        // Only to move it on.
                        flight.test()?;
                    }
                }
                own.shuffle(&mut flights);
                let mut kept = Vec::new();
                for (at, mut flight) in flights {
                    disturb();
                    if at == dropped {
                        let _ = flight.test();
                        continue;
                    }
                    kept.push(flight.wait()?);
                    times.push((kept.last().and_then(|arrived| arrived.virtual_span()), now(comm)));
                    if own.bool() {
                        kept.swap_remove(own.usize(..kept.len()));
                    }
                }
                drop(kept);
                // All have dropped it or waited for the others by now.
                comm.barrier()?;
                let gone = if dropped < QUEUES { Some(dropped) } else { plan.bool().then(|| plan.usize(..QUEUES)) };
                if let Some(at) = gone {
                    drop(queues.remove(at));
                    disturb();
                    queues.insert(at, any_queue(comm, &mut plan, &windows, at)?);
                }
            }
            times.push((None, now(comm)));
            Ok(times)
        })
    };
    for program in 0..6 {
        let first = run(program, 0);
        for disturbance in 1..5 {
            assert_eq!(run(program, disturbance), first, "program {program}, disturbed by {disturbance}");
        }
    }
}
