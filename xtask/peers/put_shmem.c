/*
 * put_shmem.c: one put and its notification on OpenSHMEM; one way, two PEs.
 * put_fence_p works on every version; put_signal (OpenSHMEM 1.5) is built with -DHAVE_PUT_SIGNAL.
 *
 *   oshcc -O3 -march=native put_shmem.c -o put_shmem && oshrun --bind-to core -np 2 ./put_shmem --bytes 8,1024
 */
#define _GNU_SOURCE
#include "measure.h"

#include <shmem.h>

static char *window; /* symmetric */
static uint64_t *flag, *answer;
static long *wrong;
static char *source;
static size_t bytes;
static int rank;
static uint64_t epoch;

static void put_fence_p(void) {
    shmem_putmem(window, source, bytes, 1 - rank);
    shmem_fence();
    shmem_uint64_p(flag, epoch, 1 - rank);
}

static void await_flag(void) {
    shmem_uint64_wait_until(flag, SHMEM_CMP_GE, epoch);
}

static double run_fence_p(long iterations) {
    shmem_barrier_all();
    double start = now_us();
    for (long i = 0; i < iterations; i++) {
        epoch++;
        if (rank == 0) {
            put_fence_p();
            await_flag();
        } else {
            await_flag();
            put_fence_p();
        }
    }
    return now_us() - start;
}

#ifdef HAVE_PUT_SIGNAL
static void put_signal(void) {
    shmem_putmem_signal(window, source, bytes, flag, epoch, SHMEM_SIGNAL_SET, 1 - rank);
}

static double run_put_signal(long iterations) {
    shmem_barrier_all();
    double start = now_us();
    for (long i = 0; i < iterations; i++) {
        epoch++;
        if (rank == 0) {
            put_signal();
            shmem_signal_wait_until(flag, SHMEM_CMP_GE, epoch);
        } else {
            shmem_signal_wait_until(flag, SHMEM_CMP_GE, epoch);
            put_signal();
        }
    }
    return now_us() - start;
}
#endif

static long agree(long value) {
    if (rank == 0)
        for (int pe = 0; pe < 2; pe++)
            shmem_uint64_p(answer, (uint64_t)value, pe);
    shmem_barrier_all();
    value = (long)*(volatile uint64_t *)answer;
    shmem_barrier_all();
    return value;
}

static long count_wrong(void) {
    shmem_barrier_all();
    if (!holds_only(window, bytes, pattern(1 - rank)))
        shmem_long_atomic_inc(wrong, 0);
    shmem_barrier_all();
    return shmem_long_g(wrong, 0);
}

static void measure_all(const struct options *o, const char *mode, double (*run)(long)) {
    struct program program = {.run = run, .agree = agree, .count_wrong = count_wrong, .divisor = 2};
    if (!wanted(o, mode))
        return;
    for (int i = 0; i < o->sizes; i++) {
        bytes = o->bytes[i];
        memset(window, 0, largest(o));
        measure(o, &program, (struct label){"put", "openshmem", mode, 2}, rank, bytes);
    }
}

int main(int argc, char **argv) {
    shmem_init();
    rank = shmem_my_pe();
    if (shmem_n_pes() != 2)
        die("put_shmem runs on 2 PEs");
    struct options o = parse_options(argc, argv);
    window = shmem_malloc(round_up_to_page(largest(&o)));
    flag = shmem_calloc(1, 128);
    answer = shmem_calloc(1, 128);
    wrong = shmem_calloc(1, 128);
    source = page_aligned(largest(&o), pattern(rank));

    if (rank == 0)
        print_header();
    measure_all(&o, "put_fence_p", run_fence_p);
#ifdef HAVE_PUT_SIGNAL
    measure_all(&o, "put_signal", run_put_signal);
#endif
    shmem_finalize();
    return 0;
}
