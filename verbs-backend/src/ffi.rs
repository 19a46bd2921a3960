//! Every call of libibverbs, behind types that own what they name: devices, regions, completion queues, queue pairs.
//! Checks every return code. Knows no rank, no queue of the library and no protocol.
#![allow(unsafe_code, reason = "the one file that calls libibverbs")]

use crate::memory::Memory;
use rdma_sys as sys;
use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

/// A call of libibverbs that was refused.
#[derive(Debug, thiserror::Error)]
#[error("{call}")]
pub(crate) struct Refused {
    pub(crate) call: &'static str,
    #[source]
    cause: io::Error,
}

impl Refused {
    /// The system's number for it, if it gave one.
    pub(crate) fn number(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }
}

type Outcome<T> = Result<T, Refused>;

/// For calls that return 0 or an error number; -1 leaves the number in `errno`.
fn checked(call: &'static str, code: i32) -> Outcome<()> {
    match code {
        0 => Ok(()),
        -1 => Err(Refused { call, cause: io::Error::last_os_error() }),
        code => Err(Refused { call, cause: io::Error::from_raw_os_error(code.abs()) }),
    }
}

/// For calls that return null on failure and leave the number in `errno`.
fn made<T>(call: &'static str, pointer: *mut T) -> Outcome<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| Refused { call, cause: io::Error::last_os_error() })
}

/// For destructors: there is nobody to tell, and nothing to try.
fn destroyed(call: &'static str, code: i32) {
    if let Err(refused) = checked(call, code) {
        tracing::warn!("{refused}: {}", refused.cause);
    }
}

/// Whether libibverbs was found when the program started. Where it was not, every call is refused.
pub(crate) fn library_is_there() -> bool {
    const HOW: i32 = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: a terminated name. Nothing is loaded, so no code of a library runs.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), HOW) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: a handle of the call above, given back once; who loaded the library keeps its own.
    unsafe { libc::dlclose(handle) };
    true
}

/// The names of the RDMA devices of this machine. None is no error, a missing library or kernel module is one.
pub(crate) fn device_names() -> Outcome<Vec<String>> {
    let list = DeviceList::new()?;
    Ok((0..list.len).map(|index| list.name(index)).collect())
}

struct DeviceList {
    first: NonNull<*mut sys::ibv_device>,
    len: usize,
}

/// Has a process that forks keep its registered pages, and the queues of its devices: without it, on kernels that do not copy pinned
/// pages, the first write after a fork moves the page away from under the device. Must come before everything else.
fn survive_forks() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: takes nothing, and leaves it at a refusal when somebody else has used the library already.
        let code = unsafe { sys::ibv_fork_init() };
        if let Err(refused) = checked("ibv_fork_init", code) {
            tracing::info!("{refused}: {}; a process that forks may lose what devices write", refused.cause);
        }
    });
}

impl DeviceList {
    fn new() -> Outcome<Self> {
        survive_forks();
        let mut len = 0;
        // SAFETY: `len` is written before the call returns and not kept.
        let first = unsafe { sys::ibv_get_device_list(&mut len) };
        Ok(Self { first: made("ibv_get_device_list", first)?, len: usize::try_from(len).unwrap_or(0) })
    }

    fn device(&self, index: usize) -> *mut sys::ibv_device {
        assert!(index < self.len, "bug: device {index} of {}", self.len);
        // SAFETY: the list has `len` entries.
        let entry = unsafe { self.first.add(index) };
        // SAFETY: as above, and the list is alive.
        unsafe { entry.read() }
    }

    fn name(&self, index: usize) -> String {
        // SAFETY: a device of a list that is alive.
        let name = unsafe { sys::ibv_get_device_name(self.device(index)) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a terminated string that lives as long as the device.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by ibv_get_device_list, freed once.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<sys::ibv_context>,
}

/// What a device can do, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLimits {
    pub(crate) ports: u8,
    pub(crate) queue_pairs: u32,
    /// Requests of one queue pair.
    pub(crate) requests: u32,
    /// Pieces of one request.
    pub(crate) pieces: u32,
    pub(crate) completions: u32,
    pub(crate) regions: u32,
    pub(crate) region_bytes: u64,
}

/// A port as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortState {
    pub(crate) active: bool,
    /// The system's number for the state, for people.
    pub(crate) state: u32,
    pub(crate) mtu_bytes: u32,
    /// What it could be at most.
    pub(crate) max_mtu_bytes: u32,
    pub(crate) message_bytes: u32,
    pub(crate) lid: u16,
    pub(crate) ethernet: bool,
}

