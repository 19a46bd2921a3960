/*
 * put_pscw.c: one put and its notification on MPI-3 RMA, post/start/complete/wait; one way, two ranks.
 *
 *   mpicc -O3 -march=native -DBACKEND='"openmpi"' put_pscw.c -o put_pscw
 *   mpirun --bind-to core -np 2 ./put_pscw --bytes 8,1024
 */
#define _GNU_SOURCE
#include "measure.h"

#include <mpi.h>

#ifndef BACKEND
#define BACKEND "mpi"
#endif

static MPI_Win window;
static MPI_Group other;
static char *received;
static char *source;
static int bytes;
static int rank;

static inline void put(void) {
    MPI_Win_start(other, 0, window);
    MPI_Put(source, bytes, MPI_BYTE, 1 - rank, 0, bytes, MPI_BYTE, window);
    MPI_Win_complete(window);
}

/* The window is posted early, before this rank's own put, as a program that hides the credit would do. */
static double run(long iterations) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_us();
    for (long i = 0; i < iterations; i++) {
        MPI_Win_post(other, 0, window);
        if (rank == 0)
            put();
        MPI_Win_wait(window);
        if (rank == 1)
            put();
    }
    return now_us() - start;
}

static long agree(long value) {
    MPI_Bcast(&value, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    return value;
}

static long count_wrong(void) {
    long mine = !holds_only(received, (size_t)bytes, pattern(1 - rank)), all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        die("put_pscw runs on 2 ranks");
    struct options o = parse_options(argc, argv);
    struct program program = {.run = run, .agree = agree, .count_wrong = count_wrong, .divisor = 2};

    MPI_Group world;
    int peer = 1 - rank;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &peer, &other);
    MPI_Group_free(&world);
    source = page_aligned(largest(&o), pattern(rank));

    if (rank == 0)
        print_header();
    for (int i = 0; i < o.sizes; i++) {
        bytes = (int)o.bytes[i];
        MPI_Win_allocate((MPI_Aint)round_up_to_page(o.bytes[i]), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &received, &window);
        memset(received, 0, o.bytes[i]);
        measure(&o, &program, (struct label){"put", BACKEND, "pscw", 2}, rank, o.bytes[i]);
        MPI_Win_free(&window);
    }
    MPI_Group_free(&other);
    MPI_Finalize();
    return 0;
}
