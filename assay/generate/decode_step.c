/* The small operations of a decoding step: norms, gates, and attention over each row's own length.
 *
 * `compiled.py` builds this file once for a machine. BFLOAT16: numbers are bfloat16, else float32. Sums
 * are float32 in both cases, and results are rounded where tensor operations round. Each row is computed
 * separately, in an order that depends only on its length, so neighbors and threads do not change its bits.
 *
 * All widths are multiples of LANES. Keys have the layout [blocks, width, LANES], so that a vector holds
 * LANES tokens and a score needs no sum across lanes. Elements beyond a row's length are finite. Values
 * have the layout [tokens, width].
 */

#include "vectors.h"

#define CHUNK 128  /* tokens that stay in the cache while all queries of a key head read them */
#define MUCH 32768 /* minimum size of a row-wise operation for several threads */

static void norm_row(const number *row, const number *weight, float epsilon, int64_t size, number *out) {
    vector squares = {0};
    for (int64_t i = 0; i < size; i += LANES) squares += load(row + i) * load(row + i);
    float scale = 1.0f / sqrtf(total(squares) / (float)size + epsilon);
    for (int64_t i = 0; i < size; i += LANES)
        store(out + i, rounded(load(row + i) * scale) * load(weight + i));
}

/* hidden += added (skipped if NULL), in place; out = hidden / rms(hidden) * weight. Both [rows, size]. */
void add_norm(number *hidden, const number *added, const number *weight, double epsilon, int64_t rows,
              int64_t size, number *out) {
#pragma omp parallel for schedule(static) if (rows * size > MUCH)
    for (int64_t row = 0; row < rows; row++) {
        number *own = hidden + row * size;
        if (added)
            for (int64_t i = 0; i < size; i += LANES)
                store(own + i, load(own + i) + load(added + row * size + i));
        norm_row(own, weight, (float)epsilon, size, out + row * size);
    }
}

/* out = silu(gate) * up. gate_up: [rows, 2 * size], out: [rows, size]. */
void silu_product(const number *gate_up, int64_t rows, int64_t size, number *out) {
#pragma omp parallel for schedule(static) if (rows * size > MUCH)
    for (int64_t row = 0; row < rows; row++) {
        const number *gate = gate_up + 2 * row * size, *up = gate + size;
        for (int64_t i = 0; i < size; i += LANES) {
            vector x = load(gate + i), power = exponential(choose(x < 0.0f, x, -x));
            vector silu = choose(x < 0.0f, x * power, x) / (1.0f + power);
            store(out + row * size + i, rounded(silu) * load(up + i));
        }
    }
}

/* Write scale * query . key of COUNT vectors of tokens. */
#define SCORES(COUNT)                                                                          \
    {                                                                                          \
        vector sums[COUNT];                                                                    \
        for (int v = 0; v < COUNT; v++) sums[v] = (vector){0};                                 \
        for (int64_t d = 0; d < width; d++)                                                    \
            for (int v = 0; v < COUNT; v++)                                                    \
                sums[v] += query[d] * load(keys + (t + v * LANES) * width + d * LANES);        \
        for (int v = 0; v < COUNT; v++) *(vector *)(scores + t + v * LANES) = sums[v] * scale; \
        t += COUNT * LANES;                                                                    \
    }

static void score(const float *query, const number *keys, int64_t first, int64_t end, int64_t width,
                  float scale, float *scores) {
    int64_t t = first;
    while (end - t >= 4 * LANES) SCORES(4)
    if (end - t == 3 * LANES) SCORES(3)
    if (end - t == 2 * LANES) SCORES(2)
    if (end - t == LANES) SCORES(1)
}

/* Prefetch numbers. */
static inline void fetch(const number *from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / (int64_t)sizeof(number)) __builtin_prefetch(from + i);
}