/// An entry of a port's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) index: u32,
    pub(crate) gid: [u8; 16],
    /// 0 InfiniBand, 1 RoCE v1, 2 RoCE v2.
    pub(crate) kind: u32,
    /// The network interface behind it; 0 for none.
    pub(crate) interface: u32,
}

impl Context {
    /// Opens the device of this name; `None` if there is none.
    pub(crate) fn open(name: &str) -> Outcome<Option<Rc<Self>>> {
        let list = DeviceList::new()?;
        let Some(index) = (0..list.len).find(|&index| list.name(index) == name) else { return Ok(None) };
        // SAFETY: a device of a list that is alive; the context keeps what it needs of it.
        let raw = unsafe { sys::ibv_open_device(list.device(index)) };
        Ok(Some(Rc::new(Self { raw: made("ibv_open_device", raw)? })))
    }

    /// Whether it speaks InfiniBand's protocol, natively or over Ethernet (RoCE). iWARP and others have no writes with an immediate.
    pub(crate) fn speaks_infiniband(&self) -> bool {
        // SAFETY: an open context, whose device does not change.
        let device = unsafe { self.raw.as_ref() }.device;
        // SAFETY: a context keeps its device.
        unsafe { (*device).transport_type == sys::ibv_transport_type::IBV_TRANSPORT_IB }
    }

    pub(crate) fn limits(&self) -> Outcome<DeviceLimits> {
        // SAFETY: plain numbers, for which all zero is a value.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context; the attributes are written before the call returns.
        checked("ibv_query_device", unsafe { sys::ibv_query_device(self.raw.as_ptr(), &mut attributes) })?;
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        Ok(DeviceLimits {
            ports: attributes.phys_port_cnt,
            queue_pairs: number(attributes.max_qp),
            requests: number(attributes.max_qp_wr),
            pieces: number(attributes.max_sge),
            completions: number(attributes.max_cqe),
            regions: number(attributes.max_mr),
            region_bytes: attributes.max_mr_size,
        })
    }

    pub(crate) fn port(&self, port: u8) -> Outcome<PortState> {
        // SAFETY: plain numbers, for which all zero is a value.
        let mut attributes: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context; the attributes are written before the call returns.
        checked("ibv_query_port", unsafe { sys::ibv_query_port(self.raw.as_ptr(), port, &mut attributes) })?;
        Ok(PortState {
            active: attributes.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
            state: attributes.state,
            mtu_bytes: mtu_bytes(attributes.active_mtu),
            max_mtu_bytes: mtu_bytes(attributes.max_mtu),
            message_bytes: attributes.max_msg_sz,
            lid: attributes.lid,
            ethernet: attributes.link_layer == 2,
        })
    }

