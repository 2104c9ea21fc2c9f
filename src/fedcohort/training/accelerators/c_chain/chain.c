/* Local training of a chain of layers, one client after the other, in a core's own cache.
 *
 * A layer is a product of rows with a matrix, out[n][f] = bias[f] + sum over i, j of
 * x[n * step + i * row + j] * w[i][j][f]: for a fully connected layer n is a sample; for a
 * convolution n is a column of one output row, i a row of the kernel, and j runs over the kernel's
 * columns and channels, which lie side by side in an image held as [height][width][channels]. Going
 * back to the input is the same product with the kernel turned round, on a gradient with a border
 * of zeros. Channels are filled up with zeros to whole vectors; padding is a border of zeros too.
 *
 * A batch is worked on in pieces of a few samples, so that nothing but the data and the weights
 * comes from beyond the cache.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int8_t places __attribute__((vector_size(LANES), aligned(1), may_alias));

/* One layer; filled in by layout.py, field for field. Places are offsets into buffers. */
typedef struct {
    int64_t is_linear, has_bias, pool, relu;
    int64_t inputs, outputs;               /* channels and filters, as the model has them */
    int64_t channels, height, width;       /* of the input: channels filled up, padding included */
    int64_t padding, kh, kw;
    int64_t filters, rows, columns;        /* of the output before the pool: filters filled up */
    int64_t border;                        /* that the next layer wants around it */
    int64_t margin_rows, margin_columns;   /* zeros around the gradient of the output */
    int64_t area;                          /* pixels of the image that is flattened, or 1 */
    int64_t weights, bias;                 /* places in the packed parameters */
    int64_t input, line, winner, slope;    /* places in the scratch space */
} layer;

/* Tiles of N rows and V vectors, whose sums stay in registers. */
#if defined(__AVX512VL__)
#define MOST(V) ((V) == 4 ? 6 : 8)
#else
#define MOST(V) ((V) == 4 ? 3 : (V) == 3 ? 4 : (V) == 2 ? 6 : 8)
#endif

static inline __attribute__((always_inline)) vec load(const float *p) { return *(const vec *)p; }
static inline __attribute__((always_inline)) void store(float *p, vec v) { *(vec *)p = v; }

#define UNROLL _Pragma("GCC unroll 8")

/* multiply: out[n][v] = bias[v] + sum over i < kh, j < k of x[n * step + i * row + j] * w[i][j][v].
 * correlate: gw[n][v] += sum over all places of x[place + n] * g[place][v]. */
#define DEFINE_TILES(N, V)                                                                        \
    static void multiply_##N##_##V(float *restrict out, int64_t out_step, const float *restrict x, \
                                   int64_t step, int64_t row, const float *restrict w,            \
                                   const float *restrict bias, int64_t width, int64_t kh,         \
                                   int64_t k) {                                                   \
        vec sum[N][V];                                                                            \
        UNROLL for (int n = 0; n < N; n++)                                                        \
            UNROLL for (int v = 0; v < V; v++)                                                    \
                sum[n][v] = bias ? load(bias + LANES * v) : (vec){0};                             \
        for (int64_t i = 0; i < kh; i++) {                                                        \
            const float *xs = x + i * row;                                                        \
            for (int64_t j = 0; j < k; j++, xs++, w += width) {                                   \
                UNROLL for (int n = 0; n < N; n++)                                                \
                    UNROLL for (int v = 0; v < V; v++)                                            \
                        sum[n][v] += xs[n * step] * load(w + LANES * v);                          \
            }                                                                                     \
        }                                                                                         \
        UNROLL for (int n = 0; n < N; n++)                                                        \
            UNROLL for (int v = 0; v < V; v++)                                                    \
                store(out + n * out_step + LANES * v, sum[n][v]);                                 \
    }                                                                                             \
    static void correlate_##N##_##V(float *restrict gw, int64_t width, const float *restrict x,   \
                                    int64_t x_outer, int64_t x_row, int64_t x_step,               \
                                    const float *restrict g, int64_t g_outer, int64_t g_row,      \
                                    int64_t g_step, int64_t outer, int64_t rows,                  \
                                    int64_t columns) {                                            \
        vec sum[N][V];                                                                            \
        UNROLL for (int n = 0; n < N; n++)                                                        \
            UNROLL for (int v = 0; v < V; v++) sum[n][v] = load(gw + n * width + LANES * v);      \
        for (int64_t b = 0; b < outer; b++)                                                       \
            for (int64_t r = 0; r < rows; r++) {                                                  \
                const float *xs = x + b * x_outer + r * x_row;                                    \
                const float *gs = g + b * g_outer + r * g_row;                                    \
                for (int64_t c = 0; c < columns; c++, xs += x_step, gs += g_step) {               \
                    UNROLL for (int n = 0; n < N; n++)                                            \
                        UNROLL for (int v = 0; v < V; v++)                                        \
                            sum[n][v] += xs[n] * load(gs + LANES * v);                            \
                }                                                                                 \
            }                                                                                     \
        UNROLL for (int n = 0; n < N; n++)                                                        \
            UNROLL for (int v = 0; v < V; v++) store(gw + n * width + LANES * v, sum[n][v]);      \
    }

