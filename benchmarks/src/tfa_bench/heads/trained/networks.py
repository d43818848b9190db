"""Networks of trained systems, run by transformers: DINOv2, ResNet and ConvNeXt, in the sizes of a checkpoint.

Checkpoints have other names than transformers: DINOv2's authors', torchvision's and timm's. A rule renames a module's
weight to its published name, so that files are compared and errors written in published names.

Layers of published systems after their backbone carry the names of their checkpoints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ConvNextConfig, ConvNextModel, Dinov2Config, Dinov2Model, ResNetConfig, ResNetModel
from transformers.models.dinov2.modeling_dinov2 import Dinov2Embeddings

from tfa.encoders.vit import resample_positions

Shapes = Mapping[str, tuple[int, ...]]  # shapes of a checkpoint's tensors by published name
NameRules = tuple[tuple[str, str], ...]  # pattern in a module's name, its published replacement

PATCH = 14
HEAD_WIDTH = 64  # width of attention heads in every published transformer, which gives their number

_DINOV2_BLOCKS = {384: 12, 768: 12, 1024: 24, 1536: 40}  # by width
# Layers of published ResNets by the blocks of their stages and the kind of block.
_RESNET_LAYERS: Mapping[tuple[tuple[int, ...], str], int] = {
    ((2, 2, 2, 2), "basic"): 18,
    ((3, 4, 6, 3), "basic"): 34,
    ((3, 4, 6, 3), "bottleneck"): 50,
    ((3, 4, 23, 3), "bottleneck"): 101,
    ((3, 8, 36, 3), "bottleneck"): 152,
}
_RESNET_WIDTHS = (64, 128, 256, 512)  # inside the blocks of each stage
_RESNET_STAGES = (4, 5, 6, 7)  # indices of children in a published network; 2 and 3 are the ReLU and the pooling
_CONVNEXT_BASE = (3, 3, 27, 3), (128, 256, 512, 1024)  # depths and widths

# Rows of the published qkv are all queries, all keys, all values: three weights here have one published name.
DINOV2_NAMES: NameRules = (
    (r"^backbone\.embeddings\.position_embeddings$", "backbone.pos_embed"),
    (r"^backbone\.embeddings\.patch_embeddings\.projection\.", "backbone.patch_embed.proj."),
    (r"^backbone\.embeddings\.", "backbone."),
    (r"^backbone\.layernorm\.", "backbone.norm."),
    (r"^backbone\.encoder\.layer\.", "backbone.blocks."),
    (r"\.attention\.[qkv]_proj\.", ".attn.qkv."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
)
RESNET_NAMES: NameRules = (
    (r"^backbone\.embedder\.embedder\.convolution\.", "backbone.0."),
    (r"^backbone\.embedder\.embedder\.normalization\.", "backbone.1."),
    *((rf"^backbone\.encoder\.stages\.{i}\.layers\.", f"backbone.{child}.") for i, child in enumerate(_RESNET_STAGES)),
    *((rf"\.layer\.{i}\.convolution\.", f".conv{i + 1}.") for i in range(3)),
    *((rf"\.layer\.{i}\.normalization\.", f".bn{i + 1}.") for i in range(3)),
    (r"\.shortcut\.convolution\.", ".downsample.0."),
    (r"\.shortcut\.normalization\.", ".downsample.1."),
)
CONVNEXT_NAMES: NameRules = (
    (r"^model\.layernorm\.", "model.head.norm."),
    (r"^model\.embeddings\.patch_embeddings\.", "model.stem.0."),
    (r"^model\.embeddings\.layernorm\.", "model.stem.1."),
    (r"^model\.encoder\.stages\.", "model.stages."),
    (r"\.downsampling_layer\.", ".downsample."),
    (r"\.layers\.", ".blocks."),
    (r"\.dwconv\.", ".conv_dw."),
    (r"\.layernorm\.", ".norm."),
    (r"\.pwconv([12])\.", r".mlp.fc\1."),
    (r"\.layer_scale_parameter$", ".gamma"),
)


def to_published_name(name: str, rules: NameRules) -> str:
    """Rename a module's weight to its published name, by every rule in turn."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def read_size(shapes: Shapes, name: str, axis: int, default: int) -> int:
    """Read a side of a tensor; the published one if a file lacks the tensor, which is then reported as missing."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else default


def count_numbers(shapes: Shapes, prefix: str, default: int) -> int:
    """Count the different numbers after a prefix: no file can make a model longer than itself."""
    matches = (re.match(re.escape(prefix) + r"(\d+)\.", name) for name in shapes)
    return len({match[1] for match in matches if match}) or default


class _PublishedPositions(Dinov2Embeddings):
    """DINOv2's embeddings with its authors' resampling of positions, which differs from transformers'."""

    def interpolate_pos_encoding(self, embeddings: Tensor, height: int, width: int) -> Tensor:
        return resample_positions(self.position_embeddings, (height // PATCH, width // PATCH))


def make_dinov2(shapes: Shapes, width: int = 768) -> Dinov2Model:
    """Make an empty DINOv2 without registers, of `width` channels unless the shapes say otherwise.

    Raises:
        ValueError: for sizes that a transformer cannot have.
    """
    width = read_size(shapes, "backbone.patch_embed.proj.weight", 0, width)
    positions = read_size(shapes, "backbone.pos_embed", 1, 1370)
    side = math.isqrt(max(positions - 1, 0))
    if width % HEAD_WIDTH:
        raise ValueError(f"a backbone of {width} channels, which is not a multiple of {HEAD_WIDTH}")
    if positions < 2 or side**2 != positions - 1:
        raise ValueError(f"{positions} positions, which are not one and a square")
    config = Dinov2Config(
        hidden_size=width,
        # Use the number of blocks of the published model of this width, so that a truncated file is not a shorter
        # model.
        num_hidden_layers=_DINOV2_BLOCKS.get(width) or count_numbers(shapes, "backbone.blocks.", 1),
        num_attention_heads=width // HEAD_WIDTH,
        image_size=side * PATCH,
        patch_size=PATCH,
        use_mask_token="backbone.mask_token" in shapes,  # Most checkpoints have one; only training reads it.
    )
    model = Dinov2Model(config)
    model.embeddings = _PublishedPositions(config)
    return model


def to_map(patches: Tensor) -> Tensor:
    """Arrange patch tokens `(b, g², d)` of a square grid as `(b, d, g, g)`."""
    side = math.isqrt(patches.shape[1])
    return patches.transpose(1, 2).unflatten(2, (side, side))


def make_resnet(shapes: Shapes) -> tuple[ResNetModel, str]:
    """Make an empty ResNet without its classifier.

    Returns:
        The network, and its name.

    Raises:
        ValueError: for published widths with other blocks than any published network has.
    """
    kind = "bottleneck" if "backbone.4.0.conv3.weight" in shapes else "basic"
    stages = list(zip(_RESNET_STAGES, (3, 4, 6, 3), _RESNET_WIDTHS, strict=True))
    depths = tuple(count_numbers(shapes, f"backbone.{stage}.", depth) for stage, depth, _ in stages)
    widths = tuple(read_size(shapes, f"backbone.{stage}.0.conv1.weight", 0, width) for stage, _, width in stages)
    layers = _RESNET_LAYERS.get((depths, kind))
    if widths == _RESNET_WIDTHS and layers is None:
        raise ValueError(f"stages of {depths} blocks, unlike any published ResNet")
    config = ResNetConfig(
        embedding_size=read_size(shapes, "backbone.0.weight", 0, 64),
        hidden_sizes=[width * (4 if kind == "bottleneck" else 1) for width in widths],
        depths=list(depths),
        layer_type=kind,
    )
    return ResNetModel(config), f"ResNet-{layers}" if layers else "ResNet"


def make_convnext(shapes: Shapes) -> ConvNextModel:
    """Make an empty ConvNeXt without its classifier; ConvNeXt-B unless the shapes say otherwise."""
    stages = list(enumerate(zip(*_CONVNEXT_BASE, strict=True)))
    widths = tuple(read_size(shapes, f"model.stages.{i}.blocks.0.gamma", 0, width) for i, (_, width) in stages)
    depths = tuple(count_numbers(shapes, f"model.stages.{i}.blocks.", depth) for i, (depth, _) in stages)
    if widths == _CONVNEXT_BASE[1]:
        depths = _CONVNEXT_BASE[0]  # A file that lacks one of these blocks is not a shorter model.
    # The last norm has the epsilon of all others; transformers' default for it is 1e-12.
    return ConvNextModel(ConvNextConfig(hidden_sizes=list(widths), depths=list(depths), layer_norm_eps=1e-6))


# --- layers after the backbone -------------------------------------------------------------------------------------


_LEAST = 1e-6  # Smaller values are raised to it: a negative number has no power p.
_SINKHORN_ROUNDS = 3
_ADAPTER_NORM_EPS = 1e-3


class GeneralizedMean(nn.Module):
    """Pooling of CosPlace, EigenPlaces and SelaVPR++: a map `(b, c, h, w)` → `(b, c)`.

    Normalize each location, take the mean of p-th powers, then the p-th root.
    """

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.empty(1))

    def forward(self, state: Tensor) -> Tensor:
        unit = functional.normalize(state, dim=1)
        return unit.clamp(min=_LEAST).pow(self.p).mean(dim=(2, 3)).pow(1 / self.p)


class OptimalTransport(nn.Module):
    """Aggregation of SALAD and MegaLoc: normalized tokens `(b, 1+n, d)` → unit vectors `(b, token +
    features·clusters)`.
    """

    def __init__(self, *, width: int, hidden: int, clusters: int, features: int, token: int) -> None:
        super().__init__()
        self.token_features = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, token))
        self.cluster_features = _make_pointwise(width, hidden, features)
        self.score = _make_pointwise(width, hidden, clusters)
        self.dust_bin = nn.Parameter(torch.empty(()))
        self.output = token + features * clusters

    def forward(self, tokens: Tensor) -> Tensor:
        patches = to_map(tokens[:, 1:])
        features = self.cluster_features(patches).flatten(2)  # (b, l, n)
        shares = transport(self.score(patches).flatten(2), self.dust_bin)  # (b, m, n)
        clusters = functional.normalize(torch.einsum("bln,bmn->blm", features, shares), dim=1)
        token = functional.normalize(self.token_features(tokens[:, 0]), dim=1)
        # The token comes first. In the rest, the feature channel is the major index and the cluster the minor one.
        return functional.normalize(torch.cat([token, clusters.flatten(1)], dim=1), dim=1)