    /// The addresses of all ports.
    pub(crate) fn gids(&self, port: u8) -> Outcome<Vec<GidEntry>> {
        const MOST: usize = 1024;
        let empty =
            sys::ibv_gid_entry { gid: sys::ibv_gid { raw: [0; 16] }, gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut entries = vec![empty; MOST];
        // SAFETY: an open context; at most MOST entries are written before the call returns.
        let count = unsafe { sys::ibv_query_gid_table(self.raw.as_ptr(), entries.as_mut_ptr(), MOST, 0) };
        let count = usize::try_from(count).map_err(|_| Refused {
            call: "ibv_query_gid_table",
            cause: io::Error::from_raw_os_error(i32::try_from(-count).unwrap_or(libc::EINVAL)),
        })?;
        let of_port = entries.into_iter().take(count).filter(|entry| entry.port_num == u32::from(port));
        Ok(of_port
            .map(|entry| GidEntry {
                index: entry.gid_index,
                // SAFETY: the bytes are all there is to it; both views of the union are plain numbers.
                gid: unsafe { entry.gid.raw },
                kind: entry.gid_type,
                interface: entry.ndev_ifindex,
            })
            .collect())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by ibv_open_device; everything made on it held it alive and is gone.
        destroyed("ibv_close_device", unsafe { sys::ibv_close_device(self.raw.as_ptr()) });
    }
}

fn mtu_bytes(code: u32) -> u32 {
    128u32.checked_shl(code).unwrap_or(0)
}

fn mtu_code(bytes: u32) -> u32 {
    (bytes / 128).max(2).ilog2().min(sys::ibv_mtu::IBV_MTU_4096)
}

/// What regions and queue pairs that belong together have in common.
#[derive(Debug)]
pub(crate) struct Domain {
    raw: NonNull<sys::ibv_pd>,
    _context: Rc<Context>,
}

impl Domain {
    pub(crate) fn new(context: &Rc<Context>) -> Outcome<Rc<Self>> {
        // SAFETY: an open context, which the domain keeps open.
        let raw = unsafe { sys::ibv_alloc_pd(context.raw.as_ptr()) };
        Ok(Rc::new(Self { raw: made("ibv_alloc_pd", raw)?, _context: context.clone() }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made by ibv_alloc_pd; everything made in it held it alive and is gone.
        destroyed("ibv_dealloc_pd", unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) });
    }
}

/// Registered memory. Keeps the memory mapped.
#[derive(Debug)]
pub(crate) struct Region {
    raw: NonNull<sys::ibv_mr>,
    _memory: Rc<Memory>,
    _domain: Rc<Domain>,
}

impl Region {
    /// Registers all of the memory: for this side to read from, and with `remote` for others that have the key to write to.
    pub(crate) fn new(domain: &Rc<Domain>, memory: &Rc<Memory>, remote: bool) -> Outcome<Self> {
        let mut access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        if remote {
            access |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        let (base, len_bytes) = (memory.base().as_ptr(), memory.len_bytes());
        // SAFETY: mapped memory, which the region keeps mapped.
        let raw = unsafe { sys::ibv_reg_mr(domain.raw.as_ptr(), base.cast(), len_bytes, access as i32) };
        Ok(Self { raw: made("ibv_reg_mr", raw)?, _memory: memory.clone(), _domain: domain.clone() })
    }

    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: registered, and not changed any more.
        unsafe { self.raw.as_ref() }.lkey
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: registered, and not changed any more.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by ibv_reg_mr, unregistered once. The device refuses what still refers to it.
        destroyed("ibv_dereg_mr", unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// Where completions come in, with a descriptor that becomes readable when one does.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    _context: Rc<Context>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// The number the request was given.
    pub(crate) id: u64,
    /// 0 for success; else see `ibv_wc_status`, and only `id` means something.
    pub(crate) status: u32,
    pub(crate) vendor: u32,
    /// What came with a write, when it is one of another side.
    pub(crate) immediate: Option<u32>,
}

/// What an entry says. Providers leave fields unwritten that mean nothing: of a failure all but the number of the request, the status
/// and the vendor's code, and otherwise that code. So nothing is read, nor a reference made, but to fields that were written.
///
/// # Safety
/// The entry was written by `ibv_poll_cq`.
#[inline]
unsafe fn completion(raw: *const sys::ibv_wc) -> Completion {
    let field = |offset: usize| raw.cast::<u8>().wrapping_add(offset);
    // SAFETY: inside the entry, of this type, and always written.
    let id = unsafe { field(offset_of!(sys::ibv_wc, wr_id)).cast::<u64>().read() };
    // SAFETY: as above.
    let status = unsafe { field(offset_of!(sys::ibv_wc, status)).cast::<u32>().read() };
    if status != 0 {
        // SAFETY: inside the entry, of this type, and written on failure.
        let vendor = unsafe { field(offset_of!(sys::ibv_wc, vendor_err)).cast::<u32>().read() };
        return Completion { id, status, vendor, immediate: None };
    }
    // SAFETY: inside the entry, of this type, and written on success.
    let opcode = unsafe { field(offset_of!(sys::ibv_wc, opcode)).cast::<u32>().read() };
    let immediate = (opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM).then(|| {
        // SAFETY: inside the entry; the opcode says that the union holds an immediate, and both its views are of this type.
        unsafe { field(offset_of!(sys::ibv_wc, imm_data_invalidated_rkey_union)).cast::<u32>().read() }
    });
    Completion { id, status, vendor: 0, immediate: immediate.map(u32::from_be) }
}

/// Completions that are taken at once.
pub(crate) struct Batch {
    entries: [MaybeUninit<sys::ibv_wc>; Self::MOST],
    /// How many of the entries have been written.
    len: usize,
}

impl Batch {
    const MOST: usize = 16;

    #[inline]
    pub(crate) fn new() -> Self {
        Self { entries: [const { MaybeUninit::uninit() }; Self::MOST], len: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Then there may be more.
    pub(crate) fn is_full(&self) -> bool {
        self.len == Self::MOST
    }

    #[inline]
    pub(crate) fn completions(&self) -> impl Iterator<Item = Completion> {
        // SAFETY: one of the entries that have been written.
        self.entries.iter().take(self.len).map(|entry| unsafe { completion(entry.as_ptr()) })
    }
}

impl CompletionQueue {
    pub(crate) fn new(context: &Rc<Context>, entries: u32) -> Outcome<Rc<Self>> {
        // SAFETY: an open context, which the queue keeps open.
        let channel = unsafe { sys::ibv_create_comp_channel(context.raw.as_ptr()) };
        let channel = made("ibv_create_comp_channel", channel)?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: an open context and a channel of it.
        let raw = unsafe { sys::ibv_create_cq(context.raw.as_ptr(), entries, std::ptr::null_mut(), channel.as_ptr(), 0) };
        let raw = made("ibv_create_cq", raw).inspect_err(|_| {
            // SAFETY: made above and used by nobody.
            destroyed("ibv_destroy_comp_channel", unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) });
        })?;
        let queue = Self { raw, channel, _context: context.clone() };
        let flags = rustix::fs::fcntl_getfl(queue.as_fd());
        let nonblocking = flags.and_then(|flags| rustix::fs::fcntl_setfl(queue.as_fd(), flags | rustix::fs::OFlags::NONBLOCK));
        nonblocking.map_err(|cause| Refused { call: "fcntl on a completion channel", cause: cause.into() })?;
        Ok(Rc::new(queue))
    }

    /// Makes room for so many completions.
    pub(crate) fn resize(&self, entries: u32) -> Outcome<()> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: a queue that is alive.
        checked("ibv_resize_cq", unsafe { sys::ibv_resize_cq(self.raw.as_ptr(), entries) })
    }

    /// Takes what has come, at most a batch.
    #[inline]
    pub(crate) fn poll(&self, batch: &mut Batch) -> Outcome<()> {
        // SAFETY: a queue that is alive; at most so many entries are written before the call returns, and it says how many.
        let count = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), Batch::MOST as i32, batch.entries.as_mut_ptr().cast()) };
        batch.len = count.max(0) as usize;
        if count < 0 {
            return Err(Refused { call: "ibv_poll_cq", cause: io::Error::from_raw_os_error(libc::EIO) });
        }
        Ok(())
    }

    /// Has the descriptor become readable at the next completion.
    pub(crate) fn arm(&self) -> Outcome<()> {
        // SAFETY: a queue that is alive.
        checked("ibv_req_notify_cq", unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }

    /// Takes the events that made the descriptor readable.
    pub(crate) fn clear_events(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        loop {
            // SAFETY: a channel that is alive and does not block; both pointers are written before the call returns.
            if unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &mut queue, &mut context) } != 0 {
                return;
            }
            // SAFETY: the event is of the one queue that uses the channel.
            unsafe { sys::ibv_ack_cq_events(self.raw.as_ptr(), 1) };
        }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a channel that is alive, whose descriptor does not change.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the channel keeps it open, and `self` the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.clear_events();
        // SAFETY: made by ibv_create_cq; all queue pairs that used it held it alive and are gone.
        destroyed("ibv_destroy_cq", unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) });
        // SAFETY: made by ibv_create_comp_channel; the one queue that used it is gone.
        destroyed("ibv_destroy_comp_channel", unsafe { sys::ibv_destroy_comp_channel(self.channel.as_ptr()) });
    }
}

