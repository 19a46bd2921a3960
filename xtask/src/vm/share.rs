//! The folder of one run: what the guests see as /mnt, their consoles, and QEMU's sockets. Removed when the run is over.
//! What a killed run left behind is removed by the next one.

use super::image::Image;
use super::job::{Job, console};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const LAB_SCRIPT: &str = include_str!("guest/lab.sh");
/// Made apart and then renamed, so that no run is found before it is locked.
const UNBORN: &str = "unborn-";

/// How many runs this process has made.
static COUNT: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub(super) struct Share {
    folder: PathBuf,
    /// Locked as long as the run is alive.
    _alive: File,
}

impl Share {
    pub(super) fn create(image: &Image, job: &Job) -> Result<Self> {
        remove_leftovers(&image.runs);
        // Relaxed: nothing but the number itself is shared.
        let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let unborn = image.runs.join(format!("{UNBORN}{name}"));
        let alive = make(&unborn, job).with_context(|| format!("cannot make the folder of a run, {}", unborn.display()))?;
        let folder = image.runs.join(name);
        fs::rename(&unborn, &folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, _alive: alive })
    }

    /// Where QEMU runs.
    pub(super) fn run_folder(&self) -> &Path {
        &self.folder
    }

    /// The part of the share that belongs to one machine.
    pub(super) fn of(&self, machine: u32) -> PathBuf {
        self.folder.join(own(machine))
    }

    /// The exit status of a machine's command, once there is one.
    pub(super) fn status(&self, machine: u32) -> Result<Option<u8>> {
        let path = self.of(machine).join("status");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let status = text.trim().parse();
                Ok(Some(status.with_context(|| format!("{} says {text:?} instead of an exit status", path.display()))?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Whether a command has asked for the end of a machine.
    pub(super) fn wants_killed(&self, machine: u32) -> bool {
        self.folder.join(format!("share/kill-machine-{machine}")).exists()
    }

    /// What the guest's kernel and `init` have said.
    pub(super) fn console(&self, machine: u32) -> String {
        let bytes = fs::read(self.folder.join(console(machine))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // The next run removes what cannot be removed now.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Relative to the folder of the run.
fn own(machine: u32) -> PathBuf {
    format!("share/vm{machine}").into()
}

fn make(folder: &Path, job: &Job) -> Result<File> {
    fs::create_dir_all(folder)?;
    let alive = File::create(folder.join("alive"))?;
    alive.lock()?;
    for machine in 0..job.machines {
        let own = folder.join(own(machine));
        fs::create_dir_all(&own)?;
        for name in ["stdout", "stderr"] {
            File::create(own.join(name))?;
        }
        fs::write(own.join("job"), job.script(machine))?;
        for (name, content) in job.lab.iter().flat_map(|lab| lab.files(job.site(machine), job.cpus)) {
            fs::write(own.join(name), content)?;
        }
    }
    let lab = folder.join("share/lab");
    fs::write(&lab, LAB_SCRIPT)?;
    fs::set_permissions(&lab, PermissionsExt::from_mode(0o755))?;
    Ok(alive)
}

/// A run that is alive holds its lock. Others are of programs that were killed.
fn remove_leftovers(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let born = !entry.file_name().to_string_lossy().starts_with(UNBORN);
        let path = entry.path();
        if born && File::open(path.join("alive")).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(test: &str) -> Image {
        let runs = std::env::temp_dir().join(format!("rma-xtask-share-{test}-{}", std::process::id()));
        fs::create_dir_all(&runs).unwrap();
        Image { vmlinux: PathBuf::new(), initramfs: PathBuf::new(), runs }
    }

    fn job() -> Job {
        Job { machines: 2, ..Job::new(["true"]).unwrap() }
    }

    #[test]
    fn a_run_leaves_nothing_behind() {
        let image = image("nothing");
        let share = Share::create(&image, &job()).unwrap();
        assert!(share.of(1).join("lab.names").is_file() && share.run_folder().join("share/lab").is_file());
        drop(share);
        assert_eq!(fs::read_dir(&image.runs).unwrap().count(), 0);
        fs::remove_dir_all(&image.runs).unwrap();
    }

    #[test]
    fn leftovers_of_a_killed_run_are_removed_and_the_living_are_not() {
        let image = image("leftovers");
        fs::create_dir_all(image.runs.join("4711-0")).unwrap();
        File::create(image.runs.join("4711-0/alive")).unwrap();
        let first = Share::create(&image, &job()).unwrap();
        let second = Share::create(&image, &job()).unwrap();
        assert!(!image.runs.join("4711-0").exists());
        assert!(first.run_folder().exists() && second.run_folder().exists());
        drop((first, second));
        fs::remove_dir_all(&image.runs).unwrap();
    }

    #[test]
    fn a_status_is_read_once_it_is_there() {
        let image = image("status");
        let share = Share::create(&image, &job()).unwrap();
        assert_eq!(share.status(0).unwrap(), None);
        fs::write(share.of(0).join("status"), "77\n").unwrap();
        assert_eq!(share.status(0).unwrap(), Some(77));
        fs::write(share.of(1).join("status"), "no").unwrap();
        assert!(share.status(1).unwrap_err().to_string().contains("\"no\""));
        assert!(!share.wants_killed(1));
        fs::write(share.run_folder().join("share/kill-machine-1"), "").unwrap();
        assert!(share.wants_killed(1) && !share.wants_killed(0));
        drop(share);
        fs::remove_dir_all(&image.runs).unwrap();
    }
}
