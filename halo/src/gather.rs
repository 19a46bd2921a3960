//! The whole of a field on one rank: every rank puts its points right where they belong.

use crate::agreement::agree;
use crate::field::Field;
use crate::geometry::{Place, row_major, strided};
use ndarray::{Array, Dim, Dimension};
use rma::bootstrap::all_or_none;
use rma::{Comm, Deadline, Error, Open, Pod, Rank, Result, RmaQueue, RmaWindow};

const CALL: &str = "gather";

impl<T: Pod, const N: usize> Field<T, N>
where
    Dim<[usize; N]>: Dimension,
{
    /// Collective: all owned points as one array on `root`, `None` on the other ranks. Takes as much memory again there.
    ///
    /// [`Error::CollectiveMismatch`] when ranks name different roots or gather different fields, [`Error::NoSuchRank`] when there is no such
    /// root.
    ///
    /// ```
    /// # use rma_halo::{Decomposition, Field, Layout};
    /// # rma::Comm::launch(3, |comm| {
    /// let field = Field::<u64, 1>::new(&comm, &Decomposition::new([10], comm.size())?, Layout::ghosts(1))?;
    /// field.fill_with(|[x]| (x * x) as u64)?;
    /// if let Some(all) = field.gather(&comm, 0)? {
    ///     assert_eq!(all.as_slice().unwrap(), [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]);
    /// }
    /// # Ok::<(), rma::Error>(()) })?;
    /// # Ok::<(), rma::Error>(())
    /// ```
    pub fn gather(&self, comm: &Comm, root: impl Into<Rank>) -> Result<Option<Array<T, Dim<[usize; N]>>>> {
        let (root, size) = (root.into(), comm.size());
        let wish = if root.0 < size { Ok(root) } else { Err(Error::NoSuchRank { what: "root of gather", rank: root, size }) };
        let root =
            agree(comm, CALL, wish, |root| vec![format!("{root} as root"), format!("the field in {}", self.parts.window.id())])?;
        let is_root = comm.rank() == root;
        let (global, element_bytes) = (self.global_len(), size_of::<T>());
        let all = comm.window_alloc(if is_root { global.iter().product::<usize>() * element_bytes } else { 0 })?;
        let deadline = || Deadline::after(comm.config().setup_timeout);
        let queue = all_or_none(comm.bootstrap(), CALL, self.queue_to(root, &all, comm), deadline())?;
        let mut queue = queue.commit()?;
        // Nobody waits for a rank that cannot start, or frees the window alone.
        let arrived = all_or_none(comm.bootstrap(), CALL, queue.start(), deadline())?.wait()?;
        let gathered = if is_root { Some(arrived.read::<T>(&all, ..)?.to_vec()) } else { None };
        drop(arrived);
        queue.clear();
        all.free()?;
        let shaped = |points| {
            let mut shape = Dim::<[usize; N]>::default();
            shape.slice_mut().copy_from_slice(&global);
            Array::from_shape_vec(shape, points)
                .map_err(|cause| Error::Invalid { what: "gathered field", reason: cause.to_string() })
        };
        gathered.map(shaped).transpose()
    }

    /// The puts of this rank's points to where they belong in `all` on `root`.
    fn queue_to(&self, root: Rank, all: &RmaWindow, comm: &Comm) -> Result<RmaQueue<Open>> {
        let mut queue = comm.queue_alloc(all)?;
        let (element_bytes, block, strides) = (size_of::<T>(), self.block(), row_major(self.global_len()));
        let first: usize = block.start.iter().zip(strides).map(|(at, stride)| at * stride).sum();
        let from = self.parts.local.place(&self.parts.local.owned(), element_bytes);
        let to = Place { offset_bytes: first * element_bytes, strides };
        for put in strided(block.len, from, to, element_bytes) {
            let message = comm.declare_write(all, put.to, &self.parts.window, put.from, put.block, root)?;
            queue.push(&message.blocks(put.count, put.from_stride, put.to_stride)?)?;
        }
        let origins = if comm.rank() == root { comm.size() } else { 0 };
        for origin in 0..origins {
            queue.add_origin(origin)?;
        }
        Ok(queue)
    }
}
