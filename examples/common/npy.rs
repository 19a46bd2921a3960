//! Arrays as NumPy files (format 1.0), so that anyone can look at results with tools of their own.

use anyhow::{Context, Result};
use rma::{Pod, bytemuck};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The type of an element, in NumPy's words.
pub trait Element: Pod {
    /// As in `numpy.dtype(..).str`.
    const DESCRIPTION: &'static str;
}

impl Element for f64 {
    const DESCRIPTION: &'static str = if cfg!(target_endian = "little") { "<f8" } else { ">f8" };
}

impl Element for u8 {
    const DESCRIPTION: &'static str = "|u1";
}

/// A folder, made if there is none: for options of the command line, so that nothing is computed that cannot be written.
pub fn folder(path: &str) -> Result<PathBuf, String> {
    std::fs::create_dir_all(path).map_err(|error| format!("cannot make the folder: {error}"))?;
    Ok(path.into())
}

/// Writes `DIR/NAME.npy`.
pub fn write<T: Element>(dir: &Path, name: &str, shape: &[usize], elements: &[T]) -> Result<()> {
    let path = dir.join(format!("{name}.npy"));
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut file = BufWriter::new(file);
    file.write_all(&header(T::DESCRIPTION, shape))
        .and_then(|()| file.write_all(bytemuck::cast_slice(elements)))
        .and_then(|()| file.flush())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The mark, the version, and a dictionary in Python's words, filled up so that the elements begin at a multiple of 64 bytes.
fn header(description: &str, shape: &[usize]) -> Vec<u8> {
    const BEFORE_TEXT: usize = 10;
    let shape: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let mut text = format!("{{'descr': '{description}', 'fortran_order': False, 'shape': ({shape}), }}");
    let end = (BEFORE_TEXT + text.len() + 1).next_multiple_of(64);
    text.push_str(&" ".repeat(end - 1 - BEFORE_TEXT - text.len()));
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.into_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_as_numpy_writes_it() {
        let header = header("<f8", &[4, 3]);
        assert_eq!(header.len(), 128);
        assert_eq!(header[..10], *b"\x93NUMPY\x01\x00\x76\x00");
        assert!(header[10..].starts_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3, ), }  "));
        assert_eq!(header.last(), Some(&b'\n'));
    }
}
