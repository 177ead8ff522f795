/* LSTM and GRU for one element type (REAL, OF(name), LANES are set by recurrent.c).
 *
 * Vertices are independent, and hidden sizes small, so that the vector runs across vertices: a strip of 3 vectors of
 * them is transposed to feature-major form and stays in the first cache for all steps. With 4 gates of a hidden unit at
 * a time, 4 x 3 accumulators fill the registers, and the activation follows while they are there, whatever the
 * hidden size.
 *
 * Weights come as [hidden][inputs][4] with the gates innermost (LSTM i f g o; GRU r z n-of-input n-of-hidden, where the
 * last two have weights for one kind of input only), inputs being the frames' features and then the hidden state.
 * The LSTM's cell is kept for backward as [strips][steps][hidden][STRIP]; gates are computed again from it.
 */

#define STRIP (3 * LANES)
#define VEC OF(vec)
#define TILE OF(TILE)

typedef FRAME(REAL) OF(frame);

typedef struct {
    int64_t steps, rows, hidden, inputs;
    OF(frame) frames[2];
    const REAL *h0, *c0;
    const REAL *weights, *bias;
    int64_t out_step, out_row; /* strides of the outputs, which may be a part of a larger tensor's rows */
} OF(problem);

/* Rows of `width` at `source` → columns[k][vertex]; vertices past `count` are 0. */
static void OF(to_columns)(const REAL *source, int64_t stride, int64_t count, int64_t width, REAL *columns) {
    if (count < STRIP) memset(columns, 0, (size_t)width * STRIP * sizeof(REAL));
    int64_t v = 0;
#ifdef TILE_f32
    for (; v + TILE <= count; v += TILE) {
        int64_t k = 0;
        for (; k + TILE <= width; k += TILE)
            OF(transpose_tile)(source + v * stride + k, stride, columns + k * STRIP + v, STRIP);
        for (; k < width; k++)
            for (int64_t i = 0; i < TILE; i++) columns[k * STRIP + v + i] = source[(v + i) * stride + k];
    }
#endif
    for (; v < count; v++)
        for (int64_t k = 0; k < width; k++) columns[k * STRIP + v] = source[v * stride + k];
}

/* The way back; only the first `count` vertices are written. */
static void OF(to_rows)(const REAL *columns, int64_t count, int64_t width, REAL *target, int64_t stride) {
    int64_t v = 0;
#ifdef TILE_f32
    for (; v + TILE <= count; v += TILE) {
        int64_t k = 0;
        for (; k + TILE <= width; k += TILE)
            OF(transpose_tile)(columns + k * STRIP + v, STRIP, target + v * stride + k, stride);
        for (; k < width; k++)
            for (int64_t i = 0; i < TILE; i++) target[(v + i) * stride + k] = columns[k * STRIP + v + i];
    }
#endif
    for (; v < count; v++)
        for (int64_t k = 0; k < width; k++) target[v * stride + k] = columns[k * STRIP + v];
}

/* Ask for the strip's rows of the next step: they lie a whole frame away, where no hardware prefetch reaches. */
INLINE void OF(fetch_rows)(const REAL *rows, int64_t stride, int64_t count, int64_t width) {
    const char *p = (const char *)rows, *end = (const char *)(rows + (count - 1) * stride + width);
    if (stride == width)
        for (; p < end; p += 64) __builtin_prefetch(p);
    else
        for (int64_t v = 0; v < count; v++)
            for (int64_t k = 0; k < width; k += 64 / (int64_t)sizeof(REAL)) __builtin_prefetch(rows + v * stride + k);
}

/* sums[g] += w[k][g] * z[k] over the inputs k; the gate `skip` has no weight for this kind of input. */
INLINE void OF(multiply)(VEC sums[4][3], const REAL *w, const REAL *z, int64_t inputs, const int skip) {
    VEC s[4][3];
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 3; i++) s[g][i] = sums[g][i];
    for (int64_t k = 0; k < inputs; k++, w += 4, z += STRIP) {
        VEC z0 = OF(load)(z), z1 = OF(load)(z + LANES), z2 = OF(load)(z + 2 * LANES);
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            if (g == skip) continue;
            VEC b = OF(fill)(w[g]);
            s[g][0] += b * z0;
            s[g][1] += b * z1;
            s[g][2] += b * z2;
        }
    }
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 3; i++) sums[g][i] = s[g][i];
}