#define FOR_ALL_V(X, N) X(N, 1) X(N, 2) X(N, 3) X(N, 4)
#define FOR_ALL(X)                                                                                \
    FOR_ALL_V(X, 1) FOR_ALL_V(X, 2) FOR_ALL_V(X, 3) FOR_ALL_V(X, 4) FOR_ALL_V(X, 5)               \
    FOR_ALL_V(X, 6) X(7, 1) X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)
FOR_ALL(DEFINE_TILES)

typedef void (*multiply_tile)(float *restrict, int64_t, const float *restrict, int64_t, int64_t,
                              const float *restrict, const float *restrict, int64_t, int64_t,
                              int64_t);
typedef void (*correlate_tile)(float *restrict, int64_t, const float *restrict, int64_t, int64_t,
                               int64_t, const float *restrict, int64_t, int64_t, int64_t, int64_t,
                               int64_t, int64_t);
#define MULTIPLY(N, V) [N][V] = multiply_##N##_##V,
#define CORRELATE(N, V) [N][V] = correlate_##N##_##V,
static const multiply_tile multiply_tiles[9][5] = {FOR_ALL(MULTIPLY)};
static const correlate_tile correlate_tiles[9][5] = {FOR_ALL(CORRELATE)};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns how many of `count` the next tile takes, if tiles of at most `most` are to be alike. */
static inline int64_t share(int64_t count, int64_t most) {
    int64_t tiles = (count + most - 1) / most;
    return (count + tiles - 1) / tiles;
}

/* For `outer` rows of images: out = x * w + bias; `count` outputs a row. */
static void multiply(float *out, int64_t out_outer, int64_t out_step, const float *x,
                     int64_t x_outer, int64_t step, int64_t row, const float *w, const float *bias,
                     int64_t width, int64_t kh, int64_t k, int64_t outer, int64_t count) {
    for (int64_t f = 0, vectors; f < width; f += LANES * vectors) {
        vectors = share((width - f) / LANES, 4);
        for (int64_t o = 0; o < outer; o++)
            for (int64_t n = 0, some; n < count; n += some) {
                some = share(count - n, MOST(vectors));
                multiply_tiles[some][vectors](out + o * out_outer + n * out_step + f, out_step,
                                              x + o * x_outer + n * step, step, row, w + f,
                                              bias ? bias + f : NULL, width, kh, k);
            }
    }
}

/* gw[j][f] += sum over outer, rows, columns of x[..][j] * g[..][f], for j < k. */
static void correlate(float *gw, int64_t width, int64_t k, const float *x, int64_t x_outer,
                      int64_t x_row, int64_t x_step, const float *g, int64_t g_outer,
                      int64_t g_row, int64_t g_step, int64_t outer, int64_t rows,
                      int64_t columns) {
    for (int64_t f = 0, vectors; f < width; f += LANES * vectors) {
        vectors = share((width - f) / LANES, 4);
        for (int64_t j = 0, some; j < k; j += some) {
            some = share(k - j, MOST(vectors));
            correlate_tiles[some][vectors](gw + j * width + f, width, x + j, x_outer, x_row, x_step,
                                           g + f, g_outer, g_row, g_step, outer, rows, columns);
        }
    }
}

/* -- layers -------------------------------------------------------------------------------- */

