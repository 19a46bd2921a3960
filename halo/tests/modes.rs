//! Every mode of an exchange, on ranks as threads: proved point by point.

use fastrand::Rng;
use rma::{Comm, Config, Error, Rank};
use rma_halo::{Block, Decomposition, Field, Halo, Layout, Mode, Packing};
use std::time::{Duration, Instant};

/// After this long a test has failed, whatever it waits for.
const DEADLINE: Duration = Duration::from_secs(20);

/// What these ranks, as threads, return: none of them waits for ever.
fn ranks<T: Send>(size: u32, body: impl Fn(Comm) -> T + Sync) -> Vec<T> {
    let mut config = Config::options_from_env().unwrap();
    (config.setup_timeout, config.wait_timeout) = (DEADLINE, Some(DEADLINE));
    Comm::threads_with(size, config, body).unwrap()
}

#[test]
fn every_mode_fills_every_ghost_of_fields_by_chance() {
    for seed in 0..60 {
        let mut random = Rng::with_seed(seed);
        let grid: [u32; 3] = [[1, 1, 1], [2, 1, 1], [1, 2, 2], [3, 1, 1], [1, 1, 4], [2, 1, 2]][random.usize(..6)];
        let cells: [usize; 3] = std::array::from_fn(|d| 2 * grid[d] as usize + random.usize(..5));
        let periodic: [bool; 3] = std::array::from_fn(|_| random.bool());
        let mut layout = || Layout::<3>::ghosts(0).widths(std::array::from_fn(|_| (random.usize(..3), random.usize(..3))));
        let layouts = [layout(), layout().on_faces([true, false, true]), layout()];
        let (mode, packing) = (
            [Mode::Faces, Mode::Corners, Mode::ByDimension][random.usize(..3)],
            [Packing::Auto, Packing::Always, Packing::Never][random.usize(..3)],
        );
        let at_start = random.bool();
        let results = ranks(grid.iter().product(), |comm| {
            let decomposition = Decomposition::with_grid(cells, grid)?.periodic(periodic);
            let real = Field::<f64, 3>::new(&comm, &decomposition, layouts[0])?;
            let small = Field::<u8, 3>::new(&comm, &decomposition, layouts[1])?;
            let pair = Field::<[f32; 3], 3>::new(&comm, &decomposition, layouts[2])?;
            real.fill_with(|[x, y, z]| (10_000 * x + 100 * y + z) as f64)?;
            let mut halo = Halo::of(&comm).field(&real).field(&small).field(&pair).mode(mode).packing(packing);
            if at_start {
                halo = halo.expose_at_start();
            }
            let mut halo = halo.commit()?;
            for _ in 0..2 {
                halo.verify(&comm)?;
            }
            let start = real.block().start;
            let owned = real.owned()?;
            for ((x, y, z), &value) in owned.view().indexed_iter() {
                assert_eq!(value, (10_000 * (start[0] + x) + 100 * (start[1] + y) + start[2] + z) as f64);
            }
            Ok::<(), rma::Error>(())
        });
        for (rank, result) in results.into_iter().enumerate() {
            result.unwrap_or_else(|error| {
                panic!("seed {seed}, {grid:?} {cells:?} {periodic:?} {mode:?} {packing:?} {layouts:?}, rank {rank}: {error}")
            });
        }
    }
}

#[test]
fn ghosts_in_flight_are_refused_and_owned_points_are_not() {
    for grid in [[2, 1], [1, 2], [1, 1]] {
        for mode in [Mode::Faces, Mode::Corners, Mode::ByDimension] {
            ranks(grid.iter().product(), |comm| {
                let decomposition = Decomposition::with_grid([6, 8], grid).unwrap().periodic([true; 2]);
                let field = Field::<u32, 2>::new(&comm, &decomposition, Layout::ghosts(1)).unwrap();
                let mut halo = Halo::of(&comm).field(&field).mode(mode).commit().unwrap();
                for step in 0..3 {
                    field.fill_with(|[x, y]| (100 * step + 10 * x + y) as u32).unwrap();
                    let flight = halo.start().unwrap();
                    assert!(field.padded().is_err() && field.padded_mut().is_err(), "{grid:?} {mode:?}");
                    assert!(field.owned().is_ok(), "{grid:?} {mode:?}");
                    let interior = field.interior_mut().unwrap().view().iter().filter(|&&value| value >= 100 * step as u32).count();
                    assert_eq!(interior, field.interior().points());
                    let arrived = flight.wait().unwrap();
                    let padded = arrived.padded(&field).unwrap();
                    let [x, y] = field.block().start;
                    let above = (100 * step + 10 * ((x + 5) % 6) + y) as u32;
                    assert_eq!(padded.view()[[0, 1]], above);
                }
            });
        }
    }
}

