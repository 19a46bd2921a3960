//! Who is timed, and how each is started: `rma`, its peers, and the floor. All of one group do the same exchange at the
//! same sizes on the same cores.

use super::csv::{self, Row};
use super::peers::Peers;
use super::torus;
use super::ucx::Perftest;
use crate::mpi::Library;
use crate::process::{Output, Spec, find_program};
use anyhow::{Result, anyhow, bail, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The backend's name of every row of ours, and of every floor.
pub(super) const OURS: &str = "rma";
pub(super) const FLOOR: &str = "floor";

const PUT_SIZES: [u64; 5] = [8, 1024, 4096, 65_536, 1_048_576];
const HALO_SIZES: [u64; 6] = [1024, 4096, 16_384, 65_536, 262_144, 1_048_576];

/// One exchange on one number of ranks.
pub(super) struct Group {
    /// What `--only` selects.
    pub(super) name: &'static str,
    pub(super) bench: &'static str,
    pub(super) ranks: u32,
    pub(super) sizes: &'static [u64],
    /// The MPI that moves the data, also ours: Debian's name of it.
    pub(super) mpi: Option<&'static str>,
}

/// Faces of 32^3 to 128^3 cells of eight bytes.
const FACE_SIZES: [u64; 5] = [8 * 32 * 32, 8 * 48 * 48, 8 * 64 * 64, 8 * 96 * 96, 8 * 128 * 128];

pub(super) const GROUPS: [Group; 7] = [
    Group { name: "put", bench: "put", ranks: 2, sizes: &PUT_SIZES, mpi: None },
    Group { name: "halo-2", bench: "halo", ranks: 2, sizes: &HALO_SIZES, mpi: None },
    Group { name: "halo-8", bench: "halo", ranks: 8, sizes: &HALO_SIZES, mpi: None },
    Group { name: "array-2", bench: "array", ranks: 2, sizes: &FACE_SIZES, mpi: None },
    Group { name: "array-8", bench: "array", ranks: 8, sizes: &FACE_SIZES, mpi: None },
    Group { name: "halo-openmpi", bench: "halo", ranks: 2, sizes: &HALO_SIZES, mpi: Some("openmpi") },
    Group { name: "halo-mpich", bench: "halo", ranks: 2, sizes: &HALO_SIZES, mpi: Some("mpich") },
];

/// What the contenders are built from and measured with.
pub(super) struct Setting {
    pub(super) rma: Result<PathBuf>,
    pub(super) peers: Peers,
    pub(super) cores: u32,
    pub(super) repeats: u32,
    pub(super) batch: Duration,
    pub(super) target: PathBuf,
}

/// Someone who takes part in the rounds of a group.
pub(super) struct Contender {
    pub(super) name: String,
    how: How,
    /// What its rows are shown as, in place of what they say: backend and mode.
    shown_as: (Option<&'static str>, Option<&'static str>),
}

enum How {
    /// Prints CSV.
    Csv(Spec),
    Ucx(Perftest),
    /// Cannot take part, and why.
    Absent(String),
}

/// What one run gave.
pub(super) struct Run {
    pub(super) rows: Vec<Row>,
    /// Something to know about rows that count nevertheless.
    pub(super) remark: Option<String>,
}

impl Contender {
    fn new(name: &str, spec: Result<Spec>) -> Self {
        let how = spec.map_or_else(|error| How::Absent(format!("{error:#}")), How::Csv);
        Self { name: name.into(), how, shown_as: (None, None) }
    }

    fn shown_as(self, backend: &'static str, mode: Option<&'static str>) -> Self {
        Self { shown_as: (Some(backend), mode), ..self }
    }

    /// Someone who cannot take part.
    pub(super) fn absent(name: &str, reason: &str) -> Self {
        Self { name: name.into(), how: How::Absent(reason.into()), shown_as: (None, None) }
    }

    pub(super) fn run(&self, group: &Group, limit: Duration) -> Result<Run> {
        let spec = match &self.how {
            How::Absent(reason) => bail!("{reason}"),
            How::Ucx(perftest) => return Ok(Run { rows: perftest.run(limit)?, remark: None }),
            How::Csv(spec) => spec,
        };
        let finished = spec.run(limit, Output::Kept)?;
        let mut rows = csv::parse(&finished.stdout, group.bench).map_err(|error| {
            let failure = if finished.succeeded() { String::new() } else { format!(": {}", finished.failure()) };
            anyhow!("{error:#}; `{spec}`{failure}\n{}", finished.last_words(5))
        })?;
        let alien = rows.iter().find(|row| row.ranks != group.ranks || !group.sizes.contains(&row.bytes));
        ensure!(alien.is_none(), "`{spec}` printed a line that was not asked for: {alien:?}");
        for row in &mut rows {
            let (backend, mode) = self.shown_as;
            row.backend = backend.map_or(std::mem::take(&mut row.backend), str::to_owned);
            row.mode = mode.map_or(std::mem::take(&mut row.mode), str::to_owned);
        }
        // OpenSHMEM may crash as it ends, after its results; and wrong data leave a line out.
        let remark = (!finished.succeeded()).then(|| format!("{} after printing its results", finished.failure()));
        let remark = remark.or_else(|| finished.stderr.lines().find(|line| line.starts_with("error:")).map(Into::into));
        Ok(Run { rows, remark })
    }
}

impl Setting {
    pub(super) fn contenders(&self, group: &Group) -> Vec<Contender> {
        if let Some(mpi) = group.mpi {
            return self.over_mpi(group, mpi);
        }
        let ours = |mode| Contender::new(&format!("{OURS} {mode}"), self.ours(group, mode)).shown_as(OURS, None);
        let mut all = vec![ours("threads"), ours("processes")];
        match group.bench {
            "put" => {
                let program = |path: &Result<PathBuf>| Ok(self.measured(Spec::new(shown(path)?), group));
                all.push(Contender::new(FLOOR, program(&self.peers.put_floor)));
                all.push(Contender::new("openshmem", self.launched(oshrun(), &self.peers.put_shmem, group)));
                all.push(Contender::new("openmpi", self.launched(self.mpirun(group), &self.peers.put_pscw, group)));
                all.push(self.ucx(group));
            }
            _ => {
                let (openmpi, mpich) = match group.bench {
                    "array" => (&self.peers.array_openmpi, &self.peers.array_mpich),
                    _ => (&self.peers.halo_openmpi, &self.peers.halo_mpich),
                };
                let floor = self.launched(self.mpirun(group), openmpi, group);
                all.push(Contender::new(FLOOR, floor.map(|spec| spec.args(["--only", "floor"]))));
                all.push(Contender::new("openmpi", self.launched(self.mpirun(group), openmpi, group)));
                // MPICH never yields: with more ranks than cores it stands still for whole time slices.
                if !self.oversubscribed(group) {
                    all.push(Contender::new("mpich", self.launched(mpiexec(group), mpich, group)));
                }
            }
        }
        all
    }

    /// Ours over an MPI, and what the same MPI takes without us.
    fn over_mpi(&self, group: &Group, mpi: &'static str) -> Vec<Contender> {
        let (launcher, peer) = match mpi {
            "mpich" => (mpiexec(group), &self.peers.halo_mpich),
            _ => (self.mpirun(group), &self.peers.halo_openmpi),
        };
        let rma = rma_over(mpi);
        let ours = |backend: &str| {
            let words = ["bench", group.bench, "--backend", backend, "--bytes", &list(group.sizes), "--csv"].map(str::to_owned);
            Ok(launcher.clone().arg(shown(&rma)?).args(words))
        };
        let theirs = |mode| self.launched(launcher.clone(), peer, group).map(|spec| spec.args(["--only", mode]));
        vec![
            Contender::new("rma over MPI", ours("mpi")).shown_as(OURS, Some("mpi")),
            // A peer, too: the baseline that is there to be compared with.
            Contender::new("rma two-sided", ours("mpi-two-sided")).shown_as("two-sided", Some("by rma")),
            Contender::new(mpi, theirs("pscw")),
            Contender::new(mpi, theirs("persistent")),
        ]
    }

    fn oversubscribed(&self, group: &Group) -> bool {
        group.ranks > self.cores
    }

    fn ours(&self, group: &Group, mode: &str) -> Result<Spec> {
        let ranks = group.ranks.to_string();
        let spec = Spec::new(shown(&self.rma)?).args(["bench", group.bench, "--ranks", &ranks, "--mode", mode, "--csv"]);
        if group.bench == "array" {
            // A face of 8 n^2 bytes is that of n^3 cells.
            let cells: Vec<_> = group.sizes.iter().map(|bytes| (bytes / 8).isqrt()).collect();
            return Ok(spec.args(["--cells", &list(&cells)]));
        }
        Ok(spec.args(["--bytes", &list(group.sizes)]))
    }

    fn ucx(&self, group: &Group) -> Contender {
        let name = "ucx".to_owned();
        if find_program("ucx_perftest").is_none() {
            return Contender::absent(&name, "ucx_perftest is not installed; `cargo xtask setup` installs it");
        }
        let script = self.target.join("peers/ucx_perftest.txt");
        let perftest = Perftest { sizes: group.sizes.into(), repeats: self.repeats, batch: self.batch, script };
        Contender { name, how: How::Ucx(perftest), shown_as: (None, None) }
    }

    fn mpirun(&self, group: &Group) -> Spec {
        let spec = as_root(Spec::new("mpirun.openmpi"));
        let spec = if self.oversubscribed(group) {
            spec.args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"])
        } else {
            spec.args(["--bind-to", "core"])
        };
        spec.args(["-np".into(), group.ranks.to_string()])
    }

    fn launched(&self, launcher: Spec, program: &Result<PathBuf>, group: &Group) -> Result<Spec> {
        Ok(self.measured(launcher.arg(shown(program)?), group))
    }

    /// The options that every program of xtask/peers takes.
    fn measured(&self, spec: Spec, group: &Group) -> Spec {
        let spec = spec.args(["--bytes".into(), list(group.sizes), "--repeats".into(), self.repeats.to_string()]);
        let spec = spec.args(["--batch-ms".into(), self.batch.as_millis().to_string()]);
        if group.bench == "put" {
            return spec;
        }
        let spec = spec.args(["--dims".into(), torus::dims(group.ranks).map(|n| n.to_string()).join("x")]);
        // On two ranks a torus would send most messages to oneself; all six go to the other rank instead.
        let spec = if group.ranks == 2 && group.bench == "halo" { spec.arg("--other-rank") } else { spec };
        if self.oversubscribed(group) { spec.arg("--yield") } else { spec }
    }
}

/// The command `rma` with an MPI, built for release.
fn rma_over(mpi: &str) -> Result<PathBuf> {
    let library = Library::named(mpi)?;
    super::build(&library.spec("build --release -p rma-cli --features mpi"))?;
    Ok(library.program("release/rma"))
}

fn oshrun() -> Spec {
    // It may crash as it ends; looking for the place would take UCX two seconds.
    as_root(Spec::new("oshrun")).args(["--bind-to", "core", "-np", "2"]).env("UCX_HANDLE_ERRORS", "none")
}

fn mpiexec(group: &Group) -> Spec {
    Spec::new("mpiexec.mpich").args(["-bind-to".into(), "core".into(), "-np".into(), group.ranks.to_string()])
}

fn as_root(spec: Spec) -> Spec {
    if rustix::process::geteuid().is_root() { spec.arg("--allow-run-as-root") } else { spec }
}

fn shown(path: &Result<PathBuf>) -> Result<String> {
    let path: &Path = path.as_ref().map_err(|error| anyhow!("{error:#}"))?;
    Ok(path.display().to_string())
}

fn list(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}