static int64_t image_row(const layer *l) { return l->width * l->channels; }
static int64_t image_size(const layer *l) { return l->height * image_row(l); }
static int64_t slope_row(const layer *l) {
    return (l->columns + 2 * l->margin_columns) * l->filters;
}
static int64_t slope_size(const layer *l) {
    return (l->rows + 2 * l->margin_rows) * slope_row(l);
}
static int64_t slope_start(const layer *l) {
    return l->margin_rows * slope_row(l) + l->margin_columns * l->filters;
}

static inline vec either(ivec which, vec yes, vec no) {
    return (vec)((which & (ivec)yes) | (~which & (ivec)no));
}

/* The larger of two values, and where it was. As in PyTorch, what is not a number is the largest.
 */
static inline void keep_larger(vec *best, ivec *place, vec other, int32_t there) {
    ivec larger = (other > *best) | (other != other);
    *best = either(larger, other, *best);
    *place = (larger & there) | (~larger & *place);
}

/* Pools and rectifies `pool` rows of outputs, and notes where each value came from; -1 if the ReLU
 * holds it back. */
static void give_on(const layer *l, const float *line, float *out, int8_t *winner) {
    /* Copies, because the compiler must take it that what is stored may be the layer itself. */
    const int64_t filters = l->filters, below = l->columns * filters;
    const int64_t pool = l->pool, columns = l->columns / pool;
    const int32_t rectify = l->relu ? -1 : 0;
    for (int64_t c = 0; c < columns; c++, line += pool * filters, out += filters, winner += filters)
        for (int64_t f = 0; f < filters; f += LANES) {
            vec best = load(line + f);
            ivec place = {0};
            if (pool == 2) {
                keep_larger(&best, &place, load(line + filters + f), 1);
                keep_larger(&best, &place, load(line + below + f), 2);
                keep_larger(&best, &place, load(line + below + filters + f), 3);
            }
            ivec held = (best <= 0) & rectify;
            store(out + f, (vec)((ivec)best & ~held));
            *(places *)(winner + f) = __builtin_convertvector(place | held, places);
        }
}

/* out: float [samples][rows / pool + 2 border][columns / pool + 2 border][filters]. */
static void convolve(const layer *l, const float *packed, const float *x, float *line, float *out,
                     int8_t *winner, int64_t samples) {
    int64_t rows = l->rows / l->pool, columns = l->columns / l->pool;
    int64_t out_row = (columns + 2 * l->border) * l->filters;
    int64_t out_size = (rows + 2 * l->border) * out_row;
    out += l->border * (out_row + l->filters);
    for (int64_t b = 0; b < samples; b++)
        for (int64_t r = 0; r < rows; r++) {
            multiply(line, l->columns * l->filters, l->filters,
                     x + b * image_size(l) + r * l->pool * image_row(l), image_row(l), l->channels,
                     image_row(l), packed + l->weights, l->has_bias ? packed + l->bias : NULL,
                     l->filters, l->kh, l->kw * l->channels, l->pool, l->columns);
            give_on(l, line, out + b * out_size + r * out_row,
                    winner + (b * rows + r) * columns * l->filters);
        }
}

/* Spreads the gradient of what one row of a convolution gives on over `pool` rows of its outputs
 * before the pool; the bias's gradient is added. */
static void spread_row(const layer *l, const float *gradient, const int8_t *winner, float *slope,
                       float *bias) {
    const int64_t filters = l->filters, below = slope_row(l);
    const int64_t pool = l->pool, columns = l->columns / pool;
    for (int64_t f = 0; f < filters; f += LANES) {
        vec sum = load(bias + f);
        for (int64_t c = 0; c < columns; c++) {
            float *to = slope + c * pool * filters + f;
            vec g = load(gradient + c * filters + f);
            ivec at = __builtin_convertvector(*(const places *)(winner + c * filters + f), ivec);
            store(to, (vec)((ivec)g & (at == 0)));
            if (pool == 2) {
                store(to + filters, (vec)((ivec)g & (at == 1)));
                store(to + below, (vec)((ivec)g & (at == 2)));
                store(to + below + filters, (vec)((ivec)g & (at == 3)));
            }
            sum += (vec)((ivec)g & (at >= 0));
        }
        store(bias + f, sum);
    }
}