/* The 4 gates of hidden unit j before activation. */
INLINE void OF(gates)(const OF(problem) * p, const int cell, int64_t j, const REAL *x, const REAL *h, VEC sums[4][3]) {
    int64_t width = p->inputs - p->hidden;
    const REAL *w = p->weights + j * p->inputs * 4;
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++)
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) sums[g][i] = OF(fill)(p->bias[4 * j + g]);
    OF(multiply)(sums, w, x, width, cell == GRU ? 3 : -1);
    OF(multiply)(sums, w + 4 * width, h, p->hidden, cell == GRU ? 2 : -1);
}

/* One step of a strip: x and h in, h_next out, c updated in place (all feature-major). */
INLINE void OF(step)(const OF(problem) * p, const int cell, const REAL *x, const REAL *h, REAL *c, REAL *h_next) {
    for (int64_t j = 0; j < p->hidden; j++) {
        VEC s[4][3];
        OF(gates)(p, cell, j, x, h, s);
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            int64_t at = j * STRIP + i * LANES;
            if (cell == LSTM) {
                VEC in = OF(sigmoid)(s[0][i]), forget = OF(sigmoid)(s[1][i]), candidate = OF(tanh)(s[2][i]);
                VEC state = forget * OF(load)(c + at) + in * candidate;
                OF(store)(c + at, state);
                OF(store)(h_next + at, OF(sigmoid)(s[3][i]) * OF(tanh)(state));
            } else {
                VEC reset = OF(sigmoid)(s[0][i]), update = OF(sigmoid)(s[1][i]);
                VEC candidate = OF(tanh)(s[2][i] + reset * s[3][i]);
                OF(store)(h_next + at, candidate + update * (OF(load)(h + at) - candidate));
            }
        }
    }
}

static void OF(load_inputs)(const OF(problem) * p, int64_t step, int64_t row, int64_t count, REAL *x) {
    for (int f = 0; f < 2; f++) {
        const OF(frame) *in = &p->frames[f];
        OF(to_columns)(in->data + step * in->step_stride + row * in->row_stride, in->row_stride, count, in->width, x);
        x += in->width * STRIP;
    }
}

static void OF(fetch_inputs)(const OF(problem) * p, int64_t step, int64_t row, int64_t count) {
    for (int f = 0; f < 2; f++) {
        const OF(frame) *in = &p->frames[f];
        if (in->width)
            OF(fetch_rows)(in->data + step * in->step_stride + row * in->row_stride, in->row_stride, count, in->width);
    }
}

INLINE void OF(forward_strip)(const OF(problem) * p, const int cell, int64_t strip, REAL *out, REAL *h_last,
                              REAL *c_last, REAL *cells, REAL *scratch) {
    int64_t hidden = p->hidden, row = strip * STRIP;
    int64_t count = p->rows - row < STRIP ? p->rows - row : STRIP;
    REAL *h = scratch, *h_next = h + hidden * STRIP, *c = h_next + hidden * STRIP, *x = c + hidden * STRIP;
    OF(to_columns)(p->h0 + row * hidden, hidden, count, hidden, h);
    if (cell == LSTM) OF(to_columns)(p->c0 + row * hidden, hidden, count, hidden, c);
    for (int64_t t = 0; t < p->steps; t++) {
        OF(load_inputs)(p, t, row, count, x);
        if (t + 1 < p->steps) OF(fetch_inputs)(p, t + 1, row, count);
        OF(step)(p, cell, x, h, c, h_next);
        REAL *swap = h;
        h = h_next;
        h_next = swap;
        OF(to_rows)(h, count, hidden, out + t * p->out_step + row * p->out_row, p->out_row);
        if (cell == LSTM && cells)
            memcpy(cells + (strip * p->steps + t) * hidden * STRIP, c, (size_t)hidden * STRIP * sizeof(REAL));
    }
    OF(to_rows)(h, count, hidden, h_last + row * hidden, hidden);
    if (cell == LSTM) OF(to_rows)(c, count, hidden, c_last + row * hidden, hidden);
}

/* Where backward finds the gradients that come in, and puts those that go out; any of them may be NULL. */
typedef struct {
    const REAL *out, *cells;
    const REAL *d_out;
    int64_t d_out_step, d_out_row;
    const REAL *d_h_last, *d_c_last;
    OF(frame) d_frames[2];
    REAL *d_h0, *d_c0;
} OF(gradients);

