//! Ways to copy that the C library lacks: with 64-byte registers, with string instructions, and many short blocks at once.
//! Owns what the processor is asked for; knows addresses only.

/// The lengths of blocks for 64-byte registers: at least one register, and no more than what a call of the C library takes longer for to
/// begin than to copy.
const WIDE_BLOCKS: std::ops::RangeInclusive<usize> = 64..=2048;

/// Copies blocks at equal distances, in bytes.
///
/// # Safety
/// All blocks may be accessed, and no target overlaps a source or another target.
#[inline]
pub(crate) unsafe fn copy_blocks(
    (source, source_stride): (*const u8, usize),
    (target, target_stride): (*mut u8, usize),
    bytes: usize,
    count: usize,
) {
    let places = (0..count).map(|block| {
        // Inside, as promised; wrapping only so that no unsafe is needed for arithmetic.
        (source.wrapping_add(block * source_stride), target.wrapping_add(block * target_stride))
    });
    match bytes {
        // Elements of columns: a length known to the compiler is one load and one store.
        // SAFETY: as promised, for each block.
        8 => places.for_each(|(from, to)| unsafe { std::ptr::copy_nonoverlapping(from, to, 8) }),
        // SAFETY: as promised, for each block.
        4 => places.for_each(|(from, to)| unsafe { std::ptr::copy_nonoverlapping(from, to, 4) }),
        // SAFETY: as promised; the processor was asked.
        bytes if WIDE_BLOCKS.contains(&bytes) && has_wide_registers() => unsafe {
            copy_wide_blocks((source, source_stride), (target, target_stride), bytes, count);
        },
        // SAFETY: as promised, for each block.
        bytes => places.for_each(|(from, to)| unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }),
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_storeu_si512};

    pub(crate) fn has_wide_registers() -> bool {
        std::arch::is_x86_feature_detected!("avx512f")
    }

    pub(crate) fn has_fast_strings() -> bool {
        std::arch::is_x86_feature_detected!("ermsb")
    }

    /// # Safety
    /// The processor has AVX-512; there are at least 256 bytes, they may be accessed, and the blocks do not overlap.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn copy_wide(source: *const u8, target: *mut u8, bytes: usize) {
        const STEP: usize = 4 * size_of::<__m512i>();
        let step = |offset: usize| {
            let (from, to) = (source.wrapping_add(offset).cast::<__m512i>(), target.wrapping_add(offset).cast::<__m512i>());
            // SAFETY: the loop keeps the whole step inside the block.
            let registers = [0, 1, 2, 3].map(|i| unsafe { _mm512_loadu_si512(from.wrapping_add(i)) });
            for (i, register) in registers.into_iter().enumerate() {
                // SAFETY: as for the loads.
                unsafe { _mm512_storeu_si512(to.wrapping_add(i), register) };
            }
        };
        let last = bytes - STEP;
        let mut offset = 0;
        while offset < last {
            step(offset);
            offset += STEP;
        }
        // The last step ends with the block, and so may copy some bytes a second time.
        step(last);
    }

    /// # Safety
    /// As for `copy_blocks`; the processor has AVX-512, and blocks have 64 bytes or more.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn copy_wide_blocks(
        (mut source, source_stride): (*const u8, usize),
        (mut target, target_stride): (*mut u8, usize),
        bytes: usize,
        count: usize,
    ) {
        let last = bytes - size_of::<__m512i>();
        for _ in 0..count {
            let step = |offset: usize| {
                // SAFETY: the loop keeps the register inside the block.
                let register = unsafe { _mm512_loadu_si512(source.wrapping_add(offset).cast()) };
                // SAFETY: as for the load.
                unsafe { _mm512_storeu_si512(target.wrapping_add(offset).cast(), register) };
            };
            let mut offset = 0;
            while offset < last {
                step(offset);
                offset += size_of::<__m512i>();
            }
            // The last register ends with the block, and so may copy some bytes a second time.
            step(last);
            (source, target) = (source.wrapping_add(source_stride), target.wrapping_add(target_stride));
        }
    }

    /// # Safety
    /// The bytes may be accessed, and the blocks do not overlap.
    pub(crate) unsafe fn copy_repeat(source: *const u8, target: *mut u8, bytes: usize) {
        // The stores of a string instruction are not ordered among each other, but the store of the notification after it is
        // ordered behind them all (Intel SDM, volume 3A, "Fast-String Operation and Out-of-Order Stores").
        // SAFETY: the direction flag is clear by the calling convention; the registers and the memory are those named.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") bytes => _,
                inout("rsi") source => _,
                inout("rdi") target => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64::copy_wide_blocks;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86_64::{copy_repeat, copy_wide, has_fast_strings, has_wide_registers};

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod elsewhere {
    pub(crate) fn has_wide_registers() -> bool {
        false
    }

    pub(crate) fn has_fast_strings() -> bool {
        false
    }

    /// # Safety
    /// Never called.
    pub(crate) unsafe fn copy_wide(_: *const u8, _: *mut u8, _: usize) {
        unreachable!("bug: a way to copy that this processor does not have");
    }

    pub(crate) use copy_wide as copy_repeat;

    /// # Safety
    /// Never called.
    pub(crate) unsafe fn copy_wide_blocks(_: (*const u8, usize), _: (*mut u8, usize), _: usize, _: usize) {
        unreachable!("bug: a way to copy that this processor does not have");
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use elsewhere::copy_wide_blocks;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use elsewhere::{copy_repeat, copy_wide, has_fast_strings, has_wide_registers};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_lengths_and_distances_arrive_and_nothing_else_is_touched() {
        let mut random = fastrand::Rng::with_seed(9);
        let lengths = (0..300).chain([511, 512, 513, 2047, 2048, 2049, 5000]);
        for bytes in lengths {
            let count = random.usize(..5);
            let [(from, from_stride), (to, to_stride)] = [(); 2].map(|()| (random.usize(..70), bytes + random.usize(..100)));
            let source: Vec<u8> = (0..from + (from_stride + 1) * count + 64).map(|_| random.u8(..)).collect();
            let mut target = vec![0xa5; to + (to_stride + 1) * count + 64];
            let mut expected = target.clone();
            for block in 0..count {
                let (from, to) = (from + block * from_stride, to + block * to_stride);
                expected[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
            }
            let (first, into) = (source[from..].as_ptr(), target[to..].as_mut_ptr());
            // SAFETY: both vectors are alive, used by nobody else, and as long as the blocks reach; no two blocks overlap.
            unsafe { copy_blocks((first, from_stride), (into, to_stride), bytes, count) };
            assert!(target == expected, "{count} blocks of {bytes} bytes, {from_stride} and {to_stride} apart");
        }
    }
}