static void spread(const layer *l, const float *gradient, const int8_t *winner, float *slope,
                   float *bias, int64_t samples) {
    int64_t rows = l->rows / l->pool, row = l->columns / l->pool * l->filters;
    for (int64_t b = 0; b < samples; b++)
        for (int64_t r = 0; r < rows; r++)
            spread_row(l, gradient + (b * rows + r) * row, winner + (b * rows + r) * row,
                       slope + b * slope_size(l) + slope_start(l) + r * l->pool * slope_row(l),
                       bias);
}

/* Adds the gradient of a convolution's weights. */
static void correlate_images(const layer *l, const float *x, const float *slope, float *gradient,
                             int64_t samples) {
    int64_t taps = l->kw * l->channels;
    for (int64_t i = 0; i < l->kh; i++)
        correlate(gradient + l->weights + i * taps * l->filters, l->filters, taps,
                  x + i * image_row(l), image_size(l), image_row(l), l->channels,
                  slope + slope_start(l), slope_size(l), slope_row(l), l->filters, samples, l->rows,
                  l->columns);
}

/* The gradient of a convolution's input, without border, from the kernel that `turn_round` made. */
static void convolve_back(const layer *l, const float *turned, const float *slope, float *back,
                          int64_t samples) {
    int64_t height = l->height - 2 * l->padding, width = l->width - 2 * l->padding;
    int64_t row = width * l->channels, taps = l->kw * l->filters;
    for (int64_t h = 0; h < height; h++) {
        /* Rows of the kernel that meet nothing but the margin are left out. */
        int64_t top = h + l->padding, first = l->margin_rows - top;
        int64_t last = smaller(l->rows + l->kh - 1 - top, l->kh);
        first = first > 0 ? first : 0;
        for (int64_t b = 0; b < samples; b++)
            multiply(back + (b * height + h) * row, 0, l->channels,
                     slope + b * slope_size(l) + (top + first) * slope_row(l) +
                         l->padding * l->filters,
                     0, l->filters, slope_row(l),
                     turned + l->weights + first * taps * l->channels, NULL, l->channels,
                     last - first, taps, 1, width);
    }
}

/* Turns a layer's kernel round, so that it leads from the output back to the input. */
static void turn_round(const layer *l, const float *packed, float *turned) {
    const float *w = packed + l->weights;
    float *t = turned + l->weights;
    int64_t last = l->kh * l->kw - 1, channels = l->channels, filters = l->filters;
    for (int64_t k = 0; k <= last; k++)
        for (int64_t some = 0; some < filters; some += LANES)
            for (int64_t c = 0; c < channels; c++)
                for (int64_t f = some; f < some + LANES; f++)
                    t[((last - k) * filters + f) * channels + c] =
                        w[(k * channels + c) * filters + f];
}

/* -- parameters, between PyTorch's order and ours ------------------------------------------- */

/* A convolution's weights are [filter][channel][pixel of the kernel] there, a linear layer's
 * [output][channel][pixel of what was flattened]; here both are [pixel][channel][filter]. */
#define FOR_WEIGHTS(l, BODY)                                                                      \
    {                                                                                             \
        int64_t pixels = (l)->is_linear ? (l)->area : (l)->kh * (l)->kw, theirs = 0;              \
        int64_t filled = (l)->is_linear ? (l)->channels / (l)->area : (l)->channels;              \
        for (int64_t f = 0; f < (l)->outputs; f++)                                                \
            for (int64_t c = 0; c < (l)->inputs; c++)                                             \
                for (int64_t k = 0; k < pixels; k++, theirs++) {                                  \
                    int64_t ours = (k * filled + c) * (l)->filters + f;                           \
                    BODY                                                                          \
                }                                                                                 \
    }

static int64_t weights_of(const layer *l) {
    return l->inputs * l->outputs * (l->is_linear ? l->area : l->kh * l->kw);
}

static void pack(const layer *l, const float *weight, const float *bias, float *packed) {
    float *w = packed + l->weights;
    FOR_WEIGHTS(l, w[ours] = weight[theirs];)
    if (l->has_bias) memcpy(packed + l->bias, bias, l->outputs * sizeof(float));
}

