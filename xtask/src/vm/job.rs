//! What is to run in a machine, and how it is told: the guest's shell script, the kernel's command line, QEMU's arguments.
//! Pure texts; nothing is started here.

use super::image::Image;
use super::lab::{Lab, MTU, Site, mac};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a program is looked for inside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Folders that the guest has for itself; /tmp shows the host's files.
const HIDDEN: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/mnt", "/var/tmp"];
const MAX_MACHINES: u32 = 2;
/// For a single processor QEMU 7.2 leaves the guest's memory barriers out, also those between the guest and QEMU's own threads: now
/// and then a network device is told of a packet and does not look, and never sends again.
const MIN_CPUS: u32 = 2;
const MAX_CPUS: u32 = 32;
const MIN_MEMORY_MIB: u32 = 256;

/// A command, and the machines it runs in. Two machines run the same, one rank of the lab each.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) command: Vec<OsString>,
    /// Set for the command, in this order. Of the host's environment nothing gets in.
    pub(crate) env: Vec<(String, OsString)>,
    /// The working directory, one of the host's.
    pub(crate) folder: PathBuf,
    /// None: no network and no RDMA devices.
    pub(crate) lab: Option<Lab>,
    pub(crate) machines: u32,
    /// Of each machine.
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// From the start of the boot to the end of the command.
    pub(crate) timeout: Duration,
}

impl Job {
    /// In one machine with the default lab, two ranks on one rail.
    pub(crate) fn new<S: Into<OsString>>(command: impl IntoIterator<Item = S>) -> Result<Self> {
        Ok(Self {
            command: command.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            folder: std::env::current_dir().context("cannot tell the current directory")?,
            lab: Some(Lab::default()),
            machines: 1,
            cpus: 2,
            memory_mib: 1024,
            timeout: Duration::from_secs(120),
        })
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(!self.command.is_empty(), "there is no command to run");
        ensure!((1..=MAX_MACHINES).contains(&self.machines), "{} machines: use 1 or {MAX_MACHINES}", self.machines);
        let cpus = MIN_CPUS..=MAX_CPUS;
        ensure!(cpus.contains(&self.cpus), "{} processors: a machine has {MIN_CPUS} to {MAX_CPUS}", self.cpus);
        ensure!(self.memory_mib >= MIN_MEMORY_MIB, "{} MiB of memory: a machine needs {MIN_MEMORY_MIB}", self.memory_mib);
        ensure!(!self.timeout.is_zero(), "a timeout of 0 seconds: nothing could run");
        for (name, _) in &self.env {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let fits = name.chars().all(plain) && name.starts_with(|c: char| !c.is_ascii_digit());
            ensure!(fits, "{name:?} is no name of a variable: use letters, digits and _");
        }
        if let Some(hidden) = HIDDEN.iter().find(|hidden| self.folder.starts_with(hidden)) {
            anyhow::bail!("{} is not seen inside, where {hidden} is the guest's own; use another directory", self.folder.display());
        }
        if let Some(lab) = &self.lab {
            lab.check()?;
            ensure!(
                self.machines == 1 || lab.ranks == self.machines,
                "{} ranks in {} machines: each machine is one rank",
                lab.ranks,
                self.machines
            );
        }
        Ok(())
    }

    pub(super) fn site(&self, machine: u32) -> Site {
        if self.machines == 1 { Site::Whole } else { Site::Half(machine) }
    }

    /// The shell script that becomes the command.
    pub(super) fn script(&self, machine: u32) -> Vec<u8> {
        let mut text = format!("export PATH={PATH} HOME=/tmp LANG=C.UTF-8 RMA_VM_MACHINE={machine}\n").into_bytes();
        text.extend_from_slice(b"cd ");
        text.extend(quoted(self.folder.as_os_str().as_bytes()));
        text.extend_from_slice(b" || exit 125\n");
        for (name, value) in &self.env {
            text.extend_from_slice(format!("export {name}=").as_bytes());
            text.extend(quoted(value.as_bytes()));
            text.push(b'\n');
        }
        text.extend_from_slice(b"exec");
        for word in &self.command {
            text.push(b' ');
            text.extend(quoted(word.as_bytes()));
        }
        text.push(b'\n');
        text
    }

