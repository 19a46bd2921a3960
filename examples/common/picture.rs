//! A plane of numbers as a picture.

use anyhow::{Context, Result, ensure};
use ndarray::ArrayView2;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// From cold to hot: dark blue, violet, orange, light yellow.
const COLORS: [[f64; 3]; 5] = [[13., 8., 60.], [84., 15., 109.], [187., 55., 84.], [249., 142., 9.], [252., 255., 164.]];
/// The least length of a picture's longer side.
const LEAST_PIXELS: usize = 480;
/// What lies white between two planes.
const GAP_PIXELS: usize = 12;

/// A PNG file in a folder that is there: for options of the command line, so that nothing is computed that cannot be written.
pub fn file(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    let folder = path.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    if path.is_dir() || !folder.is_some_and(Path::is_dir) {
        return Err("this is no name of a file in a folder that is there".into());
    }
    if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("png")) {
        return Err("pictures are PNG files; let the name end in .png".into());
    }
    Ok(path)
}

/// Writes a picture of planes beside each other, rows downwards, each cell as several pixels if there are few. Dark is the smallest number of
/// all, light the largest.
pub fn write(path: &Path, planes: &[ArrayView2<'_, f64>]) -> Result<()> {
    let rows = planes.iter().map(|plane| plane.nrows()).max().unwrap_or(0);
    let columns: usize = planes.iter().map(|plane| plane.ncols()).sum();
    ensure!(rows > 0 && columns > 0, "planes of {rows} x {columns} cells make no picture");
    let (low, high) = planes.iter().flatten().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
    let scale = LEAST_PIXELS.div_ceil(rows.max(columns));
    let (width, height) = (columns * scale + GAP_PIXELS * (planes.len() - 1), rows * scale);
    let mut pixels = vec![u8::MAX; width * height * 3];
    let mut left = 0;
    for plane in planes {
        for (y, x) in (0..plane.nrows() * scale).flat_map(|y| (0..plane.ncols() * scale).map(move |x| (y, x))) {
            let heat = (plane[[y / scale, x / scale]] - low) / (high - low).max(f64::MIN_POSITIVE);
            let pixel = 3 * (y * width + left + x);
            pixels[pixel..pixel + 3].copy_from_slice(&color(heat));
        }
        left += plane.ncols() * scale + GAP_PIXELS;
    }
    let written = || format!("cannot write {}", path.display());
    let file = BufWriter::new(File::create(path).with_context(written)?);
    let mut encoder = png::Encoder::new(file, u32::try_from(width)?, u32::try_from(height)?);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().with_context(written)?;
    writer.write_image_data(&pixels).and_then(|()| writer.finish()).with_context(written)
}

/// Between dark at 0 and light at 1.
fn color(heat: f64) -> [u8; 3] {
    let at = heat.clamp(0.0, 1.0) * (COLORS.len() - 1) as f64;
    let below = (at as usize).min(COLORS.len() - 2);
    let part = at - below as f64;
    std::array::from_fn(|i| (COLORS[below][i] * (1.0 - part) + COLORS[below + 1][i] * part).round() as u8)
}