static void unpack(const layer *l, const float *packed, float *weight, float *bias) {
    const float *w = packed + l->weights;
    FOR_WEIGHTS(l, weight[theirs] = w[ours];)
    if (l->has_bias) memcpy(bias, packed + l->bias, l->outputs * sizeof(float));
}

/* -- a whole model -------------------------------------------------------------------------- */

/* What there is to do; filled in by layout.py, field for field. */
typedef struct {
    const layer *chain;
    int64_t layers, parameters, samples_at_once, classes;
    int64_t channels, height, width;             /* of a sample; 1, 1 and its length if no image */
    int64_t jobs, steps, batch;
    const float *const *weights, *const *biases; /* by layer, [models][...] */
    float *const *local_weights, *const *local_biases; /* by layer, [jobs][...] */
    const int64_t *model;                        /* [jobs]: which of the models a job starts from */
    const int64_t *order;                        /* [jobs]: which job is done first */
    const float *data;                           /* [...][channels][height][width] */
    const int64_t *labels;
    const int64_t *samples;                      /* [steps][jobs][batch] */
    const int64_t *counts;                       /* [steps][jobs]: samples of a batch; 0 if over */
    double *losses;                              /* [jobs]: their sum over all samples */
    int64_t *right;                              /* [jobs]: labels that have the largest logit */
    int64_t next;                                /* jobs that somebody has begun */
    float lr, momentum, proximal;
} task;

static void read_samples(const task *t, const int64_t *sample, int64_t count, float *to) {
    const layer *l = t->chain;
    int64_t pixels = t->height * t->width;
    for (int64_t b = 0; b < count; b++) {
        const float *x = t->data + sample[b] * t->channels * pixels;
        float *image = to + b * image_size(l) + l->padding * (image_row(l) + l->channels);
        for (int64_t h = 0; h < t->height; h++)
            for (int64_t w = 0; w < t->width; w++)
                for (int64_t c = 0; c < t->channels; c++)
                    image[h * image_row(l) + w * t->channels + c] =
                        x[c * pixels + h * t->width + w];
    }
}

static void forward(const layer *l, const float *packed, float *scratch, float *out,
                    int64_t samples) {
    const float *x = scratch + l->input;
    if (!l->is_linear) {
        convolve(l, packed, x, scratch + l->line, out, (int8_t *)(scratch + l->winner), samples);
        return;
    }
    multiply(out, 0, l->filters, x, 0, l->channels, 0, packed + l->weights,
             l->has_bias ? packed + l->bias : NULL, l->filters, 1, l->channels, 1, samples);
    if (l->relu)
        for (int64_t i = 0; i < samples * l->filters; i++) out[i] = out[i] <= 0 ? 0 : out[i];
}

/* From the gradient of what a layer gives on to that of its weights, which is added to `gradient`,
 * and to that of its input, which is written to `back` unless that is NULL. */
static void backward(const layer *l, const float *turned, float *gradient, float *scratch,
                     float *given, const float *out, float *back, int64_t samples) {
    const float *x = scratch + l->input;
    float *bias = gradient + l->bias, *slope = scratch + l->slope;
    int64_t filters = l->filters, channels = l->channels;
    if (!l->is_linear) {
        spread(l, given, (const int8_t *)(scratch + l->winner), slope, bias, samples);
        correlate_images(l, x, slope, gradient, samples);
        if (back) convolve_back(l, turned, slope, back, samples);
        return;
    }
    if (l->relu)
        for (int64_t i = 0; i < samples * filters; i++) given[i] = out[i] <= 0 ? 0 : given[i];
    correlate(gradient + l->weights, filters, channels, x, channels, 0, 0, given, filters, 0, 0,
              samples, 1, 1);
    if (l->has_bias)
        for (int64_t b = 0; b < samples; b++)
            for (int64_t f = 0; f < filters; f++) bias[f] += given[b * filters + f];
    if (back)
        multiply(back, 0, channels, given, 0, filters, 0, turned + l->weights, NULL, channels, 1,
                 filters, 1, samples);
}

/* Turns logits into `weight` times the gradient of the cross-entropies; returns their sum, and adds
 * how many labels have the largest logit to `right`. */
