/*
 * put_floor.c: what the machine allows: memcpy into shared memory, then a flag; one way, two processes.
 * No library, no credit, no check: nothing that really works can be faster than this.
 *
 *   gcc -O3 -march=native put_floor.c -o put_floor && ./put_floor --bytes 8,1024
 */
#define _GNU_SOURCE
#include "measure.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each in cache lines of its own: one side writes it, the other spins on it. */
struct line {
    _Alignas(128) _Atomic uint64_t value;
};

struct shared {
    struct line arrived[2]; /* the last put that arrived at this rank */
    struct line answer;     /* rank 0's value of `agree` */
    struct line wrong;
};

static struct shared *shared;
static char *window[2];
static char *source;
static size_t bytes;
static int rank;
static uint64_t epoch;

static void *shared_memory(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("cannot map shared memory");
    memset(memory, 0, size);
    return memory;
}

static inline void put(void) {
    memcpy(window[1 - rank], source, bytes);
    /* Release: pairs with the Acquire in await_put(); publishes the copy. */
    atomic_store_explicit(&shared->arrived[1 - rank].value, epoch, memory_order_release);
}

static inline void await_put(void) {
    while (atomic_load_explicit(&shared->arrived[rank].value, memory_order_acquire) < epoch) {
    }
}

static double run(long iterations) {
    double start = now_us();
    for (long i = 0; i < iterations; i++) {
        epoch++;
        if (rank == 0) {
            put();
            await_put();
        } else {
            await_put();
            put();
        }
    }
    return now_us() - start;
}

/* A round trip of its own: rank 1 reads the answer once rank 0 has written it, and rank 0 waits for that. */
static long agree(long value) {
    if (rank == 0)
        atomic_store(&shared->answer.value, (uint64_t)value);
    epoch++;
    if (rank == 0) {
        atomic_store(&shared->arrived[1].value, epoch);
        await_put();
    } else {
        await_put();
        value = (long)atomic_load(&shared->answer.value);
        atomic_store(&shared->arrived[0].value, epoch);
    }
    return value;
}

static long count_wrong(void) {
    if (!holds_only(window[rank], bytes, pattern(1 - rank)))
        atomic_fetch_add(&shared->wrong.value, 1);
    agree(0);
    return (long)atomic_load(&shared->wrong.value);
}

int main(int argc, char **argv) {
    struct options o = parse_options(argc, argv);
    struct program program = {.run = run, .agree = agree, .count_wrong = count_wrong, .divisor = 2};
    shared = shared_memory(sizeof *shared);
    for (int i = 0; i < 2; i++)
        window[i] = shared_memory(round_up_to_page(largest(&o)));

    print_header();
    pid_t child = fork();
    if (child < 0)
        die("cannot fork");
    rank = child == 0;
    pin_to_core(rank);
    source = page_aligned(largest(&o), pattern(rank));
    for (int i = 0; i < o.sizes; i++) {
        bytes = o.bytes[i];
        memset(window[rank], 0, round_up_to_page(largest(&o)));
        agree(0);
        measure(&o, &program, (struct label){"put", "floor", "memcpy_flag", 2}, rank, bytes);
    }
    if (rank == 0)
        waitpid(child, NULL, 0);
    return 0;
}
