//! What a rank sends, receives and copies in an exchange: boxes, phase by phase. Pure: every rank computes its partners' side as well,
//! so that both know without a word where everything goes.

use crate::block::Block;
use crate::decomposition::{Decomposition, Direction};
use crate::geometry::{Layout, Local, Place, Strided, directions, strided};
use rma::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Which ghost points an exchange fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Those beside a face: what stencils along the axes need. A message to each of at most two neighbors a dimension.
    #[default]
    Faces,
    /// All of them, edges and corners in messages of their own: to each of at most 3^N - 1 neighbors.
    Corners,
    /// All of them, one dimension after the other, the ghosts of one going on with the next: at most two messages a dimension, but a
    /// wait between dimensions.
    ByDimension,
}

/// How ghosts that lie scattered in memory are filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// In place where pieces are long enough, else packed: whatever is faster.
    #[default]
    Auto,
    /// Packed wherever they do not lie in one piece: one block travels, and the receiver spreads it.
    Always,
    /// In place always: nothing is copied twice.
    Never,
}

/// Ghosts whose pieces are at least as long are written in place. Below it is the lines of the caches, not the bytes, that count: where
/// they are written by the neighbor, each of them changes processors twice.
const IN_PLACE_BYTES: usize = 256;

/// Packed boxes begin at lines of their own.
const PACKED_ALIGN_BYTES: usize = 64;

/// A field, as far as plans know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldPlan<const N: usize> {
    pub(crate) layout: Layout<N>,
    pub(crate) element_bytes: usize,
}

/// A box of a field that goes to a neighbor.
#[derive(Clone, Debug)]
pub(crate) struct Send<const N: usize> {
    pub(crate) field: usize,
    pub(crate) to_rank: Rank,
    pub(crate) puts: Vec<Strided>,
    /// Where it lands: in the neighbor's field, or packed in its landing window.
    pub(crate) is_packed: bool,
    /// Which box is first gathered, and to where in this rank's outbox, from where it is put then.
    pub(crate) gather: Option<(Block<N>, usize)>,
    pub(crate) points: usize,
    pub(crate) direction: Direction<N>,
}

/// A box of ghosts that arrives packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing<const N: usize> {
    pub(crate) field: usize,
    direction: Direction<N>,
    pub(crate) ghost: Block<N>,
    pub(crate) offset_bytes: usize,
}

/// A box that goes to ghosts of the same rank: a closed dimension that is not cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrap<const N: usize> {
    pub(crate) field: usize,
    pub(crate) direction: Direction<N>,
    pub(crate) from: Block<N>,
    pub(crate) to: Block<N>,
}

/// What can be under way together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase<const N: usize> {
    pub(crate) sends: Vec<Send<N>>,
    pub(crate) landings: Vec<Landing<N>>,
    pub(crate) wraps: Vec<Wrap<N>>,
    pub(crate) origins: BTreeSet<Rank>,
}

/// All of an exchange, as seen by one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan<const N: usize> {
    pub(crate) phases: Vec<Phase<N>>,
    pub(crate) landing_bytes: usize,
    pub(crate) outbox_bytes: usize,
}

/// What an exchange is made of, the same on every rank.
#[derive(Clone, Debug)]
pub(crate) struct Outline<'a, const N: usize> {
    pub(crate) decomposition: &'a Decomposition<N>,
    pub(crate) fields: &'a [FieldPlan<N>],
    pub(crate) mode: Mode,
    pub(crate) packing: Packing,
    /// Whether the backend gathers freely, as [`Caps`](rma::backend::Caps) says.
    pub(crate) gathers_freely: bool,
}

/// Directions that go together, and which ghosts along the other dimensions go with them.
struct Step<const N: usize> {
    directions: Vec<Direction<N>>,
    filled_before: [bool; N],
}

/// A box of a field that goes out in a direction, and the ghosts that it fills there.
struct Face<const N: usize> {
    field: usize,
    direction: Direction<N>,
    neighbor: Rank,
    source: Block<N>,
    ghost: Block<N>,
}