/// One end of a reliable connection.
#[derive(Debug)]
pub(crate) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    _completions: Rc<CompletionQueue>,
    _domain: Rc<Domain>,
}

/// How much a queue pair takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) pieces: u32,
    pub(crate) inline_bytes: u32,
}

impl Depths {
    /// The most completions there may be at once. As long as all goes well only signaled requests have one, but a queue pair that
    /// breaks completes everything that was posted, and a completion queue that overflows is lost for all who share it.
    pub(crate) fn completions(&self) -> u32 {
        self.sends + self.receives
    }
}

/// Where the other end is, and how to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) port: u8,
    pub(crate) mtu_bytes: u32,
    pub(crate) peer_number: u32,
    /// The number of the first packet that comes from there.
    pub(crate) first_packet: u32,
    pub(crate) peer_lid: u16,
    /// The own entry and the peer's address; `None` within one InfiniBand subnet.
    pub(crate) global: Option<(u8, [u8; 16])>,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    /// The code of the time the peer is given to have a receive posted.
    pub(crate) not_ready_timer: u8,
}

/// How long and how often is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// 4.096 us times two to the power of this, for one try.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    /// For a peer without a posted receive; 7 is for ever.
    pub(crate) not_ready_retries: u8,
}

impl QueuePair {
    /// A reliable one, with all completions in one queue. Returns what it takes of what was asked for.
    pub(crate) fn new(domain: &Rc<Domain>, completions: &Rc<CompletionQueue>, asked: Depths) -> Outcome<(Self, Depths)> {
        let mut attributes = sys::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.raw.as_ptr(),
            recv_cq: completions.raw.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: asked.sends,
                max_recv_wr: asked.receives,
                max_send_sge: asked.pieces,
                max_recv_sge: 1,
                max_inline_data: asked.inline_bytes,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: a domain and a completion queue that the pair keeps alive; the attributes are not kept.
        let raw = unsafe { sys::ibv_create_qp(domain.raw.as_ptr(), &mut attributes) };
        let raw = made("ibv_create_qp", raw)?;
        let depths = Depths { inline_bytes: attributes.cap.max_inline_data.min(asked.inline_bytes), ..asked };
        Ok((Self { raw, _completions: completions.clone(), _domain: domain.clone() }, depths))
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: a queue pair that is alive, whose number does not change.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn modify(&self, call: &'static str, attributes: &mut sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask) -> Outcome<()> {
        // SAFETY: a queue pair that is alive; the attributes are not kept.
        checked(call, unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), attributes, mask.0 as i32) })
    }

    /// Reset to init: receives may be posted.
    pub(crate) fn initialize(&self, port: u8) -> Outcome<()> {
        use sys::ibv_qp_attr_mask as mask;
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = port;
        attributes.qp_access_flags = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let given = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp to init", &mut attributes, given)
    }

    /// Init to ready to receive.
    pub(crate) fn receive_from(&self, route: &Route) -> Outcome<()> {
        use sys::ibv_qp_attr_mask as mask;
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = mtu_code(route.mtu_bytes);
        attributes.dest_qp_num = route.peer_number;
        attributes.rq_psn = route.first_packet;
        attributes.max_dest_rd_atomic = 1;
        attributes.min_rnr_timer = route.not_ready_timer;
        attributes.ah_attr.port_num = route.port;
        attributes.ah_attr.dlid = route.peer_lid;
        attributes.ah_attr.sl = route.service_level;
        if let Some((own_index, peer)) = route.global {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.sgid_index = own_index;
            attributes.ah_attr.grh.dgid = sys::ibv_gid { raw: peer };
            attributes.ah_attr.grh.hop_limit = 64;
            attributes.ah_attr.grh.traffic_class = route.traffic_class;
        }
        let given = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to ready to receive", &mut attributes, given)
    }

    /// Ready to receive to ready to send.
    pub(crate) fn send_with(&self, patience: &Patience, first_packet: u32) -> Outcome<()> {
        use sys::ibv_qp_attr_mask as mask;
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
        attributes.timeout = patience.timeout;
        attributes.retry_cnt = patience.retries;
        attributes.rnr_retry = patience.not_ready_retries;
        attributes.sq_psn = first_packet;
        attributes.max_rd_atomic = 1;
        let given = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to ready to send", &mut attributes, given)
    }

    /// Any state to error: nothing is sent any more, and nothing of the other side is taken.
    pub(crate) fn sever(&self) -> Outcome<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        self.modify("ibv_modify_qp to error", &mut attributes, sys::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// Lets so many writes with an immediate come in.
    #[inline]
    pub(crate) fn post_receives<const COUNT: usize>(&self, id: u64) -> Outcome<()> {
        let empty = || sys::ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
        let mut requests: [_; COUNT] = std::array::from_fn(|_| empty());
        let first = requests.as_mut_ptr();
        for index in 1..COUNT {
            requests[index - 1].next = first.wrapping_add(index);
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: a queue pair that is alive; the requests are read before the call returns, and receive nothing by themselves.
        checked("ibv_post_recv", unsafe { sys::ibv_post_recv(self.raw.as_ptr(), requests.as_mut_ptr(), &mut refused) })
    }

    /// Sends a write without a byte, whose immediate is all it brings.
    #[inline]
    pub(crate) fn post_notice(&self, id: u64, immediate: u32, signaled: bool) -> Outcome<()> {
        let mut request = no_request();
        request.wr_id = id;
        request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        request.imm_data_invalidated_rkey_union = sys::imm_data_invalidated_rkey_union_t { imm_data: immediate.to_be() };
        request.send_flags = if signaled { SIGNALED } else { 0 };
        let mut refused = std::ptr::null_mut();
        // SAFETY: a queue pair that is alive; the request is read before the call returns, and names no memory.
        checked("ibv_post_send", unsafe { sys::ibv_post_send(self.raw.as_ptr(), &mut request, &mut refused) })
    }

    /// Sends a write without a byte and without an immediate: nobody hears of it, but it fails if the other end is gone.
    pub(crate) fn post_probe(&self, id: u64) -> Outcome<()> {
        let mut request = no_request();
        request.wr_id = id;
        request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        request.send_flags = SIGNALED;
        let mut refused = std::ptr::null_mut();
        // SAFETY: a queue pair that is alive; the request is read before the call returns, and names no memory.
        checked("ibv_post_send", unsafe { sys::ibv_post_send(self.raw.as_ptr(), &mut request, &mut refused) })
    }

    /// Posts a whole list.
    ///
    /// # Safety
    /// Until the completion of its last request, nobody writes the sources, and what is written on the other side is given to
    /// this side by the protocol.
    #[inline]
    pub(crate) unsafe fn post(&self, list: &mut SendList) -> Outcome<()> {
        let mut refused = std::ptr::null_mut();
        // SAFETY: a queue pair that is alive; a list whose links point into itself, read before the call returns, and whose
        // sources it keeps registered; the rest is the caller's promise.
        checked("ibv_post_send", unsafe { sys::ibv_post_send(self.raw.as_ptr(), list.request(0), &mut refused) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_qp, destroyed once.
        destroyed("ibv_destroy_qp", unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) });
    }
}

const SIGNALED: u32 = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = sys::ibv_send_flags::IBV_SEND_INLINE.0;

fn no_attributes() -> sys::ibv_qp_attr {
    // SAFETY: plain numbers, for which all zero is a value.
    unsafe { std::mem::zeroed() }
}

fn no_request() -> sys::ibv_send_wr {
    // SAFETY: plain numbers and pointers, for which all zero is a value.
    unsafe { std::mem::zeroed() }
}

/// A piece of registered memory to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) key: u32,
}