/* Gates again, then the gradients before activation as d_gates[hidden][4][STRIP]. `d_h` holds the gradient of h after
 * this step; `d_c` of c, and becomes that of c before; for the GRU `d_h` keeps what passes straight to h before. */
INLINE void OF(step_back)(const OF(problem) * p, const int cell, const REAL *x, const REAL *h, const REAL *c,
                          REAL *d_h, REAL *d_c, REAL *d_gates) {
    for (int64_t j = 0; j < p->hidden; j++) {
        VEC s[4][3];
        OF(gates)(p, cell, j, x, h, s);
        REAL *d = d_gates + j * 4 * STRIP;
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            int64_t at = j * STRIP + i * LANES;
            VEC dh = OF(load)(d_h + at);
            if (cell == LSTM) {
                VEC in = OF(sigmoid)(s[0][i]), forget = OF(sigmoid)(s[1][i]);
                VEC candidate = OF(tanh)(s[2][i]), open = OF(sigmoid)(s[3][i]);
                VEC before = OF(load)(c + at);
                VEC shown = OF(tanh)(forget * before + in * candidate);
                VEC dc = OF(load)(d_c + at) + dh * open * (1 - shown * shown);
                OF(store)(d + i * LANES, dc * candidate * (in * (1 - in)));
                OF(store)(d + STRIP + i * LANES, dc * before * (forget * (1 - forget)));
                OF(store)(d + 2 * STRIP + i * LANES, dc * in * (1 - candidate * candidate));
                OF(store)(d + 3 * STRIP + i * LANES, dh * shown * (open * (1 - open)));
                OF(store)(d_c + at, dc * forget);
            } else {
                VEC reset = OF(sigmoid)(s[0][i]), update = OF(sigmoid)(s[1][i]);
                VEC candidate = OF(tanh)(s[2][i] + reset * s[3][i]);
                VEC dn = dh * (1 - update) * (1 - candidate * candidate);
                OF(store)(d + i * LANES, dn * s[3][i] * (reset * (1 - reset)));
                OF(store)(d + STRIP + i * LANES, dh * (OF(load)(h + at) - candidate) * (update * (1 - update)));
                OF(store)(d + 2 * STRIP + i * LANES, dn);
                OF(store)(d + 3 * STRIP + i * LANES, dn * reset);
                OF(store)(d_h + at, dh * update);
            }
        }
    }
}

/* d_z[k] = (d_z[k] if add) + sum over units and gates of weight * d_gates, for `count` (1..4) inputs from k on. */
INLINE void OF(input_tile)(const OF(problem) * p, int64_t k, const int count, const int skip, const int add,
                           const REAL *d_gates, REAL *d_z) {
    VEC s[4][3];
    for (int n = 0; n < count; n++)
        for (int i = 0; i < 3; i++) s[n][i] = add ? OF(load)(d_z + n * STRIP + i * LANES) : OF(fill)(0);
    const REAL *w = p->weights + 4 * k;
    for (int64_t j = 0; j < p->hidden; j++, w += 4 * p->inputs)
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++, d_gates += STRIP) {
            if (g == skip) continue;
            VEC d0 = OF(load)(d_gates), d1 = OF(load)(d_gates + LANES), d2 = OF(load)(d_gates + 2 * LANES);
#pragma GCC unroll 4
            for (int n = 0; n < count; n++) {
                VEC b = OF(fill)(w[4 * n + g]);
                s[n][0] += b * d0;
                s[n][1] += b * d1;
                s[n][2] += b * d2;
            }
        }
    for (int n = 0; n < count; n++)
        for (int i = 0; i < 3; i++) OF(store)(d_z + n * STRIP + i * LANES, s[n][i]);
}

INLINE void OF(input_gradient)(const OF(problem) * p, int64_t from, int64_t count, const int skip, const int add,
                               const REAL *d_gates, REAL *d_z) {
    int64_t k = 0;
    for (; k + 4 <= count; k += 4) OF(input_tile)(p, from + k, 4, skip, add, d_gates, d_z + k * STRIP);
    switch (count - k) {
    case 3: OF(input_tile)(p, from + k, 3, skip, add, d_gates, d_z + k * STRIP); break;
    case 2: OF(input_tile)(p, from + k, 2, skip, add, d_gates, d_z + k * STRIP); break;
    case 1: OF(input_tile)(p, from + k, 1, skip, add, d_gates, d_z + k * STRIP); break;
    default: break;
    }
}