#[test]
fn a_halo_wider_than_a_block_a_grid_of_other_ranks_and_different_wishes_are_named_on_every_rank() {
    let refused = |wish: fn(&Comm) -> rma::Result<()>| -> Vec<String> { ranks(4, |comm| wish(&comm).unwrap_err().to_string()) };
    let wide = refused(|comm| {
        let decomposition = Decomposition::with_grid([9, 3], [4, 1])?;
        Field::<f64, 2>::new(comm, &decomposition, Layout::ghosts(3)).map(drop)
    });
    assert!(
        wide.iter().all(|text| text.contains("3 ghosts in dimension 0 are wider than the block of rank 0, which has 2")),
        "{wide:?}"
    );
    let grid = refused(|comm| {
        let decomposition = Decomposition::with_grid([9, 3], [3, 1])?;
        Field::<f64, 2>::new(comm, &decomposition, Layout::ghosts(1)).map(drop)
    });
    assert!(grid.iter().all(|text| text.contains("grid of [3, 1] is for 3 ranks, and there are 4")), "{grid:?}");
    let shapes = refused(|comm| {
        let cells = if comm.rank() == Rank(2) { [9, 4] } else { [9, 3] };
        Field::<f64, 2>::new(comm, &Decomposition::with_grid(cells, [4, 1])?, Layout::ghosts(1)).map(drop)
    });
    assert!(shapes.iter().all(|text| text.contains("[9, 3] cells") && text.contains("[9, 4] cells")), "{shapes:?}");
    let modes = refused(|comm| {
        let field = Field::<f64, 2>::new(comm, &Decomposition::with_grid([9, 3], [4, 1])?, Layout::ghosts(1))?;
        let mode = if comm.rank() == Rank(1) { Mode::Corners } else { Mode::Faces };
        Halo::of(comm).field(&field).mode(mode).commit().map(drop)
    });
    assert!(modes.iter().all(|text| text.contains("mode Corners") && text.contains("mode Faces")), "{modes:?}");
    let order = refused(|comm| {
        let decomposition = Decomposition::with_grid([9, 3], [4, 1])?;
        let [u, v] = [(); 2].map(|()| Field::<f64, 2>::new(comm, &decomposition, Layout::ghosts(1)));
        let (u, v) = (u?, v?);
        let [one, other] = if comm.rank() == Rank(1) { [&v, &u] } else { [&u, &v] };
        Halo::of(comm).field(one).field(other).commit().map(drop)
    });
    assert!(order.iter().all(|text| text.contains("field 0 in window 0") && text.contains("field 0 in window 1")), "{order:?}");
    let none = refused(|comm| Halo::<2>::of(comm).commit().map(drop));
    assert!(none.iter().all(|text| text.contains("no field")), "{none:?}");
    let two = refused(|comm| {
        let [one, other] =
            [[4, 1], [1, 4]].map(|grid| Field::<f64, 2>::new(comm, &Decomposition::with_grid([9, 8], grid)?, Layout::ghosts(1)));
        Halo::of(comm).field(&one?).field(&other?).commit().map(drop)
    });
    assert!(two.iter().all(|text| text.contains("fields 0 and 1 are spread over the ranks in different ways")), "{two:?}");
}

#[test]
fn gathered_fields_have_every_point_at_its_place() {
    for (grid, periodic) in [([2, 1, 2], [false; 3]), ([1, 3, 1], [true, false, true])] {
        let gathered = ranks(grid.iter().product(), |comm| {
            let decomposition = Decomposition::with_grid([5, 7, 6], grid).unwrap().periodic(periodic);
            let field = Field::<u64, 3>::new(&comm, &decomposition, Layout::ghosts(1).on_faces([true, false, false])).unwrap();
            let mut halo = Halo::of(&comm).field(&field).commit().unwrap();
            field.fill_with(|[x, y, z]| (100 * x + 10 * y + z) as u64).unwrap();
            drop(halo.start().unwrap().wait().unwrap());
            field.gather(&comm, comm.size() - 1).unwrap()
        });
        for (rank, all) in gathered.into_iter().enumerate() {
            let is_root = rank as u32 + 1 == grid.iter().product::<u32>();
            assert_eq!(all.is_some(), is_root);
            let Some(all) = all else { continue };
            assert_eq!(all.shape(), [if periodic[0] { 5 } else { 6 }, 7, 6]);
            assert!(all.indexed_iter().all(|((x, y, z), &value)| value == (100 * x + 10 * y + z) as u64));
        }
    }
}