/* Add weights . values to COUNT vectors of the sum. */
#define ADD(COUNT)                                                                  \
    {                                                                               \
        vector sums[COUNT];                                                         \
        for (int v = 0; v < COUNT; v++) sums[v] = *(vector *)(sum + d + v * LANES); \
        vector others[COUNT]; /* of odd tokens, so that fewer sums wait for one another */    \
        for (int v = 0; v < COUNT; v++) others[v] = (vector){0};                    \
        int64_t t = first;                                                          \
        for (; t + 1 < end; t += 2)                                                 \
            for (int v = 0; v < COUNT; v++) {                                       \
                sums[v] += weights[t] * load(values + t * width + d + v * LANES);   \
                others[v] += weights[t + 1] * load(values + (t + 1) * width + d + v * LANES); \
            }                                                                       \
        for (; t < end; t++)                                                        \
            for (int v = 0; v < COUNT; v++)                                         \
                sums[v] += weights[t] * load(values + t * width + d + v * LANES);   \
        for (int v = 0; v < COUNT; v++) *(vector *)(sum + d + v * LANES) = sums[v] + others[v]; \
        d += COUNT * LANES;                                                         \
    }

static void add_values(const float *weights, const number *values, int64_t first, int64_t end,
                       int64_t width, float *sum) {
    int64_t d = 0;
    while (width - d >= 4 * LANES) ADD(4)
    if (width - d == 3 * LANES) ADD(3)
    if (width - d == 2 * LANES) ADD(2)
    if (width - d == LANES) ADD(1)
}

/* Convert scores to weights in place and return their sum. Elements beyond the length become 0. */
static float weigh(float *scores, int64_t prompt, int64_t own) {
    int64_t size = padded(prompt) + padded(own), own_end = padded(prompt) + own;
    for (int64_t t = prompt; t < padded(prompt); t++) scores[t] = -INFINITY;
    for (int64_t t = own_end; t < size; t++) scores[t] = -INFINITY;
    vector most = *(vector *)scores, sums = {0};
    for (int64_t t = LANES; t < size; t += LANES) {
        vector next = *(vector *)(scores + t);
        most = choose(next > most, next, most);
    }
    float top = largest(most);
    for (int64_t t = 0; t < size; t += LANES) {
        vector x = *(vector *)(scores + t), power = exponential(x - top);
        power = choose(x == -INFINITY, (vector){0}, power);
        *(vector *)(scores + t) = power;
        sums += power;
    }
    return total(sums);
}

/* Rotate a head's numbers by its position's cosine and signed sine. */
static void rotate(const number *head, const number *cosine, const number *sine, int64_t width, float *out) {
    int64_t half = width / 2;
    for (int64_t d = 0; d < width; d += LANES) {
        vector other = load(head + (d < half ? d + half : d - half));
        vector turned = rounded(load(head + d) * load(cosine + d));
        *(vector *)(out + d) = rounded(turned + rounded(other * load(sine + d)));
    }
}

typedef struct {
    int64_t heads, queries, width; /* key heads; query heads per key head; a multiple of 2 * LANES */
    int64_t capacity, reach;       /* own tokens per row; positions in the rotary tables */
    double scale, query_epsilon, key_epsilon;
    const number *query_norm, *key_norm; /* NULL: none */
    const number *cosine, *sine;         /* [reach, width] */
} Layer;

typedef struct {
    const number *keys, *values; /* [heads, blocks, width, LANES], [heads, length, width] */
} Prompt;

