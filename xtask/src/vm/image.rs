//! What a machine boots: Debian's kernel, uncompressed, and an initramfs. Made once, and kept under the target folder.
//! The folder's name holds the kernel's version and a hash of all that is put in besides, so what is stale is never found.

use super::cpio::Archive;
use super::kernel::{self, Modules};
use crate::process::{Output, Spec, find_program};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

const INIT: &str = include_str!("guest/init.sh");
/// What `init` calls by name, all within busybox. The kernel itself calls `modprobe`, at its absolute path.
const APPLETS: [&str; 16] = [
    "cat", "chmod", "chroot", "echo", "ip", "kill", "ls", "mkdir", "mkfifo", "modprobe", "mount", "mv", "reboot", "sed", "setsid",
    "sleep",
];
/// Those loaded by `init`, and those that the kernel asks for itself: Soft-RoCE its checksum, `tc` its queues.
const MODULES: [&str; 14] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
    "veth",
    "bridge",
    "virtio_net",
    "sch_netem",
    "sch_tbf",
    "sch_fq_codel",
];
/// What has to be there to run a machine. The last three are run inside, from the host's files.
const RUN_PROGRAMS: [&str; 5] = ["qemu-system-x86_64", "setpriv", "ip", "tc", "rdma"];
const BUILD_PROGRAMS: [&str; 3] = ["dpkg-deb", "xz", "depmod"];
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// A kernel and an initramfs, ready to boot, and the folder for runs.
#[derive(Debug)]
pub(crate) struct Image {
    pub(super) vmlinux: PathBuf,
    pub(super) initramfs: PathBuf,
    /// A folder for each run, so that nothing is left anywhere else.
    pub(super) runs: PathBuf,
}

impl Image {
    /// The image in this target folder; built if it is not there, which takes seconds and, the first time, the network.
    pub(crate) fn prepare(target: &Path) -> Result<Self> {
        for program in RUN_PROGRAMS {
            program_path(program)?;
        }
        let folder = target.join("vm");
        let runs = folder.join("runs");
        fs::create_dir_all(&runs).with_context(|| format!("cannot create {}", runs.display()))?;
        let key = key();
        if let Some(found) = find(&folder, &key)? {
            return Ok(Self::within(&found, runs));
        }
        let lock = lock(&folder)?;
        let found = match find(&folder, &key)? {
            Some(found) => found,
            None => build(&folder, &key)?,
        };
        drop(lock);
        Ok(Self::within(&found, runs))
    }

    /// Whether `prepare` has nothing to do.
    pub(crate) fn is_built(target: &Path) -> Result<bool> {
        let folder = target.join("vm");
        Ok(folder.is_dir() && find(&folder, &key())?.is_some())
    }

    /// Whether `prepare` needs the network: no kernel package was kept.
    pub(crate) fn needs_download(target: &Path) -> Result<bool> {
        let folder = target.join("vm");
        Ok(!folder.is_dir() || find_package(&folder)?.is_none())
    }

    /// Where it is kept.
    pub(super) fn folder(&self) -> &Path {
        self.vmlinux.parent().unwrap_or(&self.vmlinux)
    }

    fn within(folder: &Path, runs: PathBuf) -> Self {
        Self { vmlinux: folder.join("vmlinux"), initramfs: folder.join("initramfs.cpio"), runs }
    }
}

/// One build at a time; the lock ends with the process that holds it.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("vm: waiting for another build of the machine");
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

