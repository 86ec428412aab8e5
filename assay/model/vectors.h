/* Vectors of floats for the compiled operations, LANES at a time (defined by compiled.py).
 *
 * BFLOAT16: numbers are bfloat16 in memory, else float32. Arithmetic is in float32.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef LANES
#define LANES 16
#endif

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));

static inline vector choose(integers where, vector this, vector other) {
    return (vector)((where & (integers)this) | (~where & (integers)other));
}

#ifdef BFLOAT16
typedef uint16_t number;
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));

static inline vector load(const number *from) {
    return (vector)(__builtin_convertvector(*(const halves *)from, words) << 16);
}

static inline vector rounded(vector x) { /* round to nearest even; NaN stays NaN */
    words bits = (words)x, up = bits + 0x7fff + ((bits >> 16) & 1);
    return (vector)((words)choose(x == x, (vector)up, (vector)(bits | 0x400000)) & 0xffff0000);
}

static inline void store(number *to, vector x) {
    *(halves *)to = __builtin_convertvector((words)rounded(x) >> 16, halves);
}
#else
typedef float number;

static inline vector load(const number *from) { return *(const vector *)from; }

static inline vector rounded(vector x) { return x; }

static inline void store(number *to, vector x) { *(vector *)to = x; }
#endif

static inline float total(vector x) {
    for (int count = LANES / 2; count; count /= 2)
        for (int i = 0; i < count; i++) x[i] += x[i + count];
    return x[0];
}

static inline float largest(vector x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* e to the power of x <= 0: x = n ln 2 + r, and eight terms of the series of e^r. */
static inline vector exponential(vector x) {
    vector least = (vector){0} - 87.0f;
    x = choose(x < least, least, x);
    vector n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
    vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vector sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    return sum * (vector)((__builtin_convertvector(n, integers) + 127) << 23);
}

static inline int64_t padded(int64_t length) { return (length + LANES - 1) / LANES * LANES; }

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