static void attend_head(const Layer *layer, const number *fused, int64_t head, int64_t position,
                        const Prompt *prompt, int64_t length, number *keys, number *values,
                        float *scratch, number *out) {
    int64_t width = layer->width, queries = layer->queries;
    int64_t own = position - length, end = own + 1, behind = padded(length), size = behind + padded(end);
    const number *cosine = layer->cosine + position * width, *sine = layer->sine + position * width;
    const number *key = fused + (layer->heads * queries + head) * width;
    const number *value = key + layer->heads * width;
    const number *prompt_keys = prompt->keys + head * width * behind;
    const number *prompt_values = prompt->values + head * width * length;
    float *query = scratch, *sums = query + queries * width, *scores = sums + queries * width;
    float scale = (float)layer->scale, weights[queries];
    number normed[width];

    fetch(values, lesser(own, CHUNK) * width);
    for (int64_t q = 0; q < queries; q++) {
        const number *from = fused + (head * queries + q) * width;
        if (layer->query_norm) {
            norm_row(from, layer->query_norm, (float)layer->query_epsilon, width, normed);
            from = normed;
        }
        rotate(from, cosine, sine, width, query + q * width);
    }
    if (layer->key_norm) {
        norm_row(key, layer->key_norm, (float)layer->key_epsilon, width, normed);
        key = normed;
    }
    rotate(key, cosine, sine, width, sums);
    for (int64_t d = 0; d < width; d += LANES) store(normed + d, *(vector *)(sums + d));
    for (int64_t d = 0; d < width; d++)
        keys[own / LANES * LANES * width + d * LANES + own % LANES] = normed[d];
    memcpy(values + own * width, value, width * sizeof(number));

    for (int64_t t = 0; t < behind; t += CHUNK)
        for (int64_t q = 0; q < queries; q++)
            score(query + q * width, prompt_keys, t, lesser(t + CHUNK, behind), width, scale,
                  scores + q * size);
    for (int64_t t = 0; t < padded(end); t += CHUNK)
        for (int64_t q = 0; q < queries; q++)
            score(query + q * width, keys, t, lesser(t + CHUNK, padded(end)), width, scale,
                  scores + q * size + behind);
    fetch(keys + width * layer->capacity, lesser(padded(end), CHUNK) * width); /* the next head's */
    for (int64_t q = 0; q < queries; q++) weights[q] = weigh(scores + q * size, length, end);
    memset(sums, 0, queries * width * sizeof(float));
    for (int64_t t = 0; t < length; t += CHUNK)
        for (int64_t q = 0; q < queries; q++)
            add_values(scores + q * size, prompt_values, t, lesser(t + CHUNK, length), width,
                       sums + q * width);
    for (int64_t t = 0; t < end; t += CHUNK)
        for (int64_t q = 0; q < queries; q++)
            add_values(scores + q * size + behind, values, t, lesser(t + CHUNK, end), width,
                       sums + q * width);
    for (int64_t q = 0; q < queries; q++)
        for (int64_t d = 0; d < width; d += LANES)
            store(out + (head * queries + q) * width + d, *(vector *)(sums + q * width + d) / weights[q]);
}

/* fused: [rows, heads * (queries + 2), width]. keys: [rows, heads, blocks, width, LANES]; values: [rows,
 * heads, capacity, width]; the row's new token is stored in both first. out: [rows, heads * queries * width].
 * Returns 0, or 1 without any effect if a position is out of bounds. */
int attend(const Layer *layer, int64_t rows, const number *fused, const int64_t *positions,
           const Prompt *prompts, const int64_t *lengths, number *keys, number *values, number *out) {
    int64_t heads = layer->heads, queries = layer->queries, width = layer->width, longest = 0;
    int64_t store_size = width * layer->capacity;
    for (int64_t row = 0; row < rows; row++) {
        int64_t own = positions[row] - lengths[row], size = padded(lengths[row]) + padded(own + 1);
        if (own < 0 || own >= layer->capacity || positions[row] >= layer->reach) return 1;
        longest = size > longest ? size : longest;
    }
#pragma omp parallel
    {
        float *scratch = malloc(queries * (2 * width + longest) * sizeof(float));
        if (!scratch) abort();
#pragma omp for schedule(static)
        for (int64_t n = 0; n < rows * heads; n++) {
            int64_t row = n / heads, head = n % heads;
            attend_head(layer, fused + row * heads * (queries + 2) * width, head, positions[row],
                        prompts + row, lengths[row], keys + n * store_size, values + n * store_size,
                        scratch, out + row * heads * queries * width);
        }
        free(scratch);
    }
    return 0;
}
