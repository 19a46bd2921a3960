/*
 * halo.c: the exchange of six messages with six neighbors, in the ways MPI offers, and its floor.
 *
 *   mpicc -O3 -march=native -DBACKEND='"openmpi"' halo.c -o halo
 *   mpirun --bind-to core -np 2 ./halo --other-rank --bytes 1024
 *   mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np 8 ./halo --dims 2x2x2 --yield --bytes 1024
 *
 * The ranks are those of torus.h; the message to neighbor i lands in slot i ^ 1 there.
 * With --other-rank (two ranks) all six neighbors are the other rank, so that no rank sends to itself.
 */
#define _GNU_SOURCE
#include "torus.h"

#include <stdatomic.h>

static int yields;
static MPI_Comm neighbors; /* the torus with its graph, for the neighbor collective */
static size_t bytes;       /* of one message */
static char *source;       /* six messages */
static char *received;     /* six messages, two-sided */
static MPI_Win window;
static MPI_Group partners;
static char *exposed; /* this rank's memory in `window` */

static int slot_at_neighbor(int i) {
    return i ^ 1;
}

static long is_wrong(const char *messages) {
    long wrong = 0;
    for (int i = 0; i < NEIGHBORS; i++)
        wrong |= !holds_only(messages + (size_t)i * bytes, bytes, pattern(neighbor[i]));
    return wrong;
}

/* Two-sided. */

static long is_wrong_two_sided(void) {
    return is_wrong(received);
}

static void isend_irecv(void) {
    int count = (int)bytes;
    for (int i = 0; i < NEIGHBORS; i++)
        MPI_Irecv(received + i * bytes, count, MPI_BYTE, neighbor[i], slot_at_neighbor(i), torus, &requests[i]);
    for (int i = 0; i < NEIGHBORS; i++)
        MPI_Isend(source + i * bytes, count, MPI_BYTE, neighbor[i], i, torus, &requests[NEIGHBORS + i]);
    MPI_Waitall(2 * NEIGHBORS, requests, MPI_STATUSES_IGNORE);
}

static void persistent_set_up(void) {
    int count = (int)bytes;
    for (int i = 0; i < NEIGHBORS; i++)
        MPI_Recv_init(received + i * bytes, count, MPI_BYTE, neighbor[i], slot_at_neighbor(i), torus, &requests[i]);
    for (int i = 0; i < NEIGHBORS; i++)
        MPI_Send_init(source + i * bytes, count, MPI_BYTE, neighbor[i], i, torus, &requests[NEIGHBORS + i]);
}

static void neighbor_alltoall(void) {
    MPI_Neighbor_alltoall(source, (int)bytes, MPI_BYTE, received, (int)bytes, MPI_BYTE, neighbors);
}

/* One-sided. */

static long is_wrong_one_sided(void) {
    return is_wrong(exposed);
}

static void window_set_up(void) {
    MPI_Win_allocate((MPI_Aint)round_up_to_page(NEIGHBORS * bytes), 1, MPI_INFO_NULL, torus, &exposed, &window);
    memset(exposed, 0, NEIGHBORS * bytes);
    MPI_Barrier(torus);
}

static void window_tear_down(void) {
    MPI_Win_free(&window);
}

static void put_all(void) {
    for (int i = 0; i < NEIGHBORS; i++)
        MPI_Put(source + i * bytes, (int)bytes, MPI_BYTE, neighbor[i], (MPI_Aint)slot_at_neighbor(i) * (MPI_Aint)bytes,
                (int)bytes, MPI_BYTE, window);
}

static void pscw_set_up(void) {
    int distinct[NEIGHBORS], count = 0;
    for (int i = 0; i < NEIGHBORS; i++) {
        int seen = 0;
        for (int j = 0; j < count; j++)
            seen |= distinct[j] == neighbor[i];
        if (!seen)
            distinct[count++] = neighbor[i];
    }
    MPI_Group all;
    MPI_Comm_group(torus, &all);
    MPI_Group_incl(all, count, distinct, &partners);
    MPI_Group_free(&all);
    window_set_up();
}

