//! What the library promises, on emulated PEACH2 boards: as threads and as processes, on 2 to 16 of them.
#![forbid(unsafe_code)]

fn main() {}