def transport(scores: Tensor, dust_bin: Tensor) -> Tensor:
    """Assign patches to clusters and a dustbin: scores `(b, m, n)` → shares `(b, m, n)` without the dustbin; n > m.

    The dustbin is one more row of scores, a learned scalar; it has no column. Three rounds of Sinkhorn in log space
    fit the columns last, so that the shares of a patch, including the dustbin's, sum to one.
    """
    batch, clusters, patches = scores.shape
    bin_row = dust_bin.to(scores).expand(batch, 1, patches)
    scores = torch.cat([scores, bin_row], dim=1)
    level = -math.log(patches + clusters)
    rows = scores.new_full((clusters + 1, 1), level)
    rows[-1] += math.log(patches - clusters)  # the rest of the mass
    v = scores.new_zeros(batch, 1, patches)
    for _ in range(_SINKHORN_ROUNDS):
        u = rows - torch.logsumexp(scores + v, dim=2, keepdim=True)
        v = level - torch.logsumexp(scores + u, dim=1, keepdim=True)
    return (scores + u + v - level).exp()[:, :-1]


def _make_pointwise(width: int, hidden: int, out: int) -> nn.Sequential:
    # The dropout does nothing at inference, but checkpoints count it: the convolutions are 0 and 3.
    return nn.Sequential(nn.Conv2d(width, hidden, 1), nn.Dropout(0.3), nn.ReLU(), nn.Conv2d(hidden, out, 1))


