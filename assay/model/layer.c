/* The operations of a decoder layer other than matrix products, forward and backward: norms, gates and
 * rotations, and in float32 attention over packed rows.
 *
 * `compiled.py` builds this file once for a machine and a type. Results are rounded where tensor
 * operations round. All widths are multiples of 2 * LANES. The order of every
 * sum depends only on sizes, so the number of threads does not change its bits.
 */

#include "vectors.h"

#define BLOCK 64   /* rows per partial sum of a weight's gradient */
#define QUERIES 16 /* queries of a head that attend together */

static inline float root(const number *row, float epsilon, int64_t size) {
    vector squares = {0};
    for (int64_t i = 0; i < size; i += LANES) squares += load(row + i) * load(row + i);
    return 1.0f / sqrtf(total(squares) / (float)size + epsilon);
}

/* out = x / rms(x) * weight, of rows of this size. */
void norm(const number *x, const number *weight, double epsilon, int64_t rows, int64_t size, number *out) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const number *own = x + row * size;
        float scale = root(own, (float)epsilon, size);
        for (int64_t i = 0; i < size; i += LANES)
            store(out + row * size + i, rounded(load(own + i) * scale) * load(weight + i));
    }
}

/* With n = x r, r = 1 / rms(x) and g the gradient of n: grad_x = r (g - n mean(g n)).
 * grad_weight: [blocks, size], one partial sum per BLOCK rows. */
void norm_backward(const number *grad, const number *x, const number *weight, double epsilon, int64_t rows,
                   int64_t size, number *grad_x, float *grad_weight) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < (rows + BLOCK - 1) / BLOCK; block++) {
        float *sums = grad_weight + block * size;
        memset(sums, 0, size * sizeof(float));
        for (int64_t row = block * BLOCK; row < lesser((block + 1) * BLOCK, rows); row++) {
            const number *own = x + row * size, *above = grad + row * size;
            float scale = root(own, (float)epsilon, size);
            vector overlap = {0};
            for (int64_t i = 0; i < size; i += LANES) {
                vector product = load(above + i) * (load(own + i) * scale);
                *(vector *)(sums + i) += product;
                overlap += product * load(weight + i);
            }
            float mean = total(overlap) / (float)size;
            for (int64_t i = 0; i < size; i += LANES)
                store(grad_x + row * size + i,
                      (load(above + i) * load(weight + i) - load(own + i) * scale * mean) * scale);
        }
    }
}

static inline vector sigmoid(vector x) {
    vector power = exponential(choose(x < 0.0f, x, -x));
    return choose(x < 0.0f, power, (vector){0} + 1.0f) / (1.0f + power);
}

/* out = silu(gate) * up. */
void gated(const number *gate, const number *up, int64_t size, number *out) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < size; i += LANES) {
        vector x = load(gate + i);
        store(out + i, rounded(x * sigmoid(x)) * load(up + i));
    }
}

/* grad: the gradient of silu(gate) * up; replaced by the gradient of gate. */
void gated_backward(number *grad, const number *gate, const number *up, int64_t size, number *out,
                    number *grad_up) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < size; i += LANES) {
        vector x = load(gate + i), share = sigmoid(x), silu = x * share, above = load(grad + i);
        store(out + i, rounded(silu) * load(up + i));
        store(grad_up + i, above * rounded(silu));
        store(grad + i, rounded(above * load(up + i)) * (share + silu * (1.0f - share)));
    }
}

/* Rotate the first heads of each row in place; stride: numbers from row to row. cosine, sine: [rows, width]. */
void rotate(number *heads, int64_t rows, int64_t count, int64_t width, int64_t stride, const number *cosine,
            const number *sine, double sign) {
    int64_t half = width / 2;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < count; head++) {
            number *own = heads + row * stride + head * width;
            const number *c = cosine + row * width, *s = sine + row * width;
            for (int64_t d = 0; d < half; d += LANES) {
                vector first = load(own + d), second = load(own + half + d);
                store(own + d, rounded(first * load(c + d)) +
                                   rounded(second * load(s + d) * (float)sign));
                store(own + half + d, rounded(second * load(c + half + d)) +
                                          rounded(first * load(s + half + d) * (float)sign));
            }
        }
}

