"""What the published files of SAM and MobileSAM hold: every tensor by its authors' name, with its shape."""

from __future__ import annotations

from tests.benchmarks.heads.trained.layouts import Layout, expanded

PROMPTS = """
pe_layer.positional_encoding_gaussian_matrix 2 C//2
point_embeddings.{0,1,2,3}.weight 1 C
{not_a_point_embed,no_mask_embed}.weight 1 C
mask_downscaling.0.weight G//4 1 2 2
mask_downscaling.{0.bias,1.weight,1.bias} G//4
mask_downscaling.3.weight G G//4 2 2
mask_downscaling.{3.bias,4.weight,4.bias} G
mask_downscaling.6.weight C G 1 1
mask_downscaling.6.bias C
"""
DECODER = """
transformer.layers.{L}.self_attn.{q_proj,k_proj,v_proj,out_proj}.weight C C
transformer.layers.{L}.self_attn.{q_proj,k_proj,v_proj,out_proj}.bias C
transformer.layers.{L}.{cross_attn_token_to_image,cross_attn_image_to_token}.{q_proj,k_proj,v_proj}.weight C//2 C
transformer.layers.{L}.{cross_attn_token_to_image,cross_attn_image_to_token}.{q_proj,k_proj,v_proj}.bias C//2
transformer.layers.{L}.{cross_attn_token_to_image,cross_attn_image_to_token}.out_proj.weight C C//2
transformer.layers.{L}.{cross_attn_token_to_image,cross_attn_image_to_token}.out_proj.bias C
transformer.layers.{L}.{norm1,norm2,norm3,norm4}.{weight,bias} C
transformer.layers.{L}.mlp.lin1.weight F C
transformer.layers.{L}.mlp.lin1.bias F
transformer.layers.{L}.mlp.lin2.weight C F
transformer.layers.{L}.mlp.lin2.bias C
transformer.final_attn_token_to_image.{q_proj,k_proj,v_proj}.weight C//2 C
transformer.final_attn_token_to_image.{q_proj,k_proj,v_proj}.bias C//2
transformer.final_attn_token_to_image.out_proj.weight C C//2
transformer.final_attn_token_to_image.out_proj.bias C
transformer.norm_final_attn.{weight,bias} C
iou_token.weight 1 C
mask_tokens.weight 4 C
output_upscaling.0.weight C C//4 2 2
output_upscaling.{0.bias,1.weight,1.bias} C//4
output_upscaling.3.weight C//4 C//8 2 2
output_upscaling.3.bias C//8
output_hypernetworks_mlps.{0,1,2,3}.layers.{0,1}.weight C C
output_hypernetworks_mlps.{0,1,2,3}.layers.{0,1}.bias C
output_hypernetworks_mlps.{0,1,2,3}.layers.2.weight C//8 C
output_hypernetworks_mlps.{0,1,2,3}.layers.2.bias C//8
iou_prediction_head.layers.0.weight I C
iou_prediction_head.layers.1.weight I I
iou_prediction_head.layers.{0,1}.bias I
iou_prediction_head.layers.2.weight 4 I
iou_prediction_head.layers.2.bias 4
"""
NECK = """
neck.0.weight C D 1 1
neck.2.weight C C 3 3
neck.{1,3}.{weight,bias} C
"""
VIT = """
pos_embed 1 S S D
patch_embed.proj.weight D 3 P P
patch_embed.proj.bias D
blocks.{B}.{norm1,norm2}.{weight,bias} D
blocks.{B}.attn.qkv.weight 3*D D
blocks.{B}.attn.qkv.bias 3*D
blocks.{B}.attn.proj.weight D D
blocks.{B}.attn.proj.bias D
blocks.{B}.mlp.lin1.weight 4*D D
blocks.{B}.mlp.lin1.bias 4*D
blocks.{B}.mlp.lin2.weight D 4*D
blocks.{B}.mlp.lin2.bias D
"""
WINDOW_BLOCK = """
attn.attention_biases H W*W
attn.norm.{weight,bias} D
attn.qkv.weight 3*D D
attn.qkv.bias 3*D
attn.proj.weight D D
attn.proj.bias D
mlp.norm.{weight,bias} D
mlp.fc1.weight X*D D
mlp.fc1.bias X*D
mlp.fc2.weight D X*D
mlp.fc2.bias D
"""


def rest(*, C: int = 256, F: int = 2048, G: int = 16, I: int = 256, L: int = 2) -> Layout:  # noqa: E741
    """The prompt encoder and the mask decoder."""
    return expanded(PROMPTS, "prompt_encoder.", C=C, G=G) | expanded(DECODER, "mask_decoder.", C=C, F=F, I=I, L=L)


def sam(width: int, blocks: int, heads: int, whole: tuple[int, ...], side: int = 64, window: int = 14) -> Layout:
    """A SAM of a published size: blocks with attention over the whole image have longer tables of positions."""
    found = expanded(VIT + NECK, "image_encoder.", D=width, B=blocks, S=side, P=16, C=256)
    for block in range(blocks):
        length = 2 * (side if block in whole else window) - 1
        for axis in "hw":
            found[f"image_encoder.blocks.{block}.attn.rel_pos_{axis}"] = (length, width // heads)
    return found | rest()


def tiny_vit(
    widths: tuple[int, ...] = (64, 128, 160, 320),
    blocks: tuple[int, ...] = (2, 2, 6, 2),
    heads: tuple[int, ...] = (2, 4, 5, 10),
    windows: tuple[int, ...] = (7, 7, 14, 7),
    expansion: int = 4,
    output: int = 256,
    classes: int = 1000,
) -> Layout:
    first = widths[0]
    found = _conv("patch_embed.seq.0", first // 2, 3, 3) | _conv("patch_embed.seq.2", first, first // 2, 3)
    for stage, width in enumerate(widths):
        for block in range(blocks[stage]):
            at = f"layers.{stage}.blocks.{block}"
            if stage == 0:
                inner = expansion * width
                found |= _conv(f"{at}.conv1", inner, width, 1) | _conv(f"{at}.conv2", inner, 1, 3)
                found |= _conv(f"{at}.conv3", width, inner, 1)
            else:
                found |= expanded(WINDOW_BLOCK, f"{at}.", D=width, H=heads[stage], W=windows[stage], X=expansion)
                found |= _conv(f"{at}.local_conv", width, 1, 3)
        if stage + 1 < len(widths):
            at, after = f"layers.{stage}.downsample", widths[stage + 1]
            found |= _conv(f"{at}.conv1", after, width, 1) | _conv(f"{at}.conv2", after, 1, 3)
            found |= _conv(f"{at}.conv3", after, after, 1)
    last = "norm_head.{weight,bias} D\nhead.weight K D\nhead.bias K" + NECK
    return found | expanded(last, D=widths[-1], K=classes, C=output)


def mobile_sam(encoder: Layout | None = None, decoder: Layout | None = None) -> Layout:
    named = {f"image_encoder.{name}": shape for name, shape in (encoder or tiny_vit()).items()}
    return named | (decoder or rest())


def _conv(at: str, after: int, before: int, side: int) -> Layout:
    norm = expanded("{weight,bias,running_mean,running_var} W\nnum_batches_tracked", f"{at}.bn.", W=after)
    return {f"{at}.c.weight": (after, before, side, side)} | norm
