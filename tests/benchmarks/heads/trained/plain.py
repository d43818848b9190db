"""The trained systems written a second time, in loops and float64, straight from their published definitions.

Weights are arrays under the names of the checkpoints. One image at a time: pixels `3 h w` → a unit vector.
"""

from __future__ import annotations

import math

import numpy as np

from tests.benchmarks.heads.trained.plain_layers import (
    Array,
    Weights,
    attention,
    batch_norm,
    convolution,
    gelu,
    linear,
    log_sum_exp,
    norm,
    relu,
    unit,
)
from tests.encoders.plain_positions import plain_positions


def transformer_states(w: Weights, at: str, pixels: Array) -> list[Array]:
    """`1+n d` before the first block and after each."""
    kernel = w[f"{at}patch_embed.proj.weight"]
    width, grid = len(kernel), pixels.shape[1] // 14
    tokens = [w[f"{at}cls_token"][0, 0]]
    for row in range(grid):
        for column in range(grid):
            patch = pixels[:, 14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
            tokens.append(np.array([(k * patch).sum() for k in kernel]) + w[f"{at}patch_embed.proj.bias"])
    states = [np.array(tokens) + plain_positions(w[f"{at}pos_embed"], (grid, grid))]
    block = 0
    while f"{at}blocks.{block}.ls1.gamma" in w:
        b, x = f"{at}blocks.{block}.", states[-1]
        qkv = np.array([linear(norm(t, w, b + "norm1", 1e-6), w, b + "attn.qkv") for t in x])
        mixed = attention(qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :], 64)
        x = x + w[b + "ls1.gamma"] * np.array([linear(t, w, b + "attn.proj") for t in mixed])
        inner = [linear(gelu(linear(norm(t, w, b + "norm2", 1e-6), w, b + "mlp.fc1")), w, b + "mlp.fc2") for t in x]
        states.append(x + w[b + "ls2.gamma"] * np.array(inner))
        block += 1
    return states


def sinkhorn(scores: Array, bin_score: float) -> Array:
    """Scores `m n` → shares `m+1 n`, the dustbin's row last."""
    m, n = scores.shape
    s = np.concatenate([scores, np.full((1, n), bin_score)])
    c = -math.log(n + m)
    a = [c] * m + [c + math.log(n - m)]
    u, v = np.zeros(m + 1), np.zeros(n)
    for _ in range(3):
        for k in range(m + 1):
            u[k] = a[k] - log_sum_exp(s[k] + v)
        for j in range(n):
            v[j] = c - log_sum_exp(s[:, j] + u)
    return np.array([[math.exp(s[k, j] + u[k] + v[j] - c) for j in range(n)] for k in range(m + 1)])


def transported(w: Weights, at: str, cls: Array, patches: Array) -> Array:
    features = np.array(
        [linear(relu(linear(t, w, at + "cluster_features.0")), w, at + "cluster_features.3") for t in patches]
    )
    scores = np.array([linear(relu(linear(t, w, at + "score.0")), w, at + "score.3") for t in patches]).T
    token = linear(relu(linear(cls, w, at + "token_features.0")), w, at + "token_features.2")
    shares = sinkhorn(scores, float(w[at + "dust_bin"]))[:-1]
    clusters = []
    for share in shares:
        total = np.zeros(features.shape[1])
        for j in range(len(features)):
            total += features[j] * share[j]
        clusters.append(unit(total))
    flat = [clusters[k][c] for c in range(features.shape[1]) for k in range(len(clusters))]
    return unit(np.concatenate([unit(token), flat]))


def salad(w: Weights, pixels: Array) -> Array:
    tokens = transformer_states(w, "backbone.model.", pixels)[-1]
    tokens = np.array([norm(t, w, "backbone.model.norm", 1e-6) for t in tokens])
    return transported(w, "aggregator.", tokens[0], tokens[1:])