#[test]
fn different_roots_and_fields_of_a_gather_are_named_on_every_rank() {
    for size in 2..=5 {
        let errors = ranks(size, |comm| {
            let (me, last) = (comm.rank().0, size - 1);
            let decomposition = Decomposition::new([12, 7], size).unwrap();
            let field = || Field::<u32, 2>::new(&comm, &decomposition, Layout::ghosts(1)).unwrap();
            let [field, other] = [field(), field()];
            field.fill_with(|[x, y]| (10 * x + y) as u32).unwrap();
            let errors = [
                field.gather(&comm, u32::from(me == last)).unwrap_err(),
                // Each names a neighbor, so that none is root by its own word.
                field.gather(&comm, (me + 1) % size).unwrap_err(),
                field.gather(&comm, if me == 1 { size } else { 1 }).unwrap_err(),
                if me == last { &other } else { &field }.gather(&comm, 0).unwrap_err(),
            ];
            // Nothing of it is left behind.
            let all = field.gather(&comm, last).unwrap();
            assert_eq!(all.is_some(), me == last);
            assert!(all.iter().flat_map(|all| all.indexed_iter()).all(|((x, y), &value)| value == (10 * x + y) as u32));
            errors
        });
        for (me, [one, ring, none, fields]) in (0..).map(Rank).zip(errors) {
            assert!(matches!(one, Error::CollectiveMismatch { .. }), "{one:?}");
            let has = |error: &Error, parts: [&str; 2]| parts.iter().all(|part| error.to_string().contains(part));
            assert!(has(&one, ["gather with rank 0 as root", "gather with rank 1 as root"]), "{one}");
            let next = format!("{me} is in gather with {} as root", Rank((me.0 + 1) % size));
            assert!(matches!(ring, Error::CollectiveMismatch { .. }) && has(&ring, [&next, "as root while"]), "{ring}");
            assert_eq!(matches!(none, Error::NoSuchRank { .. }), me == Rank(1), "{none:?}");
            assert!(has(&none, ["root of gather", &format!("rank {size}")]), "{none}");
            assert!(has(&fields, ["gather with the field in window 0", "gather with the field in window 1"]), "{fields}");
        }
    }
}

#[test]
fn a_gather_that_one_rank_cannot_do_is_an_error_on_every_rank_and_harms_nothing() {
    let texts = ranks(3, |comm| {
        let field = Field::<u32, 1>::new(&comm, &Decomposition::new([10], 3).unwrap(), Layout::ghosts(1)).unwrap();
        field.fill_with(|[x]| x as u32).unwrap();
        let held = (comm.rank() == Rank(1)).then(|| field.owned_mut().unwrap());
        let text = field.gather(&comm, 0).unwrap_err().to_string();
        drop(held);
        let all = field.gather(&comm, 0).unwrap();
        assert!(all.is_none_or(|all| all.iter().copied().eq(0..10)));
        text
    });
    for text in texts {
        assert!(text.contains("a write lease"), "{text}");
    }
}

#[test]
fn a_start_while_points_to_be_copied_are_written_is_refused_and_harms_nothing() {
    for (size, packing) in [(1, Packing::Auto), (2, Packing::Always)] {
        ranks(size, |comm| {
            let decomposition = Decomposition::new([6, 8], comm.size()).unwrap().periodic([true; 2]);
            let field = Field::<u32, 2>::new(&comm, &decomposition, Layout::ghosts(1)).unwrap();
            let mut halo = Halo::of(&comm).field(&field).packing(packing).commit().unwrap();
            for _ in 0..2 {
                let held = field.owned_mut().unwrap();
                assert!(halo.start().unwrap_err().to_string().contains("a write lease"));
                drop(held);
                halo.verify(&comm).unwrap();
            }
        });
    }
}

