"""GPU kernels that train many small models at once.

One launch does one layer of all models. Every model has weights of its own, and a program handles
a tile of one model. Shared by all kernels:

step [1], count [T, M]
    The step to do, and how many samples each model trains on in it; 0 is a model that has
    finished, whose programs end at once.
sample [T, M, B]
    Indices into the data set: the first layer reads its inputs from the data set itself.

Images are laid out [height, width, channels], so that the inputs a kernel row meets are adjacent.
A convolution's weights are a matrix [KP, NP], rows (row, column, channel) and one more for the
bias, padded with zeros. `winner` says which of a pooling window's values went on, or that none did
because of the ReLU: backward passes never need what came before the pool.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["jobs"])
def conv_forward(
    x, sample, step, count, w, y, winner, jobs, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PAD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, POOL: tl.constexpr,
    N: tl.constexpr, NP: tl.constexpr, KP: tl.constexpr, RELU: tl.constexpr,
    FIRST: tl.constexpr, SHARED: tl.constexpr, TRAIN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Convolve, add the bias, pool and rectify: y [M, B, PH, PW, N], winner alike."""
    m = tl.program_id(1).to(tl.int64)
    t = tl.load(step)
    if tl.load(count + t * jobs + m) == 0:
        return
    K: tl.constexpr = KH * KW * C
    WINDOW: tl.constexpr = POOL * POOL
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    place = row // WINDOW
    b = place // (PH * PW)
    pixel = place % (PH * PW)
    i = pixel // PW * POOL + row % WINDOW // POOL - PAD
    j = pixel % PW * POOL + row % POOL - PAD
    live = b < batch
    if FIRST:
        chosen = sample + (b if SHARED else (t * jobs + m) * batch + b)
        origin = tl.load(chosen, mask=live, other=0) * (H * W * C)
        images = x
    else:
        origin = b * (H * W * C)
        images = x + m * batch * (H * W * C)
    origin += (i * W + j) * C
    w += m * (KP * NP)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        down = k // (KW * C)
        along = k % (KW * C)
        inside = live[:, None] & (k < K)[None, :]
        if PAD > 0:
            h = i[:, None] + down[None, :]
            v = j[:, None] + (along // C)[None, :]
            inside = inside & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        a = tl.load(
            images + origin[:, None] + (down * (W * C) + along)[None, :], mask=inside, other=0.0
        )
        acc = tl.dot(a, tl.load(w + k[:, None] * NP + n[None, :]), acc)
    acc += tl.load(w + K * NP + n)[None, :].to(tl.float32)
    if POOL > 1:
        best, which = tl.max(
            tl.reshape(acc, (BM // WINDOW, WINDOW, BN)), axis=1, return_indices=True
        )
    else:
        best = acc
        which = tl.zeros((BM, BN), tl.int32)
    if RELU:
        which = tl.where(best > 0, which, WINDOW)
        best = tl.where(best < 0, 0.0, best)
    out = tl.program_id(0) * (BM // WINDOW) + tl.arange(0, BM // WINDOW)
    kept = (out < batch * PH * PW)[:, None] & (n < N)[None, :]
    at = m * batch * (PH * PW * N) + out[:, None] * N + n[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=kept)
    if TRAIN:
        tl.store(winner + at, which.to(tl.int8), mask=kept)


@triton.jit
def _descend(
    master, work, velocity, anchor, at, before, gradient, mask, lr, momentum, proximal,
    MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Take one step of gradient descent on a tile of the weights, which were `before`."""
    if PROXIMAL:
        gradient += proximal * (before - tl.load(anchor + at, mask=mask, other=0.0))
    if MOMENTUM:
        gradient += momentum * tl.load(velocity + at, mask=mask, other=0.0)
        tl.store(velocity + at, gradient, mask=mask)
    moved = before - tl.load(lr) * gradient
    tl.store(master + at, moved, mask=mask)
    if COPY:
        tl.store(work + at, moved.to(work.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["jobs"])
def unpool(
    dy, winner, step, count, dense, jobs, batch,
    PH: tl.constexpr, PW: tl.constexpr, POOL: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Spread a layer's gradient to before its pool and ReLU: dense [M, B, PH·POOL, PW·POOL, NP]."""
    m = tl.program_id(1).to(tl.int64)
    t = tl.load(step)
    if tl.load(count + t * jobs + m) == 0:
        return
    n = tl.arange(0, NP)
    place = tl.program_id(0) * BM + tl.arange(0, BM)
    live = place < batch * PH * PW
    kept = live[:, None] & (n < N)[None, :]
    at = m * batch * (PH * PW * N) + place[:, None] * N + n[None, :]
    g = tl.load(dy + at, mask=kept, other=0.0)
    which = tl.load(winner + at, mask=kept, other=-1)
    b = place // (PH * PW)
    i = place % (PH * PW) // PW * POOL
    j = place % PW * POOL
    dense += m * batch * (PH * POOL * PW * POOL * NP)
    for p in tl.static_range(POOL * POOL):
        pixel = (b * (PH * POOL) + i + p // POOL) * (PW * POOL) + j + p % POOL
        tl.store(
            dense + pixel[:, None] * NP + n[None, :],
            tl.where(which == p, g, 0.0).to(dense.dtype.element_ty),
            mask=live[:, None],
        )


@triton.jit(do_not_specialize=["jobs"])
def conv_update(
    x, sample, step, count, dense, master, work, velocity, anchor, lr, momentum, proximal,
    jobs, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PAD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, POOL: tl.constexpr,
    N: tl.constexpr, NP: tl.constexpr, KP: tl.constexpr, BIAS: tl.constexpr,
    FIRST: tl.constexpr, MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr,
    COPY: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a convolution's weights and step along it."""
    m = tl.program_id(1).to(tl.int64)
    t = tl.load(step)
    if tl.load(count + t * jobs + m) == 0:
        return
    K: tl.constexpr = KH * KW * C
    OH: tl.constexpr = PH * POOL
    OW: tl.constexpr = PW * POOL
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    down = k // (KW * C)
    along = k % (KW * C)
    dense += m * batch * (OH * OW * NP)
    images = x if FIRST else x + m * batch * (H * W * C)
    acc = tl.zeros((BK, BN), tl.float32)
    rows = batch * (OH * OW)
    for r0 in range(0, rows, BM):
        row = r0 + tl.arange(0, BM)
        b = row // (OH * OW)
        i = row % (OH * OW) // OW - PAD
        j = row % OW - PAD
        live = row < rows
        if FIRST:
            chosen = sample + (t * jobs + m) * batch + b
            origin = tl.load(chosen, mask=live, other=0) * (H * W * C)
        else:
            origin = b * (H * W * C)
        origin += (i * W + j) * C
        inside = live[:, None] & (k < K)[None, :]
        if PAD > 0:
            h = i[:, None] + down[None, :]
            v = j[:, None] + (along // C)[None, :]
            inside = inside & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        a = tl.load(
            images + origin[:, None] + (down * (W * C) + along)[None, :], mask=inside, other=0.0
        )
        if BIAS:
            a = tl.where((k == K)[None, :], 1.0, a).to(x.dtype.element_ty)
        g = tl.load(dense + row[:, None] * NP + n[None, :], mask=live[:, None], other=0.0)
        acc = tl.dot(tl.trans(a), g, acc)
    at = m * (KP * NP) + k[:, None] * NP + n[None, :]
    mask = (k < K + BIAS)[:, None] & (n < N)[None, :]
    before = tl.load(master + at, mask=mask, other=0.0)
    _descend(
        master, work, velocity, anchor, at, before, acc, mask, lr, momentum, proximal,
        MOMENTUM, PROXIMAL, COPY,
    )  # fmt: skip


@triton.jit(do_not_specialize=["jobs"])
def conv_backward(
    dense, step, count, w, dx, jobs, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PAD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, POOL: tl.constexpr,
    N: tl.constexpr, NP: tl.constexpr, KP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a convolution's inputs: dx [M, B, H, W, C].

    A program handles one row of the input in several images, so that the kernel rows that would
    fall outside the output are left out rather than masked.
    """
    m = tl.program_id(1).to(tl.int64)
    t = tl.load(step)
    if tl.load(count + t * jobs + m) == 0:
        return
    OH: tl.constexpr = PH * POOL
    OW: tl.constexpr = PW * POOL
    BLOCKS: tl.constexpr = (C + BC - 1) // BC
    CHUNKS: tl.constexpr = NP // BN
    i = tl.program_id(2) // BLOCKS
    c = tl.program_id(2) % BLOCKS * BC + tl.arange(0, BC)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    b = row // W
    j = row % W
    live = b < batch
    dense += m * batch * (OH * OW * NP)
    w += m * (KP * NP)
    acc = tl.zeros((BM, BC), tl.float32)
    first = tl.maximum(i + PAD - OH + 1, 0)
    last = tl.minimum(i + PAD + 1, KH)
    for turn in range(first * KW * CHUNKS, last * KW * CHUNKS):
        tap = turn // CHUNKS
        n = turn % CHUNKS * BN + tl.arange(0, BN)
        h = i + PAD - tap // KW
        v = j + PAD - tap % KW
        seen = live & (v >= 0) & (v < OW)
        g = tl.load(
            dense + ((b * OH + h) * OW + v)[:, None] * NP + n[None, :],
            mask=seen[:, None],
            other=0.0,
        )
        taps = tl.load(
            w + (tap * C + c)[:, None] * NP + n[None, :], mask=(c < C)[:, None], other=0.0
        )
        acc = tl.dot(g, tl.trans(taps), acc)
    at = m * batch * (H * W * C) + ((b * H + i) * W + j)[:, None] * C + c[None, :]
    tl.store(dx + at, acc.to(dx.dtype.element_ty), mask=live[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=["jobs"])
def linear(
    x, sample, step, count, w, bias, mask, y, jobs, batch,
    K: tl.constexpr, N: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr,
    FIRST: tl.constexpr, SHARED: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    MASK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Multiply by the weights, y [M, B, N] = x [M, B, K] w, forwards or backwards.

    Element (k, n) of w stands at k * ROW + n * COLUMN. With MASK, y is 0 where mask [M, B, N] is.
    """
    m = tl.program_id(1).to(tl.int64)
    t = tl.load(step)
    if tl.load(count + t * jobs + m) == 0:
        return
    ACROSS: tl.constexpr = (N + BN - 1) // BN
    b = tl.program_id(0) // ACROSS * BM + tl.arange(0, BM)
    n = tl.program_id(0) % ACROSS * BN + tl.arange(0, BN)
    live = b < batch
    if FIRST:
        chosen = sample + (b if SHARED else (t * jobs + m) * batch + b)
        origin = tl.load(chosen, mask=live, other=0) * K
        rows = x
    else:
        origin = b * K
        rows = x + m * batch * K
    w += m * (K * N)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(
            rows + origin[:, None] + k[None, :], mask=live[:, None] & (k < K)[None, :], other=0.0
        )
        weights = tl.load(
            w + k[:, None] * ROW + n[None, :] * COLUMN,
            mask=(k < K)[:, None] & (n < N)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, weights, acc)
    if BIAS:
        acc += tl.load(bias + m * N + n, mask=n < N, other=0.0)[None, :].to(tl.float32)
    if RELU:
        acc = tl.where(acc < 0, 0.0, acc)
    kept = live[:, None] & (n < N)[None, :]
    at = m * batch * N + b[:, None] * N + n[None, :]
    if MASK:
        acc = tl.where(tl.load(mask + at, mask=kept, other=0.0) > 0, acc, 0.0)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["jobs"])
def linear_update(
    x, sample, step, count, dy, master, work, velocity, anchor,
    bias, bias_work, bias_velocity, bias_anchor, lr, momentum, proximal, jobs, batch,
    K: tl.constexpr, N: tl.constexpr, FIRST: tl.constexpr, BIAS: tl.constexpr,
    MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr,
    COPY: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a fully connected layer and step along it, weights [M, N, K]."""
    m = tl.program_id(1).to(tl.int64)
    t = tl.load(step)
    if tl.load(count + t * jobs + m) == 0:
        return
    ACROSS: tl.constexpr = (K + BK - 1) // BK
    n = tl.program_id(0) // ACROSS * BN + tl.arange(0, BN)
    k = tl.program_id(0) % ACROSS * BK + tl.arange(0, BK)
    rows = x if FIRST else x + m * batch * K
    dy += m * batch * N
    at = m * (N * K) + n[:, None] * K + k[None, :]
    mask = (n < N)[:, None] & (k < K)[None, :]
    # Asked for before the product, so that it has come when the product is done.
    before = tl.load(master + at, mask=mask, other=0.0)
    acc = tl.zeros((BN, BK), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for b0 in range(0, batch, BM):
        b = b0 + tl.arange(0, BM)
        live = b < batch
        if FIRST:
            chosen = sample + (t * jobs + m) * batch + b
            origin = tl.load(chosen, mask=live, other=0) * K
        else:
            origin = b * K
        g = tl.load(
            dy + b[None, :] * N + n[:, None], mask=live[None, :] & (n < N)[:, None], other=0.0
        )
        a = tl.load(
            rows + origin[:, None] + k[None, :], mask=live[:, None] & (k < K)[None, :], other=0.0
        )
        acc = tl.dot(g, a, acc)
        if BIAS:
            total += tl.sum(g.to(tl.float32), axis=1)
    _descend(
        master, work, velocity, anchor, at, before, acc, mask, lr, momentum, proximal,
        MOMENTUM, PROXIMAL, COPY,
    )  # fmt: skip
    if BIAS:
        if tl.program_id(0) % ACROSS == 0:
            own = m * N + n
            was = tl.load(bias + own, mask=n < N, other=0.0)
            _descend(
                bias, bias_work, bias_velocity, bias_anchor, own, was, total, n < N,
                lr, momentum, proximal, MOMENTUM, PROXIMAL, COPY,
            )  # fmt: skip


@triton.jit(do_not_specialize=["jobs"])
def cross_entropy(
    logits, labels, sample, step, count, gradient, loss, right, jobs, batch,
    N: tl.constexpr, NP: tl.constexpr, SHARED: tl.constexpr, TRAIN: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Add up the loss of each model's batch; in training also write the logits' gradient."""
    m = tl.program_id(0).to(tl.int64)
    t = tl.load(step)
    samples = tl.load(count + t * jobs + m)
    if samples == 0:
        return
    n = tl.arange(0, NP)
    total = 0.0
    hits = 0
    for b0 in range(0, batch, BM):
        b = b0 + tl.arange(0, BM)
        live = b < batch
        counted = b < samples
        at = (m * batch + b)[:, None] * N + n[None, :]
        kept = live[:, None] & (n < N)[None, :]
        z = tl.load(logits + at, mask=kept, other=float("-inf")).to(tl.float32)
        z = tl.where(live[:, None], z, 0.0)
        top = tl.max(z, axis=1)
        e = tl.exp(z - top[:, None])
        whole = tl.sum(e, axis=1)
        chosen = sample + (b if SHARED else (t * jobs + m) * batch + b)
        label = tl.load(labels + tl.load(chosen, mask=live, other=0), mask=live, other=0)
        is_label = n[None, :] == label[:, None]
        own = tl.sum(tl.where(is_label, z, 0.0), axis=1)
        total += tl.sum(tl.where(counted, tl.log(whole) + top - own, 0.0))
        if TRAIN:
            share = (e / whole[:, None] - tl.where(is_label, 1.0, 0.0)) / samples
            share = tl.where(counted[:, None], share, 0.0)
            tl.store(gradient + at, share.to(gradient.dtype.element_ty), mask=kept)
        else:
            hits += tl.sum(tl.where(counted & (tl.argmax(z, axis=1) == label), 1, 0))
    tl.store(loss + m, tl.load(loss + m) + total)
    if not TRAIN:
        tl.store(right + m, tl.load(right + m) + hits)