/// One write: pieces here, gathered into one range there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) to_address: u64,
    pub(crate) to_key: u32,
    /// Whether the bytes travel in the request itself.
    pub(crate) inline: bool,
}

/// Linked write requests, ready to be posted again and again. Only the last is signaled.
pub(crate) struct SendList {
    /// Both are owned, and reached only through these pointers, as the requests hold such pointers, too.
    requests: NonNull<[sys::ibv_send_wr]>,
    pieces: NonNull<[sys::ibv_sge]>,
    /// The memory of the pieces.
    _sources: Vec<Rc<Region>>,
}

impl std::fmt::Debug for SendList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendList({} requests)", self.requests.len())
    }
}

impl SendList {
    /// At least one write. With `notifies` the last carries an immediate, which [`immediate`](Self::immediate) sets.
    pub(crate) fn new(id: u64, writes: &[Write], notifies: bool, sources: Vec<Rc<Region>>) -> Self {
        assert!(!writes.is_empty(), "bug: a list without a request");
        let pieces = writes.iter().flat_map(|write| &write.pieces);
        let pieces: Box<[_]> =
            pieces.map(|piece| sys::ibv_sge { addr: piece.address, length: piece.len_bytes, lkey: piece.key }).collect();
        let pieces = NonNull::from(Box::leak(pieces));
        let requests: Box<[_]> = writes.iter().map(|_| no_request()).collect();
        let requests = NonNull::from(Box::leak(requests));
        let (first, mut next_piece) = (requests.as_ptr().cast::<sys::ibv_send_wr>(), pieces.as_ptr().cast::<sys::ibv_sge>());
        let last = writes.len() - 1;
        for (index, write) in writes.iter().enumerate() {
            let mut request = no_request();
            request.wr_id = id;
            request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            request.num_sge = write.pieces.len() as i32;
            if !write.pieces.is_empty() {
                request.sg_list = next_piece;
                next_piece = next_piece.wrapping_add(write.pieces.len());
            }
            request.wr = sys::wr_t { rdma: sys::rdma_t { remote_addr: write.to_address, rkey: write.to_key } };
            if write.inline {
                request.send_flags |= INLINE;
            }
            if index < last {
                request.next = first.wrapping_add(index + 1);
            } else {
                request.send_flags |= SIGNALED;
                if notifies {
                    request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                }
            }
            // SAFETY: there are as many requests as writes.
            unsafe { first.wrapping_add(index).write(request) };
        }
        Self { requests, pieces, _sources: sources }
    }