class ProjectedTransport(nn.Module):
    """Aggregation of MegaLoc: SALAD's, then a linear layer with bias, then normalization."""

    def __init__(self, transport: OptimalTransport, output: int) -> None:
        super().__init__()
        self.agg = transport
        self.linear = nn.Linear(transport.output, output)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.normalize(self.linear(self.agg(tokens)), dim=1)


class QueryAggregator(nn.Module):
    """Aggregation of BoQ: a patch map `(b, d, g, g)` → unit vectors `(b, channels·rows)`, by learned queries."""

    def __init__(self, *, width: int, channels: int, queries: int, blocks: int, hidden: int, rows: int) -> None:
        super().__init__()
        self.proj_c = nn.Conv2d(width, channels, 3, padding=1)
        self.norm_input = nn.LayerNorm(channels)
        self.boqs = nn.ModuleList(_QueryBlock(channels, queries, hidden) for _ in range(blocks))
        self.fc = nn.Linear(blocks * queries, rows)

    def forward(self, patches: Tensor) -> Tensor:
        state = self.norm_input(self.proj_c(patches).flatten(2).transpose(1, 2))  # (b, n, c)
        answers = []
        for block in self.boqs:
            state, answer = block(state)
            answers.append(answer)
        # The channel is the major index, the row the minor one.
        combined = self.fc(torch.cat(answers, dim=1).transpose(1, 2))  # (b, c, rows)
        return functional.normalize(combined.flatten(1), dim=1)


