//! The applications give the same results, bit for bit, whatever the grid of ranks, and refuse what they cannot do.

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

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
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

#[track_caller]
fn succeed(program: &str, options: &str, dump: &Path) {
    let output = run(program, options, Some(dump));
    assert!(output.status.success(), "{program} {options}: {}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn refused(program: &str, options: &str, words: &str) {
    let output = run(program, options, None);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(words), "{program} {options}: {text}");
}

const HEAT: &str = env!("CARGO_BIN_EXE_heat");

#[test]
fn heat_is_the_same_bit_for_bit_on_every_grid() {
    let alone = Scratch::new("heat-alone");
    succeed(HEAT, "--ranks 1 --cells 12,10,7 --steps 30", &alone.0);
    for grid in ["2,1,1", "1,2,1", "1,1,2", "3,2,1", "2,2,2", "6,1,1"] {
        let parted = Scratch::new(&format!("heat-{grid}"));
        let ranks: u32 = grid.split(',').map(|extent| extent.parse::<u32>().unwrap()).product();
        succeed(HEAT, &format!("--ranks {ranks} --grid {grid} --cells 12,10,7 --steps 30"), &parted.0);
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
}