static double lose(const task *t, float *logits, int64_t width, const int64_t *sample,
                   int64_t count, float weight, int64_t *right) {
    double total = 0;
    for (int64_t b = 0; b < count; b++) {
        float *z = logits + b * width, most = z[0], sum = 0;
        int64_t y = t->labels[sample[b]], largest = 0;
        for (int64_t c = 1; c < t->classes; c++)
            if (z[c] > most) {
                most = z[c];
                largest = c;
            }
        *right += largest == y;
        float at_label = z[y] - most;
        for (int64_t c = 0; c < t->classes; c++) sum += z[c] = expf(z[c] - most);
        total += logf(sum) - at_label;
        for (int64_t c = 0; c < t->classes; c++) z[c] *= weight / sum;
        z[y] -= weight;
    }
    return total;
}

/* One worker's own memory, all zeros at first; margins and borders stay so. */
typedef struct {
    float *packed, *gradient, *turned, *velocity, *first, *scratch, *here, *there;
} space;

/* Computes the logits of some samples, in `here`. */
static void predict(const task *t, space *own, const int64_t *sample, int64_t count) {
    const layer *l = t->chain;
    read_samples(t, sample, count, own->scratch + l->input);
    for (int64_t i = 0; i < t->layers; i++)
        forward(l + i, own->packed, own->scratch,
                i + 1 < t->layers ? own->scratch + l[i + 1].input : own->here, count);
}

/* Adds the gradient of the mean loss of a batch; returns the sum of its losses. */
static double differentiate(const task *t, space *own, const int64_t *sample, int64_t batch) {
    const layer *l = t->chain;
    double total = 0;
    int64_t right = 0;
    for (int64_t start = 0, some; start < batch; start += some) {
        some = share(batch - start, t->samples_at_once);
        predict(t, own, sample + start, some);
        total += lose(t, own->here, l[t->layers - 1].filters, sample + start, some, 1.0f / batch,
                      &right);
        for (int64_t i = t->layers - 1; i >= 0; i--) {
            const float *out = i + 1 < t->layers ? own->scratch + l[i + 1].input : NULL;
            backward(l + i, own->turned, own->gradient, own->scratch, own->here, out,
                     i ? own->there : NULL, some);
            float *here = own->here;
            own->here = own->there;
            own->there = here;
        }
    }
    return total;
}

static void read_model(const task *t, space *own, int64_t model) {
    /* What channels are filled up with is 0, unless a job before this one diverged. */
    memset(own->packed, 0, t->parameters * sizeof(float));
    for (int64_t i = 0; i < t->layers; i++) {
        const layer *l = t->chain + i;
        pack(l, t->weights[i] + model * weights_of(l),
             l->has_bias ? t->biases[i] + model * l->outputs : NULL, own->packed);
    }
}

static void train_job(const task *t, space *own, int64_t job) {
    const layer *l = t->chain;
    int64_t bytes = t->parameters * sizeof(float);
    double total = 0;
    read_model(t, own, t->model[job]);
    if (t->proximal != 0) memcpy(own->first, own->packed, bytes);
    if (t->momentum != 0) memset(own->velocity, 0, bytes);
    for (int64_t step = 0; step < t->steps; step++) {
        int64_t batch = t->counts[step * t->jobs + job];
        if (batch == 0) continue;
        memset(own->gradient, 0, bytes);
        for (int64_t i = 1; i < t->layers; i++) turn_round(l + i, own->packed, own->turned);
        total += differentiate(t, own, t->samples + (step * t->jobs + job) * t->batch, batch);
        float *along = own->gradient;
        if (t->proximal != 0)
            for (int64_t i = 0; i < t->parameters; i++)
                along[i] += t->proximal * (own->packed[i] - own->first[i]);
        if (t->momentum != 0) {
            along = own->velocity;
            for (int64_t i = 0; i < t->parameters; i++)
                along[i] = t->momentum * along[i] + own->gradient[i];
        }
        for (int64_t i = 0; i < t->parameters; i++) own->packed[i] -= t->lr * along[i];
    }
    for (int64_t i = 0; i < t->layers; i++)
        unpack(l + i, own->packed, t->local_weights[i] + job * weights_of(l + i),
               l[i].has_bias ? t->local_biases[i] + job * l[i].outputs : NULL);
    t->losses[job] = total;
}