static void pscw(void) {
    MPI_Win_post(partners, 0, window);
    MPI_Win_start(partners, 0, window);
    put_all();
    MPI_Win_complete(window);
    MPI_Win_wait(window);
}

static void pscw_tear_down(void) {
    window_tear_down();
    MPI_Group_free(&partners);
}

static void fence_set_up(void) {
    window_set_up();
    MPI_Win_fence(0, window);
}

static void fence(void) {
    put_all();
    MPI_Win_fence(0, window);
}

/* The floor: memcpy and a flag for each message, in memory that the ranks share. */

struct line {
    _Alignas(64) _Atomic uint64_t epoch;
};

/* What a rank shares: six flags in the first page, then six messages. Nobody reads them during a measurement, so a
 * neighbor that is one epoch ahead does no harm, and the floor pays for no credit. */
static char *shared_by[NEIGHBORS];
static char *shared_here;
static uint64_t epoch;

static long is_wrong_floor(void) {
    return is_wrong(shared_here + PAGE);
}

static void floor_set_up(void) {
    size_t size = PAGE + round_up_to_page(NEIGHBORS * bytes);
    MPI_Win_allocate_shared((MPI_Aint)size, 1, MPI_INFO_NULL, torus, &shared_here, &window);
    memset(shared_here, 0, size);
    for (int i = 0; i < NEIGHBORS; i++) {
        MPI_Aint their_size;
        int unit;
        MPI_Win_shared_query(window, neighbor[i], &their_size, &unit, &shared_by[i]);
    }
    epoch = 0;
    MPI_Barrier(torus);
}

static void floor_exchange(void) {
    epoch++;
    for (int i = 0; i < NEIGHBORS; i++) {
        struct line *flags = (struct line *)shared_by[i];
        int slot = slot_at_neighbor(i);
        memcpy(shared_by[i] + PAGE + (size_t)slot * bytes, source + (size_t)i * bytes, bytes);
        /* Release: pairs with the Acquire below; publishes the copy of this epoch. */
        atomic_store_explicit(&flags[slot].epoch, epoch, memory_order_release);
    }
    struct line *mine = (struct line *)shared_here;
    for (int i = 0; i < NEIGHBORS; i++) {
        int spins = 0;
        while (atomic_load_explicit(&mine[i].epoch, memory_order_acquire) < epoch) {
            if (yields && ++spins > 50) {
                sched_yield();
                spins = 0;
            }
        }
    }
}

static const struct variant variants[] = {
    {BACKEND, "isend_irecv", nothing, isend_irecv, nothing, is_wrong_two_sided},
    {BACKEND, "persistent", persistent_set_up, persistent, free_requests, is_wrong_two_sided},
    {BACKEND, "neighbor_alltoall", nothing, neighbor_alltoall, nothing, is_wrong_two_sided},
    {BACKEND, "pscw", pscw_set_up, pscw, pscw_tear_down, is_wrong_one_sided},
    {BACKEND, "fence", fence_set_up, fence, window_tear_down, is_wrong_one_sided},
    {"floor", "memcpy_flag", floor_set_up, floor_exchange, window_tear_down, is_wrong_floor},
};

static void use_the_other_rank(void) {
    if (ranks != 2)
        die("--other-rank is for 2 ranks");
    for (int i = 0; i < NEIGHBORS; i++)
        neighbor[i] = 1 - rank;
    MPI_Dist_graph_create_adjacent(torus, NEIGHBORS, neighbor, MPI_UNWEIGHTED, NEIGHBORS, neighbor, MPI_UNWEIGHTED,
                                   MPI_INFO_NULL, 0, &neighbors);
}

static void prepare(const struct options *o, size_t size) {
    bytes = size;
    memset(received, 0, NEIGHBORS * largest(o));
}

int main(int argc, char **argv) {
    struct options o = set_up_torus(argc, argv);
    yields = o.yield;
    neighbors = torus;
    if (o.other_rank)
        use_the_other_rank();
    source = page_aligned(NEIGHBORS * largest(&o), pattern(rank));
    received = page_aligned(NEIGHBORS * largest(&o), 0);
    measure_variants(&o, "halo", variants, sizeof variants / sizeof variants[0], (struct memory){prepare, nothing});
    return 0;
}