#ifndef BFLOAT16 /* in bfloat16 the library's products are faster */
/* A matrix read by its strides: from row to row and from column to column; from vector to vector of columns. */
typedef struct {
    const float *first;
    int64_t row, column;
} Matrix;

/* out (+)= left right, ROWS rows and COUNT vectors of columns of it. */
#define PRODUCT(ROWS, COUNT)                                                                          \
    static inline void product_##ROWS##_##COUNT(Matrix left, Matrix right, int64_t depth, float *out, \
                                                int64_t stride, int add) {                            \
        vector sums[ROWS][COUNT];                                                                     \
        for (int r = 0; r < ROWS; r++)                                                                \
            for (int v = 0; v < COUNT; v++)                                                           \
                sums[r][v] = add ? load(out + r * stride + v * LANES) : (vector){0};                  \
        for (int64_t k = 0; k < depth; k++)                                                           \
            for (int r = 0; r < ROWS; r++)                                                            \
                for (int v = 0; v < COUNT; v++)                                                       \
                    sums[r][v] += left.first[r * left.row + k * left.column] *                        \
                                  load(right.first + k * right.row + v * right.column);               \
        for (int r = 0; r < ROWS; r++)                                                                \
            for (int v = 0; v < COUNT; v++) store(out + r * stride + v * LANES, sums[r][v]);          \
    }
PRODUCT(4, 2)
PRODUCT(4, 1)
PRODUCT(1, 2)
PRODUCT(1, 1)

static void product(Matrix left, Matrix right, int64_t rows, int64_t vectors, int64_t depth, float *out,
                    int64_t stride, int add) {
    for (int64_t v = 0; v < vectors; v += 2) {
        int both = v + 1 < vectors;
        Matrix part = {right.first + v * right.column, right.row, right.column};
        for (int64_t r = 0; r < rows;) {
            Matrix some = {left.first + r * left.row, left.row, left.column};
            float *to = out + r * stride + v * LANES;
            if (r + 4 <= rows) {
                (both ? product_4_2 : product_4_1)(some, part, depth, to, stride, add);
                r += 4;
            } else {
                (both ? product_1_2 : product_1_1)(some, part, depth, to, stride, add);
                r += 1;
            }
        }
    }
}

typedef struct {
    int64_t heads, queries, width;      /* key heads; query heads per key head */
    int64_t rows, length, first;        /* of the rectangle: rows, tokens of each, the place of its first */
    int64_t prompt_first, extent;       /* of the prompts' rectangle: its first token, tokens of a row */
    int64_t query_stride, key_stride;   /* numbers from token to token */
    double scale;
} Shape;

/* One row's heads of keys and values, its prompt's first; each [width] or, turned, [width, LANES] of LANES tokens. */
typedef struct {
    float *keys, *values, *grad_keys, *grad_values;     /* [tokens, width] */
    float *turned_keys, *turned_values;                 /* [blocks, width, LANES] */
    float *weights, *grads;                             /* [QUERIES, padded tokens] */
} Scratch;

static int64_t longest(const Shape *shape, const int64_t *lengths) {
    int64_t most = 0;
    for (int64_t row = 0; lengths && row < shape->rows; row++)
        most = lengths[row] > most ? lengths[row] : most;
    return padded(most + shape->length);
}

static float *room_for(Scratch *at, int64_t tokens, int64_t width) {
    float *room = malloc((6 * tokens * width + 2 * QUERIES * tokens) * sizeof(float)), *next = room;
    if (!room) abort();
    float **parts[] = {&at->keys,          &at->values,      &at->grad_keys,
                       &at->grad_values,   &at->turned_keys, &at->turned_values};
    for (int part = 0; part < 6; part++, next += tokens * width) *parts[part] = next;
    at->weights = next;
    at->grads = next + QUERIES * tokens;
    return room;
}