    /// How many requests it has.
    pub(crate) fn len(&self) -> u32 {
        self.requests.len() as u32
    }

    fn request(&self, index: usize) -> *mut sys::ibv_send_wr {
        self.requests.as_ptr().cast::<sys::ibv_send_wr>().wrapping_add(index)
    }

    /// Sets what the last request brings along.
    #[inline]
    pub(crate) fn immediate(&mut self, immediate: u32) {
        let last = self.request(self.requests.len() - 1);
        // SAFETY: the list owns its requests and has at least one; nobody else looks at them now.
        let last = unsafe { &mut *last };
        last.imm_data_invalidated_rkey_union = sys::imm_data_invalidated_rkey_union_t { imm_data: immediate.to_be() };
    }
}

impl Drop for SendList {
    fn drop(&mut self) {
        // SAFETY: leaked in `new`, freed once.
        drop(unsafe { Box::from_raw(self.requests.as_ptr()) });
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(self.pieces.as_ptr()) });
    }
}

/// The length of the network prefix of every address of this host's interfaces: index of the interface, address (IPv4 mapped into
/// IPv6), bits.
pub(crate) fn interface_addresses() -> Vec<(u32, [u8; 16], u8)> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is written before the call returns.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: null or an entry of the list, which is alive until freeifaddrs below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: a terminated string of the same list.
        let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
        if let (Some(address), Some(mask)) = (socket_address(entry.ifa_addr), socket_address(entry.ifa_netmask)) {
            // A mapped mask has the first 96 bits clear.
            let mapped = address[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let bits = mask[if mapped { 12 } else { 0 }..].iter().map(|byte| byte.count_ones() as u8).sum::<u8>();
            found.push((index, address, if mapped { 96 + bits } else { bits }));
        }
    }
    // SAFETY: made by getifaddrs, freed once.
    unsafe { libc::freeifaddrs(first) };
    found
}

