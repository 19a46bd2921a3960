//! What is inside Debian's kernel package: the kernel as it is before it unpacks itself, and modules with what they need.
//! Pure: bytes and texts in, bytes and texts out.

use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// That of Debian 12. Soft-RoCE of the next one, 6.12, was measured to be three times slower in emulation.
pub(super) const SERIES: &str = "6.1.";
/// Depends on the kernel that Debian has now.
pub(super) const META_PACKAGE: &str = "linux-image-amd64";
const PREFIX: &str = "linux-image-";

/// The version of the kernel that `apt-cache depends` names, as in `6.1.0-40-amd64`.
pub(super) fn version(depends: &str) -> Result<&str> {
    let mend = format!("put a file {PREFIX}{SERIES}*_amd64.deb of Debian 12 into the folder target/vm");
    let found = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: ")?.strip_prefix(PREFIX));
    let version =
        found.with_context(|| format!("apt knows no kernel by the name {META_PACKAGE}; run `cargo xtask setup`, or {mend}"))?;
    ensure!(version.starts_with(SERIES), "{META_PACKAGE} is kernel {version}, and the machine is made for {SERIES}x; {mend}");
    Ok(version)
}

pub(super) fn package(version: &str) -> String {
    format!("{PREFIX}{version}")
}

/// The version, from the name of a package's file.
pub(super) fn version_of_file(name: &str) -> Option<&str> {
    let version = name.strip_suffix(".deb")?.strip_prefix(PREFIX)?.split('_').next()?;
    (version.starts_with(SERIES)).then_some(version)
}

/// The compressed kernel within a bzImage, and its size when it is unpacked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Payload<'a> {
    pub(super) xz: &'a [u8],
    pub(super) unpacked_bytes: u32,
}

/// Offsets as in the kernel's Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header".
pub(super) fn payload(image: &[u8]) -> Result<Payload<'_>> {
    let at = |offset: usize, len: usize| {
        image.get(offset..offset + len).with_context(|| format!("the kernel image of {} bytes ends before its header", image.len()))
    };
    let number = |offset: usize| Ok::<_, anyhow::Error>(u32::from_le_bytes(at(offset, 4)?.try_into()?));
    ensure!(at(0x202, 4)? == b"HdrS", "this is no kernel image: it has no boot header");
    let protocol = u16::from_le_bytes(at(0x206, 2)?.try_into()?);
    ensure!(protocol >= 0x0208, "the kernel image has boot protocol {protocol:#06x}; 0x0208 is the first that names the payload");
    // 0 stands for 4, as in old boot loaders.
    let sectors = match at(0x1f1, 1)?[0] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + number(0x248)? as usize;
    let len = number(0x24c)? as usize;
    let whole = at(start, len)?;
    // The size of the unpacked kernel follows the compressed one.
    let (xz, size) = whole.split_last_chunk::<4>().context("the kernel image has an empty payload")?;
    if !xz.starts_with(b"\xfd7zXZ\0") {
        bail!("the kernel is compressed with something else than xz: it begins with {:02x?}", &xz[..xz.len().min(6)]);
    }
    Ok(Payload { xz, unpacked_bytes: u32::from_le_bytes(*size) })
}

/// The modules of a kernel, as `depmod` describes them.
#[derive(Debug)]
pub(super) struct Modules<'a> {
    /// A line of `modules.dep` for each name: the module's file and all it needs.
    needs: BTreeMap<String, &'a str>,
    builtin: BTreeSet<String>,
}

impl<'a> Modules<'a> {
    pub(super) fn new(modules_dep: &'a str, modules_builtin: &str) -> Self {
        let needs = modules_dep.lines().filter_map(|line| Some((name(line.split(':').next()?), line))).collect();
        Self { needs, builtin: modules_builtin.lines().map(name).collect() }
    }

