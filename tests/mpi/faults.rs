//! What goes wrong between a program and its launcher: each ends with words that name the mend, and nothing hangs.

use crate::harness::{Outcome, Report, beside};
use crate::launcher::{Job, Mpi, alone};
use anyhow::{Result, ensure};

const BODY: &str = "every_byte_of_contiguous_puts_arrives";

/// All of them.
pub(crate) fn run(report: &mut Report) {
    report.test("the_launcher_of_another_library_is_refused", || {
        let job = Job { mpi: Mpi::own().other(), ..Job::new(2, &["rma-conformance", BODY]) };
        let outcome = job.start()?.finish()?;
        let own = rma_mpi::built_with();
        let name = own.rsplit_once(' ').map_or(own.as_str(), |(name, _)| name);
        fails_with(&outcome, &["started 2 ranks, but", name, "sees 1", "start it with the launcher of that library"])
    });
    for (case, backend) in ["aborts", "is-killed"].into_iter().flat_map(|case| [(case, "shm"), (case, rma_mpi::NAME)]) {
        report.test(&format!("{backend}::a_rank_that_{}_ends_the_job", case.replace('-', "_")), || {
            let outcome = Job::new(2, &["rma-mpi-tests", "rank", case]).env("RMA_BACKEND", backend).start()?.finish()?;
            // Its words are the launcher's, who knows which rank it was.
            fails_with(&outcome, &[])?;
            let text = outcome.text();
            ensure!(!text.contains(crate::ranks::WENT_ON) && !text.contains(crate::ranks::DONE_WITHOUT_PUT), "{text}");
            Ok(())
        });
    }
    report.test("an_address_that_is_none_ends_the_job_with_its_name", || {
        let job = Job::new(2, &["rma-conformance", BODY]).env("RMA_BIND", "nowhere");
        fails_with(&job.start()?.finish()?, &["RMA_BIND=\"nowhere\"", "expected an IP address"])
    });
    report.test("thread_ranks_over_mpi_are_refused_with_the_way_to_start", || {
        let outcome = alone("rma-conformance", &["--threads", "2", BODY], &[("RMA_BACKEND", rma_mpi::NAME)])?.finish()?;
        fails_with(&outcome, &["threads of one process", "mpirun -n 2"])
    });
    report.test("ranks_of_rma_run_over_mpi_are_refused_with_the_way_to_start", || {
        let program = beside("rma-conformance")?.display().to_string();
        let outcome = alone("rma", &["run", "-n", "2", "--", &program, BODY], &[("RMA_BACKEND", rma_mpi::NAME)])?.finish()?;
        fails_with(&outcome, &["another launcher started the ranks", "mpirun -n 2"])
    });
    report.test("one_rank_alone_needs_no_launcher", || {
        alone("rma-conformance", &[BODY], &[("RMA_BACKEND", rma_mpi::NAME)])?.finish()?.succeeded()
    });
    if Mpi::own() == Mpi::OpenMpi {
        report.test("more_ranks_than_slots_are_refused_by_the_launcher", || {
            let mut command = Mpi::own().command_with(2, &["--host", "localhost:1"])?;
            command.arg(beside("rma-conformance")?).arg(BODY);
            let outcome = crate::harness::start(command, std::time::Duration::from_secs(60))?.finish()?;
            fails_with(&outcome, &["slots"])
        });
    }
    for backend in [rma_mpi::NAME, rma_mpi::TWO_SIDED] {
        report.test(&format!("{backend}::the_benches_check_what_they_receive"), || {
            let sizes = ["--bytes", "8,5000,70K"];
            for (bench, sizes) in [("put", sizes), ("halo", sizes), ("neighbor", sizes), ("array", ["--cells", "3,20"])] {
                let few = [&sizes[..], &["--repeats", "1", "--batch-ms", "1"]].concat();
                let words: Vec<_> = ["rma", "bench", bench, "--backend", backend].into_iter().chain(few).collect();
                Job::new(2, &words).succeeds()?;
            }
            Ok(())
        });
    }
    report.test("rma_info_names_the_library", || {
        let outcome = Job::new(1, &["rma", "info"]).start()?.finish()?;
        outcome.succeeded()?;
        ensure!(outcome.text().contains(&rma_mpi::built_with()), "{} is missing in:\n{}", rma_mpi::built_with(), outcome.text());
        Ok(())
    });
}

fn fails_with(outcome: &Outcome, words: &[&str]) -> Result<()> {
    ensure!(!outcome.status.success(), "it succeeded:\n{}", outcome.text());
    let text = outcome.text();
    for word in words {
        ensure!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
    Ok(())
}
