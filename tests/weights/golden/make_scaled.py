"""Makes scaled/: matrices of 8- and 4-bit floats as other programs write them, and what these read back from them. Needs
torch, transformers and compressed-tensors.

    python make_scaled.py
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = Path(__file__).parent / "scaled"
ROWS, COLUMNS, BLOCK = 12, 192, (4, 64)
SCHEMES = {
    "tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "block": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": list(BLOCK)}),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
    "mxfp8": (
        "mxfp8-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
}  # compressed-tensors' names


def extremes(weight: torch.Tensor, strategy: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and largest of whatever shares a scale."""
    rows, columns = weight.shape
    grouped = {
        "tensor": weight.reshape(1, -1),
        "channel": weight,
        "tensor_group": weight.reshape(rows, -1, 16),
        "group": weight.reshape(rows, -1, 32),
        "block": weight.reshape(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1])
        .permute(0, 2, 1, 3)
        .flatten(2),
    }[strategy]
    keep = strategy in ("tensor", "channel")
    return grouped.amin(-1, keepdim=keep), grouped.amax(-1, keepdim=keep)


def compressed(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(tensors as in a file, what is read back)."""
    form, described = SCHEMES[name]
    arguments = QuantizationArgs(**described)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=form)
    state = {"weight": weight}
    whole = None
    if name == "nvfp4":
        whole = state["weight_global_scale"] = generate_gparam(weight.min(), weight.max()).reshape(1)
    state["weight_scale"], _ = calculate_qparams(
        *extremes(weight, described["strategy"]), arguments, global_scale=whole
    )
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    if name != "nvfp4":
        return stored, compressor.decompress(dict(stored), scheme)["weight"].float()
    codes = unpack_fp4_from_uint8(stored["weight_packed"], ROWS, COLUMNS, dtype=torch.float32)  # else bfloat16
    return stored, dequantize(
        codes, stored["weight_scale"].float(), args=arguments, dtype=torch.float32, global_scale=whole
    )


def main() -> None:
    generator = torch.Generator().manual_seed(7)

    def weight() -> torch.Tensor:
        rows = torch.rand(ROWS, 1, generator=generator) + 0.1
        return torch.randn(ROWS, COLUMNS, generator=generator) * rows * 0.05

    tensors, expected = {}, {}
    for name in SCHEMES:
        stored, values = compressed(name, weight())
        tensors |= {f"{name}.{part}": tensor for part, tensor in stored.items()}
        expected[f"{name}.weight"] = values
    # Model Optimizer: the same NVFP4 with the whole's inverse under another name, and packed bytes under the matrix's own
    tensors["optimizer.weight"] = tensors["nvfp4.weight_packed"].clone()
    tensors["optimizer.weight_scale"] = tensors["nvfp4.weight_scale"].clone()
    tensors["optimizer.weight_scale_2"] = 1 / tensors["nvfp4.weight_global_scale"][0]
    tensors["optimizer.input_scale"] = torch.tensor(0.5)
    expected["optimizer.weight"] = expected["nvfp4.weight"].clone()
    # transformers' fine-grained FP8
    fine, scales = (
        weight().mul(3000).clamp(-448, 448).to(torch.float8_e4m3fn),
        torch.rand(3, 3, generator=generator) / 3000,
    )
    tensors |= {"fine.weight": fine, "fine.weight_scale_inv": scales}
    expected["fine.weight"] = Fp8Dequantize(SimpleNamespace())._dequantize_one(fine, scales, torch.float32)
    # gpt-oss, of whose experts there are two
    blocks = torch.randint(0, 256, (2, 6, COLUMNS // 32, 16), generator=generator, dtype=torch.uint8)
    powers = torch.randint(115, 125, (2, 6, COLUMNS // 32), generator=generator, dtype=torch.uint8)
    tensors |= {"experts.up_blocks": blocks, "experts.up_scales": powers}
    expected["experts.up"] = convert_moe_packed_tensors(blocks, powers, dtype=torch.float32).transpose(1, 2)
    HERE.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, HERE / "model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, HERE / "expected.safetensors")
    groups = {"group_0": {"targets": ["Linear"], "weights": {"block_structure": list(BLOCK)}}}
    quantised = {"quant_method": "compressed-tensors", "config_groups": groups}
    config = {"model_type": "llama", "quantization_config": quantised}
    (HERE / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