#[test]
fn an_error_of_a_phase_is_not_forgotten_in_the_next() {
    ranks(2, |comm| {
        let decomposition = Decomposition::with_grid([6, 8], [1, 2]).unwrap().periodic([true; 2]);
        let field = Field::<u32, 2>::new(&comm, &decomposition, Layout::ghosts(1)).unwrap();
        let mut halo = Halo::of(&comm).field(&field).mode(Mode::ByDimension).commit().unwrap();
        // Of the first owned row, which only the second phase copies, points that the first does not send.
        let inner = field.area(Block { start: [1, 2], len: [1, 2] }).unwrap();
        let mut flight = halo.start().unwrap();
        let held = inner.write().unwrap();
        let begin = Instant::now();
        let error = loop {
            assert!(begin.elapsed() < DEADLINE, "neither complete nor refused");
            match flight.test() {
                Ok(true) => panic!("complete although points to be copied are being written"),
                Ok(false) => {}
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("a write lease"), "{error}");
        drop(held);
        assert!(flight.wait().unwrap_err().to_string().contains("a write lease"));
        // Neighbors may still be in the second phase, where no epoch after this one would find them.
        assert!(halo.start().unwrap_err().to_string().contains("a write lease"));
    });
}

#[test]
fn a_proof_that_one_rank_cannot_do_is_an_error_on_every_rank_and_harms_nothing() {
    for (at_start, mode) in [(false, Mode::Faces), (true, Mode::Faces), (false, Mode::ByDimension)] {
        let texts = Comm::threads(3, |comm| {
            let decomposition = Decomposition::with_grid([6, 9], [1, 3]).unwrap();
            let [u, v] = [(); 2].map(|()| Field::<u32, 2>::new(&comm, &decomposition, Layout::ghosts(1)).unwrap());
            [&u, &v].into_iter().for_each(|field| field.fill_with(|[x, y]| (10 * x + y) as u32).unwrap());
            let edge = v.area(Block { start: [0, 1], len: [1, 3] }).unwrap();
            let halo = Halo::of(&comm).field(&u).field(&v).mode(mode);
            let mut halo = if at_start { halo.expose_at_start() } else { halo }.commit().unwrap();
            let is_odd_one = comm.rank() == Rank(1);
            let mut refused = || halo.verify(&comm).unwrap_err().to_string();
            let mut texts = Vec::new();
            let held = is_odd_one.then(|| v.owned().unwrap());
            texts.push(refused());
            drop(held);
            let held = is_odd_one.then(|| v.owned_mut().unwrap());
            texts.push(refused());
            drop(held);
            // Behind an open edge: in nobody's way until it is to be marked.
            let held = is_odd_one.then(|| edge.read().unwrap());
            texts.push(refused());
            drop(held);
            halo.verify(&comm).unwrap();
            for field in [&u, &v] {
                let start = field.block().start[1];
                assert!(field.owned().unwrap().view().indexed_iter().all(|((x, y), &value)| value == (10 * x + start + y) as u32));
            }
            texts
        });
        for texts in texts.unwrap() {
            assert!(texts.iter().all(|text| text.contains("lease on an area")), "{at_start} {mode:?} {texts:?}");
        }
    }
}

#[test]
fn a_flight_left_between_phases_makes_the_exchange_unusable_at_once() {
    ranks(2, |comm| {
        let decomposition = Decomposition::with_grid([6, 8], [1, 2]).unwrap();
        let field = Field::<u32, 2>::new(&comm, &decomposition, Layout::ghosts(1)).unwrap();
        let mut halo = Halo::of(&comm).field(&field).mode(Mode::ByDimension).commit().unwrap();
        let mut flight = halo.start().unwrap();
        let begin = Instant::now();
        while !flight.test().unwrap() {
            assert!(begin.elapsed() < DEADLINE, "never complete");
        }
        // Also of what is forgotten, nobody says that it is over.
        std::mem::forget(flight);
        assert!(halo.start().unwrap_err().to_string().contains("left before it was complete"));
    });
}

#[test]
fn fields_of_another_comm_are_refused_on_every_rank() {
    ranks(2, |comm| {
        let others = Comm::alone(Config::default()).unwrap();
        let field = Field::<u32, 1>::new(&others, &Decomposition::new([6], 1).unwrap(), Layout::ghosts(1)).unwrap();
        let refused = Halo::of(&comm).field(&field).commit().unwrap_err().to_string();
        assert!(refused.contains("another Comm"), "{refused}");
    });
}

#[test]
fn a_field_that_is_added_twice_is_refused() {
    ranks(1, |comm| {
        let decomposition = Decomposition::new([6, 8], 1).unwrap();
        let field = Field::<u32, 2>::new(&comm, &decomposition, Layout::ghosts(1)).unwrap();
        let refused = Halo::of(&comm).field(&field).field(&field).commit().unwrap_err();
        assert!(refused.to_string().contains("field 1 is there already"));
    });
}

#[test]
fn what_is_around_the_interior_is_owned_and_no_more() {
    for ghosts in [(1, 1), (2, 1), (0, 3), (2, 0)] {
        ranks(2, |comm| {
            let decomposition = Decomposition::with_grid([12, 9], [2, 1]).unwrap().periodic([true; 2]);
            let layout = Layout::ghosts(0).widths([ghosts, (ghosts.1, ghosts.0)]);
            let field = Field::<u32, 2>::new(&comm, &decomposition, layout).unwrap();
            let owned = Block { start: [ghosts.0, ghosts.1], len: field.block().len };
            assert_eq!(field.around(&field.interior()), owned, "{ghosts:?}");
            assert_eq!(field.interior_mut().unwrap().view().shape(), field.interior().len);
            let rim: usize = field.rim().iter().map(Block::points).sum();
            assert_eq!(rim + field.interior().points(), field.block().points());
        });
    }
}
