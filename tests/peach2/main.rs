//! `rma-peach2-tests`: what the library promises, on emulated PEACH2 boards: as threads and as processes, on 2 to 16 of them; and
//! what becomes of the others when a rank is killed. Owns the command line and how a job is started.
#![forbid(unsafe_code)]

#[path = "../harness/mod.rs"]
mod harness;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use harness::{Outcome, Report, Running, beside, bodies, start};
use rma_tests::{Body, faults};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Runs the promises of the library on emulated boards.
#[derive(Debug, Parser)]
struct Cli {
    /// How many boards, as in 2,16
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
    boards: Vec<u32>,
    /// Programs beside this one that must run on four boards, too
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Only the tests whose name has these words in it
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
}

/// After this long without the word that is waited for, a job has failed and is ended.
const DEADLINE: Duration = Duration::from_secs(100);
/// The deadline of waits and of collective calls, so that what hangs says itself what it waits for.
const PATIENCE_SECONDS: &str = "30";

/// What the ranks of a job are.
#[derive(Clone, Copy, Debug)]
enum Ranks {
    Threads(u32),
    Processes(u32),
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let mut report = Report::of(cli.only);
    for &boards in &cli.boards {
        for (name, ranks) in [("threads", Ranks::Threads(boards)), ("processes", Ranks::Processes(boards))] {
            let group = format!("{name}::{boards}_boards");
            bodies::run_all(&mut report, &group, boards, |bodies| job(ranks, bodies, &[]));
            if boards == 4 {
                bodies::run_with_delays(&mut report, &group, |bodies| job(ranks, bodies, &[bodies::DELAYS]));
            }
        }
        for body in faults::FAULTS {
            let name = format!("killed::{boards}_boards::{}", body.name);
            report.test(&name, || survivors_name_the_dead(boards, body));
        }
    }
    report.test("processes::3_boards::a_rank_without_memory_for_its_board_says_so_on_every_rank", all_hear_of_no_memory);
    // The slowest memory for descriptors, two short rings in place of a long one, puts that overtake their predecessors' arrivals.
    let options = [("RMA_PEACH2_PLACEMENT", "host"), ("RMA_PEACH2_RING", "8"), ("RMA_PEACH2_PIPELINE", "on")];
    bodies::run_all(&mut report, "other_options::10_boards", 10, |bodies| job(Ranks::Threads(10), bodies, &options));
    for program in &cli.programs {
        let run = |command: Command| start(command, DEADLINE)?.finish()?.succeeded();
        report.test(&format!("threads::the_program_{program}_runs_unchanged"), || run(on_boards(Command::new(beside(program)?))));
        report.test(&format!("processes::the_program_{program}_runs_unchanged"), || {
            let mut command = Command::new(beside("rma")?);
            command.args(["run", "-n", "4", "--"]).arg(beside(program)?);
            run(on_boards(command))
        });
    }
    Ok(report.close())
}

/// The flags of a board are more than rank 1 may have.
fn all_hear_of_no_memory() -> Result<()> {
    let mut command = Command::new(beside("rma")?);
    command.args(["run", "-n", "3", "--grace", "15", "--", "sh", "-c", "[ $RMA_RANK = 1 ] && ulimit -f 1; exec $0 $@"]);
    command.arg(beside("rma-conformance")?).arg(rma_tests::BODIES[0].name);
    let outcome = start(on_boards(command), DEADLINE)?.finish()?;
    let told = outcome.lines.iter().filter(|line| line.contains("Error:") && line.contains("raise it with `ulimit -f")).count();
    ensure!(told == 3, "{told} of 3 were told why:\n{}", outcome.text());
    Ok(())
}

/// Bodies, with these variables set.
fn job(ranks: Ranks, bodies: &[&Body], env: &[(&str, &str)]) -> Result<Running> {
    let program = beside("rma-conformance")?;
    let mut command = match ranks {
        Ranks::Threads(count) => {
            let mut command = Command::new(program);
            command.args(["--threads", &count.to_string()]);
            command
        }
        Ranks::Processes(count) => {
            let mut command = Command::new(beside("rma")?);
            command.args(["run", "-n", &count.to_string(), "--grace", "15", "--"]).arg(program);
            command
        }
    };
    command.args(bodies.iter().map(|body| body.name)).envs(env.iter().copied());
    // What a life leaves behind shows after fewer than a thousand, and on few boards as well as on many.
    let (Ranks::Threads(boards) | Ranks::Processes(boards)) = ranks;
    command.env("RMA_TEST_LIVES", if boards <= 4 { "50" } else { "15" });
    start(on_boards(command), DEADLINE)
}

fn on_boards(mut command: Command) -> Command {
    command.env("RMA_BACKEND", "peach2").env("RUST_BACKTRACE", "0");
    command.env("RMA_TIMEOUT", PATIENCE_SECONDS).env("RMA_SETUP_TIMEOUT", PATIENCE_SECONDS);
    command
}

/// The survivors check what they are told, and how soon; here, that every one of them got to its end.
fn survivors_name_the_dead(boards: u32, body: &Body) -> Result<()> {
    let outcome: Outcome = job(Ranks::Processes(boards), &[body], &[])?.finish()?;
    let survivors = outcome.lines.iter().filter(|line| line.ends_with("survived")).count();
    ensure!(outcome.status.code() == Some(128 + 9), "{}, not the status of a killed rank:\n{}", outcome.status, outcome.text());
    ensure!(survivors + 1 == boards as usize, "{survivors} of {boards} got to their end:\n{}", outcome.text());
    let failed = outcome.lines.iter().find(|line| line.contains("Error:"));
    failed.map_or(Ok(()), |line| Err(anyhow::anyhow!("{line}"))).context("a survivor failed")
}