fn find(folder: &Path, key: &str) -> Result<Option<PathBuf>> {
    let names = names(folder)?;
    Ok(names.into_iter().find(|name| name.ends_with(&format!("-{key}"))).map(|name| folder.join(name)))
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// FNV-1a over everything in the image that is not Debian's.
fn key() -> String {
    let words = [INIT].into_iter().chain(APPLETS).chain(MODULES);
    let bytes = words.flat_map(|word| word.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// Builds in a folder that no one looks for, and gives it its name at the end.
fn build(folder: &Path, key: &str) -> Result<PathBuf> {
    // Before the download: what is missing should be said at once.
    for program in BUILD_PROGRAMS {
        program_path(program)?;
    }
    let busybox = static_busybox()?;
    let building = folder.join("building");
    let _ = fs::remove_dir_all(&building);
    fs::create_dir(&building).with_context(|| format!("cannot create {}", building.display()))?;
    let package = kernel_package(folder, &building)?;
    let file_name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = kernel::version_of_file(&file_name).with_context(|| format!("{file_name} has no kernel version in its name"))?;
    eprintln!("vm: building the machine with kernel {version}; this is done once");
    let unpacked = building.join("unpacked");
    step(&Spec::new(program_path("dpkg-deb")?).arg("-x").arg(text(&package)).arg(text(&unpacked)))?;
    unpack_kernel(&unpacked.join(format!("boot/vmlinuz-{version}")), &building)?;
    step(&Spec::new(program_path("depmod")?).args(["-b".into(), text(&unpacked), version.into()]))?;
    let archive = initramfs(&unpacked, version, &busybox)?;
    fs::write(building.join("initramfs.cpio"), archive).context("cannot write the initramfs")?;
    fs::remove_dir_all(&unpacked).context("cannot remove the unpacked kernel package")?;
    let done = folder.join(format!("{version}-{key}"));
    fs::rename(&building, &done).with_context(|| format!("cannot create {}", done.display()))?;
    // Those of an older init: nothing finds them any more.
    for name in names(folder)? {
        if name.starts_with(kernel::SERIES) && folder.join(&name) != done {
            let _ = fs::remove_dir_all(folder.join(name));
        }
    }
    Ok(done)
}

fn find_package(folder: &Path) -> Result<Option<String>> {
    Ok(names(folder)?.into_iter().find(|name| kernel::version_of_file(name).is_some()))
}

/// The package of an earlier build, or else the one that Debian has now; kept, so that the network is needed once.
fn kernel_package(folder: &Path, building: &Path) -> Result<PathBuf> {
    if let Some(name) = find_package(folder)? {
        return Ok(folder.join(name));
    }
    let depends = Spec::new(program_path("apt-cache")?).args(["depends", kernel::META_PACKAGE]).run(STEP_LIMIT, Output::Kept)?;
    let package = kernel::package(kernel::version(&depends.stdout)?);
    eprintln!("vm: downloading {package}");
    let download = Spec::new(program_path("apt-get")?).args(["download", &package]).folder(building);
    let finished = download.run(DOWNLOAD_LIMIT, Output::Kept)?;
    ensure!(
        finished.succeeded(),
        "`{download}`: {}\n{}\nis the network up? `cargo xtask setup` brings apt's lists up to date and downloads it",
        finished.failure(),
        finished.last_words(5)
    );
    let name = find_package(building)?.with_context(|| format!("`{download}` left no file {package}_*.deb"))?;
    let kept = folder.join(&name);
    fs::rename(building.join(&name), &kept).with_context(|| format!("cannot create {}", kept.display()))?;
    Ok(kept)
}

/// Booting the uncompressed kernel saves its unpacking in emulation, two thirds of the whole time.
fn unpack_kernel(vmlinuz: &Path, building: &Path) -> Result<()> {
    let image = fs::read(vmlinuz).with_context(|| format!("cannot read {}", vmlinuz.display()))?;
    let payload = kernel::payload(&image).with_context(|| format!("cannot unpack {}", vmlinuz.display()))?;
    let compressed = building.join("vmlinux.xz");
    fs::write(&compressed, payload.xz).with_context(|| format!("cannot write {}", compressed.display()))?;
    step(&Spec::new(program_path("xz")?).args(["-d".into(), text(&compressed)]))?;
    let len = fs::metadata(building.join("vmlinux")).context("xz left no vmlinux")?.len();
    ensure!(len == u64::from(payload.unpacked_bytes), "the kernel unpacks to {len} bytes instead of {}", payload.unpacked_bytes);
    Ok(())
}

fn initramfs(unpacked: &Path, version: &str, busybox: &[u8]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    // The kernel gives the first process this console.
    archive.character_device("dev/console", 5, 1)?;
    for folder in ["proc", "sys", "host", "scratch"] {
        archive.folder(folder)?;
    }
    archive.file("init", INIT.as_bytes())?;
    archive.file("bin/busybox", busybox)?;
    archive.link("bin/sh", "busybox")?;
    APPLETS.iter().try_for_each(|applet| archive.link(&format!("bin/{applet}"), "busybox"))?;
    archive.link("sbin/modprobe", "../bin/busybox")?;

    let folder = format!("lib/modules/{version}");
    let read = |file: &str| {
        let path = unpacked.join(&folder).join(file);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let list = |file: &str| Ok::<_, anyhow::Error>(String::from_utf8_lossy(&read(file)?).into_owned());
    let (dep, builtin) = (list("modules.dep")?, list("modules.builtin")?);
    let needed = Modules::new(&dep, &builtin).closure(&MODULES)?;
    let files: Vec<_> = needed.iter().filter_map(|line| kernel::files(line).next()).collect();
    for file in &files {
        archive.file(&format!("{folder}/{file}"), &read(file)?)?;
    }
    let lines: String = needed.iter().map(|line| format!("{line}\n")).collect();
    archive.file(&format!("{folder}/modules.dep"), lines.as_bytes())?;
    archive.file(&format!("{folder}/modules.builtin"), builtin.as_bytes())?;
    // `alias PATTERN MODULE`: by these the kernel asks.
    let names: Vec<_> = files.iter().map(|file| kernel::name(file)).collect();
    let ours = |line: &&str| line.rsplit(' ').next().is_some_and(|module| names.iter().any(|name| name == module));
    let aliases: String = list("modules.alias")?.lines().filter(ours).map(|line| format!("{line}\n")).collect();
    archive.file(&format!("{folder}/modules.alias"), aliases.as_bytes())?;
    archive.finish()
}

fn static_busybox() -> Result<Vec<u8>> {
    let path = program_path("busybox")?;
    let program = fs::read(&path).with_context(|| format!("cannot read {path}"))?;
    ensure!(
        !needs_a_loader(&program),
        "{path} is not statically linked, and the machine has no libraries when it starts; \
         `cargo xtask setup` installs busybox-static"
    );
    Ok(program)
}

/// The loader's name stands near the start of a program that is linked dynamically, as its interpreter.
fn needs_a_loader(program: &[u8]) -> bool {
    let loader = b"/lib64/ld-linux-x86-64.so.2\0";
    program[..program.len().min(4096)].windows(loader.len()).any(|window| window == loader)
}

fn step(spec: &Spec) -> Result<()> {
    let finished = spec.run(STEP_LIMIT, Output::Kept)?;
    ensure!(finished.succeeded(), "`{spec}`: {}\n{}", finished.failure(), finished.last_words(5));
    Ok(())
}

/// Also where only root has it on the path.
fn program_path(name: &str) -> Result<String> {
    let elsewhere = ["/usr/sbin", "/sbin"].into_iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
    let found = find_program(name).or(elsewhere);
    let path = found.with_context(|| format!("{name} is not installed; `cargo xtask setup` installs it"))?;
    Ok(text(&path))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words where a command begins, without those that the shell itself knows.
    fn programs(script: &str) -> Vec<String> {
        let own =
            ["", "for", "[", ".", "case", "echo", "esac", "fi", "done", "read", "return", "wait", "die", "on_host", "is_up", "}"];
        let leading = ["if", "while", "do", "then", "!"];
        let script = script.replace("$((", "");
        let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
        let commands = lines.flat_map(|line| line.split(['|', '&', ';', '(', ')', '`'])).map(|command| {
            let mut words = command.split_whitespace().skip_while(|word| leading.contains(word));
            words.next().unwrap_or_default()
        });
        let plain = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        commands.filter(plain).filter(|word| !own.contains(word)).map(str::to_owned).collect()
    }

    #[test]
    fn every_program_that_init_calls_is_in_the_image() {
        assert_eq!(programs("if mount x; then a=$(cat y | sed z) && echo w; fi"), ["mount", "cat", "sed"]);
        let programs = programs(INIT);
        assert!(programs.len() > 20, "{programs:?}");
        programs
            .iter()
            .for_each(|program| assert!(APPLETS.contains(&program.as_str()), "init calls {program:?}: add it to APPLETS"));
    }

    #[test]
    fn a_dynamically_linked_program_is_known_by_its_interpreter() {
        let mut program = vec![0; 5000];
        assert!(!needs_a_loader(&program));
        program[800..828].copy_from_slice(b"/lib64/ld-linux-x86-64.so.2\0");
        assert!(needs_a_loader(&program));
        assert!(!needs_a_loader(b"short"));
    }

    #[test]
    fn a_folder_is_found_by_its_key_alone() {
        let folder = std::env::temp_dir().join(format!("rma-xtask-image-{}", std::process::id()));
        fs::create_dir_all(folder.join(format!("6.1.0-1-amd64-{}", key()))).unwrap();
        let found = find(&folder, &key()).unwrap();
        let other = find(&folder, "0123456789abcdef").unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(found.is_some_and(|path| path.ends_with(format!("6.1.0-1-amd64-{}", key()))));
        assert_eq!(other, None);
    }
}
