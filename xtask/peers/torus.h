/*
 * torus.h: what the programs share whose ranks are a torus under MPI: where the ranks are, how their variants are run and compared, and
 * the order of it all. Knows nothing of what travels: a program plugs in its variants, its memory and its check.
 *
 * Ranks: a periodic torus, row-major: rank = (x * dims[1] + y) * dims[2] + z. Neighbors 0 and 1 are the ranks before and after in x,
 * 2 and 3 in y, 4 and 5 in z. Where the torus is one rank wide, a rank is its own neighbor.
 */
#ifndef TORUS_H
#define TORUS_H

#include "measure.h"

#include <mpi.h>

#ifndef BACKEND
#define BACKEND "mpi"
#endif

enum { NEIGHBORS = 6 };

static int rank, ranks;
static int dims[3];
static int neighbor[NEIGHBORS];
static MPI_Comm torus; /* the ranks in the order of the torus */
static MPI_Request requests[2 * NEIGHBORS];

/* A way to do the exchange. */
struct variant {
    const char *backend; /* "floor" is measured only by this name */
    const char *mode;
    void (*set_up)(void);
    void (*exchange)(void);
    void (*tear_down)(void);
    /* Whether this rank holds bytes that are not what its neighbors sent. */
    long (*is_wrong)(void);
};

/* What a program plugs in around the exchanges of one size. */
struct memory {
    void (*prepare)(const struct options *o, size_t bytes);
    void (*release)(void);
};

static const struct variant *current;

static void nothing(void) {
}

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
    long mine = current->is_wrong(), all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, torus);
    return all;
}

static void persistent(void) {
    MPI_Startall(2 * NEIGHBORS, requests);
    MPI_Waitall(2 * NEIGHBORS, requests, MPI_STATUSES_IGNORE);
}

static void free_requests(void) {
    for (int i = 0; i < 2 * NEIGHBORS; i++)
        MPI_Request_free(&requests[i]);
}

/* Starts MPI and finds the neighbors. */
static struct options set_up_torus(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct options o = parse_options(argc, argv);
    int periodic[3] = {1, 1, 1};
    memcpy(dims, o.dims, sizeof dims);
    if (dims[0] * dims[1] * dims[2] != ranks)
        die("--dims does not multiply to the number of ranks");
    MPI_Cart_create(MPI_COMM_WORLD, 3, dims, periodic, 0, &torus);
    for (int d = 0; d < 3; d++)
        MPI_Cart_shift(torus, d, 1, &neighbor[2 * d], &neighbor[2 * d + 1]);
    return o;
}

/* Measures every size of every variant that is wanted, and ends MPI. */
static void measure_variants(const struct options *o, const char *bench, const struct variant *variants, size_t count,
                             struct memory memory) {
    struct program program = {.run = run, .agree = agree, .count_wrong = count_wrong, .divisor = 1};
    int floor_only = o->only != NULL && strcmp(o->only, "floor") == 0;
    if (rank == 0)
        print_header();
    for (size_t v = 0; v < count; v++) {
        current = &variants[v];
        if (strcmp(current->backend, "floor") == 0 ? !floor_only : floor_only || !wanted(o, current->mode))
            continue;
        for (int i = 0; i < o->sizes; i++) {
            memory.prepare(o, o->bytes[i]);
            current->set_up();
            measure(o, &program, (struct label){bench, current->backend, current->mode, ranks}, rank, o->bytes[i]);
            current->tear_down();
            memory.release();
        }
    }
    MPI_Finalize();
}

#endif