    /// The lines of `modules.dep` for these modules and all that they need.
    pub(super) fn closure(&self, wanted: &[&str]) -> Result<BTreeSet<&'a str>> {
        let mut lines = BTreeSet::new();
        for &module in wanted {
            if self.builtin.contains(module) {
                continue;
            }
            let line = self.needs.get(module).with_context(|| format!("the kernel has no module {module}"))?;
            lines.insert(*line);
            lines.extend(files(line).filter_map(|file| self.needs.get(&name(file))));
        }
        Ok(lines)
    }
}

/// The files that a line of `modules.dep` names, the module's own first.
pub(super) fn files(line: &str) -> impl Iterator<Item = &str> {
    line.split([':', ' ']).filter(|file| !file.is_empty())
}

/// The name by which `modprobe` knows a module's file.
pub(super) fn name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split('.').next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 sector of real-mode code after the boot sector, then protected-mode code with the payload 16 bytes into it.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 16];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(b"what follows");
        image
    }

    #[test]
    fn the_payload_is_found_through_the_header() {
        let image = image(b"\xfd7zXZ\0data\x10\x20\0\0");
        assert_eq!(payload(&image).unwrap(), Payload { xz: b"\xfd7zXZ\0data", unpacked_bytes: 0x2010 });
    }

    #[test]
    fn zero_sectors_stand_for_four() {
        let mut image = image(b"");
        image[0x1f1] = 0;
        image[0x24c..0x250].copy_from_slice(&10_u32.to_le_bytes());
        image.resize(5 * 512 + 16, 0);
        image.extend_from_slice(b"\xfd7zXZ\0\x01\0\0\0");
        assert_eq!(payload(&image).unwrap().unpacked_bytes, 1);
    }

    #[test]
    fn what_is_no_kernel_is_refused_with_the_reason() {
        let refusal = |image: &[u8]| payload(image).unwrap_err().to_string();
        assert!(refusal(b"short").contains("5 bytes"));
        assert!(refusal(&[0; 2048]).contains("no boot header"));
        assert!(refusal(&image(b"\x1f\x8b gzip\0\0\0\0")).contains("1f, 8b"));
        let mut cut = image(b"\xfd7zXZ\0data\x10\x20\0\0");
        cut.truncate(1042);
        assert!(refusal(&cut).contains("1042 bytes"));
        let mut old = image(b"");
        old[0x206] = 7;
        old[0x207] = 2;
        assert!(refusal(&old).contains("0x0207"));
    }

    #[test]
    fn the_kernel_is_the_one_that_the_meta_package_depends_on() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-40-amd64\n";
        assert_eq!(version(depends).unwrap(), "6.1.0-40-amd64");
        assert!(version("  Depends: linux-image-6.12.1-amd64").unwrap_err().to_string().contains("6.12.1-amd64"));
        assert!(version("nothing").is_err());
    }

    #[test]
    fn a_package_file_tells_its_version() {
        assert_eq!(version_of_file("linux-image-6.1.0-40-amd64_6.1.153-1_amd64.deb"), Some("6.1.0-40-amd64"));
        assert_eq!(version_of_file("linux-image-6.12.1-amd64_6.12.1_amd64.deb"), None);
        assert_eq!(version_of_file("linux-image-6.1.0-40-amd64_6.1.153-1_amd64.deb.part"), None);
    }

    #[test]
    fn modules_come_with_all_that_they_need() {
        let dep = "kernel/a.ko: kernel/b-b.ko kernel/c.ko\nkernel/b-b.ko: kernel/c.ko\nkernel/c.ko:\nkernel/d.ko:\n";
        let modules = Modules::new(dep, "kernel/built-in.ko\n");
        let lines: Vec<_> = modules.closure(&["a", "built_in"]).unwrap().into_iter().collect();
        assert_eq!(lines, ["kernel/a.ko: kernel/b-b.ko kernel/c.ko", "kernel/b-b.ko: kernel/c.ko", "kernel/c.ko:"]);
        assert_eq!(files(lines[0]).collect::<Vec<_>>(), ["kernel/a.ko", "kernel/b-b.ko", "kernel/c.ko"]);
        assert!(modules.closure(&["e"]).unwrap_err().to_string().contains("module e"));
    }
}