class _QueryBlock(nn.Module):
    """Patches attend to each other; queries attend to each other, then to the patches, without a residual."""

    def __init__(self, channels: int, queries: int, hidden: int) -> None:
        super().__init__()
        heads = max(channels // HEAD_WIDTH, 1)
        self.encoder = nn.TransformerEncoderLayer(channels, heads, hidden, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.empty(1, queries, channels))
        self.self_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm_q = nn.LayerNorm(channels)
        self.cross_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm_out = nn.LayerNorm(channels)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        state, queries = self.encoder(state), self.queries
        queries = self.norm_q(queries + self.self_attn(queries, queries, queries, need_weights=False)[0])
        queries = queries.expand(len(state), -1, -1)
        return state, self.norm_out(self.cross_attn(queries, state, state, need_weights=False)[0])


class Adapter(nn.Module):
    """SelaVPR++'s adapter of patches `(b, n, d)`: down, three convolutions in parallel with a residual, up."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.D_fc1, self.D_fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        half, quarter, narrow = hidden // 2, hidden // 4, hidden // 16
        self.branch1 = _Convolution(hidden, half, 1)
        self.branch2 = nn.Sequential(_Convolution(hidden, narrow, 1), _Convolution(narrow, quarter, 3))
        self.branch3 = nn.Sequential(_Convolution(hidden, narrow, 1), _Convolution(narrow, quarter, 5))

    def forward(self, patches: Tensor) -> Tensor:
        down = functional.relu(self.D_fc1(patches))
        square = to_map(down)
        mixed = torch.cat([self.branch1(square), self.branch2(square), self.branch3(square)], dim=1)
        return self.D_fc2(mixed.flatten(2).transpose(1, 2) + down)


class _Convolution(nn.Module):
    def __init__(self, before: int, after: int, side: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, side, padding=side // 2)
        self.bn = nn.BatchNorm2d(after, eps=_ADAPTER_NORM_EPS)

    def forward(self, state: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(state)))


def adapt(states: Sequence[Tensor], adapters: nn.ModuleList) -> Tensor:
    """Run SelaVPR++'s side stream along the backbone's states h, before its first block and after each.

    y ← h_s;  for each block i ≥ s:  y ← y + A(y + h_{i+1})
    """
    skipped = len(states) - 1 - len(adapters)
    stream = states[skipped]
    for adapter, state in zip(adapters, states[skipped + 1 :], strict=True):
        stream = stream + adapter(stream + state)
    return stream