/* d_weights[unit][gate][k] += sum over vertices of d_gates * z, for `wide` (1..3) vectors of inputs. */
INLINE void OF(weight_tile)(int64_t count, const int wide, const REAL *d, const REAL *z, int64_t padded, REAL *sums) {
    VEC s[4][3];
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < wide; i++) s[g][i] = OF(load)(sums + g * padded + i * LANES);
    for (int64_t v = 0; v < count; v++, z += padded) {
        VEC z0[3];
        for (int i = 0; i < wide; i++) z0[i] = OF(load)(z + i * LANES);
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            VEC b = OF(fill)(d[g * STRIP + v]);
            for (int i = 0; i < wide; i++) s[g][i] += b * z0[i];
        }
    }
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < wide; i++) OF(store)(sums + g * padded + i * LANES, s[g][i]);
}

INLINE void OF(weight_gradient)(int64_t hidden, int64_t count, const REAL *d_gates, const REAL *z, int64_t padded,
                                REAL *sums) {
    for (int64_t j = 0; j < hidden; j++, d_gates += 4 * STRIP, sums += 4 * padded) {
        int64_t k = 0;
        for (; k + 3 * LANES <= padded; k += 3 * LANES)
            OF(weight_tile)(count, 3, d_gates, z + k, padded, sums + k);
        if (padded - k == 2 * LANES) OF(weight_tile)(count, 2, d_gates, z + k, padded, sums + k);
        if (padded - k == LANES) OF(weight_tile)(count, 1, d_gates, z + k, padded, sums + k);
    }
}

INLINE void OF(backward_strip)(const OF(problem) * p, const int cell, int64_t strip, const OF(gradients) * g,
                               int64_t padded, REAL *d_weights, REAL *scratch) {
    int64_t hidden = p->hidden, row = strip * STRIP, width = p->inputs - hidden;
    int64_t count = p->rows - row < STRIP ? p->rows - row : STRIP;
    size_t state = (size_t)hidden * STRIP;
    REAL *h = scratch, *c0 = h + state, *d_h = c0 + state, *d_c = d_h + state, *d_out = d_c + state;
    REAL *d_gates = d_out + state, *x = d_gates + 4 * state, *d_x = x + width * STRIP, *z = d_x + width * STRIP;
    /* z: the inputs vertex by vertex, [x, h, 1, 0...], for the weights' gradient */
    memset(z, 0, (size_t)padded * STRIP * sizeof(REAL));
    for (int64_t v = 0; v < count; v++) z[v * padded + p->inputs] = 1;
    memset(d_h, 0, 2 * state * sizeof(REAL));
    if (g->d_h_last) OF(to_columns)(g->d_h_last + row * hidden, hidden, count, hidden, d_h);
    if (cell == LSTM && g->d_c_last) OF(to_columns)(g->d_c_last + row * hidden, hidden, count, hidden, d_c);
    for (int64_t t = p->steps - 1; t >= 0; t--) {
        const REAL *h_rows = t ? g->out + (t - 1) * p->out_step + row * p->out_row : p->h0 + row * hidden;
        int64_t h_stride = t ? p->out_row : hidden;
        const REAL *c = 0;
        if (cell == LSTM) {
            c = t ? g->cells + (strip * p->steps + t - 1) * (int64_t)state : c0;
            if (!t) OF(to_columns)(p->c0 + row * hidden, hidden, count, hidden, c0);
        }
        OF(load_inputs)(p, t, row, count, x);
        OF(to_columns)(h_rows, h_stride, count, hidden, h);
        REAL *part = z;
        for (int f = 0; f < 2; f++) {
            const OF(frame) *in = &p->frames[f];
            const REAL *rows = in->data + t * in->step_stride + row * in->row_stride;
            for (int64_t v = 0; v < count; v++)
                for (int64_t k = 0; k < in->width; k++) part[v * padded + k] = rows[v * in->row_stride + k];
            part += in->width;
        }
        for (int64_t v = 0; v < count; v++)
            for (int64_t k = 0; k < hidden; k++) part[v * padded + k] = h_rows[v * h_stride + k];
        if (t) {
            OF(fetch_inputs)(p, t - 1, row, count);
            if (t > 1) {
                OF(fetch_rows)(h_rows - p->out_step, p->out_row, count, hidden);
                if (cell == LSTM) OF(fetch_rows)(c - state, hidden, STRIP, hidden);
            }
        }
        if (g->d_out) {
            const REAL *d_rows = g->d_out + t * g->d_out_step + row * g->d_out_row;
            OF(to_columns)(d_rows, g->d_out_row, count, hidden, d_out);
            if (t) OF(fetch_rows)(d_rows - g->d_out_step, g->d_out_row, count, hidden);
            for (size_t i = 0; i < state; i++) d_h[i] += d_out[i];
        }
        OF(step_back)(p, cell, x, h, c, d_h, d_c, d_gates);
        OF(input_gradient)(p, width, hidden, cell == GRU ? 2 : -1, cell == GRU, d_gates, d_h);
        int64_t from = 0;
        for (int f = 0; f < 2; f++) {
            const OF(frame) *to = &g->d_frames[f];
            int64_t wide = p->frames[f].width;
            if (to->data) {
                OF(input_gradient)(p, from, wide, cell == GRU ? 3 : -1, 0, d_gates, d_x);
                OF(to_rows)(d_x, count, wide, to->data + t * to->step_stride + row * to->row_stride, to->row_stride);
            }
            from += wide;
        }
        OF(weight_gradient)(hidden, count, d_gates, z, padded, d_weights);
    }
    OF(to_rows)(d_h, count, hidden, g->d_h0 + row * hidden, hidden);
    if (cell == LSTM) OF(to_rows)(d_c, count, hidden, g->d_c0 + row * hidden, hidden);
}