fn socket_address(address: *const libc::sockaddr) -> Option<[u8; 16]> {
    // SAFETY: null or an address whose family says how long it is.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family; copied, as nothing is said of its alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(std::net::Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).to_ipv6_mapped().octets())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family; copied, as nothing is said of its alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(address.sin6_addr.s6_addr)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_and_bytes_fit() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!((mtu_code(bytes), mtu_bytes(code)), (code, bytes));
        }
        assert_eq!(mtu_code(0), 1);
    }

    #[test]
    fn a_queue_pair_that_breaks_has_room_to_complete_everything_posted() {
        let depths = Depths { sends: 512, receives: 256, pieces: 1, inline_bytes: 0 };
        assert_eq!(depths.completions(), 768);
    }

    #[test]
    fn no_field_is_read_that_a_provider_may_leave_unwritten() {
        use sys::ibv_wc_opcode as opcode;
        let written = |status: u32, others: &[(usize, u32)]| {
            let mut entry = MaybeUninit::<sys::ibv_wc>::uninit();
            let raw = entry.as_mut_ptr();
            let field = |offset: usize| raw.cast::<u8>().wrapping_add(offset);
            // SAFETY: inside the entry.
            unsafe { field(offset_of!(sys::ibv_wc, wr_id)).cast::<u64>().write(7) };
            for &(offset, value) in [(offset_of!(sys::ibv_wc, status), status)].iter().chain(others) {
                // SAFETY: as above.
                unsafe { field(offset).cast::<u32>().write(value) };
            }
            // SAFETY: what a provider writes is written.
            unsafe { completion(raw) }
        };
        let opcode_at = offset_of!(sys::ibv_wc, opcode);
        let immediate = (offset_of!(sys::ibv_wc, imm_data_invalidated_rkey_union), 0x1234u32.to_be());
        let success = Completion { id: 7, status: 0, vendor: 0, immediate: None };
        assert_eq!(written(0, &[(opcode_at, opcode::IBV_WC_RDMA_WRITE)]), success);
        let received = written(0, &[(opcode_at, opcode::IBV_WC_RECV_RDMA_WITH_IMM), immediate]);
        assert_eq!(received, Completion { immediate: Some(0x1234), ..success });
        assert_eq!(written(12, &[(offset_of!(sys::ibv_wc, vendor_err), 0x81)]), Completion { status: 12, vendor: 0x81, ..success });
    }

    #[test]
    fn a_list_links_its_requests_and_signals_the_last() {
        let write = |pieces: usize, inline| Write {
            pieces: (0..pieces).map(|i| Piece { address: i as u64, len_bytes: 8, key: 7 }).collect(),
            to_address: 64,
            to_key: 9,
            inline,
        };
        let mut list = SendList::new(5, &[write(2, false), write(0, false), write(1, true)], true, Vec::new());
        list.immediate(0x1234);
        // SAFETY: the list is alive and has three requests.
        let requests = unsafe { list.requests.as_ref() };
        assert_eq!(list.len(), 3);
        assert!(std::ptr::eq(requests[0].next, &requests[1]) && std::ptr::eq(requests[1].next, &requests[2]));
        assert!(requests[2].next.is_null() && requests[1].sg_list.is_null());
        assert_eq!(requests[2].sg_list, requests[0].sg_list.wrapping_add(2));
        assert_eq!([0, 1, 2].map(|i| requests[i].send_flags), [0, 0, SIGNALED | INLINE]);
        assert_eq!(requests[2].opcode, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
        // SAFETY: set above.
        assert_eq!(unsafe { requests[2].imm_data_invalidated_rkey_union.imm_data }, 0x1234u32.to_be());
    }

    #[test]
    fn loopback_has_its_network_prefix() {
        let loopback = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        let found = interface_addresses();
        assert!(found.iter().any(|(_, address, bits)| *address == loopback && *bits == 96 + 8), "{found:?}");
    }
}