    /// Paths are relative to the folder of the run, in which QEMU is started: a socket's path has at most 107 bytes.
    pub(super) fn qemu_arguments(&self, image: &Image, machine: u32) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
        // Only the processor is emulated in software: the same everywhere, and nothing of the host is needed.
        add("-machine q35 -accel tcg,thread=multi,tb-size=256 -cpu max");
        add(&format!("-smp {} -m {}", self.cpus, self.memory_mib));
        add("-nodefaults -no-user-config -no-reboot -display none -monitor none -nic none");
        add(&format!("-serial file:{}", console(machine)));
        add("-fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap");
        add("-device virtio-9p-pci,fsdev=host,mount_tag=host");
        add("-fsdev local,id=share,path=share,security_model=none");
        add("-device virtio-9p-pci,fsdev=share,mount_tag=share");
        if let (Site::Half(own), Some(lab)) = (self.site(machine), &self.lab) {
            for rail in 0..lab.rails {
                let (here, there) = (socket(own, rail), socket(1 - own, rail));
                add(&format!("-netdev dgram,id=rail{rail},local.type=unix,local.path={here},remote.type=unix,remote.path={there}"));
                let mac = mac(own, rail);
                add(&format!("-device virtio-net-pci,netdev=rail{rail},mac={mac},romfile=,host_mtu={MTU}"));
            }
        }
        words.extend(["-kernel".into(), display(&image.vmlinux), "-initrd".into(), display(&image.initramfs)]);
        words.extend(["-append".into(), self.kernel_line(machine)]);
        words
    }

    /// An oops ends the machine at once, so that it is reported instead of waited for.
    fn kernel_line(&self, machine: u32) -> String {
        let modules: &[&str] = match (&self.lab, self.site(machine)) {
            (None, _) => &[],
            (Some(_), Site::Half(_)) => &["virtio_net", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe"],
            (Some(_), Site::Whole) => &["veth", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe"],
        };
        let modules = modules.join(",");
        format!("console=ttyS0 quiet panic=-1 oops=panic rma.machine={machine} rma.modules={modules}")
    }
}

/// The file with what the guest's kernel says.
pub(super) fn console(machine: u32) -> String {
    format!("console{machine}")
}

fn socket(machine: u32, rail: u32) -> String {
    format!("net{machine}.{rail}")
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

/// For the shell, whatever the bytes.
fn quoted(word: &[u8]) -> Vec<u8> {
    let inner = word.iter().flat_map(|&byte| if byte == b'\'' { b"'\\''".to_vec() } else { vec![byte] });
    [b'\''].into_iter().chain(inner).chain([b'\'']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn job(command: &[&str]) -> Job {
        Job { folder: "/work dir".into(), ..Job::new(command.iter().copied()).unwrap() }
    }

    fn image() -> Image {
        Image { vmlinux: "/t/vmlinux".into(), initramfs: "/t/initramfs".into(), runs: "/t/runs".into() }
    }

    #[test]
    fn the_script_keeps_every_byte_of_the_command() {
        let mut job = job(&["./a b", "it's", ""]);
        job.command.push(OsString::from_vec(vec![0xff, b'$']));
        job.env.push(("RMA_RAILS".into(), "2 x".into()));
        let script = job.script(1);
        let expected = b"cd '/work dir' || exit 125\nexport RMA_RAILS='2 x'\nexec './a b' 'it'\\''s' '' '\xff$'\n";
        assert!(script.starts_with(b"export PATH=") && script.ends_with(expected), "{}", String::from_utf8_lossy(&script));
        assert!(String::from_utf8_lossy(&script).lines().next().unwrap().ends_with(" RMA_VM_MACHINE=1"));
    }

    #[test]
    fn one_machine_has_no_network_of_qemu() {
        let words = job(&["true"]).qemu_arguments(&image(), 0);
        assert!(!words.iter().any(|word| word == "-netdev"));
        assert!(words.last().unwrap().ends_with("rma.machine=0 rma.modules=veth,crc32_generic,ib_uverbs,rdma_ucm,rdma_rxe"));
        assert!(words.windows(2).any(|pair| pair == ["-kernel", "/t/vmlinux"]));
    }

    #[test]
    fn two_machines_are_connected_once_a_rail_in_both_directions() {
        let job = Job { machines: 2, lab: Some(Lab { rails: 2, ..Lab::default() }), ..job(&["true"]) };
        let networks = |machine| {
            let words = job.qemu_arguments(&image(), machine);
            words.into_iter().filter(|word| word.starts_with("dgram")).collect::<Vec<_>>()
        };
        let (a, b) = (networks(0), networks(1));
        assert_eq!(a[1], "dgram,id=rail1,local.type=unix,local.path=net0.1,remote.type=unix,remote.path=net1.1");
        assert_eq!(b[1], "dgram,id=rail1,local.type=unix,local.path=net1.1,remote.type=unix,remote.path=net0.1");
        assert!(job.qemu_arguments(&image(), 1).iter().any(|word| word.contains("mac=02:00:00:00:01:02,romfile=,host_mtu=4200")));
    }

    #[test]
    fn without_a_lab_no_module_is_loaded() {
        let job = Job { lab: None, ..job(&["true"]) };
        assert!(job.kernel_line(0).ends_with("rma.modules="));
    }

    #[test]
    fn what_a_job_cannot_be_is_refused_with_the_limit() {
        let refusal = |job: Job| job.check().unwrap_err().to_string();
        assert!(refusal(job(&[])).contains("no command"));
        assert_eq!(refusal(Job { machines: 3, ..job(&["a"]) }), "3 machines: use 1 or 2");
        assert_eq!(refusal(Job { cpus: 1, ..job(&["a"]) }), "1 processors: a machine has 2 to 32");
        assert!(refusal(Job { memory_mib: 10, ..job(&["a"]) }).contains("256"));
        assert!(refusal(Job { timeout: Duration::ZERO, ..job(&["a"]) }).contains("0 seconds"));
        assert!(refusal(Job { env: vec![("A B".into(), "".into())], ..job(&["a"]) }).contains("\"A B\""));
        assert!(refusal(Job { env: vec![("".into(), "".into())], ..job(&["a"]) }).contains("\"\""));
        assert!(refusal(Job { folder: "/run/user/0".into(), ..job(&["a"]) }).contains("/run/user/0 is not seen"));
        let lab = Some(Lab { ranks: 4, ..Lab::default() });
        assert!(refusal(Job { machines: 2, lab, ..job(&["a"]) }).contains("4 ranks in 2 machines"));
        assert!(job(&["a"]).check().is_ok());
    }
}