impl<const N: usize> Outline<'_, N> {
    /// The part of a rank.
    pub(crate) fn plan(&self, rank: Rank) -> Plan<N> {
        let steps = self.steps();
        let (landings, landing_bytes) = self.landings(rank);
        let neighbors: BTreeSet<_> =
            steps.iter().flat_map(|step| self.neighbors(step, rank)).map(|(_, neighbor)| neighbor).collect();
        let theirs: BTreeMap<_, _> = neighbors.into_iter().map(|neighbor| (neighbor, self.landings(neighbor).0)).collect();
        let mut outbox_bytes = 0;
        let phases = steps.iter().zip(landings).enumerate().map(|(number, (step, landings))| {
            let mut phase = Phase { landings, origins: self.origins(step, rank), ..Phase::default() };
            for face in self.faces(step, rank) {
                if face.neighbor == rank {
                    phase.wraps.push(Wrap { field: face.field, direction: face.direction, from: face.source, to: face.ghost });
                    continue;
                }
                let back = face.direction.map(|step| -step);
                let mut landings = theirs[&face.neighbor][number].iter();
                let landing = landings.find(|landing| (landing.field, landing.direction) == (face.field, back));
                phase.sends.push(self.send(rank, &face, landing, &mut outbox_bytes));
            }
            phase
        });
        let phases = phases.collect();
        Plan { phases, landing_bytes, outbox_bytes }
    }

    /// Who is in the directions of a step, maybe the rank itself.
    fn neighbors(&self, step: &Step<N>, rank: Rank) -> impl Iterator<Item = (Direction<N>, Rank)> {
        step.directions.iter().filter_map(move |&direction| Some((direction, self.decomposition.neighbor(rank, direction)?)))
    }

    /// What goes out in a step, direction by direction and in each field by field.
    fn faces(&self, step: &Step<N>, rank: Rank) -> Vec<Face<N>> {
        let face = |(direction, neighbor): (Direction<N>, Rank), field| {
            let source = self.local(field, rank).source(direction, self.along(step, rank));
            let ghost = self.local(field, neighbor).ghost(direction.map(|step| -step), self.along(step, neighbor));
            debug_assert_eq!(source.len, ghost.len, "bug: both sides of a put differ");
            Face { field, direction, neighbor, source, ghost }
        };
        let faces = self.neighbors(step, rank).flat_map(|link| (0..self.fields.len()).map(move |field| face(link, field)));
        faces.filter(|face| !face.ghost.is_empty()).collect()
    }

    /// Who fills ghosts of a rank in a step.
    fn origins(&self, step: &Step<N>, rank: Rank) -> BTreeSet<Rank> {
        let has_ghosts = |direction| {
            (0..self.fields.len()).any(|field| !self.local(field, rank).ghost(direction, self.along(step, rank)).is_empty())
        };
        let origins = self.neighbors(step, rank).filter(|&(direction, neighbor)| neighbor != rank && has_ghosts(direction));
        origins.map(|(_, neighbor)| neighbor).collect()
    }

    /// How a box goes to another rank: to its landing, or straight to the ghosts.
    fn send(&self, rank: Rank, face: &Face<N>, landing: Option<&Landing<N>>, outbox_bytes: &mut usize) -> Send<N> {
        let &Face { field, direction, neighbor: to_rank, source, ghost } = face;
        let plan = &self.fields[field];
        let to = match landing {
            Some(landing) => Place::packed(landing.offset_bytes, ghost.len),
            None => self.local(field, to_rank).place(&ghost, plan.element_bytes),
        };
        let from = self.local(field, rank).place(&source, plan.element_bytes);
        let (mut puts, mut gather) = (strided(ghost.len, from, to, plan.element_bytes), None);
        if puts.len() > 1 && landing.is_some() && !self.gathers_freely {
            *outbox_bytes = packed_start(*outbox_bytes, plan);
            let from = Place::packed(*outbox_bytes, ghost.len);
            puts = strided(ghost.len, from, to, plan.element_bytes);
            gather = Some((source, *outbox_bytes));
            *outbox_bytes += packed_bytes(&ghost, plan);
        }
        Send { field, to_rank, puts, is_packed: landing.is_some(), gather, points: ghost.points(), direction }
    }

    /// What arrives packed at a rank, phase by phase, and how many bytes that takes.
    fn landings(&self, rank: Rank) -> (Vec<Vec<Landing<N>>>, usize) {
        let mut end_bytes = 0usize;
        let steps = self.steps();
        let phases = steps.iter().map(|step| {
            let mut landings = Vec::new();
            for (direction, _) in self.neighbors(step, rank).filter(|(_, neighbor)| *neighbor != rank) {
                for (field, plan) in self.fields.iter().enumerate() {
                    let local = self.local(field, rank);
                    let ghost = local.ghost(direction, self.along(step, rank));
                    if !ghost.is_empty() && self.is_packed(local.run_bytes(&ghost, plan.element_bytes), &ghost, plan) {
                        end_bytes = packed_start(end_bytes, plan);
                        landings.push(Landing { field, direction, ghost, offset_bytes: end_bytes });
                        end_bytes += packed_bytes(&ghost, plan);
                    }
                }
            }
            landings
        });
        (phases.collect(), end_bytes)
    }

    fn is_packed(&self, run_bytes: usize, ghost: &Block<N>, field: &FieldPlan<N>) -> bool {
        let is_scattered = run_bytes < ghost.points() * field.element_bytes;
        is_scattered
            && match self.packing {
                Packing::Auto => run_bytes < IN_PLACE_BYTES,
                Packing::Always => true,
                Packing::Never => false,
            }
    }

    fn local(&self, field: usize, rank: Rank) -> Local<N> {
        Local::new(self.decomposition, &self.fields[field].layout, rank)
    }

    fn steps(&self) -> Vec<Step<N>> {
        let is_face = |direction: &Direction<N>| direction.iter().filter(|&&step| step != 0).count() == 1;
        let together = |directions| vec![Step { directions, filled_before: [false; N] }];
        match self.mode {
            Mode::Faces => together(directions().filter(is_face).collect()),
            Mode::Corners => together(directions().collect()),
            // The densest dimension first: what grows by the ghosts of those before it are long rows and whole planes.
            Mode::ByDimension => (0..N)
                .rev()
                .map(|d| Step {
                    directions: directions().filter(|direction| is_face(direction) && direction[d] != 0).collect(),
                    filled_before: std::array::from_fn(|other| other > d),
                })
                .collect(),
        }
    }

    /// Which ghosts along dimensions without a step go with a box: those that were filled before, not those behind an open edge.
    fn along(&self, step: &Step<N>, rank: Rank) -> [(bool, bool); N] {
        std::array::from_fn(|d| {
            let has = |side: i8| {
                let mut direction = [0; N];
                direction[d] = side;
                step.filled_before[d] && self.decomposition.neighbor(rank, direction).is_some()
            };
            (has(-1), has(1))
        })
    }
}

