//! Archives in the format that the kernel unpacks at boot (cpio, "newc"): folders, files, links and one device.
//! Everything belongs to root and has no time stamp, so the same content gives the same bytes.

use anyhow::{Context, Result};
use std::collections::BTreeSet;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive that grows.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// A file that may be run, with the folders above it.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        self.folders_above(path)?;
        self.entry(path, PROGRAM, (0, 0), content)
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.folders_above(path)?;
        self.entry(path, LINK, (0, 0), target.as_bytes())
    }

    pub(super) fn character_device(&mut self, path: &str, major: u32, minor: u32) -> Result<()> {
        self.folders_above(path)?;
        self.entry(path, CHARACTER_DEVICE, (major, minor), &[])
    }

    pub(super) fn folder(&mut self, path: &str) -> Result<()> {
        self.folders_above(path)?;
        if self.folders.insert(path.into()) { self.entry(path, FOLDER, (0, 0), &[]) } else { Ok(()) }
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.bytes)
    }

    fn folders_above(&mut self, path: &str) -> Result<()> {
        path.rsplit_once('/').map_or(Ok(()), |(above, _)| self.folder(above))
    }

    /// Thirteen numbers of eight hexadecimal digits, the name, the content; both filled up to a multiple of four bytes.
    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        let size = u32::try_from(content.len()).with_context(|| format!("{path} is larger than the 4 GiB of an archive"))?;
        self.entries += 1;
        let name_size = path.len() as u32 + 1;
        let numbers = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        numbers.iter().for_each(|number| self.bytes.extend_from_slice(format!("{number:08X}").as_bytes()));
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.fill_up();
        self.bytes.extend_from_slice(content);
        self.fill_up();
        Ok(())
    }

    fn fill_up(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_header_its_name_and_its_content_aligned() {
        let mut archive = Archive::default();
        archive.file("init", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let numbers = [1, 0x81ed, 0, 0, 1, 0, 5, 0, 0, 0, 0, 5, 0];
        let header: String = numbers.iter().map(|number| format!("{number:08X}")).collect();
        assert_eq!(&bytes[..110], format!("070701{header}").as_bytes());
        assert_eq!(&bytes[110..116], b"init\0\0");
        // The header and the name take 116 bytes with their filling, the content 8 with its own.
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert!(bytes.ends_with(b"TRAILER!!!\0\0\0\0") && bytes.len() % 4 == 0);
    }

    #[test]
    fn folders_come_before_what_is_in_them_and_only_once() {
        let mut archive = Archive::default();
        archive.file("lib/modules/a", b"").unwrap();
        archive.file("lib/modules/b", b"").unwrap();
        archive.character_device("dev/console", 5, 1).unwrap();
        let text = String::from_utf8(archive.finish().unwrap()).unwrap();
        let names: Vec<_> = ["lib\0", "lib/modules\0", "lib/modules/a\0", "lib/modules/b\0", "dev\0", "dev/console\0"]
            .iter()
            .map(|name| {
                assert_eq!(text.matches(name).count(), 1, "{name}");
                text.find(name).unwrap()
            })
            .collect();
        assert!(names.is_sorted());
    }
}
