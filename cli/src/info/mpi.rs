//! The MPI library: the one that this command was built with, the one that it runs with, and what is wrong if they differ.
//! Asks the library for its name only, which needs no launcher.

use super::Text;
use super::problems::Problem;

pub(super) fn state() -> String {
    "usable: ranks are started with mpirun or srun".into()
}

pub(super) fn render(text: &mut Text) {
    text.section("mpi");
    text.line("built with", rma_mpi::built_with());
    text.line("runs with", rma_mpi::library());
}

pub(super) fn problems() -> Vec<Problem> {
    differ(&rma_mpi::built_with(), &rma_mpi::library()).into_iter().collect()
}

/// Whether the library found at run time is another one than that of the build.
fn differ(built: &str, found: &str) -> Option<Problem> {
    let same = match (version(built), version(found)) {
        (Some(built_version), Some(found_version)) => name(found).starts_with(&name(built)) && built_version == found_version,
        // A library that does not say which it is.
        _ => true,
    };
    (!same).then(|| Problem {
        what: format!("this command was built with {built} and runs with {found}: numbers and names may mean something else there"),
        mend: "build it again with the MPI of this machine: MPICC=mpicc cargo build --release -p rma-cli --features mpi".into(),
    })
}

/// The letters before the version, small. At run time libraries add "v" or "Version:".
fn name(library: &str) -> String {
    let letters = library.chars().take_while(|c| !c.is_ascii_digit()).filter(char::is_ascii_alphabetic);
    letters.collect::<String>().to_lowercase()
}

/// The first number with dots in it.
fn version(library: &str) -> Option<&str> {
    library
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_library_is_known_in_its_own_words() {
        for (built, found) in
            [("Open MPI 4.1.4", "Open MPI v4.1.4"), ("MPICH 4.0.2", "MPICH Version: 4.0.2"), ("an unknown MPI", "Some MPI 3.1")]
        {
            assert_eq!(differ(built, found).map(|problem| problem.what), None, "{built}, {found}");
        }
    }

    #[test]
    fn another_library_or_version_is_named() {
        for (built, found) in
            [("Open MPI 4.1.4", "Open MPI v5.0.1"), ("MPICH 4.0.2", "Open MPI v4.0.2"), ("MPICH 4.0.2", "MPICH Version: 4.1")]
        {
            let problem = differ(built, found).unwrap();
            assert!(problem.what.contains(built) && problem.what.contains(found), "{}", problem.what);
        }
    }

    #[test]
    fn this_build_runs_with_its_own_library() {
        assert!(problems().is_empty(), "{} {}", rma_mpi::built_with(), rma_mpi::library());
    }
}