/// How much room a box takes when it is packed.
fn packed_bytes<const N: usize>(block: &Block<N>, field: &FieldPlan<N>) -> usize {
    (block.points() * field.element_bytes).next_multiple_of(PACKED_ALIGN_BYTES)
}

/// Where a box can begin that is packed behind so many bytes: also where elements want more than lines do, up to a page, which the size of one tells.
fn packed_start<const N: usize>(bytes: usize, field: &FieldPlan<N>) -> usize {
    bytes.next_multiple_of(1 << field.element_bytes.trailing_zeros().min(12))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::stands_for;
    use fastrand::Rng;

    /// What stands at a place of a rank before anything is put there.
    fn untouched(rank: Rank, place: usize) -> u32 {
        1 << 31 | rank.0 << 24 | place as u32
    }

    /// A field of every rank as numbers: owned points hold their global number, ghosts nothing.
    struct World<'a, const N: usize> {
        outline: &'a Outline<'a, N>,
        memory: Vec<Vec<Vec<u32>>>,
        landing: Vec<Vec<u32>>,
    }

    fn points<const N: usize>(block: Block<N>) -> impl Iterator<Item = [usize; N]> {
        (0..block.points()).map(move |number| {
            let mut rest = number;
            let mut at = [0; N];
            for d in (0..N).rev() {
                at[d] = block.start[d] + rest % block.len[d];
                rest /= block.len[d];
            }
            at
        })
    }

    fn number<const N: usize>(at: [usize; N], len: [usize; N]) -> usize {
        at.iter().zip(len).fold(0, |number, (at, len)| number * len + at)
    }

    impl<'a, const N: usize> World<'a, N> {
        fn new(outline: &'a Outline<'a, N>, plans: &[Plan<N>]) -> Self {
            let ranks = outline.decomposition.ranks();
            let field_of = |rank: Rank, field: usize| {
                let local = outline.local(field, rank);
                let places = 0..local.padded_len().iter().product();
                let mut memory: Vec<_> = places.map(|place| untouched(rank, place)).collect();
                let owned = outline.decomposition.points(rank, outline.fields[field].layout.on_faces);
                let global = outline.decomposition.global_points(outline.fields[field].layout.on_faces);
                for (at, here) in points(owned).zip(points(local.owned())) {
                    memory[number(here, local.padded_len())] = number(at, global) as u32;
                }
                memory
            };
            let memory = (0..ranks).map(Rank).map(|rank| (0..outline.fields.len()).map(|field| field_of(rank, field)).collect());
            let landing = plans.iter().map(|plan| vec![u32::MAX; plan.landing_bytes / 4]).collect();
            Self { outline, memory: memory.collect(), landing }
        }

        /// Every phase on all ranks, its puts in any order.
        fn run(&mut self, plans: &[Plan<N>], random: &mut Rng) {
            for phase in 0..plans[0].phases.len() {
                let mut sends: Vec<(usize, &Send<N>)> = Vec::new();
                for (rank, plan) in plans.iter().enumerate() {
                    sends.extend(plan.phases[phase].sends.iter().map(|send| (rank, send)));
                }
                random.shuffle(&mut sends);
                for (rank, send) in sends {
                    for put in &send.puts {
                        for byte in (0..put.count).flat_map(|i| (0..put.block).step_by(4).map(move |byte| (i, byte))) {
                            let (from, to) =
                                (put.from + byte.0 * put.from_stride + byte.1, put.to + byte.0 * put.to_stride + byte.1);
                            let value = match send.gather {
                                None => self.memory[rank][send.field][from / 4],
                                Some((block, offset_bytes)) => {
                                    let padded = self.outline.local(send.field, Rank(rank as u32)).padded_len();
                                    let point = points(block).nth((from - offset_bytes) / 4).unwrap();
                                    self.memory[rank][send.field][number(point, padded)]
                                }
                            };
                            let target = send.to_rank.index();
                            let memory =
                                if send.is_packed { &mut self.landing[target] } else { &mut self.memory[target][send.field] };
                            memory[to / 4] = value;
                        }
                    }
                }
                for (rank, plan) in plans.iter().enumerate() {
                    for wrap in &plan.phases[phase].wraps {
                        let padded = self.outline.local(wrap.field, Rank(rank as u32)).padded_len();
                        for (from, to) in points(wrap.from).zip(points(wrap.to)) {
                            let memory = &mut self.memory[rank][wrap.field];
                            memory[number(to, padded)] = memory[number(from, padded)];
                        }
                    }
                    for landing in &plan.phases[phase].landings {
                        let padded = self.outline.local(landing.field, Rank(rank as u32)).padded_len();
                        for (to, at) in points(landing.ghost).zip(landing.offset_bytes / 4..) {
                            self.memory[rank][landing.field][number(to, padded)] = self.landing[rank][at];
                        }
                    }
                }
            }
        }

        /// Every point of every rank against what it must be.
        fn check(&self, what: &str) {
            let Outline { decomposition, fields, mode, .. } = self.outline;
            for rank in (0..decomposition.ranks()).map(Rank) {
                for (field, FieldPlan { layout, .. }) in fields.iter().enumerate() {
                    let local = self.outline.local(field, rank);
                    let global = decomposition.global_points(layout.on_faces);
                    for at in points(Block::at_origin(local.padded_len())) {
                        let point = stands_for(decomposition, layout, *mode, rank, at);
                        let before = untouched(rank, number(at, local.padded_len()));
                        let expected = point.map_or(before, |point| number(point, global) as u32);
                        let found = self.memory[rank.index()][field][number(at, local.padded_len())];
                        assert_eq!(found, expected, "{what}: field {field} on {rank} at {at:?}");
                    }
                }
            }
        }
    }

    fn check_any<const N: usize>(random: &mut Rng, most_cells: usize) -> [usize; 4] {
        let grid: [u32; N] = std::array::from_fn(|_| [1, 1, 2, 3][random.usize(..4)]);
        let cells = std::array::from_fn(|d| grid[d] as usize * random.usize(2..4) + random.usize(..most_cells));
        let periodic = std::array::from_fn(|_| random.bool());
        let decomposition = Decomposition::with_grid(cells, grid).unwrap().periodic(periodic);
        // Never wider than the smallest block, of two cells.
        let mut field = || {
            let ghosts = std::array::from_fn(|_| (random.usize(..3), random.usize(..3)));
            FieldPlan { layout: Layout { ghosts, on_faces: std::array::from_fn(|_| random.bool()) }, element_bytes: 4 }
        };
        let fields: Vec<_> = (0..2).map(|_| field()).collect();
        let mut counts = [0; 4];
        for mode in [Mode::Faces, Mode::Corners, Mode::ByDimension] {
            for packing in [Packing::Auto, Packing::Always, Packing::Never] {
                let gathers_freely = random.bool();
                let outline = Outline { decomposition: &decomposition, fields: &fields, mode, packing, gathers_freely };
                let plans: Vec<_> = (0..decomposition.ranks()).map(|rank| outline.plan(Rank(rank))).collect();
                let mut world = World::new(&outline, &plans);
                world.run(&plans, random);
                world.check(&format!("{mode:?} {packing:?} {decomposition:?} {fields:?}"));
                check_partners(&plans);
                for phase in plans.iter().flat_map(|plan| &plan.phases) {
                    let packed = phase.sends.iter().filter(|send| send.is_packed).count();
                    let gathered = phase.sends.iter().filter(|send| send.gather.is_some()).count();
                    let more = [packed, phase.sends.len() - packed, phase.wraps.len(), gathered];
                    counts = std::array::from_fn(|i| counts[i] + more[i]);
                }
            }
        }
        counts
    }

    /// Whoever is written by a rank waits for it, and for nobody else.
    fn check_partners<const N: usize>(plans: &[Plan<N>]) {
        for phase in 0..plans[0].phases.len() {
            let mut writers: BTreeMap<Rank, BTreeSet<Rank>> = BTreeMap::new();
            for (rank, plan) in (0..).map(Rank).zip(plans) {
                for send in &plan.phases[phase].sends {
                    assert_ne!(send.to_rank, rank);
                    writers.entry(send.to_rank).or_default().insert(rank);
                }
            }
            for (rank, plan) in (0..).map(Rank).zip(plans) {
                assert_eq!(plan.phases[phase].origins, writers.remove(&rank).unwrap_or_default());
            }
        }
    }

    #[test]
    fn every_ghost_point_gets_the_point_it_stands_for_and_no_other_is_touched() {
        let mut random = Rng::with_seed(3);
        let mut counts = [0; 4];
        for _ in 0..40 {
            for more in [check_any::<1>(&mut random, 20), check_any::<2>(&mut random, 9), check_any::<3>(&mut random, 3)] {
                counts = std::array::from_fn(|i| counts[i] + more[i]);
            }
        }
        for _ in 0..4 {
            check_any::<4>(&mut random, 2);
        }
        assert!(counts.iter().all(|&count| count > 200), "{counts:?}: the test has lost its teeth");
    }

    #[test]
    fn packed_boxes_begin_where_their_elements_can() {
        let decomposition = Decomposition::with_grid([4, 4, 9], [1, 1, 3]).unwrap().periodic([true; 3]);
        let fields = [1, 256, 24, 4096, 8].map(|element_bytes| FieldPlan { layout: Layout::ghosts(1), element_bytes });
        let (mode, packing) = (Mode::Faces, Packing::Always);
        let outline = Outline { decomposition: &decomposition, fields: &fields, mode, packing, gathers_freely: false };
        let Plan { phases, landing_bytes, outbox_bytes } = outline.plan(Rank(1));
        let size = |field: usize, block: &Block<3>| (fields[field].element_bytes, block.points() * fields[field].element_bytes);
        let mut landed: Vec<_> = phases[0].landings.iter().map(|land| (land.offset_bytes, size(land.field, &land.ghost))).collect();
        let gathered = phases[0].sends.iter().filter_map(|send| send.gather.map(|(block, at)| (at, size(send.field, &block))));
        let mut gathered: Vec<_> = gathered.collect();
        for (boxes, all) in [(&mut landed, landing_bytes), (&mut gathered, outbox_bytes)] {
            assert_eq!(boxes.len(), 2 * fields.len());
            boxes.push((all, (1, 0)));
            for pair in boxes.windows(2) {
                let (at, (element_bytes, bytes)) = pair[0];
                assert!(at.is_multiple_of(1 << element_bytes.trailing_zeros()) && at + bytes <= pair[1].0, "{boxes:?}");
            }
        }
    }

    #[test]
    fn a_neighbor_gets_one_message_a_face_or_one_a_direction() {
        let decomposition = Decomposition::with_grid([9; 3], [3; 3]).unwrap().periodic([true; 3]);
        let fields = [FieldPlan { layout: Layout::ghosts(1), element_bytes: 8 }; 2];
        let messages = |mode| {
            let packing = Packing::Auto;
            let outline = Outline { decomposition: &decomposition, fields: &fields, mode, packing, gathers_freely: true };
            let plan = outline.plan(Rank(13));
            let of = |phase: &Phase<3>| phase.sends.iter().map(|send| send.direction).collect::<BTreeSet<_>>().len();
            plan.phases.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(
            (messages(Mode::Faces), messages(Mode::Corners), messages(Mode::ByDimension)),
            (vec![6], vec![26], vec![2, 2, 2])
        );
    }
}