def megaloc(w: Weights, pixels: Array) -> Array:
    tokens = transformer_states(w, "backbone.", pixels)[-1]
    tokens = np.array([norm(t, w, "backbone.norm", 1e-6) for t in tokens])
    return unit(linear(transported(w, "aggregator.agg.", tokens[0], tokens[1:]), w, "aggregator.linear"))


def multi_head(w: Weights, at: str, queries: Array, others: Array, width: int) -> Array:
    matrix, bias, d = w[f"{at}.in_proj_weight"], w[f"{at}.in_proj_bias"], queries.shape[1]
    q = queries @ matrix[:d].T + bias[:d]
    k = others @ matrix[d : 2 * d].T + bias[d : 2 * d]
    v = others @ matrix[2 * d :].T + bias[2 * d :]
    return np.array([linear(t, w, f"{at}.out_proj") for t in attention(q, k, v, width)])


def boq(w: Weights, pixels: Array) -> Array:
    tokens = transformer_states(w, "backbone.dino.", pixels)[-1][1:]  # before the final norm
    side, a = math.isqrt(len(tokens)), "aggregator."
    square = convolution(tokens.T.reshape(-1, side, side), w[a + "proj_c.weight"], w[a + "proj_c.bias"], pad=1)
    x = np.array([norm(t, w, a + "norm_input", 1e-5) for t in square.reshape(len(square), -1).T])
    answers, i = [], 0
    while f"{a}boqs.{i}.queries" in w:
        b = f"{a}boqs.{i}."
        e = b + "encoder."
        x = x + multi_head(w, e + "self_attn", x, x, 64)
        x = np.array([norm(t, w, e + "norm1", 1e-5) for t in x])
        x = x + np.array([linear(relu(linear(t, w, e + "linear1")), w, e + "linear2") for t in x])
        x = np.array([norm(t, w, e + "norm2", 1e-5) for t in x])
        q = w[b + "queries"][0]
        q = q + multi_head(w, b + "self_attn", q, q, 64)
        q = np.array([norm(t, w, b + "norm_q", 1e-5) for t in q])
        o = multi_head(w, b + "cross_attn", q, x, 64)
        answers += [norm(t, w, b + "norm_out", 1e-5) for t in o]
        i += 1
    rows = [linear(np.array([answer[c] for answer in answers]), w, a + "fc") for c in range(len(answers[0]))]
    return unit(np.concatenate(rows))


def adapter(w: Weights, at: str, tokens: Array) -> Array:
    """`1+n d` → `1+n d`, the class token with the patches."""
    r = np.array([relu(linear(t, w, f"{at}.D_fc1")) for t in tokens])
    side = math.isqrt(len(tokens) - 1)
    square = r[1:].T.reshape(-1, side, side)

    def layer(x: Array, name: str, pad: int) -> Array:
        here = f"{at}.{name}"
        return relu(
            batch_norm(convolution(x, w[f"{here}.conv.weight"], w[f"{here}.conv.bias"], pad=pad), w, f"{here}.bn", 1e-3)
        )

    branches = [
        layer(square, "branch1", 0),
        layer(layer(square, "branch2.0", 0), "branch2.1", 1),
        layer(layer(square, "branch3.0", 0), "branch3.1", 2),
    ]
    mixed = np.concatenate(branches)
    whole = np.concatenate([r[:1] + r[:1], mixed.reshape(len(mixed), -1).T + r[1:]])
    return np.array([linear(t, w, f"{at}.D_fc2") for t in whole])


def side_stream(w: Weights, pixels: Array, which: str) -> Array:
    states = transformer_states(w, "module.backbone.", pixels)
    at = f"module.backbone.{which}."
    count = len({name.removeprefix(at).split(".")[0] for name in w if name.startswith(at)})
    first = len(states) - 1 - count
    y = states[first]
    for i in range(first, len(states) - 1):
        y = y + adapter(w, f"{at}{i - first}", y + states[i + 1])
    return y


def pooled(columns: list[Array], p: float) -> Array:
    """Generalised mean of unit vectors."""
    total = np.zeros(len(columns[0]))
    for column in columns:
        total += np.maximum(unit(column), 1e-6) ** p
    return (total / len(columns)) ** (1 / p)


