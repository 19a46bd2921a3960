/*
 * measure.h: what every program here shares: its options, the clock, the calibration, the CSV lines.
 * Knows nothing of MPI, OpenSHMEM or shared memory: a program plugs in how to run and how to agree.
 *
 * A measurement is the median over `repeats` batches; a batch is as many iterations as fill `batch_us`.
 * All programs are C11 with GNU extensions and take the same options:
 *
 *   --bytes 8,1024     the sizes of one message
 *   --repeats 5        batches a measurement
 *   --batch-ms 10      how long a batch takes
 *   --only NAME        only this variant; the floor of halo.c is measured only by its name, `floor`
 *   --dims 2x2x2       (halo) the torus of ranks
 *   --other-rank       (halo) all six neighbors are the other of two ranks
 *   --yield            (halo) the floor yields its core while it waits: for more ranks than cores
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SIZES = 16, MAX_REPEATS = 64, PAGE = 4096 };

struct options {
    size_t bytes[MAX_SIZES];
    int sizes;
    int repeats;
    double batch_us;
    const char *only;
    int dims[3];
    int other_rank;
    int yield;
};

/* What stands in a CSV line besides the figures. */
struct label {
    const char *bench;
    const char *backend;
    const char *mode;
    int ranks;
};

/* What a program plugs in. Every rank calls `measure` with the same arguments. */
struct program {
    /* Runs this many iterations on this rank; returns the microseconds they took (rank 0's count). */
    double (*run)(long iterations);
    /* Returns rank 0's value on every rank. */
    long (*agree)(long value);
    /* Returns, on every rank, how many ranks hold bytes that are not what their peers sent. */
    long (*count_wrong)(void);
    /* What one iteration is divided by: 2 turns a round trip into one way. */
    double divisor;
};

static inline double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline size_t round_up_to_page(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static inline void die(const char *what) {
    fprintf(stderr, "error: %s\n", what);
    exit(1);
}

static inline char *page_aligned(size_t bytes, int fill) {
    char *memory = aligned_alloc(PAGE, round_up_to_page(bytes));
    if (memory == NULL)
        die("out of memory");
    memset(memory, fill, round_up_to_page(bytes));
    return memory;
}

/* The byte that `rank` sends: never 0, which is what the memory holds before. */
static inline int pattern(int rank) {
    return rank % 200 + 1;
}

static inline int holds_only(const char *memory, size_t bytes, int value) {
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)memory[i] != value)
            return 0;
    return 1;
}

static inline int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Pins the caller to the n-th of the cores it may use. */
static inline void pin_to_core(int n) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        die("cannot read the affinity");
    n %= CPU_COUNT(&allowed);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || n-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0)
            die("cannot pin to a core");
        return;
    }
}

static inline struct options parse_options(int argc, char **argv) {
    struct options o = {.repeats = 5, .batch_us = 10e3, .dims = {2, 1, 1}};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--other-rank") == 0) {
            o.other_rank = 1;
            continue;
        }
        if (strcmp(name, "--yield") == 0) {
            o.yield = 1;
            continue;
        }
        if (++i == argc)
            die("an option without its value, or an unknown one; see measure.h");
        char *value = argv[i];
        if (strcmp(name, "--bytes") == 0) {
            for (char *item = strtok(value, ","); item != NULL; item = strtok(NULL, ",")) {
                if (o.sizes == MAX_SIZES)
                    die("too many sizes in --bytes");
                o.bytes[o.sizes++] = strtoul(item, NULL, 10);
            }
        } else if (strcmp(name, "--repeats") == 0) {
            o.repeats = atoi(value);
        } else if (strcmp(name, "--batch-ms") == 0) {
            o.batch_us = atof(value) * 1e3;
        } else if (strcmp(name, "--only") == 0) {
            o.only = value;
        } else if (strcmp(name, "--dims") == 0) {
            if (sscanf(value, "%dx%dx%d", &o.dims[0], &o.dims[1], &o.dims[2]) != 3)
                die("--dims wants AxBxC");
        } else {
            die("an unknown option; see measure.h");
        }
    }
    if (o.sizes == 0)
        die("--bytes is missing");
    if (o.repeats < 1 || o.repeats > MAX_REPEATS)
        die("--repeats is out of range");
    return o;
}

static inline size_t largest(const struct options *o) {
    size_t most = 0;
    for (int i = 0; i < o->sizes; i++)
        most = o->bytes[i] > most ? o->bytes[i] : most;
    return most;
}

static inline int wanted(const struct options *o, const char *mode) {
    return o->only == NULL || strcmp(o->only, mode) == 0;
}

static inline void print_header(void) {
    printf("bench,backend,mode,ranks,rails,bytes,iterations,median_us,min_us,max_us\n");
    fflush(stdout);
}

/* How many iterations fill a batch; also the warm-up. Rank 0 decides. */
static inline long calibrate(const struct options *o, const struct program *p) {
    long iterations = 4;
    for (;;) {
        double took_us = p->run(iterations);
        long next = iterations * 4;
        if (took_us * 4 >= o->batch_us)
            next = -(long)((double)iterations * o->batch_us / took_us) - 1;
        next = p->agree(next);
        if (next < 0)
            return -next < 4 ? 4 : -next;
        iterations = next;
    }
}

/* Measures one size and lets rank 0 print its line, unless the data that arrived is wrong. */
static inline void measure(const struct options *o, const struct program *p, struct label label, int rank, size_t bytes) {
    double us[MAX_REPEATS];
    long iterations = calibrate(o, p);
    for (int i = 0; i < o->repeats; i++)
        us[i] = p->run(iterations) / (double)iterations / p->divisor;
    long wrong = p->count_wrong();
    if (rank != 0)
        return;
    if (wrong != 0) {
        fprintf(stderr, "error: %s %s, %zu bytes: wrong data on %ld ranks\n", label.backend, label.mode, bytes, wrong);
        return;
    }
    qsort(us, (size_t)o->repeats, sizeof us[0], by_value);
    printf("%s,%s,%s,%d,1,%zu,%ld,%.4f,%.4f,%.4f\n", label.bench, label.backend, label.mode, label.ranks, bytes,
           iterations, us[o->repeats / 2], us[0], us[o->repeats - 1]);
    fflush(stdout);
}

#endif
