//! The applications give the same results whatever the grid of ranks, by rules that are spelled out here once more, and refuse what they
//! cannot do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("rma-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.clone()
    }

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }

    /// The shape and the bytes of a NumPy file, read by what its format says and not by what wrote it.
    fn array(&self, name: &str, element: &str) -> (Vec<usize>, Vec<u8>) {
        let file = self.file(name);
        assert_eq!(file[..8], *b"\x93NUMPY\x01\x00", "{name}");
        let (header, elements) = file[10..].split_at(usize::from(u16::from_le_bytes([file[8], file[9]])));
        let header = std::str::from_utf8(header).unwrap();
        assert!(header.contains(&format!("'descr': '{element}'")) && header.contains("'fortran_order': False"), "{name}: {header}");
        let (_, shape) = header.split_once("'shape': (").unwrap();
        let (shape, _) = shape.split_once(')').unwrap();
        let shape = shape.split(',').map(str::trim).filter(|extent| !extent.is_empty()).map(|extent| extent.parse().unwrap());
        (shape.collect(), elements.to_vec())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(program: &str, options: &str, dump: Option<&Path>) -> Output {
    let mut command = Command::new(program);
    command.args(options.split_whitespace()).env("RMA_SETUP_TIMEOUT", "60").env("RMA_TIMEOUT", "60");
    if let Some(dir) = dump {
        command.arg("--dump").arg(dir);
    }
    command.output().unwrap()
}

/// What a program printed.
#[track_caller]
fn succeed(program: &str, options: &str, dump: impl Into<Option<PathBuf>>) -> String {
    let output = run(program, options, dump.into().as_deref());
    assert!(output.status.success(), "{program} {options}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(program: &str, options: &str, words: &str) {
    let output = run(program, options, None);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(words), "{program} {options}: {text}");
}

/// How many ranks a grid has.
fn ranks(grid: &str) -> u32 {
    grid.split(',').map(|extent| extent.parse::<u32>().unwrap()).product()
}

const HEAT: &str = env!("CARGO_BIN_EXE_heat");

#[test]
fn heat_is_the_same_bit_for_bit_on_every_grid() {
    let alone = Scratch::new("heat-alone");
    succeed(HEAT, "--ranks 1 --cells 12,10,7 --steps 30", alone.path());
    for grid in ["2,1,1", "1,2,1", "1,1,2", "3,2,1", "2,2,2", "6,1,1"] {
        let parted = Scratch::new(&format!("heat-{grid}"));
        succeed(HEAT, &format!("--ranks {} --grid {grid} --cells 12,10,7 --steps 30", ranks(grid)), parted.path());
        for name in ["initial.npy", "final.npy"] {
            assert!(parted.file(name) == alone.file(name), "{name} on {grid}");
        }
    }
}

#[test]
fn heat_names_what_it_cannot_do() {
    refused(HEAT, "--cells 4,4", "3 whole numbers with commas");
    refused(HEAT, "--alpha 0.2", "not stable; use 0 to 1/6");
    refused(HEAT, "--ranks 4 --grid 3,1,1", "is for 3 ranks, and there are 4");
    refused(HEAT, "--ranks 4 --cells 1,1,1", "leaves each a cell");
    refused(HEAT, "--backend nothing", "nothing");
    // Before anything is computed: these steps would take hours.
    refused(HEAT, "--steps 1000000000 --dump /dev/null/folder", "for '--dump <DIR>': cannot make the folder");
    refused(HEAT, "--steps 1000000000 --picture /no/such/folder.png", "no name of a file in a folder that is there");
    refused(HEAT, "--steps 1000000000 --picture heat.jpg", "let the name end in .png");
}

#[test]
fn a_grid_says_how_many_ranks_there_are_and_else_the_variable() {
    let few = "--cells 8,8,8 --steps 1";
    assert!(succeed(HEAT, &format!("{few} --grid 2,1,3"), None).contains("a grid of [2, 1, 3] ranks"));
    let ranks = |options: &[&str]| {
        let output = Command::new(HEAT).args(few.split(' ')).args(options).env("RMA_RANKS", "3").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(ranks(&[]).contains("a grid of [3, 1, 1] ranks") && ranks(&["--ranks", "2"]).contains("a grid of [2, 1, 1] ranks"));
}

const LIFE: &str = env!("CARGO_BIN_EXE_life");

#[test]
fn life_is_the_same_on_every_grid() {
    let alone = Scratch::new("life-alone");
    succeed(LIFE, "--ranks 1 --cells 21,17 --steps 40", alone.path());
    for grid in ["2,1", "1,2", "3,2", "2,4", "7,1"] {
        let parted = Scratch::new(&format!("life-{grid}"));
        succeed(LIFE, &format!("--ranks {} --grid {grid} --cells 21,17 --steps 40", ranks(grid)), parted.path());
        for name in ["initial.npy", "final.npy"] {
            assert!(parted.file(name) == alone.file(name), "{name} on {grid}");
        }
    }
}

/// Boards narrower than a neighborhood, too, on which a cell is its own neighbor.
#[test]
fn boards_of_life_evolve_by_its_rules() {
    for (grid, cells, steps) in
        [("2,2", [20, 31], 25), ("1,1", [1, 9], 1), ("1,3", [2, 6], 2), ("2,1", [2, 2], 1), ("3,1", [9, 1], 1)]
    {
        for seed in 0..3 {
            let dump = Scratch::new(&format!("life-rules-{grid}-{}-{seed}", cells[1]));
            let [rows, columns] = cells;
            let board = format!("--cells {rows},{columns} --steps {steps} --seed {seed}");
            succeed(LIFE, &format!("--ranks {} --grid {grid} {board}", ranks(grid)), dump.path());
            let (shape, mut board) = dump.array("initial.npy", "|u1");
            assert_eq!(shape, cells);
            assert!(board.contains(&1) || board.len() < 10);
            for _ in 0..steps {
                let alive = |row: usize, column: usize| usize::from(board[row % rows * columns + column % columns]);
                let fate = |(row, column)| {
                    let block =
                        [rows - 1, rows, rows + 1].map(|r| [columns - 1, columns, columns + 1].map(|c| alive(row + r, column + c)));
                    let neighbors = block.into_iter().flatten().sum::<usize>() - alive(row, column);
                    u8::from(neighbors == 3 || neighbors == 2 && alive(row, column) == 1)
                };
                board = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(fate).collect();
            }
            assert_eq!(dump.array("final.npy", "|u1"), (shape, board), "{cells:?} on {grid}, seed {seed}");
        }
    }
}

#[test]
fn life_names_what_it_cannot_do() {
    refused(LIFE, "--cells 4", "2 whole numbers with commas");
    refused(LIFE, "--ranks 4 --grid 3,1", "is for 3 ranks, and there are 4");
    refused(LIFE, "--ranks 8 --cells 2,2", "no grid of 8 ranks leaves each a cell of [2, 2]");
    refused(LIFE, "--ranks 3 --grid 3,1 --cells 2,9", "2 cells over 3 ranks in dimension 0 leave some without any");
}

#[test]
fn a_picture_of_life_is_a_png() {
    let scratch = Scratch::new("life-picture");
    let options = format!("--ranks 2 --steps 3 --picture {}", scratch.0.join("life.png").display());
    succeed(LIFE, &options, None);
    assert_eq!(scratch.file("life.png")[..8], *b"\x89PNG\r\n\x1a\n");
}

const CG: &str = env!("CARGO_BIN_EXE_cg");

/// Source, solution, and how many iterations it took.
fn conjugate_gradients(name: &str, options: &str) -> (Vec<f64>, Vec<f64>, i64) {
    let dump = Scratch::new(&format!("cg-{name}"));
    let said = succeed(CG, options, dump.path());
    let (before, _) = said.split_once(" iterations").unwrap();
    let numbers = |name| {
        let (_, bytes) = dump.array(name, "<f8");
        bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let iterations = before.rsplit(' ').next().unwrap().parse().unwrap();
    (numbers("source.npy"), numbers("solution.npy"), iterations)
}

fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn cg_has_the_same_solution_on_every_grid() {
    let (b, alone, iterations) = conjugate_gradients("alone", "--ranks 1 --lattice 6,4,6,5");
    for grid in ["--split 1,3", "--split 2,2", "--split 5,1", "--ranks 4 --grid 2,2,1,1", "--ranks 6 --grid 1,3,1,2"] {
        let (source, solution, took) = conjugate_gradients(&grid.replace(' ', ""), &format!("{grid} --lattice 6,4,6,5"));
        assert!(source == b, "{grid}");
        assert!((took - iterations).abs() <= 1, "{took} iterations with {grid}, {iterations} alone");
        let error = norm(solution.iter().zip(&alone).map(|(x, alone)| x - alone)) / norm(alone.iter().copied());
        assert!(error < 1e-9, "{error:e} beside the solution of one rank with {grid}");
    }
}

#[test]
fn what_cg_finds_solves_the_equation() {
    for (lattice, split, mass) in [([8, 8, 8, 8], "2,2", 0.1), ([3, 2, 4, 7], "3,2", 1.0), ([1, 2, 5, 1], "1,5", 0.5)] {
        let text = lattice.map(|extent: usize| extent.to_string()).join(",");
        let (b, x, _) = conjugate_gradients(&text, &format!("--lattice {text} --split {split} --mass {mass} --seed 7"));
        assert_eq!((b.len(), x.len()), (lattice.iter().product(), lattice.iter().product()));
        assert!(b.iter().all(|b| b.abs() <= 1.0) && norm(b.iter().copied()) > 0.1);
        let rest = (0..x.len()).map(|site| {
            // Along each dimension one further and one back, as many sites away as the dimensions behind it have together.
            let neighbors = (0..4).flat_map(|d| {
                let (extent, apart) = (lattice[d], lattice[d + 1..].iter().product::<usize>());
                let at = site / apart % extent;
                [(at + 1) % extent, (at + extent - 1) % extent].map(|other| site - at * apart + other * apart)
            });
            b[site] - ((8.0 + mass * mass) * x[site] - neighbors.map(|neighbor| x[neighbor]).sum::<f64>())
        });
        let residual = norm(rest) / norm(b.iter().copied());
        assert!(residual < 1e-9, "a residual of {residual:e} on {lattice:?}");
    }
}

#[test]
fn a_table_of_splits_has_the_same_emulated_times_on_every_run() {
    let rows = || -> Vec<_> {
        let said = succeed(CG, "--backend peach2 --lattice 4 --splits 1,1;3,1;2,2", None);
        let numbers = |row: &str| row.split_whitespace().map(Into::into).collect::<Vec<String>>();
        said.lines().skip(2).map(numbers).map(|row| (row[0].clone(), row[row.len() - 3].clone())).collect()
    };
    let first = rows();
    assert_eq!(first.iter().map(|(split, _)| &**split).collect::<Vec<_>>(), ["1,1", "3,1", "2,2"]);
    let emulated: Vec<f64> = first.iter().map(|(_, time)| time.parse().unwrap()).collect();
    assert!(emulated[0] == 0.0 && emulated[1] > 1.0 && emulated[2] > 1.0, "{emulated:?}");
    assert_eq!(first, rows());
}

#[test]
fn cg_names_what_it_cannot_do() {
    refused(CG, "--lattice 8,8", "one whole number, or 4 whole numbers with commas");
    refused(CG, "--mass 0", "--mass 0e0 leaves the equation without a solution");
    refused(CG, "--tolerance 1e-20", "--tolerance 1e-20 is out of reach; use 1e-14 to 1");
    refused(CG, "--max-iterations 3 --lattice 4", "after 3 iterations; use more --max-iterations or a larger --tolerance");
    refused(CG, "--split 0,4", "a split of 0,4 is not for 1 to 4096 ranks");
    refused(CG, "--splits 65536,65536", "a split of 65536,65536 is not for 1 to 4096 ranks");
    refused(CG, "--split 2,2 --ranks 3", "cannot be used with");
    refused(CG, "--ranks 4 --grid 3,1,1,1", "is for 3 ranks, and there are 4");
    refused(CG, "--split 5,1 --lattice 4", "4 cells over 5 ranks in dimension 3 leave some without any");
    refused(CG, "--ranks 32 --lattice 2", "no grid of 32 ranks leaves each a cell of [2, 2, 2, 2]");
}

const TWO_QUEUES: &str = env!("CARGO_BIN_EXE_two_queues");

#[test]
fn two_chunks_on_rails_of_their_own_travel_in_the_time_of_one() {
    let said = succeed(TWO_QUEUES, "--backend peach2 --ranks 3 --rounds 20", None);
    let emulated = said.lines().find(|line| line.starts_with("emulated")).unwrap();
    let times: Vec<f64> = emulated.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(times.len() == 2 && times[1] > 0.45 * times[0] && times[1] < 0.6 * times[0], "{emulated}");
}

#[test]
fn chunks_on_two_queues_arrive_whole() {
    for options in ["--ranks 1 --rounds 5", "--ranks 3 --rounds 0", "--ranks 4 --numbers 1", "--ranks 5 --numbers 999"] {
        assert!(succeed(TWO_QUEUES, options, None).contains("each number right"), "{options}");
    }
    refused(TWO_QUEUES, "--ranks 0", "0 is not in 1..=4096");
}