/* Copy the tokens visible to a row's head: `prompt` tokens of its prompt, then its own. */
static void gather(const Shape *shape, const float *from, int64_t head, int64_t row, int64_t parent,
                   int64_t prompt, float *to) {
    int64_t width = shape->width, stride = shape->key_stride;
    const float *behind = from + (shape->prompt_first + parent * shape->extent) * stride + head * width;
    const float *own = from + (shape->first + row * shape->length) * stride + head * width;
    for (int64_t t = 0; t < prompt; t++) memcpy(to + t * width, behind + t * stride, width * sizeof(float));
    for (int64_t t = 0; t < shape->length; t++)
        memcpy(to + (prompt + t) * width, own + t * stride, width * sizeof(float));
}

static void turn(const float *from, int64_t tokens, int64_t width, float *to) {
    for (int64_t t = 0; t < padded(tokens); t++)
        for (int64_t d = 0; d < width; d++)
            to[t / LANES * LANES * width + d * LANES + t % LANES] = t < tokens ? from[t * width + d] : 0.0f;
}

/* Copy the keys and values visible to a row's head and transpose the keys; return the prompt's length. */
static int64_t see(const Shape *shape, const float *key, const float *value, int64_t head, int64_t row,
                   const int64_t *parents, const int64_t *lengths, const Scratch *at) {
    int64_t prompt = lengths ? lengths[row] : 0, parent = parents ? parents[row] : 0;
    gather(shape, key, head, row, parent, prompt, at->keys);
    turn(at->keys, prompt + shape->length, shape->width, at->turned_keys);
    gather(shape, value, head, row, parent, prompt, at->values);
    return prompt;
}

/* Convert the scores of visible tokens to weights in place; other weights become 0. */
static void weigh(float *scores, int64_t seen, int64_t size, float scale) {
    for (int64_t t = seen; t < size; t++) scores[t] = -INFINITY;
    vector most = load(scores), sums = {0};
    for (int64_t t = LANES; t < size; t += LANES)
        most = choose(load(scores + t) > most, load(scores + t), most);
    float top = largest(most);
    for (int64_t t = 0; t < size; t += LANES) {
        vector power = exponential((load(scores + t) - top) * scale);
        power = choose(load(scores + t) == -INFINITY, (vector){0}, power);
        store(scores + t, power);
        sums += power;
    }
    float share = 1.0f / total(sums);
    for (int64_t t = 0; t < size; t += LANES) store(scores + t, load(scores + t) * share);
}

/* Weights of consecutive queries of a head, starting at token `first` of the row. */
static void attention_weights(const Shape *shape, const float *query, int64_t prompt, int64_t first,
                              int64_t count, const Scratch *at, int64_t stride) {
    int64_t size = padded(prompt + first + count);
    Matrix left = {query, shape->query_stride, 1}, right = {at->turned_keys, LANES, shape->width * LANES};
    product(left, right, count, size / LANES, shape->width, at->weights, stride, 0);
    for (int64_t q = 0; q < count; q++)
        weigh(at->weights + q * stride, prompt + first + q + 1, size, (float)shape->scale);
}

/* out: [tokens, heads * queries, width]. parents: the prompt row of each row; lengths: the prompts' lengths
 * (NULL: no prompts). */
void attend(const Shape *shape, const float *query, const float *key, const float *value,
            const int64_t *parents, const int64_t *lengths, float *out) {
    int64_t heads = shape->heads, width = shape->width, stride = longest(shape, lengths);
    int64_t out_stride = heads * shape->queries * width;
#pragma omp parallel
    {
        Scratch at;
        float *room = room_for(&at, stride, width);
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < shape->rows * heads; n++) {
            int64_t row = n / heads, head = n % heads, place = shape->first + row * shape->length;
            int64_t prompt = see(shape, key, value, head, row, parents, lengths, &at);
            for (int64_t of = head * shape->queries; of < (head + 1) * shape->queries; of++)
                for (int64_t first = 0; first < shape->length; first += QUERIES) {
                    int64_t count = lesser(QUERIES, shape->length - first);
                    const float *from = query + (place + first) * shape->query_stride + of * width;
                    attention_weights(shape, from, prompt, first, count, &at, stride);
                    product((Matrix){at.weights, stride, 1}, (Matrix){at.values, width, LANES}, count,
                            width / LANES, prompt + first + count,
                            out + (place + first) * out_stride + of * width, out_stride, 0);
                }
        }
        free(room);
    }
}

