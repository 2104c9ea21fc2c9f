"""GPU kernels that convolve for several models at once, each with weights of its own.

Images are laid out [height, width, channels], so that the inputs that a row of a kernel meets are
adjacent: products are over rows of the kernel, `KW · CI` terms each. No sum is atomic: results
repeat to the last bit.
"""

import triton
import triton.language as tl


@triton.jit
def convolve(
    x, w, y, model_stride,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr,
    HO: tl.constexpr, WO: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Convolve: y [S, B, HO, WO, CO] of x [S, B, H, W, CI] and w [S, CO, KH, KW, CI]."""
    model = tl.program_id(2).to(tl.int64)
    x += model * (B * H * W * CI)
    w += model * model_stride
    y += model * (B * HO * WO * CO)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    b = m // (HO * WO)
    top = m % (HO * WO) // WO * STRIDE - PAD
    left = m % WO * STRIDE - PAD
    live = m < B * HO * WO
    acc = tl.zeros((BM, BN), tl.float32)
    PIECES: tl.constexpr = (KW * CI + BK - 1) // BK
    for turn in range(KH * PIECES):
        down = turn // PIECES
        j = turn % PIECES * BK + tl.arange(0, BK)
        i = top + down
        column = left[:, None] + (j // CI)[None, :]
        seen = (live & (i >= 0) & (i < H))[:, None] & (j < KW * CI)[None, :]
        seen = seen & (column >= 0) & (column < W)
        at = ((b * H + i) * W + left)[:, None] * CI + j[None, :]
        a = tl.load(x + at, mask=seen, other=0.0)
        taps = tl.load(
            w + n[None, :] * (KH * KW * CI) + down * (KW * CI) + j[:, None],
            mask=(n < CO)[None, :] & (j < KW * CI)[:, None],
            other=0.0,
        )
        acc = tl.dot(a, taps, acc)
    kept = live[:, None] & (n < CO)[None, :]
    tl.store(y + m[:, None] * CO + n[None, :], acc.to(y.dtype.element_ty), mask=kept)


@triton.jit
def to_inputs(
    dy, w, dx, model_stride,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr,
    HO: tl.constexpr, WO: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the inputs, dx [S, B, H, W, CI], from dy [S, B, HO, WO, CO]."""
    model = tl.program_id(2).to(tl.int64)
    dx += model * (B * H * W * CI)
    w += model * model_stride
    dy += model * (B * HO * WO * CO)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    b = m // (H * W)
    top = m % (H * W) // W + PAD
    left = m % W + PAD
    live = m < B * H * W
    acc = tl.zeros((BM, BN), tl.float32)
    PIECES: tl.constexpr = (KW * CO + BK - 1) // BK
    for turn in range(KH * PIECES):
        down = turn // PIECES
        j = turn % PIECES * BK + tl.arange(0, BK)
        along = j // CO
        channel = j % CO
        i = top - down
        column = left[:, None] - along[None, :]
        seen = (live & (i >= 0) & (i < HO * STRIDE))[:, None] & (j < KW * CO)[None, :]
        seen = seen & (column >= 0) & (column < WO * STRIDE)
        if STRIDE > 1:
            seen = seen & (i % STRIDE == 0)[:, None] & (column % STRIDE == 0)
        at = ((b * HO + i // STRIDE)[:, None] * WO + column // STRIDE) * CO + channel[None, :]
        g = tl.load(dy + at, mask=seen, other=0.0)
        taps = tl.load(
            w + (channel * (KH * KW) + down * KW + along)[:, None] * CI + n[None, :],
            mask=(n < CI)[None, :] & (j < KW * CO)[:, None],
            other=0.0,
        )
        acc = tl.dot(g, taps, acc)
    kept = live[:, None] & (n < CI)[None, :]
    tl.store(dx + m[:, None] * CI + n[None, :], acc.to(dx.dtype.element_ty), mask=kept)


@triton.jit
def to_weights(
    x, dy, parts,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr,
    HO: tl.constexpr, WO: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr, PIXELS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute parts of the weights' gradient, float32 [S, PARTS, CO, KH, KW, CI], to be added."""
    PIECES: tl.constexpr = (KW * CI + BN - 1) // BN
    down = tl.program_id(0) // PIECES
    j = tl.program_id(0) % PIECES * BN + tl.arange(0, BN)
    n = tl.program_id(1) * BM + tl.arange(0, BM)
    model = (tl.program_id(2) // PARTS).to(tl.int64)
    begin = tl.program_id(2) % PARTS * PIXELS
    x += model * (B * H * W * CI)
    dy += model * (B * HO * WO * CO)
    acc = tl.zeros((BM, BN), tl.float32)
    for pixel in range(begin, begin + PIXELS, BK):
        m = pixel + tl.arange(0, BK)
        live = m < B * HO * WO
        i = m % (HO * WO) // WO * STRIDE - PAD + down
        left = m % WO * STRIDE - PAD
        column = left[:, None] + (j // CI)[None, :]
        kept = live[:, None] & (n < CO)[None, :]
        g = tl.load(dy + m[:, None] * CO + n[None, :], mask=kept, other=0.0)
        seen = (live & (i >= 0) & (i < H))[:, None] & (j < KW * CI)[None, :]
        seen = seen & (column >= 0) & (column < W)
        at = ((m // (HO * WO) * H + i) * W + left)[:, None] * CI + j[None, :]
        a = tl.load(x + at, mask=seen, other=0.0)
        acc = tl.dot(tl.trans(g), a, acc)
    parts += tl.program_id(2).to(tl.int64) * (CO * KH * KW * CI)
    at = (n * KH + down)[:, None] * (KW * CI) + j[None, :]
    tl.store(parts + at, acc, mask=(n < CO)[:, None] & (j < KW * CI)[None, :])
