//! Boards: where a rank's partners write their words, as arrivals and credits.
//! Owns the layout and who has which line; knows no queues. The words of one partner lie together, in lines that nobody else writes.

use crate::ffi::{Bytes, Outcome, Window};
use rma::Epoch;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two cache lines: what the prefetchers of common processors fetch together.
const LINE_BYTES: usize = 128;
const WORDS_PER_LINE: usize = LINE_BYTES / 8;
/// The least length of a window for boards.
const LEAST_LINES: usize = 512;

/// What a word says: the epoch that its writer has reached, and whether it will write no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) epoch: Epoch,
    pub(crate) closed: bool,
}

impl Said {
    /// What nobody has written yet.
    const NOTHING: Self = Self { epoch: Epoch(0), closed: false };

    fn encode(self) -> u64 {
        self.epoch.0 << 1 | u64::from(self.closed)
    }

    fn decode(word: u64) -> Self {
        Self { epoch: Epoch(word >> 1), closed: word & 1 != 0 }
    }
}

/// Where a partner writes: lines of a board, by the window's number and the displacement of each line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) window: u64,
    pub(crate) lines: Vec<u64>,
}

impl Place {
    /// The displacement of a word; `None` if there is no such word.
    pub(crate) fn word(&self, index: usize) -> Option<u64> {
        self.lines.get(index / WORDS_PER_LINE).map(|line| line + (index % WORDS_PER_LINE * 8) as u64)
    }
}

/// A word of this rank's board, written by one partner.
#[derive(Clone, Debug)]
pub(crate) struct OwnWord {
    board: Rc<Window>,
    offset: usize,
}

impl OwnWord {
    fn atomic(&self) -> &AtomicU64 {
        crate::ffi::word_of(&self.board, self.offset)
    }