/* Gradients of one row's head: those of queries in place, those of keys and values in the scratch. */
static void head_backward(const Shape *shape, const float *grad, const float *query, int64_t head, int64_t row,
                          int64_t prompt, const Scratch *at, int64_t stride, float *grad_query) {
    int64_t width = shape->width, vectors = width / LANES, place = shape->first + row * shape->length;
    int64_t above_stride = shape->heads * shape->queries * width, tokens = prompt + shape->length;
    memset(at->grad_keys, 0, tokens * width * sizeof(float));
    memset(at->grad_values, 0, tokens * width * sizeof(float));
    for (int64_t of = head * shape->queries; of < (head + 1) * shape->queries; of++)
        for (int64_t first = 0; first < shape->length; first += QUERIES) {
            int64_t count = lesser(QUERIES, shape->length - first), seen = prompt + first + count;
            int64_t from = (place + first) * shape->query_stride + of * width;
            const float *above = grad + (place + first) * above_stride + of * width;
            attention_weights(shape, query + from, prompt, first, count, at, stride);
            Matrix turned = {at->turned_values, LANES, width * LANES};
            product((Matrix){above, above_stride, 1}, turned, count, padded(seen) / LANES, width, at->grads,
                    stride, 0);
            for (int64_t q = 0; q < count; q++) {
                float *weights = at->weights + q * stride, *grads = at->grads + q * stride;
                vector overlap = {0};
                for (int64_t t = 0; t < padded(seen); t += LANES) overlap += load(weights + t) * load(grads + t);
                float mean = total(overlap);
                for (int64_t t = 0; t < padded(seen); t += LANES)
                    store(grads + t, load(weights + t) * (load(grads + t) - mean) * (float)shape->scale);
            }
            product((Matrix){at->grads, stride, 1}, (Matrix){at->keys, width, LANES}, count, vectors, seen,
                    grad_query + from, shape->query_stride, 0);
            product((Matrix){at->grads, 1, stride}, (Matrix){query + from, shape->query_stride, LANES}, seen,
                    vectors, count, at->grad_keys, width, 1);
            product((Matrix){at->weights, 1, stride}, (Matrix){above, above_stride, LANES}, seen, vectors,
                    count, at->grad_values, width, 1);
        }
}

/* grad: as out of `attend`; grad_query, grad_key, grad_value: as query, key and value. prompt_keys,
 * prompt_values: [rows, heads, extent, width], each row's gradient of its prompt, 0 beyond the prompt's length. */
void attend_backward(const Shape *shape, const float *grad, const float *query, const float *key,
                     const float *value, const int64_t *parents, const int64_t *lengths, float *grad_query,
                     float *grad_key, float *grad_value, float *prompt_keys, float *prompt_values) {
    int64_t heads = shape->heads, width = shape->width, stride = longest(shape, lengths);
#pragma omp parallel
    {
        Scratch at;
        float *room = room_for(&at, stride, width);
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < shape->rows * heads; n++) {
            int64_t row = n / heads, head = n % heads, place = shape->first + row * shape->length;
            int64_t prompt = see(shape, key, value, head, row, parents, lengths, &at);
            turn(at.values, prompt + shape->length, width, at.turned_values);
            head_backward(shape, grad, query, head, row, prompt, &at, stride, grad_query);
            for (int64_t t = 0; t < shape->length; t++) {
                int64_t to = (place + t) * shape->key_stride + head * width, from = (prompt + t) * width;
                memcpy(grad_key + to, at.grad_keys + from, width * sizeof(float));
                memcpy(grad_value + to, at.grad_values + from, width * sizeof(float));
            }
            if (!lengths) continue;
            int64_t to = n * shape->extent * width, given = prompt * width;
            memset(prompt_keys + to, 0, shape->extent * width * sizeof(float));
            memset(prompt_values + to, 0, shape->extent * width * sizeof(float));
            memcpy(prompt_keys + to, at.grad_keys, given * sizeof(float));
            memcpy(prompt_values + to, at.grad_values, given * sizeof(float));
        }
        free(room);
    }
}
#endif
