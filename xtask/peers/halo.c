/*
 * halo.c: the exchange of six messages with six neighbors, in the ways MPI offers, and its floor.
 *
 *   mpicc -O3 -march=native -DBACKEND='"openmpi"' halo.c -o halo
 *   mpirun --bind-to core -np 2 ./halo --other-rank --bytes 1024
 *   mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np 8 ./halo --dims 2x2x2 --yield --bytes 1024
 *
 * Ranks: a periodic torus, row-major: rank = (x * dims[1] + y) * dims[2] + z. Neighbors 0 and 1 are the ranks before
 * and after in x, 2 and 3 in y, 4 and 5 in z; the message to neighbor i lands in slot i ^ 1 there.
 * With --other-rank (two ranks) all six neighbors are the other rank, so that no rank sends to itself.
 */
#define _GNU_SOURCE
#include "measure.h"

#include <mpi.h>
#include <stdatomic.h>

#ifndef BACKEND
#define BACKEND "mpi"
#endif

enum { NEIGHBORS = 6 };

static int rank, ranks, yields;
static int neighbor[NEIGHBORS];
static MPI_Comm torus;     /* the ranks in the order of the torus */
static MPI_Comm neighbors; /* the same with its graph, for the neighbor collective */
static size_t bytes;       /* of one message */
static char *source;       /* six messages */
static char *received;     /* six messages, two-sided */
static MPI_Request requests[2 * NEIGHBORS];
static MPI_Win window;
static MPI_Group partners;
static char *exposed; /* this rank's memory in `window` */

static int slot_at_neighbor(int i) {
    return i ^ 1;
}

/* Two-sided. */

static void nothing(void) {
}

static char *received_two_sided(void) {
    return received;
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

static void persistent(void) {
    MPI_Startall(2 * NEIGHBORS, requests);
    MPI_Waitall(2 * NEIGHBORS, requests, MPI_STATUSES_IGNORE);
}

static void persistent_tear_down(void) {
    for (int i = 0; i < 2 * NEIGHBORS; i++)
        MPI_Request_free(&requests[i]);
}

static void neighbor_alltoall(void) {
    MPI_Neighbor_alltoall(source, (int)bytes, MPI_BYTE, received, (int)bytes, MPI_BYTE, neighbors);
}

/* One-sided. */

static char *received_one_sided(void) {
    return exposed;
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

static char *received_floor(void) {
    return shared_here + PAGE;
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

struct variant {
    const char *backend;
    const char *mode;
    void (*set_up)(void);
    void (*exchange)(void);
    void (*tear_down)(void);
    char *(*received)(void);
};

static const struct variant variants[] = {
    {BACKEND, "isend_irecv", nothing, isend_irecv, nothing, received_two_sided},
    {BACKEND, "persistent", persistent_set_up, persistent, persistent_tear_down, received_two_sided},
    {BACKEND, "neighbor_alltoall", nothing, neighbor_alltoall, nothing, received_two_sided},
    {BACKEND, "pscw", pscw_set_up, pscw, pscw_tear_down, received_one_sided},
    {BACKEND, "fence", fence_set_up, fence, window_tear_down, received_one_sided},
    {"floor", "memcpy_flag", floor_set_up, floor_exchange, window_tear_down, received_floor},
};

static const struct variant *current;

/* The slowest rank counts. */
static double run(long iterations) {
    MPI_Barrier(torus);
    double start = now_us();
    for (long i = 0; i < iterations; i++)
        current->exchange();
    double took = now_us() - start, slowest = 0;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, torus);
    return slowest;
}

static long agree(long value) {
    MPI_Bcast(&value, 1, MPI_LONG, 0, torus);
    return value;
}

static long count_wrong(void) {
    long mine = 0, all = 0;
    for (int i = 0; i < NEIGHBORS; i++)
        mine |= !holds_only(current->received() + (size_t)i * bytes, bytes, pattern(neighbor[i]));
    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, torus);
    return all;
}

static void find_neighbors(const struct options *o) {
    int periodic[3] = {1, 1, 1};
    if (o->dims[0] * o->dims[1] * o->dims[2] != ranks)
        die("--dims does not multiply to the number of ranks");
    MPI_Cart_create(MPI_COMM_WORLD, 3, o->dims, periodic, 0, &torus);
    for (int d = 0; d < 3; d++)
        MPI_Cart_shift(torus, d, 1, &neighbor[2 * d], &neighbor[2 * d + 1]);
    neighbors = torus;
    if (!o->other_rank)
        return;
    if (ranks != 2)
        die("--other-rank is for 2 ranks");
    for (int i = 0; i < NEIGHBORS; i++)
        neighbor[i] = 1 - rank;
    MPI_Dist_graph_create_adjacent(torus, NEIGHBORS, neighbor, MPI_UNWEIGHTED, NEIGHBORS, neighbor, MPI_UNWEIGHTED,
                                   MPI_INFO_NULL, 0, &neighbors);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct options o = parse_options(argc, argv);
    struct program program = {.run = run, .agree = agree, .count_wrong = count_wrong, .divisor = 1};
    yields = o.yield;
    find_neighbors(&o);
    source = page_aligned(NEIGHBORS * largest(&o), pattern(rank));
    received = page_aligned(NEIGHBORS * largest(&o), 0);

    int floor_only = o.only != NULL && strcmp(o.only, "floor") == 0;
    if (rank == 0)
        print_header();
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        current = &variants[v];
        if (strcmp(current->backend, "floor") == 0 ? !floor_only : floor_only || !wanted(&o, current->mode))
            continue;
        for (int i = 0; i < o.sizes; i++) {
            bytes = o.bytes[i];
            memset(received, 0, NEIGHBORS * largest(&o));
            current->set_up();
            measure(&o, &program, (struct label){"halo", current->backend, current->mode, ranks}, rank, bytes);
            current->tear_down();
        }
    }
    MPI_Finalize();
    return 0;
}
