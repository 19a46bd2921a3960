/*
 * array.c: the exchange of the six ghost faces of a cube of doubles, as programs on MPI do it with derived data types; and what copying as
 * many bytes takes.
 *
 *   mpicc -O3 -march=native -DBACKEND='"openmpi"' array.c -o array
 *   mpirun --bind-to core -np 2 ./array --dims 2x1x1 --bytes 8192
 *
 * Every rank has n * n * n doubles and a ghost layer around them, row-major. `--bytes` are those of a face: 8 * n * n.
 * The ranks are those of torus.h.
 */
#define _GNU_SOURCE
#include "torus.h"

#include <math.h>

static int coordinates[3];
static size_t n;      /* cells in each dimension */
static double *cells; /* with ghosts */
static MPI_Datatype sent[NEIGHBORS], received[NEIGHBORS];
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
static long is_wrong(void) {
    long wrong = 0;
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
                wrong |= cells[at(here[0], here[1], here[2])] != global(place, theirs[0], theirs[1], theirs[2]);
            }
    }
    return wrong;
}

static long never_wrong(void) {
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

static void persistent_tear_down(void) {
    free_requests();
    for (int i = 0; i < NEIGHBORS; i++) {
        MPI_Type_free(&sent[i]);
        MPI_Type_free(&received[i]);
    }
}

/* As many bytes as the six faces have, from one piece of memory to another. */

static void copy(void) {
    for (size_t i = 0; i < NEIGHBORS; i++)
        memcpy(copied_to + i * 8 * n * n, copied_from + i * 8 * n * n, 8 * n * n);
    __asm__ volatile("" ::: "memory");
}

static const struct variant variants[] = {
    {BACKEND, "persistent", persistent_set_up, persistent, persistent_tear_down, is_wrong},
    {"floor", "memcpy", nothing, copy, nothing, never_wrong},
};

static void prepare(const struct options *o, size_t bytes) {
    (void)o;
    n = (size_t)lround(sqrt((double)bytes / 8));
    if (8 * n * n != bytes)
        die("--bytes is not 8 times a square: the bytes of a face");
    cells = (double *)page_aligned(8 * (n + 2) * (n + 2) * (n + 2), 0);
    copied_from = page_aligned(NEIGHBORS * bytes, 1);
    copied_to = page_aligned(NEIGHBORS * bytes, 2);
    fill();
}

static void release(void) {
    free(cells);
    free(copied_from);
    free(copied_to);
}

int main(int argc, char **argv) {
    struct options o = set_up_torus(argc, argv);
    MPI_Cart_coords(torus, rank, 3, coordinates);
    measure_variants(&o, "array", variants, sizeof variants / sizeof variants[0], (struct memory){prepare, release});
    return 0;
}