def selavpr(w: Weights, pixels: Array) -> tuple[Array, Array | None]:
    def branch(which: str, pooling: str, before: str, after: str) -> Array:
        y = [norm(t, w, "module.backbone.norm", 1e-6) for t in side_stream(w, pixels, which)[1:]]
        p = float(w[f"module.{pooling}.1.p"][0])
        gathered = pooled([linear(t, w, f"module.{before}") for t in y], p)
        return unit(linear(gathered, w, f"module.{after}"))

    vector = branch("adapters", "aggregation", "linear1", "linear2")
    if "module.linear4.weight" not in w:
        return vector, None
    z = branch("adapters_hashing", "aggregation_hashing", "linear3", "linear4")
    return vector, np.array([1 if value >= 0 else -1 for value in z])


def channel_norm(x: Array, w: Weights, at: str) -> Array:
    out = np.empty_like(x)
    for row in range(x.shape[1]):
        for column in range(x.shape[2]):
            out[:, row, column] = norm(x[:, row, column], w, at, 1e-6)
    return out


def sample4geo(w: Weights, pixels: Array) -> Array:
    x = convolution(pixels, w["model.stem.0.weight"], w["model.stem.0.bias"], stride=4)
    x = channel_norm(x, w, "model.stem.1")
    for stage in range(4):
        s = f"model.stages.{stage}."
        if stage:
            x = channel_norm(x, w, s + "downsample.0")
            x = convolution(x, w[s + "downsample.1.weight"], w[s + "downsample.1.bias"], stride=2)
        block = 0
        while f"{s}blocks.{block}.gamma" in w:
            b = f"{s}blocks.{block}."
            inner = channel_norm(convolution(x, w[b + "conv_dw.weight"], w[b + "conv_dw.bias"], pad=3), w, b + "norm")
            for row in range(x.shape[1]):
                for column in range(x.shape[2]):
                    t = linear(gelu(linear(inner[:, row, column], w, b + "mlp.fc1")), w, b + "mlp.fc2")
                    inner[:, row, column] = w[b + "gamma"] * t
            x = x + inner
            block += 1
    return unit(norm(x.reshape(len(x), -1).sum(axis=1) / (x.shape[1] * x.shape[2]), w, "model.head.norm", 1e-6))


def cosplace(w: Weights, pixels: Array) -> Array:
    x = relu(batch_norm(convolution(pixels, w["backbone.0.weight"], stride=2, pad=3), w, "backbone.1", 1e-5))
    high = np.full((len(x), x.shape[1] + 2, x.shape[2] + 2), -np.inf)
    high[:, 1:-1, 1:-1] = x
    x = np.zeros((len(x), (high.shape[1] - 3) // 2 + 1, (high.shape[2] - 3) // 2 + 1))
    for row in range(x.shape[1]):
        for column in range(x.shape[2]):
            x[:, row, column] = high[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].max(axis=(1, 2))
    for stage in range(4, 8):
        block = 0
        while f"backbone.{stage}.{block}.conv1.weight" in w:
            b = f"backbone.{stage}.{block}."
            stride = 2 if stage > 4 and block == 0 else 1
            three = b + "conv3.weight" in w
            strides = (1, stride, 1) if three else (stride, 1)
            inner = x
            for number, step in enumerate(strides, 1):
                kernel = w[f"{b}conv{number}.weight"]
                inner = convolution(inner, kernel, stride=step, pad=kernel.shape[2] // 2)
                inner = batch_norm(inner, w, f"{b}bn{number}", 1e-5)
                inner = relu(inner) if number < len(strides) else inner
            if b + "downsample.0.weight" in w:
                x = batch_norm(convolution(x, w[b + "downsample.0.weight"], stride=stride), w, b + "downsample.1", 1e-5)
            x = relu(inner + x)
            block += 1
    columns = list(x.reshape(len(x), -1).T)
    return unit(linear(pooled(columns, float(w["aggregation.1.p"][0])), w, "aggregation.3"))
