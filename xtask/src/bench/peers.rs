//! Builds the programs that `rma` is timed against, from xtask/peers into target/peers. What cannot be built is left out,
//! with the reason.

use crate::process::{Output, Spec, find_program};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(120);

/// The MPI headers use null pointers of a special kind, which the last two warnings take for buffers.
const FLAGS: [&str; 7] =
    ["-std=gnu11", "-O3", "-march=native", "-Wall", "-Wextra", "-Wno-stringop-overflow", "-Wno-stringop-overread"];

/// Where the programs are; an error says why one is not there.
pub(super) struct Peers {
    pub(super) put_floor: Result<PathBuf>,
    pub(super) put_shmem: Result<PathBuf>,
    pub(super) put_pscw: Result<PathBuf>,
    pub(super) halo_openmpi: Result<PathBuf>,
    pub(super) halo_mpich: Result<PathBuf>,
    pub(super) array_openmpi: Result<PathBuf>,
    pub(super) array_mpich: Result<PathBuf>,
}

impl Peers {
    pub(super) fn build(root: &Path, target: &Path) -> Result<Self> {
        let builder = Builder { sources: root.join("xtask/peers"), programs: target.join("peers") };
        std::fs::create_dir_all(&builder.programs).with_context(|| format!("cannot create {}", builder.programs.display()))?;
        let openmpi = r#"-DBACKEND="openmpi""#;
        let mpich = r#"-DBACKEND="mpich""#;
        Ok(Self {
            put_floor: builder.build("put_floor", "put_floor.c", &["gcc"], &[]),
            put_shmem: builder.put_shmem(),
            put_pscw: builder.build("put_pscw.openmpi", "put_pscw.c", &["mpicc.openmpi"], &[openmpi]),
            halo_openmpi: builder.build("halo.openmpi", "halo.c", &["mpicc.openmpi"], &[openmpi]),
            halo_mpich: builder.build("halo.mpich", "halo.c", &["mpicc.mpich"], &[mpich]),
            array_openmpi: builder.build("array.openmpi", "array.c", &["mpicc.openmpi"], &[openmpi]),
            array_mpich: builder.build("array.mpich", "array.c", &["mpicc.mpich"], &[mpich]),
        })
    }
}

struct Builder {
    sources: PathBuf,
    programs: PathBuf,
}

impl Builder {
    /// With the put-with-signal of OpenSHMEM 1.5 where the library has it.
    fn put_shmem(&self) -> Result<PathBuf> {
        let compilers = ["oshcc", "oshcc.openmpi"];
        let signal =
            self.build("put_shmem", "put_shmem.c", &compilers, &["-DHAVE_PUT_SIGNAL", "-Werror=implicit-function-declaration"]);
        signal.or_else(|_| self.build("put_shmem", "put_shmem.c", &compilers, &[]))
    }

    /// Always anew: it takes a second, and nothing stale is timed.
    fn build(&self, program: &str, source: &str, compilers: &[&str], extra: &[&str]) -> Result<PathBuf> {
        let Some(compiler) = compilers.iter().find(|name| find_program(name).is_some()) else {
            bail!("{} is not installed; `cargo xtask setup` installs it", compilers[0]);
        };
        let path = self.programs.join(program);
        let spec = Spec::new(*compiler).args(FLAGS).args(extra.iter().copied()).args([
            self.sources.join(source).display().to_string(),
            "-o".into(),
            path.display().to_string(),
            "-lm".into(),
        ]);
        let built = spec.run(BUILD_LIMIT, Output::Kept)?;
        ensure!(built.succeeded(), "{compiler} {source}: {}\n{}", built.failure(), built.last_words(10));
        Ok(path)
    }
}
