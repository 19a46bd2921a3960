/*
 * array.c: the exchange of the six ghost faces of a cube of doubles, as programs on MPI do it with derived data types; and what copying as
 * many bytes takes.
 *
 *   mpicc -O3 -march=native -DBACKEND='"openmpi"' array.c -o array
 *   mpirun --bind-to core -np 2 ./array --dims 2x1x1 --bytes 8192
 *
 * Every rank has n * n * n doubles and a ghost layer around them, row-major. `--bytes` are those of a face: 8 * n * n.
 * Ranks are a periodic torus, as in halo.c; where it is one rank wide, a rank sends to itself.
 */
#define _GNU_SOURCE
#include "measure.h"

#include <math.h>
#include <mpi.h>

#ifndef BACKEND
#define BACKEND "mpi"
#endif

enum { NEIGHBORS = 6 };

static int rank, ranks;
static int neighbor[NEIGHBORS]; /* before and after in each dimension */
static int dims[3], coordinates[3];
static MPI_Comm torus;
static size_t n;      /* cells in each dimension */
static double *cells; /* with ghosts */
static MPI_Datatype sent[NEIGHBORS], received[NEIGHBORS];
static MPI_Request requests[2 * NEIGHBORS];
static char *copied_from, *copied_to;

static size_t at(size_t x, size_t y, size_t z) {
    return (x * (n + 2) + y) * (n + 2) + z;
}

/* A number that says which cell of the whole torus this is; exact in a double. */
static double global(const int place[3], size_t x, size_t y, size_t z) {
    size_t extent = n * 64;
    return (double)((((size_t)place[0] * n + x) * extent + (size_t)place[1] * n + y) * extent + (size_t)place[2] * n + z);
}

static void fill(void) {
    for (size_t i = 0; i < (n + 2) * (n + 2) * (n + 2); i++)
        cells[i] = -1;
    for (size_t x = 0; x < n; x++)
        for (size_t y = 0; y < n; y++)
            for (size_t z = 0; z < n; z++)
                cells[at(x + 1, y + 1, z + 1)] = global(coordinates, x, y, z);
}

/* Every cell of the faces against the neighbor's numbers. */
static long count_wrong(void) {
    long mine = 0, all = 0;
    for (int i = 0; i < NEIGHBORS; i++) {
        int d = i / 2, place[3] = {coordinates[0], coordinates[1], coordinates[2]};
        place[d] = (place[d] + (i % 2 == 0 ? dims[d] - 1 : 1)) % dims[d];
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < n; b++) {
                size_t theirs[3], here[3];
                for (int e = 0, k = 0; e < 3; e++) {
                    theirs[e] = e == d ? (i % 2 == 0 ? n - 1 : 0) : (k++ == 0 ? a : b);
                    here[e] = e == d ? (i % 2 == 0 ? 0 : n + 1) : theirs[e] + 1;
                }
                mine |= cells[at(here[0], here[1], here[2])] != global(place, theirs[0], theirs[1], theirs[2]);
            }
    }
    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, torus);
    return all;
}

static long none_wrong(void) {
    return 0;
}

static void persistent_set_up(void) {
    int padded[3] = {(int)n + 2, (int)n + 2, (int)n + 2};
    for (int i = 0; i < NEIGHBORS; i++) {
        int d = i / 2, len[3] = {(int)n, (int)n, (int)n}, from[3] = {1, 1, 1}, to[3] = {1, 1, 1};
        len[d] = 1;
        from[d] = i % 2 == 0 ? 1 : (int)n;
        to[d] = i % 2 == 0 ? 0 : (int)n + 1;
        MPI_Type_create_subarray(3, padded, len, from, MPI_ORDER_C, MPI_DOUBLE, &sent[i]);
        MPI_Type_create_subarray(3, padded, len, to, MPI_ORDER_C, MPI_DOUBLE, &received[i]);
        MPI_Type_commit(&sent[i]);
        MPI_Type_commit(&received[i]);
    }
    for (int i = 0; i < NEIGHBORS; i++) {
        MPI_Recv_init(cells, 1, received[i], neighbor[i], i ^ 1, torus, &requests[i]);
        MPI_Send_init(cells, 1, sent[i], neighbor[i], i, torus, &requests[NEIGHBORS + i]);
    }
}

static void persistent(void) {
    MPI_Startall(2 * NEIGHBORS, requests);
    MPI_Waitall(2 * NEIGHBORS, requests, MPI_STATUSES_IGNORE);
}

static void persistent_tear_down(void) {
    for (int i = 0; i < 2 * NEIGHBORS; i++)
        MPI_Request_free(&requests[i]);
    for (int i = 0; i < NEIGHBORS; i++) {
        MPI_Type_free(&sent[i]);
        MPI_Type_free(&received[i]);
    }
}

/* As many bytes as the six faces have, from one piece of memory to another. */

static void nothing(void) {
}

static void copy(void) {
    for (size_t i = 0; i < NEIGHBORS; i++)
        memcpy(copied_to + i * 8 * n * n, copied_from + i * 8 * n * n, 8 * n * n);
    __asm__ volatile("" ::: "memory");
}

struct variant {
    const char *backend;
    const char *mode;
    void (*set_up)(void);
    void (*exchange)(void);
    void (*tear_down)(void);
    long (*count_wrong)(void);
};

static const struct variant variants[] = {
    {BACKEND, "persistent", persistent_set_up, persistent, persistent_tear_down, count_wrong},
    {"floor", "memcpy", nothing, copy, nothing, none_wrong},
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

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct options o = parse_options(argc, argv);
    int periodic[3] = {1, 1, 1};
    memcpy(dims, o.dims, sizeof dims);
    if (dims[0] * dims[1] * dims[2] != ranks)
        die("--dims does not multiply to the number of ranks");
    MPI_Cart_create(MPI_COMM_WORLD, 3, dims, periodic, 0, &torus);
    MPI_Cart_coords(torus, rank, 3, coordinates);
    for (int d = 0; d < 3; d++)
        MPI_Cart_shift(torus, d, 1, &neighbor[2 * d], &neighbor[2 * d + 1]);

    int floor_only = o.only != NULL && strcmp(o.only, "floor") == 0;
    if (rank == 0)
        print_header();
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        current = &variants[v];
        if (strcmp(current->backend, "floor") == 0 ? !floor_only : floor_only || !wanted(&o, current->mode))
            continue;
        for (int i = 0; i < o.sizes; i++) {
            n = (size_t)lround(sqrt((double)o.bytes[i] / 8));
            if (8 * n * n != o.bytes[i])
                die("--bytes is not 8 times a square: the bytes of a face");
            cells = (double *)page_aligned(8 * (n + 2) * (n + 2) * (n + 2), 0);
            copied_from = page_aligned(NEIGHBORS * o.bytes[i], 1);
            copied_to = page_aligned(NEIGHBORS * o.bytes[i], 2);
            fill();
            current->set_up();
            struct program program = {.run = run, .agree = agree, .count_wrong = current->count_wrong, .divisor = 1};
            measure(&o, &program, (struct label){"array", current->backend, current->mode, ranks}, rank, o.bytes[i]);
            current->tear_down();
            free(cells);
            free(copied_from);
            free(copied_to);
        }
    }
    MPI_Finalize();
    return 0;
}