/* 0, or 1 where memory ran out. */
int TRISECT(OF(trisect_recurrent_forward))(int cell, const OF(problem) * p, REAL *out, REAL *h_last, REAL *c_last,
                                           REAL *cells, int threads) {
    int64_t strips = (p->rows + STRIP - 1) / STRIP;
    size_t bytes = (size_t)(3 * p->hidden + p->inputs) * STRIP * sizeof(REAL);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
        failed = !scratch;
#pragma omp for schedule(dynamic, 4)
        for (int64_t strip = 0; strip < strips; strip++) {
            if (!scratch) continue;
            if (cell == LSTM)
                OF(forward_strip)(p, LSTM, strip, out, h_last, c_last, cells, scratch);
            else
                OF(forward_strip)(p, GRU, strip, out, h_last, c_last, cells, scratch);
        }
        free(scratch);
    }
    return failed;
}

/* d_weights [hidden][4][padded], padded = inputs + 1 rounded up to whole vectors: columns are inputs, then the bias.
 * 0, or 1 where memory ran out. */
int TRISECT(OF(trisect_recurrent_backward))(int cell, const OF(problem) * p, const OF(gradients) * g, REAL *d_weights,
                                            int threads) {
    int64_t strips = (p->rows + STRIP - 1) / STRIP;
    int64_t padded = (p->inputs + LANES) / LANES * LANES;
    int64_t weights = p->hidden * 4 * padded;
    int64_t groups = strips < GROUPS ? strips : GROUPS;
    size_t bytes = ((size_t)(7 * p->hidden + 2 * p->inputs + padded) * STRIP * sizeof(REAL) + 63) / 64 * 64;
    memset(d_weights, 0, (size_t)weights * sizeof(REAL));
    REAL *sums = calloc((size_t)(groups * weights + 1), sizeof(REAL));
    if (!sums) return 1;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL *scratch = aligned_alloc(64, bytes);
        failed = !scratch;
#pragma omp for schedule(dynamic, 1)
        for (int64_t group = 0; group < groups; group++)
            for (int64_t strip = group * strips / groups; scratch && strip < (group + 1) * strips / groups; strip++)
                if (cell == LSTM)
                    OF(backward_strip)(p, LSTM, strip, g, padded, sums + group * weights, scratch);
                else
                    OF(backward_strip)(p, GRU, strip, g, padded, sums + group * weights, scratch);
        free(scratch);
    }
    for (int64_t group = 0; group < groups; group++)
        for (int64_t i = 0; i < weights; i++) d_weights[i] += sums[group * weights + i];
    free(sums);
    return failed;
}

int TRISECT(OF(trisect_recurrent_strip))(void) { return STRIP; }


#undef STRIP
#undef VEC
#undef TILE
