//! What an exchange does, in words. Pure.

use crate::plan::{Outline, Plan};
use rma::Rank;
use std::fmt::Write;

pub(crate) fn outline<const N: usize>(outline: &Outline<'_, N>, rank: Rank, plan: &Plan<N>) -> String {
    let (cells, grid) = (outline.decomposition.cells(), outline.decomposition.grid());
    let mut text = format!("{cells:?} cells over a grid of {grid:?} ranks, {:?}, this is {rank}", outline.mode);
    for (number, phase) in plan.phases.iter().enumerate() {
        if plan.phases.len() > 1 {
            let _ = write!(text, "\nphase {number}, started when the one before it is complete:");
        }
        for send in &phase.sends {
            let bytes = send.points * outline.fields[send.field].element_bytes;
            let block = send.puts.first().map_or(0, |put| put.block);
            let way = if send.gather.is_some() {
                "gathered here, sent in one piece and spread by the receiver".to_owned()
            } else if send.puts.len() == 1 && send.puts[0].count == 1 {
                "in one piece".to_owned()
            } else if send.is_packed {
                format!("in pieces of {block} bytes, which land packed and are spread by the receiver")
            } else {
                format!("in pieces of {block} bytes, each straight to its place")
            };
            let _ = write!(text, "\nfield {} {:?}: {bytes} bytes to {}, {way}", send.field, send.direction, send.to_rank);
        }
        for wrap in &phase.wraps {
            let bytes = wrap.from.points() * outline.fields[wrap.field].element_bytes;
            let _ =
                write!(text, "\nfield {} {:?}: {bytes} bytes to this rank itself, copied at the start", wrap.field, wrap.direction);
        }
    }
    text
}