/* Measures a model on the samples of a job, of which there is one step. */
static void measure_job(const task *t, space *own, int64_t job) {
    double total = 0;
    int64_t right = 0, count = t->counts[job];
    read_model(t, own, t->model[job]);
    for (int64_t start = 0, some; start < count; start += some) {
        const int64_t *sample = t->samples + job * t->batch + start;
        some = smaller(count - start, t->samples_at_once);
        predict(t, own, sample, some);
        total += lose(t, own->here, t->chain[t->layers - 1].filters, sample, some, 0, &right);
    }
    t->losses[job] = total;
    t->right[job] = right;
}

/* -- workers --------------------------------------------------------------------------------- */

typedef struct {
    task *task;
    void (*job)(const task *, space *, int64_t);
    space own;
    pthread_t thread;
} worker;

/* Does jobs until none is left. */
static void *work(void *of) {
    worker *self = of;
    task *t = self->task;
    int64_t turn;
    while ((turn = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED)) < t->jobs)
        self->job(t, &self->own, t->order[turn]);
    return NULL;
}

static void work_together(task *t, void (*job)(const task *, space *, int64_t),
                          const space *spaces, int64_t workers) {
    worker team[workers];
    int64_t started = 1;
    for (int64_t i = 0; i < workers; i++)
        team[i] = (worker){.task = t, .job = job, .own = spaces[i]};
    /* A thread that the system does not give is no harm: the others do its jobs. */
    while (started < workers &&
           pthread_create(&team[started].thread, NULL, work, &team[started]) == 0)
        started++;
    work(&team[0]);
    while (--started > 0) pthread_join(team[started].thread, NULL);
}

/* Trains all jobs with so many workers, each of which has a `space` of its own. */
void train(task *t, const space *spaces, int64_t workers) {
    work_together(t, train_job, spaces, workers);
}

/* Measures the models of all jobs: the sum of the losses, and how many labels are right. */
void measure(task *t, const space *spaces, int64_t workers) {
    work_together(t, measure_job, spaces, workers);
}

/* -- the server ------------------------------------------------------------------------------ */

/* Whether all of the values are finite: only then are their differences with themselves 0. */
static int all_finite(const float *values, int64_t count) {
    int32_t others = 0;
    for (int64_t i = 0; i < count; i++) others |= !(values[i] - values[i] == 0);
    return !others;
}

/* Moves `models` global models by the weighted mean of their clients' updates.
 *
 * values, moved: by parameter, [models][size]; local: by parameter, [jobs][size]; slots: [models]
 * [width], the jobs of a model, -1 where there are fewer; weights: as slots; used: [jobs], who may
 * count, and afterwards who did: those whose model is finite. The others' weight goes to the rest
 * of their cohort, in proportion. */
void average(int64_t parameters, const int64_t *sizes, const float *const *values,
             const float *const *local, float *const *moved, int64_t models, int64_t jobs,
             int64_t width, const int64_t *slots, const double *weights, uint8_t *used) {
    for (int64_t j = 0; j < jobs; j++)
        for (int64_t p = 0; p < parameters; p++)
            used[j] = used[j] && all_finite(local[p] + j * sizes[p], sizes[p]);
    for (int64_t m = 0; m < models; m++) {
        const int64_t *own = slots + m * width;
        const double *meant = weights + m * width;
        double intended = 0, present = 0;
        for (int64_t k = 0; k < width; k++) {
            intended += meant[k];
            present += own[k] >= 0 && used[own[k]] ? meant[k] : 0;
        }
        for (int64_t p = 0; p < parameters; p++) {
            int64_t size = sizes[p];
            const float *restrict from = values[p] + m * size;
            float *restrict to = moved[p] + m * size;
            memcpy(to, from, size * sizeof(float));
            for (int64_t k = 0; k < width; k++) {
                if (own[k] < 0 || !used[own[k]]) continue;
                const float *restrict theirs = local[p] + own[k] * size;
                /* Exactly the weight that was meant, if everyone counts. */
                float share = present == intended ? meant[k] : meant[k] * (intended / present);
                for (int64_t i = 0; i < size; i++) to[i] += share * (theirs[i] - from[i]);
            }
        }
    }
}
