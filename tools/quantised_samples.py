"""Write matrices that other libraries quantised, and their numbers, for the tests.

    python tools/quantised_samples.py tests/data/quantised.safetensors

Needs, in an environment of its own: torch, bitsandbytes, hqq, gptqmodel, autoawq, amd-quark and
nvidia-modelopt. A sample SAMPLE has its tensors as `SAMPLE/END` and the matrix that they mean as
`SAMPLE/meant`. The library packs and unpacks the codes; its scales, in float64, multiply them,
since most libraries compute in 16 bits. What bitsandbytes and modelopt compute is taken as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

HEIGHT, WIDTH = 32, 64
Sample = tuple[str, dict[str, Any], torch.Tensor]


def matrix(seed: int, powers: int) -> torch.Tensor:
    """Make rows of sizes from 2^−powers to 2^powers."""
    torch.manual_seed(seed)
    size = torch.linspace(-powers, powers, HEIGHT).round()
    return torch.randn(HEIGHT, WIDTH) * torch.exp2(size)[:, None]


def linear(weight: torch.Tensor) -> nn.Linear:
    """Make a module with this weight."""
    made = nn.Linear(WIDTH, HEIGHT, bias=False)
    made.weight.data = weight
    return made


def bitsandbytes_samples() -> Iterator[Sample]:
    """Quantise by bitsandbytes: both tables, with scales of scales or without, and int8."""
    import bitsandbytes as bnb
    from bitsandbytes import functional

    for table in ("nf4", "fp4"):
        for nested in (False, True):
            module = bnb.nn.Linear4bit(
                WIDTH, HEIGHT, bias=False, quant_type=table, compress_statistics=nested
            )
            module.load_state_dict({"weight": matrix(1, 3 if nested else 20)})
            module = module.to("cpu")
            parts = module.state_dict()
            meant = functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            yield f"bnb-{table}{'-nested' if nested else ''}", parts, meant
    module = bnb.nn.Linear8bitLt(WIDTH, HEIGHT, bias=False, has_fp16_weights=False)
    module.load_state_dict({"weight": matrix(2, 10).half()})
    parts = module.to("cpu").state_dict()
    yield "bnb-int8", parts, functional.int8_vectorwise_dequant(parts["weight"], parts["SCB"])


def hqq_samples() -> Iterator[Sample]:
    """Quantise by HQQ with groups along the columns."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

    for bits in (8, 5, 4, 3, 2, 1):
        config = BaseQuantizeConfig(nbits=bits, group_size=32, axis=1)
        module = HQQLinear(
            linear(matrix(bits, 4)), config, compute_dtype=torch.float16, device="cpu"
        )
        meta = module.meta
        codes = Quantizer.unpack[meta["packing"]](module.W_q, dtype=torch.uint8)
        codes = codes[: HEIGHT * WIDTH // 32].double()
        meant = (codes - meta["zero"].double()) * meta["scale"].double()
        yield f"hqq-{bits}", module.state_dict(), meant.reshape(HEIGHT, WIDTH)


def gptq_samples() -> Iterator[Sample]:
    """Pack by GPTQModel, with columns in order and not."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    for bits, ordered in ((2, True), (3, True), (4, True), (8, True), (4, False)):
        group, weight = 32, matrix(bits, 4)
        index = torch.arange(WIDTH, dtype=torch.int32) // group
        if not ordered:
            index = index[torch.randperm(WIDTH)]
        scales = torch.stack(
            [weight[:, index == g].abs().amax(1) / 2 ** (bits - 1) for g in (0, 1)], 1
        ).half().float()  # fmt: skip
        zeros = torch.randint(1, 2**bits, scales.shape).float()
        module = TorchLinear(
            bits=bits, group_size=group, sym=False, desc_act=not ordered, in_features=WIDTH,
            out_features=HEIGHT, bias=False, register_buffers=True,
        )  # fmt: skip
        module.pack_original(linear(weight), scales, zeros, index)
        module.post_init()
        found = module.dequantize_weight().T.double() / scales.double()[:, index]
        codes = found.round()
        assert (found - codes).abs().max() < 0.1  # the library computes in 16 bits
        parts = {n: getattr(module, n) for n in ("qweight", "qzeros", "scales", "g_idx")}
        meant = codes * scales.double()[:, index]
        yield f"gptq-{bits}{'' if ordered else '-disorder'}", parts, meant


def awq_samples() -> Iterator[Sample]:
    """Pack by AutoAWQ."""
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import reverse_awq_order, unpack_awq

    weight, group = matrix(4, 4), 32
    scales = weight.reshape(HEIGHT, -1, group).abs().amax(2) / 7
    scales = scales.half().float()
    zeros = torch.randint(0, 16, scales.shape).float()
    module = WQLinear_GEMM.from_linear(
        linear(weight), 4, group, scales=scales.T.contiguous(), zeros=zeros.T.contiguous()
    )
    codes, points = unpack_awq(module.qweight, module.qzeros, 4)
    codes, points = reverse_awq_order(codes, points, 4)
    codes, points = codes & 15, points & 15
    each = points.double().repeat_interleave(group, 0)
    meant = (codes.double() - each) * module.scales.double().repeat_interleave(group, 0)
    yield "awq", {n: getattr(module, n) for n in ("qweight", "qzeros", "scales")}, meant.T


def quark_samples() -> Iterator[Sample]:
    """Pack by Quark: integers in groups and by row, and E2M1 under exponents."""
    from quark.torch.utils.pack import Pack_4_bits, Pack_fp4

    weight, group = matrix(5, 4), 32
    scale = (weight.reshape(HEIGHT, -1, group).abs().amax(2) / 7).half()
    for kind, low in (("uint4", 0), ("int4", -8)):
        for reorder in (True, False):
            codes = torch.randint(low, low + 16, (HEIGHT, WIDTH), dtype=torch.int32)
            points = torch.randint(low, low + 16, scale.shape, dtype=torch.int32)
            packer = Pack_4_bits("per_group", kind)
            parts = {
                "weight": packer.pack(codes, reorder), "weight_scale": scale.T,
                "weight_zero_point": packer.pack(points, reorder),
            }  # fmt: skip
            found = packer.unpack(parts["weight"], reorder).double()
            each = packer.unpack(parts["weight_zero_point"], reorder).double()
            each = found - each.repeat_interleave(group, 1)
            meant = each * scale.double().repeat_interleave(group, 1)
            yield f"quark-{kind}-{'reorder' if reorder else 'order'}", parts, meant
    packer, by_row = Pack_4_bits("per_channel", "int4"), scale.amax(1)
    codes = torch.randint(-8, 8, (HEIGHT, WIDTH), dtype=torch.int32)
    parts = {"weight": packer.pack(codes, True), "weight_scale": by_row}
    meant = packer.unpack(parts["weight"], True).double() * by_row.double()[:, None]
    yield "quark-int4-row-reorder", parts, meant
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    signs = torch.randint(0, 2, (HEIGHT, WIDTH)) * 2 - 1
    chosen = values[torch.randint(0, 8, (HEIGHT, WIDTH))] * signs
    exponents = torch.randint(100, 150, (HEIGHT, WIDTH // 32), dtype=torch.uint8)
    packer = Pack_fp4("per_group", "fp4")
    parts = {"weight": packer.pack(chosen, True), "weight_scale": exponents}
    each = torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)
    yield "quark-mxfp4", parts, packer.unpack(parts["weight"], True).double() * each


def modelopt_samples() -> Iterator[Sample]:
    """Quantise by modelopt: NVFP4, MXFP4, MXFP8."""
    from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

    made, scale, whole = NVFP4QTensor.quantize(matrix(6, 4), 16, try_tensorrt=False)
    parts = {
        "weight": made._quantized_data, "weight_scale": scale.reshape(HEIGHT, -1),
        "weight_scale_2": whole,
    }  # fmt: skip
    exact = made.dequantize(
        torch.float64, scale=scale, double_scale=whole.double(),
        block_sizes={-1: 16},
    )  # fmt: skip
    yield "modelopt-nvfp4", parts, exact
    made, scale = MXFP4QTensor.quantize(matrix(7, 12), 32)
    parts = {"weight": made._quantized_data, "weight_scale": scale.reshape(HEIGHT, -1)}
    meant = made.dequantize(torch.float64, scale=scale, block_sizes={-1: 32})
    yield "modelopt-mxfp4", parts, meant
    made, scale = MXFP8QTensor.quantize(matrix(8, 12))
    parts = {"weight": made._quantized_data, "weight_scale": scale.reshape(HEIGHT, -1)}
    yield "modelopt-mxfp8", parts, made.dequantize(torch.float64, scale=scale)


def main() -> None:
    """Write the samples of every library."""
    tensors = {}
    makers = (
        bitsandbytes_samples, hqq_samples, gptq_samples, awq_samples, quark_samples,
        modelopt_samples,
    )  # fmt: skip
    for maker in makers:
        for name, parts, meant in maker():
            for end, part in parts.items():
                tensors[f"{name}/{end}"] = part.detach().contiguous().clone()
            tensors[f"{name}/meant"] = meant.detach().float().contiguous()
            print(name, {end: (str(p.dtype), list(p.shape)) for end, p in parts.items()})
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