    #[inline]
    pub(crate) fn look(&self) -> Said {
        // Acquire: what its writer put before it was flushed, and so is there; nothing of that is read sooner.
        Said::decode(self.atomic().load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn reached(&self, epoch: Epoch) -> bool {
        self.look().epoch >= epoch
    }
}

/// A word of a partner's board, written by this rank.
#[derive(Debug)]
pub(crate) struct FarWord {
    board: Rc<Window>,
    target: c_int,
    displacement: i64,
    bytes: Bytes,
    /// What was written last, and what MPI reads.
    value: Box<Cell<u64>>,
}

impl FarWord {
    pub(crate) fn new(board: Rc<Window>, target: c_int, displacement: u64) -> Self {
        let value = Box::new(Cell::new(Said::NOTHING.encode()));
        Self { board, target, displacement: displacement as i64, bytes: Bytes::word(), value }
    }

    /// What is to be flushed for the word to be there.
    pub(crate) fn board(&self) -> &Rc<Window> {
        &self.board
    }

    /// What was written before has been seen by the partner, or flushed: nothing orders two puts.
    pub(crate) fn write(&self, epoch: Epoch) -> Outcome<()> {
        self.put(Said { epoch, closed: false })
    }

    /// Says that nothing more will be written, and returns when the partner can see it: who is told by other ways that this rank has
    /// closed finds it so.
    pub(crate) fn close(&self) -> Outcome<()> {
        // Nothing orders two puts, and this one must stay the last.
        self.board.flush(self.target)?;
        self.put(Said { closed: true, ..Said::decode(self.value.get()) })?;
        self.board.flush(self.target)
    }

    #[inline]
    #[expect(unsafe_code, reason = "writes one word of a board")]
    fn put(&self, said: Said) -> Outcome<()> {
        self.value.set(said.encode());
        let source = self.value.as_ptr().cast();
        // SAFETY: the word stays where it is, and is not written before it has left; the target keeps the line for this rank alone.
        unsafe { self.board.put(source, &self.bytes, self.target, self.displacement, &self.bytes)? };
        self.board.flush_local(self.target)
    }
}

/// The lines of this rank's boards.
#[derive(Debug, Default)]
pub(crate) struct Boards {
    boards: Vec<Board>,
    /// Lines whose partner may still write, with the words in which it says that it does no more.
    abandoned: Vec<Lines>,
}

#[derive(Debug)]
struct Board {
    window: Rc<Window>,
    displacement: u64,
    free: Vec<usize>,
}

/// Lines that one partner writes, given back when it writes no more.
#[derive(Debug)]
pub(crate) struct Lines {
    board: usize,
    lines: Vec<usize>,
    pub(crate) words: Vec<OwnWord>,
}

impl Lines {
    /// Whether the partner has said that it writes no more.
    pub(crate) fn closed(&self) -> bool {
        self.words.iter().all(|word| word.look().closed)
    }
}

/// How many lines so many words take.
fn lines_for(words: usize) -> usize {
    words.div_ceil(WORDS_PER_LINE)
}

impl Boards {
    /// How many bytes a further board must have for lines of so many words each; 0 if there is room.
    pub(crate) fn lacks(&mut self, words: impl Iterator<Item = usize>) -> usize {
        self.reclaim();
        let needed: usize = words.map(lines_for).sum();
        // All in one board, as lines of one partner must be.
        if self.boards.iter().any(|board| board.free.len() >= needed) { 0 } else { needed.max(LEAST_LINES) * LINE_BYTES }
    }

    /// Takes a new window in.
    pub(crate) fn add(&mut self, window: Rc<Window>, displacement: u64) {
        let lines = window.len_bytes() / LINE_BYTES;
        self.boards.push(Board { window, displacement, free: (0..lines).rev().collect() });
    }

    /// Lines for one partner, the words at "nothing".
    pub(crate) fn take(&mut self, words: usize) -> Option<(Lines, Place)> {
        let needed = lines_for(words);
        let at = self.boards.iter().position(|board| board.free.len() >= needed)?;
        let Board { window, displacement, free } = &mut self.boards[at];
        let lines = free.split_off(free.len() - needed);
        let place =
            Place { window: window.number(), lines: lines.iter().map(|line| *displacement + (line * LINE_BYTES) as u64).collect() };
        let offset = |word: usize| lines[word / WORDS_PER_LINE] * LINE_BYTES + word % WORDS_PER_LINE * 8;
        let words: Vec<_> = (0..words).map(|word| OwnWord { board: window.clone(), offset: offset(word) }).collect();
        words.iter().for_each(|word| word.atomic().store(Said::NOTHING.encode(), Ordering::Release));
        Some((Lines { board: at, lines, words }, place))
    }

    /// Takes lines back that no partner knows.
    pub(crate) fn give_back(&mut self, lines: Lines) {
        self.boards[lines.board].free.extend(lines.lines);
    }

    /// Takes lines back once their partner writes no more.
    pub(crate) fn abandon(&mut self, lines: Lines) {
        self.abandoned.push(lines);
        self.reclaim();
    }

    fn reclaim(&mut self) {
        let quiet: Vec<_> = self.abandoned.extract_if(.., |lines| lines.closed()).collect();
        quiet.into_iter().for_each(|lines| self.give_back(lines));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_the_epoch_and_the_end() {
        for epoch in [0, 1, 77, (1 << 62) - 1] {
            for closed in [false, true] {
                let said = Said { epoch: Epoch(epoch), closed };
                assert_eq!(Said::decode(said.encode()), said);
            }
        }
    }

    #[test]
    fn many_words_take_several_lines_and_none_is_outside() {
        let place = Place { window: 0, lines: vec![128, 1024] };
        assert_eq!(place.word(0), Some(128));
        assert_eq!(place.word(15), Some(128 + 120));
        assert_eq!(place.word(16), Some(1024));
        assert_eq!(place.word(32), None);
        assert_eq!((lines_for(1), lines_for(16), lines_for(17)), (1, 1, 2));
    }
}
